//! Small things that every user of [`Files`] needs: a whole file in one piece, and parents for a write that makes none.

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::{Alter, Error, FileInfo, Files, Kind, Read, Result, SandboxPath, Write, WriteMode};

/// The whole file; more than `cap` bytes is `TooLarge`.
pub async fn read_all(files: &dyn Files, path: &SandboxPath, cap: u64) -> Result<Bytes> {
    let (_, mut body) = files.read(path, Read { cap, ..Read::default() }).await?;
    let mut whole = BytesMut::new();
    while let Some(chunk) = body.try_next().await? {
        // The file may have grown since it was opened: memory is bounded by what the caller said, not by the sandbox.
        if (whole.len() + chunk.len()) as u64 > cap {
            return Err(Error::TooLarge { cap });
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(whole.freeze())
}

/// Replaces the file, all or nothing. Its parent must be there: see [`make_dirs`].
pub async fn write_all(files: &dyn Files, path: &SandboxPath, content: impl Into<Bytes>) -> Result<FileInfo> {
    let content = content.into();
    let how = Write { len: Some(content.len() as u64), ..Write::new(WriteMode::Replace) };
    files.write(path, how, stream::once(async { Ok(content) }).boxed()).await
}

/// The directory and those above it, 0755 where they are new. There already is Ok; a file in the way is `NotDirectory`.
pub async fn make_dirs(files: &dyn Files, path: &SandboxPath) -> Result<()> {
    let mut missing = vec![path.clone()];
    while let Some(dir) = missing.last() {
        match files.alter(Alter::MakeDir(dir.clone(), 0o755)).await {
            Ok(()) => {
                missing.pop();
            }
            Err(Error::Exists(_)) => {
                require_directory(files, dir).await?;
                missing.pop();
            }
            Err(error @ Error::NotFound(_)) => match dir.parent() {
                Some(parent) => missing.push(parent),
                None => return Err(error),
            },
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn require_directory(files: &dyn Files, path: &SandboxPath) -> Result<()> {
    let info = files.stat(path).await?;
    let kind = info.link.as_ref().map_or(Some(info.kind), |link| link.target.as_ref().map(|(_, kind, _)| *kind));
    if kind == Some(Kind::Directory) { Ok(()) } else { Err(Error::NotDirectory(path.clone())) }
}
