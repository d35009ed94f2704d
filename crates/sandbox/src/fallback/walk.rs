//! A tree walked with list and read alone: by paths, so only for a provider whose trees nobody changes meanwhile.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::{Error, FileInfo, Files, Kind, Read, Result, SandboxPath, Stream, TreeItem, Walk};

pub(super) async fn walk(files: &Arc<dyn Files>, dir: &SandboxPath, what: Walk) -> Result<Stream<Vec<TreeItem>>> {
    let open = vec![last_name_first(files, dir).await?];
    let walking = Walking { files: files.clone(), what, open, body: None };
    let items = stream::try_unfold(walking, |mut walking| async move {
        Ok(walking.next().await?.map(|item| (vec![item], walking)))
    });
    Ok(items.boxed())
}

/// Keeps what is left of each directory on the way, not a call for each level: no tree is too deep for it.
struct Walking {
    files: Arc<dyn Files>,
    what: Walk,
    open: Vec<Vec<FileInfo>>,
    body: Option<Body>,
}

struct Body {
    bytes: Stream<Bytes>,
    left: u64,
}

impl Walking {
    async fn next(&mut self) -> Result<Option<TreeItem>> {
        loop {
            if let Some(bytes) = self.next_bytes().await? {
                return Ok(Some(TreeItem::Content(bytes)));
            }
            let Some(left) = self.open.last_mut() else { return Ok(None) };
            let Some(entry) = left.pop() else {
                self.open.pop();
                continue;
            };
            let entry = match (entry.kind, self.what) {
                (Kind::Directory, _) => self.enter(entry).await?,
                (Kind::File, Walk::Content) => self.open_file(entry).await?,
                _ => Some(entry),
            };
            if let Some(entry) = entry {
                return Ok(Some(TreeItem::Entry(entry)));
            }
        }
    }

    async fn next_bytes(&mut self) -> Result<Option<Bytes>> {
        while let Some(Body { bytes, left }) = self.body.as_mut().filter(|body| body.left > 0) {
            let Some(mut next) = bytes.try_next().await? else { break };
            next.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= next.len() as u64;
            if !next.is_empty() {
                return Ok(Some(next));
            }
        }
        self.body = None;
        Ok(None)
    }

    async fn enter(&mut self, entry: FileInfo) -> Result<Option<FileInfo>> {
        if let Walk::Entries { levels } = self.what
            && self.open.len() >= levels as usize
        {
            return Ok(Some(entry));
        }
        match last_name_first(&self.files, &entry.path).await {
            Ok(entries) => self.open.push(entries),
            // What was removed since it was listed is not there.
            Err(Error::NotFound(_) | Error::NotDirectory(_)) => return Ok(None),
            Err(Error::Denied(_)) if self.what != Walk::Content => {}
            Err(error) => return Err(error),
        }
        Ok(Some(entry))
    }

    async fn open_file(&mut self, entry: FileInfo) -> Result<Option<FileInfo>> {
        match self.files.read(&entry.path, Read { cap: u64::MAX, ..Read::default() }).await {
            Ok((info, bytes)) => {
                self.body = Some(Body { bytes, left: info.size });
                Ok(Some(info))
            }
            // Removed since it was listed, or something else by now: then it is not in the directory.
            Err(Error::NotFound(_) | Error::NotRegular(_) | Error::IsDirectory(_) | Error::NotDirectory(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

async fn last_name_first(files: &Arc<dyn Files>, dir: &SandboxPath) -> Result<Vec<FileInfo>> {
    let mut entries: Vec<FileInfo> = files.list(dir).await?.try_concat().await?;
    entries.sort_by(|one, other| other.path.name().cmp(one.path.name()));
    Ok(entries)
}
