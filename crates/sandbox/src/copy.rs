//! A file or a tree from one sandbox to another (XB-9). Links are flattened: what they lead to is copied, since a link's
//! text means nothing in another sandbox.

use futures_util::TryStreamExt;

use crate::{Alter, Error, FileInfo, Files, Kind, Read, Result, SandboxPath, Write, WriteMode};

/// As many links in a row as the kernel follows.
const MAX_LINKS: u32 = 40;

/// Files keep their permission bits and belong to who writes them. Parents of `target` are not made; a directory that is
/// there is added to. Pipes, sockets and devices below a directory are left out.
pub async fn copy(from: &dyn Files, source: &SandboxPath, to: &dyn Files, target: &SandboxPath) -> Result<()> {
    let info = from.stat(source).await?;
    let mut pending = vec![Step::first(info, target.clone())];
    while let Some(step) = pending.pop() {
        match step.kind {
            Kind::Directory => {
                make_dir(to, &step.target, step.mode).await?;
                let mut listing = from.list(&step.source).await?;
                while let Some(batch) = listing.try_next().await? {
                    for entry in batch {
                        pending.push(step.below(entry)?);
                    }
                }
            }
            // What a link leads to may be out of sight: then `read` says why.
            Kind::File | Kind::Symlink => copy_file(from, &step, to).await?,
            Kind::Other if step.depth == 0 => return Err(Error::NotRegular(step.source)),
            Kind::Other => {}
        }
    }
    Ok(())
}

/// One entry to copy, with links looked through.
struct Step {
    source: SandboxPath,
    target: SandboxPath,
    kind: Kind,
    mode: u32,
    /// Where the source really lies, as far as its links told.
    real: SandboxPath,
    links: u32,
    depth: u32,
}

impl Step {
    fn first(info: FileInfo, target: SandboxPath) -> Self {
        let real = info.path.clone();
        Self { source: info.path, target, kind: info.kind, mode: info.mode, real, links: 0, depth: 0 }
            .through(info.link)
    }

    fn through(mut self, link: Option<crate::Link>) -> Self {
        if let Some((path, kind, mode)) = link.and_then(|link| link.target) {
            (self.real, self.kind, self.mode) = (path, kind, mode);
            self.links += 1;
        }
        self
    }

    fn below(&self, entry: FileInfo) -> Result<Self> {
        let name = entry.path.name();
        let (source, target, real) = (self.source.join(name)?, self.target.join(name)?, self.real.join(name)?);
        let (links, depth) = (self.links, self.depth + 1);
        let step = Self { source, target, kind: entry.kind, mode: entry.mode, real, links, depth }.through(entry.link);
        // A link to a directory above itself would be copied for ever. The count catches circles whose paths do not show it.
        let circle = step.kind == Kind::Directory && step.links > self.links && self.real.is_in(&step.real);
        if circle || step.links > MAX_LINKS { Err(Error::Loop(step.source)) } else { Ok(step) }
    }
}

async fn make_dir(to: &dyn Files, dir: &SandboxPath, mode: u32) -> Result<()> {
    match to.alter(Alter::MakeDir(dir.clone(), mode & 0o777 | 0o700)).await {
        Err(Error::Exists(_)) if to.stat(dir).await?.kind == Kind::Directory => Ok(()),
        result => result,
    }
}

async fn copy_file(from: &dyn Files, step: &Step, to: &dyn Files) -> Result<()> {
    let (info, body) = from.read(&step.source, Read::default()).await?;
    // Its length is not promised: a log that grows while it is copied is no error.
    let how = Write { perm: Some(info.mode & 0o777), ..Write::new(WriteMode::Replace) };
    to.write(&step.target, how, body).await.map(drop)
}
