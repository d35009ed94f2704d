//! How much there is of it on the whole machine, and when that is too much.

use std::time::Duration;

use crate::cgroup::Charged;

/// What all sandboxes may have together: this part of the machine's memory, and within these bounds. What programs need grows with
/// their number, and hardly with the machine.
const PART: u64 = 64;
const LEAST_BOUND: u64 = 32 << 20;
const GREATEST_BOUND: u64 = 512 << 20;

/// As fast as one processor may be expected to take it in a second. What is left says when to look again.
const FASTEST: u64 = 1 << 30;
pub(super) const SOONEST: Duration = Duration::from_millis(10);
pub(super) const LATEST: Duration = Duration::from_secs(1);

/// This part of the bound in a minute may be what the machine takes for itself.
const DRIFT: u64 = 64;

/// What the kernel cannot give up, in bytes: what sandboxes have is a part of it.
pub(super) struct Level {
    pub(super) bound: u64,
    /// What is not theirs.
    base: u64,
    counted: u64,
    /// Charged in a way that cannot be told apart, when the base was known.
    charged: u64,
}

impl Level {
    /// What there was before any of them ran is not theirs.
    pub(super) fn new(bound: u64, now: u64, charged: Charged) -> Self {
        Self { bound, base: now, counted: now, charged: charged.with_others }
    }

    pub(super) fn sink_to(&mut self, now: u64) {
        self.base = self.base.min(now);
        self.counted = self.counted.min(now);
    }

    pub(super) fn used(&self, now: u64) -> u64 {
        now.saturating_sub(self.base)
    }

    /// By how much it may grow before they are counted.
    pub(super) fn left(&self, now: u64) -> u64 {
        (self.base + self.bound).max(self.counted + self.bound / 4).saturating_sub(now)
    }

    /// Whether too much was not found, and is not charged to them either.
    pub(super) fn is_missing(&self, now: u64, certain: u64, charged: Charged) -> bool {
        let grown = charged.with_others.saturating_sub(self.charged);
        self.used(now).saturating_sub(certain).saturating_sub(grown) > self.bound
    }

    /// What they have was counted. Where that is all, the rest is somebody else's; where it is not, it becomes that no faster than it
    /// grows without them.
    pub(super) fn settle(&mut self, now: u64, counted: u64, charged: Charged, is_all: bool, elapsed: Duration) {
        self.counted = now;
        let others = now.saturating_sub(counted);
        if is_all {
            (self.base, self.charged) = (self.base.max(others), charged.with_others);
        } else {
            let drift = (self.bound / DRIFT).saturating_mul(elapsed.as_secs()) / 60;
            self.base = self.base.max(others.min(self.base.saturating_add(drift)));
        }
    }
}

/// As much as one may take in so many microseconds of a processor.
pub(super) fn may_take(cpu: u64) -> u64 {
    u64::try_from(u128::from(cpu) * u128::from(FASTEST) / 1_000_000).unwrap_or(u64::MAX)
}

pub(super) fn bound(memory: u64) -> u64 {
    (memory / PART).clamp(LEAST_BOUND, GREATEST_BOUND)
}

/// How long nothing can happen that matters.
pub(super) fn pace(left: u64, processors: u64) -> Duration {
    let fastest = FASTEST.saturating_mul(processors);
    Duration::from_secs_f64((left as f64 / fastest as f64).min(LATEST.as_secs_f64())).max(SOONEST)
}

/// Of the machine, in bytes.
pub(super) fn of_machine(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn nothing() -> Charged {
        Charged::default()
    }

    #[test]
    fn what_grows_is_counted_before_it_is_too_much() {
        let mut level = Level::new(100 * MIB, 20 * MIB, nothing());
        assert_eq!(level.left(60 * MIB), 60 * MIB);
        assert_eq!(level.left(150 * MIB), 0);
        level.settle(150 * MIB, 10 * MIB, nothing(), true, Duration::ZERO);
        assert_eq!((level.used(150 * MIB), level.left(150 * MIB)), (10 * MIB, 90 * MIB));
        level.sink_to(50 * MIB);
        assert_eq!(level.left(50 * MIB), 100 * MIB, "what went was somebody else's");
        level.settle(150 * MIB, 99 * MIB, nothing(), true, Duration::ZERO);
        assert_eq!(level.left(150 * MIB), 25 * MIB, "who has nearly all does not have all counted all the time");
    }

    #[test]
    fn lists_that_were_counted_twice_are_not_taken_from_the_machine() {
        let mut level = Level::new(100 * MIB, 50 * MIB, nothing());
        level.settle(60 * MIB, 5000 * MIB, nothing(), true, Duration::ZERO);
        assert_eq!(level.used(60 * MIB), 10 * MIB);
        level.settle(60 * MIB, 5000 * MIB, nothing(), false, Duration::ZERO);
        assert_eq!(level.used(60 * MIB), 10 * MIB);
    }

    #[test]
    fn what_is_missing_is_not_forgotten_and_not_what_is_charged() {
        let mut level = Level::new(100 * MIB, 0, nothing());
        let charged = Charged { exact: 0, with_others: 250 * MIB };
        assert!(!level.is_missing(300 * MIB, 10 * MIB, charged), "it is charged to them");
        assert!(!level.is_missing(110 * MIB, 10 * MIB, nothing()), "it is not too much");
        assert!(level.is_missing(150 * MIB, 10 * MIB, nothing()));
        level.settle(150 * MIB, 10 * MIB, nothing(), false, Duration::ZERO);
        assert_eq!((level.used(150 * MIB), level.left(150 * MIB)), (150 * MIB, 25 * MIB));
        level.settle(150 * MIB, 10 * MIB, nothing(), false, Duration::from_secs(32 * 60));
        assert_eq!(level.used(150 * MIB), 100 * MIB, "a machine takes some for itself");
        level.settle(150 * MIB, 10 * MIB, nothing(), true, Duration::ZERO);
        assert_eq!(level.used(150 * MIB), 10 * MIB, "all was seen");
    }

    #[test]
    fn a_large_machine_has_a_bound_as_a_small_one_has() {
        assert_eq!([1 << 30, 24 << 30, 256 << 30].map(bound), [32 * MIB, 384 * MIB, 512 * MIB]);
        assert_eq!(pace(32 * MIB, 2), Duration::from_micros(15_625));
        assert_eq!(pace(0, 1), SOONEST);
        assert_eq!(pace(u64::MAX, 1), LATEST);
    }
}
