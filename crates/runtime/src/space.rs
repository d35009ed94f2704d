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

use tokio::sync::Notify;

use crate::{Error, Result};

/// How long what was seen is believed.
const FRESH: Duration = Duration::from_secs(1);
/// Of a small disk no more than this part is kept free, whatever the setting says.
const PART: u64 = 50;

/// What a disk has left, and what is to stay free of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub free: u64,
    pub least: u64,
}

impl Room {
    pub fn is_low(self) -> bool {
        self.free < self.least
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
        let (dir, least) = (self.dir.as_ref()?, self.least?);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, room)) = seen.filter(|(at, _)| at.elapsed() < FRESH) {
            return Some(room);
        }
        let disk = rustix::fs::statvfs(dir).ok()?;
        let room = Room {
            free: disk.f_bavail.saturating_mul(disk.f_frsize),
            least: least.min(disk.f_blocks.saturating_mul(disk.f_frsize) / PART),
        };
        *seen = Some((Instant::now(), room));
        drop(seen);
        if room.is_low() != self.low.swap(room.is_low(), Ordering::Relaxed) {
            if room.is_low() {
                tracing::warn!(free = room.free, least = room.least, "the disk is nearly full: nothing new is made");
            } else {
                tracing::info!(free = room.free, "the disk has room again");
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
                let (free, least) = (size(room.free), size(room.least));
                Err(Error::LowDisk { about: Some(format!(": it has {free} left, and {least} are kept free{help}")) })
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

    #[test]
    fn nothing_is_refused_where_nobody_watches_or_there_is_room() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Space::new(None, Some(u64::MAX)).check().is_ok());
        assert!(Space::new(Some(dir.path().into()), None).check().is_ok());
        assert!(Space::new(Some(dir.path().into()), Some(0)).check().is_ok());
    }
}
