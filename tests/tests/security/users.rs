//! One user of a sandbox against another: root of it is no wall to the host, but what its user runs is not yet root.

use cabana_sandbox::{Alter, Event, ExecSpec, Process, WriteMode, write_all};
use futures_util::{StreamExt, stream};

use crate::{
    attacks::{PEER, PRLIMIT, SIGNALS},
    inside::{Inside, named, path},
};

/// A process of this user that sleeps, and its pid inside.
async fn sleeping(inside: &Inside, user: &str) -> (Process, String) {
    let spec = ExecSpec { user: Some(named(user)), ..ExecSpec::shell("echo up; exec sleep 300", path("/")) };
    let mut process = inside.sandbox.exec(spec).await.unwrap();
    assert!(matches!(process.events.next().await, Some(Ok(Event::Output(_)))));
    let pid = process.pid.expect("a pid").to_string();
    (process, pid)
}

#[tokio::test]
async fn memory_and_descriptors_of_a_process_of_root() {
    let inside = Inside::new().await;
    let (_own, own) = sleeping(&inside, "user").await;
    let (_roots, roots) = sleeping(&inside, "root").await;
    let control = inside.attack("user", &PEER, &[&own]).await.report();
    for what in ["opening mem to write", "opening environ", "listing fd", "tracing it", "taking its descriptor"] {
        assert_eq!(control.of(what), "done", "of its own: {what}");
    }
    inside.attack("user", &PEER, &[&roots]).await.report().nothing_done();
    inside.end().await;
}

#[tokio::test]
async fn signals_and_limits_of_a_process_of_root() {
    let inside = Inside::new().await;
    let (_own, own) = sleeping(&inside, "user").await;
    let (_roots, roots) = sleeping(&inside, "root").await;
    let control = inside.attack("user", &SIGNALS, &[&own]).await.report();
    for what in ["kill", "tgkill", "limits"] {
        assert_eq!(control.of(what), "done", "of its own: {what}");
    }
    let report = inside.attack("user", &SIGNALS, &[&roots]).await.report();
    for what in ["kill", "tgkill", "tkill", "queue", "limits"] {
        assert_ne!(report.of(what), "done", "{what}");
    }
    inside.attack("user", &PRLIMIT, &[&roots]).await.report().nothing_done();
    inside.attack("user", &PRLIMIT, &[&own]).await.report().all_done();
    inside.end().await;
}

#[tokio::test]
async fn files_of_root_inside() {
    let inside = Inside::new().await;
    inside.root("echo secret > /root/secret && echo plain > /srv/plain && chmod 600 /root/secret").await.ok();
    for way in [
        "cat /root/secret",
        "ls /root",
        "echo x > /srv/plain",
        "rm -f /srv/plain",
        "mv /srv/plain /tmp",
        "ln /root/secret /tmp/hard",
        "chmod 777 /srv/plain",
        "chown user /srv/plain",
        "touch /usr/bin/new",
        "echo x >> /etc/passwd",
        "setfattr -n user.x -v y /srv/plain",
        "truncate -s 0 /srv/plain",
        "cat /etc/shadow",
    ] {
        inside.user(way).await.refused();
    }
    assert_eq!(
        inside.root("cat /root/secret && cat /srv/plain && rm /srv/plain").await.ok(),
        "secret\nplain",
        "root may"
    );
    inside.end().await;
}

#[tokio::test]
async fn files_of_root_through_the_servers_hands() {
    let inside = Inside::new().await;
    inside.root("echo secret > /root/secret && chmod 700 /root && echo plain > /srv/plain").await.ok();
    let files = inside.files("user");
    assert_eq!(inside.read("user", "/root/secret").await, None);
    assert!(files.list(&path("/root")).await.is_err());
    for alter in [
        Alter::Remove(path("/srv/plain")),
        Alter::Rename(path("/srv/plain"), path("/tmp/plain")),
        Alter::SetMode(path("/srv/plain"), 0o777),
        Alter::MakeDir(path("/srv/made"), 0o777),
        Alter::Symlink { at: path("/srv/link"), text: b"/tmp".to_vec() },
        Alter::RemoveAll(path("/srv")),
    ] {
        let what = format!("{alter:?}");
        assert!(files.alter(alter).await.is_err(), "{what}");
    }
    for mode in [WriteMode::Replace, WriteMode::InPlace, WriteMode::Append, WriteMode::CreateNew] {
        for name in ["/srv/plain", "/srv/new", "/etc/passwd", "/root/new"] {
            let body = stream::once(async { Ok("x".into()) }).boxed();
            let written = files.write(&path(name), cabana_sandbox::Write::new(mode), body).await;
            assert!(written.is_err(), "{name} ({mode:?})");
        }
    }
    let root = inside.files("root");
    assert_eq!(inside.read("root", "/root/secret").await.unwrap(), b"secret\n", "root may");
    write_all(&*root, &path("/srv/plain"), "changed").await.unwrap();
    root.alter(Alter::Remove(path("/srv/plain"))).await.unwrap();
    inside.end().await;
}

/// Names in a directory that all may write to: what lies there of somebody else stays.
#[tokio::test]
async fn names_of_root_in_tmp() {
    let inside = Inside::new().await;
    inside.root("echo mine > /tmp/mine && mkdir /tmp/dir && touch /tmp/dir/below").await.ok();
    for way in [
        "rm -f /tmp/mine",
        "mv /tmp/mine /tmp/other",
        "rm -rf /tmp/dir",
        "mv /tmp/dir /tmp/taken",
        "ln -sf /etc/passwd /tmp/mine",
    ] {
        inside.user(way).await.refused();
    }
    let files = inside.files("user");
    assert!(files.alter(Alter::Remove(path("/tmp/mine"))).await.is_err());
    assert!(files.alter(Alter::Rename(path("/tmp/mine"), path("/tmp/other"))).await.is_err());
    assert!(write_all(&*files, &path("/tmp/mine"), "theirs").await.is_err());
    inside.user("touch /tmp/own && mv /tmp/own /tmp/moved && rm /tmp/moved").await.ok(); // its own it may
    assert_eq!(inside.root("cat /tmp/mine && rm /tmp/mine && rm -r /tmp/dir").await.ok(), "mine");
    inside.end().await;
}

/// A shell of root that is left open to the user by what it inherits: its groups, its umask, its directory.
#[tokio::test]
async fn rights_that_a_command_of_the_user_has_left_from_init() {
    let inside = Inside::new().await;
    let look = "id -u; id -G; grep -E '^(Cap(Inh|Prm|Eff|Amb)|Groups|Uid|Gid)' /proc/self/status";
    let user = inside.user(look).await.ok();
    for line in user.lines().filter(|line| line.starts_with("Cap")) {
        assert!(line.ends_with("0000000000000000"), "{line}");
    }
    assert!(user.contains("Uid:\t1000\t1000\t1000\t1000") && user.contains("Gid:\t1000\t1000\t1000\t1000"), "{user}");
    let groups = user.lines().nth(1).unwrap_or_default();
    assert!(groups.split(' ').all(|group| group != "0"), "it is in no group of root's: {groups}");
    let root = inside.root(look).await.ok();
    assert!(root.contains("CapEff:\t00000000a00404fb") && root.contains("Uid:\t0\t0\t0\t0"), "root has them: {root}");
    inside.end().await;
}
