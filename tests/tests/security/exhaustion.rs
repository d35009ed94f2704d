//! Taking all of something that the machine has only so much of. The attacker has limits, as every sandbox should that runs
//! what nobody knows; the neighbour and the server go on with their work.

use std::time::{Duration, Instant};

use cabana_sandbox::{Event, ExecSpec, Limits, Provider, SandboxPath, SandboxSpec, Status, run};
use futures_util::StreamExt;

use crate::{
    attacks::EXHAUST,
    inside::{Inside, SOON, named, passing, soon},
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
import array, fcntl, select, signal, threading
assert libc.semget(0, 10, 0o1600) >= 0
assert libc.mq_open(b'/work', os.O_CREAT | os.O_RDWR, 0o600, None) >= 0 and libc.mq_unlink(b'/work') == 0
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
assert all(libc.sigqueue(os.getpid(), 40, None) == 0 for _ in range(20))
one, other = socket.socketpair()
one.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [other.fileno()] * 50))])
threads = [threading.Thread(target=lambda: None) for _ in range(10)]
for thread in threads: thread.start()
locked = os.open('/tmp/locked', os.O_RDWR | os.O_CREAT)
for place in range(0, 200, 2): fcntl.lockf(locked, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
instance = select.epoll()
for read, _ in pipes: instance.register(read)
print('done')
";

async fn work(inside: &Inside) {
    let ran = tokio::time::timeout(SOON, inside.user(&work_script())).await;
    assert_eq!(ran.expect("the neighbour works, and soon").ok(), "done");
}

fn work_script() -> String {
    format!("python3 - <<'EOF'\n{WORK}\nEOF")
}

/// Whether a command that lies behind the same walls as the attack still does its work.
async fn works_beside_the_attack(attacker: &Inside) -> bool {
    let spec = ExecSpec { user: Some(named("user")), ..ExecSpec::shell(work_script(), SandboxPath::root()) };
    let ran = soon("a command of the attacker", run(&*attacker.sandbox, spec, 1 << 20)).await;
    ran.is_ok_and(|ran| ran.exit.status == Status::Code(0))
}

/// The controls: what comes of an attack where no wall lies between.
const STARVES_ITS_OWN_SANDBOX: [&str; 11] =
    ["flight", "forks", "inotify", "locks", "names", "queues", "semaphores", "shm", "sysv", "terminals", "threads"];
const ENDS_FOR_ITS_MEMORY: [&str; 3] = ["memfd", "memory", "watches"];

pub(crate) async fn beside_a_neighbour(kind: &str) {
    let limits = Limits { memory: Some(128 << 20), pids: Some(128), cpu_milli: Some(1000), ..Limits::NONE };
    let attacker = Inside::with(SandboxSpec { limits, ..passing() }).await;
    let neighbour = Inside::of(attacker.engine.clone(), &passing()).await;
    work(&neighbour).await; // so that a failure later is the attacker's doing
    let can_work = works_beside_the_attack(&attacker).await;
    assert!(can_work, "its limits leave room for that");

    let words = attacker.bring(&EXHAUST).await;
    let mut spec = ExecSpec::argv(words.into_iter().chain([kind.to_owned()]), SandboxPath::root());
    spec.user = Some(named("user"));
    let mut attack = attacker.sandbox.exec(spec).await.unwrap();
    // It says how far it came, or it is the one that the kernel ends for it.
    match attack.events.next().await.unwrap().unwrap() {
        Event::Output(output) => {
            let said = String::from_utf8_lossy(&output.bytes).into_owned();
            let taken: u64 = said.trim().rsplit(' ').next().and_then(|count| count.parse().ok()).expect("a count");
            assert!(taken >= 5 && !ENDS_FOR_ITS_MEMORY.contains(&kind), "it took what it could: {said}");
        }
        Event::Exit(exit) => assert_eq!(exit.status, Status::OutOfMemory, "{kind}"),
    }
    if STARVES_ITS_OWN_SANDBOX.contains(&kind) {
        assert!(!works_beside_the_attack(&attacker).await, "{kind} would be felt where it is shared");
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
    taking_all_descriptors_in_flight: "flight",
    taking_all_names_in_memory: "names",
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
