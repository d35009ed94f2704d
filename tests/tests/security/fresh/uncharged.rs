//! Memory that the kernel takes for a sandbox and charges to nobody: for what it remembers of a listing, and for locks of files. Each of
//! these tests runs alone: they look at a number of the whole machine.

use std::{
    fs,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};

use cabana_sandbox::{
    Event, ExecSpec, Limits, Process, Provider, SandboxPath, SandboxSpec, Source, Status, View, VolumeId,
};
use futures_util::StreamExt;
use rustix::{
    event::{EventfdFlags, eventfd},
    fs::{FlockOperation, flock},
};
use tokio::time::timeout;

use crate::{
    attacks::{COMMON_LOCKS, OWN_CONNECTIONS, Relay, UNCHARGED},
    inside::{Inside, engine, living, named, passing, path, rest, unique, until},
};

const MIB: u64 = 1 << 20;

/// A directory of the base in which a guest may write: a list of both is made of it.
const MERGED: &str = "/etc";

fn of_machine(field: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// What all sandboxes may have of it together: a part of the machine's memory, within bounds.
fn bound() -> u64 {
    (of_machine("MemTotal:") / 64).clamp(32 * MIB, 512 * MIB)
}

/// What the kernel cannot give up.
fn unreclaimable() -> u64 {
    of_machine("SUnreclaim:")
}

/// It has an open directory that it has read half, and a connection that waits without any descriptors. In the end it reads on, and accepts.
const NEIGHBOUR: &str = "import os, socket, time
listening = socket.socket(socket.AF_UNIX); listening.bind('\\0waits'); listening.listen()
client = socket.socket(socket.AF_UNIX); client.connect('\\0waits'); client.send(b'x')
names = os.scandir('/etc'); next(names)
print('waits', flush=True)
while not os.path.exists('/tmp/accept'):
    os.listdir('/etc'); time.sleep(0.05)
accepted, _ = listening.accept(); accepted.send(accepted.recv(1))
print('reads', len(list(names)) > 0, 'hears', client.recv(1) == b'x', flush=True)";

struct Neighbour {
    inside: Inside,
    process: Process,
}

impl Neighbour {
    async fn of(attacker: &Inside) -> Self {
        let inside = Inside::of(attacker.engine.clone(), &passing()).await;
        let spec = ExecSpec::argv(["/usr/bin/python3", "-c", NEIGHBOUR], SandboxPath::root());
        let mut process = inside.sandbox.exec(spec).await.unwrap();
        match process.events.next().await {
            Some(Ok(Event::Output(output))) => assert_eq!(output.bytes, b"waits\n"[..]),
            other => panic!("the neighbour does not begin: {other:?}"),
        }
        Self { inside, process }
    }

    /// What others have is not its to lose.
    async fn lives_on(self) {
        self.inside.user("touch /tmp/accept").await.ok();
        assert_eq!(rest(self.process).await, ("reads True hears True\n".to_owned(), Status::Code(0)));
        self.inside.still_works().await;
    }
}

/// The attacker has no limit of its own, so that nothing else ends it.
async fn attacker() -> Inside {
    Inside::with(SandboxSpec { limits: Limits::NONE, ..passing() }).await
}

/// The directory belongs to root inside.
async fn takes(inside: &Inside, kind: &str, bytes: u64, dir: &str) -> Process {
    let mib = (bytes / MIB).to_string();
    inside.start("root", &UNCHARGED, &[kind, &mib, dir]).await
}

/// The control: nothing else counts it, and it is there. It has several times as much as its memory limit.
async fn is_not_counted(kind: &str) {
    let limits = Limits { memory: Some((bound() / 8).max(40 * MIB)), ..Limits::NONE };
    let inside = Inside::with(SandboxSpec { limits, ..passing() }).await;
    let before = unreclaimable();
    let _keeps = takes(&inside, kind, bound() / 2, MERGED).await;
    assert!(unreclaimable() > before + bound() / 4, "{kind}");
    inside.still_works().await;
    inside.end().await;
}

/// It takes several times what all may have, and nobody ends for it.
async fn is_taken_back(kind: &str) {
    let before = unreclaimable();
    let attacker = attacker().await;
    let neighbour = Neighbour::of(&attacker).await;
    let mark = unique("runs");
    let words = ["sh", "-c", "while :; do sleep 1; done", &mark];
    attacker.sandbox.exec(ExecSpec::argv(words, SandboxPath::root())).await.unwrap();
    let _keeps = takes(&attacker, kind, 4 * bound(), MERGED).await;
    until("the memory is back", async || unreclaimable() < before + 2 * bound()).await;
    assert!(living(&mark) > 0, "{kind}");
    attacker.still_works().await;
    neighbour.lives_on().await;
    attacker.end().await;
}

#[tokio::test]
async fn hiding_memory_in_lists_of_names() {
    is_not_counted("lists").await;
    is_taken_back("lists").await;
}

/// Who looks at descriptors sees nothing of these, nor of the names.
#[tokio::test]
async fn hiding_memory_in_lists_that_are_in_queues_of_sockets() {
    is_taken_back("queued").await;
}

/// Nor can anybody look into these.
#[tokio::test]
async fn hiding_memory_in_lists_that_are_in_connections_that_nobody_accepts() {
    is_not_counted("unaccepted").await;
    is_taken_back("unaccepted").await;
}

#[tokio::test]
async fn hiding_memory_in_lists_of_threads_with_tables_of_their_own() {
    is_taken_back("threads").await;
}

/// Nobody can read these any more. What makes the watch look comes after them, and is too little by itself.
#[tokio::test]
async fn hiding_memory_in_lists_of_a_removed_directory() {
    let attacker = attacker().await;
    let neighbour = Neighbour::of(&attacker).await;
    let flat =
        "for dir in /etc/*/; do [ $(find $dir -mindepth 1 -type d | wc -l) -gt 0 ] || { echo ${dir%/}; break; }; done";
    let dir = attacker.root(flat).await.ok();
    assert!(dir.starts_with("/etc/"), "there is a directory of files alone: {dir:?}");
    let (before, part) = (unreclaimable(), bound() / 10 * 7);
    let _keeps = takes(&attacker, "removed", part, &dir).await;
    assert_eq!(attacker.root(&format!("test -e {dir} || echo gone")).await.ok(), "gone");
    assert!(unreclaimable() > before + part / 2, "the control: they are there still");
    let _keeps_too = takes(&attacker, "lists", part, MERGED).await;
    until("the first of them are gone", async || unreclaimable() < before + bound()).await;
    attacker.still_works().await;
    neighbour.lives_on().await;
    attacker.end().await;
}

/// Sandboxes cannot hand each other a descriptor; once a program of the host has, they can.
#[tokio::test]
async fn hiding_memory_in_lists_that_two_sandboxes_of_a_tenant_pass_to_and_fro() {
    const DOOR: &str = "/workspace/both/door";
    let engine = engine().await;
    let volume = VolumeId::now();
    engine.make_volume(volume).await.unwrap();
    let volumes = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("data/volumes");
    let _relay = Relay::start(&volumes.join(volume.to_string()).join("tree/door"));
    let view = View { source: Source::Volume(volume), at: path("/workspace/both"), writable: true };
    let spec = SandboxSpec { tenant: Some(unique("tenant")), limits: Limits::NONE, views: vec![view], ..passing() };
    let (taker, giver) = (Inside::of(engine.clone(), &spec).await, Inside::of(engine.clone(), &spec).await);
    let neighbour = Neighbour::of(&giver).await;
    let before = unreclaimable();
    let mut takes = taker.start("root", &UNCHARGED, &["takes", "0", "/tmp", DOOR]).await;
    let mib = (4 * bound() / MIB).to_string();
    let _gives = giver.start("root", &UNCHARGED, &["gives", &mib, MERGED, DOOR]).await;
    match takes.events.next().await {
        Some(Ok(Event::Output(output))) => assert_eq!(output.bytes, b"taken\n"[..]),
        other => panic!("the control: it was handed nothing: {other:?}"),
    }
    until("the memory is back", async || unreclaimable() < before + 2 * bound()).await;
    taker.still_works().await;
    giver.still_works().await;
    neighbour.lives_on().await;
    for inside in [&taker, &giver] {
        engine.destroy(inside.sandbox.id()).await.unwrap();
    }
    engine.remove_volume(volume).await.unwrap();
    engine.close().await;
}

/// It takes several times what all may have, and its command ends for it. It may try again.
async fn ends(kind: &str) {
    is_not_counted(kind).await;
    let attacker = attacker().await;
    let neighbour = Neighbour::of(&attacker).await;
    let words = attacker.bring(&UNCHARGED).await;
    let mib = (4 * bound() / MIB).to_string();
    let words = words.into_iter().chain([kind, &mib, MERGED].map(str::to_owned));
    let spec = ExecSpec { user: Some(named("root")), ..ExecSpec::argv(words, SandboxPath::root()) };
    let attack = attacker.sandbox.exec(spec).await.unwrap();
    assert_eq!(rest(attack).await.1, Status::OutOfMemory, "{kind}");
    attacker.still_works().await;
    neighbour.lives_on().await;
    attacker.end().await;
}

#[tokio::test]
async fn hiding_memory_in_locks() {
    ends("locks").await;
}

/// A descriptor of this process on what all have in common.
struct Common(OwnedFd);

impl Common {
    fn of(what: &str) -> Self {
        Self(match what {
            "eventfd" => eventfd(0, EventfdFlags::CLOEXEC).unwrap(),
            _ => fs::File::open("/proc/self/ns/time").unwrap().into(),
        })
    }

    /// Each close of such a descriptor, anywhere, goes through the locks that this one sees.
    fn is_locked(&self) -> bool {
        let is_taken = flock(&self.0, FlockOperation::NonBlockingLockExclusive).is_err();
        flock(&self.0, FlockOperation::Unlock).unwrap();
        let id = rustix::fs::fstat(&self.0).unwrap().st_ino.to_string();
        is_taken || fs::read_to_string("/proc/locks").unwrap().lines().any(|lock| is_on(lock, &id))
    }
}

/// As the kernel tells it: `1: POSIX ADVISORY WRITE 123 00:0e:1036 0 EOF`.
fn is_on(lock: &str, inode: &str) -> bool {
    lock.split_whitespace().nth(5).and_then(|file| file.rsplit(':').next()) == Some(inode)
}

#[tokio::test]
async fn locking_what_all_sandboxes_have_in_common() {
    let attacker = attacker().await;
    let neighbour = Neighbour::of(&attacker).await;
    for (what, how, many) in [
        ("eventfd", "process", "40000"),
        ("eventfd", "whole", "1000"),
        ("eventfd", "queued", "1"),
        ("namespace", "process", "40000"),
    ] {
        let ours = Common::of(what);
        let words = attacker.bring(&COMMON_LOCKS).await;
        let words = words.into_iter().chain([what, how, many].map(str::to_owned));
        let attack = attacker.sandbox.exec(ExecSpec::argv(words, SandboxPath::root())).await.unwrap();
        let mut attack = pin!(rest(attack));
        let mut is_seen = false;
        let (_, status) = loop {
            match timeout(Duration::from_millis(1), attack.as_mut()).await {
                Ok(ended) => break ended,
                Err(_) => is_seen |= ours.is_locked(),
            }
        };
        assert!(is_seen, "the control: {what} is the machine's");
        assert_eq!(status, Status::OutOfMemory, "{what} {how}");
        until("it is free again", async || !ours.is_locked()).await;
    }
    attacker.still_works().await;
    neighbour.lives_on().await;
    attacker.end().await;
}

/// What TCP may hold on the machine before the kernel finds it too much, and what it holds.
fn tcp() -> (u64, u64) {
    let read = |file| fs::read_to_string(file).unwrap();
    let (limits, stat) = (read("/proc/sys/net/ipv4/tcp_mem"), read("/proc/net/sockstat"));
    let now = stat.lines().find(|line| line.starts_with("TCP:")).and_then(|line| line.rsplit(' ').next());
    let bytes = |pages: &str| pages.parse::<u64>().unwrap() * rustix::param::page_size() as u64;
    (bytes(limits.split_whitespace().nth(1).unwrap()), bytes(now.unwrap()))
}

/// With control groups of version 1 that is no memory of its own, and their limit lets each connection have a packet each way.
#[tokio::test]
async fn hiding_memory_in_queues_of_connections_with_itself() {
    const EACH: u64 = 100 << 10; // and some more
    let (pressure, before) = tcp();
    let with_memory = |bytes: u64| SandboxSpec { limits: Limits { memory: Some(bytes), ..Limits::NONE }, ..passing() };
    if Path::new("/sys/fs/cgroup/memory/memory.kmem.tcp.usage_in_bytes").exists() {
        // The control: nothing else counts it, and it is there.
        let inside = Inside::with(with_memory((pressure / 16).max(64 * MIB))).await;
        let many = (pressure / 4 / EACH).to_string();
        let _keeps = inside.start("user", &OWN_CONNECTIONS, &[&many]).await;
        assert!(tcp().1 > before + pressure / 5, "{} of {pressure}", tcp().1 - before);
        inside.still_works().await;
        inside.end().await;
    }
    let attacker = Inside::with(with_memory((pressure / 3).max(256 * MIB))).await;
    let neighbour = Neighbour::of(&attacker).await;
    let words = attacker.bring(&OWN_CONNECTIONS).await;
    let words = words.into_iter().chain([(2 * pressure / EACH).to_string()]);
    let attack = attacker.sandbox.exec(ExecSpec::argv(words, SandboxPath::root())).await.unwrap();
    assert_eq!(rest(attack).await.1, Status::OutOfMemory);
    until("what it had is free", async || tcp().1 < before + pressure / 4).await;
    attacker.still_works().await;
    neighbour.lives_on().await;
    attacker.end().await;
}
