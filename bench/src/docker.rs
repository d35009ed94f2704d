//! The Docker peer: a daemon of our own, with its data, socket and pid file in a temporary directory, and one container
//! in which commands are run.

use std::{
    fs::{self, File},
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::template;

const CONTAINER: &str = "live";
const IMAGE: &str = "cabana-bench";
const START: Duration = Duration::from_secs(60);
const STOP: Duration = Duration::from_secs(30);

pub(crate) struct Docker {
    daemon: Child,
    dir: TempDir,
}

impl Docker {
    pub(crate) fn start() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("cabana-bench-docker-").tempdir()?;
        let log = File::create(dir.path().join("log"))?;
        let daemon = Command::new("dockerd")
            .arg("--data-root")
            .arg(dir.path().join("data"))
            .arg("--exec-root")
            .arg(dir.path().join("exec"))
            .arg("--pidfile")
            .arg(dir.path().join("pid"))
            .arg("--host")
            .arg(host(dir.path()))
            // The host's firewall and bridges are not ours to change.
            .args(["--iptables=false", "--ip-masq=false", "--bridge=none"])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("docker is not installed, or dockerd does not start (Debian: apt-get install docker.io)")?;
        let mut docker = Self { daemon, dir };
        docker.await_ready()?;
        docker.run_container()?;
        Ok(docker)
    }

    /// A command in the container, as a user gives it.
    pub(crate) fn exec_argv(&self) -> Vec<String> {
        let words = ["docker", "--host", &host(self.dir.path()), "exec", CONTAINER, "/bin/true"];
        words.map(str::to_owned).to_vec()
    }

    /// The same without the command line program, whose own start costs tens of milliseconds. Nanoseconds.
    pub(crate) fn exec_by_api(&self) -> Result<f64> {
        let start = Instant::now();
        let made =
            self.post(&format!("/containers/{CONTAINER}/exec"), r#"{"Cmd":["/bin/true"],"AttachStdout":true}"#)?;
        let id = made.split("\"Id\":\"").nth(1).and_then(|rest| rest.split('"').next());
        let id = id.with_context(|| format!("docker's answer to exec has no id: {made}"))?;
        self.post(&format!("/exec/{id}/start"), r#"{"Detach":false,"Tty":false}"#)?;
        Ok(start.elapsed().as_nanos() as f64)
    }

    fn await_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + START;
        while self.request("GET", "/_ping", "").is_err() {
            if let Some(status) = self.daemon.try_wait()? {
                bail!("dockerd ended with {status}: {}", self.last_words());
            }
            ensure!(Instant::now() < deadline, "dockerd is not ready after {START:?}: {}", self.last_words());
            sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn last_words(&self) -> String {
        let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        log.lines().rev().find(|line| !line.is_empty()).unwrap_or("its log is empty").to_owned()
    }

    fn run_container(&self) -> Result<()> {
        let root = self.dir.path().join("root");
        template::make(&root, &["/bin/true", "/bin/sleep"])?;
        let image = self.dir.path().join("image.tar");
        let mut tar = tar::Builder::new(File::create(&image)?);
        tar.append_dir_all(".", &root)?;
        tar.finish()?;
        self.client(&["import".as_ref(), image.as_os_str(), IMAGE.as_ref()])?;
        let words = ["run", "--detach", "--network=none", "--name", CONTAINER, IMAGE, "/bin/sleep", "infinity"];
        self.client(&words.map(AsRef::as_ref))?;
        Ok(())
    }

    fn client(&self, args: &[&std::ffi::OsStr]) -> Result<Output> {
        let mut command = Command::new("docker");
        command.arg("--host").arg(host(self.dir.path())).args(args).stdin(Stdio::null());
        let output = command.output().context("docker is not installed (Debian: apt-get install docker.io)")?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "docker {} failed: {}", args[0].to_string_lossy(), stderr.trim());
        Ok(output)
    }

    fn post(&self, path: &str, body: &str) -> Result<String> {
        self.request("POST", path, body)
    }

    /// One request on a connection of its own, read to its end.
    fn request(&self, method: &str, path: &str, body: &str) -> Result<String> {
        let mut socket = UnixStream::connect(socket(self.dir.path()))?;
        let length = body.len();
        write!(
            socket,
            "{method} {path} HTTP/1.1\r\nHost: docker\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )?;
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer)?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let ok = answer.get(..12).is_some_and(|status| status.starts_with("HTTP/1.1 2"));
        ensure!(ok, "docker answered {path} with {}", answer.lines().next().unwrap_or("nothing"));
        Ok(answer)
    }

    fn stop(&mut self) -> Result<()> {
        // Best effort: a daemon that never came up has no container.
        let _ = self.client(&["rm", "--force", CONTAINER].map(AsRef::as_ref));
        let pid = i32::try_from(self.daemon.id()).ok().and_then(Pid::from_raw).context("a pid beyond all pids")?;
        if self.daemon.try_wait()?.is_none() {
            kill_process(pid, Signal::TERM)?;
        }
        let deadline = Instant::now() + STOP;
        while self.daemon.try_wait()?.is_none() {
            if Instant::now() > deadline {
                self.daemon.kill()?;
            }
            sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("the private dockerd (pid {}) could not be stopped: {error:#}", self.daemon.id());
        }
    }
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("socket")
}

fn host(dir: &Path) -> String {
    format!("unix://{}", socket(dir).display())
}
