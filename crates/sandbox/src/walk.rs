//! What lies below a directory, one entry after the other (XB-9).

use std::{sync::Arc, vec};

use futures_util::{StreamExt, TryStreamExt, future, stream};

use crate::{Error, FileInfo, Files, Kind, Result, SandboxPath, Stream};

/// Everything below `dir` that is no directory, in no particular order. A link is one entry and is not followed.
pub async fn walk(files: &Arc<dyn Files>, dir: &SandboxPath) -> Result<Stream<FileInfo>> {
    let all = entries(files, dir).await?;
    Ok(all.try_filter(|entry| future::ready(entry.kind != Kind::Directory)).boxed())
}

/// Everything below `dir`, each directory before what it holds.
pub(crate) async fn entries(files: &Arc<dyn Files>, dir: &SandboxPath) -> Result<Stream<FileInfo>> {
    let listing = files.list(dir).await?;
    let walk =
        Walk { files: files.clone(), listing: Some(listing), batch: Vec::new().into_iter(), pending: Vec::new() };
    Ok(stream::try_unfold(walk, |mut walk| async move { Ok(walk.next().await?.map(|entry| (entry, walk))) }).boxed())
}

/// Keeps the directories that are still to be listed, not a call for each level: no tree is too deep for it.
struct Walk {
    files: Arc<dyn Files>,
    listing: Option<Stream<Vec<FileInfo>>>,
    batch: vec::IntoIter<FileInfo>,
    pending: Vec<SandboxPath>,
}

impl Walk {
    async fn next(&mut self) -> Result<Option<FileInfo>> {
        loop {
            if let Some(entry) = self.batch.next() {
                if entry.kind == Kind::Directory {
                    self.pending.push(entry.path.clone());
                }
                return Ok(Some(entry));
            }
            if let Some(listing) = &mut self.listing {
                match listing.try_next().await? {
                    Some(batch) => self.batch = batch.into_iter(),
                    None => self.listing = None,
                }
                continue;
            }
            let Some(dir) = self.pending.pop() else { return Ok(None) };
            self.listing = match self.files.list(&dir).await {
                Ok(listing) => Some(listing),
                // The sandbox lives on while it is walked: what was removed since it was listed is not there.
                Err(Error::NotFound(_)) => None,
                Err(error) => return Err(error),
            };
        }
    }
}
