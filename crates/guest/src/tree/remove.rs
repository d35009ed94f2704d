//! Removing a tree.

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags},
    io::Errno,
};

use crate::{
    dir::{Descent, Mounts, each_entry, open_below},
    sys,
};

/// Subdirectories that are remembered at a time: a directory may hold millions.
const MANY: usize = 1024;
/// How often a tree that changes under the removal is begun again.
const RESTARTS: usize = 64;
/// How often, in all, a directory may turn out to have been filled again.
const REFILLS: usize = 1024;

/// Removes a file, a link or a whole tree, in which nothing is mounted. Absent is Ok. Directories without permissions are
/// given them first, as far as this identity may.
pub fn remove(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    begin_again_if_stale(parent, name, &Unlink::Any)
}

/// The same, with each directory given to `prepare` before anything in it is removed.
pub fn remove_forced(parent: BorrowedFd<'_>, name: &CStr, prepare: &dyn Fn(BorrowedFd<'_>)) -> io::Result<()> {
    begin_again_if_stale(parent, name, &Unlink::Prepared(prepare))
}

/// The same where a sandbox may have something mounted: that stays, and is `BUSY`.
pub(crate) fn remove_inside(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    begin_again_if_stale(parent, name, &Unlink::NotMounted)
}

enum Unlink<'a> {
    Any,
    NotMounted,
    Prepared(&'a dyn Fn(BorrowedFd<'_>)),
}

impl Unlink<'_> {
    fn file(&self, dir: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        if matches!(self, Self::NotMounted) {
            sys::check_no_mount(dir, name)?;
        }
        rustix::fs::unlinkat(dir, name, AtFlags::empty())
    }

    /// After giving the directory the permission, if that is what is missing.
    fn forced(&self, dir: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        match self.file(dir, name) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ACCESS) => {
                sys::chmod(dir, 0o700).map_err(|_| Errno::ACCESS)?;
                self.file(dir, name)
            }
            Err(errno) => Err(errno),
        }
    }
}

fn begin_again_if_stale(parent: BorrowedFd<'_>, name: &CStr, unlink: &Unlink<'_>) -> io::Result<()> {
    for _ in 1..RESTARTS {
        match remove_once(parent, name, unlink) {
            Err(Errno::STALE) => {}
            result => return Ok(result?),
        }
    }
    Ok(remove_once(parent, name, unlink)?)
}

struct Doomed {
    name: CString,
    below: Vec<CString>,
}

fn remove_once(parent: BorrowedFd<'_>, name: &CStr, unlink: &Unlink<'_>) -> Result<(), Errno> {
    let refused = match unlink.file(parent, name) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(errno @ (Errno::ISDIR | Errno::PERM | Errno::ACCESS)) => errno,
        Err(errno) => return Err(errno),
    };
    let top = match open_forced(parent, name, unlink) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(()),
        // No directory: then the first answer was the true one.
        Err(Errno::NOTDIR | Errno::LOOP) => return Err(refused),
        Err(errno) => return Err(errno),
    };
    let mut descent = Descent::new(top, Doomed { name: name.to_owned(), below: Vec::new() })?;
    let mut refills = 0;
    while let Some(doomed) = descent.state() {
        if let Some(next) = doomed.below.pop() {
            match open_forced(descent.here()?, &next, unlink) {
                Ok(fd) => descent.enter(&next, fd, Doomed { name: next.clone(), below: Vec::new() })?,
                Err(Errno::NOENT) => {}
                Err(Errno::NOTDIR | Errno::LOOP) => unlink.forced(descent.here()?, &next)?,
                Err(errno) => return Err(errno),
            }
            continue;
        }
        let below = sweep(descent.here()?, unlink)?;
        if !below.is_empty() {
            if let Some(doomed) = descent.state() {
                doomed.below = below;
            }
            continue;
        }
        let Some(done) = descent.leave()? else { break };
        let above = if descent.ended() { parent } else { descent.here()? };
        match remove_dir(above, &done.name) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::NOTEMPTY | Errno::EXIST) if refills < REFILLS => {
                refills += 1;
                match descent.state() {
                    Some(doomed) => doomed.below.push(done.name),
                    None => return Err(Errno::STALE),
                }
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Removes what is no directory, and names some of the directories.
fn sweep(dir: BorrowedFd<'_>, unlink: &Unlink<'_>) -> Result<Vec<CString>, Errno> {
    let mut below = Vec::new();
    each_entry(dir, |name, kind| {
        if kind == FileType::Directory {
            below.push(name.to_owned());
        } else {
            match unlink.forced(dir, name) {
                Err(Errno::ISDIR) => below.push(name.to_owned()),
                result => result?,
            }
        }
        Ok::<_, Errno>(below.len() < MANY)
    })?;
    Ok(below)
}

fn remove_dir(dir: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
        // An O_PATH descriptor cannot be changed: then it is not ours to change.
        Err(Errno::ACCESS) if sys::chmod(dir, 0o700).is_ok() => rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR),
        result => result,
    }
}

/// A directory of mode 000 is opened after it was given another mode, through a descriptor that names no path.
fn open_forced(dir: BorrowedFd<'_>, name: &CStr, unlink: &Unlink<'_>) -> Result<OwnedFd, Errno> {
    let opened = open_permitted(dir, name)?;
    if let Unlink::Prepared(prepare) = unlink {
        prepare(opened.as_fd());
    }
    Ok(opened)
}

fn open_permitted(dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    match open_below(dir, name, Mounts::Stop) {
        Err(Errno::ACCESS) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let found = rustix::fs::openat(dir, name, flags, Mode::empty())?;
            sys::chmod_path(&found, 0o700).map_err(|_| Errno::ACCESS)?;
            open_below(dir, name, Mounts::Stop)
        }
        result => result,
    }
}
