//! When to look at a disk next.

use std::time::Duration;

use cabana_sandbox::Stored;
use tokio::time::Instant;

use super::growth::SHARE;
use crate::space::{Room, Supply};

/// As fast a disk may be expected to fill.
pub(super) const FASTEST: Stored = Stored { bytes: 1 << 30, inodes: 50_000 };
const SOONEST: Duration = Duration::from_millis(20);
pub(super) const LATEST: Duration = Duration::from_secs(1);
/// The longest time that is worth telling from a longer one.
const FAR: Duration = Duration::from_secs(30);
/// A measurement takes at most a tenth of the time, or a half where it is urgent.
pub(super) const REST: u32 = 9;
/// As old may be what was measured before the disk was low.
const FRESH: Duration = Duration::from_secs(30);

/// One that has ended.
pub(super) struct Look {
    pub(super) ended: Instant,
    pub(super) took: Duration,
    /// When it began.
    pub(super) room: Room,
}

impl Look {
    pub(super) fn is_next_due(&self, room: Room, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.ended);
        match (self.room.is_low(), room.is_low()) {
            (false, true) | (true, false) => true,
            (false, false) => since >= FRESH.max(self.took * REST),
            (true, true) if room == self.room => false, // all together have taken nothing
            (true, true) => since >= self.took * if has_fallen(self.room, room) { 1 } else { REST },
        }
    }
}

/// By so much that nothing can wait.
fn has_fallen(before: Room, now: Room) -> bool {
    let fell = |before: Supply, now: Supply| now.free < before.free - before.free / (2 * SHARE);
    fell(before.bytes, now.bytes) || before.inodes.zip(now.inodes).is_some_and(|(before, now)| fell(before, now))
}

/// How long nothing can happen, or nothing that matters.
pub(super) fn next(room: Room) -> Duration {
    let left = |supply: Supply| match supply.free.checked_sub(supply.least) {
        Some(left) => left.checked_sub(supply.least).unwrap_or(left),
        None => supply.free / (2 * SHARE),
    };
    let bytes = until(left(room.bytes), FASTEST.bytes);
    let inodes = room.inodes.map_or(LATEST, |inodes| until(left(inodes), FASTEST.inodes));
    bytes.min(inodes).clamp(SOONEST, LATEST)
}

/// How long so much lasts.
pub(super) fn until(left: u64, fastest: u64) -> Duration {
    Duration::from_secs_f64((left as f64 / fastest as f64).min(FAR.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::{super::test_room::room, *};

    #[test]
    fn a_disk_is_looked_at_the_sooner_the_less_is_left() {
        assert_eq!(next(room(100_000, 1_000_000)), LATEST);
        assert_eq!(next(room(2048 + 512, 1_000_000)), Duration::from_millis(500));
        assert_eq!(next(room(1024 + 512, 1_000_000)), Duration::from_millis(500));
        assert_eq!(next(room(512, 1_000_000)), Duration::from_micros(31_250));
        assert_eq!(next(room(100_000, 9_000)), SOONEST);
    }

    #[test]
    fn a_long_measurement_is_repeated_soon_only_when_the_disk_has_filled() {
        let (ended, took) = (Instant::now(), Duration::from_secs(1));
        let after = |seconds| ended + Duration::from_secs(seconds);
        let low = Look { ended, took, room: room(1000, 1_000_000) };
        let is_due = |look: &Look, mib, now| look.is_next_due(room(mib, 1_000_000), now);
        assert!(!is_due(&low, 1000, after(100)), "nothing was taken");
        assert!(!is_due(&low, 990, after(5)) && is_due(&low, 990, after(9)));
        assert!(!is_due(&low, 900, ended) && is_due(&low, 900, after(1)));
        let scarce = Look { ended, took, room: room(2000, 1_000_000) };
        assert!(is_due(&scarce, 1000, ended));
        assert!(!is_due(&scarce, 1900, after(20)) && is_due(&scarce, 1900, after(30)));
    }
}
