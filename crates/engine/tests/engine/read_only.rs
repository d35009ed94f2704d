//! A root that can only be read.

use cabana_sandbox::{Base, Lifetime, Provider, Sandbox, SandboxId, SandboxSpec, SnapshotId, Source, View, write_all};

use crate::{
    inside::{Inside, passing, path, shell},
    stage,
};

fn closed() -> SandboxSpec {
    SandboxSpec { read_only_root: true, ..passing() }
}

/// Neither by a command of root nor through the files.
async fn is_closed(sandbox: &dyn Sandbox) {
    for script in [
        "echo x > /new",
        "rm -f /etc/passwd",
        "echo x >> /etc/passwd",
        "chmod 777 /etc",
        "touch /usr/new",
        "rm -f /usr/bin/env",
        "mkdir /home/new",
        "ln -s /tmp /new",
        "mv /workspace /elsewhere",
        "mount -o remount,rw,bind /",
        "mount -o remount,rw,bind /usr",
        "mount -t tmpfs none /etc",
    ] {
        shell(sandbox, "root", script).await.refused();
    }
    for at in ["/new", "/etc/passwd", "/usr/new"] {
        assert!(write_all(&*sandbox.files(None), &path(at), "x").await.is_err(), "{at}");
    }
}

#[tokio::test]
async fn a_root_that_can_only_be_read_has_a_working_directory_that_can_be_written() {
    let inside = Inside::with(closed()).await;
    is_closed(&*inside.sandbox).await;
    for script in [
        "echo x > /workspace/file && cat /workspace/file",
        "echo x > /tmp/file && cat /tmp/file",
        "echo x > /var/tmp/file && cat /var/tmp/file",
        "echo x > /dev/shm/file && cat /dev/shm/file",
        "echo x > /dev/null; mkdir -p /workspace/a/b && mv /workspace/file /workspace/a/b && cat /workspace/a/b/file",
    ] {
        assert_eq!(inside.user(script).await.ok(), "x", "{script}");
    }
    write_all(&*inside.files("user"), &path("/workspace/by-files"), "x").await.unwrap();
    inside.end().await;
}

#[tokio::test]
async fn views_on_a_root_that_can_only_be_read_are_as_they_say() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("note"), "here\n").unwrap();
    let view = |at: &str, writable| View { source: Source::Host(dir.path().into()), at: path(at), writable };
    let views = vec![view("/workspace/mine", true), view("/mnt/theirs", false)];
    let inside = Inside::with(SandboxSpec { views, ..closed() }).await;
    assert_eq!(inside.root("cat /mnt/theirs/note /workspace/mine/note").await.ok(), "here\nhere");
    inside.user("echo x > /workspace/mine/new").await.ok();
    inside.root("echo x > /mnt/theirs/new").await.refused();
    inside.root("echo x > /mnt/new").await.refused();
    inside.end().await;
}

#[tokio::test]
async fn it_stays_closed_after_a_stop_and_what_was_written_stays() {
    let engine = stage::engine().await;
    let id = SandboxId::random();
    let spec = SandboxSpec { lifetime: Lifetime::Persistent, ..closed() };
    let sandbox = engine.create(&id, &spec).await.unwrap();
    shell(&*sandbox, "user", "echo kept > /workspace/file").await.ok();
    engine.stop(&id).await.unwrap();
    let sandbox = engine.start(&id).await.unwrap();
    assert_eq!(shell(&*sandbox, "user", "cat /workspace/file").await.ok(), "kept");
    is_closed(&*sandbox).await;
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

/// A tenant's own snapshot is the base: what it has made of the places that could be written opens nothing.
#[tokio::test]
async fn a_link_in_the_place_of_the_working_directory_opens_nothing() {
    let engine = stage::engine().await;
    let persistent = |spec: SandboxSpec| SandboxSpec { lifetime: Lifetime::Persistent, ..spec };
    for target in ["/", "/etc", "/usr", ".."] {
        let (first, fork, name) = (SandboxId::random(), SandboxId::random(), SnapshotId::now());
        let sandbox = engine.create(&first, &persistent(SandboxSpec::new(Base::Host))).await.unwrap();
        let script = format!("cd / && rm -rf /workspace /tmp && ln -s {target} /workspace && ln -s {target} /tmp");
        shell(&*sandbox, "root", &script).await.ok();
        let base = engine.snapshot(&first, name).await.unwrap();
        engine.destroy(&first).await.unwrap();
        let spec = persistent(SandboxSpec { base, ..closed() });
        if let Ok(sandbox) = engine.create(&fork, &spec).await {
            for script in
                ["echo x > /new", "echo x >> /etc/passwd", "touch /usr/new", "touch /workspace/new", "touch /tmp/new"]
            {
                shell(&*sandbox, "root", script).await.refused();
            }
        }
        engine.destroy(&fork).await.unwrap();
        engine.remove_snapshot(name).await.unwrap();
    }
    engine.close().await;
}
