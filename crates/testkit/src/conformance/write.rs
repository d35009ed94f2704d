//! Writing files: four modes, all or nothing where it is promised.

use std::sync::Arc;

use bytes::Bytes;
use cabana_sandbox::{Error, Kind, Result, SandboxPath, Write, WriteMode, read_all, write_all};
use futures_util::{StreamExt, future::try_join, stream};
use tokio::sync::oneshot;

use super::{
    stage::{Room, Stage, body, broken_body, how, pattern},
    verdict::{Failure, Outcome, ensure, refused, same},
};

const MODES: [WriteMode; 4] = [WriteMode::Replace, WriteMode::InPlace, WriteMode::Append, WriteMode::CreateNew];

async fn names(room: &Room) -> Result<Vec<String>> {
    Ok(room.names().await?.into_iter().map(|name| String::from_utf8_lossy(&name).into_owned()).collect())
}

pub(super) async fn xb_05_write_makes_no_parents(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    for mode in MODES {
        refused!(room.write_as("missing/file", how(mode), body(["x"])).await, Error::NotFound(_));
    }
    same!(names(&room).await?, [""; 0]);
    Ok(())
}

pub(super) async fn xb_07_over_the_cap_is_an_error_and_nothing_is_written(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "old").await?;
    let capped = |mode| Write { cap: 5, ..how(mode) };
    refused!(room.write_as("file", capped(WriteMode::Replace), body(["1234", "56"])).await, Error::TooLarge { cap: 5 });
    same!(room.read("file").await?, "old", "what was there is left");
    for mode in [WriteMode::Replace, WriteMode::CreateNew] {
        refused!(room.write_as("new", capped(mode), body(["123456"])).await, Error::TooLarge { cap: 5 });
        same!(names(&room).await?, ["file"], "{mode:?} makes nothing, and no temporary is left");
    }
    refused!(room.write_as("file", capped(WriteMode::InPlace), body(["1234", "56"])).await, Error::TooLarge { cap: 5 });
    ensure!(room.read("file").await?.len() <= 5, "InPlace writes no more than the cap");

    room.write_as("file", capped(WriteMode::Replace), body(["12345"])).await?;
    same!(room.read("file").await?, "12345", "a body of exactly the cap is written");
    Ok(())
}

pub(super) async fn xb_07_over_the_cap_with_a_known_length_is_refused_at_once(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "old").await?;
    for mode in [WriteMode::Replace, WriteMode::InPlace, WriteMode::Append] {
        // A body that never comes: who waits for it hangs.
        let how = Write { cap: 5, len: Some(6), ..how(mode) };
        let written = stage.soon("the refusal", room.write_as("file", how, stream::pending().boxed())).await?;
        refused!(written, Error::TooLarge { cap: 5 });
        same!(room.read("file").await?, "old", "{mode:?} leaves what was there");
    }
    Ok(())
}

pub(super) async fn replace_makes_a_new_file_0644(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    for mode in MODES {
        let name = format!("{mode:?}");
        room.write_as(&name, how(mode), body(["new"])).await?;
        let info = room.stat(&name).await?;
        same!((info.kind, info.size, info.mode), (Kind::File, 3, 0o644), "{mode:?} makes a plain file");
        same!(room.read(&name).await?, "new");
    }
    Ok(())
}

pub(super) async fn replace_keeps_the_mode_of_what_is_there(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "old and longer").await?;
    room.set_mode("file", 0o751).await?;
    room.write_as("file", how(WriteMode::Replace), body(["new"])).await?;
    same!(room.read("file").await?, "new");
    same!(room.stat("file").await?.mode, 0o751);
    same!(names(&room).await?, ["file"]);
    Ok(())
}

pub(super) async fn replace_keeps_the_owner_of_what_is_there(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "old").await?;
    write_all(&*room.root(), &room.path("file")?, "new").await?;
    same!(room.stat("file").await?.owner, stage.subject().user().name);
    same!(room.read("file").await?, "new");
    Ok(())
}

pub(super) async fn replace_shows_nothing_before_its_end(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "old").await?;
    let (asked, was_asked) = oneshot::channel();
    let (seen, was_seen) = oneshot::channel();
    // The second chunk comes after somebody has looked at the file in the middle.
    let second = async move {
        let _ = asked.send(());
        let _ = was_seen.await;
        Ok(Bytes::from_static(b"w content"))
    };
    let chunks = stream::once(async { Ok(Bytes::from_static(b"ne")) }).chain(stream::once(second)).boxed();
    let writing = async { Ok::<_, Failure>(room.write_as("file", how(WriteMode::Replace), chunks).await?) };
    let looking = async {
        was_asked.await?;
        let middle = room.read("file").await?;
        let _ = seen.send(());
        Ok(middle)
    };
    let (_, middle) = stage.soon("the end of the write", try_join(writing, looking)).await??;
    same!(middle, "old");
    same!(room.read("file").await?, "new content");
    Ok(())
}

pub(super) async fn perm_names_the_mode(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    for mode in MODES {
        let name = format!("{mode:?}");
        room.write_as(&name, Write { perm: Some(0o600), ..how(mode) }, body(["x"])).await?;
        same!(room.stat(&name).await?.mode, 0o600, "{mode:?} of a new file");
    }
    for mode in [WriteMode::Replace, WriteMode::InPlace] {
        let name = format!("{mode:?}");
        room.write_as(&name, Write { perm: Some(0o755), ..how(mode) }, body(["y"])).await?;
        same!(room.stat(&name).await?.mode, 0o755, "{mode:?} of a file that is there");
    }
    Ok(())
}

pub(super) async fn in_place_truncates_and_keeps_the_mode(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "old and longer").await?;
    room.set_mode("file", 0o751).await?;
    room.write_as("file", how(WriteMode::InPlace), body(["n", "ew"])).await?;
    same!(room.read("file").await?, "new");
    same!(room.stat("file").await?.mode, 0o751);
    Ok(())
}

pub(super) async fn append_adds_at_the_end(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    for line in ["one\n", "two\n", "", "three\n"] {
        room.write_as("log", how(WriteMode::Append), body([line])).await?;
    }
    same!(room.read("log").await?, "one\ntwo\nthree\n");
    Ok(())
}

pub(super) async fn create_new_refuses_what_is_there(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "old").await?;
    room.make_dir("dir").await?;
    room.link("link", "file").await?;
    room.link("dangling", "nowhere").await?;
    for name in ["file", "dir", "link", "dangling"] {
        refused!(room.write_as(name, how(WriteMode::CreateNew), body(["x"])).await, Error::Exists(_));
    }
    same!(room.read("file").await?, "old");
    same!(names(&room).await?, ["dangling", "dir", "file", "link"]);
    Ok(())
}

pub(super) async fn an_error_in_the_body_undoes_a_replace(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "old").await?;
    refused!(room.write_as("file", how(WriteMode::Replace), broken_body("half")).await, Error::Offline(_));
    same!(room.read("file").await?, "old");
    refused!(room.write_as("new", how(WriteMode::Replace), broken_body("half")).await, Error::Offline(_));
    same!(names(&room).await?, ["file"]);
    Ok(())
}

pub(super) async fn an_error_in_the_body_of_an_append_loses_nothing(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "old").await?;
    refused!(room.write_as("file", how(WriteMode::Append), broken_body("half")).await, Error::Offline(_));
    let refused = room.write_as("file", Write { cap: 5, ..how(WriteMode::Append) }, body(["1234", "56"])).await;
    refused!(refused, Error::TooLarge { cap: 5 });
    let left = room.read("file").await?;
    // What came before the error may stay: to cut the file would take what others appended since.
    ensure!(left.starts_with(b"old") && left.len() <= 3 + 4 + 5, "it is {left:?} now");
    Ok(())
}

pub(super) async fn an_error_in_the_body_undoes_a_create(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    refused!(room.write_as("new", how(WriteMode::CreateNew), broken_body("half")).await, Error::Offline(_));
    same!(names(&room).await?, [""; 0]);
    room.write_as("new", how(WriteMode::CreateNew), body(["whole"])).await?;
    Ok(())
}

pub(super) async fn another_length_than_promised_undoes_it(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "old").await?;
    for len in [3, 5] {
        let written =
            room.write_as("file", Write { len: Some(len), ..how(WriteMode::Replace) }, body(["12", "34"])).await;
        ensure!(written.is_err(), "Replace: 4 bytes came where {len} were promised, and that is Ok");
        same!(room.read("file").await?, "old");
        let written = room.write_as("new", Write { len: Some(len), ..how(WriteMode::CreateNew) }, body(["1234"])).await;
        ensure!(written.is_err(), "CreateNew: 4 bytes came where {len} were promised, and that is Ok");
    }
    same!(names(&room).await?, ["file"]);
    room.write_as("file", Write { len: Some(4), ..how(WriteMode::Replace) }, body(["12", "34"])).await?;
    same!(room.read("file").await?, "1234");
    Ok(())
}

pub(super) async fn a_failed_write_leaves_nothing_behind(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    for mode in [WriteMode::Replace, WriteMode::CreateNew] {
        let failed = [
            room.write_as("new", how(mode), broken_body("half")).await,
            room.write_as("new", Write { cap: 3, ..how(mode) }, body(["1234"])).await,
            room.write_as("new", Write { len: Some(3), ..how(mode) }, body(["12"])).await,
        ];
        ensure!(failed.iter().all(Result::is_err), "{mode:?}: all of these fail");
        same!(names(&room).await?, [""; 0], "{mode:?} leaves nothing");
    }
    Ok(())
}

pub(super) async fn write_follows_links_to_the_target(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.make_dir("dir").await?;
    room.write("dir/file", "old").await?;
    room.set_mode("dir/file", 0o640).await?;
    room.link("link", "dir/file").await?;
    for (mode, wanted) in [(WriteMode::Replace, "new"), (WriteMode::InPlace, "new"), (WriteMode::Append, "newnew")] {
        room.write_as("link", how(mode), body(["new"])).await?;
        same!(room.stat("link").await?.kind, Kind::Symlink, "{mode:?} leaves the link");
        same!(room.read("dir/file").await?, wanted, "{mode:?} writes the target");
        same!(room.stat("dir/file").await?.mode, 0o640);
    }
    Ok(())
}

pub(super) async fn write_onto_a_directory_is_directory(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.make_dir("dir").await?;
    room.link("link", "dir").await?;
    for mode in [WriteMode::Replace, WriteMode::InPlace, WriteMode::Append] {
        for name in ["dir", "link"] {
            refused!(room.write_as(name, how(mode), body(["x"])).await, Error::IsDirectory(_));
        }
    }
    let root = SandboxPath::root();
    ensure!(room.files.write(&root, how(WriteMode::Replace), body(["x"])).await.is_err(), "the root is a directory");
    same!(names(&room).await?, ["dir", "link"]);
    Ok(())
}

pub(super) async fn a_write_below_a_file_is_not_directory(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "old").await?;
    for mode in MODES {
        refused!(room.write_as("file/below", how(mode), body(["x"])).await, Error::NotDirectory(_));
    }
    same!(room.read("file").await?, "old");
    Ok(())
}

pub(super) async fn eight_mebibytes_in_odd_chunks_round_trip(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let content = pattern(8 * 1024 * 1024);
    let mut chunks = Vec::new();
    let mut rest = content.clone();
    for size in [1, 0, 4095, 4097, 1_000_003, 0, 65_536, 262_145].into_iter().cycle() {
        if rest.is_empty() {
            break;
        }
        chunks.push(rest.split_to(rest.len().min(size)));
    }
    for mode in MODES {
        let name = format!("{mode:?}");
        let info =
            room.write_as(&name, Write { len: Some(content.len() as u64), ..how(mode) }, body(chunks.clone())).await?;
        same!(info.size, content.len() as u64);
        ensure!(room.read(&name).await? == content, "{mode:?}: other bytes came back");
    }
    Ok(())
}

pub(super) async fn an_empty_body_makes_an_empty_file(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    for mode in MODES {
        let name = format!("{mode:?}");
        room.write_as(&name, how(mode), body::<Bytes>([])).await?;
        same!(room.stat(&name).await?.size, 0, "{mode:?}");
        same!(read_all(&*room.files, &room.path(&name)?, 0).await?, "");
    }
    room.write("file", "old").await?;
    room.write_as("file", how(WriteMode::Replace), body([""])).await?;
    same!(room.read("file").await?, "");
    Ok(())
}

pub(super) async fn the_answer_to_a_write_is_the_new_state(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    for mode in [WriteMode::CreateNew, WriteMode::Replace, WriteMode::InPlace, WriteMode::Append] {
        let said = room.write_as("file", how(mode), body(["12", "345"])).await?;
        same!(said, room.stat("file").await?, "{mode:?}");
    }
    same!(room.stat("file").await?.size, 10);
    Ok(())
}
