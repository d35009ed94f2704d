//! Who may do what.

use std::{collections::BTreeMap, sync::Arc};

use cabana_sandbox::{Alter, Depth, Error, Read, User, WriteMode, read_all, write_all};

use super::{
    stage::{Stage, body, how, names, path},
    verdict::{Outcome, refused, same},
};

pub(super) async fn a_secret_file_is_denied_to_others(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let secret = room.path("secret")?;
    write_all(&*room.root(), &secret, "of root").await?;
    room.root().alter(Alter::SetMode(secret.clone(), 0o600)).await?;
    refused!(room.files.read(&secret, Read::default()).await, Error::Denied(_));
    for mode in [WriteMode::InPlace, WriteMode::Append] {
        refused!(room.files.write(&secret, how(mode), body(["x"])).await, Error::Denied(_));
    }
    let tags = BTreeMap::from([("tag".to_owned(), "value".to_owned())]);
    refused!(room.files.alter(Alter::SetTags(secret.clone(), tags)).await, Error::Denied(_));
    same!(room.files.stat(&secret).await?.mode, 0o600, "looking at it is no reading");
    same!(read_all(&*room.root(), &secret, 100).await?, "of root");
    Ok(())
}

pub(super) async fn a_closed_directory_is_denied_to_others(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let (root, closed, file) = (room.root(), room.path("closed")?, room.path("closed/file")?);
    root.alter(Alter::MakeDir(closed.clone(), 0o700)).await?;
    write_all(&*root, &file, "of root").await?;
    refused!(room.files.stat(&file).await, Error::Denied(_));
    refused!(room.files.list(&closed).await, Error::Denied(_));
    refused!(room.files.read(&file, Read::default()).await, Error::Denied(_));
    refused!(
        room.files.write(&room.path("closed/new")?, how(WriteMode::CreateNew), body(["x"])).await,
        Error::Denied(_)
    );
    refused!(room.files.write(&file, how(WriteMode::Replace), body(["x"])).await, Error::Denied(_));
    refused!(room.make_dir("closed/new").await, Error::Denied(_));
    refused!(room.link("closed/new", "x").await, Error::Denied(_));
    refused!(room.remove("closed/file").await, Error::Denied(_));
    refused!(room.rename("closed/file", "stolen").await, Error::Denied(_));
    refused!(room.files.watch(&closed, Depth::Here).await, Error::Denied(_));
    refused!(room.remove_all("closed").await, Error::Denied(_));
    room.link("way", "closed/file").await?;
    refused!(room.read("way").await, Error::Denied(_));
    same!(room.stat("way").await?.link.map(|link| link.target), Some(None), "what may not be seen is not shown");
    same!(read_all(&*root, &file, 100).await?, "of root");
    same!(names(&*root, &closed).await?, [b"file".to_vec()]);
    Ok(())
}

pub(super) async fn what_is_made_with_roots_rights_is_the_users_own(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let (root, closed, secret) = (room.root(), room.path("closed")?, room.path("closed/secret")?);
    root.alter(Alter::MakeDir(closed.clone(), 0o700)).await?;
    write_all(&*root, &secret, "of root").await?;
    root.alter(Alter::SetMode(secret.clone(), 0o600)).await?;
    let files = room.sandbox.files_by_root(None);
    same!(read_all(&*files, &secret, 100).await?, "of root");
    same!(names(&*files, &closed).await?, [b"secret".to_vec()]);
    let (dir, new) = (room.path("closed/dir")?, room.path("closed/dir/new")?);
    files.alter(Alter::MakeDir(dir.clone(), 0o755)).await?;
    write_all(&*files, &new, "of the user").await?;
    let user = &stage.subject().user().name;
    for made in [&dir, &new] {
        same!(&files.stat(made).await?.owner, user, "{made}");
    }
    write_all(&*files, &secret, "changed").await?;
    same!(files.stat(&secret).await?.owner, "root", "what was there stays whose it was");
    files.alter(Alter::RemoveAll(closed)).await?;
    refused!(room.sandbox.files_by_root(Some(&User::new("nobody-here")?)).stat(&new).await, Error::UnknownUser(_));
    Ok(())
}

pub(super) async fn root_may_do_everything(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let (root, secret) = (room.root(), room.path("dir/secret")?);
    room.make_dir("dir").await?;
    room.write("dir/secret", "of the user").await?;
    room.set_mode("dir/secret", 0o000).await?;
    room.set_mode("dir", 0o700).await?;
    same!(read_all(&*root, &secret, 100).await?, "of the user");
    root.write(&secret, how(WriteMode::InPlace), body(["changed"])).await?;
    root.alter(Alter::SetMode(secret.clone(), 0o644)).await?;
    same!(room.read("dir/secret").await?, "changed");
    root.alter(Alter::RemoveAll(room.path("dir")?)).await?;
    same!(room.names().await?.len(), 0);
    Ok(())
}

pub(super) async fn only_the_owner_sets_a_mode(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    write_all(&*room.root(), &room.path("file")?, "x").await?;
    refused!(room.set_mode("file", 0o666).await, Error::Denied(_));
    same!(room.stat("file").await?.mode, 0o644);
    Ok(())
}

pub(super) async fn only_root_gives_files_away(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "x").await?;
    let given = room.files.alter(Alter::SetOwner(room.path("file")?, User::root())).await;
    refused!(given, Error::Denied(_));
    same!(room.stat("file").await?.owner, stage.subject().user().name);
    Ok(())
}

pub(super) async fn in_a_sticky_directory_only_owners_remove(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let (root, dir, file) = (room.root(), path("/tmp/sticky")?, path("/tmp/sticky/file")?);
    root.alter(Alter::MakeDir(dir.clone(), 0o1777)).await?;
    write_all(&*root, &file, "of root").await?;
    refused!(room.files.alter(Alter::Remove(file.clone())).await, Error::Denied(_));
    refused!(room.files.alter(Alter::Rename(file.clone(), dir.join(b"moved")?)).await, Error::Denied(_));
    same!(read_all(&*room.files, &file, 100).await?, "of root");
    write_all(&*room.files, &dir.join(b"own")?, "x").await?;
    room.files.alter(Alter::Remove(dir.join(b"own")?)).await?;
    Ok(())
}

pub(super) async fn new_files_belong_to_who_made_them(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let user = stage.subject().user().name;
    room.write("file", "x").await?;
    room.make_dir("dir").await?;
    room.link("link", "file").await?;
    for name in ["file", "dir", "link"] {
        same!(room.stat(name).await?.owner, user, "{name}");
    }
    Ok(())
}

pub(super) async fn the_default_user_is_the_ordinary_one(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let info = write_all(&*room.sandbox.files(None), &room.path("file")?, "x").await?;
    same!(info.owner, stage.subject().user().name);
    Ok(())
}

pub(super) async fn an_unknown_user_is_named_on_use(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "kept").await?;
    let (file, nobody) = (room.path("file")?, room.sandbox.files(Some(&User::new("no-such-user")?)));
    refused!(nobody.stat(&file).await, Error::UnknownUser(_));
    refused!(nobody.list(&room.dir).await, Error::UnknownUser(_));
    refused!(nobody.read(&file, Read::default()).await, Error::UnknownUser(_));
    refused!(nobody.write(&file, how(WriteMode::Replace), body(["x"])).await, Error::UnknownUser(_));
    refused!(nobody.alter(Alter::Remove(file.clone())).await, Error::UnknownUser(_));
    refused!(nobody.watch(&room.dir, Depth::Here).await, Error::UnknownUser(_));
    same!(room.read("file").await?, "kept");
    Ok(())
}

pub(super) async fn a_user_may_be_a_number(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let user = stage.subject().user();
    let by_number = room.sandbox.files(Some(&User::new(user.uid.to_string())?));
    let info = write_all(&*by_number, &room.path("file")?, "x").await?;
    same!(info.owner, user.name);
    Ok(())
}
