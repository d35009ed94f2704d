//! Standing still, with all that is in memory.

use std::sync::Arc;

use cabana_sandbox::{Error, Found, SandboxId, State};

use super::{
    stage::{Room, Stage},
    state::listed,
    verdict::{Outcome, ensure, refused, same},
};

pub(super) async fn a_paused_one_is_listed_and_attached_as_paused(stage: Arc<Stage>) -> Outcome {
    let sandbox = stage.sandbox().await?;
    stage.provider().pause(sandbox.id()).await?;
    same!(listed(&stage, sandbox.id()).await?, [State::Paused]);
    ensure!(
        matches!(stage.provider().attach(sandbox.id()).await?, Found::Paused(_)),
        "attach does not say that it is paused"
    );
    Ok(())
}

pub(super) async fn start_resumes_a_paused_one(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("mark", "here").await?;
    for _ in 0..3 {
        stage.provider().pause(room.sandbox.id()).await?;
        stage.provider().start(room.sandbox.id()).await?;
        same!(listed(&stage, room.sandbox.id()).await?, [State::Running]);
        same!(room.read("mark").await?, "here", "the old handle goes on working");
    }
    Ok(())
}

pub(super) async fn pause_twice_is_ok(stage: Arc<Stage>) -> Outcome {
    let sandbox = stage.sandbox().await?;
    stage.provider().pause(sandbox.id()).await?;
    stage.provider().pause(sandbox.id()).await?;
    same!(listed(&stage, sandbox.id()).await?, [State::Paused]);
    Ok(())
}

pub(super) async fn only_what_runs_is_paused(stage: Arc<Stage>) -> Outcome {
    refused!(stage.provider().pause(&SandboxId::random()).await, Error::NoSandbox(_));
    let sandbox = stage.sandbox().await?;
    stage.provider().stop(sandbox.id()).await?;
    refused!(stage.provider().pause(sandbox.id()).await, Error::Gone);
    same!(listed(&stage, sandbox.id()).await?, [State::Stopped]);
    Ok(())
}

pub(super) async fn the_files_of_a_paused_one_are_there(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("before", "before").await?;
    stage.provider().pause(room.sandbox.id()).await?;
    same!(stage.soon("a read", room.read("before")).await??, "before");
    stage.soon("a write", room.write("meanwhile", "meanwhile")).await??;
    stage.provider().start(room.sandbox.id()).await?;
    same!(room.read("meanwhile").await?, "meanwhile");
    Ok(())
}

pub(super) async fn a_paused_one_can_be_stopped_and_destroyed(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("mark", "here").await?;
    let (id, provider) = (room.sandbox.id(), stage.provider());
    provider.pause(id).await?;
    provider.stop(id).await?;
    same!(listed(&stage, id).await?, [State::Stopped]);
    let again = provider.start(id).await?;
    same!(cabana_sandbox::read_all(&*again.files(None), &room.path("mark")?, 100).await?, "here");
    provider.pause(id).await?;
    provider.destroy(id).await?;
    same!(listed(&stage, id).await?, []);
    Ok(())
}

pub(super) async fn a_paused_one_takes_no_command(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    stage.provider().pause(room.sandbox.id()).await?;
    refused!(stage.soon("the refusal", room.sandbox.exec(room.shell("true"))).await?, Error::Paused);
    stage.provider().start(room.sandbox.id()).await?;
    same!(room.sh(&stage, "echo goes on").await?.out, "goes on\n");
    Ok(())
}

/// Counts in its memory, and writes down how far it has come.
const COUNTER: &str = "n=0; while :; do n=$((n+1)); echo $n > new && mv new count; done";

async fn count(stage: &Stage, room: &Room) -> Outcome<u64> {
    let reading = async {
        loop {
            // In between it has no name.
            match room.read("count").await {
                Ok(bytes) => return Ok(String::from_utf8_lossy(&bytes).trim().parse::<u64>()?),
                Err(Error::NotFound(_)) => tokio::task::yield_now().await,
                Err(other) => return Err(super::verdict::Failure::from(other)),
            }
        }
    };
    stage.soon("a count", reading).await?
}

pub(super) async fn what_is_paused_stands_still_and_goes_on_where_it_was(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let _counter = room.start(&stage, room.shell(COUNTER)).await?;
    let before = count(&stage, &room).await?;
    stage.provider().pause(room.sandbox.id()).await?;
    let at = count(&stage, &room).await?;
    ensure!(at >= before, "it counted from {before} to {at}");
    for _ in 0..100 {
        same!(count(&stage, &room).await?, at, "it counts on");
    }
    same!(room.sandbox.processes().await?.len(), 1, "it is still there");
    stage.provider().start(room.sandbox.id()).await?;
    // Not from the beginning: its memory was kept.
    let goes_on = || async { Ok(count(&stage, &room).await? > at) };
    stage.until("it counts on from where it was", goes_on).await
}
