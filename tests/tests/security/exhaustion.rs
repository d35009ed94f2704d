//! Taking all of something that the machine has only so much of. The attacker has limits, as every sandbox should that runs
//! what nobody knows; the neighbour and the server go on with their work.

use std::time::{Duration, Instant};

use cabana_sandbox::{Event, ExecSpec, Limits, Provider, SandboxPath, SandboxSpec, Status};
use futures_util::StreamExt;

use crate::{
    attacks::EXHAUST,
    inside::{Inside, SOON, named, passing},
};

/// A little of everything.
const WORK: &str = "
import ctypes, os, socket, subprocess
libc = ctypes.CDLL(None)
instances = [libc.inotify_init1(0) for _ in range(8)]
assert min(instances) >= 0 and libc.inotify_add_watch(instances[0], b'/tmp', 0x100) >= 0
terminals = [os.openpty() for _ in range(4)]
assert all(subprocess.run(['true']).returncode == 0 for _ in range(10))
memory = bytearray(b'x' * (32 << 20))
pipes = [os.pipe() for _ in range(64)]
for _, write in pipes: os.write(write, b'x' * 4096)
pairs = [socket.socketpair() for _ in range(64)]
open('/dev/shm/work', 'wb').write(b'x' * (4 << 20))
assert libc.shmget(0, 1 << 20, 0o1600) >= 0
print('done')
";

async fn work(inside: &Inside) {
    let ran = tokio::time::timeout(SOON, inside.user(&format!("python3 - <<'EOF'\n{WORK}\nEOF"))).await;
    assert_eq!(ran.expect("the neighbour works, and soon").ok(), "done");
}

pub(crate) async fn beside_a_neighbour(kind: &str) {
    let limits = Limits { memory: Some(256 << 20), pids: Some(128), cpu_milli: Some(1000), ..Limits::NONE };
    let attacker = Inside::with(SandboxSpec { limits, ..passing() }).await;
    let neighbour = Inside::of(attacker.engine.clone(), &passing()).await;
    work(&neighbour).await; // so that a failure later is the attacker's doing

    let words = attacker.bring(&EXHAUST).await;
    let mut spec = ExecSpec::argv(words.into_iter().chain([kind.to_owned()]), SandboxPath::root());
    spec.user = Some(named("user"));
    let mut attack = attacker.sandbox.exec(spec).await.unwrap();
    // It says how far it came, or it is the one that the kernel ends for it.
    match attack.events.next().await.unwrap().unwrap() {
        Event::Output(_) => {}
        Event::Exit(exit) => assert_eq!(exit.status, Status::OutOfMemory, "{kind}"),
    }
    work(&neighbour).await;
    let third = Inside::of(attacker.engine.clone(), &passing()).await;
    work(&third).await;
    for other in [third, neighbour] {
        other.engine.destroy(other.sandbox.id()).await.unwrap();
    }
    drop(attack);
    tokio::time::timeout(SOON, attacker.end()).await.expect("it is ended, and soon");
}

macro_rules! taking_all {
    ($($name:ident: $kind:literal,)*) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            beside_a_neighbour($kind).await;
        })*
    };
}

taking_all! {
    forking_without_end: "forks",
    taking_all_memory: "memory",
    taking_all_instances_of_inotify: "inotify",
    taking_all_watches_of_inotify: "watches",
    taking_all_terminals: "terminals",
    taking_all_descriptors: "files",
    filling_as_many_pipes_as_there_are: "pipes",
    taking_all_sockets: "sockets",
    taking_all_timers: "timers",
    taking_all_shared_memory_of_system_v: "sysv",
    filling_the_shared_memory: "shm",
    filling_files_that_only_memory_has: "memfd",
}

#[tokio::test(flavor = "multi_thread")]
async fn flooding_with_output_that_nobody_reads() {
    let attacker = Inside::new().await;
    let neighbour = Inside::of(attacker.engine.clone(), &passing()).await;
    let mut floods = Vec::new();
    for _ in 0..8 {
        floods.push(attacker.sandbox.exec(ExecSpec::argv(["yes"], SandboxPath::root())).await.unwrap());
    }
    work(&neighbour).await;
    attacker.still_works().await;
    neighbour.engine.destroy(neighbour.sandbox.id()).await.unwrap();
    drop(floods);
    tokio::time::timeout(SOON, attacker.end()).await.expect("it is ended, and soon");
}

/// Fills its output without copying anything: what it costs is the server's.
const TEE: &str = "
import ctypes, fcntl, os
libc = ctypes.CDLL(None)
full, fill = os.pipe()
for end in (fill, 1): fcntl.fcntl(end, 1031, 1 << 20)
os.write(fill, b'z' * (1 << 20))
while libc.tee(full, 1, 1 << 20, 0) > 0: pass
";

/// How long it takes until so much of the flood was taken.
async fn flood(limits: Limits, bytes: usize) -> Duration {
    let inside = Inside::with(SandboxSpec { limits, ..passing() }).await;
    let spec = ExecSpec::argv(["python3", "-c", TEE], SandboxPath::root());
    let mut process = inside.sandbox.exec(spec).await.unwrap();
    let (mut taken, mut began) = (0, None);
    while taken < bytes {
        match process.events.next().await.unwrap().unwrap() {
            Event::Output(output) => taken += output.bytes.len(),
            Event::Exit(exit) => panic!("{exit:?}"),
        }
        began.get_or_insert_with(Instant::now);
    }
    let took = began.unwrap().elapsed();
    drop(process);
    tokio::time::timeout(SOON, inside.end()).await.expect("it is ended, and soon");
    took
}

#[tokio::test(flavor = "multi_thread")]
async fn flooding_with_output_past_a_processor_limit() {
    // A tenth of a processor is worth 25.6 MiB each second, behind the first 64 MiB.
    let (tenth, bytes) = (Limits { cpu_milli: Some(100), ..Limits::NONE }, (64 + 4 * 25) << 20);
    let free = flood(Limits::NONE, bytes).await;
    let held = flood(tenth, bytes).await;
    assert!(held > Duration::from_secs(3), "{held:?}: the server works for it as if there were no limit");
    assert!(free < held, "{free:?} and {held:?}: a sandbox without a limit is not held up");
}
