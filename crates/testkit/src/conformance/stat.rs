//! What a path leads to, and what is said about it.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use cabana_sandbox::{Alter, Error, Kind, Read, WriteMode, write_all};

use super::{
    stage::{Stage, body, how, list, path},
    verdict::{Outcome, ensure, refused, same},
};

pub(super) async fn xb_04_missing_path_is_not_found(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    for missing in ["missing", "missing/below"] {
        let path = room.path(missing)?;
        refused!(room.stat(missing).await, Error::NotFound(_));
        let said = room.stat(missing).await.err().map(|error| error.to_string()).unwrap_or_default();
        ensure!(said.contains(&path.to_string()), "the error names the path: {said}");
        refused!(room.files.list(&path).await, Error::NotFound(_));
        refused!(room.files.read(&path, Read::default()).await, Error::NotFound(_));
        refused!(room.set_mode(missing, 0o600).await, Error::NotFound(_));
        refused!(room.rename(missing, "elsewhere").await, Error::NotFound(_));
        refused!(room.files.alter(Alter::SetTags(path, Default::default())).await, Error::NotFound(_));
    }
    Ok(())
}

pub(super) async fn xb_06_stat_says_kind_size_mode_and_time(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "twelve bytes").await?;
    room.set_mode("file", 0o640).await?;
    let file = room.stat("file").await?;
    same!((file.kind, file.size, file.mode), (Kind::File, 12, 0o640));
    same!(file.path, room.path("file")?);
    same!(file.link, None);
    same!(file.tags, Default::default());
    let age = SystemTime::now().duration_since(file.modified).unwrap_or_default();
    ensure!(age < Duration::from_secs(3600), "a new file is {age:?} old");

    room.make_dir("dir").await?;
    let dir = room.stat("dir").await?;
    same!((dir.kind, dir.mode, dir.link), (Kind::Directory, 0o755, None));

    let root = room.files.stat(&cabana_sandbox::SandboxPath::root()).await?;
    same!(root.kind, Kind::Directory, "the root can be looked at");
    Ok(())
}

pub(super) async fn xb_06_owners_are_named(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let info = room.write("file", "x").await?;
    same!(info.owner, stage.subject().user().name);
    same!(room.stat("file").await?.owner, stage.subject().user().name);
    ensure!(info.group.parse::<u32>().is_err(), "the group {:?} has a name in the sandbox", info.group);
    Ok(())
}

pub(super) async fn a_path_through_a_file_is_not_directory(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "x").await?;
    refused!(room.stat("file/below").await, Error::NotDirectory(_));
    refused!(room.read("file/below").await, Error::NotDirectory(_));
    refused!(room.files.list(&room.path("file/below")?).await, Error::NotDirectory(_));
    refused!(room.make_dir("file/below").await, Error::NotDirectory(_));
    Ok(())
}

pub(super) async fn stat_of_a_link_is_of_the_link(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "twelve bytes").await?;
    room.set_mode("file", 0o640).await?;
    room.link("link", "file").await?;
    let info = room.stat("link").await?;
    same!(info.kind, Kind::Symlink);
    same!(info.path, room.path("link")?);
    let Some(link) = info.link else { return Err(super::verdict::Failure::new("a link says where it points")) };
    same!(link.text, b"file");
    same!(link.target, Some((room.path("file")?, Kind::File, 0o640)));

    room.link("absolute", room.dir.as_bytes()).await?;
    let target = room.stat("absolute").await?.link.and_then(|link| link.target);
    same!(target, Some((room.dir.clone(), Kind::Directory, 0o755)));
    Ok(())
}

pub(super) async fn a_links_text_is_kept_byte_for_byte(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    for (number, text) in [&b"./a/./b"[..], b"../x/../y", b"a//b/", b"\xff\xfe", b" $(id) \n", b"/"].iter().enumerate()
    {
        let name = format!("link-{number}");
        room.link(&name, text).await?;
        let link = room.stat(&name).await?.link.map(|link| link.text);
        same!(link, Some(text.to_vec()));
    }
    Ok(())
}

pub(super) async fn a_links_target_is_where_it_leads_in_the_end(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.make_dir("dir").await?;
    room.write("dir/file", "the end").await?;
    room.link("way", "dir").await?;
    room.link("first", "second").await?;
    room.link("second", "way/file").await?;
    let target = room.stat("first").await?.link.and_then(|link| link.target);
    same!(target, Some((room.path("dir/file")?, Kind::File, 0o644)));
    same!(room.read("first").await?, "the end");

    let mut before = "dir/file".to_owned();
    for number in 0..30 {
        let name = format!("chain-{number}");
        room.link(&name, &before).await?;
        before = name;
    }
    same!(room.read("chain-29").await?, "the end", "thirty links in a row are followed");
    Ok(())
}

pub(super) async fn a_dangling_link_has_no_target(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.link("link", "nowhere").await?;
    let link = room.stat("link").await?.link.map(|link| (link.text, link.target));
    same!(link, Some((b"nowhere".to_vec(), None)));
    let entries = list(&*room.files, &room.dir).await?;
    same!(entries.len(), 1, "it is listed");
    refused!(room.read("link").await, Error::NotFound(_));
    Ok(())
}

pub(super) async fn a_circle_of_links_has_no_target_and_cannot_be_passed(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.link("self", "self").await?;
    room.link("ping", "pong").await?;
    room.link("pong", "ping").await?;
    for name in ["self", "ping"] {
        let info = room.stat(name).await?;
        same!(info.link.map(|link| link.target), Some(None));
        let path = room.path(name)?;
        refused!(room.read(name).await, Error::Loop(_));
        refused!(room.files.list(&path).await, Error::Loop(_));
        refused!(room.stat(&format!("{name}/below")).await, Error::Loop(_));
        refused!(room.files.write(&path, how(WriteMode::Replace), body(["x"])).await, Error::Loop(_));
    }
    Ok(())
}

pub(super) async fn dot_dot_in_a_link_stays_below_the_root(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "inside").await?;
    let up = b"../".repeat(40);
    room.link("up", [&up, &room.path("file")?.as_bytes()[1..]].concat()).await?;
    same!(room.read("up").await?, "inside", "`..` at the root is the root");
    room.link("top", up).await?;
    let target = room.stat("top").await?.link.and_then(|link| link.target).map(|(path, kind, _)| (path, kind));
    same!(target, Some((path("/")?, Kind::Directory)));
    Ok(())
}

pub(super) async fn names_that_are_not_utf_8_round_trip(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let mut wanted = Vec::new();
    for name in [&b"\xff\xfe\x80"[..], b"new\nline", b" ", "é".as_bytes(), b"e\xcc\x81", b"\\", b"*", b"-rf"] {
        write_all(&*room.files, &room.path(name)?, name.to_vec()).await?;
        wanted.push(name.to_vec());
    }
    wanted.sort();
    same!(room.names().await?, wanted);
    for name in wanted {
        same!(room.read_path(&room.path(&name)?).await?, name);
    }
    Ok(())
}

pub(super) async fn names_of_255_bytes_are_names(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let name = "n".repeat(255);
    room.write(&name, "long").await?;
    same!(room.read(&name).await?, "long");
    same!(room.names().await?, [name.into_bytes()]);
    Ok(())
}
