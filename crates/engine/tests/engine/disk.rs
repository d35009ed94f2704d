//! What a sandbox may take of the disk: by watching here, by the kernel on btrfs.

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use cabana_engine::{Config, Engine, TemplateSource};
use cabana_sandbox::{
    Alter, Base, Code, Enforced, Lifetime, Limits, Overrides, Provider, Sandbox, SandboxEvent, SandboxId, SandboxSpec,
    Status, Stream, VolumeId, Wanted, Write, WriteMode, read_all, write_all,
};
use futures_util::{StreamExt, stream};

use crate::{
    inside::{PATIENCE, Ran, host, named, passing, path, shell, tiny_root},
    stage,
};

const MIB: u64 = 1 << 20;

fn disk(mib: u64) -> Limits {
    Limits { disk: Some(mib * MIB), ..Limits::NONE }
}

fn limited(limits: Limits) -> SandboxSpec {
    SandboxSpec { limits, ..passing() }
}

async fn with(limits: Limits) -> (Arc<Engine>, Arc<dyn Sandbox>) {
    let engine = stage::engine().await;
    let sandbox = engine.create(&SandboxId::random(), &limited(limits)).await.unwrap();
    (engine, sandbox)
}

async fn end(engine: Arc<Engine>, sandbox: Arc<dyn Sandbox>) {
    engine.destroy(sandbox.id()).await.unwrap();
    engine.close().await;
}

async fn user(sandbox: &Arc<dyn Sandbox>, script: &str) -> Ran {
    shell(&**sandbox, "user", script).await
}

/// The next event that is about the disk.
async fn disk_full(events: &mut Stream<(SandboxId, SandboxEvent)>) -> SandboxId {
    let told = async {
        loop {
            if let (id, SandboxEvent::DiskFull) = events.next().await.unwrap().unwrap() {
                return id;
            }
        }
    };
    tokio::time::timeout(PATIENCE, told).await.expect("it is told")
}

fn zeros(mib: u64) -> Stream<Bytes> {
    let chunk = Bytes::from(vec![0; MIB as usize]);
    stream::iter((0..mib).map(move |_| Ok(chunk.clone()))).boxed()
}

/// Asks until the file interface says that there is no room, or that there is.
async fn until_written(sandbox: &Arc<dyn Sandbox>, written: bool) {
    let files = sandbox.files(Some(&named("user")));
    let asked = async {
        loop {
            match write_all(&*files, &path("/home/user/asked"), "x").await {
                Ok(_) if written => return,
                Err(error) if error.code() == Code::NoSpace && !written => return,
                Ok(_) => {}
                Err(error) => assert_eq!(error.code(), Code::NoSpace, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.expect("the file interface answers so");
}

#[tokio::test]
async fn on_this_file_system_disk_limits_are_held_by_watching() {
    let engine = stage::engine().await;
    let can = engine.capabilities();
    assert_eq!([can.disk, can.inodes], [Enforced::ByWatching; 2]);
    engine.close().await;
}

#[tokio::test]
async fn who_fills_the_disk_is_ended_and_what_was_written_can_be_deleted() {
    let (engine, sandbox) = with(disk(32)).await;
    let mut events = engine.events();
    let ran = user(&sandbox, "dd if=/dev/zero of=/home/user/fill bs=1M count=4000").await;
    assert_eq!(ran.status, Status::DiskFull, "{ran:?}");
    assert_eq!(disk_full(&mut events).await, *sandbox.id());
    until_written(&sandbox, false).await;
    // It is full, and commands run: how else would somebody make room?
    assert_eq!(
        user(&sandbox, "ls /home/user/fill && rm /home/user/fill && echo gone").await.ok(),
        "/home/user/fill\ngone"
    );
    until_written(&sandbox, true).await;
    assert_eq!(user(&sandbox, "dd if=/dev/zero of=/home/user/again bs=1M count=8 status=none").await.ok(), "");
    end(engine, sandbox).await;
}

#[tokio::test]
async fn who_goes_on_writing_when_it_is_full_is_ended_too() {
    let (engine, sandbox) = with(disk(16)).await;
    for round in 0..3 {
        let fill = format!("dd if=/dev/zero of=/home/user/fill{round} bs=1M count=4000");
        assert_eq!(user(&sandbox, &fill).await.status, Status::DiskFull, "round {round}");
    }
    end(engine, sandbox).await;
}

#[tokio::test]
async fn neither_a_daemon_nor_a_file_without_a_name_gets_round_the_limit() {
    let (engine, sandbox) = with(disk(32)).await;
    let mut events = engine.events();
    let daemon = "setsid sh -c 'while :; do cat /dev/zero >> /home/user/fill; done' >/dev/null 2>&1 & exit 0";
    assert_eq!(user(&sandbox, daemon).await.ok(), "");
    disk_full(&mut events).await;
    let began = std::time::Instant::now();
    while sandbox.usage().await.unwrap().pids > 1 {
        assert!(began.elapsed() < PATIENCE, "the daemon lives on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    user(&sandbox, "rm /home/user/fill").await.ok();
    until_written(&sandbox, true).await;
    let nameless = "exec 3> /home/user/fill; rm /home/user/fill; exec cat /dev/zero >&3";
    assert_eq!(user(&sandbox, nameless).await.status, Status::DiskFull);
    disk_full(&mut events).await;
    until_written(&sandbox, true).await;
    end(engine, sandbox).await;
}

#[tokio::test]
async fn a_crowd_of_files_that_is_long_to_measure_hides_nobody() {
    let (engine, sandbox) = with(disk(256)).await;
    let crowd = "import os\nfor d in range(100):\n  os.makedirs(f'/home/user/t/{d}')\n  for f in range(300): os.mknod(f'/home/user/t/{d}/{f}')";
    shell(&*sandbox, "user", &format!("exec python3 -c \"{crowd}\"")).await.ok();
    let ran = user(&sandbox, "exec dd if=/dev/zero of=/home/user/fill bs=1M count=8000").await;
    assert_eq!(ran.status, Status::DiskFull, "{ran:?}");
    end(engine, sandbox).await;
}

#[tokio::test]
async fn who_makes_too_many_files_is_ended_and_they_can_be_deleted() {
    let (engine, sandbox) = with(Limits { inodes: Some(500), ..Limits::NONE }).await;
    let fill = "import os\nos.mkdir('/home/user/d')\nfor n in range(10**7): os.mknod(f'/home/user/d/{n}')";
    let ran = user(&sandbox, &format!("exec python3 -c \"{fill}\"")).await;
    assert_eq!(ran.status, Status::DiskFull, "{ran:?}");
    until_written(&sandbox, false).await;
    let files = sandbox.files(Some(&named("user")));
    let refused = files.alter(Alter::MakeDir(path("/home/user/more"), 0o755)).await.unwrap_err();
    assert_eq!(refused.code(), Code::NoSpace);
    files.alter(Alter::RemoveAll(path("/home/user/d"))).await.unwrap();
    until_written(&sandbox, true).await;
    end(engine, sandbox).await;
}

#[tokio::test]
async fn the_file_interface_refuses_before_the_limit_is_passed() {
    let (engine, sandbox) = with(disk(16)).await;
    let files = sandbox.files(Some(&named("user")));
    write_all(&*files, &path("/home/user/old"), "old").await.unwrap();
    for mode in [WriteMode::Replace, WriteMode::CreateNew, WriteMode::InPlace, WriteMode::Append] {
        let to = path(if mode == WriteMode::Replace { "/home/user/old" } else { "/home/user/new" });
        if mode == WriteMode::InPlace {
            write_all(&*files, &to, "").await.unwrap();
        }
        let refused = files.write(&to, Write::new(mode), zeros(64)).await.unwrap_err();
        assert_eq!(refused.code(), Code::NoSpace, "{mode:?}: {refused}");
        assert!(sandbox.usage().await.unwrap().disk <= 17 * MIB, "{mode:?}");
        if mode != WriteMode::Replace {
            let _ = files.alter(Alter::Remove(to)).await;
        }
    }
    assert_eq!(read_all(&*files, &path("/home/user/old"), 100).await.unwrap(), "old");
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("large"), vec![7; 64 << 20]).unwrap();
    let tar = dir.path().join("tar");
    host("tar", &["-C", dir.path().to_str().unwrap(), "-cf", tar.to_str().unwrap(), "large"]);
    let parts: Vec<_> = std::fs::read(&tar).unwrap().chunks(65_536).map(Bytes::copy_from_slice).collect();
    let refused = files.unpack(&path("/home/user"), stream::iter(parts.into_iter().map(Ok)).boxed()).await.unwrap_err();
    assert_eq!(refused.code(), Code::NoSpace, "{refused}");
    assert!(sandbox.usage().await.unwrap().disk <= 17 * MIB);
    end(engine, sandbox).await;
}

#[tokio::test]
async fn a_disk_limit_changes_at_run_time_and_stays_through_stop_and_start() {
    let engine = stage::engine().await;
    let spec = SandboxSpec { lifetime: Lifetime::Persistent, ..limited(Limits::NONE) };
    let sandbox = engine.create(&SandboxId::random(), &spec).await.unwrap();
    let fill = "dd if=/dev/zero of=/home/user/fill bs=1M count=64 status=none; echo done; sleep 30";
    assert_eq!(user(&sandbox, "dd if=/dev/zero of=/home/user/fill bs=1M count=64 status=none").await.ok(), "");
    // Less than is there already: nothing more is written, and what is there stays.
    sandbox.update(Wanted::Limits(disk(16))).await.unwrap();
    until_written(&sandbox, false).await;
    assert_eq!(user(&sandbox, "stat -c %s /home/user/fill").await.ok(), "67108864");
    engine.stop(sandbox.id()).await.unwrap();
    let sandbox = engine.start(sandbox.id()).await.unwrap();
    until_written(&sandbox, false).await;
    assert_eq!(user(&sandbox, "rm /home/user/fill; echo well").await.ok(), "well");
    until_written(&sandbox, true).await;
    assert_eq!(user(&sandbox, fill).await.status, Status::DiskFull);
    sandbox.update(Wanted::Limits(Limits::NONE)).await.unwrap();
    until_written(&sandbox, true).await;
    assert_eq!(user(&sandbox, "dd if=/dev/zero of=/home/user/fill bs=1M count=64 status=none").await.ok(), "");
    end(engine, sandbox).await;
}

#[tokio::test]
async fn a_disk_limit_holds_also_without_groups() {
    let config = Config { cgroups: false, ..stage::config(stage::shared_data()) };
    let engine = Engine::open(config).await.unwrap();
    let sandbox = engine.create(&SandboxId::random(), &limited(disk(16))).await.unwrap();
    let ran = user(&sandbox, "dd if=/dev/zero of=/home/user/fill bs=1M count=4000").await;
    assert_eq!(ran.status, Status::DiskFull, "{ran:?}");
    assert_eq!(user(&sandbox, "rm /home/user/fill; echo well").await.ok(), "well");
    end(engine, sandbox).await;
}

/// A btrfs in a file, with quotas, for as long as the test lasts.
struct Pool(tempfile::TempDir);

impl Pool {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (image, at) = (dir.path().join("image"), dir.path().join("pool"));
        std::fs::File::create(&image).unwrap().set_len(1 << 30).unwrap();
        std::fs::create_dir(&at).unwrap();
        let (image, at) = (image.to_str().unwrap(), at.to_str().unwrap());
        host("mkfs.btrfs", &["-q", image]);
        host("mount", &["-o", "loop", image, at]);
        let pool = Self(dir);
        host("btrfs", &["quota", "enable", at]);
        pool
    }

    fn path(&self) -> std::path::PathBuf {
        self.0.path().join("pool")
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

#[tokio::test]
async fn a_volume_in_which_a_subvolume_is_read_only_is_removed_whole() {
    let pool = Pool::new();
    let engine = Engine::open(Config { spares: 0, ..stage::config(pool.path().join("data")) }).await.unwrap();
    let (volume, before) = (VolumeId::now(), subvolumes(&pool.path()));
    engine.make_volume(volume).await.unwrap();
    let below = pool.path().join(format!("data/volumes/{volume}/tree/directory"));
    std::fs::create_dir(&below).unwrap();
    // As a guest may that writes to the volume, by calls of btrfs.
    let own = below.join("own");
    let own = own.to_str().unwrap();
    host("btrfs", &["subvolume", "create", own]);
    std::fs::create_dir(below.join("own/deep")).unwrap();
    std::fs::write(below.join("own/deep/file"), "kept").unwrap();
    host("btrfs", &["property", "set", "-ts", own, "ro", "true"]);
    assert!(std::fs::remove_file(below.join("own/deep/file")).is_err());
    engine.remove_volume(volume).await.unwrap();
    assert_eq!(std::fs::read_dir(pool.path().join("data/volumes")).unwrap().count(), 0);
    assert_eq!(subvolumes(&pool.path()), before);
    engine.close().await;
}

fn subvolumes(at: &Path) -> usize {
    host("btrfs", &["subvolume", "list", at.to_str().unwrap()]).lines().count()
}

#[tokio::test]
async fn on_btrfs_with_quotas_the_kernel_holds_the_limit() {
    let pool = Pool::new();
    let source = tempfile::tempdir().unwrap();
    tiny_root(source.path());
    let engine = Engine::open(Config { spares: 0, ..stage::config(pool.path().join("data")) }).await.unwrap();
    assert_eq!(engine.capabilities().disk, Enforced::ByKernel);
    assert_eq!(engine.capabilities().inodes, Enforced::ByWatching);
    let template = TemplateSource::Directory(source.path().to_owned());
    engine.templates().add("tiny", &template, &Overrides::default(), &mut |_| {}).unwrap();
    let before = subvolumes(&pool.path());
    let spec = SandboxSpec { limits: disk(16), ..SandboxSpec::new(Base::Named("tiny".into())) };
    let sandbox = engine.create(&SandboxId::random(), &spec).await.unwrap();
    let neighbour = engine.create(&SandboxId::random(), &spec).await.unwrap();
    let fill = "dd if=/dev/zero of=/home/user/fill bs=1M count=64";
    let said = user(&sandbox, fill).await.refused();
    assert!(said.contains("quota exceeded"), "{said}");
    let files = sandbox.files(Some(&named("user")));
    let refused = files.write(&path("/home/user/up"), Write::new(WriteMode::Replace), zeros(32)).await.unwrap_err();
    assert_eq!(refused.code(), Code::NoSpace, "{refused}");
    assert_eq!(
        user(&neighbour, "dd if=/dev/zero of=/home/user/mine bs=1M count=8 2>/dev/null; echo well").await.ok(),
        "well"
    );

    sandbox.update(Wanted::Limits(disk(128))).await.unwrap();
    assert_eq!(user(&sandbox, &format!("{fill} 2>/dev/null; echo well")).await.ok(), "well");
    engine.stop(sandbox.id()).await.unwrap();
    let sandbox = engine.start(sandbox.id()).await.unwrap();
    assert_eq!(user(&sandbox, "stat -c %s /home/user/fill").await.ok(), "67108864");
    sandbox.update(Wanted::Limits(Limits::NONE)).await.unwrap();
    assert_eq!(
        user(&sandbox, "dd if=/dev/zero of=/home/user/more bs=1M count=160 2>/dev/null; echo well").await.ok(),
        "well"
    );
    for one in [&sandbox, &neighbour] {
        engine.destroy(one.id()).await.unwrap();
    }
    assert_eq!(subvolumes(&pool.path()), before, "a subvolume is left");
    engine.close().await;
}
