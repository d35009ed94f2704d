//! A tree, entry after entry, with what its files hold.
//!
//! By descriptors: each directory is opened by its name in the one above, and each file by its name in its directory, never
//! through a link. So whoever exchanges a directory for a link while the tree is walked leads the walk nowhere else.

use std::{
    ffi::CStr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use bytes::Bytes;
use cabana_sandbox::{Result, SandboxPath, TreeItem, Walk};
use rustix::{
    buffer::spare_capacity,
    fs::{FileType, OFlags, Stat},
    io::Errno,
};

use crate::{
    Rooted,
    dir::{Descent, Mounts, is_pseudo, open_below},
    errno::fault,
    info::{describe, tags_of},
    names::{Below, Names, Next},
    rooted::{READ, SEARCH},
    sys,
};

/// Of one answer: whoever asks must get to speak.
const BATCH: usize = 256;
const CHUNK: usize = 256 * 1024;

/// A walk under way. It holds some dozens of descriptors at most, however deep the tree is.
pub struct Walker {
    rooted: Rooted,
    base: SandboxPath,
    what: Walk,
    names: Names,
    /// What is left of each directory on the way.
    descent: Descent<Below>,
    /// The file whose entry was given last.
    body: Option<Body>,
}

struct Body {
    file: OwnedFd,
    path: SandboxPath,
    /// A file that grows meanwhile is read to the size it had when it was opened.
    left: u64,
}

/// An entry, and what has to be opened of it.
enum Found {
    Entry,
    Directory(OwnedFd, Below),
    File(OwnedFd, Stat),
    /// Removed since it was listed, or something else by now.
    Gone,
}

impl Rooted {
    /// Follows a link to the directory, and none below it.
    pub fn walk(&self, dir: &SandboxPath, what: Walk) -> Result<Walker> {
        let failed = |e| fault(dir, "walk", e);
        let top = self.open_dir(dir)?;
        let names = Names::new();
        let first = names.part(top.as_fd(), None).map_err(failed)?;
        let descent = Descent::new(top, names.all(first)).map_err(failed)?;
        Ok(Walker { rooted: self.clone(), base: dir.clone(), what, names, descent, body: None })
    }
}

impl Walker {
    /// All that it has open.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.descent.descriptors().chain(self.body.iter().map(|body| body.file.as_fd()))
    }

    /// At most 256 items, and not much more than 256 KiB of content; `None` at the end.
    pub fn next_batch(&mut self) -> Result<Option<Vec<TreeItem>>> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < BATCH && bytes < CHUNK {
            let Some(item) = self.next_item()? else { break };
            if let TreeItem::Content(content) = &item {
                bytes += content.len();
            }
            batch.push(item);
        }
        Ok((!batch.is_empty()).then_some(batch))
    }

    fn next_item(&mut self) -> Result<Option<TreeItem>> {
        loop {
            if let Some(bytes) = self.next_bytes()? {
                return Ok(Some(TreeItem::Content(bytes)));
            }
            let Some(left) = self.descent.state() else { return Ok(None) };
            let failed = |e| fault(&self.base, "walk", e);
            match left.next() {
                Next::Enter(name) => {
                    if let Some(item) = self.visit(&name)? {
                        return Ok(Some(item));
                    }
                }
                Next::Part(place) => {
                    let part = self.names.part(self.descent.here().map_err(failed)?, Some(place)).map_err(failed)?;
                    *self.descent.state().ok_or(Errno::STALE).map_err(failed)? = self.names.all(part);
                }
                Next::Leave => {
                    self.descent.leave().map_err(failed)?;
                }
            }
        }
    }

    fn next_bytes(&mut self) -> Result<Option<Bytes>> {
        let Some(Body { file, path, left }) = self.body.as_mut().filter(|body| body.left > 0) else {
            self.body = None;
            return Ok(None);
        };
        let mut chunk = Vec::with_capacity(usize::try_from(*left).unwrap_or(CHUNK).min(CHUNK));
        let read = sys::retry(|| {
            chunk.clear();
            rustix::io::read(&*file, spare_capacity(&mut chunk))
        });
        read.map_err(|e| fault(path, "read", e))?;
        // The capacity may be larger than asked for: what was promised decides.
        chunk.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
        *left -= chunk.len() as u64;
        if chunk.is_empty() {
            self.body = None;
        }
        Ok((!chunk.is_empty()).then(|| chunk.into()))
    }

    fn visit(&mut self, name: &CStr) -> Result<Option<TreeItem>> {
        let path = self.base.below(&self.descent.path_of(name))?;
        let failed = |e| fault(&path, "walk", e);
        let info = match self.look(name).map_err(failed)? {
            Found::Gone => return Ok(None),
            Found::Directory(fd, names) => {
                let stat = rustix::fs::fstat(&fd).map_err(failed)?;
                let mut info = describe(&self.rooted, &self.rooted.names(), path.clone(), &stat);
                info.tags = tags_of(&fd);
                self.descent.enter(name, fd, names).map_err(failed)?;
                info
            }
            Found::File(file, stat) => {
                let mut info = describe(&self.rooted, &self.rooted.names(), path.clone(), &stat);
                info.tags = tags_of(&file);
                self.body = Some(Body { file, path, left: sys::size(&stat) });
                info
            }
            Found::Entry => {
                let here = self.descent.here().map_err(failed)?;
                match self.rooted.entry(&self.rooted.names(), here, name, path.clone()) {
                    Err(Errno::NOENT | Errno::STALE) => return Ok(None),
                    info => info.map_err(failed)?,
                }
            }
        };
        Ok(Some(TreeItem::Entry(info)))
    }

    fn look(&self, name: &CStr) -> Result<Found, Errno> {
        let here = self.descent.here()?;
        let stat = match sys::stat_at(here, name) {
            Err(Errno::NOENT) => return Ok(Found::Gone),
            stat => stat?,
        };
        match (sys::file_type(&stat), self.what) {
            (FileType::Directory, Walk::Entries { levels }) if self.descent.depth() >= levels as usize => {
                Ok(Found::Entry)
            }
            (FileType::Directory, _) => match self.open_directory(name) {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(Found::Gone),
                Err(Errno::ACCESS | Errno::PERM) if self.what != Walk::Content => Ok(Found::Entry),
                found => found,
            },
            (FileType::RegularFile, Walk::Content) => match sys::open_regular(here, name, OFlags::RDONLY) {
                Err(Errno::NOENT | Errno::NXIO | Errno::ISDIR) => Ok(Found::Gone),
                opened => {
                    let (file, stat) = opened?;
                    self.rooted.judge_stat(&stat, READ)?;
                    Ok(Found::File(file, stat))
                }
            },
            _ => Ok(Found::Entry),
        }
    }

    /// One of the kernel's own holds nothing of anybody: it is an entry, and nothing below it is.
    fn open_directory(&self, name: &CStr) -> Result<Found, Errno> {
        let fd = open_below(self.descent.here()?, name, Mounts::Cross)?;
        if is_pseudo(&fd) {
            return Ok(Found::Entry);
        }
        self.rooted.judge(&fd, READ | SEARCH)?;
        let first = self.names.part(fd.as_fd(), None)?;
        Ok(Found::Directory(fd, self.names.all(first)))
    }
}
