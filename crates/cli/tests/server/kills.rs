//! A server that is killed takes nothing along that was acknowledged.

use std::time::Duration;

use cabana_testkit::SlowDisk;
use reqwest::Method;
use serde_json::json;

use crate::stage::{PATIENCE, Server, good, refused, until};

#[tokio::test]
async fn sandboxes_and_tasks_outlive_the_server() {
    let mut server = Server::start();
    server.stdout("one", "echo kept > file").await;
    let task = server.begin("one", "seq 1 50000; until [ -e go ]; do sleep 0.05; done; seq 50001 60000").await;
    let before = server.inits();
    server.kill();
    server.run();
    assert_eq!(server.inits(), before, "the same process as before");
    assert_eq!(server.get(&format!("/v1/tasks/{task}")).await["state"], "running");
    server.stdout("one", "cat file; touch go").await;
    assert_eq!(server.ended(&task).await["state"], "succeeded");
    let output = server.request(Method::GET, &format!("/v1/tasks/{task}/output")).send().await.unwrap();
    let whole: String = (1..=60_000).map(|n| format!("{n}\n")).collect();
    assert_eq!(output.text().await.unwrap(), whole);
}

#[tokio::test]
async fn a_sandbox_that_starts_processes_all_the_time_outlives_the_server() {
    let mut server = Server::start();
    let limits = json!({ "memory_bytes": 512 << 20, "pids": 256 });
    let created = json!({ "scope": { "scheme": "fixed", "name": "one" }, "spec": { "limits": limits } });
    good(server.post("/v1/sandboxes:ensure", &created).send().await.unwrap()).await;
    // Each has ended by the time it is found.
    let forks = "for i in 1 2 3 4 5 6 7 8; do (while :; do /bin/true; done) & done; touch up; wait";
    let task = server.begin("one", forks).await;
    until(|| async { (server.exec("one", "test -e up").await["exit_code"] == 0).then_some(()) }).await;
    let before = server.inits();
    for _ in 0..3 {
        server.kill();
        server.run();
        assert_eq!(server.inits(), before, "the same process as before");
        assert_eq!(server.get(&format!("/v1/tasks/{task}")).await["state"], "running");
        assert_eq!(server.stdout("one", "echo works").await, "works\n");
    }
    server.kill();
}

fn has_no_child(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap().is_empty()
}

#[tokio::test]
async fn what_a_task_did_while_there_was_no_server_is_known_after() {
    let mut server = Server::start();
    let task = server.begin("one", "until [ -e go ]; do sleep 0.05; done; echo said; exit 7").await;
    let other = server.begin("one", "touch go; sleep 1; echo late").await;
    server.kill();
    // Both end by themselves, and nobody is there to see it.
    until(|| async { server.inits().into_iter().all(has_no_child).then_some(()) }).await;
    server.run();
    let ended = server.ended(&task).await;
    assert_eq!((&ended["state"], &ended["exit"]["exit_code"]), (&json!("failed"), &json!(7)));
    let output = server.request(Method::GET, &format!("/v1/tasks/{task}/output")).send().await.unwrap();
    assert_eq!(output.text().await.unwrap(), "said\n");
    assert_eq!(server.ended(&other).await["state"], "succeeded");
}

#[tokio::test]
async fn a_call_that_was_under_way_is_followed_by_the_next_server() {
    let mut server = Server::start();
    server.ensure("one").await;
    let body = json!({ "scope": { "scheme": "fixed", "name": "one" }, "command": "echo run >> log; touch up; until [ -e go ]; do sleep 0.05; done; echo done" });
    let request = server.post("/v1/exec", &body).header("Idempotency-Key", "k").send();
    let killed = async {
        until(|| async { (server.exec("one", "test -e up").await["exit_code"] == 0).then_some(()) }).await;
    };
    tokio::select! {
        answer = request => panic!("{answer:?}"),
        () = killed => {}
    }
    server.kill();
    server.run();
    let again = server.post("/v1/exec", &body).header("Idempotency-Key", "k").send();
    let (answer, _) = tokio::join!(again, server.stdout("one", "touch go"));
    assert_eq!(good(answer.unwrap()).await["stdout"], "done\n");
    assert_eq!(server.stdout("one", "cat log").await, "run\n", "it ran once");
}

#[tokio::test]
async fn what_a_crash_took_is_unknown_and_never_run_again() {
    let mut server = Server::start();
    server.ensure("one").await;
    let body =
        json!({ "scope": { "scheme": "fixed", "name": "one" }, "command": "echo run >> log; touch up; sleep 600" });
    let request = server.post("/v1/exec", &body).header("Idempotency-Key", "k").send();
    tokio::select! {
        answer = request => panic!("{answer:?}"),
        () = until(|| async { (server.exec("one", "test -e up").await["exit_code"] == 0).then_some(()) }) => {}
    }
    server.kill();
    // The sandbox dies with it, as with a machine that loses its power.
    for pid in server.inits() {
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(pid.cast_signed()).unwrap(),
            rustix::process::Signal::KILL,
        )
        .unwrap();
    }
    server.run();
    for _ in 0..2 {
        let again = server.post("/v1/exec", &body).header("Idempotency-Key", "k").send().await.unwrap();
        assert_eq!(refused(again).await, (409, "outcome_unknown".into()));
    }
    assert_eq!(server.stdout("one", "cat log").await, "run\n");
    assert_eq!(server.get("/v1/sandboxes").await["sandboxes"][0]["state"], "running");
}

#[tokio::test]
async fn what_was_answered_is_answered_the_same_after_a_kill() {
    let mut server = Server::start();
    let body = json!({ "scope": { "scheme": "fixed", "name": "one" }, "command": "date +%N" });
    let ask = async |server: &Server| {
        good(server.post("/v1/exec", &body).header("Idempotency-Key", "k").send().await.unwrap()).await
    };
    let first = ask(&server).await;
    let head = server.get("/v1/ledger/head").await;
    server.kill();
    server.run();
    assert_eq!(ask(&server).await, first);
    assert_eq!(server.get("/v1/ledger/head").await, head);
}

#[tokio::test]
async fn a_server_that_is_told_to_end_leaves_what_it_made() {
    let mut server = Server::start();
    let task = server.begin("one", "until [ -e go ]; do sleep 0.05; done; echo end").await;
    server.stop();
    server.run();
    assert_eq!(server.get(&format!("/v1/tasks/{task}")).await["state"], "running");
    server.stdout("one", "touch go").await;
    assert_eq!(server.ended(&task).await["state"], "succeeded");
}

#[test]
fn a_second_server_is_refused_and_names_the_first() {
    let server = Server::start();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_cabana"));
    let second = command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(server.data()).output().unwrap();
    let told = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(125), "{told}");
    assert!(told.contains("server_running") && told.contains(&format!("process {}", server.pid())), "{told}");
}

#[test]
fn an_address_that_others_reach_is_refused_without_tls() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_cabana"));
    let refused = command.args(["serve", "--listen", "0.0.0.0:0", "--data"]).arg(dir.path()).output().unwrap();
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(125), "{told}");
    assert!(told.contains("--tls-cert") && told.contains("in the clear"), "{told}");
}

#[tokio::test]
async fn what_stands_still_in_a_paused_sandbox_is_found_again_after_a_kill() {
    let mut server = Server::start();
    let task = server.begin("one", "for i in $(seq 300); do [ -e go ] && break; sleep 0.1; done; echo went on").await;
    let id = server.record("one").await["id"].as_str().unwrap().to_owned();
    good(server.request(Method::POST, &format!("/v1/sandboxes/{id}/pause")).send().await.unwrap()).await;
    for _ in 0..2 {
        server.kill();
        server.run();
        assert_eq!(server.get(&format!("/v1/tasks/{task}")).await["state"], "running");
        assert_eq!(server.record("one").await["state"], "paused");
    }
    server.stdout("one", "touch go").await;
    assert_eq!(server.ended(&task).await["state"], "succeeded");
    let said = server.request(Method::GET, &format!("/v1/tasks/{task}/output")).send().await.unwrap();
    assert_eq!(said.text().await.unwrap(), "went on\n");
}

/// A thread of it waits in the kernel for a file that a guest holds, whose disk is slow: no signal ends that.
#[tokio::test]
async fn a_server_that_is_killed_while_a_guest_holds_it_up_gives_way_to_the_next() {
    let mut server = Server::start();
    let made =
        server.post("/v1/sandboxes", &json!({ "limits": { "io_bytes_per_sec": 1_u64 << 50 } })).send().await.unwrap();
    let sandbox = good(made).await["id"].as_str().unwrap().to_owned();
    let disk = SlowDisk::of(server.inits()[0], server.data()).unwrap();
    let hold = "dd if=/dev/zero of=/home/user/victim bs=60M count=1 oflag=direct";
    let body = json!({ "command": hold, "background": true });
    let begun = server.post(&format!("/v1/sandboxes/{sandbox}/exec"), &body).send().await.unwrap();
    assert_eq!(begun.status(), reqwest::StatusCode::ACCEPTED);
    let append = format!("/v1/sandboxes/{sandbox}/files?path=/home/user/victim&mode=append");
    let pid = server.pid();
    let stands = || {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let stat = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        threads.flatten().any(|thread| stat(thread).contains(") D "))
    };
    // The command may not have begun to write: it is asked until it is held up.
    until(|| async {
        let request = server.request(Method::PUT, &append).body("more\n").timeout(Duration::from_millis(500)).send();
        (request.await.is_err() && stands()).then_some(())
    })
    .await;
    let mut killed = server.shoot();
    // The control: it was killed, and is still there.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(stands() && killed.try_wait().unwrap().is_none());
    // The next one waits for that end.
    let fast_again = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(1));
        drop(disk);
    });
    server.run();
    fast_again.join().unwrap();
    assert_eq!(server.get(&format!("/v1/sandboxes/{sandbox}")).await["id"], sandbox.as_str());
    killed.wait().unwrap();
    let gone = server.request(Method::DELETE, &format!("/v1/sandboxes/{sandbox}")).send().await.unwrap();
    assert!(gone.status().is_success(), "{gone:?}");
}

/// Writes to standard output from memory that has to be read from the disk first, and holds the lock of the pipe meanwhile.
const HOLD_PIPE: &str = "import fcntl, mmap, os
large = os.open('/usr/bin/lto-dump-12', os.O_RDONLY)
fcntl.fcntl(1, 1031, 1 << 20)
while True:
    for at in range(0, 8 << 20, 1 << 19):
        os.posix_fadvise(large, 0, 0, os.POSIX_FADV_DONTNEED)
        part = mmap.mmap(large, 1 << 19, mmap.MAP_SHARED, mmap.PROT_READ, offset=at)
        part.madvise(mmap.MADV_RANDOM)
        os.write(1, part)";

/// Children of a process, by name.
fn children(pid: u32) -> Vec<(u32, String)> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let name = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    let named = |pid: &str| {
        let pid = pid.parse().ok()?;
        Some((pid, name(pid)?.trim().to_owned()))
    };
    children.split_whitespace().filter_map(named).collect()
}

/// A wait in the kernel that no signal ends.
struct Wait {
    /// How often the process has waited for anything: another number is another wait.
    number: String,
    stack: String,
}

impl Wait {
    fn of(pid: u32) -> Option<Self> {
        let read = |name| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
        let status = read("status").ok()?;
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let number = field("voluntary_ctxt_switches:")?.to_owned();
        field("State:")?.starts_with('D').then(|| Self { number, stack: read("stack").unwrap_or_default() })
    }

    /// For a pipe, or for the disk: a guest decides how long that lasts.
    fn is_for_a_guest(&self) -> bool {
        ["pipe_", "splice", "io_schedule", "folio_wait"].iter().any(|place| self.stack.contains(place))
    }

    /// For the lock of the machine's control groups, which no guest can take: to start a process and to end a command both need it.
    fn is_for_groups(&self) -> bool {
        self.stack.contains("cgroup")
    }
}

#[tokio::test]
async fn timeouts_hold_without_a_server_while_a_guest_holds_the_lock_of_its_pipe() {
    let mut server = Server::start();
    let made =
        server.post("/v1/sandboxes", &json!({ "limits": { "io_bytes_per_sec": 1_u64 << 50 } })).send().await.unwrap();
    let sandbox = good(made).await["id"].as_str().unwrap().to_owned();
    let disk = SlowDisk::of(server.inits()[0], server.data()).unwrap();
    let exec = format!("/v1/sandboxes/{sandbox}/exec");
    for _ in 0..2 {
        let hold = json!({ "argv": ["python3", "-c", HOLD_PIPE], "background": true });
        good(server.post(&exec, &hold).send().await.unwrap()).await;
    }
    let timed = json!({ "argv": ["sleep", "600"], "background": true, "timeout_ms": 15_000 });
    let task = good(server.post(&exec, &timed).send().await.unwrap()).await["id"].as_str().unwrap().to_owned();
    let inits = server.inits();
    let child = |init, wanted: &str| children(init).into_iter().find(|(_, name)| name == wanted).map(|(pid, _)| pid);
    let init = *inits.iter().find(|init| child(**init, "sleep").is_some()).unwrap();
    server.kill();
    // The control: who moves the output on is held up, and by the guest.
    until(|| async { Wait::of(child(init, "cabana-drain")?)?.is_for_a_guest().then_some(()) }).await;
    let (mut looks, mut before, mut same) = (0, None::<Wait>, 0);
    let deadline = std::time::Instant::now() + PATIENCE;
    while child(init, "sleep").is_some() {
        assert!(std::time::Instant::now() < deadline, "it is not ended");
        let now = Wait::of(init);
        if let Some(wait) = &now {
            assert!(!wait.is_for_a_guest(), "init is held up by its guest: {}", wait.stack);
            let goes_on = before.as_ref().is_some_and(|before| before.number == wait.number) && !wait.is_for_groups();
            same = if goes_on { same + 1 } else { 0 };
            assert!(same < 3, "init is held up: {}", wait.stack);
        }
        (before, looks) = (now, looks + 1);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(looks > 10, "{looks}");
    server.run();
    let ended = server.ended(&task).await;
    assert_eq!(ended["exit"]["status"], "timed_out", "{ended}");
    let wall = ended["exit"]["duration_ms"].as_u64().unwrap();
    assert!((15_000..17_000).contains(&wall), "{ended}");
    drop(disk);
    let gone = server.request(Method::DELETE, &format!("/v1/sandboxes/{sandbox}")).send().await.unwrap();
    assert!(gone.status().is_success(), "{gone:?}");
}

/// Holds the lock of the pipe that is its output for as long as it lives: it moves into it what never comes.
const HOLDS_ITS_OUTPUT: &str =
    "import os, socket\none, other = socket.socketpair()\nos.write(1, b'x')\nos.splice(one.fileno(), 1, 65536)";

/// What it wrote before may have been taken by then, so it is tried again.
async fn is_held_up(server: &Server, sandbox: &str) {
    let threads = format!("/proc/{}/task", server.pid());
    until(|| async {
        let hold = json!({ "argv": ["python3", "-c", HOLDS_ITS_OUTPUT], "background": true });
        good(server.post(&format!("/v1/sandboxes/{sandbox}/exec"), &hold).send().await.unwrap()).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let threads = std::fs::read_dir(&threads).unwrap().flatten();
        let numbers = threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok());
        numbers.filter_map(Wait::of).any(|wait| wait.is_for_a_guest()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_guest_that_holds_the_lock_of_its_pipe_for_ever_keeps_no_server_from_ending_and_none_from_starting() {
    let mut server = Server::start();
    let mut held = Vec::new();
    let hold = async |server: &Server| {
        let made = server.post("/v1/sandboxes", &json!({})).send().await.unwrap();
        let sandbox = good(made).await["id"].as_str().unwrap().to_owned();
        is_held_up(server, &sandbox).await;
        sandbox
    };
    held.push(hold(&server).await);
    assert_eq!(server.stdout("one", "echo works").await, "works\n", "others go on meanwhile");
    server.stop();
    server.run();
    held.push(hold(&server).await);
    let mut killed = server.shoot();
    server.run();
    killed.wait().unwrap();
    assert_eq!(server.stdout("two", "echo works").await, "works\n");
    for sandbox in held {
        let gone = server.request(Method::DELETE, &format!("/v1/sandboxes/{sandbox}")).send().await.unwrap();
        assert!(gone.status().is_success(), "{gone:?}");
    }
}

/// The server lets go of an output at its end, and init has it open for as long as its command runs.
const HOLDS_WHAT_INIT_HAS: &str = "import os, socket, time
back = os.open('/proc/self/fd/1', os.O_RDONLY | os.O_NONBLOCK)
for end in 1, 2: os.dup2(os.open('/dev/null', os.O_RDWR), end)
open('draft', 'w').write(str(os.fstat(back).st_ino))
os.rename('draft', 'pipe')
while not os.path.exists('go'): time.sleep(0.05)
into = os.open(f'/proc/self/fd/{back}', os.O_WRONLY)
one, other = socket.socketpair()
os.splice(one.fileno(), into, 65536)";

fn has_open(pid: u32, pipe: &str) -> bool {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|fd| std::fs::read_link(fd.path()).ok()).any(|link| link.to_str() == Some(pipe))
}

#[tokio::test]
async fn a_guest_that_holds_the_lock_of_a_pipe_that_init_has_open_keeps_no_sandbox_from_ending() {
    let server = Server::start();
    for ends in ["stop", "delete"] {
        let sandbox = server.ensure(ends).await["id"].as_str().unwrap().to_owned();
        let hold = json!({ "argv": ["python3", "-c", HOLDS_WHAT_INIT_HAS], "background": true });
        good(server.post(&format!("/v1/sandboxes/{sandbox}/exec"), &hold).send().await.unwrap()).await;
        until(|| async { (server.exec(ends, "test -e pipe").await["exit_code"] == 0).then_some(()) }).await;
        let pipe = format!("pipe:[{}]", server.stdout(ends, "cat pipe").await);
        until(|| async { (!has_open(server.pid(), &pipe)).then_some(()) }).await;
        let init = server.inits()[0];
        assert!(has_open(init, &pipe), "the control: init has it");
        server.stdout(ends, "touch go").await;
        // The control: the guest has the lock.
        until(|| async {
            let stacks =
                children(init).into_iter().map(|(pid, _)| std::fs::read_to_string(format!("/proc/{pid}/stack")));
            stacks.flatten().any(|stack| stack.contains("splice_file_to_pipe")).then_some(())
        })
        .await;
        let path = format!("/v1/sandboxes/{sandbox}");
        let ended = match ends {
            "stop" => server.post(&format!("{path}/stop"), &json!({})),
            _ => server.request(Method::DELETE, &path),
        };
        let ended = tokio::time::timeout(PATIENCE, ended.send()).await.expect("it ends").unwrap();
        assert!(ended.status().is_success(), "{ended:?}");
        until(|| async { server.inits().is_empty().then_some(()) }).await;
    }
}

/// Nobody measures its traffic while there is no server, and so nobody would thaw it.
#[tokio::test]
async fn a_sandbox_that_is_over_its_disk_rate_goes_on_when_its_server_is_killed() {
    let mut server = Server::start();
    let limits = json!({ "limits": { "io_bytes_per_sec": 1 << 20 } });
    let made = good(server.post("/v1/sandboxes", &limits).send().await.unwrap()).await;
    let sandbox = made["id"].as_str().unwrap().to_owned();
    let write = "dd if=/dev/zero of=/home/user/large bs=32M count=1 oflag=direct; echo went on";
    let body = json!({ "command": write, "background": true });
    let task = good(server.post(&format!("/v1/sandboxes/{sandbox}/exec"), &body).send().await.unwrap()).await;
    let init = server.inits()[0];
    let groups = std::fs::read_to_string(format!("/proc/{init}/cgroup")).unwrap();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap();
    let mounts = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(std::path::Path::new);
    let group = mounts.map(|mount| mount.join(own).join("run/cgroup.freeze")).into_iter().find(|file| file.exists());
    let is_frozen = || std::fs::read_to_string(group.as_ref().unwrap()).unwrap().trim() == "1";
    until(|| async { is_frozen().then_some(()) }).await;
    server.kill();
    until(|| async { (!is_frozen()).then_some(()) }).await;
    server.run();
    let ended = server.ended(task["id"].as_str().unwrap()).await;
    assert_eq!(ended["state"], "succeeded", "{ended}");
}
