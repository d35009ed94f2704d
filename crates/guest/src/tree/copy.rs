//! Copying a tree: a template from a directory, and the way out when a rename cannot cross a boundary.

use std::{
    ffi::{CStr, OsStr},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, SeekFrom, Stat},
    io::Errno,
};

use crate::{
    IdMap,
    dir::{Descent, Mounts, open_again, open_below},
    links::FirstNames,
    names::{Below, Names, Next, Place},
    sys, xattr,
};

const CHUNK: usize = 128 * 1024;

/// Copies the content of one directory into another, which is empty. Owners become those of `ids`; modes, times, `user.*`
/// attributes but for `user.overlay.*`, hard links inside the tree and holes in files stay. Devices, sockets and pipes are
/// left out, and what `keep` refuses, with all below it. `on_progress` is told the sum of the bytes so far.
pub fn copy(
    from: BorrowedFd<'_>,
    into: BorrowedFd<'_>,
    ids: IdMap,
    keep: &mut dyn FnMut(&Path, &Stat) -> bool,
    on_progress: &mut dyn FnMut(u64),
) -> io::Result<()> {
    let mut copier = Copier::new(Ownership::Map(ids), keep, on_progress);
    let (from, into) = (open_again(from)?, open_again(into)?);
    copier.tree(from, into)?;
    Ok(())
}

/// Copies one entry under a new name, as this identity may: a rename by other means. Every kind of file is copied or
/// refused, none is left out. Nothing is removed where it fails: that is for the caller. Of modes only `bits` are kept.
pub(crate) fn copy_entry(
    from: BorrowedFd<'_>,
    name: &CStr,
    into: BorrowedFd<'_>,
    as_name: &CStr,
    bits: u32,
) -> Result<(), Errno> {
    let (mut all, mut silent) = (|_: &Path, _: &Stat| true, |_| ());
    let mut copier = Copier::new(Ownership::Keep, &mut all, &mut silent);
    copier.bits = bits;
    let stat = sys::stat_at(from, name)?;
    if sys::file_type(&stat) != FileType::Directory {
        return copier.leaf(from, name, into, as_name, &stat, as_name.to_bytes());
    }
    rustix::fs::mkdirat(into, as_name, Mode::from_raw_mode(0o700))?;
    let source = open_below(from, name, Mounts::Stop)?;
    let target = open_below(into, as_name, Mounts::Stop)?;
    // The copy may lie inside what is copied: it must not be copied again and again.
    copier.skip = Some(sys::id(&rustix::fs::fstat(&target)?));
    copier.tree(source, target)
}

/// Copies a layer into an empty directory, exactly: owners, modes, times, attributes, hard links, holes, pipes, sockets, and
/// the whiteouts and opaque directories that hide what lies below. Blocks are shared where the file system can.
pub fn copy_layer(from: BorrowedFd<'_>, into: BorrowedFd<'_>) -> io::Result<()> {
    let (mut all, mut silent) = (|_: &Path, _: &Stat| true, |_| ());
    let mut copier = Copier::new(Ownership::Exact, &mut all, &mut silent);
    let (from, into) = (open_again(from)?, open_again(into)?);
    Ok(copier.tree(from, into)?)
}

/// The same without sockets: no archive holds one, and what is named by its content has to come out of an archive again.
pub fn copy_content(from: BorrowedFd<'_>, into: BorrowedFd<'_>) -> io::Result<()> {
    let (mut keep, mut silent) = (|_: &Path, stat: &Stat| sys::file_type(stat) != FileType::Socket, |_| ());
    let mut copier = Copier::new(Ownership::Exact, &mut keep, &mut silent);
    Ok(copier.tree(open_again(from)?, open_again(into)?)?)
}

/// Makes a directory look like another: owner, mode, attributes and time.
pub fn dress_like(from: BorrowedFd<'_>, into: BorrowedFd<'_>) -> io::Result<()> {
    Ok(dress_exactly(from, into, &rustix::fs::fstat(from)?)?)
}

#[derive(Clone, Copy)]
pub(super) enum Ownership {
    Map(IdMap),
    /// Where this identity may.
    Keep,
    /// As they are, with all that a layer has; what cannot be kept is an error.
    Exact,
}

pub(super) struct Copier<'a> {
    owners: Ownership,
    keep: &'a mut dyn FnMut(&Path, &Stat) -> bool,
    on_progress: &'a mut dyn FnMut(u64),
    bytes: u64,
    names: Names,
    /// Files with several names, by where the first copy lies.
    linked: FirstNames,
    pub(super) top: Option<OwnedFd>,
    skip: Option<(u64, u64)>,
    /// What may be set of a mode.
    bits: u32,
    /// Whether the file system has said that it shares no blocks.
    shares_nothing: bool,
    buffer: Vec<u8>,
}

/// What is still to be done in a directory, and what it is to look like in the end.
struct Pending {
    below: Below,
    stat: Stat,
}

impl<'a> Copier<'a> {
    pub(super) fn new(
        owners: Ownership,
        keep: &'a mut dyn FnMut(&Path, &Stat) -> bool,
        on_progress: &'a mut dyn FnMut(u64),
    ) -> Self {
        let buffer = vec![0; CHUNK];
        let (names, linked) = (Names::new(), FirstNames::new());
        let (bytes, top, skip, bits, shares_nothing) = (0, None, None, 0o7777, false);
        Self { owners, keep, on_progress, bytes, names, linked, top, skip, bits, shares_nothing, buffer }
    }

    /// Two walks in step. A directory gets its mode and time when it is left: until then it must take entries.
    fn tree(&mut self, from: OwnedFd, into: OwnedFd) -> Result<(), Errno> {
        let stat = rustix::fs::fstat(&from)?;
        self.top = Some(into.try_clone().map_err(|_| Errno::MFILE)?);
        let below = self.directory(from.as_fd(), into.as_fd(), b"", None)?;
        let mut source = Descent::new(from, Pending { below, stat })?;
        let mut target = Descent::new(into, ())?;
        while let Some(pending) = source.state() {
            let name = match pending.below.next() {
                Next::Enter(name) => name,
                Next::Part(place) => {
                    let below = self.directory(source.here()?, target.here()?, source.path(), Some(place))?;
                    source.state().ok_or(Errno::STALE)?.below = below;
                    continue;
                }
                Next::Leave => {
                    let stat = pending.stat;
                    self.dress(source.here()?, target.here()?, &stat)?;
                    source.leave()?;
                    target.leave()?;
                    continue;
                }
            };
            let from = open_below(source.here()?, &name, Mounts::Stop)?;
            let stat = rustix::fs::fstat(&from)?;
            if self.skip == Some(sys::id(&stat)) {
                continue;
            }
            rustix::fs::mkdirat(target.here()?, &name, Mode::from_raw_mode(0o700))?;
            let into = open_below(target.here()?, &name, Mounts::Stop)?;
            let below = self.directory(from.as_fd(), into.as_fd(), &source.path_of(&name), None)?;
            source.enter(&name, from, Pending { below, stat })?;
            target.enter(&name, into, ())?;
        }
        Ok(())
    }

    /// Copies what is no directory in the part at a place, and names the directories.
    fn directory(
        &mut self,
        from: BorrowedFd<'_>,
        into: BorrowedFd<'_>,
        path: &[u8],
        at: Option<Place>,
    ) -> Result<Below, Errno> {
        let part = self.names.part(from, at)?;
        let mut below = Vec::new();
        for name in part.names {
            let stat = match sys::stat_at(from, &name) {
                Err(Errno::NOENT) => continue,
                result => result?,
            };
            let path = if path.is_empty() { name.to_bytes().to_vec() } else { [path, b"/", name.to_bytes()].concat() };
            if !(self.keep)(Path::new(OsStr::from_bytes(&path)), &stat) {
                continue;
            }
            match sys::file_type(&stat) {
                FileType::Directory => below.push(name),
                _ if part.again => {}
                _ => self.leaf(from, &name, into, &name, &stat, &path)?,
            }
        }
        Ok(self.names.below(below, part.place))
    }

    pub(super) fn leaf(
        &mut self,
        from: BorrowedFd<'_>,
        name: &CStr,
        into: BorrowedFd<'_>,
        as_name: &CStr,
        stat: &Stat,
        path: &[u8],
    ) -> Result<(), Errno> {
        let kind = sys::file_type(stat);
        if stat.st_nlink > 1 && (kind == FileType::RegularFile || matches!(self.owners, Ownership::Exact)) {
            if let Some(first) = self.linked.path(sys::id(stat)) {
                match self.link(&first, into, as_name) {
                    Ok(()) => return Ok(()),
                    // As many names as a file may have: the next ones are those of another copy.
                    Err(Errno::MLINK) => {}
                    // What this identity may not link, it copies once more: into its own room.
                    Err(_) if matches!(self.owners, Ownership::Keep) => {}
                    Err(errno) => return Err(errno),
                }
            }
            self.linked.insert(sys::id(stat), path);
        }
        match kind {
            FileType::RegularFile => return self.file(from, name, into, as_name),
            FileType::Symlink => {
                let text = sys::link_text(from, name)?;
                rustix::fs::symlinkat(text.as_slice(), into, as_name)?;
            }
            _ if matches!(self.owners, Ownership::Map(_)) => return Ok(()),
            FileType::Fifo | FileType::Socket => {
                rustix::fs::mknodat(into, as_name, kind, Mode::from_raw_mode(sys::mode(stat) & self.bits), 0)?;
            }
            FileType::CharacterDevice if is_whiteout(stat) && matches!(self.owners, Ownership::Exact) => {
                rustix::fs::mknodat(into, as_name, kind, Mode::from_raw_mode(sys::mode(stat)), 0)?;
            }
            // A device can be made by nobody inside.
            _ => return Err(Errno::PERM),
        }
        if let Some((uid, gid)) = self.owner(stat) {
            let chowned =
                rustix::fs::chownat(into, as_name, Some(sys::uid(uid)), Some(sys::gid(gid)), AtFlags::SYMLINK_NOFOLLOW);
            self.forgive(chowned)?;
        }
        if matches!(self.owners, Ownership::Exact) && kind != FileType::Symlink {
            // The umask had a say. By its name, which nobody else can make a link of: a layer has no other users yet.
            rustix::fs::chmodat(into, as_name, Mode::from_raw_mode(sys::mode(stat)), AtFlags::empty())?;
        }
        let times = sys::mtime(stat.st_mtime, stat.st_mtime_nsec as u32);
        rustix::fs::utimensat(into, as_name, &times, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn file(&mut self, from: BorrowedFd<'_>, name: &CStr, into: BorrowedFd<'_>, as_name: &CStr) -> Result<(), Errno> {
        let (source, stat) = sys::open_regular(from, name, OFlags::RDONLY)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
        let target = rustix::fs::openat(into, as_name, flags, Mode::from_raw_mode(0o600))?;
        self.content(&source, &target, sys::size(&stat))?;
        self.dress(source.as_fd(), target.as_fd(), &stat)
    }

    /// A second name for a copy that was made before. By its path, however long it is, but never through a link.
    fn link(&self, first: &[u8], into: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        let top = self.top.as_ref().ok_or(Errno::NOENT)?;
        let found = sys::find_below(top.as_fd(), first)?;
        rustix::fs::linkat(rustix::fs::CWD, sys::proc_path(&found), into, name, AtFlags::SYMLINK_FOLLOW)
    }

    /// The parts that hold data; the rest stays a hole.
    fn content(&mut self, source: &OwnedFd, target: &OwnedFd, size: u64) -> Result<(), Errno> {
        if matches!(self.owners, Ownership::Exact) && !self.shares_nothing && size > 0 {
            match rustix::fs::ioctl_ficlone(target, source) {
                Ok(()) => return Ok(()),
                Err(_) => self.shares_nothing = true, // then it is copied, and what is wrong with it is said there
            }
        }
        let mut at = 0;
        while at < size {
            let start = match rustix::fs::seek(source, SeekFrom::Data(at)) {
                Ok(start) => start,
                // Nothing but a hole to the end.
                Err(Errno::NXIO) => break,
                Err(Errno::INVAL | Errno::NOTSUP) => at,
                Err(errno) => return Err(errno),
            };
            let end = rustix::fs::seek(source, SeekFrom::Hole(start)).unwrap_or(size).min(size);
            at = self.extent(source, target, start, end)?;
            if at < end {
                break;
            }
        }
        rustix::fs::ftruncate(target, size)
    }

    /// Copies one stretch, and answers where it ended: before `end` when the file was cut meanwhile.
    fn extent(&mut self, source: &OwnedFd, target: &OwnedFd, start: u64, end: u64) -> Result<u64, Errno> {
        let mut at = start;
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
            let n = sys::retry(|| rustix::io::pread(source, &mut self.buffer[..want], at))?;
            if n == 0 {
                break;
            }
            sys::write_all_at(target, &self.buffer[..n], at)?;
            at += n as u64;
            self.bytes += n as u64;
            (self.on_progress)(self.bytes);
        }
        Ok(at)
    }

    /// Owner first: a change of owner takes the setuid bit away. Time last: everything else changes it.
    pub(super) fn dress(&self, from: BorrowedFd<'_>, into: BorrowedFd<'_>, stat: &Stat) -> Result<(), Errno> {
        let path = sys::proc_path(&into);
        if matches!(self.owners, Ownership::Exact) {
            return dress_exactly(from, into, stat);
        }
        let attributes = xattr::read_through(sys::proc_path(&from).as_bytes(), b"user.");
        for (name, value) in attributes.into_iter().filter(|(name, _)| self.takes(name)) {
            self.forgive(xattr::set(path.as_bytes(), &name, &value))?;
        }
        let mut mode = sys::mode(stat) & self.bits;
        if let Some((uid, gid)) = self.owner(stat) {
            let chowned = rustix::fs::fchown(into, Some(sys::uid(uid)), Some(sys::gid(gid)));
            if chowned.is_err() {
                mode &= !0o6000;
            }
            self.forgive(chowned)?;
        }
        sys::chmod(into, mode)?;
        rustix::fs::futimens(into, &sys::mtime(stat.st_mtime, stat.st_mtime_nsec as u32))
    }

    /// What is moved inside stays as it is; what comes from elsewhere brings nothing that overlayfs would believe.
    fn takes(&self, attribute: &[u8]) -> bool {
        !matches!(self.owners, Ownership::Map(_)) || xattr::is_imported(attribute)
    }

    fn owner(&self, stat: &Stat) -> Option<(u32, u32)> {
        match self.owners {
            Ownership::Map(ids) => Some((ids.adopt(stat.st_uid)?, ids.adopt(stat.st_gid)?)),
            Ownership::Keep | Ownership::Exact => Some((stat.st_uid, stat.st_gid)),
        }
    }

    /// What an ordinary user may not keep is lost, as with any copy of theirs; a template's loss is an error.
    fn forgive(&self, result: Result<(), Errno>) -> Result<(), Errno> {
        match (self.owners, result) {
            (Ownership::Keep, Err(Errno::PERM | Errno::INVAL | Errno::NOTSUP | Errno::OVERFLOW)) => Ok(()),
            (_, result) => result,
        }
    }
}

/// What hides a name of the layers below.
pub(super) fn is_whiteout(stat: &Stat) -> bool {
    sys::file_type(stat) == FileType::CharacterDevice && stat.st_rdev == 0
}

/// Owner first: a change of owner takes setuid bits and rights of a program away. Then attributes, since a list of access
/// has a say in the mode. What the target has and the source has not goes, but for opaqueness: who merges layers keeps it.
fn dress_exactly(from: BorrowedFd<'_>, into: BorrowedFd<'_>, stat: &Stat) -> Result<(), Errno> {
    let path = sys::proc_path(&into);
    rustix::fs::fchown(into, Some(sys::uid(stat.st_uid)), Some(sys::gid(stat.st_gid)))?;
    let wanted = xattr::read_of_layer(sys::proc_path(&from).as_bytes());
    for name in xattr::read_of_layer(path.as_bytes()).into_keys() {
        if name != xattr::OPAQUE && !wanted.contains_key(&name) {
            xattr::remove(path.as_bytes(), &name)?;
        }
    }
    for (name, value) in &wanted {
        xattr::set(path.as_bytes(), name, value)?;
    }
    sys::chmod(into, sys::mode(stat))?;
    rustix::fs::futimens(into, &sys::mtime(stat.st_mtime, stat.st_mtime_nsec as u32))
}
