//! A server as a service: what it says to whoever started it, how it drains, and what outlives it.

use std::{
    fs,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    path::{Path, PathBuf},
    pin::{Pin, pin},
    process::{Child, Command, Stdio},
};

use reqwest::{Method, Response, StatusCode, header::RETRY_AFTER};
use rustix::process::{Pid as ProcessId, Signal, kill_process};
use serde_json::{Value, json};

use crate::stage::{PATIENCE, Server, client, good, inits_of, refused, until};

fn tell(server: &Server, signal: Signal) {
    kill_process(ProcessId::from_raw(server.pid().cast_signed()).unwrap(), signal).unwrap();
}

/// On a connection of its own, as one who comes just now.
async fn ask(server: &Server, method: Method, path: &str) -> reqwest::Result<Response> {
    let request = client().request(method, format!("{}{path}", server.url)).bearer_auth(&server.key);
    request.json(&json!({ "command": "true" })).send().await
}

async fn drains(server: &Server) {
    until(|| async {
        let ready = ask(server, Method::GET, "/readyz").await.ok()?;
        (ready.status() == StatusCode::SERVICE_UNAVAILABLE).then_some(())
    })
    .await;
}

/// The one process inside that has these words, while somebody waits for it.
async fn process<T>(server: &Server, words: &str, mut served: Pin<&mut impl Future<Output = T>>) -> ProcessId {
    let wanted: Vec<u8> = words.split(' ').flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect();
    let has_them =
        |pid: &ProcessId| fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default() == wanted;
    tokio::select! {
        _ = &mut served => panic!("it is answered already"),
        found = until(|| async { server.commands().into_iter().find(has_them) }) => found,
    }
}

fn sleep(seconds: &str) -> Value {
    json!({ "scope": { "scheme": "fixed", "name": "one" }, "argv": ["sleep", seconds] })
}

#[tokio::test]
async fn a_server_that_drains_says_so_takes_nothing_new_and_ends_what_it_has() {
    let mut server = Server::start();
    server.ensure("one").await;
    let body = sleep("602");
    let mut served = pin!(server.post("/v1/exec", &body).send());
    let sleeping = process(&server, "sleep 602", served.as_mut()).await;
    tell(&server, Signal::TERM);
    drains(&server).await;
    for (method, path) in [(Method::GET, "/readyz"), (Method::POST, "/v1/exec"), (Method::GET, "/v1/sandboxes")] {
        let answer = ask(&server, method, path).await.unwrap();
        assert_eq!(answer.headers()[RETRY_AFTER], "1", "{path}");
        assert_eq!(refused(answer).await, (503, "draining".into()), "{path}");
    }
    assert_eq!(ask(&server, Method::GET, "/livez").await.unwrap().status(), StatusCode::OK);
    kill_process(sleeping, Signal::TERM).unwrap();
    let answer: Value = good(served.await.unwrap()).await;
    assert_eq!(answer["signal"], 15, "whoever was served is served to the end: {answer}");
    server.has_ended();
}

#[tokio::test]
async fn the_second_signal_ends_it_at_once_and_the_command_goes_on() {
    let mut server = Server::start();
    server.ensure("one").await;
    let body = sleep("603");
    let ask_for_it = |server: &Server| server.post("/v1/exec", &body).header("Idempotency-Key", "k").send();
    let sleeping = {
        let mut served = pin!(ask_for_it(&server));
        let sleeping = process(&server, "sleep 603", served.as_mut()).await;
        tell(&server, Signal::TERM);
        drains(&server).await;
        tell(&server, Signal::TERM);
        assert!(!served.await.is_ok_and(|answer| answer.status().is_success()), "nobody waits for it");
        sleeping
    };
    server.has_ended();
    server.run();
    let mut again = pin!(ask_for_it(&server));
    assert_eq!(process(&server, "sleep 603", again.as_mut()).await, sleeping, "the very same process");
    kill_process(sleeping, Signal::TERM).unwrap();
    assert_eq!(good(again.await.unwrap()).await["signal"], 15);
}

#[tokio::test]
async fn one_that_was_to_stop_all_stops_all_and_keeps_their_files() {
    let mut server = Server::start_with(&["--stop-all"]);
    let mut sandboxes = Vec::new();
    for number in 0..10 {
        let name = format!("box {number}");
        server.stdout(&name, &format!("echo {number} > file")).await;
        sandboxes.push(server.ensure(&name).await["id"].as_str().unwrap().to_owned());
    }
    let task = server.begin("box 0", "echo said; sleep 604").await;
    until(|| async {
        let output = server.request(Method::GET, &format!("/v1/tasks/{task}/output")).send().await.unwrap();
        (output.text().await.unwrap() == "said\n").then_some(())
    })
    .await;
    good(server.post(&format!("/v1/sandboxes/{}/pause", sandboxes[1]), &json!({})).send().await.unwrap()).await;
    assert_eq!(server.inits().len(), 10);
    server.stop();
    assert_eq!(server.inits(), Vec::<u32>::new());
    server.run();
    for sandbox in &sandboxes {
        let told = server.get(&format!("/v1/sandboxes/{sandbox}")).await;
        assert_eq!(told["state"], "stopped");
        assert!(told["why"].as_str().unwrap().contains("the server ends"), "{told}");
    }
    assert_eq!(server.get(&format!("/v1/tasks/{task}")).await["state"], "failed");
    let output = server.request(Method::GET, &format!("/v1/tasks/{task}/output")).send().await.unwrap();
    assert_eq!(output.text().await.unwrap(), "said\n");
    for number in 0..10 {
        assert_eq!(server.stdout(&format!("box {number}"), "cat file").await, format!("{number}\n"));
    }
}

/// A server without the help of the stage, for what the stage has no word for.
struct Bare {
    _data: tempfile::TempDir,
    child: Child,
}

impl Bare {
    fn start(command: &mut Command) -> Self {
        let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        command.env("CABANA_DATA", data.path()).stdin(Stdio::null()).stdout(Stdio::null());
        Self { child: command.spawn().unwrap(), _data: data }
    }

    fn tell(&self, signal: Signal) {
        kill_process(ProcessId::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn whoever_started_it_hears_when_it_is_ready_reloads_and_ends() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("notify");
    let name = format!("cabana-test-{}", std::process::id());
    let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
    for (socket, said) in [
        (UnixDatagram::bind(&path).unwrap(), path.to_str().unwrap().to_owned()),
        (UnixDatagram::bind_addr(&abstract_name).unwrap(), format!("@{name}")),
    ] {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let hear = || {
            let mut word = [0; 200];
            let length = socket.recv(&mut word).expect("it says something");
            String::from_utf8(word[..length].to_vec()).unwrap()
        };
        let mut command = Command::new(env!("CARGO_BIN_EXE_cabana"));
        command.args(["serve", "--listen", "127.0.0.1:0"]).env("NOTIFY_SOCKET", said).stderr(Stdio::null());
        let mut server = Bare::start(&mut command);
        assert_eq!(hear(), "READY=1");
        server.tell(Signal::HUP);
        assert_eq!(hear(), "RELOADING=1");
        assert_eq!(hear(), "READY=1");
        server.tell(Signal::TERM);
        assert_eq!(hear(), "STOPPING=1");
        assert!(server.child.wait().unwrap().success());
    }
}

fn unit() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/cabana.service")).unwrap()
}

#[test]
fn the_unit_is_one_that_systemd_takes() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("cabana.service");
    // It looks whether the program is there.
    fs::write(&file, unit().replace("/usr/local/bin/cabana", env!("CARGO_BIN_EXE_cabana"))).unwrap();
    let verified = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&file).output();
    let verified = verified.expect("systemd-analyze is there: run scripts/setup");
    let said = String::from_utf8_lossy(&verified.stderr);
    let of_ours: Vec<&str> = said.lines().filter(|line| line.contains("cabana")).collect();
    assert!(verified.status.success() && of_ours.is_empty(), "{said}");
    for line in ["Type=notify", "KillMode=process", "Delegate=yes", "StateDirectory=cabana", "OOMPolicy=continue"] {
        assert!(unit().lines().any(|found| found == line), "{line}");
    }
}

/// A systemd of the test's own, as the manager of a user's services: with groups and units of its own.
struct Systemd {
    home: tempfile::TempDir,
    manager: Child,
    groups: Vec<PathBuf>,
}

impl Systemd {
    fn start(unit: &str) -> Self {
        let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for dir in ["run", "data", "units/systemd/user"] {
            fs::create_dir_all(home.path().join(dir)).unwrap();
        }
        let groups: Vec<PathBuf> =
            hierarchies().iter().map(|at| at.join(format!("cabana-{}", std::process::id()))).collect();
        groups.iter().for_each(|group| fs::create_dir(group).unwrap());
        let joins: String =
            groups.iter().map(|group| format!("echo $$ > {}/cgroup.procs\n", group.display())).collect();
        // It runs only where the machine was booted with systemd, or where it looks like that.
        let script = format!(
            "{joins}mkdir -p /run/systemd && mount -t tmpfs tmpfs /run/systemd && mkdir /run/systemd/system && exec /lib/systemd/systemd --user"
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-ec", &script]);
        command.env("XDG_RUNTIME_DIR", home.path().join("run")).env("XDG_CONFIG_HOME", home.path().join("units"));
        let manager = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let systemd = Self { home, manager, groups };
        systemd.has_unit(unit);
        let until = std::time::Instant::now() + PATIENCE;
        while !systemd.does(&["daemon-reload"]) {
            assert!(std::time::Instant::now() < until, "systemd starts");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        systemd
    }

    fn data(&self) -> PathBuf {
        self.home.path().join("data")
    }

    /// As it is shipped, but for where the program and its data are. A manager of a user's services has no directories to give.
    fn has_unit(&self, unit: &str) {
        let serve =
            format!("{} --data {} serve --listen 127.0.0.1:0", env!("CARGO_BIN_EXE_cabana"), self.data().display());
        let unit = unit.replace("/usr/local/bin/cabana serve", &serve);
        let kept = unit.lines().filter(|line| !line.contains("Directory") && !line.contains("network-online"));
        let text = kept.collect::<Vec<_>>().join("\n");
        fs::write(self.home.path().join("units/systemd/user/cabana.service"), text).unwrap();
    }

    fn does(&self, words: &[&str]) -> bool {
        let mut command = Command::new("systemctl");
        command.arg("--user").args(words).env("XDG_RUNTIME_DIR", self.home.path().join("run"));
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
    }

    fn cabana(&self, words: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cabana"));
        command.args(words).env("CABANA_DATA", self.data()).env_remove("CABANA_URL").env_remove("CABANA_API_KEY");
        let done = command.output().unwrap();
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }

    /// What is left in the group of the service, by which systemd tells what is the service's.
    fn processes(&self) -> String {
        let of_version_2 = self.groups.iter().find(|group| group.join("cgroup.controllers").exists()).unwrap();
        fs::read_to_string(of_version_2.join("app.slice/cabana.service/cgroup.procs")).unwrap_or_default()
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        self.does(&["stop", "cabana"]);
        let _ = self.manager.kill();
        let _ = self.manager.wait();
        for init in inits_of(&self.data()) {
            let _ = kill_process(ProcessId::from_raw(init.cast_signed()).unwrap(), Signal::KILL);
        }
        // What was killed takes a moment to be gone.
        let script = "for i in $(seq 100); do find \"$@\" -depth -type d -exec rmdir {} + && break; sleep 0.05; done";
        let _ = Command::new("sh").args(["-c", script, "sh"]).args(&self.groups).stderr(Stdio::null()).status();
    }
}

/// Those of control groups in which systemd keeps its services.
fn hierarchies() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let of_systemd = |line: &&str| line.contains(" - cgroup2 ") || line.contains("name=systemd");
    mounts.lines().filter(of_systemd).map(|line| PathBuf::from(line.split(' ').nth(4).unwrap())).collect()
}

#[test]
fn systemd_stops_the_service_and_leaves_its_sandboxes_unless_it_was_to_stop_all() {
    let systemd = Systemd::start(&unit());
    assert!(systemd.does(&["start", "cabana"]), "it says when it is ready");
    assert_eq!(systemd.cabana(&["exec", "box", "--", "sh", "-c", "echo kept > file; echo fine"]), "fine\n");
    let task = systemd.cabana(&["exec", "--background", "box", "--", "sleep", "605"]);
    let inits = inits_of(&systemd.data());
    assert_eq!(inits.len(), 1);
    assert!(systemd.does(&["reload", "cabana"]) && systemd.does(&["is-active", "cabana"]));
    assert!(systemd.does(&["stop", "cabana"]) && !systemd.does(&["is-failed", "cabana"]));
    assert_eq!(systemd.processes(), "", "nothing of a sandbox is in the group of the service");
    assert_eq!(inits_of(&systemd.data()), inits, "they go on");
    assert!(systemd.does(&["start", "cabana"]));
    let listed = systemd.cabana(&["ps"]);
    assert!(listed.contains(task.trim()) && listed.contains("running"), "{listed}");

    systemd.has_unit(&unit().replace("cabana serve", "cabana serve --stop-all"));
    assert!(systemd.does(&["daemon-reload"]) && systemd.does(&["restart", "cabana"]));
    assert_eq!(inits_of(&systemd.data()), inits, "the old one was to leave them");
    assert!(systemd.does(&["stop", "cabana"]));
    assert_eq!(inits_of(&systemd.data()), Vec::<u32>::new());
    assert!(systemd.does(&["start", "cabana"]));
    assert_eq!(systemd.cabana(&["exec", "box", "--", "cat", "file"]), "kept\n");
}
