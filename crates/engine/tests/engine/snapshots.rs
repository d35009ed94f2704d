//! Snapshots of stopped, running and paused sandboxes, and what is made from them.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use cabana_engine::{Config, Engine, TemplateSource};
use cabana_sandbox::{
    Base, Code, Error, ExecSpec, Found, Lifetime, Overrides, Provider, Sandbox, SandboxEvent, SandboxId, SandboxPath,
    SandboxSpec, SnapshotId, Source, View, read_all, write_all,
};
use futures_util::StreamExt;
use tokio::task::JoinSet;

use crate::{
    inside::{Inside, PATIENCE, command, path, python, rounds, shell, tiny_root},
    persistence::{MAKE, assert_same, check_made, manifest},
    stage,
};

/// An engine with a data directory of its own, and a small template `tiny` in it: what is removed there is nobody else's.
pub(crate) struct Alone {
    pub(crate) engine: Arc<Engine>,
    data: tempfile::TempDir,
}

impl Alone {
    pub(crate) async fn new() -> Self {
        let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let engine = Engine::open(stage::config(data.path().into())).await.unwrap();
        let alone = Self { engine, data };
        alone.add_tiny();
        alone
    }

    fn add_tiny(&self) {
        let root = tempfile::tempdir().unwrap();
        tiny_root(root.path());
        fs::write(root.path().join("etc/brought"), "by the template").unwrap();
        let source = TemplateSource::Directory(root.path().into());
        self.engine.templates().add("tiny", &source, &Overrides::default(), &mut |_| {}).unwrap();
    }

    pub(crate) fn spec(&self) -> SandboxSpec {
        SandboxSpec::new(Base::Named("tiny".into()))
    }

    pub(crate) fn data(&self) -> &Path {
        self.data.path()
    }

    pub(crate) async fn create(&self, spec: &SandboxSpec) -> Arc<dyn Sandbox> {
        self.engine.create(&SandboxId::random(), spec).await.unwrap()
    }

    fn own(&self, id: &SandboxId) -> PathBuf {
        self.data().join("sandboxes").join(id.as_str()).join("fs")
    }

    /// The names of what snapshots kept.
    pub(crate) fn kept(&self) -> BTreeSet<PathBuf> {
        let layers = fs::read_dir(self.data().join("layers")).unwrap().map(|entry| entry.unwrap().path());
        layers.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("kept-")).collect()
    }
}

pub(crate) fn from(base: &Base) -> SandboxSpec {
    SandboxSpec::new(base.clone())
}

pub(crate) fn name(base: &Base) -> SnapshotId {
    match base {
        Base::Snapshot(name) => *name,
        other => panic!("a snapshot has a name, and is {other:?}"),
    }
}

async fn forget(engine: &Engine, bases: &[&Base], ids: &[&SandboxId]) {
    for id in ids {
        engine.destroy(id).await.unwrap();
    }
    for base in bases {
        engine.snapshots().rm(name(base)).unwrap();
    }
    engine.close().await;
}

#[tokio::test]
async fn a_fork_of_a_stopped_sandbox_is_as_that_was() {
    let engine = stage::engine().await;
    let sandbox = engine.create(&SandboxId::random(), &SandboxSpec::new(Base::Host)).await.unwrap();
    python(&*sandbox, "root", MAKE).await.ok();
    python(&*sandbox, "root", "import os; os.chmod('/', 0o711); os.chmod('/usr', 0o751)").await.ok();
    let was = manifest(&*sandbox).await;
    check_made(&was);
    engine.stop(sandbox.id()).await.unwrap();
    let base = engine.snapshot(sandbox.id(), SnapshotId::now()).await.unwrap();

    let fork = engine.create(&SandboxId::random(), &from(&base)).await.unwrap();
    assert_same(&was, &manifest(&*fork).await, "the fork");
    assert_eq!(shell(&*fork, "root", "stat -c %a / /usr").await.ok(), "711\n751");
    assert_eq!(shell(&*fork, "user", "/usr/local/bin/mine").await.ok(), "mine");
    let original = engine.start(sandbox.id()).await.unwrap();
    assert_same(&was, &manifest(&*original).await, "the original, which goes on");
    assert_eq!(shell(&*original, "root", "stat -c %a / /usr").await.ok(), "711\n751");
    assert_eq!(original.usage().await.unwrap().disk, fork.usage().await.unwrap().disk, "both begin with nothing");
    forget(&engine, &[&base], &[original.id(), fork.id()]).await;
}

#[tokio::test]
async fn a_fork_of_a_running_sandbox_is_as_that_was() {
    let engine = stage::engine().await;
    let sandbox = engine.create(&SandboxId::random(), &SandboxSpec::new(Base::Host)).await.unwrap();
    python(&*sandbox, "root", MAKE).await.ok();
    let was = manifest(&*sandbox).await;
    let base = engine.snapshot(sandbox.id(), SnapshotId::now()).await.unwrap();
    shell(&*sandbox, "root", "rm -r /home/user/kept; touch /home/user/later").await.ok();
    let fork = engine.create(&SandboxId::random(), &from(&base)).await.unwrap();
    assert_same(&was, &manifest(&*fork).await, "the fork");
    assert!(fork.files(None).stat(&path("/home/user/later")).await.is_err());
    forget(&engine, &[&base], &[sandbox.id(), fork.id()]).await;
}

#[tokio::test]
async fn rights_of_programs_and_lists_of_access_go_along() {
    let set = "import os, shutil, struct
shutil.copy(os.path.realpath('/usr/bin/python3'), '/usr/local/bin/binder')
os.setxattr('/usr/local/bin/binder', 'security.capability', struct.pack('<5I', 0x02000001, 1 << 10, 0, 0, 0))
open('/home/user/listed', 'w').close()
entry = lambda tag, bits, who=0xffffffff: struct.pack('<HHI', tag, bits, who)
acl = struct.pack('<I', 2) + entry(1, 6) + entry(2, 4, 1234) + entry(4, 4) + entry(0x10, 4) + entry(0x20, 0)
os.setxattr('/home/user/listed', 'system.posix_acl_access', acl)";
    let look = "import os
print(os.getxattr('/usr/local/bin/binder', 'security.capability').hex(), os.getxattr('/home/user/listed', 'system.posix_acl_access').hex())";
    let uses = "/usr/local/bin/binder -c 'print(open(\"/proc/self/status\").read())' | grep CapEff";
    let engine = stage::engine().await;
    let spec = SandboxSpec { sudo: true, ..SandboxSpec::new(Base::Host) };
    let sandbox = engine.create(&SandboxId::random(), &spec).await.unwrap();
    python(&*sandbox, "root", set).await.ok();
    let was = python(&*sandbox, "root", look).await.ok();
    let running = engine.snapshot(sandbox.id(), SnapshotId::now()).await.unwrap();
    let saved = crate::saved::save(&engine, sandbox.id()).await;
    engine.stop(sandbox.id()).await.unwrap();
    let stopped = engine.snapshot(sandbox.id(), SnapshotId::now()).await.unwrap();
    let restored = SandboxId::random();
    engine.restore(&restored, &spec, crate::saved::stream(&saved)).await.unwrap();

    for fork in [
        engine.create(&SandboxId::random(), &SandboxSpec { sudo: true, ..from(&running) }).await.unwrap(),
        engine.create(&SandboxId::random(), &SandboxSpec { sudo: true, ..from(&stopped) }).await.unwrap(),
        engine.start(&restored).await.unwrap(),
    ] {
        assert_eq!(python(&*fork, "root", look).await.ok(), was);
        assert!(shell(&*fork, "user", uses).await.ok().ends_with("0000000400"));
        engine.destroy(fork.id()).await.unwrap();
    }
    forget(&engine, &[&running, &stopped], &[sandbox.id()]).await;
}

#[tokio::test]
async fn a_snapshot_of_a_stopped_sandbox_copies_nothing() {
    let alone = Alone::new().await;
    let sandbox = alone.create(&alone.spec()).await;
    shell(&*sandbox, "user", "for n in 1 2 3 4 5 6 7 8 9; do echo $n > /home/user/$n; done").await.ok();
    alone.engine.stop(sandbox.id()).await.unwrap();
    let own = alone.own(sandbox.id()).join("upper0");
    let was = fs::metadata(own.join("home/user/7")).unwrap().ino();
    alone.engine.snapshot(sandbox.id(), SnapshotId::now()).await.unwrap();
    let layer = alone.kept().pop_first().expect("a layer was kept").join("tree");
    assert_eq!(fs::metadata(layer.join("home/user/7")).unwrap().ino(), was);
    assert!(!own.exists(), "the sandbox has nothing of its own until it is started");
    // And one more of a sandbox that has written nothing since keeps nothing new.
    alone.engine.snapshot(sandbox.id(), SnapshotId::now()).await.unwrap();
    assert_eq!(alone.kept().len(), 1);
    alone.engine.close().await;
}

#[tokio::test]
async fn a_snapshot_of_a_running_sandbox_does_not_tear() {
    let inside = Inside::with(SandboxSpec::new(Base::Host)).await;
    let (engine, id) = (&inside.engine, inside.sandbox.id());
    // One number, in one file after the other, each in place, and from outside two more.
    let count = "import os
files = [os.open(f'/home/user/{name}', os.O_RDWR | os.O_CREAT) for name in 'abcdefgh']
number = 0
while True:
    number += 1
    for file in files: os.pwrite(file, b'%012d' % number * 5000, 0)";
    let counter = inside.sandbox.exec(ExecSpec::argv(["/usr/bin/python3", "-c", count], SandboxPath::root())).await;
    let counter = counter.unwrap();
    let files = inside.files("user");
    let mut outside = JoinSet::new();
    outside.spawn(async move {
        for number in 0_u64.. {
            for name in ["/home/user/x", "/home/user/y"] {
                let written = write_all(&*files, &path(name), number.to_string()).await;
                if written.is_err() {
                    return;
                }
            }
        }
    });
    // All have their first number.
    while inside.files("user").stat(&path("/home/user/h")).await.map_or(0, |info| info.size) < 60_000
        || inside.files("user").stat(&path("/home/user/y")).await.is_err()
    {
        tokio::task::yield_now().await;
    }
    let mut bases = Vec::new();
    for _ in 0..5 {
        bases.push(engine.snapshot(id, SnapshotId::now()).await.unwrap());
    }
    let look = "
def number(name): return open(f'/home/user/{name}').read()
seen = []
for name in 'abcdefgh':
    text = number(name)
    parts = [text[at:at + 12] for at in range(0, len(text), 12)]
    changes = [at for at in range(1, len(parts)) if parts[at] != parts[at - 1]]
    assert len(parts) == 5000, (name, len(parts))
    seen.append((int(parts[0]), int(parts[-1]), len(changes)))
# Frozen within one write at the most; what comes before it is the new number, what comes after the old.
flat = [number for first, last, _ in seen for number in (first, last)]
assert flat == sorted(flat, reverse=True) and flat[0] - flat[-1] <= 1, seen
assert sum(changes for _, _, changes in seen) <= 1, seen
assert 0 <= int(number('x')) - int(number('y')) <= 1, (number('x'), number('y'))
print(flat[0])";
    let mut last = 0;
    for base in &bases {
        let fork = engine.create(&SandboxId::random(), &from(base)).await.unwrap();
        let at: u64 = python(&*fork, "user", look).await.ok().parse().unwrap();
        assert!(at >= last, "it counts on in between");
        last = at;
        engine.destroy(fork.id()).await.unwrap();
    }
    let files = inside.files("user");
    while String::from_utf8_lossy(&read_all(&*files, &path("/home/user/a"), 1 << 20).await.unwrap()[..12])
        .parse::<u64>()
        .unwrap()
        <= last
    {
        tokio::task::yield_now().await;
    }
    outside.shutdown().await;
    drop(counter);
    bases.iter().for_each(|base| engine.snapshots().rm(name(base)).unwrap());
    inside.end().await;
}

/// An archive of one file after the other, as it comes through the channel.
fn feed(name: &str) -> bytes::Bytes {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.set_size(100_000);
    header.set_mode(0o644);
    tar.append_data(&mut header, name, &[b'x'; 100_000][..]).unwrap();
    let whole = tar.into_inner().unwrap();
    whole[..whole.len() - 1024].to_vec().into()
}

#[tokio::test]
async fn a_snapshot_waits_for_what_is_being_unpacked_also_after_a_stop() {
    let alone = Alone::new().await;
    for stopped in [false, true] {
        let sandbox = alone.create(&alone.spec()).await;
        let (send, receive) = tokio::sync::mpsc::channel(4);
        let body =
            futures_util::stream::unfold(receive, |mut receive: tokio::sync::mpsc::Receiver<bytes::Bytes>| async {
                receive.recv().await.map(|part| (Ok(part), receive))
            });
        let files = sandbox.files(None);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { files.unpack(&path("/home/user"), body.boxed()).await.map(|()| None) });
        send.send(feed("first")).await.unwrap();
        while sandbox.files(None).stat(&path("/home/user/first")).await.is_err() {
            tokio::task::yield_now().await;
        }
        if stopped {
            alone.engine.stop(sandbox.id()).await.unwrap();
        }
        let (engine, id) = (alone.engine.clone(), sandbox.id().clone());
        tasks.spawn(async move { engine.snapshot(&id, SnapshotId::now()).await.map(Some) });
        send.send(feed("second")).await.unwrap();
        send.send(vec![0; 1024].into()).await.unwrap();
        drop(send);
        let ended = tasks.join_all().await;
        let base = ended.into_iter().find_map(|ended| ended.unwrap()).expect("a snapshot");
        let fork = alone.create(&from(&base)).await;
        let sizes = shell(&*fork, "user", "stat -c %s /home/user/first /home/user/second").await.ok();
        assert_eq!(sizes, "100000\n100000", "stopped: {stopped}");
    }
    alone.engine.close().await;
}

#[tokio::test]
async fn commands_that_come_while_a_snapshot_is_taken_are_run() {
    let inside = Inside::new().await;
    inside.root("dd if=/dev/urandom of=/home/user/large bs=1M count=64 2>/dev/null").await.ok();
    let (engine, id) = (inside.engine.clone(), inside.sandbox.id().clone());
    let mut tasks = JoinSet::new();
    let taking = tasks.spawn(async move { engine.snapshot(&id, SnapshotId::now()).await });
    let mut ran = 0;
    while !taking.is_finished() {
        assert_eq!(inside.user("echo works").await.ok(), "works");
        ran += 1;
    }
    assert!(ran > 0);
    let base = tasks.join_next().await.unwrap().unwrap().unwrap();
    inside.engine.snapshots().rm(name(&base)).unwrap();
    inside.end().await;
}

#[tokio::test]
async fn a_paused_sandbox_stays_paused() {
    let inside = Inside::with(SandboxSpec::new(Base::Host)).await;
    let (engine, id) = (&inside.engine, inside.sandbox.id());
    inside.user("echo kept > /home/user/note").await.ok();
    engine.pause(id).await.unwrap();
    let base = engine.snapshot(id, SnapshotId::now()).await.unwrap();
    assert!(matches!(engine.attach(id).await.unwrap(), Found::Paused(_)));
    let fork = engine.create(&SandboxId::random(), &from(&base)).await.unwrap();
    assert_eq!(shell(&*fork, "user", "cat /home/user/note").await.ok(), "kept");
    engine.start(id).await.unwrap();
    assert_eq!(inside.user("cat /home/user/note").await.ok(), "kept");
    engine.destroy(fork.id()).await.unwrap();
    engine.snapshots().rm(name(&base)).unwrap();
    inside.end().await;
}

#[tokio::test]
async fn without_control_groups_only_a_stopped_sandbox_can_be_snapshot() {
    let engine = Engine::open(Config { cgroups: false, ..stage::config(stage::shared_data()) }).await.unwrap();
    let sandbox = engine.create(&SandboxId::random(), &SandboxSpec::new(Base::Host)).await.unwrap();
    shell(&*sandbox, "user", "echo kept > /home/user/note").await.ok();
    let refused = engine.snapshot(sandbox.id(), SnapshotId::now()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unsupported, "{refused}");
    assert!(refused.to_string().contains("stop it first"), "{refused}");
    assert_eq!(engine.save(sandbox.id()).await.err().map(|error| error.code()), Some(Code::Unsupported));
    engine.stop(sandbox.id()).await.unwrap();
    let base = engine.snapshot(sandbox.id(), SnapshotId::now()).await.unwrap();
    let fork = engine.create(&SandboxId::random(), &from(&base)).await.unwrap();
    assert_eq!(shell(&*fork, "user", "cat /home/user/note").await.ok(), "kept");
    forget(&engine, &[&base], &[sandbox.id(), fork.id()]).await;
}

#[tokio::test]
async fn forks_share_what_they_began_from_and_nothing_else() {
    let alone = Alone::new().await;
    let engine = &alone.engine;
    let original = alone.create(&alone.spec()).await;
    shell(&*original, "user", "cd /home/user && mkdir dir && echo first > dir/note && touch gone").await.ok();
    engine.stop(original.id()).await.unwrap();
    let base = engine.snapshot(original.id(), SnapshotId::now()).await.unwrap();
    let mut forks = Vec::new();
    for number in 0..5 {
        let fork = alone.create(&from(&base)).await;
        let change = format!("cd /home/user && echo {number} > dir/note && echo {number} > own-{number}");
        shell(&*fork, "user", &change).await.ok();
        forks.push(fork);
    }
    engine.destroy(original.id()).await.unwrap();
    engine.snapshots().rm(name(&base)).unwrap();
    engine.destroy(forks[0].id()).await.unwrap();
    assert_eq!(engine.remove_unused_layers().unwrap(), 0, "the forks stand on it");
    for (number, fork) in forks.iter().enumerate().skip(1) {
        let said = shell(&**fork, "user", "cd /home/user && cat dir/note && ls").await.ok();
        assert_eq!(said, format!("{number}\ndir\ngone\nown-{number}"));
        engine.stop(fork.id()).await.unwrap();
        let fork = engine.start(fork.id()).await.unwrap();
        assert_eq!(
            shell(&*fork, "user", "cat /home/user/dir/note /etc/brought").await.ok(),
            format!("{number}\nby the template")
        );
        engine.destroy(fork.id()).await.unwrap();
    }
    assert_eq!(engine.remove_unused_layers().unwrap(), 1);
    assert_eq!(alone.kept().len(), 0);
    engine.close().await;
}

#[tokio::test]
async fn a_hundred_snapshots_of_snapshots_are_one_sandbox_like_another() {
    let alone = Alone::new().await;
    let engine = &alone.engine;
    let mut spec = alone.spec();
    let mut names: Vec<SnapshotId> = Vec::new();
    let all = 100;
    for round in 0..all {
        let sandbox = alone.create(&spec).await;
        // Each round adds a file, changes one, and has a directory of its own instead of the one before.
        let script = format!(
            "cd /home/user && echo {round} > new-{round} && echo {round} >> log && rm -rf dir && mkdir dir && touch dir/{round}
             ls dir && (n=0; while read line; do n=$((n+1)); done < log; echo $n)"
        );
        let said = shell(&*sandbox, "user", &script).await.ok();
        assert_eq!(said, format!("{round}\n{}", round + 1));
        if round % 2 == 0 {
            engine.stop(sandbox.id()).await.unwrap();
        }
        let base = engine.snapshot(sandbox.id(), SnapshotId::now()).await.unwrap();
        engine.destroy(sandbox.id()).await.unwrap();
        for old in names.drain(..) {
            engine.snapshots().rm(old).unwrap();
        }
        names.push(name(&base));
        spec = from(&base);
        assert!(alone.kept().len() <= 40, "they pile up: {}", alone.kept().len());
        if round % 10 == 9 {
            engine.remove_unused_layers().unwrap();
        }
    }
    let last = alone.create(&spec).await;
    let said = shell(&*last, "user", "cd /home/user && ls && ls dir && cat log /etc/brought").await.ok();
    for round in 0..all {
        assert!(said.lines().any(|line| line == format!("new-{round}")), "{round}: {said}");
    }
    assert!(said.ends_with("99\nby the template"), "{said}");
    // Nobody needs the layers in between.
    engine.remove_unused_layers().unwrap();
    assert!(alone.kept().len() <= 17, "{}", alone.kept().len());
    assert_eq!(shell(&*last, "user", "cat /home/user/new-0").await.ok(), "0");
    engine.close().await;
}

#[tokio::test]
async fn views_are_not_in_a_snapshot_and_their_layers_are_not_removed() {
    let alone = Alone::new().await;
    let (engine, host) = (&alone.engine, tempfile::tempdir().unwrap());
    fs::write(host.path().join("secret"), "of the host").unwrap();
    let layer = engine.templates().get("tiny").unwrap().layers[0];
    let views = vec![
        View { source: Source::Host(host.path().into()), at: path("/seen"), writable: true },
        View { source: Source::Layer(layer), at: path("/layer"), writable: false },
    ];
    let sandbox = alone.create(&SandboxSpec { views, ..alone.spec() }).await;
    assert_eq!(
        shell(&*sandbox, "root", "cat /seen/secret /layer/etc/brought").await.ok(),
        "of the hostby the template"
    );
    let base = engine.snapshot(sandbox.id(), SnapshotId::now()).await.unwrap();
    let fork = alone.create(&from(&base)).await;
    assert_eq!(shell(&*fork, "root", "ls /seen /layer").await.ok(), "/layer:\n\n/seen:");
    engine.close().await;
}

/// What a kill between two steps leaves, one step after the other: each is made by hand from a snapshot that was taken.
#[tokio::test]
async fn a_sudden_end_between_any_two_steps_loses_nothing() {
    for end in ["before the record", "before the move", "before the name", "before all is taken out"] {
        let alone = Alone::new().await;
        let sandbox = alone.create(&alone.spec()).await;
        let id = sandbox.id().clone();
        shell(&*sandbox, "root", "chmod 711 / && echo kept > /home/user/note && echo changed > /etc/brought")
            .await
            .ok();
        alone.engine.stop(&id).await.unwrap();
        let (own, home) = (alone.own(&id), alone.data().join("sandboxes").join(id.as_str()));
        let record = fs::read(home.join("record.json")).unwrap();
        let base = alone.engine.snapshot(&id, SnapshotId::now()).await.unwrap();
        let layer = alone.kept().pop_first().unwrap();
        alone.engine.snapshots().rm(name(&base)).unwrap(); // its file comes last
        let back = || fs::rename(layer.join("tree"), own.join("upper0")).unwrap();
        match end {
            "before the record" => {
                back();
                fs::write(home.join("record.json"), record).unwrap();
            }
            "before the move" => back(),
            "before all is taken out" => fs::create_dir_all(own.join("new/half")).unwrap(),
            _ => {}
        }
        let Alone { engine, data } = alone;
        engine.close().await;
        drop(engine);
        let alone = Alone { engine: Engine::open(stage::config(data.path().into())).await.unwrap(), data };
        let removed = alone.engine.remove_unused_layers().unwrap();
        assert_eq!(removed, usize::from(end == "before the record"), "{end}");
        if end != "before the name" {
            // Also a snapshot sets it right.
            alone.engine.snapshot(&id, SnapshotId::now()).await.unwrap();
        }
        let again = alone.engine.start(&id).await.unwrap();
        let look = "cat /home/user/note /etc/brought && stat -c %a /";
        assert_eq!(shell(&*again, "root", look).await.ok(), "kept\nchanged\n711", "{end}");
        shell(&*again, "root", "echo more >> /home/user/note").await.ok();
        alone.engine.stop(&id).await.unwrap();
        let fork = alone.create(&from(&alone.engine.snapshot(&id, SnapshotId::now()).await.unwrap())).await;
        assert_eq!(shell(&*fork, "root", "cat /home/user/note").await.ok(), "kept\nmore", "{end}");
        alone.engine.close().await;
    }
}

#[tokio::test]
async fn snapshots_are_listed_and_removed() {
    let alone = Alone::new().await;
    let sandbox = alone.create(&alone.spec()).await;
    let (engine, id) = (&alone.engine, sandbox.id());
    assert_eq!(engine.snapshots().ls().unwrap().len(), 0);
    shell(&*sandbox, "user", "echo one > /home/user/note").await.ok();
    let one = engine.snapshot(id, SnapshotId::now()).await.unwrap();
    engine.stop(id).await.unwrap();
    let two = engine.snapshot(id, SnapshotId::now()).await.unwrap();
    let all: Vec<_> = engine.snapshots().ls().unwrap().into_iter().map(|(_, found)| found.unwrap()).collect();
    assert_eq!(all.iter().map(|found| found.name).collect::<BTreeSet<_>>(), BTreeSet::from([name(&one), name(&two)]));
    assert!(all.iter().all(|found| found.of == *id && found.made.ends_with('Z')));
    assert_eq!(engine.remove_unused_layers().unwrap(), 0);
    engine.snapshots().rm(name(&one)).unwrap();
    assert_eq!(engine.remove_unused_layers().unwrap(), 1, "the copy that only this snapshot had");
    engine.destroy(id).await.unwrap();
    assert_eq!(engine.remove_unused_layers().unwrap(), 0, "the other snapshot has it");
    let fork = alone.create(&from(&two)).await;
    assert_eq!(shell(&*fork, "user", "cat /home/user/note").await.ok(), "one");
    engine.snapshots().rm(name(&two)).unwrap();
    assert!(matches!(engine.snapshots().rm(name(&two)), Err(Error::NoSnapshot(_))));
    engine.destroy(fork.id()).await.unwrap();
    assert_eq!(engine.remove_unused_layers().unwrap(), 1);

    // A record that cannot be read stops the removal: who knows what it needs.
    fs::write(alone.data().join("snapshots").join(format!("{}.json", "0".repeat(32))), "{").unwrap();
    assert_eq!(engine.remove_unused_layers().unwrap_err().code(), Code::TemplateInvalid);
    let damaged = engine.snapshots().ls().unwrap();
    assert!(damaged.len() == 1 && damaged[0].1.is_err());
    engine.snapshots().rm(damaged[0].0).unwrap();
    engine.close().await;
}

#[tokio::test]
async fn a_snapshot_that_is_not_there_is_named() {
    let engine = stage::engine().await;
    let (id, name) = (SandboxId::random(), SnapshotId::now());
    let refused = engine.create(&id, &SandboxSpec::new(Base::Snapshot(name))).await.err().unwrap();
    assert!(matches!(&refused, Error::NoSnapshot(said) if *said == name), "{refused:?}");
    assert!(matches!(engine.attach(&id).await.unwrap(), Found::Absent));
    assert!(matches!(engine.snapshots().rm(name), Err(Error::NoSnapshot(_))));
    for refused in [
        engine.snapshot(&SandboxId::random(), SnapshotId::now()).await.err().unwrap(),
        engine.save(&SandboxId::random()).await.err().unwrap(),
    ] {
        assert_eq!(refused.code(), Code::SandboxNotFound);
    }
    engine.close().await;
}

#[tokio::test]
async fn a_fork_on_a_host_that_has_changed_is_told() {
    let engine = stage::engine().await;
    let mut events = engine.events();
    let sandbox = engine.create(&SandboxId::random(), &SandboxSpec::new(Base::Host)).await.unwrap();
    shell(&*sandbox, "root", "echo mine > /usr/local/mine").await.ok();
    let base = engine.snapshot(sandbox.id(), SnapshotId::now()).await.unwrap();
    // As if the host had been another one when it was taken.
    let file = stage::shared_data().join("snapshots").join(format!("{}.json", name(&base).uuid().simple()));
    let mut record: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    record["plan"]["fingerprint"] = "another".into();
    fs::write(&file, record.to_string()).unwrap();
    let fork = engine.create(&SandboxId::random(), &from(&base)).await.unwrap();
    let told = tokio::time::timeout(PATIENCE, events.next()).await.unwrap().unwrap().unwrap();
    assert!(
        matches!(&told, (id, SandboxEvent::BaseChanged { was, .. }) if id == fork.id() && was == "another"),
        "{told:?}"
    );
    assert_eq!(shell(&*fork, "user", "cat /usr/local/mine").await.ok(), "mine");
    forget(&engine, &[&base], &[sandbox.id(), fork.id()]).await;
}

#[tokio::test]
async fn an_ephemeral_fork_ends_with_its_owner_and_the_snapshot_stays() {
    let alone = Alone::new().await;
    let sandbox = alone.create(&alone.spec()).await;
    shell(&*sandbox, "user", "echo kept > /home/user/note").await.ok();
    let base = alone.engine.snapshot(sandbox.id(), SnapshotId::now()).await.unwrap();
    let spec = SandboxSpec { lifetime: Lifetime::Ephemeral, ..from(&base) };
    let fork = alone.create(&spec).await;
    assert_eq!(shell(&*fork, "user", "cat /home/user/note; echo mine > /home/user/note").await.ok(), "kept");
    let of_fork = alone.engine.snapshot(fork.id(), SnapshotId::now()).await.unwrap();
    alone.engine.stop(fork.id()).await.unwrap();
    let last = alone.create(&from(&of_fork)).await;
    assert_eq!(shell(&*last, "user", "cat /home/user/note").await.ok(), "mine");
    alone.engine.close().await;
}

/// Changes files at random, as its seed says, in places that lie in both overlays of the host base.
const CHANGE: &str = r#"
import os, random, shutil, sys
rnd = random.Random(sys.argv[1])
os.umask(0)
TOPS = ["/srv/t", "/usr/local/t", "/etc/pam.d", "/usr/share/base-files", "/usr/share/doc/bash"]
for top in TOPS: os.makedirs(top, exist_ok=True)
def all_of(want):
    found = []
    for top in TOPS:
        for dir, dirs, files in os.walk(top):
            if want(dir): found.append(dir)
            found += [path for path in (os.path.join(dir, name) for name in files + [d for d in dirs if os.path.islink(os.path.join(dir, d))]) if want(path)]
    return found
is_dir = lambda path: os.path.isdir(path) and not os.path.islink(path)
is_file = lambda path: os.path.isfile(path) and not os.path.islink(path)
def some_dir(): return rnd.choice(all_of(is_dir))
def some(want):
    found = [path for path in all_of(want) if path not in TOPS]
    return rnd.choice(found) if found else None
def fresh(): return os.path.join(some_dir(), rnd.choice("abcdefgh"))
def clear(path):
    if os.path.islink(path) or not os.path.isdir(path):
        if os.path.lexists(path): os.remove(path)
    else: shutil.rmtree(path)
def make_file():
    path = fresh(); clear(path)
    with open(path, "wb") as file:
        file.seek(rnd.choice([0, 0, 1 << 20])); file.write(rnd.randbytes(rnd.randrange(5000)))
def make_dir():
    path = fresh(); clear(path); os.mkdir(path, rnd.choice([0o755, 0o700, 0o1777, 0o2755]))
def make_link():
    path = fresh(); clear(path); os.symlink(rnd.choice(["a", "../b", "/etc/passwd", "x" * 200]), path)
def make_pipe():
    path = fresh(); clear(path); os.mkfifo(path, 0o640)
def hard_link():
    old = some(is_file); new = fresh()
    if old and not (old + "/").startswith(new + "/"):
        clear(new)
        if os.path.exists(old): os.link(old, new)
def remove():
    path = some(lambda path: True)
    if path: clear(path)
def empty():
    path = some_dir(); mode = os.stat(path).st_mode & 0o7777
    shutil.rmtree(path); os.mkdir(path); os.chmod(path, mode)
def rename():
    old, new = some(is_file), fresh()
    if old and not (old + "/").startswith(new + "/"):
        clear(new)
        if os.path.exists(old): os.rename(old, new)
def append():
    path = some(is_file)
    if path:
        with open(path, "ab") as file: file.write(b"more")
def chmod():
    path = some(lambda path: not os.path.islink(path))
    if path: os.chmod(path, rnd.choice([0o755, 0o4755, 0o000, 0o1777, 0o640]))
def chown():
    path = some(lambda path: True)
    if path: os.lchown(path, rnd.choice([0, 1, 1000, 65533]), rnd.choice([0, 5, 1000]))
def attribute():
    path = some(lambda path: is_dir(path) or is_file(path))
    if path: os.setxattr(path, rnd.choice(["user.a", "user.b"]), rnd.randbytes(rnd.randrange(20)))
def forget():
    path = some(lambda path: is_dir(path) or is_file(path))
    if path:
        for name in os.listxattr(path): os.removexattr(path, name)
def time():
    path = some(lambda path: True)
    if path: os.utime(path, ns=(1, rnd.randrange(1 << 60)), follow_symlinks=False)
STEPS = [make_file, make_file, make_dir, make_dir, make_link, make_pipe, hard_link, remove, remove, empty, rename, append, chmod, chown, attribute, forget, time]
for _ in range(rnd.randrange(1, 30)):
    try: rnd.choice(STEPS)()
    except OSError as error:
        if error.errno != 18: raise # from one overlay into the other
"#;

/// All that can be seen of those places, but for which names are one file: overlayfs tells that in one way of files that it
/// has copied up, and in another when they lie in a layer.
const VIEW: &str = r#"
import hashlib, os, stat
def tell(path):
    s = os.lstat(path)
    more = ""
    if stat.S_ISLNK(s.st_mode): more = repr(os.readlink(path))
    elif stat.S_ISREG(s.st_mode):
        with open(path, "rb") as file: more = hashlib.sha256(file.read()).hexdigest()
    size = 0 if stat.S_ISDIR(s.st_mode) else s.st_size
    attributes = sorted((name, os.getxattr(path, name, follow_symlinks=False)) for name in os.listxattr(path, follow_symlinks=False))
    print(path, oct(s.st_mode), s.st_uid, s.st_gid, size, s.st_mtime_ns, s.st_rdev, more, attributes)
    if stat.S_ISDIR(s.st_mode):
        for name in sorted(os.listdir(path)): tell(os.path.join(path, name))
for top in ["/srv", "/usr/local/t", "/etc/pam.d", "/usr/share/base-files", "/usr/share/doc/bash"]: tell(top)
"#;

#[tokio::test]
async fn soak_files_are_as_they_were_when_layers_are_kept_copied_and_merged() {
    let seed = std::env::var("CABANA_SEED").unwrap_or_else(|_| SandboxId::random().to_string());
    println!("CABANA_SEED={seed}");
    let engine = stage::engine().await;
    let mut sandbox = engine.create(&SandboxId::random(), &SandboxSpec::new(Base::Host)).await.unwrap();
    let mut flattened = 0;
    let mut deepest = 0;
    for round in 0..rounds(25) {
        let change = ["/usr/bin/python3", "-c", CHANGE, &format!("{seed}-{round}")];
        command(&*sandbox, "root", ExecSpec::argv(change, SandboxPath::root())).await.ok();
        let was = python(&*sandbox, "root", VIEW).await.ok();
        let id = sandbox.id().clone();
        if round % 3 > 0 {
            engine.stop(&id).await.unwrap();
        }
        let base = engine.snapshot(&id, SnapshotId::now()).await.unwrap();
        let fork = engine.create(&SandboxId::random(), &from(&base)).await.unwrap();
        let when = format!("CABANA_SEED={seed}, round {round}");
        assert_same(&was, &python(&*fork, "root", VIEW).await.ok(), &format!("the fork, {when}"));
        let original = engine.start(&id).await.unwrap();
        assert_same(&was, &python(&*original, "root", VIEW).await.ok(), &format!("the original, {when}"));
        let text =
            fs::read_to_string(stage::shared_data().join("sandboxes").join(fork.id().as_str()).join("record.json"));
        let depth = text.unwrap().matches("kept-").count();
        flattened += usize::from(depth < deepest);
        deepest = depth;
        engine.destroy(&id).await.unwrap();
        engine.snapshots().rm(name(&base)).unwrap();
        sandbox = fork;
    }
    assert!(flattened > 0, "no layers were merged");
    forget(&engine, &[], &[sandbox.id()]).await;
}

/// Redirects and copies without content would depend on what lay below: a layer with one could not be moved, nor merged.
#[tokio::test]
async fn what_the_kernel_notes_in_a_layer_depends_on_no_other() {
    let engine = stage::engine().await;
    let sandbox = engine.create(&SandboxId::random(), &SandboxSpec::new(Base::Host)).await.unwrap();
    python(&*sandbox, "root", MAKE).await.ok();
    shell(&*sandbox, "root", "mv /usr/share/doc/bash /usr/share/doc/moved; chown 5 /etc/profile; touch /etc/hosts")
        .await
        .ok();
    engine.stop(sandbox.id()).await.unwrap();
    let base = engine.snapshot(sandbox.id(), SnapshotId::now()).await.unwrap();
    let record = stage::shared_data().join("sandboxes").join(sandbox.id().as_str()).join("record.json");
    let record = fs::read_to_string(record).unwrap();
    let layers: Vec<_> = record.split('"').filter(|word| word.starts_with("kept-")).collect();
    assert_eq!(layers.len(), 2, "one of the root, and one of /usr");
    let (mut noted, mut whiteouts) = (BTreeSet::new(), 0);
    let mut left: Vec<_> =
        layers.iter().map(|layer| stage::shared_data().join("layers").join(layer).join("tree")).collect();
    while let Some(path) = left.pop() {
        let stat = fs::symlink_metadata(&path).unwrap();
        whiteouts += u32::from(stat.mode() & 0o170_000 == 0o020_000 && stat.rdev() == 0);
        let mut list = vec![0_u8; 4096];
        let length = rustix::fs::llistxattr(&path, &mut list).unwrap();
        let names = String::from_utf8_lossy(&list[..length]).into_owned();
        noted.extend(names.split('\0').filter_map(|name| name.strip_prefix("user.overlay.")).map(str::to_owned));
        if stat.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    assert!(whiteouts > 0 && noted.contains("opaque"), "{whiteouts} {noted:?}");
    // The inode numbers of before, and the number of the overlay: nothing is found by them.
    let harmless = ["opaque", "origin", "impure", "uuid"];
    assert!(noted.iter().all(|name| harmless.contains(&name.as_str())), "{noted:?}");
    forget(&engine, &[&base], &[sandbox.id()]).await;
}
