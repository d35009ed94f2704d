//! Views that come, change and go while a sandbox runs.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
};

use cabana_sandbox::{Code, Found, Lifetime, Provider, SandboxId, SandboxSpec, Source, Status, View, VolumeId, Wanted};

use crate::{
    inside::{Inside, passing, path, shell},
    stage,
};

fn directory(content: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("note"), content).unwrap();
    chown(dir.path(), Some(4321), Some(1234)).unwrap();
    dir
}

fn view(source: impl Into<PathBuf>, at: &str, writable: bool) -> View {
    View { source: Source::Host(source.into()), at: path(at), writable }
}

async fn update(inside: &Inside, views: &[View]) -> Result<(), Code> {
    inside.sandbox.update(Wanted::Views(views.to_vec())).await.map_err(|error| error.code())
}

/// Where a sandbox has something mounted that is not every sandbox's own.
async fn seen(inside: &Inside) -> String {
    let script =
        "awk '{print $5}' /proc/self/mountinfo | grep -v -e '^/$' -e ^/proc -e ^/dev -e '^/usr$' | sort | xargs";
    inside.root(script).await.ok()
}

#[tokio::test]
async fn views_of_the_host_come_change_and_go() {
    let (one, two) = (directory("one"), directory("two"));
    let inside = Inside::new().await;
    assert_eq!(seen(&inside).await, "");
    update(&inside, &[view(one.path(), "/workspace/a", true), view(two.path(), "/srv/new/b", false)]).await.unwrap();
    assert_eq!(inside.user("cat /workspace/a/note /srv/new/b/note").await.ok(), "onetwo");
    inside.user("echo mine > /workspace/a/mine && stat -c %U /workspace/a/mine").await.ok();
    inside.root("echo x > /srv/new/b/x").await.refused();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&fs::metadata(one.path().join("mine")).unwrap()), 4321);
    update(&inside, &[view(two.path(), "/workspace/a", true)]).await.unwrap();
    assert_eq!(inside.user("cat /workspace/a/note && echo y > /workspace/a/y; ls /srv/new/b").await.ok(), "two");
    assert_eq!(seen(&inside).await, "/workspace/a");
    let file = [view(one.path().join("note"), "/workspace/file", false), view(one.path(), "/workspace/a", false)];
    update(&inside, &file).await.unwrap();
    assert_eq!(inside.user("cat /workspace/file /workspace/a/note").await.ok(), "oneone");
    inside.root("echo x > /workspace/a/x").await.refused();
    update(&inside, &[]).await.unwrap();
    assert_eq!(seen(&inside).await, "");
    assert_eq!(inside.user("cat /workspace/file; ls /workspace/a").await.ok(), "");
    inside.end().await;
    assert!(fs::read_to_string("/proc/self/mountinfo").unwrap().lines().all(|line| !line.contains("/workspace/")));
}

#[tokio::test]
async fn views_inside_of_views_are_seen_in_whatever_order_they_are_named() {
    let (outer, inner) = (directory("outer"), directory("inner"));
    let both = [view(inner.path(), "/w/skills/one", true), view(outer.path(), "/w", true)];
    let inside = Inside::with(SandboxSpec { views: both.to_vec(), ..passing() }).await;
    assert_eq!(inside.user("cat /w/note /w/skills/one/note").await.ok(), "outerinner");
    let made = fs::metadata(outer.path().join("skills")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&made), 4321, "it is its owner's");
    update(&inside, &[]).await.unwrap();
    update(&inside, &both[..1]).await.unwrap();
    assert_eq!(inside.user("cat /w/skills/one/note; ls /w").await.ok(), "innerskills");
    // The outer one comes over it, and it is seen all the same.
    update(&inside, &both).await.unwrap();
    assert_eq!(inside.user("cat /w/note /w/skills/one/note").await.ok(), "outerinner");
    assert_eq!(seen(&inside).await, "/w /w/skills/one");
    let other = view(outer.path(), "/w", false);
    update(&inside, &[other.clone(), both[0].clone()]).await.unwrap();
    inside.user("echo x > /w/x").await.refused();
    inside.user("echo x > /w/skills/one/x").await.ok();
    // A place is made as the owner of what is around it would, and by that one's rights.
    fs::set_permissions(outer.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let closed = [both[1].clone(), view(inner.path(), "/w/closed", true)];
    assert_eq!(update(&inside, &closed).await, Err(Code::BadRequest));
    fs::set_permissions(outer.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // No place for it in what cannot be written to, and nothing is changed.
    let new = view(inner.path(), "/w/elsewhere", true);
    assert_eq!(update(&inside, &[other, new]).await, Err(Code::BadRequest));
    assert_eq!(seen(&inside).await, "/w /w/skills/one");
    inside.end().await;
}

#[tokio::test]
async fn taking_a_view_away_ends_the_processes_that_use_it_and_no_others() {
    let dir = directory("kept");
    let inside = Inside::with(SandboxSpec { views: vec![view(dir.path(), "/workspace/a", true)], ..passing() }).await;
    let stays = |place: &str, name: &str| {
        format!("cd {place} && touch /tmp/{name} && while [ ! -e /tmp/gone ]; do sleep 0.05; done; echo went on")
    };
    let takes_away = async {
        while inside.user("test -e /tmp/uses && test -e /tmp/beside").await.status != Status::Code(0) {}
        update(&inside, &[]).await.unwrap();
        assert_eq!(inside.user("ls /workspace/a; touch /tmp/gone").await.ok(), "");
    };
    let (uses, beside) = (stays("/workspace/a", "uses"), stays("/workspace", "beside"));
    let (uses, beside, ()) =
        tokio::join!(shell(&*inside.sandbox, "user", &uses), shell(&*inside.sandbox, "user", &beside), takes_away);
    assert_eq!(uses.status, Status::Signal(9));
    assert_eq!(beside.ok(), "went on");
    inside.end().await;
}

#[tokio::test]
async fn changing_views_leaves_what_can_be_written_on_a_read_only_root() {
    let dir = directory("seen");
    let inside = Inside::with(SandboxSpec { read_only_root: true, ..passing() }).await;
    let writes = "echo x > /tmp/x && echo x > /workspace/x && echo x > /var/tmp/x";
    let script = "cd /tmp && touch begun && while [ ! -e over ]; do sleep 0.05; done; echo went on";
    let changes = async {
        while inside.user("test -e /tmp/begun").await.status != Status::Code(0) {}
        update(&inside, &[view(dir.path(), "/workspace/a", true)]).await.unwrap();
        assert_eq!(inside.user(&format!("{writes} && cat /workspace/a/note")).await.ok(), "seen");
        update(&inside, &[]).await.unwrap();
        inside.user(writes).await.ok();
        inside.root("echo x > /etc/x").await.refused();
        inside.user("touch /tmp/over").await.ok();
    };
    let (ran, ()) = tokio::join!(shell(&*inside.sandbox, "user", script), changes);
    assert_eq!(ran.ok(), "went on", "nobody is ended in what stays");
    inside.end().await;
}

#[tokio::test]
async fn late_views_outlive_stops_and_servers() {
    let dir = directory("late");
    let (engine, id) = (stage::engine().await, SandboxId::random());
    let spec = SandboxSpec { lifetime: Lifetime::Persistent, ..passing() };
    let sandbox = engine.create(&id, &spec).await.unwrap();
    sandbox.update(Wanted::Views(vec![view(dir.path(), "/workspace/a", false)])).await.unwrap();
    engine.stop(&id).await.unwrap();
    let sandbox = engine.start(&id).await.unwrap();
    assert_eq!(shell(&*sandbox, "user", "cat /workspace/a/note").await.ok(), "late");
    engine.leave().await;
    let engine = stage::engine().await;
    let Found::Running(sandbox) = engine.attach(&id).await.unwrap() else { panic!("it runs") };
    assert_eq!(shell(&*sandbox, "user", "cat /workspace/a/note").await.ok(), "late");
    // Of a paused one, too; it stays paused.
    engine.pause(&id).await.unwrap();
    sandbox.update(Wanted::Views(Vec::new())).await.unwrap();
    assert!(matches!(engine.attach(&id).await.unwrap(), Found::Paused(_)));
    let sandbox = engine.start(&id).await.unwrap();
    assert_eq!(shell(&*sandbox, "user", "ls /workspace/a").await.ok(), "");
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

#[tokio::test]
async fn what_cannot_be_shown_changes_nothing() {
    let dir = directory("good");
    let good = view(dir.path(), "/workspace/a", true);
    let inside = Inside::with(SandboxSpec { views: vec![good.clone()], ..passing() }).await;
    let link = dir.path().join("link");
    symlink(dir.path(), &link).unwrap();
    let absent = View { source: Source::Volume(VolumeId::now()), ..view("/x", "/workspace/b", true) };
    for (bad, code) in [
        (view("/etc", "/workspace/b", false), Code::BadRequest),
        (view("/", "/workspace/b", false), Code::BadRequest),
        (view(stage::shared_data(), "/workspace/b", false), Code::BadRequest),
        (view(&link, "/workspace/b", false), Code::BadRequest),
        (view(dir.path().join("absent"), "/workspace/b", false), Code::BadRequest),
        (view(dir.path(), "/proc/b", false), Code::BadRequest),
        (view(dir.path(), "/", false), Code::BadRequest),
        (view(dir.path(), "/workspace/a", false), Code::BadRequest),
        (absent, Code::VolumeNotFound),
    ] {
        assert_eq!(update(&inside, &[good.clone(), bad.clone()]).await, Err(code), "{bad:?}");
    }
    let many: Vec<_> = (0..60).map(|n| view(dir.path(), &format!("/workspace/{n}"), false)).collect();
    assert_eq!(update(&inside, &many).await, Err(Code::BadRequest));
    assert_eq!(seen(&inside).await, "/workspace/a");
    assert_eq!(inside.user("cat /workspace/a/note").await.ok(), "good");
    inside.end().await;
}

#[tokio::test]
async fn a_guest_cannot_lead_a_view_to_where_it_must_not_be_nor_hide_it() {
    let (one, two) = (directory("one"), directory("two"));
    let inside = Inside::new().await;
    // A place that the guest made a link.
    inside
        .root("ln -s /proc /workspace/proc && ln -s /dev/shm /workspace/shm && ln -s /proc/self/root /workspace/r")
        .await
        .ok();
    inside.root("ln -s / /workspace/top && ln -s ../usr /workspace/programs").await.ok();
    for at in [
        "/workspace/proc/x",
        "/workspace/proc",
        "/workspace/proc/sys",
        "/workspace/shm",
        "/workspace/r/dev",
        "/workspace/top",
        "/workspace/top/usr",
        "/workspace/programs",
    ] {
        assert_eq!(update(&inside, &[view(one.path(), at, true)]).await, Err(Code::BadRequest), "{at}");
    }
    assert_eq!(seen(&inside).await, "");
    // A view is moved, with the directories around it, to where no path is short enough; it is taken away all the same.
    update(&inside, &[view(one.path(), "/workspace/a/b/seen", true)]).await.unwrap();
    let script = "import os
os.chdir('/workspace')
os.rename('a', 'here')
for _ in range(40):
    os.mkdir('new')
    os.rename('here', 'new/' + 'n' * 200)
    os.rename('new', 'here')
print('moved')";
    assert_eq!(inside.python("root", script).await.ok(), "moved");
    update(&inside, &[view(two.path(), "/workspace/c", true)]).await.unwrap();
    assert_eq!(inside.root("grep -c seen /proc/self/mountinfo || true").await.ok(), "0");
    assert_eq!(seen(&inside).await, "/workspace/c");
    // Two views change places: each is known by what it shows.
    let swapped = [view(one.path(), "/workspace/x/v", true), view(two.path(), "/workspace/y/v", true)];
    update(&inside, &swapped).await.unwrap();
    inside.root("cd /workspace && mv x z && mv y x && mv z y").await.ok();
    assert_eq!(inside.root("cat /workspace/x/v/note").await.ok(), "two");
    update(&inside, &swapped[..1]).await.unwrap();
    assert_eq!(inside.root("cat /workspace/x/v/note; ls /workspace/y/v").await.ok(), "one");
    inside.end().await;
}

#[tokio::test]
async fn a_volume_is_removed_when_its_last_sandbox_let_go() {
    let engine = stage::engine().await;
    let volume = VolumeId::now();
    engine.make_volume(volume).await.unwrap();
    let seen = View { source: Source::Volume(volume), ..view("/x", "/workspace/v", true) };
    let sandbox = engine.create(&SandboxId::random(), &SandboxSpec { views: vec![seen], ..passing() }).await.unwrap();
    shell(&*sandbox, "user", "mkdir -p /workspace/v/deep/er && echo x > /workspace/v/deep/er/file").await.ok();
    assert!(engine.volume_usage(volume).await.unwrap() > 0);
    assert_eq!(engine.remove_volume(volume).await.unwrap_err().code(), Code::VolumeInUse);
    sandbox.update(Wanted::Views(Vec::new())).await.unwrap();
    engine.remove_volume(volume).await.unwrap();
    let left = stage::shared_data().join("volumes").join(volume.to_string());
    assert!(!Path::new(&left).exists());
    // A mark that a sudden end left behind keeps nothing.
    engine.make_volume(volume).await.unwrap();
    fs::write(left.join("used").join(SandboxId::random().as_str()), "").unwrap();
    engine.remove_volume(volume).await.unwrap();
    assert!(!left.exists());
    engine.destroy(sandbox.id()).await.unwrap();
    engine.close().await;
}
