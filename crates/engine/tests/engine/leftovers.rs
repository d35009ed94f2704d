//! What came goes: after a sandbox, an engine or its process has ended, nothing of it is left.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use cabana_engine::Engine;
use cabana_sandbox::{Base, ExecSpec, Lifetime, Provider, Sandbox, SandboxId, SandboxPath, SandboxSpec, Target};
use rustix::{
    fs::inotify,
    process::{Pid, Signal, kill_process},
};

use crate::{
    inside::{Inside, marked, parent_of, passing, proc_file, processes, rounds, shell, spawners, unique_sleep, until},
    snapshots::Alone,
    stage,
};

/// What a live sandbox has outside: its first process, its cgroup, the number of its range.
struct Outside {
    init: u32,
    cgroups: Vec<PathBuf>,
    range: u32,
}

impl Outside {
    /// Of this sandbox: its first process is the parent of what is started in it.
    async fn of_sandbox(sandbox: &dyn Sandbox) -> Self {
        let marker = unique_sleep();
        let process = sandbox.exec(ExecSpec::argv(["sleep", &marker], SandboxPath::root())).await.unwrap();
        until("it runs", || marked(&marker).len() == 1).await;
        let outside = parent_of(marked(&marker)[0]).and_then(Self::of).expect("it lives");
        process.control.signal(9, Target::Leader).await.unwrap();
        outside
    }

    /// Of each sandbox of this process, also of those that are only kept ready.
    fn all() -> Vec<Self> {
        let spawners = spawners();
        let ours = |pid: &u32| parent_of(*pid).is_some_and(|parent| spawners.contains(&parent));
        processes().into_iter().filter(ours).filter_map(Self::of).collect()
    }

    fn of(init: u32) -> Option<Self> {
        // Of every hierarchy: a mount point, and the group of ours below it.
        let mounted = fs::read_to_string("/proc/mounts").ok()?;
        let hierarchies =
            mounted.lines().filter(|line| line.split(' ').nth(2).is_some_and(|kind| kind.starts_with("cgroup")));
        let places: Vec<PathBuf> =
            hierarchies.filter_map(|line| Some(Path::new(line.split(' ').nth(1)?).join("cabana"))).collect();
        let groups = proc_file(init, "cgroup")?;
        let name = groups.lines().find_map(|line| line.strip_prefix("0::/cabana/"));
        let cgroups = name.iter().flat_map(|name| places.iter().map(move |place| place.join(name)));
        let cgroups = cgroups.filter(|group| group.exists()).collect();
        let base: u32 = proc_file(init, "uid_map")?.split_whitespace().nth(1)?.parse().ok()?;
        Some(Self { init, cgroups, range: (base - 0x7000_0000) / 65536 })
    }
}

/// The ranges that somebody on this machine has leased.
fn leased() -> BTreeSet<u32> {
    use std::os::unix::fs::MetadataExt;
    let locks = fs::read_to_string("/proc/locks").expect("the kernel tells");
    let files = fs::read_dir("/run/cabana/leases").expect("the engine made it").flatten();
    let numbers = files.filter_map(|file| {
        let held = format!(":{} ", file.metadata().ok()?.ino());
        locks.lines().any(|line| line.contains("FLOCK") && line.contains(&held)).then_some(())?;
        file.file_name().to_str()?.parse().ok()
    });
    numbers.collect()
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn mounts() -> BTreeSet<String> {
    let text = fs::read_to_string("/proc/self/mountinfo").expect("the kernel tells");
    text.lines().map(str::to_owned).collect()
}

fn children() -> Vec<u32> {
    processes().into_iter().filter(|pid| parent_of(*pid) == Some(std::process::id())).collect()
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("the kernel tells").count()
}

#[tokio::test]
async fn soak_nothing_is_left_after_creating_and_deleting() {
    let data = stage::shared_data();
    // The base is made, and whatever the test's own runtime opens is open.
    stage::engine().await.close().await;
    let (mounts_before, descriptors_before) = (mounts(), descriptors());
    let mut made: Vec<SandboxId> = Vec::new();
    let (mut inits, mut cgroups, mut ranges) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());

    let engine = stage::engine().await;
    for round in 0..rounds(40) {
        let lifetime = if round % 2 == 0 { Lifetime::Persistent } else { Lifetime::Ephemeral };
        let id = SandboxId::random();
        let spec = SandboxSpec { lifetime, ..SandboxSpec::new(Base::Host) };
        let sandbox = engine.create(&id, &spec).await.unwrap();
        // A daemon, too, which nobody waits for.
        let script = "setsid sleep 600 >/dev/null 2>&1 & echo $((40 + 2)) > /tmp/x; cat /tmp/x";
        assert_eq!(shell(&*sandbox, "user", script).await.ok(), "42");
        let own = Outside::of_sandbox(&*sandbox).await.init;
        for outside in Outside::all() {
            inits.insert(outside.init);
            cgroups.extend(outside.cgroups);
            ranges.insert(outside.range);
        }
        if round % 4 == 0 {
            engine.stop(&id).await.unwrap();
        }
        engine.destroy(&id).await.unwrap();
        // What is deleted does not wait for the engine's end.
        assert!(!data.join("sandboxes").join(id.as_str()).exists(), "round {round}");
        assert!(proc_file(own, "status").is_none(), "round {round}: its first process is left");
        made.push(id);
    }
    assert!(!inits.is_empty() && !ranges.is_empty());
    engine.close().await;
    drop(engine);

    until("all first processes are gone", || inits.iter().all(|pid| Outside::of(*pid).is_none())).await;
    assert_eq!(children(), Vec::<u32>::new(), "a process is left");
    until("the descriptors are as many as before", || descriptors() <= descriptors_before).await;
    until("the host's mounts are what they were", || mounts().is_subset(&mounts_before)).await;
    until("the cgroups are gone", || cgroups.iter().all(|group| !group.exists())).await;
    until("the ranges are free", || leased().is_disjoint(&ranges)).await;
    let kept = names(&data.join("sandboxes"));
    assert!(made.iter().all(|id| !kept.iter().any(|name| name.contains(id.as_str()))), "a directory is left");
    for owner in names(&data.join("ephemeral")) {
        let of_owner = names(&data.join("ephemeral").join(owner));
        assert!(made.iter().all(|id| !of_owner.contains(id.as_str())), "a directory is left");
    }
}

/// The kernel has one lock for all renames of a file system between directories, and guests may stand in it in very large numbers.
#[tokio::test]
async fn a_sandbox_gets_and_loses_its_name_by_renames_within_one_directory() {
    let alone = Alone::new().await;
    let told = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).unwrap();
    let moves = inotify::WatchFlags::MOVED_FROM | inotify::WatchFlags::MOVED_TO;
    inotify::add_watch(&told, alone.data().join("sandboxes"), moves).unwrap();
    let mut ids = Vec::new();
    for round in 0..2 {
        let sandbox = alone.create(&alone.spec()).await;
        ids.push(sandbox.id().to_string());
        alone.engine.destroy(sandbox.id()).await.unwrap();
        // The second is made of what was made ahead.
        let is_ahead = || names(&alone.data().join("sandboxes")).iter().any(|name| name.starts_with(".draft-"));
        until(&format!("something is made ahead of round {round}"), is_ahead).await;
    }
    let (mut buffer, mut by_cookie) = (Vec::with_capacity(4096), BTreeMap::<u32, Vec<String>>::new());
    let mut events = inotify::Reader::new(&told, buffer.spare_capacity_mut());
    while let Ok(event) = events.next() {
        let name = event.file_name().unwrap().to_string_lossy().into_owned();
        by_cookie.entry(event.cookie()).or_default().push(name);
    }
    for id in ids {
        let renames: Vec<_> = by_cookie.values().filter(|names| names.contains(&id)).collect();
        assert_eq!(renames.len(), 2, "{by_cookie:?}");
        assert!(
            renames.iter().all(|names| names.len() == 2),
            "it came from another directory, or went there: {renames:?}"
        );
    }
    alone.engine.close().await;
}

#[tokio::test]
async fn an_engine_that_is_closed_with_live_sandboxes_leaves_their_files_alone() {
    let engine = stage::engine().await;
    let (kept, passing_one) = (SandboxId::random(), SandboxId::random());
    engine.create(&kept, &SandboxSpec::new(Base::Host)).await.unwrap();
    engine.create(&passing_one, &passing()).await.unwrap();
    let alive = Outside::all();
    assert!(alive.len() >= 2);
    engine.close().await;
    drop(engine);
    until("the processes are gone", || alive.iter().all(|one| proc_file(one.init, "status").is_none())).await;
    let gone = |outside: &Outside| outside.cgroups.iter().all(|group| !group.exists());
    until("the cgroups are gone", || alive.iter().all(gone)).await;
    let engine = stage::engine().await;
    let found = engine.attach(&kept).await.unwrap();
    assert!(matches!(found, cabana_sandbox::Found::Stopped));
    assert!(matches!(engine.attach(&passing_one).await.unwrap(), cabana_sandbox::Found::Absent));
    engine.destroy(&kept).await.unwrap();
    engine.close().await;
}

const MARKER: &str = "CABANA_TEST_MARKER";

/// The process that is killed by the next test. It does nothing unless it is told to.
#[tokio::test]
async fn an_owner_that_will_be_killed() {
    let Ok(marker) = std::env::var(MARKER) else { return };
    let inside = Inside::new().await;
    let sleep = ExecSpec::argv(["sleep", &marker], SandboxPath::root());
    let _running = inside.sandbox.exec(sleep).await.unwrap();
    println!("\nready {}", inside.sandbox.id());
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn an_ephemeral_sandbox_ends_with_its_owner_also_by_kill_9() {
    let marker = unique_sleep();
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["leftovers::an_owner_that_will_be_killed", "--exact", "--nocapture"])
        .env(MARKER, &marker)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(owner.stdout.take().unwrap()).lines().map_while(Result::ok);
    let id = lines.into_iter().find_map(|line| line.strip_prefix("ready ").map(str::to_owned)).expect("it got ready");
    until("its command runs", || marked(&marker).len() == 1).await;
    let outside = Outside::of(parent_of(marked(&marker)[0]).unwrap()).unwrap();
    assert!(leased().contains(&outside.range));

    owner.kill().unwrap();
    owner.wait().unwrap();
    until("nothing of the sandbox lives", || marked(&marker).is_empty() && proc_file(outside.init, "status").is_none())
        .await;
    until("its range is free", || !leased().contains(&outside.range)).await;

    let data = stage::shared_data();
    let engine = Engine::open(stage::config(data.clone())).await.unwrap();
    let all = data.join("ephemeral");
    assert!(names(&all).iter().all(|owner| !all.join(owner).join(&id).exists()), "its directory is left");
    engine.close().await;
}

#[tokio::test]
async fn a_killed_spawner_is_replaced_and_sandboxes_do_not_notice() {
    let inside = Inside::new().await;
    inside.user("echo kept > /home/user/note").await.ok();
    let [spawner] = spawners()[..] else { panic!("there is one") };
    kill_process(Pid::from_raw(spawner as i32).unwrap(), Signal::KILL).unwrap();
    assert_eq!(inside.user("cat /home/user/note").await.ok(), "kept");
    until("its end is noticed", || proc_file(spawner, "status").is_none()).await;

    assert_eq!(inside.user("cat /home/user/note").await.ok(), "kept");
    // More than can have been prepared before.
    for _ in 0..5 {
        let another = inside.engine.create(&SandboxId::random(), &passing()).await.unwrap();
        assert_eq!(shell(&*another, "user", "echo works").await.ok(), "works");
    }
    assert!(matches!(spawners()[..], [replaced] if replaced != spawner));
    inside.engine.stop(inside.sandbox.id()).await.unwrap();
    inside.end().await;
    assert_eq!(children(), Vec::<u32>::new());
}

#[tokio::test]
async fn a_create_that_meets_the_end_of_the_spawner_says_so_or_succeeds() {
    let inside = Inside::new().await;
    for _ in 0..5 {
        let (id, killed) = (SandboxId::random(), spawners());
        for spawner in &killed {
            let _ = kill_process(Pid::from_raw(*spawner as i32).unwrap(), Signal::KILL);
        }
        match inside.engine.create(&id, &SandboxSpec::new(Base::Host)).await {
            Ok(sandbox) => drop(shell(&*sandbox, "user", "true").await.ok()),
            Err(error) => {
                assert_eq!(error.code(), cabana_sandbox::Code::ProviderOffline, "{error}");
                assert!(matches!(inside.engine.attach(&id).await.unwrap(), cabana_sandbox::Found::Absent));
                inside.engine.create(&id, &SandboxSpec::new(Base::Host)).await.unwrap();
            }
        }
        inside.engine.destroy(&id).await.unwrap();
        until("the old one is gone", || killed.iter().all(|pid| proc_file(*pid, "status").is_none())).await;
    }
    inside.end().await;
}

#[tokio::test]
async fn a_sandbox_whose_init_is_killed_from_outside_is_told_and_can_be_started() {
    use futures_util::StreamExt;
    let engine = stage::engine().await;
    let mut events = engine.events();
    let id = SandboxId::random();
    let sandbox = engine.create(&id, &SandboxSpec::new(Base::Host)).await.unwrap();
    shell(&*sandbox, "user", "echo kept > /home/user/note").await.ok();
    let outside = Outside::of_sandbox(&*sandbox).await;
    kill_process(Pid::from_raw(outside.init as i32).unwrap(), Signal::KILL).unwrap();
    let told = tokio::time::timeout(crate::inside::PATIENCE, events.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(told, (id.clone(), cabana_sandbox::SandboxEvent::Died));
    let gone = sandbox.exec(ExecSpec::shell("true", SandboxPath::root())).await;
    assert_eq!(gone.err().map(|error| error.code()), Some(cabana_sandbox::Code::SandboxGone));
    let sandbox = engine.start(&id).await.unwrap();
    assert_eq!(shell(&*sandbox, "user", "cat /home/user/note").await.ok(), "kept");
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}
