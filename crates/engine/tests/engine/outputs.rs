//! What the server holds for commands: descriptors of pipes, and memory for what they said. A guest decides how many commands there are.

use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt};

use cabana_sandbox::{ExecSpec, SandboxPath};

use crate::inside::{Inside, marked, unique_sleep, until};

/// Of this process, which is the server here.
fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Bytes of the memory files that hold outputs.
fn memory_of_outputs() -> u64 {
    let files = fs::read_dir("/proc/self/fd").unwrap().flatten().map(|entry| entry.path());
    let outputs = files.filter(|fd| fs::read_link(fd).is_ok_and(|to| to.to_string_lossy().contains("memfd:output")));
    let outputs = outputs.filter_map(|fd| fs::metadata(fd).ok());
    outputs.map(|about| (about.ino(), about.blocks() * 512)).collect::<BTreeMap<_, _>>().values().sum()
}

#[tokio::test]
async fn ended_commands_with_open_pipes_take_a_bounded_number_of_descriptors() {
    let inside = Inside::new().await;
    let oldest = "(trap '' PIPE; while echo alive; do sleep 0.05; done; touch /tmp/closed) 2>/dev/null & exit 0";
    inside.user(oldest).await.ok();
    let before = descriptors();
    let leave_behind = async |count: usize| {
        for _ in 0..count {
            inside.user("sleep 1000 & exit 0").await.ok();
        }
    };
    leave_behind(20).await;
    let few = descriptors() - before;
    assert!(few >= 40, "the control: each leaves two pipes behind, and there are {few} descriptors more");
    inside.user("! test -e /tmp/closed").await.ok();
    leave_behind(80).await;
    // One for each output that is still remembered, and 128 pipes.
    until("pipes are closed", || descriptors() - before <= 240).await;
    // That was the oldest; the newest is as it was.
    inside.user("until test -e /tmp/closed; do sleep 0.05; done").await.ok();
    let newest =
        "(trap '' PIPE; while echo alive; do echo >> /tmp/alive; sleep 0.05; done; touch /tmp/closed-too) & exit 0";
    inside.user(newest).await.ok();
    inside.user("until test $(wc -l < /tmp/alive) -gt 5; do sleep 0.05; done; ! test -e /tmp/closed-too").await.ok();
    inside.end().await;
}

#[tokio::test]
async fn outputs_of_many_running_commands_share_a_bounded_memory() {
    const EACH: u64 = 900_000;
    let (inside, marker) = (Inside::new().await, unique_sleep());
    let begin = async |count: usize| {
        for _ in 0..count {
            let script = format!("head -c {EACH} /dev/zero; exec sleep {marker}");
            let spec = ExecSpec::argv(["sh", "-c", &script], SandboxPath::root());
            drop(inside.sandbox.exec(spec).await.unwrap()); // it is read on
        }
    };
    begin(20).await;
    until("the control: all of what a few say is kept", || memory_of_outputs() >= 20 * EACH).await;
    begin(60).await;
    until("all have said what they had to", || marked(&marker).len() == 80).await;
    let memory = memory_of_outputs();
    assert!(memory < 48 << 20, "{memory} bytes of {}", 80 * EACH);
    assert_eq!(inside.user("echo as ever").await.ok().trim(), "as ever");
    inside.end().await;
}

/// Fills the table of this process, until they are dropped.
fn all_descriptors() -> Vec<fs::File> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let highest = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let highest = highest.filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok()).max().unwrap();
    let limit = Rlimit { current: Some(highest + 16), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    std::iter::from_fn(|| fs::File::open("/dev/null").ok()).collect()
}

/// Whose connection there is no room for hears that. It is no fault of the sandbox.
#[tokio::test]
async fn a_server_without_descriptors_ends_no_sandbox_whose_port_is_visited() {
    let inside = Inside::new().await;
    let listen = "echo mine > /dev/shm/mark; exec python3 -m http.server 8000 >/dev/null 2>&1";
    let server = inside.sandbox.exec(ExecSpec::shell(listen, SandboxPath::root())).await.unwrap();
    inside.user("until (exec 3<>/dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.05; done").await.ok();
    inside.sandbox.connect(8000).await.expect("the control");
    let taken = all_descriptors();
    for _ in 0..3 {
        let refused = inside.sandbox.connect(8000).await.err().expect("there is no descriptor for it");
        assert_eq!(refused.code(), cabana_sandbox::Code::HostExhausted, "{refused}");
    }
    drop(taken);
    inside.sandbox.connect(8000).await.expect("as before");
    assert_eq!(inside.user("cat /dev/shm/mark").await.ok(), "mine");
    drop(server);
    inside.end().await;
}
