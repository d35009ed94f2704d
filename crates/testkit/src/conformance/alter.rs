//! Changes of names, modes, owners, links and tags.

use std::{collections::BTreeMap, sync::Arc};

use cabana_sandbox::{Alter, Error, Kind, User, write_all};

use super::{
    stage::{Stage, names},
    verdict::{Outcome, ensure, refused, same},
};

pub(super) async fn make_dir_sets_the_mode(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    for mode in [0o755, 0o700, 0o777, 0o1777] {
        let name = format!("{mode:o}");
        room.files.alter(Alter::MakeDir(room.path(&name)?, mode)).await?;
        let info = room.stat(&name).await?;
        same!((info.kind, info.mode), (Kind::Directory, mode), "no mask of ours takes bits away");
    }
    Ok(())
}

pub(super) async fn make_dir_of_what_is_there_exists(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.make_dir("dir").await?;
    room.write("dir/file", "kept").await?;
    room.link("link", "nowhere").await?;
    for name in ["dir", "dir/file", "link"] {
        refused!(room.make_dir(name).await, Error::Exists(_));
    }
    same!(room.read("dir/file").await?, "kept");
    Ok(())
}

pub(super) async fn make_dir_makes_no_parents(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    refused!(room.make_dir("missing/dir").await, Error::NotFound(_));
    same!(room.names().await?.len(), 0);
    Ok(())
}

pub(super) async fn rename_moves_files_and_directories(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "content").await?;
    room.set_mode("file", 0o640).await?;
    room.make_dir("dir").await?;
    room.rename("file", "dir/moved").await?;
    refused!(room.stat("file").await, Error::NotFound(_));
    same!(room.read("dir/moved").await?, "content");
    same!(room.stat("dir/moved").await?.mode, 0o640);

    room.rename("dir", "other").await?;
    refused!(room.stat("dir").await, Error::NotFound(_));
    same!(room.read("other/moved").await?, "content");
    refused!(room.rename("other/moved", "missing/moved").await, Error::NotFound(_));
    room.rename("other", "other").await?;
    same!(room.read("other/moved").await?, "content", "a rename to itself changes nothing");
    Ok(())
}

pub(super) async fn rename_replaces_a_file(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("from", "new").await?;
    room.write("to", "old").await?;
    room.rename("from", "to").await?;
    same!(room.read("to").await?, "new");
    same!(room.names().await?, [b"to".to_vec()]);

    room.make_dir("dir").await?;
    room.write("dir/file", "x").await?;
    room.make_dir("empty").await?;
    room.rename("dir", "empty").await?;
    same!(names(&*room.files, &room.path("empty")?).await?, [b"file".to_vec()], "an empty directory is replaced");
    Ok(())
}

pub(super) async fn rename_replaces_no_full_directory(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    for dir in ["from", "to"] {
        room.make_dir(dir).await?;
        room.write(&format!("{dir}/file"), dir).await?;
    }
    room.write("file", "x").await?;
    refused!(room.rename("from", "to").await, Error::NotEmpty(_));
    refused!(room.rename("file", "to").await, Error::IsDirectory(_));
    refused!(room.rename("from", "file").await, Error::NotDirectory(_));
    same!(room.read("from/file").await?, "from");
    same!(room.read("to/file").await?, "to");
    same!(room.read("file").await?, "x");
    Ok(())
}

pub(super) async fn rename_into_itself_is_refused(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.make_dir("dir").await?;
    room.make_dir("dir/below").await?;
    room.write("dir/file", "kept").await?;
    for to in ["dir/new", "dir/below/new"] {
        ensure!(room.rename("dir", to).await.is_err(), "a directory was moved into itself");
    }
    same!(room.read("dir/file").await?, "kept");
    Ok(())
}

pub(super) async fn rename_of_a_link_moves_the_link(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "x").await?;
    room.link("link", "file").await?;
    room.rename("link", "moved").await?;
    same!(room.stat("moved").await?.kind, Kind::Symlink);
    same!(room.stat("file").await?.kind, Kind::File);
    refused!(room.stat("link").await, Error::NotFound(_));
    Ok(())
}

pub(super) async fn remove_takes_files_links_and_empty_directories(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "x").await?;
    room.make_dir("dir").await?;
    room.link("to-file", "file").await?;
    room.link("to-dir", "dir").await?;
    room.link("dangling", "nowhere").await?;
    for link in ["to-file", "to-dir", "dangling"] {
        room.remove(link).await?;
    }
    same!(room.names().await?, [b"dir".to_vec(), b"file".to_vec()], "what links led to is there");
    room.remove("file").await?;
    room.remove("dir").await?;
    same!(room.names().await?.len(), 0);
    Ok(())
}

pub(super) async fn remove_of_a_full_directory_is_not_empty(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.make_dir("dir").await?;
    room.write("dir/file", "kept").await?;
    refused!(room.remove("dir").await, Error::NotEmpty(_));
    same!(room.read("dir/file").await?, "kept");
    Ok(())
}

pub(super) async fn remove_of_nothing_is_not_found(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    refused!(room.remove("missing").await, Error::NotFound(_));
    refused!(room.remove("missing/below").await, Error::NotFound(_));
    Ok(())
}

pub(super) async fn remove_all_takes_the_tree_and_follows_no_link(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.make_dir("outside").await?;
    room.write("outside/file", "kept").await?;
    room.make_dir("tree").await?;
    let mut deep = "tree".to_owned();
    for _ in 0..50 {
        deep.push_str("/d");
        room.make_dir(&deep).await?;
        room.write(&format!("{deep}/file"), "x").await?;
    }
    room.link("tree/link", "../outside").await?;
    room.link("tree/file-link", "../outside/file").await?;
    room.link("to-tree", "tree").await?;
    room.remove_all("to-tree").await?;
    same!(room.stat("tree").await?.kind, Kind::Directory, "of a link it takes the link");
    room.remove_all("tree").await?;
    refused!(room.stat("tree").await, Error::NotFound(_));
    same!(room.read("outside/file").await?, "kept");
    Ok(())
}

pub(super) async fn remove_all_takes_a_file_too_and_not_nothing(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "x").await?;
    room.remove_all("file").await?;
    same!(room.names().await?.len(), 0);
    refused!(room.remove_all("missing").await, Error::NotFound(_));
    Ok(())
}

pub(super) async fn set_mode_masks_to_7777(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "x").await?;
    for (mode, wanted) in [(0o100_600, 0o600), (0o4755, 0o4755), (0o2755, 0o2755), (0, 0), (0o1777, 0o1777)] {
        room.set_mode("file", mode).await?;
        same!(room.stat("file").await?.mode, wanted, "asked for {mode:o}");
    }
    room.link("link", "file").await?;
    room.set_mode("link", 0o600).await?;
    same!(room.stat("file").await?.mode, 0o600, "through a link it is the target's");
    Ok(())
}

pub(super) async fn symlink_refuses_what_is_there(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "kept").await?;
    room.link("link", "file").await?;
    for name in ["file", "link"] {
        refused!(room.link(name, "elsewhere").await, Error::Exists(_));
    }
    same!(room.read("link").await?, "kept");
    refused!(room.link("missing/link", "x").await, Error::NotFound(_));
    ensure!(room.link("empty", "").await.is_err(), "a link without a text was made");
    ensure!(room.link("nul", "a\0b").await.is_err(), "a link with a NUL byte was made");
    Ok(())
}

pub(super) async fn set_tags_replaces_the_set(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "x").await?;
    let sets = [vec![("a", "1"), ("b", "2")], vec![("b", "zwei ✓"), ("c", "")], vec![]];
    for set in sets {
        let tags: BTreeMap<_, _> = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        room.files.alter(Alter::SetTags(room.path("file")?, tags.clone())).await?;
        same!(room.stat("file").await?.tags, tags);
    }
    Ok(())
}

pub(super) async fn set_owner_takes_a_name_or_a_number(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let (user, root) = (stage.subject().user(), room.root());
    let path = room.path("file")?;
    write_all(&*root, &path, "x").await?;
    for (asked, shown) in [(user.name.clone(), user.name.as_str()), ("0".into(), "root"), ("4242".into(), "4242")] {
        root.alter(Alter::SetOwner(path.clone(), User::new(asked)?)).await?;
        same!(root.stat(&path).await?.owner, shown);
    }
    Ok(())
}

pub(super) async fn set_owner_to_nobody_known_is_unknown_user(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "x").await?;
    let given = room.root().alter(Alter::SetOwner(room.path("file")?, User::new("no-such-user")?)).await;
    refused!(given, Error::UnknownUser(_));
    same!(room.stat("file").await?.owner, stage.subject().user().name);
    Ok(())
}
