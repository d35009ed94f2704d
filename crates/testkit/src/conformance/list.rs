//! What is in a directory.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use cabana_sandbox::{Error, Kind, WriteMode};
use futures_util::TryStreamExt;

use super::{
    stage::{Stage, body, how, list, names},
    verdict::{Outcome, ensure, refused, same},
};

pub(super) async fn list_shows_every_entry_with_its_path(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "12345").await?;
    room.write(".hidden", "x").await?;
    room.make_dir("dir").await?;
    room.write("dir/below", "x").await?;
    let mut entries = list(&*room.files, &room.dir).await?;
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    let wanted = [room.stat(".hidden").await?, room.stat("dir").await?, room.stat("file").await?];
    same!(entries, wanted, "an entry says what stat says");
    same!(room.files.list(&room.path("dir")?).await?.try_concat().await?.len(), 1);
    room.make_dir("empty").await?;
    same!(names(&*room.files, &room.path("empty")?).await?.len(), 0);
    ensure!(!names(&*room.files, &cabana_sandbox::SandboxPath::root()).await?.is_empty(), "the root is not empty");
    Ok(())
}

pub(super) async fn list_shows_links_as_links(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.make_dir("dir").await?;
    room.link("link", "dir").await?;
    let entries = list(&*room.files, &room.dir).await?;
    let link = entries.iter().find(|entry| entry.path.name() == b"link");
    same!(link, Some(&room.stat("link").await?));
    same!(link.map(|link| link.kind), Some(Kind::Symlink));
    Ok(())
}

pub(super) async fn list_of_five_thousand_entries_is_whole(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    for number in 0..5000 {
        room.write_as(&format!("{number:04}"), how(WriteMode::CreateNew), body::<Bytes>([])).await?;
    }
    let entries = list(&*room.files, &room.dir).await?;
    same!(entries.len(), 5000);
    let different: BTreeSet<_> = entries.iter().map(|entry| entry.path.clone()).collect();
    same!(different.len(), 5000, "each comes once");
    Ok(())
}

pub(super) async fn list_follows_a_link_to_a_directory(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.make_dir("dir").await?;
    room.write("dir/file", "x").await?;
    room.link("link", "dir").await?;
    same!(names(&*room.files, &room.path("link")?).await?, [b"file".to_vec()]);
    Ok(())
}

pub(super) async fn list_of_a_file_is_not_directory(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "x").await?;
    room.link("link", "file").await?;
    refused!(room.files.list(&room.path("file")?).await, Error::NotDirectory(_));
    refused!(room.files.list(&room.path("link")?).await, Error::NotDirectory(_));
    Ok(())
}
