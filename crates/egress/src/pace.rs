//! So many a second, and a few more at once: who is faster waits.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

pub(crate) struct Pace {
    /// From one to the next.
    apart: Duration,
    burst: u32,
    /// When all of the burst can be had again.
    rested: Mutex<Instant>,
}

impl Pace {
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        let apart = Duration::from_secs(1) / per_second.max(1);
        Self { apart, burst: burst.max(1), rested: Mutex::new(Instant::now()) }
    }

    /// Returns when the next one may be, in the order in which they came.
    pub(crate) async fn next(&self) {
        sleep_until(self.reserve(Instant::now())).await;
    }

    /// When one that comes now may be.
    fn reserve(&self, now: Instant) -> Instant {
        let mut rested = self.rested.lock().unwrap_or_else(PoisonError::into_inner);
        *rested = (*rested).max(now) + self.apart;
        // Within the burst there is no wait until all of it is there again.
        rested.checked_sub(self.apart * self.burst).unwrap_or(now).max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_at_once_and_what_follows_at_its_pace() {
        let (pace, begun) = (Pace::new(10, 5), Instant::now());
        let waits = |now: Instant, count: u32| -> Vec<u128> {
            (0..count).map(|_| pace.reserve(now).duration_since(now).as_millis()).collect()
        };
        assert_eq!(waits(begun, 8), [0, 0, 0, 0, 0, 100, 200, 300]);
        assert_eq!(waits(begun + Duration::from_millis(800), 1), [0], "its turn is over");
        assert_eq!(waits(begun + Duration::from_secs(60), 6), [0, 0, 0, 0, 0, 100], "it had time to rest");
    }
}
