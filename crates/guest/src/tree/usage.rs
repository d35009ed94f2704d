//! What a tree takes on the disk.

use std::{
    collections::HashSet,
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{FileType, OFlags, ResolveFlags},
    io::Errno,
};

use crate::{
    dir::{Descent, each_entry},
    sys,
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Blocks in use, the directory's own included; a file with several names counts once.
    pub bytes: u64,
    /// Names below the directory.
    pub entries: u64,
}

impl Usage {
    /// With a block for each name: an empty file has none, and takes an inode that the file system may have no more of.
    pub fn with_names(self) -> u64 {
        const BLOCK: u64 = 4096;
        self.bytes.saturating_add(self.entries.saturating_mul(BLOCK))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measured {
    Whole(Usage),
    /// Directories were moved about whenever it was measured, far above where the walk was: so much was found nevertheless.
    AtLeast(Usage),
}

impl Measured {
    pub fn found(self) -> Usage {
        match self {
            Self::Whole(usage) | Self::AtLeast(usage) => usage,
        }
    }
}

/// How often a tree is walked until it keeps still for long enough.
const TRIES: u32 = 4;
/// How often the way back may be lost in one walk: each time it costs as many steps as the tree is deep.
const LOSSES: u32 = 64;

/// What comes and goes meanwhile counts or does not; that is no error.
pub fn usage(dir: BorrowedFd<'_>) -> io::Result<Measured> {
    let mut most = Usage::default();
    for _ in 0..TRIES {
        match walk(dir)? {
            Measured::AtLeast(found) if found.bytes > most.bytes => most = found,
            Measured::AtLeast(_) => {}
            whole => return Ok(whole),
        }
    }
    Ok(Measured::AtLeast(most))
}

fn walk(dir: BorrowedFd<'_>) -> io::Result<Measured> {
    let (mut count, mut losses) = (Count::default(), 0);
    let top = open_unnoticed(dir, c".")?;
    count.add(&rustix::fs::fstat(&top)?);
    let below = count.directory(top.as_fd())?;
    let mut descent: Descent<Vec<CString>> = Descent::new(top, below)?;
    while let Some(below) = descent.state() {
        let Some(name) = below.pop() else {
            match descent.leave() {
                // What else is there counts all the same, or it would be the place to hide something.
                Err(Errno::STALE) if losses < LOSSES => {
                    losses += 1;
                    descent.find_way_back()?;
                }
                Err(Errno::STALE) => break,
                left => drop(left?),
            }
            continue;
        };
        match open_unnoticed(descent.here()?, &name) {
            Ok(fd) => {
                let below = count.directory(fd.as_fd())?;
                descent.enter(&name, fd, below)?;
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(if losses == 0 { Measured::Whole(count.usage) } else { Measured::AtLeast(count.usage) })
}

/// A time of access would tell a guest where the walk is, and when to move something behind it.
fn open_unnoticed(dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOATIME;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match sys::openat2(dir, name, flags, resolve) {
        // That is for owners to ask.
        Err(Errno::PERM) => sys::openat2(dir, name, flags - OFlags::NOATIME, resolve),
        opened => opened,
    }
}

#[derive(Default)]
struct Count {
    usage: Usage,
    linked: HashSet<(u64, u64)>,
}

impl Count {
    /// Counts the entries and names the subdirectories.
    fn directory(&mut self, dir: BorrowedFd<'_>) -> Result<Vec<CString>, Errno> {
        let mut below = Vec::new();
        each_entry(dir, |name, _| {
            match sys::stat_at(dir, name) {
                Ok(stat) => {
                    self.usage.entries += 1;
                    self.add(&stat);
                    if sys::file_type(&stat) == FileType::Directory {
                        below.push(name.to_owned());
                    }
                }
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
            Ok::<_, Errno>(true)
        })?;
        Ok(below)
    }

    fn add(&mut self, stat: &rustix::fs::Stat) {
        let alone = stat.st_nlink < 2 || sys::file_type(stat) == FileType::Directory;
        if alone || self.linked.insert(sys::id(stat)) {
            self.usage.bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
        }
    }
}
