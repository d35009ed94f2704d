//! What a tree takes on the disk.

use std::{collections::HashSet, ffi::CString, io, os::fd::BorrowedFd};

use rustix::{fs::FileType, io::Errno};

use crate::{
    dir::{Descent, Mounts, each_entry, open_again, open_below},
    sys,
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Blocks in use, the directory's own included; a file with several names counts once.
    pub bytes: u64,
    /// Names below the directory.
    pub entries: u64,
}

/// What comes and goes meanwhile counts or does not; that is no error.
pub fn usage(dir: BorrowedFd<'_>) -> io::Result<Usage> {
    /// Who moves directories about all the time gets the most that was found.
    const TRIES: u32 = 8;
    let mut most = Usage::default();
    for _ in 0..TRIES {
        let (found, whole) = walk(dir)?;
        if whole {
            return Ok(found);
        }
        most = if found.bytes > most.bytes { found } else { most };
    }
    Ok(most)
}

/// Not whole: somebody moved a directory that the walk was far below, and the way back was lost.
fn walk(dir: BorrowedFd<'_>) -> io::Result<(Usage, bool)> {
    let mut count = Count::default();
    let top = open_again(dir)?;
    count.add(&rustix::fs::fstat(&top)?);
    let below = count.directory(dir_of(&top))?;
    let mut descent: Descent<Vec<CString>> = Descent::new(top, below)?;
    while let Some(below) = descent.state() {
        let Some(name) = below.pop() else {
            match descent.leave() {
                Err(Errno::STALE) => return Ok((count.usage, false)),
                left => left?,
            };
            continue;
        };
        match open_below(descent.here()?, &name, Mounts::Stop) {
            Ok(fd) => {
                let below = count.directory(dir_of(&fd))?;
                descent.enter(&name, fd, below)?;
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok((count.usage, true))
}

fn dir_of(fd: &std::os::fd::OwnedFd) -> BorrowedFd<'_> {
    std::os::fd::AsFd::as_fd(fd)
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
