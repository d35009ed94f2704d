//! A sandbox that is over its rate of disk traffic is frozen until that is made up for.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use cabana_sandbox::{
    Base, ExecSpec, Found, Lifetime, Limits, Process, Provider, Sandbox, SandboxId, SandboxPath, SandboxSpec,
    SnapshotId, State, Status, Wanted,
};
use futures_util::TryStreamExt;

use crate::{
    inside::{Inside, shell},
    stage,
};

const SLOW: Limits = Limits { io: Some(4 << 20), ..Limits::NONE };

/// Reads past the cache without an end, at once as much as it may in a second.
const READER: &str = "dd if=/dev/zero of=/var/tmp/f bs=1M count=4 oflag=direct 2>/dev/null
    while :; do dd if=/var/tmp/f of=/dev/null bs=1M iflag=direct 2>/dev/null; done";

/// Of the commands of one sandbox, as the kernel knows it.
struct Group(PathBuf);

impl Group {
    /// By a word of one of its commands.
    fn of(mark: &str) -> Option<Self> {
        let has_mark = |process: &fs::DirEntry| {
            let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|word| word == mark.as_bytes())
        };
        let process = fs::read_dir("/proc").unwrap().flatten().find(has_mark)?;
        let groups = fs::read_to_string(process.path().join("cgroup")).ok()?;
        let own = Path::new(groups.lines().find_map(|line| line.strip_prefix("0::/"))?);
        let run = own.ancestors().find(|group| group.ends_with("run"))?;
        let hybrid = Path::new("/sys/fs/cgroup/unified");
        let mount = if hybrid.exists() { hybrid } else { Path::new("/sys/fs/cgroup") };
        Some(Self(mount.join(run)))
    }

    fn is_frozen(&self) -> bool {
        fs::read_to_string(self.0.join("cgroup.freeze")).unwrap().trim() == "1"
    }

    async fn until_frozen(&self, frozen: bool) {
        until(|| self.is_frozen() == frozen).await;
    }
}

async fn until(mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it did not come");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn start_reader(sandbox: &dyn Sandbox) -> (Process, Group) {
    let mark = format!("reader-{}", SandboxId::random());
    let reader = sandbox.exec(ExecSpec::argv(["sh", "-c", READER, &mark], SandboxPath::root())).await.unwrap();
    let group = Group::of(&mark).expect("it runs");
    (reader, group)
}

fn slow() -> SandboxSpec {
    SandboxSpec { limits: SLOW, ..SandboxSpec::new(Base::Host) }
}

async fn state(inside: &Inside) -> State {
    let all: Vec<_> = inside.engine.list().await.unwrap().try_collect().await.unwrap();
    all.into_iter().find(|(id, _)| id == inside.sandbox.id()).expect("it is listed").1
}

#[tokio::test]
async fn a_sandbox_over_its_rate_is_frozen_and_thawed_again_and_again() {
    // The control: without a limit it never is.
    let free = Inside::with(SandboxSpec::new(Base::Host)).await;
    let (_reader, never) = start_reader(&*free.sandbox).await;
    let inside = Inside::with(slow()).await;
    let (_reader, group) = start_reader(&*inside.sandbox).await;
    group.until_frozen(true).await;
    assert!(!never.is_frozen());
    free.end().await;
    for _ in 0..2 {
        group.until_frozen(true).await;
        assert_eq!(state(&inside).await, State::Running, "nobody sees it paused");
        group.until_frozen(false).await;
    }
    // A command that comes meanwhile begins when it may.
    group.until_frozen(true).await;
    assert_eq!(inside.user("echo works").await.ok(), "works");
    // With the limit goes what is left to wait for.
    group.until_frozen(true).await;
    inside.sandbox.update(Wanted::Limits(Limits::NONE)).await.unwrap();
    group.until_frozen(false).await;
    assert_eq!(inside.user("echo works").await.ok(), "works");
    assert!(!group.is_frozen());
    inside.end().await;
}

#[tokio::test]
async fn a_pause_outlasts_the_rate_and_a_snapshot_leaves_it_in_force() {
    let inside = Inside::with(slow()).await;
    let (engine, id) = (&inside.engine, inside.sandbox.id());
    let (_reader, group) = start_reader(&*inside.sandbox).await;
    group.until_frozen(true).await;
    engine.pause(id).await.unwrap();
    assert_eq!(state(&inside).await, State::Paused);
    // The rate has no reason any more, and is told so.
    inside.sandbox.update(Wanted::Limits(Limits::NONE)).await.unwrap();
    for _ in 0..200 {
        assert!(group.is_frozen(), "it is paused");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    engine.start(id).await.unwrap();
    assert!(!group.is_frozen());

    inside.sandbox.update(Wanted::Limits(SLOW)).await.unwrap();
    group.until_frozen(true).await;
    let base = engine.snapshot(id, SnapshotId::now()).await.unwrap();
    for _ in 0..2 {
        group.until_frozen(false).await;
        group.until_frozen(true).await;
    }
    assert_eq!(shell(&*inside.sandbox, "user", "echo works").await.ok(), "works");
    let fork = engine.create(&SandboxId::random(), &SandboxSpec::new(base.clone())).await.unwrap();
    assert_eq!(shell(&*fork, "root", "stat -c %s /var/tmp/f").await.ok(), (4 << 20).to_string());
    engine.destroy(fork.id()).await.unwrap();
    if let Base::Snapshot(name) = base {
        engine.remove_snapshot(name).await.unwrap();
    }
    inside.end().await;
}

#[tokio::test]
async fn timeouts_hold_and_a_sandbox_ends_at_once_while_it_is_frozen() {
    let inside = Inside::with(slow()).await;
    let spec = ExecSpec {
        timeout: Some(Duration::from_millis(500)),
        ..ExecSpec::argv(["sh", "-c", READER], SandboxPath::root())
    };
    let outcome = cabana_sandbox::run(&*inside.sandbox, spec, 1 << 20).await.unwrap();
    assert_eq!(outcome.exit.status, Status::TimedOut);
    let (_reader, group) = start_reader(&*inside.sandbox).await;
    group.until_frozen(true).await;
    inside.end().await;
    // The next one that has the group is not frozen with it.
    let next = Inside::with(SandboxSpec::new(Base::Host)).await;
    assert_eq!(next.user("echo works").await.ok(), "works");
    next.end().await;
}

#[tokio::test]
async fn a_sandbox_that_is_left_is_thawed_and_held_to_its_rate_by_who_finds_it() {
    let engine = stage::engine().await;
    let id = SandboxId::random();
    let spec = SandboxSpec { lifetime: Lifetime::Persistent, ..slow() };
    let sandbox = engine.create(&id, &spec).await.unwrap();
    let (_reader, group) = start_reader(&*sandbox).await;
    group.until_frozen(true).await;
    engine.leave().await;
    assert!(!group.is_frozen(), "nobody is there who would thaw it");
    let engine = stage::engine().await;
    let Found::Running(_sandbox) = engine.attach(&id).await.unwrap() else { panic!("it runs") };
    group.until_frozen(true).await;
    group.until_frozen(false).await;
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}
