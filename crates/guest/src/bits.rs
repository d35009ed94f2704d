//! Set-uid and set-gid bits: for a sandbox's own files alone. A view shows files that are somebody else's too, and who sees them
//! there has no mount around them that takes the bits' meaning away.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::{
    fs::{AtFlags, FileType, OFlags, ResolveFlags, StatxFlags},
    io::Errno,
};

use crate::{Rooted, sys};

pub(crate) const SET_IDS: u32 = 0o6000;

impl Rooted {
    /// Whether a mode that somebody asked for may be set on a file, or on what is made in a directory.
    pub(crate) fn check_mode(&self, at: impl AsFd, mode: u32) -> Result<(), Errno> {
        match self.mode_within(at.as_fd(), mode)? == mode {
            true => Ok(()),
            false => Err(Errno::PERM),
        }
    }

    /// A mode that nobody asked for by itself, an older file's or an archive's, as far as it may be set there.
    pub(crate) fn mode_within(&self, at: impl AsFd, mode: u32) -> Result<u32, Errno> {
        if mode & SET_IDS == 0 || self.is_own(at.as_fd())? { Ok(mode) } else { Ok(mode & !SET_IDS) }
    }

    /// The same for a change of what is there: a directory that hands its group on may go on doing so.
    pub(crate) fn check_change(&self, file: impl AsFd, mode: u32) -> Result<(), Errno> {
        let stat = rustix::fs::fstat(file.as_fd())?;
        let hands_on = sys::file_type(&stat) == FileType::Directory && sys::mode(&stat) & 0o2000 != 0;
        if hands_on && mode & SET_IDS == 0o2000 { Ok(()) } else { self.check_mode(file, mode) }
    }

    /// Before a file is written to: the kernel takes the bits away then, but not for who has the host's capabilities.
    pub(crate) fn drop_bits(&self, file: &OwnedFd) -> Result<(), Errno> {
        let mode = sys::mode(&rustix::fs::fstat(file)?);
        match self.mode_within(file, mode)? {
            same if same == mode => Ok(()),
            within => sys::chmod_path(file, within),
        }
    }

    fn is_own(&self, file: BorrowedFd<'_>) -> Result<bool, Errno> {
        let Some(places) = self.own_mounts() else { return Ok(true) };
        let mount = mount_of(file)?;
        for place in places {
            let place = place.as_os_str();
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            let own = match place.is_empty() {
                true => mount_of(self.root())?,
                false => mount_of(sys::openat2(self.root(), place, flags, resolve)?.as_fd())?,
            };
            if own == mount {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn mount_of(file: BorrowedFd<'_>) -> Result<u64, Errno> {
    Ok(rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id)
}
