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

use crate::stage::{PATIENCE, Server, client, good, refused, until};

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

/// Where groups of version 2 are.
fn groups() -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 ")).expect("this machine has groups of version 2");
    PathBuf::from(mount.split(' ').nth(4).unwrap())
}

/// A group as systemd makes one for a service.
struct Service(PathBuf);

impl Service {
    fn new() -> Self {
        let path = groups().join(format!("cabana-test-{}.service", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn processes(&self) -> String {
        fs::read_to_string(self.0.join("cgroup.procs")).unwrap()
    }

    /// As the first process of a service begins.
    fn takes(&self, server: &Server) {
        fs::write(self.0.join("cgroup.procs"), server.pid().to_string()).unwrap();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// With `KillMode=process`, systemd ends the first process alone, and looks at what is left in the group.
#[tokio::test]
async fn a_service_that_is_stopped_leaves_its_sandboxes_and_nothing_in_its_group() {
    let service = Service::new();
    let mut server = Server::start();
    service.takes(&server);
    let task = server.begin("one", "until [ -e go ]; do sleep 0.05; done; echo end").await;
    assert!(!service.processes().is_empty());
    let inits = server.inits();
    for init in &inits {
        let of_init = fs::read_to_string(format!("/proc/{init}/cgroup")).unwrap();
        assert!(!of_init.contains(".service"), "a sandbox has a group of its own, and not the service's: {of_init}");
    }
    server.stop();
    until(|| async { service.processes().is_empty().then_some(()) }).await;
    assert_eq!(server.inits(), inits, "they go on");
    server.run();
    service.takes(&server);
    assert_eq!(server.get(&format!("/v1/tasks/{task}")).await["state"], "running");
    server.stdout("one", "touch go").await;
    assert_eq!(server.ended(&task).await["state"], "succeeded");
    server.stop();
    until(|| async { service.processes().is_empty().then_some(()) }).await;
}
