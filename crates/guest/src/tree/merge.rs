//! One layer merged into another: as overlayfs would show the two, and still a layer that hides what lies below both.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{FileType, Mode, Stat},
    io::Errno,
};

use super::{
    copy::{Copier, Ownership},
    remove,
};
use crate::{
    dir::{Descent, Mounts, open_again, open_below},
    names::{Below, Names, Next, Place},
    sys, xattr,
};

/// Lays `upper` over what is in `into`, which nobody else sees yet. Whiteouts stay whiteouts; a directory that replaces
/// something else, or lies over a whiteout, becomes opaque, or what both hid would come back.
pub fn merge_layer(upper: BorrowedFd<'_>, into: BorrowedFd<'_>) -> io::Result<()> {
    let (mut all, mut silent) = (|_: &Path, _: &Stat| true, |_| ());
    let copier = Copier::new(Ownership::Exact, &mut all, &mut silent);
    Ok(Merge { copier, names: Names::new() }.tree(open_again(upper)?, open_again(into)?)?)
}

struct Merge<'a> {
    copier: Copier<'a>,
    names: Names,
}

struct Pending {
    below: Below,
    stat: Stat,
    /// Set when the directory is left: it comes last.
    opaque: bool,
}

impl Merge<'_> {
    /// Two walks in step, as a copy does it.
    fn tree(&mut self, from: OwnedFd, into: OwnedFd) -> Result<(), Errno> {
        let stat = rustix::fs::fstat(&from)?;
        self.copier.top = Some(into.try_clone().map_err(|_| Errno::MFILE)?);
        let below = self.directory(from.as_fd(), into.as_fd(), b"", None)?;
        let mut source = Descent::new(from, Pending { below, stat, opaque: false })?;
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
                    let (stat, opaque) = (pending.stat, pending.opaque);
                    self.leave(source.here()?, target.here()?, &stat, opaque)?;
                    source.leave()?;
                    target.leave()?;
                    continue;
                }
            };
            let from = open_below(source.here()?, &name, Mounts::Stop)?;
            let stat = rustix::fs::fstat(&from)?;
            let opaque = make_room(&from, target.here()?, &name)?;
            let into = open_below(target.here()?, &name, Mounts::Stop)?;
            let below = self.directory(from.as_fd(), into.as_fd(), &source.path_of(&name), None)?;
            source.enter(&name, from, Pending { below, stat, opaque })?;
            target.enter(&name, into, ())?;
        }
        Ok(())
    }

    /// Replaces what is no directory in the part at a place, and names the directories.
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
            let stat = sys::stat_at(from, &name)?;
            if sys::file_type(&stat) == FileType::Directory {
                below.push(name);
                continue;
            }
            if part.again {
                continue;
            }
            take_away(into, &name)?;
            let path = if path.is_empty() { name.to_bytes().to_vec() } else { [path, b"/", name.to_bytes()].concat() };
            self.copier.leaf(from, &name, into, &name, &stat, &path)?;
        }
        Ok(self.names.below(below, part.place))
    }

    fn leave(&self, from: BorrowedFd<'_>, into: BorrowedFd<'_>, stat: &Stat, opaque: bool) -> Result<(), Errno> {
        if opaque {
            xattr::set(sys::proc_path(&into).as_bytes(), xattr::OPAQUE, b"y")?;
        }
        self.copier.dress(from, into, stat)
    }
}

/// Sees to it that there is a directory of the name to merge into. Whether it hides what lies below.
fn make_room(from: &OwnedFd, into: BorrowedFd<'_>, name: &CStr) -> Result<bool, Errno> {
    let there = match sys::stat_at(into, name) {
        Err(Errno::NOENT) => None,
        found => Some(sys::file_type(&found?)),
    };
    let attributes = xattr::read_of_layer(sys::proc_path(from).as_bytes());
    let covers = attributes.contains_key(xattr::OPAQUE);
    if there == Some(FileType::Directory) && !covers {
        return Ok(false); // what it hid, it hides
    }
    take_away(into, name)?;
    rustix::fs::mkdirat(into, name, Mode::from_raw_mode(0o700))?;
    Ok(covers || there.is_some())
}

fn take_away(dir: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    remove(dir, name).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
