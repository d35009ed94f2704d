//! Volumes, and views that come and go while a sandbox runs.

use std::sync::Arc;

use cabana_sandbox::{Error, Result, SandboxSpec, Source, View, VolumeId, Wanted};
use futures_util::TryStreamExt;

use super::{
    stage::{Room, Stage, path},
    verdict::{Outcome, ensure, refused, same},
};

async fn is_listed(stage: &Stage, volume: VolumeId) -> Result<bool> {
    let all: Vec<_> = stage.provider().volumes().await?.try_collect().await?;
    Ok(all.contains(&volume))
}

async fn made(stage: &Stage) -> Result<VolumeId> {
    let volume = VolumeId::now();
    stage.provider().make_volume(volume).await?;
    Ok(volume)
}

fn view(volume: VolumeId, at: &str, writable: bool) -> Result<View> {
    Ok(View { source: Source::Volume(volume), at: path(at)?, writable })
}

async fn with(stage: &Stage, views: Vec<View>) -> Result<Room> {
    let sandbox = stage.provider().create(&stage.id(), &SandboxSpec { views, ..stage.spec() }).await?;
    Room::in_sandbox(sandbox, stage.subject()).await
}

async fn clear(stage: &Stage, volumes: impl IntoIterator<Item = VolumeId>) -> Outcome {
    stage.clear().await?;
    for volume in volumes {
        stage.provider().remove_volume(volume).await?;
    }
    Ok(())
}

pub(super) async fn a_volume_is_listed_until_it_is_removed(stage: Arc<Stage>) -> Outcome {
    let volume = made(&stage).await?;
    stage.provider().make_volume(volume).await?;
    ensure!(is_listed(&stage, volume).await?, "it was made");
    stage.provider().volume_usage(volume).await?;
    stage.provider().remove_volume(volume).await?;
    ensure!(!is_listed(&stage, volume).await?, "it was removed");
    refused!(stage.provider().volume_usage(volume).await, Error::NoVolume(_));
    stage.provider().remove_volume(volume).await?;
    Ok(())
}

pub(super) async fn a_volume_is_seen_by_many_and_outlives_them(stage: Arc<Stage>) -> Outcome {
    let volume = made(&stage).await?;
    let (one, two) = (
        with(&stage, vec![view(volume, "/workspace/kept", true)?]).await?,
        with(&stage, vec![view(volume, "/srv/other", true)?]).await?,
    );
    same!(one.sh(&stage, "echo first > /workspace/kept/mark").await?.err, "");
    same!(two.sh(&stage, "cat /srv/other/mark && echo second >> /srv/other/mark").await?.out, "first\n");
    for room in [&one, &two] {
        stage.provider().destroy(room.sandbox.id()).await?;
    }
    let third = with(&stage, vec![view(volume, "/workspace", false)?]).await?;
    same!(third.sh(&stage, "cat /workspace/mark").await?.out, "first\nsecond\n");
    let written = third.sh(&stage, "echo x > /workspace/mark || echo x > /workspace/new").await?;
    ensure!(written.status != cabana_sandbox::Status::Code(0), "it was written to though it cannot be");
    same!(third.sh(&stage, "cat /workspace/mark").await?.out, "first\nsecond\n");
    clear(&stage, [volume]).await
}

pub(super) async fn a_volume_stays_while_sandboxes_have_it(stage: Arc<Stage>) -> Outcome {
    let volume = made(&stage).await?;
    let room = with(&stage, vec![view(volume, "/workspace/kept", true)?]).await?;
    refused!(stage.provider().remove_volume(volume).await, Error::VolumeInUse(_));
    stage.provider().stop(room.sandbox.id()).await?;
    refused!(stage.provider().remove_volume(volume).await, Error::VolumeInUse(_));
    stage.provider().start(room.sandbox.id()).await?;
    stage.provider().destroy(room.sandbox.id()).await?;
    stage.provider().remove_volume(volume).await?;
    ensure!(!is_listed(&stage, volume).await?, "nobody has it any more");
    let absent = with(&stage, vec![view(volume, "/workspace/kept", true)?]).await;
    refused!(absent.map(drop), Error::NoVolume(_));
    Ok(())
}

pub(super) async fn a_stopped_one_has_other_views_from_its_next_start_on(stage: Arc<Stage>) -> Outcome {
    let (one, two) = (made(&stage).await?, made(&stage).await?);
    let room = with(&stage, vec![view(one, "/workspace/one", true)?]).await?;
    same!(room.sh(&stage, "echo of the first > /workspace/one/mark").await?.err, "");
    let (provider, id) = (stage.provider(), room.sandbox.id().clone());
    provider.stop(&id).await?;
    refused!(provider.set_views(&id, &[view(VolumeId::now(), "/workspace/x", true)?]).await, Error::NoVolume(_));
    provider.set_views(&id, &[view(one, "/workspace/other", false)?, view(two, "/workspace/two", true)?]).await?;
    refused!(provider.remove_volume(two).await, Error::VolumeInUse(_));
    let room = Room { sandbox: provider.start(&id).await?, ..room };
    same!(room.sh(&stage, "cat /workspace/other/mark; ls /workspace/one").await?.out, "of the first\n");
    provider.stop(&id).await?;
    provider.set_views(&id, &[]).await?;
    provider.remove_volume(two).await?;
    let room = Room { sandbox: provider.start(&id).await?, ..room };
    same!(room.sh(&stage, "ls /workspace/other /workspace/two").await?.out, "/workspace/other:\n\n/workspace/two:\n");
    refused!(provider.set_views(&stage.id(), &[]).await, Error::NoSandbox(_));
    clear(&stage, [one]).await
}

pub(super) async fn a_view_comes_and_goes_while_a_sandbox_runs(stage: Arc<Stage>) -> Outcome {
    let volume = made(&stage).await?;
    let room = stage.room().await?;
    let seen = || view(volume, "/workspace/seen", true);
    room.sandbox.update(Wanted::Views(vec![seen()?])).await?;
    same!(room.sh(&stage, "echo late > /workspace/seen/mark && cat /workspace/seen/mark").await?.out, "late\n");
    refused!(stage.provider().remove_volume(volume).await, Error::VolumeInUse(_));
    room.sandbox.update(Wanted::Views(Vec::new())).await?;
    same!(room.sh(&stage, "ls /workspace/seen").await?.out, "", "it is not seen any more");
    stage.provider().stop(room.sandbox.id()).await?;
    let again = stage.provider().start(room.sandbox.id()).await?;
    again.update(Wanted::Views(vec![View { writable: false, ..seen()? }])).await?;
    stage.provider().stop(room.sandbox.id()).await?;
    let again = Room { sandbox: stage.provider().start(room.sandbox.id()).await?, ..room };
    same!(again.sh(&stage, "cat /workspace/seen/mark").await?.out, "late\n", "a start gives what was asked for last");
    ensure!(!again.sh(&stage, "echo x > /workspace/seen/new").await?.err.is_empty(), "it is read-only");
    clear(&stage, [volume]).await
}

pub(super) async fn views_that_do_not_change_are_not_disturbed(stage: Arc<Stage>) -> Outcome {
    let (one, two) = (made(&stage).await?, made(&stage).await?);
    let room = with(&stage, vec![view(one, "/workspace/one", true)?]).await?;
    let wait = "while ! [ -e inner/go ]; do sleep 0.05; done";
    let script = format!("cd /workspace/one && echo here > mark && {wait}; /bin/pwd && cat mark");
    let mut running = room.start(&stage, room.shell(&script)).await?;
    let begun = || async { Ok(room.sh(&stage, "cat /workspace/one/mark").await?.out == "here\n") };
    stage.until("the command begins", begun).await?;
    let both = vec![view(two, "/workspace/one/inner", true)?, view(one, "/workspace/one", true)?];
    room.sandbox.update(Wanted::Views(both)).await?;
    same!(room.sh(&stage, "echo x > /workspace/one/inner/go && ls /workspace/one").await?.out, "inner\nmark\n");
    running.exit().await?;
    same!(running.text, "/workspace/one\nhere\n", "where it is has not gone");
    clear(&stage, [one, two]).await
}

pub(super) async fn a_refused_change_of_views_changes_nothing(stage: Arc<Stage>) -> Outcome {
    let volume = made(&stage).await?;
    let room = with(&stage, vec![view(volume, "/workspace/seen", true)?]).await?;
    same!(room.sh(&stage, "echo mark > /workspace/seen/mark").await?.err, "");
    let good = view(volume, "/workspace/other", true)?;
    let absent = view(VolumeId::now(), "/workspace/absent", true)?;
    refused!(room.sandbox.update(Wanted::Views(vec![good.clone(), absent])).await, Error::NoVolume(_));
    room.write("file", "in the way").await?;
    let below = View { at: room.path("file/below")?, ..good.clone() };
    refused!(room.sandbox.update(Wanted::Views(vec![good, below])).await, Error::Invalid { .. });
    same!(room.sh(&stage, "cat /workspace/seen/mark; ls /workspace").await?.out, "mark\nseen\n");
    stage.provider().stop(room.sandbox.id()).await?;
    let again = Room { sandbox: stage.provider().start(room.sandbox.id()).await?, ..room };
    same!(again.sh(&stage, "cat /workspace/seen/mark").await?.out, "mark\n");
    clear(&stage, [volume]).await
}
