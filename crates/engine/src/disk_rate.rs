//! Holds a sandbox to its rate of disk traffic, by a duty cycle.
//!
//! The kernel's own throttles hold back single requests to the disk, also those that are made under locks which others need: of a
//! directory of the host, of a page that all sandboxes share. So a guest with a low rate would hold up everybody for as long as
//! it likes. Here nothing is held back that was begun: what the disk moved is measured, and a sandbox that has had more than its
//! rate is frozen, without any lock, until that is made up for.
//!
//! It holds on average. What was asked for in one request is done at once, and waited for afterwards; nobody measures while there
//! is no server.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, task::spawn_blocking, time::Instant};

use crate::{cgroup::DiskTraffic, freezer::Reason, live::Live};

/// How soon traffic is measured again: soon after some, and after a while of none seldom.
const SOONEST: Duration = Duration::from_millis(5);
const LATEST: Duration = Duration::from_millis(100);

/// What may be moved at once, after a while of nothing: as much as in this part of a second, and this at least.
const BURST_PER_SECOND: u64 = 4;
const LEAST_BURST: u64 = 1 << 20;

/// What was moved too early is waited for so long and no longer. The kernel counts what is written later to whom a file belongs,
/// and in a volume that can be what another sandbox wrote.
const MAX_DEBT_SECONDS: u64 = 30;

/// Of one live sandbox.
#[derive(Default)]
pub(crate) struct DiskRate {
    per_second: Mutex<Option<u64>>,
    /// A command has begun, or the rate is another.
    changed: Notify,
    is_watched: AtomicBool,
}

impl DiskRate {
    pub(crate) fn set(&self, per_second: Option<u64>) {
        *self.per_second.lock().unwrap_or_else(PoisonError::into_inner) = per_second;
        self.wake();
    }

    /// Something may be read or written from here on.
    pub(crate) fn wake(&self) {
        self.changed.notify_one();
    }

    fn per_second(&self) -> Option<u64> {
        *self.per_second.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Measures, freezes and thaws for as long as the sandbox lives here. One does it for each.
pub(crate) async fn watch(live: Arc<Live>) {
    if live.disk_rate.is_watched.swap(true, Ordering::AcqRel) {
        return;
    }
    let Some(meter) = live.with_lease(|lease| lease.limiter.disk_meter()).flatten() else { return };
    let mut ended = live.ends();
    let mut seen = meter.read();
    let mut bucket = Bucket::new(Instant::now());
    let (mut frozen, mut pause) = (false, SOONEST);
    loop {
        let per_second = live.disk_rate.per_second();
        let rests = per_second.is_none() || (!frozen && pause == LATEST && live.is_empty());
        tokio::select! {
            _ = ended.wait_for(|ended| *ended) => return,
            () = live.disk_rate.changed.notified() => pause = SOONEST,
            () = tokio::time::sleep(pause), if !rests => {}
        }
        let now = meter.read();
        let moved = now.since(seen);
        seen = now;
        let wait = live.disk_rate.per_second().and_then(|rate| bucket.spend(moved, rate, Instant::now()));
        if wait.is_some() != frozen {
            match turn(&live, wait.is_some()).await {
                Ok(()) => frozen = !frozen,
                Err(error) if error.kind() == io::ErrorKind::NotConnected => return, // somebody else has it now
                Err(_) => {
                    pause = LATEST; // and then it is tried again
                    continue;
                }
            }
        }
        pause = match wait {
            // What was under way when they were frozen counts, too.
            Some(wait) => wait.clamp(SOONEST, Duration::from_secs(1)),
            None if moved == DiskTraffic::default() => (pause * 2).min(LATEST),
            None => SOONEST,
        };
    }
}

async fn turn(live: &Arc<Live>, frozen: bool) -> io::Result<()> {
    let live = live.clone();
    let turned = spawn_blocking(move || match frozen {
        true => live.freezer.begin_freeze(Reason::DiskRate),
        false => live.freezer.thaw(Reason::DiskRate),
    });
    turned.await.map_err(io::Error::other).flatten()
}

/// What may be moved, each way, in bytes. Below zero: what was moved too early.
struct Bucket {
    read: i64,
    written: i64,
    filled: Instant,
    overdrawn: bool,
}

impl Bucket {
    fn new(now: Instant) -> Self {
        Self { read: i64::MAX, written: i64::MAX, filled: now, overdrawn: false }
    }

    /// How long nothing more may be moved; `None` when something may. Who waits does so until it is worth while.
    fn spend(&mut self, moved: DiskTraffic, per_second: u64, now: Instant) -> Option<Duration> {
        let burst = (per_second / BURST_PER_SECOND).max(LEAST_BURST);
        let bytes = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let passed = now.saturating_duration_since(self.filled).as_micros();
        let gained = u64::try_from(passed * u128::from(per_second) / 1_000_000).unwrap_or(u64::MAX);
        self.filled = now;
        for (credit, moved) in [(&mut self.read, moved.read), (&mut self.written, moved.written)] {
            let left = credit.saturating_add(bytes(gained)).min(bytes(burst)).saturating_sub(bytes(moved));
            *credit = left.max(-bytes(per_second.saturating_mul(MAX_DEBT_SECONDS)));
        }
        let aim = if self.overdrawn { bytes(burst / 2) } else { 0 };
        let missing = aim.saturating_sub(self.read.min(self.written));
        self.overdrawn = missing > 0;
        let micros = u128::from(missing.unsigned_abs()) * 1_000_000 / u128::from(per_second.max(1));
        self.overdrawn.then(|| Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn read(bytes: u64) -> DiskTraffic {
        DiskTraffic { read: bytes, written: 0 }
    }

    /// What a sandbox that reads as fast as the disk gives has read after so long.
    fn moved_within(seconds: u64, rate: u64, disk: u64) -> u64 {
        let (begin, mut at, mut moved, mut waits) = (Instant::now(), Duration::ZERO, 0, false);
        let mut bucket = Bucket::new(begin);
        while at < Duration::from_secs(seconds) {
            let bytes = if waits { 0 } else { disk * SOONEST.as_micros() as u64 / 1_000_000 };
            moved += bytes;
            let wait = bucket.spend(read(bytes), rate, begin + at);
            waits = wait.is_some();
            at += wait.map_or(SOONEST, |wait| wait.clamp(SOONEST, Duration::from_secs(1)));
        }
        moved
    }

    #[test]
    fn the_rate_holds_on_average_however_fast_the_disk_is() {
        for (rate, disk) in [(MIB, 2048 * MIB), (20 * MIB, 2048 * MIB), (20 * MIB, 100 * MIB), (500 * MIB, 600 * MIB)] {
            let (seconds, once) = (60, disk / 100);
            let moved = moved_within(seconds, rate, disk);
            let expected = rate * seconds;
            assert!(moved <= expected + rate / 4 + MIB + once, "{rate} of {disk}: {moved}");
            assert!(moved >= expected / 10 * 9, "{rate} of {disk}: {moved}");
        }
    }

    #[test]
    fn a_sandbox_below_its_rate_never_waits() {
        let begin = Instant::now();
        let mut bucket = Bucket::new(begin);
        for step in 1..1000 {
            let now = begin + step * Duration::from_millis(100);
            assert_eq!(bucket.spend(read(MIB / 10), MIB, now), None, "{step}");
        }
    }

    #[test]
    fn each_way_has_the_whole_rate() {
        let begin = Instant::now();
        let mut bucket = Bucket::new(begin);
        let both = DiskTraffic { read: MIB, written: MIB };
        assert_eq!(bucket.spend(both, MIB, begin), None);
        assert_eq!(bucket.spend(read(MIB), MIB, begin), Some(Duration::from_secs(1)));
        let nothing = DiskTraffic::default();
        let later = begin + Duration::from_secs(1);
        assert_eq!(bucket.spend(nothing, MIB, later), Some(Duration::from_millis(500)), "until it is worth while");
        let later = begin + Duration::from_secs(2);
        assert_eq!(bucket.spend(nothing, MIB, later), None);
        assert!(bucket.spend(DiskTraffic { read: 0, written: 9 * MIB }, MIB, later).is_some());
    }

    #[test]
    fn a_debt_that_others_can_make_is_bounded() {
        let begin = Instant::now();
        let mut bucket = Bucket::new(begin);
        bucket.spend(DiskTraffic { read: 0, written: 100 << 30 }, MIB, begin);
        let later = begin + Duration::from_secs(MAX_DEBT_SECONDS + 1);
        assert_eq!(bucket.spend(DiskTraffic::default(), MIB, later), None);
    }
}
