//! A tar of a directory, made of what a walk of it gives.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};

use super::{
    tar::{END, Entry, padding},
    walk_tree,
};
use crate::{Error, FileInfo, Files, Kind, Result, SandboxPath, Stream, TreeItem, Walk, walk::flatten};

pub(super) async fn pack(files: &Arc<dyn Files>, dir: &SandboxPath) -> Result<Stream<Bytes>> {
    let prefix = if dir.is_root() { 1 } else { dir.as_bytes().len() + 1 };
    let items = flatten(walk_tree(files, dir, Walk::Content).await?);
    let packing = Packing { prefix, items, body: None, done: false };
    Ok(stream::try_unfold(packing, |mut packing| async move { Ok(packing.next().await?.map(|b| (b, packing))) })
        .boxed())
}

struct Packing {
    /// How much of each path lies above the directory.
    prefix: usize,
    items: Stream<TreeItem>,
    body: Option<Body>,
    done: bool,
}

/// A file whose header has promised `left` more bytes, and then zeros to the end of the block.
struct Body {
    path: SandboxPath,
    left: u64,
    padding: usize,
}

impl Packing {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        while !self.done {
            match self.items.try_next().await? {
                Some(TreeItem::Content(bytes)) => {
                    if let Some(body) = &mut self.body {
                        body.left = body.left.saturating_sub(bytes.len() as u64);
                    }
                    return Ok(Some(bytes));
                }
                Some(TreeItem::Entry(entry)) => {
                    let mut out = self.end_body()?;
                    out.extend(self.begin(&entry));
                    if !out.is_empty() {
                        return Ok(Some(out.into()));
                    }
                }
                None => {
                    self.done = true;
                    return Ok(Some([self.end_body()?, END.to_vec()].concat().into()));
                }
            }
        }
        Ok(None)
    }

    /// The zeros behind the last file.
    fn end_body(&mut self) -> Result<Vec<u8>> {
        match self.body.take() {
            Some(body) if body.left > 0 => {
                Err(Error::failed("pack", format!("{} became shorter while it was packed", body.path)))
            }
            Some(body) => Ok(vec![0; body.padding]),
            None => Ok(Vec::new()),
        }
    }

    /// The entry's header; its content comes next. Pipes, sockets and devices are no part of an archive.
    fn begin(&mut self, entry: &FileInfo) -> Vec<u8> {
        let name = &entry.path.as_bytes()[self.prefix..];
        match entry.kind {
            Kind::Directory => header(entry, b'5', &[name, b"/"].concat(), b"", 0),
            Kind::Symlink => {
                let text = entry.link.as_ref().map_or(&b""[..], |link| &link.text);
                header(entry, b'2', name, text, 0)
            }
            Kind::File => {
                self.body = Some(Body { path: entry.path.clone(), left: entry.size, padding: padding(entry.size) });
                header(entry, b'0', name, b"", entry.size)
            }
            Kind::Other => Vec::new(),
        }
    }
}

fn header(info: &FileInfo, kind: u8, name: &[u8], link: &[u8], size: u64) -> Vec<u8> {
    let (mode, modified) = (info.mode, info.modified);
    Entry { kind, name, link, mode, size, modified, owner: &info.owner, group: &info.group }.encode()
}
