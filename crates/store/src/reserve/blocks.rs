//! A file that gives a part of itself up each time.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use rustix::fs::{FallocateFlags, fallocate};

use super::{PART_OF_DISK, PARTS};

const MAX_SIZE: u64 = 64 << 20;
const LEAST_PART: u64 = 64 << 10;
/// What a start takes: a few directories, locks and pages.
const FOR_A_START: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Blocks {
    path: PathBuf,
    /// When it is whole. Zero where the disk cannot keep room.
    size: u64,
    /// What is there of it.
    held: u64,
    /// A part was given up, and is not there again.
    short: bool,
}

impl Blocks {
    pub(super) fn at(path: &Path) -> Self {
        let size = path.parent().and_then(disk_of).map_or(0, |disk| (disk.size / PART_OF_DISK).min(MAX_SIZE));
        let held = fs::metadata(path).map_or(0, |file| file.len());
        Self { path: path.into(), size, held, short: held > 0 && held < size }
    }

    pub(super) fn ease_start(&mut self) {
        while disk_of(&self.path).is_some_and(|disk| disk.free < FOR_A_START) && self.give() {}
    }

    pub(super) fn is_short(&self) -> bool {
        self.short
    }

    pub(super) fn give(&mut self) -> bool {
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

    pub(super) fn renew(&mut self) {
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

fn disk_of(path: &Path) -> Option<Disk> {
    let about = super::disk_of(path)?;
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
        let mut reserve = Blocks::at(&path);
        assert!(!reserve.give() && !reserve.is_short(), "there is none");
        reserve.renew();
        let made = fs::metadata(&path).unwrap().len();
        assert_eq!((made, reserve.held), (reserve.size, reserve.size));
        assert!(!reserve.give(), "the disk has room");
        assert!(!Blocks::at(&path).is_short());
    }
}
