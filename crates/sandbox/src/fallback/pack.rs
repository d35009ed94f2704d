//! A tar of a directory, with list and read alone.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};

use super::tar::{END, Entry, padding};
use crate::{Error, FileInfo, Files, Kind, Read, Result, SandboxPath, Stream, walk::entries};

pub(super) async fn pack(files: &Arc<dyn Files>, dir: &SandboxPath) -> Result<Stream<Bytes>> {
    let prefix = if dir.is_root() { 1 } else { dir.as_bytes().len() + 1 };
    let packing =
        Packing { files: files.clone(), prefix, entries: entries(files, dir).await?, body: None, done: false };
    Ok(stream::try_unfold(packing, |mut packing| async move { Ok(packing.next().await?.map(|b| (b, packing))) })
        .boxed())
}

struct Packing {
    files: Arc<dyn Files>,
    /// How much of each path lies above the directory.
    prefix: usize,
    entries: Stream<FileInfo>,
    body: Option<Body>,
    done: bool,
}

/// The rest of a file whose header has promised `left` more bytes, and then zeros to the end of the block.
struct Body {
    path: SandboxPath,
    bytes: Stream<Bytes>,
    left: u64,
    padding: usize,
}

impl Packing {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            if let Some(body) = &mut self.body {
                match body.next().await? {
                    Some(bytes) => return Ok(Some(bytes)),
                    None => self.body = None,
                }
            } else if let Some(entry) = self.entries.try_next().await? {
                if let Some(header) = self.begin(&entry).await? {
                    return Ok(Some(header.into()));
                }
            } else if self.done {
                return Ok(None);
            } else {
                self.done = true;
                return Ok(Some(Bytes::from_static(&END)));
            }
        }
    }

    /// The entry's header; its body comes next. Pipes, sockets and devices are no part of an archive.
    async fn begin(&mut self, entry: &FileInfo) -> Result<Option<Vec<u8>>> {
        let name = &entry.path.as_bytes()[self.prefix..];
        match entry.kind {
            Kind::Directory => Ok(Some(header(entry, b'5', &[name, b"/"].concat(), b"", 0))),
            Kind::Symlink => {
                let text = entry.link.as_ref().map_or(&b""[..], |link| &link.text);
                Ok(Some(header(entry, b'2', name, text, 0)))
            }
            Kind::File => match self.files.read(&entry.path, Read { cap: u64::MAX, ..Read::default() }).await {
                Ok((info, bytes)) => {
                    let header = header(&info, b'0', name, b"", info.size);
                    let padding = padding(info.size);
                    self.body = Some(Body { path: entry.path.clone(), bytes, left: info.size, padding });
                    Ok(Some(header))
                }
                // Removed since it was listed: then it is not in the directory.
                Err(Error::NotFound(_)) => Ok(None),
                Err(error) => Err(error),
            },
            Kind::Other => Ok(None),
        }
    }
}

impl Body {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        while self.left > 0 {
            let Some(mut bytes) = self.bytes.try_next().await? else {
                return Err(Error::failed("pack", format!("{} became shorter while it was packed", self.path)));
            };
            // A file that grows has the length it had when it was opened.
            bytes.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.left -= bytes.len() as u64;
            if !bytes.is_empty() {
                return Ok(Some(bytes));
            }
        }
        let zeros = std::mem::take(&mut self.padding);
        Ok((zeros > 0).then(|| Bytes::from_static(&END[..]).slice(..zeros)))
    }
}

fn header(info: &FileInfo, kind: u8, name: &[u8], link: &[u8], size: u64) -> Vec<u8> {
    let (mode, modified) = (info.mode, info.modified);
    Entry { kind, name, link, mode, size, modified, owner: &info.owner, group: &info.group }.encode()
}
