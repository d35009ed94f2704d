//! How a layer of a container image says what it hides: by files with certain names, where overlayfs has whiteouts and
//! attributes.

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use cabana_sandbox::{Error, Result};
use rustix::{
    fs::{AtFlags, FileType, Mode},
    io::Errno,
};

use super::remove;
use crate::{
    IdMap,
    dir::{Descent, Mounts, open_again, open_below, sorted_names},
    sys, xattr,
};

/// Before the name of what is hidden.
const HIDES: &[u8] = b".wh.";
/// Hides everything of the layers below in its directory.
const HIDES_ALL: &[u8] = b".wh..wh..opq";
/// Other things of this prefix were notes of a file system for itself.
const NOTES: &[u8] = b".wh..wh.";

/// Turns the marks of a layer, in a directory that nobody else sees, into whiteouts and opaque directories. Whether it hides
/// all that lies below it: a root cannot say so itself.
pub fn apply_marks(layer: BorrowedFd<'_>, ids: IdMap) -> Result<bool> {
    let top = open_again(layer).map_err(failed)?;
    let (names, all) = marks_in(&top, ids)?;
    let mut descent = Descent::new(top, names).map_err(failed)?;
    while let Some(names) = descent.state() {
        let Some(name) = names.pop() else {
            descent.leave().map_err(failed)?;
            continue;
        };
        let dir = descent.here().and_then(|here| open_below(here, &name, Mounts::Stop)).map_err(failed)?;
        let (names, opaque) = marks_in(&dir, ids)?;
        if opaque {
            cover(&dir).map_err(failed)?;
        }
        descent.enter(&name, dir, names).map_err(failed)?;
    }
    Ok(all)
}

/// Of one directory: the directories in it, and whether it is opaque. Its time stays as it was.
fn marks_in(dir: &OwnedFd, ids: IdMap) -> Result<(Vec<CString>, bool)> {
    let was = rustix::fs::fstat(dir).map_err(failed)?;
    let (mut below, mut hidden, mut opaque, mut found) = (Vec::new(), Vec::new(), false, false);
    for name in sorted_names(dir.as_fd()).map_err(failed)? {
        let Some(of) = name.to_bytes().strip_prefix(HIDES) else {
            let stat = sys::stat_at(dir, &name).map_err(failed)?;
            if sys::file_type(&stat) == FileType::Directory {
                below.push(name);
            }
            continue;
        };
        if name.to_bytes() == HIDES_ALL {
            opaque = true;
        } else if !name.to_bytes().starts_with(NOTES) {
            if matches!(of, b"" | b"." | b"..") {
                return Err(Error::Archive(format!("the mark {name:?} hides nothing that can have a name")));
            }
            hidden.push(sys::c_name(of).map_err(failed)?);
        }
        remove(dir.as_fd(), &name).map_err(|e| Error::failed("apply the marks of a layer", e))?;
        found = true;
    }
    for name in hidden {
        hide(dir, &name, ids).map_err(failed)?;
    }
    if found {
        rustix::fs::futimens(dir, &sys::mtime(was.st_mtime, was.st_mtime_nsec as u32)).map_err(failed)?;
    }
    Ok((below, opaque))
}

/// What the layer has of that name itself stays: the mark speaks of the layers below.
fn hide(dir: &OwnedFd, name: &CStr, ids: IdMap) -> Result<(), Errno> {
    match rustix::fs::mknodat(dir, name, FileType::CharacterDevice, Mode::empty(), 0) {
        Err(Errno::EXIST) => {}
        made => {
            made?;
            let root = ids.outside(0).ok_or(Errno::INVAL)?;
            return rustix::fs::chownat(
                dir,
                name,
                Some(sys::uid(root)),
                Some(sys::gid(root)),
                AtFlags::SYMLINK_NOFOLLOW,
            );
        }
    }
    match sys::file_type(&sys::stat_at(dir, name)?) {
        FileType::Directory => cover(&open_below(dir.as_fd(), name, Mounts::Stop)?),
        _ => Ok(()),
    }
}

fn failed(errno: Errno) -> Error {
    match errno {
        Errno::NOSPC | Errno::DQUOT => Error::NoSpace,
        errno => Error::failed("apply the marks of a layer", io::Error::from(errno)),
    }
}

fn cover(dir: &OwnedFd) -> Result<(), Errno> {
    xattr::set(sys::proc_path(dir).as_bytes(), xattr::OPAQUE, b"y")
}
