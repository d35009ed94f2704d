//! Directories: their entries, and the way down and up again.
//!
//! [`Descent`] is how every tree is walked: with a list instead of recursion, by descriptors instead of paths, and with a
//! bounded number of descriptors, so that neither a depth of 10,000 nor a directory that is renamed meanwhile harms.

use std::{
    ffi::{CStr, CString},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{FileType, Mode, OFlags, RawDir, ResolveFlags, SeekFrom},
    io::Errno,
};

use crate::sys;

/// Levels that keep their descriptor. Those further up are found again through `..`.
const OPEN_LEVELS: usize = 64;
const BUFFER: usize = 32 * 1024;

/// Whether a walk goes on below a mount point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mounts {
    Cross,
    /// A mount point is `XDEV`.
    Stop,
}

/// Opens a directory for reading, never through a link.
pub(crate) fn open_below(dir: BorrowedFd<'_>, name: &CStr, mounts: Mounts) -> Result<OwnedFd, Errno> {
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    resolve.set(ResolveFlags::NO_XDEV, mounts == Mounts::Stop);
    sys::openat2(dir, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK, resolve)
}

/// A descriptor of the same directory with a place of its own in the list of entries.
pub(crate) fn open_again(dir: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    sys::openat2(dir, c".", OFlags::RDONLY | OFlags::DIRECTORY, ResolveFlags::NO_MAGICLINKS)
}

/// Calls `visit` for each entry but `.` and `..`, until it says `false`.
pub(crate) fn each_entry<E: From<Errno>>(
    dir: BorrowedFd<'_>,
    mut visit: impl FnMut(&CStr, FileType) -> Result<bool, E>,
) -> Result<(), E> {
    rustix::fs::seek(dir, SeekFrom::Start(0))?;
    let mut buffer = Vec::with_capacity(BUFFER);
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = match entry {
            // What the kernel says of a directory that was removed: it has none any more.
            Err(Errno::NOENT) => break,
            entry => entry?,
        };
        let name = entry.file_name();
        if name != c"." && name != c".." && !visit(name, entry.file_type())? {
            break;
        }
    }
    Ok(())
}

/// All names of a directory, in order.
pub(crate) fn sorted_names(dir: BorrowedFd<'_>) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    each_entry(dir, |name, _| -> Result<bool, Errno> {
        names.push(name.to_owned());
        Ok(true)
    })?;
    names.sort_unstable();
    Ok(names)
}

/// The way from the directory where a walk began to the one where it is, with something remembered at each level.
pub(crate) struct Descent<T> {
    levels: Vec<Level<T>>,
    path: Vec<u8>,
}

struct Level<T> {
    fd: Option<OwnedFd>,
    id: (u64, u64),
    /// How much of the path names the levels above.
    above: usize,
    state: T,
}

impl<T> Descent<T> {
    pub(crate) fn new(fd: OwnedFd, state: T) -> Result<Self, Errno> {
        let id = sys::id(&rustix::fs::fstat(&fd)?);
        Ok(Self { levels: vec![Level { fd: Some(fd), id, above: 0, state }], path: Vec::new() })
    }

    /// Where the walk is. `STALE` when it has ended.
    pub(crate) fn here(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.levels.last().and_then(|level| level.fd.as_ref()).map(AsFd::as_fd).ok_or(Errno::STALE)
    }

    /// Relative to where the walk began; empty there.
    pub(crate) fn path(&self) -> &[u8] {
        &self.path
    }

    pub(crate) fn path_of(&self, name: &CStr) -> Vec<u8> {
        if self.path.is_empty() { name.to_bytes().to_vec() } else { [&self.path, &b"/"[..], name.to_bytes()].concat() }
    }

    pub(crate) fn state(&mut self) -> Option<&mut T> {
        self.levels.last_mut().map(|level| &mut level.state)
    }

    pub(crate) fn states(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.levels.iter().map(|level| &level.state)
    }

    pub(crate) fn enter(&mut self, name: &CStr, fd: OwnedFd, state: T) -> Result<(), Errno> {
        let id = sys::id(&rustix::fs::fstat(&fd)?);
        let above = self.path.len();
        self.path = self.path_of(name);
        self.levels.push(Level { fd: Some(fd), id, above, state });
        if let Some(far) = self.levels.len().checked_sub(OPEN_LEVELS + 1)
            // The first one stays open: it is the anchor.
            && far > 0
        {
            self.levels[far].fd = None;
        }
        Ok(())
    }

    /// One level up. `None` when that was the first. `STALE` when the level above is no longer above: somebody moved the
    /// directory while the walk was in it, and `..` would lead to a place that was never asked for.
    pub(crate) fn leave(&mut self) -> Result<Option<T>, Errno> {
        let Some(left) = self.levels.pop() else { return Ok(None) };
        self.path.truncate(left.above);
        if let (Some(level), Some(below)) = (self.levels.last_mut(), &left.fd)
            && level.fd.is_none()
        {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let above = rustix::fs::openat(below, c"..", flags, Mode::empty())?;
            if sys::id(&rustix::fs::fstat(&above)?) != level.id {
                return Err(Errno::STALE);
            }
            level.fd = Some(above);
        }
        Ok(Some(left.state))
    }

    /// After `STALE`: to the deepest level that is still where it was. What was remembered below it is dropped.
    pub(crate) fn find_way_back(&mut self) -> Result<(), Errno> {
        let (mut there, mut fd) = (1, None::<OwnedFd>);
        while let Some(level) = self.levels.get(there) {
            let end = self.levels.get(there + 1).map_or(self.path.len(), |below| below.above);
            let name = &self.path[level.above..end];
            let name = sys::c_name(name.strip_prefix(b"/").unwrap_or(name))?;
            let above = fd.as_ref().or(self.levels[there - 1].fd.as_ref()).ok_or(Errno::STALE)?;
            match open_below(above.as_fd(), &name, Mounts::Stop) {
                Ok(found) if sys::id(&rustix::fs::fstat(&found)?) == level.id => fd = Some(found),
                Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => break,
                Err(errno) => return Err(errno),
            }
            there += 1;
        }
        if let Some(lost) = self.levels.get(there) {
            self.path.truncate(lost.above);
        }
        self.levels.truncate(there);
        if let (Some(level), Some(fd)) = (self.levels.last_mut(), fd) {
            level.fd = Some(fd);
        }
        Ok(())
    }

    /// Of the levels that have theirs open.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.levels.iter().filter_map(|level| level.fd.as_ref()).map(AsFd::as_fd)
    }

    /// One where the walk began.
    pub(crate) fn depth(&self) -> usize {
        self.levels.len()
    }

    pub(crate) fn ended(&self) -> bool {
        self.levels.is_empty()
    }
}

/// Whether this is one of the kernel's own file systems, which hold no files of anybody.
pub(crate) fn is_pseudo(dir: impl AsFd) -> bool {
    const PROC: u64 = 0x9fa0;
    const SYSFS: u64 = 0x6265_6572;
    const DEVPTS: u64 = 0x1cd1;
    const CGROUP: u64 = 0x27_e0eb;
    const CGROUP2: u64 = 0x6367_7270;
    const MQUEUE: u64 = 0x1980_0202;
    rustix::fs::fstatfs(dir)
        .is_ok_and(|fs| matches!(fs.f_type as u64 & 0xffff_ffff, PROC | SYSFS | DEVPTS | CGROUP | CGROUP2 | MQUEUE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_was_removed_has_no_entries() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("name"), "").unwrap();
        let open = std::fs::File::open(dir.path()).unwrap();
        assert_eq!(sorted_names(open.as_fd()), Ok(vec![c"name".to_owned()]));
        dir.close().unwrap();
        assert_eq!(sorted_names(open.as_fd()), Ok(Vec::new()));
    }
}
