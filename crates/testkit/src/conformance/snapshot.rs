//! Snapshots, what is made from them, and saved sandboxes.

use std::sync::Arc;

use bytes::Bytes;
use cabana_sandbox::{
    Alter, Base, Error, Found, Result, Sandbox, SandboxId, SandboxSpec, SnapshotId, read_all, write_all,
};
use futures_util::TryStreamExt;

use super::{
    stage::{Room, Stage, body},
    verdict::{Outcome, ensure, refused, same},
};

async fn fork(stage: &Stage, base: &Base) -> Result<Arc<dyn Sandbox>> {
    let spec = SandboxSpec { base: base.clone(), ..stage.spec() };
    stage.provider().create(&stage.id(), &spec).await
}

/// A room with something in it, stopped.
async fn stopped(stage: &Stage) -> Result<Room> {
    let room = stage.room().await?;
    room.write("mark", "as it was").await?;
    stage.provider().stop(room.sandbox.id()).await?;
    Ok(room)
}

async fn mark(sandbox: &dyn Sandbox, room: &Room) -> Result<Bytes> {
    read_all(&*sandbox.files(None), &room.path("mark")?, 100).await
}

pub(super) async fn a_fork_begins_with_the_files_of_the_sandbox(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("mark", "as it was").await?;
    room.make_dir("dir").await?;
    room.set_mode("dir", 0o1770).await?;
    room.link("link", "dir/../mark").await?;
    room.write("gone", "").await?;
    room.files.alter(Alter::Remove(room.path("gone")?)).await?;
    let (file, dir, link) = (room.stat("mark").await?, room.stat("dir").await?, room.stat("link").await?);
    stage.provider().stop(room.sandbox.id()).await?;
    let base = stage.provider().snapshot(room.sandbox.id(), SnapshotId::now()).await?;
    let fork = fork(&stage, &base).await?;
    let files = fork.files(None);
    same!(mark(&*fork, &room).await?, "as it was");
    same!(files.stat(&room.path("mark")?).await?, file);
    same!(files.stat(&room.path("dir")?).await?.mode, dir.mode);
    same!(files.stat(&room.path("link")?).await?, link);
    refused!(files.stat(&room.path("gone")?).await, Error::NotFound(_));
    same!(fork.defaults().user, stage.subject().user().as_user()?);
    Ok(())
}

pub(super) async fn a_snapshot_knows_nothing_of_what_comes_after_it(stage: Arc<Stage>) -> Outcome {
    let room = stopped(&stage).await?;
    let base = stage.provider().snapshot(room.sandbox.id(), SnapshotId::now()).await?;
    let original = stage.provider().start(room.sandbox.id()).await?;
    write_all(&*original.files(None), &room.path("mark")?, "later").await?;
    same!(mark(&*fork(&stage, &base).await?, &room).await?, "as it was");
    same!(mark(&*original, &room).await?, "later");
    Ok(())
}

pub(super) async fn forks_share_no_changes(stage: Arc<Stage>) -> Outcome {
    let room = stopped(&stage).await?;
    let base = stage.provider().snapshot(room.sandbox.id(), SnapshotId::now()).await?;
    let (one, two) = (fork(&stage, &base).await?, fork(&stage, &base).await?);
    write_all(&*one.files(None), &room.path("mark")?, "of the first").await?;
    two.files(None).alter(Alter::Remove(room.path("mark")?)).await?;
    same!(mark(&*one, &room).await?, "of the first");
    refused!(mark(&*two, &room).await, Error::NotFound(_));
    same!(mark(&*fork(&stage, &base).await?, &room).await?, "as it was");
    let original = stage.provider().start(room.sandbox.id()).await?;
    same!(mark(&*original, &room).await?, "as it was");
    Ok(())
}

pub(super) async fn a_snapshot_outlives_its_sandbox(stage: Arc<Stage>) -> Outcome {
    let room = stopped(&stage).await?;
    let base = stage.provider().snapshot(room.sandbox.id(), SnapshotId::now()).await?;
    stage.provider().destroy(room.sandbox.id()).await?;
    let one = fork(&stage, &base).await?;
    stage.provider().stop(one.id()).await?;
    let two = stage.provider().snapshot(one.id(), SnapshotId::now()).await?;
    stage.provider().destroy(one.id()).await?;
    same!(mark(&*fork(&stage, &two).await?, &room).await?, "as it was");
    same!(mark(&*fork(&stage, &base).await?, &room).await?, "as it was");
    Ok(())
}

pub(super) async fn a_snapshot_leaves_a_stopped_one_stopped(stage: Arc<Stage>) -> Outcome {
    let room = stopped(&stage).await?;
    stage.provider().snapshot(room.sandbox.id(), SnapshotId::now()).await?;
    let found = stage.provider().attach(room.sandbox.id()).await?;
    ensure!(matches!(found, Found::Stopped), "a snapshot woke it");
    let again = stage.provider().start(room.sandbox.id()).await?;
    same!(mark(&*again, &room).await?, "as it was");
    Ok(())
}

pub(super) async fn a_snapshot_of_an_absent_one_is_no_sandbox(stage: Arc<Stage>) -> Outcome {
    refused!(stage.provider().snapshot(&SandboxId::random(), SnapshotId::now()).await, Error::NoSandbox(_));
    refused!(stage.provider().save(&SandboxId::random()).await, Error::NoSandbox(_));
    Ok(())
}

pub(super) async fn one_name_is_one_snapshot(stage: Arc<Stage>) -> Outcome {
    let room = stopped(&stage).await?;
    let name = SnapshotId::now();
    let base = stage.provider().snapshot(room.sandbox.id(), name).await?;
    let original = stage.provider().start(room.sandbox.id()).await?;
    write_all(&*original.files(None), &room.path("mark")?, "later").await?;
    stage.provider().stop(room.sandbox.id()).await?;
    same!(stage.provider().snapshot(room.sandbox.id(), name).await?, base);
    same!(mark(&*fork(&stage, &base).await?, &room).await?, "as it was");
    Ok(())
}

pub(super) async fn a_snapshot_is_listed_until_it_is_removed(stage: Arc<Stage>) -> Outcome {
    let room = stopped(&stage).await?;
    let (name, provider) = (SnapshotId::now(), stage.provider());
    let base = provider.snapshot(room.sandbox.id(), name).await?;
    ensure!(snapshots(&stage).await?.contains(&name), "it is not in the list");
    let forked = fork(&stage, &base).await?;
    for _ in 0..2 {
        provider.remove_snapshot(name).await?;
    }
    ensure!(!snapshots(&stage).await?.contains(&name), "it is in the list");
    refused!(fork(&stage, &base).await, Error::NoSnapshot(_));
    same!(mark(&*forked, &room).await?, "as it was", "what was made from it stays");
    Ok(())
}

async fn snapshots(stage: &Stage) -> Result<Vec<SnapshotId>> {
    stage.provider().snapshots().await?.try_collect().await
}

async fn saved(stage: &Stage, id: &SandboxId) -> Result<Vec<u8>> {
    let parts: Vec<Bytes> = stage.provider().save(id).await?.try_collect().await?;
    Ok(parts.concat())
}

pub(super) async fn what_was_saved_is_restored_and_stopped(stage: Arc<Stage>) -> Outcome {
    let room = stopped(&stage).await?;
    let bytes = saved(&stage, room.sandbox.id()).await?;
    stage.provider().destroy(room.sandbox.id()).await?;
    for id in [room.sandbox.id().clone(), stage.id()] {
        stage.provider().restore(&id, &stage.spec(), body([bytes.clone()])).await?;
        ensure!(matches!(stage.provider().attach(&id).await?, Found::Stopped), "what is restored is stopped");
        let restored = stage.provider().start(&id).await?;
        same!(mark(&*restored, &room).await?, "as it was");
    }
    Ok(())
}

pub(super) async fn nothing_is_restored_onto_one_that_is_there(stage: Arc<Stage>) -> Outcome {
    let room = stopped(&stage).await?;
    let bytes = saved(&stage, room.sandbox.id()).await?;
    let there = stage.sandbox().await?;
    write_all(&*there.files(None), &stage.subject().user().home()?.join(b"own")?, "here").await?;
    let restored = stage.provider().restore(there.id(), &stage.spec(), body([bytes])).await;
    ensure!(restored.is_err(), "a sandbox was restored onto another");
    let own = read_all(&*there.files(None), &stage.subject().user().home()?.join(b"own")?, 100).await?;
    same!(own, "here");
    Ok(())
}

pub(super) async fn half_a_saved_one_restores_nothing(stage: Arc<Stage>) -> Outcome {
    let room = stopped(&stage).await?;
    let bytes = saved(&stage, room.sandbox.id()).await?;
    for length in [0, bytes.len() / 2, bytes.len() - 1] {
        let id = stage.id();
        let half = bytes[..length].to_vec();
        refused!(stage.provider().restore(&id, &stage.spec(), body([half])).await, Error::Archive(_));
        ensure!(matches!(stage.provider().attach(&id).await?, Found::Absent), "half a sandbox is there");
    }
    Ok(())
}

pub(super) async fn a_shelved_one_is_absent_until_it_is_restored(stage: Arc<Stage>) -> Outcome {
    let (room, provider) = (stopped(&stage).await?, stage.provider());
    let id = room.sandbox.id();
    let bytes = saved(&stage, id).await?;
    provider.start(id).await?;
    ensure!(provider.shelve(id).await.is_err(), "one that runs was shelved");
    provider.stop(id).await?;
    for _ in 0..2 {
        provider.shelve(id).await?;
        ensure!(matches!(provider.attach(id).await?, Found::Absent), "it is there");
        refused!(provider.start(id).await, Error::NoSandbox(_));
        let listed: Vec<_> = provider.list().await?.try_collect().await?;
        ensure!(listed.iter().all(|(listed, _)| listed != id), "it is in the list");
    }
    provider.restore(id, &stage.spec(), body([bytes])).await?;
    same!(mark(&*provider.start(id).await?, &room).await?, "as it was");
    refused!(provider.shelve(&SandboxId::random()).await, Error::NoSandbox(_));
    Ok(())
}

pub(super) async fn a_running_one_goes_on_after_its_snapshot(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("mark", "as it was").await?;
    let base = stage.provider().snapshot(room.sandbox.id(), SnapshotId::now()).await?;
    let bytes = saved(&stage, room.sandbox.id()).await?;
    room.write("mark", "later").await?;
    same!(mark(&*fork(&stage, &base).await?, &room).await?, "as it was");
    same!(room.read("mark").await?, "later", "its handles go on working");
    let id = stage.id();
    stage.provider().restore(&id, &stage.spec(), body([bytes])).await?;
    same!(mark(&*stage.provider().start(&id).await?, &room).await?, "as it was");
    Ok(())
}

pub(super) async fn a_paused_one_stays_paused_after_its_snapshot(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("mark", "as it was").await?;
    stage.provider().pause(room.sandbox.id()).await?;
    let base = stage.provider().snapshot(room.sandbox.id(), SnapshotId::now()).await?;
    ensure!(matches!(stage.provider().attach(room.sandbox.id()).await?, Found::Paused(_)), "a snapshot woke it");
    same!(mark(&*fork(&stage, &base).await?, &room).await?, "as it was");
    Ok(())
}
