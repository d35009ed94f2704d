//! How much room the disk of the data directory has. Where there is little left, nothing new is made: what is there goes on,
//! and can be deleted.

use std::{
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::fs::StatVfs;
use tokio::sync::Notify;

use crate::{Error, Result};

/// How long what was seen is believed: a file gets all the room that it asks for in one call.
const FRESH: Duration = Duration::from_millis(20);
/// Of a small disk no more than this part is kept free, whatever the setting says.
const PART: u64 = 50;

/// What a disk has left, and what is to stay free of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supply {
    pub free: u64,
    pub least: u64,
}

impl Supply {
    pub(crate) fn is_low(self) -> bool {
        self.free < self.least
    }

    /// Not low yet, and soon to be.
    fn is_scarce(self) -> bool {
        self.free < self.least.saturating_mul(2)
    }
}

/// What a disk has left for new files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub bytes: Supply,
    /// `None` where the file system makes them as long as it has bytes.
    pub inodes: Option<Supply>,
}

impl Room {
    fn of(disk: &StatVfs, min_free: u64) -> Self {
        let size = disk.f_blocks.saturating_mul(disk.f_frsize);
        let least = min_free.min(size / PART);
        let bytes = Supply { free: disk.f_bavail.saturating_mul(disk.f_frsize), least };
        // As large a part of them stays free as of the bytes: names alone fill a disk as well.
        let part = u128::from(disk.f_files) * u128::from(least) / u128::from(size.max(1));
        let inodes = Supply { free: disk.f_favail, least: u64::try_from(part).unwrap_or(u64::MAX) };
        Self { bytes, inodes: (disk.f_files > 0).then_some(inodes) }
    }

    pub fn is_low(self) -> bool {
        self.bytes.is_low() || self.inodes.is_some_and(Supply::is_low)
    }

    pub(crate) fn is_scarce(self) -> bool {
        self.bytes.is_scarce() || self.inodes.is_some_and(Supply::is_scarce)
    }

    /// For people: what there is too little of.
    fn shortage(self) -> String {
        let (free, least) = match self.inodes {
            Some(inodes) if !self.bytes.is_low() => (format!("{} inodes", inodes.free), inodes.least.to_string()),
            _ => (size(self.bytes.free), size(self.bytes.least)),
        };
        format!("it has {free} left, and {least} are kept free")
    }
}

pub(crate) struct Space {
    dir: Option<PathBuf>,
    least: Option<u64>,
    seen: Mutex<Option<(Instant, Room)>>,
    low: AtomicBool,
    /// What is told to whoever is refused: what would free something.
    help: Mutex<String>,
    refused: AtomicU64,
    noticed: Notify,
}

impl Space {
    pub(crate) fn new(dir: Option<PathBuf>, least: Option<u64>) -> Self {
        Self {
            dir,
            least,
            seen: Mutex::default(),
            low: AtomicBool::new(false),
            help: Mutex::default(),
            refused: AtomicU64::new(0),
            noticed: Notify::new(),
        }
    }

    /// `None`: nobody wants it watched, or nobody can.
    pub(crate) fn room(&self) -> Option<Room> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, room)) = seen.filter(|(at, _)| at.elapsed() < FRESH) {
            return Some(room);
        }
        drop(seen);
        self.look()
    }

    /// From now on this was seen just now.
    #[cfg(test)]
    pub(crate) fn believe(&self, room: Room) {
        let later = Instant::now() + Duration::from_secs(3600);
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some((later, room));
    }

    /// As it is at this moment.
    pub(crate) fn look(&self) -> Option<Room> {
        let (dir, least) = (self.dir.as_ref()?, self.least?);
        let disk = rustix::fs::statvfs(dir).ok()?;
        let room = Room::of(&disk, least);
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), room));
        if room.is_low() != self.low.swap(room.is_low(), Ordering::Relaxed) {
            if room.is_low() {
                tracing::warn!("the disk is nearly full, and nothing new is made: {}", room.shortage());
            } else {
                tracing::info!(free = room.bytes.free, "the disk has room again");
            }
        }
        Some(room)
    }

    /// Before something is made that takes room.
    pub(crate) fn check(&self) -> Result<()> {
        match self.room() {
            Some(room) if room.is_low() => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                self.noticed.notify_one();
                let help = self.help.lock().unwrap_or_else(PoisonError::into_inner).clone();
                Err(Error::LowDisk { about: Some(format!(": {}{help}", room.shortage())) })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn set_help(&self, help: String) {
        *self.help.lock().unwrap_or_else(PoisonError::into_inner) = help;
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Until somebody is refused.
    pub(crate) async fn noticed(&self) {
        self.noticed.notified().await;
    }
}

/// For people.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut amount, mut unit) = (bytes as f64, 0);
    while amount >= 1024.0 && unit + 1 < UNITS.len() {
        (amount, unit) = (amount / 1024.0, unit + 1);
    }
    match unit {
        0 => format!("{bytes} B"),
        unit => format!("{amount:.1} {}", UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_said_for_people() {
        for (bytes, said) in
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 30, "1.0 GiB"), (1 << 60, "1048576.0 TiB")]
        {
            assert_eq!(size(bytes), said);
        }
    }

    fn disk(free_blocks: u64, inodes: u64, free_inodes: u64) -> StatVfs {
        let mut disk = rustix::fs::statvfs("/").unwrap();
        (disk.f_frsize, disk.f_blocks, disk.f_bavail) = (4096, 1 << 20, free_blocks);
        (disk.f_files, disk.f_favail) = (inodes, free_inodes);
        disk
    }

    #[test]
    fn as_large_a_part_of_the_inodes_stays_free_as_of_the_bytes() {
        // A hundredth of the disk, and no more than a fiftieth.
        for (min_free, least) in [((4096 << 20) / 100, 9_999), (u64::MAX, 19_999), (0, 0)] {
            let inodes = Room::of(&disk(1 << 19, 1_000_000, 500_000), min_free).inodes.unwrap();
            assert_eq!((inodes.least, inodes.is_low()), (least, false));
        }
        let room = Room::of(&disk(1 << 19, 1_000_000, 7), u64::MAX);
        assert!(room.is_low() && !room.bytes.is_low());
        assert_eq!(room.shortage(), "it has 7 inodes left, and 19999 are kept free");
        let room = Room::of(&disk(1, 1_000_000, 7), u64::MAX);
        assert_eq!(room.shortage(), "it has 4.0 KiB left, and 81.9 MiB are kept free");
        let makes_them = Room::of(&disk(1 << 19, 0, 0), u64::MAX);
        assert!(makes_them.inodes.is_none() && !makes_them.is_low());
    }

    #[test]
    fn nothing_is_refused_where_nobody_watches_or_there_is_room() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Space::new(None, Some(u64::MAX)).check().is_ok());
        assert!(Space::new(Some(dir.path().into()), None).check().is_ok());
        assert!(Space::new(Some(dir.path().into()), Some(0)).check().is_ok());
    }
}
