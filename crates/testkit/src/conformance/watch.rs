//! What a watcher is told.

use std::sync::Arc;

use cabana_sandbox::{Change, Depth, Error, SandboxPath, Stream, WatchEvent, WriteMode};
use futures_util::StreamExt;

use super::{
    stage::{Room, Stage, body, how},
    verdict::{Failure, Outcome, ensure, refused, same},
};

/// A watcher and what it was told so far.
struct Watch<'a> {
    stage: &'a Stage,
    events: Stream<WatchEvent>,
    seen: Vec<WatchEvent>,
}

impl<'a> Watch<'a> {
    async fn start(stage: &'a Stage, room: &Room, depth: Depth) -> Outcome<Self> {
        let events = stage.soon("the start of the watch", room.files.watch(&room.dir, depth)).await??;
        Ok(Self { stage, events, seen: Vec::new() })
    }

    /// Until it is told this.
    async fn expect(&mut self, wanted: WatchEvent) -> Outcome {
        self.expect_any(std::slice::from_ref(&wanted)).await
    }

    /// Until it is told one of these.
    async fn expect_any(&mut self, wanted: &[WatchEvent]) -> Outcome {
        loop {
            let what = format!("{wanted:?}; came: {:?}", self.seen);
            match self.stage.soon(&what, self.events.next()).await? {
                Some(event) => self.seen.push(event?),
                None => return Err(Failure::new(format_args!("the watch ended before this: {what}"))),
            }
            if self.seen.last().is_some_and(|event| wanted.contains(event)) {
                return Ok(());
            }
        }
    }

    fn paths(&self) -> Vec<SandboxPath> {
        let paths = self.seen.iter().flat_map(|event| match event {
            WatchEvent::Changed(_, path) => vec![path.clone()],
            WatchEvent::Renamed(from, to) => vec![from.clone(), to.clone()],
            WatchEvent::Overflow => vec![],
        });
        paths.collect()
    }
}

pub(super) async fn watch_is_armed_when_it_returns(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    for (number, depth) in [Depth::Here, Depth::Below].into_iter().enumerate() {
        let name = format!("first-{number}");
        let mut watch = Watch::start(&stage, &room, depth).await?;
        room.make_dir(&name).await?;
        watch.expect(WatchEvent::Changed(Change::Create, room.path(&name)?)).await?;
    }
    Ok(())
}

pub(super) async fn watch_tells_create_write_chmod_and_remove(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let mut watch = Watch::start(&stage, &room, Depth::Below).await?;
    let file = room.path("file")?;
    room.write_as("file", how(WriteMode::InPlace), body(["one"])).await?;
    watch.expect(WatchEvent::Changed(Change::Create, file.clone())).await?;
    watch.expect(WatchEvent::Changed(Change::Write, file.clone())).await?;
    room.write_as("file", how(WriteMode::Append), body(["two"])).await?;
    watch.expect(WatchEvent::Changed(Change::Write, file.clone())).await?;
    room.set_mode("file", 0o600).await?;
    watch.expect(WatchEvent::Changed(Change::Chmod, file.clone())).await?;
    room.link("link", "file").await?;
    watch.expect(WatchEvent::Changed(Change::Create, room.path("link")?)).await?;
    room.remove("file").await?;
    watch.expect(WatchEvent::Changed(Change::Remove, file)).await?;
    Ok(())
}

pub(super) async fn watch_tells_a_rename_as_one(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("before", "x").await?;
    room.make_dir("dir").await?;
    let mut watch = Watch::start(&stage, &room, Depth::Below).await?;
    room.rename("before", "after").await?;
    watch.expect(WatchEvent::Renamed(room.path("before")?, room.path("after")?)).await?;
    room.rename("after", "dir/after").await?;
    watch.expect(WatchEvent::Renamed(room.path("after")?, room.path("dir/after")?)).await?;
    Ok(())
}

pub(super) async fn watch_below_sees_into_new_directories(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.make_dir("old").await?;
    let mut watch = Watch::start(&stage, &room, Depth::Below).await?;
    room.make_dir("old/new").await?;
    room.make_dir("old/new/deep").await?;
    // At once: a watcher that arms itself in new directories must also look what is in them already.
    room.write_as("old/new/deep/file", how(WriteMode::InPlace), body(["x"])).await?;
    watch.expect(WatchEvent::Changed(Change::Create, room.path("old/new/deep/file")?)).await?;
    room.remove("old/new/deep/file").await?;
    watch.expect(WatchEvent::Changed(Change::Remove, room.path("old/new/deep/file")?)).await?;
    Ok(())
}

pub(super) async fn watch_here_does_not_see_below(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.make_dir("dir").await?;
    let mut watch = Watch::start(&stage, &room, Depth::Here).await?;
    room.write_as("dir/below", how(WriteMode::InPlace), body(["x"])).await?;
    room.make_dir("dir/deep").await?;
    room.make_dir("sentinel").await?;
    watch.expect(WatchEvent::Changed(Change::Create, room.path("sentinel")?)).await?;
    let below = room.path("dir")?;
    let told = watch.paths().into_iter().find(|path| path.is_in(&below) && *path != below);
    same!(told, None, "nothing below is told");
    Ok(())
}

pub(super) async fn watch_shows_no_temporary_of_a_replace(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let mut watch = Watch::start(&stage, &room, Depth::Below).await?;
    let file = room.path("file")?;
    let told = [WatchEvent::Changed(Change::Create, file.clone()), WatchEvent::Changed(Change::Write, file.clone())];
    room.write("file", "new").await?;
    watch.expect_any(&told).await?;
    let before = watch.seen.len();
    room.write("file", "replaced").await?;
    room.make_dir("sentinel").await?;
    watch.expect(WatchEvent::Changed(Change::Create, room.path("sentinel")?)).await?;
    let second = watch.seen[before..].iter().any(|event| told.contains(event));
    ensure!(second, "the second write was not told: {:?}", watch.seen);
    let known = [file, room.path("sentinel")?];
    let other: Vec<_> = watch.paths().into_iter().filter(|path| !known.contains(path)).collect();
    same!(other, [], "only the file itself is told");
    Ok(())
}

pub(super) async fn watch_of_a_file_that_is_written_in_place_tells_a_write(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "old").await?;
    let mut watch = Watch::start(&stage, &room, Depth::Here).await?;
    room.write_as("file", how(WriteMode::InPlace), body(["new"])).await?;
    watch.expect(WatchEvent::Changed(Change::Write, room.path("file")?)).await?;
    let created = WatchEvent::Changed(Change::Create, room.path("file")?);
    ensure!(!watch.seen.contains(&created), "the file was made anew: {:?}", watch.seen);
    Ok(())
}

pub(super) async fn watch_of_nothing_is_not_found(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    refused!(room.files.watch(&room.path("missing")?, Depth::Below).await, Error::NotFound(_));
    room.write("file", "x").await?;
    refused!(room.files.watch(&room.path("file")?, Depth::Here).await, Error::NotDirectory(_));
    Ok(())
}

pub(super) async fn a_watch_ends_with_its_sandbox(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let mut watch = Watch::start(&stage, &room, Depth::Below).await?;
    stage.provider().stop(room.sandbox.id()).await?;
    loop {
        match stage.soon("the end of the watch", watch.events.next()).await? {
            None | Some(Err(Error::Gone)) => return Ok(()),
            Some(Err(other)) => return Err(Failure::new(format_args!("it must end or be Gone, and is {other:?}"))),
            Some(Ok(_)) => {}
        }
    }
}
