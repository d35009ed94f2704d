//! Room on the disk that is kept for the store, and given up when a write finds the disk full. So what frees something can be
//! recorded, on a disk that sandboxes have filled: with bytes, or with names that take all its inodes.
//!
//! It is given up bit by bit, since guests take what is free as well, and grows again as soon as there is room.

mod blocks;
mod inodes;

use std::path::Path;

use rustix::fs::{StatVfs, statvfs};

use self::{blocks::Blocks, inodes::Inodes};

/// Of a small disk no more than this part.
const PART_OF_DISK: u64 = 32;
/// In so many parts it is given up.
const PARTS: u64 = 8;

#[derive(Debug)]
pub struct Reserve {
    blocks: Blocks,
    inodes: Inodes,
}

impl Reserve {
    /// As a server before left it. Nothing is made.
    pub fn of(data: &Path) -> Self {
        Self::in_dir(&data.join("db"))
    }

    pub(crate) fn in_dir(db: &Path) -> Self {
        Self { blocks: Blocks::at(&db.join("reserve")), inodes: Inodes::at(&db.join("inodes")) }
    }

    /// Before a server starts: what it needs for that.
    pub fn ease_start(mut self) {
        self.blocks.ease_start();
        self.inodes.ease_start();
    }

    pub(crate) fn is_short(&self) -> bool {
        self.blocks.is_short() || self.inodes.is_short()
    }

    /// After a write that failed. True: there is more room than before.
    pub(crate) fn give(&mut self) -> bool {
        self.blocks.give() || self.inodes.give()
    }

    /// Makes it whole where that leaves as much free again.
    pub(crate) fn renew(&mut self) {
        self.blocks.renew();
        self.inodes.renew();
    }
}

/// The one that a file lies on, or would.
fn disk_of(path: &Path) -> Option<StatVfs> {
    path.ancestors().find_map(|path| statvfs(path).ok())
}
