//! A data directory from a backup. Everything in the stream may be a lie: what it names is looked up in what can be named, and
//! nothing is written outside of the directory.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

use bytes::Bytes;
use cabana_sandbox::{Error as SandboxError, Provider};
use cabana_store::{Durability, OutputFile, Outputs, Store};
use futures_util::{StreamExt, stream};
use tokio::{io::AsyncRead, sync::mpsc};

use super::container::{Container, Part, bad};
use crate::Result;

/// Of the first key: far more than it has.
const KEY: u64 = 4 << 10;

/// What was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    pub outputs: u64,
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
    let (db, outputs) = (data.join("db"), data.join("outputs"));
    for dir in [&db, &outputs] {
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
                let made =
                    Outputs::at(&outputs, durability).create_file(&file).map_err(|error| match error.kind() {
                        std::io::ErrorKind::AlreadyExists => bad(format!("{name} is in it twice")),
                        _ => failed(error),
                    })?;
                copy(&mut container, made, u64::MAX).await?;
                count += 1;
            }
            Part::Sandboxes => {
                first(&mut had.sandboxes, "the sandboxes")?;
                had.left_out = received(&mut container, provider).await?;
            }
            Part::End { outputs: told } => {
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
    let opened = tokio::task::spawn_blocking(move || Store::open(&db, &outputs, durability));
    let store = opened.await.map_err(|error| SandboxError::failed("opening the database", error))??;
    store.tenants().await?;
    store.close().await;
    Ok(Restored { outputs: count, left_out: had.left_out })
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
