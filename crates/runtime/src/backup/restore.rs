//! A data directory from a backup. Everything in the stream may be a lie: what it names is looked up in what can be named, and
//! nothing is written outside of the directory.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

use bytes::Bytes;
use cabana_sandbox::{Error as SandboxError, Provider, SandboxId};
use cabana_store::{Blobs, Durability, OutputFile, Outputs, Store};
use futures_util::{StreamExt, stream};
use tokio::{io::AsyncRead, sync::mpsc};

use super::container::{Container, Part, bad};
use crate::Result;

/// Of the first key: far more than it has.
const KEY: u64 = 4 << 10;

/// What was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Outputs and archives.
    pub files: u64,
    /// What is not there, and why.
    pub left_out: Vec<String>,
}

/// Into a directory with nothing in it but what the provider has made for itself. One that fails leaves parts of it: it is the
/// caller's to remove them.
pub async fn restore(
    from: impl AsyncRead + Unpin + Send,
    provider: &dyn Provider,
    data: &Path,
    durability: Durability,
) -> Result<Restored> {
    let (db, outputs, blobs) = (data.join("db"), data.join("outputs"), data.join("blobs"));
    for dir in [&db, &outputs, &blobs] {
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    }
    let mut container = Container::open(from).await?;
    let (mut had, mut count) = (Had::default(), 0);
    loop {
        match container.part().await? {
            Part::Key => {
                first(&mut had.key, "the first key")?;
                copy(&mut container, create(&data.join("admin.key"))?, KEY).await?;
            }
            Part::Database => {
                first(&mut had.database, "the database")?;
                copy(&mut container, create(&db.join("cabana.db"))?, u64::MAX).await?;
            }
            Part::Output { name } => {
                let file = OutputFile::new(&name).ok_or_else(|| bad(format!("no output has a file {name:?}")))?;
                let made = Outputs::at(&outputs, durability).create_file(&file);
                copy(&mut container, made.map_err(|error| again(error, &name))?, u64::MAX).await?;
                count += 1;
            }
            Part::Archive { of } => {
                let id = SandboxId::new(of).map_err(|error| bad(error.to_string()))?;
                let made = Blobs::at(&blobs, durability).create_file(&id);
                copy(&mut container, made.map_err(|error| again(error, id.as_str()))?, u64::MAX).await?;
                count += 1;
            }
            Part::Sandboxes => {
                first(&mut had.sandboxes, "the sandboxes")?;
                had.left_out = received(&mut container, provider).await?;
            }
            Part::End { files: told } => {
                if container.piece().await?.is_some() || told != count {
                    return Err(bad("its end does not fit what came before it").into());
                }
                break;
            }
        }
    }
    container.end().await?;
    if !(had.key && had.database && had.sandboxes) {
        return Err(bad("a part of it is missing").into());
    }
    // A database that is none is noticed here, and an older one is brought up to date.
    let data = data.to_owned();
    let opened = tokio::task::spawn_blocking(move || Store::open(&data, durability));
    let store = opened.await.map_err(|error| SandboxError::failed("opening the database", error))??;
    store.tenants().await?;
    store.close().await;
    Ok(Restored { files: count, left_out: had.left_out })
}

#[derive(Default)]
struct Had {
    key: bool,
    database: bool,
    sandboxes: bool,
    left_out: Vec<String>,
}

fn first(had: &mut bool, what: &str) -> Result<()> {
    match std::mem::replace(had, true) {
        false => Ok(()),
        true => Err(bad(format!("{what} is in it twice")).into()),
    }
}

fn create(path: &Path) -> Result<File> {
    Ok(OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?)
}

fn again(error: std::io::Error, name: &str) -> SandboxError {
    match error.kind() {
        std::io::ErrorKind::AlreadyExists => bad(format!("{name} is in it twice")),
        _ => failed(error),
    }
}

fn failed(error: std::io::Error) -> SandboxError {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => SandboxError::NoSpace,
        _ => SandboxError::failed("writing what is restored", error),
    }
}

async fn copy<R: AsyncRead + Unpin>(from: &mut Container<R>, into: File, most: u64) -> Result<()> {
    let (mut into, mut rest) = (into, most);
    while let Some(piece) = from.piece().await? {
        rest = rest.checked_sub(piece.len() as u64).ok_or_else(|| bad("a part of it is larger than can be"))?;
        let write = tokio::task::spawn_blocking(move || into.write_all(&piece).map(|()| into));
        into = write.await.map_err(|error| SandboxError::failed("writing what is restored", error))?.map_err(failed)?;
    }
    Ok(())
}

/// The provider reads as it comes. What breaks off is an error for it too, so that it does not look like an end.
async fn received<R: AsyncRead + Unpin>(from: &mut Container<R>, provider: &dyn Provider) -> Result<Vec<String>> {
    let (send, receive) = mpsc::channel::<Result<Bytes, SandboxError>>(4);
    let saved = stream::unfold(receive, |mut receive| async { receive.recv().await.map(|next| (next, receive)) });
    let feed = async {
        loop {
            match from.piece().await {
                Ok(Some(piece)) => {
                    if send.send(Ok(piece)).await.is_err() {
                        return Ok(()); // it has refused what came before
                    }
                }
                Ok(None) => {
                    drop(send);
                    return Ok(());
                }
                Err(error) => {
                    let _ = send.send(Err(bad("it broke off"))).await;
                    return Err(error);
                }
            }
        }
    };
    let (fed, restored) = tokio::join!(feed, provider.restore_all(saved.boxed()));
    fed?;
    Ok(restored?)
}

#[cfg(test)]
mod tests {
    use cabana_testkit::Fake;
    use futures_util::TryStreamExt;

    use super::{super::container::Framer, *};

    const OUTPUT: &str = "fa/0199a1e36ddd427372ba516dbc9344fa.out";

    async fn saved(fake: &Fake) -> Vec<u8> {
        let parts: Vec<Bytes> =
            fake.save_all(std::sync::Arc::new(|_: &str| ())).await.unwrap().try_collect().await.unwrap();
        parts.concat()
    }

    async fn database() -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Durability::Kill).unwrap();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut store.copy_database().await.unwrap(), &mut bytes).unwrap();
        bytes
    }

    fn output(name: &str) -> (Part, Vec<u8>) {
        (Part::Output { name: name.to_owned() }, b"said".to_vec())
    }

    fn end(files: u64) -> (Part, Vec<u8>) {
        (Part::End { files }, Vec::new())
    }

    async fn restored(fake: &Fake, parts: &[(Part, Vec<u8>)]) -> Result<Restored> {
        let (mut framer, line) = Framer::begin();
        let mut bytes = line.to_vec();
        for (part, content) in parts {
            bytes.extend_from_slice(&framer.part(part).unwrap());
            framer.piece(content).iter().for_each(|frame| bytes.extend_from_slice(frame));
            bytes.extend_from_slice(&framer.end());
        }
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let done = restore(&bytes[..], fake, &data, Durability::Kill).await;
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is made beside it");
        done
    }

    #[tokio::test]
    async fn a_backup_that_says_what_cannot_be_is_refused() {
        let fake = Fake::new();
        let (key, database) = ((Part::Key, b"key".to_vec()), (Part::Database, database().await));
        let sandboxes = (Part::Sandboxes, saved(&fake).await);
        let all = |between: &[(Part, Vec<u8>)], last: u64| {
            let mut parts = vec![key.clone(), database.clone()];
            parts.extend_from_slice(between);
            parts.extend([sandboxes.clone(), end(last)]);
            parts
        };
        let good = restored(&fake, &all(&[output(OUTPUT)], 1)).await;
        assert_eq!(good.unwrap(), Restored { files: 1, left_out: Vec::new() });
        let cases = [
            ("a way out", all(&[output("../../admin.key")], 1)),
            ("a way out", all(&[output("fa/../0199a1e36ddd427372ba516dbc9344fa.out")], 1)),
            ("an absolute one", all(&[output("/etc/passwd")], 1)),
            ("twice", all(&[output(OUTPUT), output(OUTPUT)], 2)),
            ("an archive that leads out", all(&[(Part::Archive { of: "../../x".into() }, b"x".to_vec())], 1)),
            ("another number", all(&[output(OUTPUT)], 2)),
            ("two keys", vec![key.clone(), key.clone(), end(0)]),
            ("two databases", vec![database.clone(), database.clone(), end(0)]),
            ("a long key", vec![(Part::Key, vec![b'x'; 5000]), end(0)]),
            ("no key", vec![database.clone(), sandboxes.clone(), end(0)]),
            ("nothing", vec![end(0)]),
            ("no end", vec![key.clone(), database.clone()]),
            ("no sandboxes", vec![key.clone(), database.clone(), end(0)]),
            ("sandboxes that are none", vec![key.clone(), (Part::Sandboxes, b"x".to_vec()), end(0)]),
            ("sandboxes twice", all(std::slice::from_ref(&sandboxes), 0)),
            ("something in its end", vec![key.clone(), (Part::End { files: 0 }, b"x".to_vec())]),
        ];
        for (what, parts) in cases {
            let error = restored(&fake, &parts).await.unwrap_err();
            assert_eq!(error.code(), cabana_model::Code::ArchiveInvalid, "{what}: {error}");
        }
        let no_database = [key.clone(), (Part::Database, b"text".to_vec()), sandboxes.clone(), end(0)];
        assert!(restored(&fake, &no_database).await.is_err());
    }
}
