//! Whiteouts that hide nothing.
//!
//! Overlayfs passes whiteouts over only in a directory that several layers have. In one that a single layer has they would be
//! listed, as names that are not there. It never makes one in such a place; merging layers does.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags},
    io::Errno,
};

use super::copy::is_whiteout;
use crate::{
    dir::{Descent, Mounts, open_again, open_below},
    names::{Below, Names, Next, Place},
    sys, xattr,
};

/// Removes the whiteouts of a layer where no directory lies below. `below` are the layers it will lie on, the highest first.
pub fn drop_vain_whiteouts(layer: BorrowedFd<'_>, below: &[BorrowedFd<'_>]) -> io::Result<()> {
    let top = open_again(layer)?;
    let below = below.iter().map(|layer| open_again(*layer)).collect::<Result<Vec<_>, _>>()?;
    let names = Names::new();
    let inside = sweep(&names, top.as_fd(), None, below.is_empty())?;
    let mut descent = Descent::new(top, Level { inside, below })?;
    while let Some(level) = descent.state() {
        let name = match level.inside.next() {
            Next::Enter(name) => name,
            Next::Part(place) => {
                let vain = level.below.is_empty();
                let inside = sweep(&names, descent.here()?, Some(place), vain)?;
                descent.state().ok_or(Errno::STALE)?.inside = inside;
                continue;
            }
            Next::Leave => {
                descent.leave()?;
                continue;
            }
        };
        let mut below = seen(&level.below, &name)?;
        let dir = open_below(descent.here()?, &name, Mounts::Stop)?;
        if is_opaque(&dir) {
            below.clear();
        }
        let inside = sweep(&names, dir.as_fd(), None, below.is_empty())?;
        descent.enter(&name, dir, Level { inside, below })?;
    }
    Ok(())
}

struct Level {
    inside: Below,
    /// The directories that overlayfs would merge with this one.
    below: Vec<OwnedFd>,
}

/// Of the part at a place: names the directories; removes the whiteouts, if they are in vain, and leaves the time as it was.
fn sweep(names: &Names, dir: BorrowedFd<'_>, at: Option<Place>, vain: bool) -> Result<Below, Errno> {
    let was = rustix::fs::fstat(dir)?;
    let (mut below, mut removed) = (Vec::new(), false);
    let part = names.part(dir, at)?;
    for name in part.names {
        let stat = sys::stat_at(dir, &name)?;
        if sys::file_type(&stat) == FileType::Directory {
            below.push(name);
        } else if vain && !part.again && is_whiteout(&stat) {
            rustix::fs::unlinkat(dir, &name, AtFlags::empty())?;
            removed = true;
        }
    }
    if removed {
        rustix::fs::futimens(dir, &sys::mtime(was.st_mtime, was.st_mtime_nsec as u32))?;
    }
    Ok(names.below(below, part.place))
}

/// What overlayfs finds under a name: directories, down to the first that is opaque, or to what is none.
fn seen(layers: &[OwnedFd], name: &CStr) -> Result<Vec<OwnedFd>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut found = Vec::new();
    for layer in layers {
        match rustix::fs::openat(layer, name, flags, Mode::empty()) {
            Ok(dir) => {
                let last = is_opaque(&dir);
                found.push(dir);
                if last {
                    break;
                }
            }
            Err(Errno::NOENT) => {}
            Err(Errno::NOTDIR | Errno::LOOP) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(found)
}

fn is_opaque(dir: &OwnedFd) -> bool {
    xattr::read_of_layer(sys::proc_path(dir).as_bytes()).contains_key(xattr::OPAQUE)
}
