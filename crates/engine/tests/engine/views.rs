//! Directories and files of the host, shown inside.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
};

use cabana_engine::{Engine, TemplateSource};
use cabana_sandbox::{Alter, Base, Code, Found, Overrides, Provider, SandboxId, SandboxSpec, Source, View, write_all};

use crate::{
    inside::{Inside, named, passing, path, shell, tiny_root},
    stage,
};

/// Somebody on the host, and the group of that one: two numbers, as they mostly are.
const OWNER: (u32, u32) = (4321, 1234);

/// A directory of the host that belongs to somebody.
fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("note"), "from the host\n").unwrap();
    for path in [dir.path().to_owned(), dir.path().join("note")] {
        chown(path, Some(OWNER.0), Some(OWNER.1)).unwrap();
    }
    dir
}

fn view(source: impl Into<PathBuf>, at: &str, writable: bool) -> View {
    View { source: Source::Host(source.into()), at: path(at), writable }
}

async fn with(views: Vec<View>) -> Inside {
    Inside::with(SandboxSpec { views, ..passing() }).await
}

#[tokio::test]
async fn a_read_only_view_can_be_read_and_not_written() {
    let dir = directory();
    let inside = with(vec![view(dir.path(), "/workspace/seen", false)]).await;
    assert_eq!(inside.user("cat /workspace/seen/note").await.ok(), "from the host");
    for script in ["echo x > /workspace/seen/new", "rm /workspace/seen/note", "chmod 777 /workspace/seen/note"] {
        inside.user(script).await.refused();
        inside.root(script).await.refused();
    }
    inside.root("mount -o remount,rw,bind /workspace/seen").await.refused();
    let write = write_all(&*inside.files("user"), &path("/workspace/seen/new"), "x").await;
    assert!(write.is_err());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    fs::write(dir.path().join("note"), "changed outside\n").unwrap();
    assert_eq!(inside.user("cat /workspace/seen/note").await.ok(), "changed outside");
    inside.end().await;
}

#[tokio::test]
async fn what_is_written_to_a_view_belongs_to_the_owner_of_the_hosts_directory() {
    let dir = directory();
    let inside = with(vec![view(dir.path(), "/workspace/mine", true)]).await;
    let script =
        "cd /workspace/mine && stat -c %U . note && echo inside > new && mkdir -p sub && echo more >> note && cat note";
    assert_eq!(inside.user(script).await.ok(), "user\nuser\nfrom the host\nmore");
    write_all(&*inside.files("user"), &path("/workspace/mine/written"), "x").await.unwrap();
    for name in ["new", "sub", "written", "note"] {
        let meta = fs::symlink_metadata(dir.path().join(name)).unwrap();
        assert_eq!(meta.uid(), OWNER.0, "{name}");
    }
    assert_eq!(fs::read_to_string(dir.path().join("new")).unwrap(), "inside\n");
    inside.end().await;
}

#[tokio::test]
async fn what_is_written_to_a_view_has_the_group_of_the_hosts_directory() {
    let dir = directory();
    let inside = with(vec![view(dir.path(), "/workspace/mine", true)]).await;
    assert_eq!(inside.user("stat -c %G /workspace/mine && echo inside > /workspace/mine/new").await.ok(), "user");
    assert_eq!(fs::metadata(dir.path().join("new")).unwrap().gid(), OWNER.1);
    inside.end().await;
}

#[tokio::test]
async fn files_of_others_in_a_view_are_nobodys() {
    let dir = directory();
    let secret = dir.path().join("of root");
    fs::write(&secret, "secret").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let inside = with(vec![view(dir.path(), "/workspace/mine", true)]).await;
    assert_eq!(inside.root("stat -c %u '/workspace/mine/of root'").await.ok(), "65534");
    for script in
        ["cat '/workspace/mine/of root'", "chown user '/workspace/mine/of root'", "chmod 644 '/workspace/mine/of root'"]
    {
        inside.user(script).await.refused();
        inside.root(script).await.refused();
    }
    for user in ["user", "root"] {
        let (files, at) = (inside.files(user), path("/workspace/mine/of root"));
        let read = files.read(&at, cabana_sandbox::Read::default()).await.map(drop);
        assert_eq!(read.unwrap_err().code(), Code::PermissionDenied, "as {user}");
        assert!(files.alter(Alter::SetMode(at.clone(), 0o644)).await.is_err());
        assert!(files.alter(Alter::SetOwner(at.clone(), named("user"))).await.is_err());
    }
    let meta = fs::metadata(&secret).unwrap();
    assert_eq!((meta.mode() & 0o777, meta.uid()), (0o600, 0));
    inside.end().await;
}

#[tokio::test]
async fn a_setuid_bit_in_a_view_gains_nothing() {
    let dir = directory();
    let ids = [(0, "of-root"), (OWNER.0, "of-owner")].map(|(owner, name)| {
        let program = dir.path().join(name);
        fs::copy("/usr/bin/id", &program).unwrap();
        chown(&program, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o6755)).unwrap();
        name
    });
    // With sudo, so that only the mount stands in the way.
    let spec = SandboxSpec { sudo: true, views: vec![view(dir.path(), "/workspace/mine", true)], ..passing() };
    let inside = Inside::with(spec).await;
    for name in ids {
        assert_eq!(inside.user(&format!("/workspace/mine/{name} -u")).await.ok(), "1000", "{name}");
    }
    assert_eq!(inside.root("/workspace/mine/of-owner -u").await.ok(), "0");
    inside.user("cp /usr/bin/id /workspace/mine/id").await.ok();
    inside.user("chmod 6755 /workspace/mine/id").await.refused();
    inside.end().await;
}

#[tokio::test]
async fn a_device_in_a_view_does_not_work() {
    use rustix::fs::{CWD, FileType, makedev, mknodat};
    let dir = directory();
    let device = dir.path().join("zero");
    mknodat(CWD, &device, FileType::CharacterDevice, 0o666.into(), makedev(1, 5)).unwrap();
    fs::set_permissions(&device, fs::Permissions::from_mode(0o666)).unwrap();
    let inside = with(vec![view(dir.path(), "/workspace/mine", true)]).await;
    for user in ["user", "root"] {
        let said = shell(&*inside.sandbox, user, "head -c 1 /workspace/mine/zero | wc -c; exit ${PIPESTATUS[0]}")
            .await
            .refused();
        assert!(said.contains("Permission denied"), "{said}");
    }
    let read = inside.files("root").read(&path("/workspace/mine/zero"), cabana_sandbox::Read::default()).await;
    assert_eq!(read.err().map(|error| error.code()), Some(Code::NotRegular));
    inside.end().await;
}

#[tokio::test]
async fn a_single_file_is_a_view_too() {
    let dir = directory();
    let note = dir.path().join("note");
    let views = vec![view(&note, "/workspace/read", false), view(&note, "/workspace/written", true)];
    let inside = with(views).await;
    assert_eq!(inside.user("cat /workspace/read").await.ok(), "from the host");
    inside.user("echo x >> /workspace/read").await.refused();
    inside.user("echo more >> /workspace/written").await.ok();
    assert_eq!(fs::read_to_string(&note).unwrap(), "from the host\nmore\n");
    inside.root("ls /workspace/read/..; cat /workspace/read/../note").await.refused();
    inside.end().await;
}

#[tokio::test]
async fn a_view_of_something_that_is_not_there_is_refused_and_nothing_is_made() {
    let dir = directory();
    let engine = stage::engine().await;
    let id = SandboxId::random();
    let views =
        vec![view(dir.path(), "/workspace/there", false), view(dir.path().join("absent"), "/workspace/absent", false)];
    let spec = SandboxSpec { views, ..SandboxSpec::new(Base::Host) };
    let error = engine.create(&id, &spec).await.err().expect("it is refused");
    assert_eq!(error.code(), Code::BadRequest);
    assert!(error.to_string().contains("absent"), "{error}");
    assert!(matches!(engine.attach(&id).await.unwrap(), Found::Absent));
    assert!(!stage::shared_data().join("sandboxes").join(id.as_str()).exists());
    engine.close().await;
}

#[tokio::test]
async fn the_place_of_a_view_is_made_when_it_is_not_there() {
    let dir = directory();
    let views = vec![view(dir.path(), "/a/b/c d/e", true), view(dir.path().join("note"), "/f/g/note", false)];
    let inside = with(views).await;
    assert_eq!(inside.user("cat '/a/b/c d/e/note' /f/g/note").await.ok(), "from the host\nfrom the host");
    assert_eq!(inside.root("stat -c '%U %a' /a /a/b /f/g").await.ok(), "root 755\nroot 755\nroot 755");
    inside.end().await;
}

#[tokio::test]
async fn a_view_stays_after_a_stop_and_a_start() {
    let dir = directory();
    let engine = stage::engine().await;
    let id = SandboxId::random();
    let spec = SandboxSpec { views: vec![view(dir.path(), "/workspace/seen", true)], ..SandboxSpec::new(Base::Host) };
    engine.create(&id, &spec).await.unwrap();
    engine.stop(&id).await.unwrap();
    let sandbox = engine.start(&id).await.unwrap();
    assert_eq!(shell(&*sandbox, "user", "cd /workspace/seen && touch again && cat note").await.ok(), "from the host");
    assert_eq!(fs::metadata(dir.path().join("again")).unwrap().uid(), OWNER.0);
    engine.destroy(&id).await.unwrap();
    assert!(dir.path().join("note").exists(), "what is seen is not removed with the sandbox");
    engine.close().await;
}

#[tokio::test]
async fn a_link_in_the_template_cannot_lead_a_view_out() {
    let (dir, work) = (directory(), tempfile::tempdir().unwrap());
    let outside = work.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let root = work.path().join("root");
    tiny_root(&root);
    symlink(&outside, root.join("absolute")).unwrap();
    let up = Path::new("../../../../../../../..").join(outside.strip_prefix("/").unwrap());
    symlink(up, root.join("relative")).unwrap();
    symlink("/proc/self/root", root.join("magic")).unwrap();
    let engine = Engine::open(stage::config(work.path().join("data"))).await.unwrap();
    engine.templates().add("links", &TemplateSource::Directory(root), &Overrides::default(), &mut |_| {}).unwrap();

    for at in ["/absolute/new", "/relative/new", "/magic/new", "/absolute", "/relative", "/magic"] {
        let id = SandboxId::random();
        let spec =
            SandboxSpec { views: vec![view(dir.path(), at, true)], ..SandboxSpec::new(Base::Named("links".into())) };
        match engine.create(&id, &spec).await {
            Ok(sandbox) => {
                let said = shell(&*sandbox, "user", &format!("cat {at}/note")).await;
                assert_eq!(said.ok(), "from the host", "{at}");
            }
            Err(_) => assert!(matches!(engine.attach(&id).await.unwrap(), Found::Absent), "{at}: something is left"),
        }
        engine.destroy(&id).await.unwrap();
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{at}: made outside");
    }
    engine.close().await;
}
