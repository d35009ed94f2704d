//! A file's bytes.

use std::sync::Arc;

use bytes::Bytes;
use cabana_sandbox::{Error, Kind, Read, Result};
use futures_util::TryStreamExt;

use super::{
    stage::{Room, Stage, pattern},
    verdict::{Outcome, refused, same},
};

async fn read(room: &Room, name: &str, what: Read) -> Result<Bytes> {
    let (_, body) = room.files.read(&room.path(name)?, what).await?;
    let chunks: Vec<Bytes> = body.try_collect().await?;
    Ok(chunks.concat().into())
}

pub(super) async fn read_gives_the_whole_file_and_its_state(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let content = pattern(300_000);
    room.write("file", content.clone()).await?;
    room.set_mode("file", 0o600).await?;
    let (info, body) = room.files.read(&room.path("file")?, Read::default()).await?;
    let chunks: Vec<Bytes> = body.try_collect().await?;
    same!((info.kind, info.size, info.mode), (Kind::File, 300_000, 0o600));
    same!(chunks.concat() == content, true);
    Ok(())
}

pub(super) async fn a_span_is_exactly_what_was_asked_for(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let content = pattern(200_000);
    room.write("file", content.clone()).await?;
    for (from, len) in [(0, 1), (1, 0), (5, 100), (65_535, 2), (65_536, 70_000), (199_999, 1)] {
        let what = Read { from: from as u64, len: Some(len as u64), ..Read::default() };
        same!(read(&room, "file", what).await?, content[from..from + len], "{len} bytes from {from}");
    }
    let rest = read(&room, "file", Read { from: 100_000, ..Read::default() }).await?;
    same!(rest == content[100_000..], true, "without a length it is the rest");
    Ok(())
}

pub(super) async fn a_span_beyond_the_end_is_empty(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "12345").await?;
    same!(read(&room, "file", Read { from: 5, len: Some(1), ..Read::default() }).await?, "");
    same!(read(&room, "file", Read { from: 6, ..Read::default() }).await?, "");
    same!(read(&room, "file", Read { from: u64::from(u32::MAX), len: Some(10), ..Read::default() }).await?, "");
    same!(read(&room, "file", Read { from: 3, len: Some(100), ..Read::default() }).await?, "45", "it ends at the end");
    Ok(())
}

pub(super) async fn xb_07_reading_over_the_cap_is_too_large_before_a_byte(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "12345").await?;
    let path = room.path("file")?;
    refused!(room.files.read(&path, Read { cap: 4, ..Read::default() }).await, Error::TooLarge { cap: 4 });
    refused!(room.files.read(&path, Read { cap: 0, ..Read::default() }).await, Error::TooLarge { cap: 0 });
    Ok(())
}

pub(super) async fn xb_07_a_file_of_exactly_the_cap_is_read(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "12345").await?;
    same!(read(&room, "file", Read { cap: 5, ..Read::default() }).await?, "12345");
    Ok(())
}

pub(super) async fn read_of_a_directory_is_directory(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    refused!(room.files.read(&room.dir, Read::default()).await, Error::IsDirectory(_));
    Ok(())
}

pub(super) async fn read_follows_links(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.make_dir("dir").await?;
    room.write("dir/file", "found").await?;
    room.link("relative", "dir/file").await?;
    room.link("absolute", room.path("dir/file")?.as_bytes()).await?;
    room.link("way", "dir").await?;
    for name in ["relative", "absolute", "way/file"] {
        same!(room.read(name).await?, "found", "through {name}");
    }
    let (info, _) = room.files.read(&room.path("relative")?, Read::default()).await?;
    same!((info.kind, info.size), (Kind::File, 5), "the state is that of the target");
    Ok(())
}

pub(super) async fn a_reader_keeps_the_file_that_it_opened(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let old = vec![b'o'; 4 * 1024 * 1024];
    room.write("file", old.clone()).await?;
    let (_, mut stream) = room.files.read(&room.path("file")?, Read::default()).await?;
    let mut seen = stream.try_next().await?.unwrap_or_default().to_vec();
    room.write("file", vec![b'n'; 4 * 1024 * 1024]).await?;
    while let Some(chunk) = stream.try_next().await? {
        seen.extend_from_slice(&chunk);
    }
    same!(seen == old, true, "a replace in the middle of a read does not mix two files");
    Ok(())
}
