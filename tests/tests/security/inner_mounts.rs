//! Mounts of the machine below a directory that a sandbox has read-write: who removes or moves the directory under one takes the mount off.

use std::{
    fs,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::Command,
};

use cabana_sandbox::{Base, Code, Lifetime, Provider, SandboxId, SandboxSpec, Source, View, Wanted};

use crate::inside::{Inside, engine, passing, path};

const OWNER: u32 = 4321;

/// A directory of the host with a file system mounted below it.
struct Shared {
    dir: tempfile::TempDir,
}

impl Shared {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let shared = Self { dir };
        for name in ["disk", "moved", "plain"] {
            fs::create_dir(shared.at(name)).unwrap();
            chown(shared.at(name), Some(OWNER), Some(OWNER)).unwrap();
        }
        chown(shared.dir.path(), Some(OWNER), Some(OWNER)).unwrap();
        shared
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn mount(&self, name: &str) {
        host("mount", &["-t", "tmpfs", "-o", "size=1m", "none", self.at(name).to_str().unwrap()]);
        fs::write(self.at(name).join("data"), "important").unwrap();
    }

    fn view(&self, name: &str, writable: bool) -> View {
        View { source: Source::Host(self.at(name)), at: path("/workspace/shared"), writable }
    }

    fn whole(&self, writable: bool) -> View {
        View { source: Source::Host(self.dir.path().into()), ..self.view("", writable) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let places = is_mounted_below(self.dir.path());
        for place in places.iter().rev() {
            let _ = Command::new("umount").arg("--lazy").arg(place).status();
        }
    }
}

fn host(program: &str, arguments: &[&str]) {
    assert!(Command::new(program).args(arguments).status().unwrap().success(), "{program} {arguments:?}");
}

fn is_mounted_below(dir: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let places = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    places.filter(|place| place.starts_with(dir) && place != dir).collect()
}

fn showing(view: View) -> SandboxSpec {
    SandboxSpec { views: vec![view], ..passing() }
}

/// What would happen: a mount that comes after the check is taken off, and another is moved.
#[tokio::test]
async fn removing_and_moving_mount_points_of_the_host_in_a_view() {
    let shared = Shared::new();
    let inside = Inside::with(showing(shared.whole(true))).await;
    shared.mount("disk");
    shared.mount("moved");
    inside.user("cd /workspace/shared; rmdir disk; mv moved elsewhere").await.ok();
    assert_eq!(is_mounted_below(shared.dir.path()), [shared.at("elsewhere")], "nothing stops it by then");
    inside.end().await;
}

#[tokio::test]
async fn a_directory_with_mounts_below_it_is_not_shown_read_write() {
    let shared = Shared::new();
    shared.mount("disk");
    let engine = engine().await;
    let refused = engine.create(&SandboxId::random(), &showing(shared.whole(true))).await.err().unwrap();
    assert_eq!(refused.code(), Code::MountDenied, "{refused}");
    let told = refused.to_string();
    assert!(told.contains(shared.at("disk").to_str().unwrap()) && told.contains("read-only"), "{told}");
    // Neither to a sandbox that runs.
    let inside = Inside::of(engine, &passing()).await;
    let late = inside.sandbox.update(Wanted::Views(vec![shared.whole(true)])).await.unwrap_err();
    assert_eq!(late.code(), Code::MountDenied, "{late}");
    // What has nothing mounted below it may be, be it beside a mount or one itself.
    for name in ["plain", "disk"] {
        inside.sandbox.update(Wanted::Views(vec![shared.view(name, true)])).await.unwrap();
    }
    inside.end().await;
}

#[tokio::test]
async fn a_directory_shown_read_only_keeps_the_mounts_below_it() {
    let shared = Shared::new();
    shared.mount("disk");
    let inside = Inside::with(showing(shared.whole(false))).await;
    for attempt in ["rmdir disk", "mv disk elsewhere"] {
        let said = inside.root(&format!("cd /workspace/shared && {attempt}")).await.refused();
        assert!(said.contains("Read-only file system"), "{said}");
    }
    assert_eq!(is_mounted_below(shared.dir.path()), [shared.at("disk")]);
    assert_eq!(fs::read_to_string(shared.at("disk/data")).unwrap(), "important");
    inside.end().await;
}

/// The mount lies below another name of the same directory.
#[tokio::test]
async fn mounts_below_another_name_of_the_directory_count() {
    let shared = Shared::new();
    let (real, other) = (shared.at("plain"), shared.at("moved"));
    fs::create_dir(real.join("disk")).unwrap();
    host("mount", &["--bind", real.to_str().unwrap(), other.to_str().unwrap()]);
    host("mount", &["--make-private", other.to_str().unwrap()]);
    host("mount", &["-t", "tmpfs", "-o", "size=1m", "none", other.join("disk").to_str().unwrap()]);
    assert!(is_mounted_below(&real).is_empty(), "by its own name there is none");
    let engine = engine().await;
    let refused = engine.create(&SandboxId::random(), &showing(shared.view("plain", true))).await.err().unwrap();
    assert_eq!(refused.code(), Code::MountDenied, "{refused}");
    engine.close().await;
}

#[tokio::test]
async fn a_sandbox_does_not_start_again_with_mounts_below_what_it_may_write_to() {
    let shared = Shared::new();
    let spec = SandboxSpec { lifetime: Lifetime::Persistent, ..SandboxSpec::new(Base::Host) };
    let spec = SandboxSpec { views: vec![shared.whole(true)], ..spec };
    let inside = Inside::of(engine().await, &spec).await;
    let id = inside.sandbox.id().clone();
    inside.engine.stop(&id).await.unwrap();
    shared.mount("disk");
    let refused = inside.engine.start(&id).await.err().unwrap();
    assert_eq!(refused.code(), Code::MountDenied, "{refused}");
    host("umount", &[shared.at("disk").to_str().unwrap()]);
    let again = inside.engine.start(&id).await.unwrap();
    let inside = Inside { engine: inside.engine, sandbox: again };
    inside.still_works().await;
    inside.end().await;
}
