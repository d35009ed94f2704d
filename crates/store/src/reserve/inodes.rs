//! Empty files: each is an inode that a guest cannot take. Nothing is kept where a file system makes inodes as long as it has room.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use super::{PART_OF_DISK, PARTS};

const MAX_COUNT: u64 = 256;
/// What a start may take: files of the database, and a few drafts.
const FOR_A_START: u64 = 16;
/// What SQLite removes with the last connection to a database, and makes with the first one.
const OF_THE_DATABASE: [&str; 2] = ["cabana.db-wal", "cabana.db-shm"];

#[derive(Debug)]
pub(super) struct Inodes {
    dir: PathBuf,
    /// When it is whole. Zero where the disk counts none.
    count: u64,
    /// What is there of it.
    held: u64,
    /// A part was given up, and is not there again.
    short: bool,
}

impl Inodes {
    pub(super) fn at(dir: &Path) -> Self {
        let count = super::disk_of(dir).map_or(0, |disk| (disk.f_files / PART_OF_DISK).min(MAX_COUNT));
        let (held, is_made) = fs::read_dir(dir).map_or((0, false), |files| (files.count() as u64, true));
        Self { dir: dir.into(), count, held, short: is_made && held < count }
    }

    pub(super) fn ease_start(&mut self) {
        if !self.leaves_less_than(FOR_A_START) {
            return;
        }
        for name in OF_THE_DATABASE {
            self.hand_over(&self.dir.with_file_name(name));
        }
        while self.leaves_less_than(FOR_A_START) && self.give() {}
    }

    pub(super) fn is_short(&self) -> bool {
        self.short
    }

    pub(super) fn give(&mut self) -> bool {
        if !self.leaves_less_than(self.part()) {
            return false;
        }
        let files = fs::read_dir(&self.dir).into_iter().flatten().flatten().take(self.part() as usize);
        let given = files.filter(|file| fs::remove_file(file.path()).is_ok()).count() as u64;
        self.held = self.held.saturating_sub(given);
        self.short |= given > 0;
        given > 0
    }

    pub(super) fn renew(&mut self) {
        let missing = self.count.saturating_sub(self.held);
        if missing > 0 && !self.leaves_less_than(2 * missing) {
            let _ = self.grow(); // a guest was faster: what is there counts
            self.held = fs::read_dir(&self.dir).map_or(0, |files| files.count() as u64);
        }
        self.short &= self.held < self.count;
    }

    fn grow(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        for number in 0..self.count {
            let file = self.dir.join(number.to_string());
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(file)?;
        }
        Ok(())
    }

    /// An empty file under this name, unless there is one: an inode that is never free is not taken by a guest meanwhile.
    fn hand_over(&mut self, to: &Path) {
        let kept = fs::read_dir(&self.dir).into_iter().flatten().flatten().next();
        if let Some(kept) = kept.filter(|_| !to.exists())
            && fs::rename(kept.path(), to).is_ok()
        {
            (self.held, self.short) = (self.held.saturating_sub(1), true);
        }
    }

    fn leaves_less_than(&self, count: u64) -> bool {
        super::disk_of(&self.dir).is_some_and(|disk| disk.f_files > 0 && disk.f_favail < count)
    }

    fn part(&self) -> u64 {
        self.count.div_ceil(PARTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_stays_while_there_are_inodes_and_is_handed_over_as_a_file() {
        let db = tempfile::tempdir().unwrap();
        let mut inodes = Inodes { count: 3, ..Inodes::at(&db.path().join("inodes")) };
        assert!(!inodes.give() && !inodes.is_short(), "there is none");
        inodes.renew();
        assert_eq!((inodes.held, inodes.is_short()), (3, false));
        assert!(!inodes.give(), "the disk has inodes");
        let wal = db.path().join(OF_THE_DATABASE[0]);
        for _ in 0..2 {
            inodes.hand_over(&wal);
            assert_eq!((inodes.held, inodes.is_short()), (2, true), "one, and never in place of what is there");
        }
        assert_eq!(fs::metadata(&wal).unwrap().len(), 0);
        inodes.renew();
        assert_eq!((inodes.held, inodes.is_short()), (3, false));
    }
}
