//! The server acts on a guest's files with more rights than the guest has: it must load, run, follow and change nothing for it.

use std::time::Duration;

use cabana_sandbox::{
    Alter, Base, Depth, Files, Provider, SandboxSpec, Search, SnapshotId, make_dirs, read_all, write_all,
};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::stage::Canary;
use crate::{
    archives::tar_of,
    attacks::GATE,
    inside::{Inside, named, path, soon, unique},
    soak_file_races::{end, rounds, swapping},
};

/// Everything that the server does with files, as this user.
async fn handle_files(inside: &Inside, user: &str) {
    let files = inside.files(user);
    let home = path("/home/user");
    write_all(&*files, &path("/home/user/handled"), "x").await.unwrap();
    read_all(&*files, &path("/home/user/handled"), 100).await.unwrap();
    files.stat(&path("/home/user/handled")).await.unwrap();
    files.list(&home).await.unwrap().try_collect::<Vec<_>>().await.unwrap();
    let tar = tar_of(&[("unpacked", "x")]);
    files.unpack(&home, stream::once(async move { Ok(tar.into()) }).boxed()).await.unwrap();
    files.pack(&home).await.unwrap().filter_map(|part| async { part.ok() }).count().await;
    let what = Search {
        root: home.clone(),
        globs: vec!["*".into()],
        grep: Some("x".into()),
        ignore_files: true,
        max_hits: 10,
        budget: Duration::from_secs(5),
    };
    files.search(what).await.unwrap().filter_map(|part| async { part.ok() }).count().await;
    files.alter(Alter::SetOwner(path("/home/user/handled"), named("user"))).await.unwrap();
    files.alter(Alter::Remove(path("/home/user/handled"))).await.unwrap();
    inside.sandbox.usage().await.unwrap();
    inside.sandbox.processes().await.unwrap();
}

/// CVE-2019-14271: a process of the host that looks up users in a container's root loads the libraries of that container.
#[tokio::test]
async fn server_loads_no_library_of_a_guest() {
    let inside = Inside::new().await;
    let library = inside.bring(&GATE).await.remove(0);
    let plant = format!(
        "for place in /lib /usr/lib /lib/$(uname -m)-linux-gnu /usr/lib/$(uname -m)-linux-gnu; do mkdir -p $place; \
           for name in libnss_gate.so.2 libnss_files.so.2 libnss_compat.so.2; do cp {library} $place/$name; done; done; \
         printf 'passwd: gate files\\ngroup: gate files\\nhosts: gate files\\n' > /etc/nsswitch.conf"
    );
    inside.root(&plant).await.ok();
    let looked_up = inside.user("getent passwd nobody-of-this-name; true").await.out;
    assert!(looked_up.contains("runs "), "a program inside loads it: {looked_up}");
    for user in ["root", "user"] {
        handle_files(&inside, user).await;
    }
    let ours = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(ours.contains("libc.so"), "the server has libraries");
    assert!(!ours.contains("libnss_gate") && !ours.contains("/gate"), "{ours}");
    inside.end().await;
}

/// CVE-2026-41567, CVE-2022-1227: to unpack, to list or to look, a tool of the guest's was run by the host.
#[tokio::test]
async fn server_executes_no_binary_of_a_guest() {
    let inside = Inside::with(SandboxSpec::new(Base::Host)).await;
    let mark = format!("/tmp/{}", unique("ran"));
    let tools = "tar gzip gunzip unpigz pigz xz unxz zstd unzstd bzip2 lz4 git ps top nsenter mount umount cp mv rm ls cat chown \
        chmod find du df id getent groups stat touch mkdir ln readlink bash";
    let plant = format!(
        "printf '#!/bin/sh\\necho $0 >> {mark}\\n' > /srv/tool && chmod 755 /srv/tool && \
         for tool in {tools}; do for dir in /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin; do \
         [ $dir = /usr/bin -o $dir = /usr/sbin ] && [ ! -e $dir/$tool ] || install -m 755 /srv/tool $dir/$tool; done; done"
    );
    let _ = inside.root(&plant).await; // it replaces its own tools while it runs
    inside.command("user", cabana_sandbox::ExecSpec::argv(["tar", "--version"], path("/"))).await.ok();
    let ran = inside.read("root", &mark).await.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(ran.is_some_and(|ran| ran.contains("tar")), "a command inside runs it");
    inside.files("root").alter(Alter::Remove(path(&mark))).await.unwrap();
    for user in ["root", "user"] {
        handle_files(&inside, user).await;
    }
    let Base::Snapshot(name) = inside.engine.snapshot(inside.sandbox.id(), SnapshotId::now()).await.unwrap() else {
        panic!("a snapshot has a name")
    };
    inside.engine.snapshots().rm(name).unwrap();
    assert_eq!(inside.read("root", &mark).await, None, "a tool was run inside");
    assert!(!std::path::Path::new(&mark).exists(), "a tool was run on the host");
    inside.end().await;
}

/// CVE-2021-41089, CVE-2024-28189: what is changed through a link is what it leads to inside.
#[tokio::test]
async fn chmod_and_chown_follow_symlinks_only_inside() {
    let canary = Canary::new();
    let (dir, file) = (canary.dir(), canary.file());
    let inside = Inside::new().await;
    let make = format!(
        "mkdir -p {dir} && echo mine > {file} && ln -s {file} /home/user/l && ln -s {dir} /home/user/d && \
        ln -s ../../../../../../..{file} /home/user/up && ln -s /proc/self/root{file} /home/user/door"
    );
    inside.root(&make).await.ok();
    let files = inside.files("root");
    for at in ["/home/user/l", "/home/user/d/f", "/home/user/up", "/home/user/door"] {
        let _ = files.alter(Alter::SetMode(path(at), 0o6710)).await;
        let _ = files.alter(Alter::SetOwner(path(at), named("nobody"))).await;
        let _ = files.alter(Alter::SetTags(path(at), [("tag".into(), "set".into())].into())).await;
        canary.is_untouched(at);
    }
    assert_eq!(
        inside.root(&format!("stat -c '%u' {file}")).await.ok(),
        "65534",
        "what the link leads to inside was given away"
    );
    let _ = files.alter(Alter::SetMode(path("/home/user/d"), 0o700)).await;
    assert_eq!(inside.root(&format!("stat -c '%a' {dir}")).await.ok(), "700");
    canary.is_untouched("the directory");
    inside.end().await;
}

/// Whether a write through the link went to where it leads inside: then the race was run.
async fn went_through(files: &dyn Files, place: &str) -> bool {
    files.stat(&path(place)).await.is_ok()
}

/// CVE-2018-15687, CVE-2015-1340: between two looks at a path a link was put there.
#[tokio::test(flavor = "multi_thread")]
async fn chmod_and_chown_survive_a_symlink_exchange_race() {
    let canary = Canary::new();
    let (dir, file) = (canary.dir(), canary.file());
    let inside = Inside::new().await;
    inside.root(&format!("mkdir -p {dir} && chmod 777 {dir} && touch {file} && chmod 666 {file}")).await.ok();
    let swap = swapping(&inside, dir).await;
    let files = inside.files("root");
    let mut through = 0;
    for round in 0..rounds(150) {
        let _ = files.alter(Alter::SetMode(path("/home/user/d/f"), 0o600 + round % 8)).await;
        let _ = files.alter(Alter::SetOwner(path("/home/user/d/f"), named("nobody"))).await;
        let _ = files.alter(Alter::SetTags(path("/home/user/d"), [("round".into(), round.to_string())].into())).await;
        through += u32::from(files.stat(&path(&file)).await.is_ok_and(|info| info.owner == "nobody"));
    }
    assert!(through > 0, "nothing ever went through the link: the race was not run");
    canary.is_untouched("the host's");
    end(inside, swap).await;
}

/// CVE-2026-41568: empty files and directories were made on the host.
#[tokio::test(flavor = "multi_thread")]
async fn mkdir_and_symlink_survive_a_symlink_exchange_race() {
    let canary = Canary::new();
    let dir = canary.dir();
    let inside = Inside::new().await;
    inside.root(&format!("mkdir -p {dir} && chmod 777 {dir}")).await.ok();
    let swap = swapping(&inside, dir).await;
    let files = inside.files("user");
    let mut through = 0;
    for round in 0..rounds(150) {
        let name = |kind: &str| path(&format!("/home/user/d/{kind}{round}"));
        let _ = files.alter(Alter::MakeDir(name("dir"), 0o755)).await;
        let _ = make_dirs(&*files, &path(&format!("/home/user/d/deep{round}/deeper/deepest"))).await;
        let _ = files.alter(Alter::Symlink { at: name("link"), text: b"/etc/shadow".to_vec() }).await;
        let _ = write_all(&*files, &name("file"), "x").await;
        let _ = files.alter(Alter::Rename(name("file"), name("moved"))).await;
        through += u32::from(went_through(&*files, &format!("{dir}/dir{round}")).await);
    }
    assert!(through > 0, "nothing ever went through the link: the race was not run");
    canary.is_untouched("the host's");
    end(inside, swap).await;
}

/// CVE-2018-16359: a helper that renames for the guest.
#[tokio::test]
async fn rename_cannot_cross_the_sandbox_root() {
    let canary = Canary::new();
    let (dir, file) = (canary.dir(), canary.file());
    let inside = Inside::new().await;
    let make = format!(
        "cd /home/user && echo mine > f && ln -s {dir} l && ln -s ../../../../../../..{dir} up && \
        ln -s /proc/self/root{dir} door && ln -s /proc/1/root{dir} one && ln -s /proc/self/cwd cwd"
    );
    inside.user(&make).await.ok();
    let doors = ["l", "up", "door", "one", "cwd"].map(|door| format!("/home/user/{door}"));
    for user in ["root", "user"] {
        let files = inside.files(user);
        for door in doors.iter().map(String::as_str).chain([dir, "/proc/self/root", "/proc/1/root", "/proc/self/fd"]) {
            let _ = files.alter(Alter::Rename(path("/home/user/f"), path(&format!("{door}/stolen")))).await;
            let _ = files.alter(Alter::Rename(path(&format!("{door}/f")), path("/home/user/taken"))).await;
            let _ = files.alter(Alter::Rename(path(&format!("{door}{file}")), path("/home/user/taken"))).await;
            assert_eq!(inside.read(user, "/home/user/taken").await, None, "{door} as {user}");
            canary.is_untouched(door);
        }
        files.alter(Alter::Rename(path("/home/user/f"), path("/home/user/g"))).await.unwrap();
        files.alter(Alter::Rename(path("/home/user/g"), path("/home/user/f"))).await.unwrap();
    }
    inside.end().await;
}

/// A watch is a descriptor on a directory, held by the server: through a link it must be one of the sandbox's.
#[tokio::test]
async fn watch_through_a_symlink_sees_nothing_of_the_host() {
    let canary = Canary::new();
    let dir = canary.dir();
    let inside = Inside::new().await;
    inside
        .user(&format!(
            "ln -s {dir} /home/user/l && ln -s /proc/self/root{dir} /home/user/door && mkdir /home/user/own"
        ))
        .await
        .ok();
    let files = inside.files("user");
    for link in ["/home/user/l", "/home/user/door"] {
        assert!(files.watch(&path(link), Depth::Here).await.is_err(), "{link} leads nowhere inside");
    }
    inside.user(&format!("mkdir -p {dir}")).await.ok();
    let mut events = files.watch(&path("/home/user/l"), Depth::Here).await.expect("now it leads somewhere");
    std::fs::write(format!("{dir}/of-the-host"), "x").unwrap();
    inside.user(&format!("touch {dir}/of-the-guest")).await.ok();
    let first = soon("an event", events.next()).await.expect("an event").unwrap();
    assert!(format!("{first:?}").contains("of-the-guest"), "{first:?}");
    inside.end().await;
}
