//! Room on the disk that is kept for the store: a file that gives a part of itself up each time a write finds the disk full. So what
//! frees something can be recorded, on a disk that sandboxes have filled.
//!
//! It is given up bit by bit, since guests take what is free as well, and grows again as soon as there is room.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use rustix::fs::{FallocateFlags, fallocate, statvfs};

const MAX_SIZE: u64 = 64 << 20;
/// Of a small disk no more than this part.
const PART_OF_DISK: u64 = 32;
/// In so many parts it is given up.
const PARTS: u64 = 8;
const LEAST_PART: u64 = 64 << 10;
/// What a start takes: a few directories, locks and pages.
const FOR_A_START: u64 = 1 << 20;

#[derive(Debug)]
pub struct Reserve {
    path: PathBuf,
    /// When it is whole. Zero where the disk cannot keep room.
    size: u64,
    /// What is there of it.
    held: u64,
    /// A part was given up, and is not there again.
    short: bool,
}

impl Reserve {
    /// As a server before left it. Nothing is made.
    pub fn of(data: &Path) -> Self {
        Self::at(&data.join("db").join("reserve"))
    }

    pub(crate) fn at(path: &Path) -> Self {
        let size = path.parent().and_then(disk_of).map_or(0, |disk| (disk.size / PART_OF_DISK).min(MAX_SIZE));
        let held = fs::metadata(path).map_or(0, |file| file.len());
        Self { path: path.into(), size, held, short: held > 0 && held < size }
    }

    /// Before a server starts: what it needs for that.
    pub fn ease_start(mut self) {
        while disk_of(&self.path).is_some_and(|disk| disk.free < FOR_A_START) && self.give() {}
    }

    pub(crate) fn is_short(&self) -> bool {
        self.short
    }

    /// After a write that failed. True: there is more room than before.
    pub(crate) fn give(&mut self) -> bool {
        let is_full = disk_of(&self.path).is_some_and(|disk| disk.free < self.part());
        if !is_full || self.held == 0 {
            return false;
        }
        let rest = self.held.saturating_sub(self.part());
        let given = OpenOptions::new().write(true).open(&self.path).and_then(|file| file.set_len(rest));
        if given.is_err() {
            return false;
        }
        (self.held, self.short) = (rest, true);
        true
    }

    /// Makes it whole where that leaves as much free again.
    pub(crate) fn renew(&mut self) {
        let missing = self.size.saturating_sub(self.held);
        if missing == 0 {
            self.short = false;
            return;
        }
        if disk_of(&self.path).is_none_or(|disk| disk.free < 2 * missing) {
            return;
        }
        match self.grow() {
            Ok(()) => (self.held, self.short) = (self.size, false),
            // Not every file system can keep room for a file.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => self.size = 0,
            Err(_) => self.held = fs::metadata(&self.path).map_or(0, |file| file.len()),
        }
    }

    fn grow(&self) -> io::Result<()> {
        let file: File = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&self.path)?;
        Ok(fallocate(&file, FallocateFlags::empty(), 0, self.size)?)
    }

    fn part(&self) -> u64 {
        (self.size / PARTS).max(LEAST_PART)
    }
}

struct Disk {
    size: u64,
    free: u64,
}

/// The one that a file lies on, or would.
fn disk_of(path: &Path) -> Option<Disk> {
    let about = path.ancestors().find_map(|path| statvfs(path).ok())?;
    let bytes = |blocks: u64| blocks.saturating_mul(about.f_frsize);
    Some(Disk { size: bytes(about.f_blocks), free: bytes(about.f_bavail) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_is_made_where_there_is_room_and_given_up_on_a_full_disk_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("reserve");
        let mut reserve = Reserve::at(&path);
        assert!(!reserve.give() && !reserve.is_short(), "there is none");
        reserve.renew();
        let made = fs::metadata(&path).unwrap().len();
        assert_eq!((made, reserve.held), (reserve.size, reserve.size));
        assert!(!reserve.give(), "the disk has room");
        assert!(!Reserve::at(&path).is_short());
    }
}
