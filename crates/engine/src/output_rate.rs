//! How fast the server takes what the commands of a sandbox say.
//!
//! A guest fills a pipe without copying anything (tee), and the server copies what is in it on its own time. So a sandbox with
//! a limit of its processor has bytes to spend, and as many more each second as that limit is worth; when they are spent the
//! pipe stays full, which holds up the command.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use cabana_sandbox::Limits;

/// What can be spent at once: what an ordinary command says passes without a look at the clock.
const BURST: i64 = 64 << 20;
/// In bytes each second, for a thousandth of a processor: 256 MiB for a whole one.
const RATE: u64 = (256 << 20) / 1000;

pub(crate) struct OutputRate {
    /// Zero: there is no bound.
    per_second: AtomicU64,
    credit: AtomicI64,
    filled: Mutex<Instant>,
}

impl OutputRate {
    pub(crate) fn new(limits: &Limits) -> Self {
        let rate =
            Self { per_second: AtomicU64::new(0), credit: AtomicI64::new(BURST), filled: Mutex::new(Instant::now()) };
        rate.set(limits);
        rate
    }

    pub(crate) fn set(&self, limits: &Limits) {
        let per_second = limits.cpu_milli.map_or(0, |milli| (u64::from(milli) * RATE).max(1));
        self.per_second.store(per_second, Ordering::Relaxed);
    }

    pub(crate) fn spend(&self, bytes: usize) {
        self.credit.fetch_sub(i64::try_from(bytes).unwrap_or(i64::MAX), Ordering::Relaxed);
    }

    /// Until there is something to spend.
    pub(crate) async fn wait(&self) {
        while self.credit.load(Ordering::Relaxed) <= 0 && self.per_second.load(Ordering::Relaxed) > 0 {
            match self.refill(Instant::now()) {
                Some(missing) => tokio::time::sleep(missing).await,
                None => return,
            }
        }
    }

    /// Adds what has come since the last time. How long to wait where that is not enough.
    fn refill(&self, now: Instant) -> Option<Duration> {
        let mut filled = self.filled.lock().unwrap_or_else(PoisonError::into_inner);
        let per_second = self.per_second.load(Ordering::Relaxed).max(1);
        let passed = now.saturating_duration_since(*filled);
        let more = i64::try_from(passed.as_micros() * u128::from(per_second) / 1_000_000).unwrap_or(i64::MAX);
        let credit = self.credit.load(Ordering::Relaxed);
        let gained = more.min(BURST.saturating_sub(credit));
        if gained > 0 {
            *filled = now;
        }
        let credit = self.credit.fetch_add(gained.max(0), Ordering::Relaxed) + gained.max(0);
        let missing = credit.unsigned_abs().saturating_mul(1000) / per_second;
        (credit <= 0).then(|| Duration::from_millis(missing.clamp(1, 1000)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(cpu_milli: Option<u32>) -> OutputRate {
        OutputRate::new(&Limits { cpu_milli, ..Limits::NONE })
    }

    /// How many bytes are taken within so long, by a guest whose pipe is always full.
    fn taken(rate: &OutputRate, within: Duration) -> u64 {
        let (begin, mut now, mut taken) = (Instant::now(), Duration::ZERO, 0);
        while now < within {
            if rate.credit.load(Ordering::Relaxed) <= 0
                && let Some(missing) = rate.refill(begin + now)
            {
                now += missing;
                continue;
            }
            rate.spend(64 << 10);
            taken += 64 << 10;
        }
        taken
    }

    #[test]
    fn a_tenth_of_a_processor_is_worth_a_tenth_of_the_rate() {
        let (burst, second) = (BURST as u64, 256 << 20);
        for (milli, seconds) in [(100, 10), (1000, 3), (1, 60)] {
            let taken = taken(&limited(Some(milli)), Duration::from_secs(seconds));
            let expected = burst + second * u64::from(milli) / 1000 * seconds;
            assert!(taken.abs_diff(expected) <= expected / 50 + (1 << 20), "{milli}: {taken} of {expected}");
        }
    }

    #[tokio::test]
    async fn without_a_limit_nothing_waits_and_a_new_limit_holds() {
        let rate = limited(None);
        rate.spend(1 << 40);
        rate.wait().await;
        rate.set(&Limits { cpu_milli: Some(1), ..Limits::NONE });
        let waited = tokio::time::timeout(Duration::from_millis(50), rate.wait()).await;
        assert!(waited.is_err());
    }
}
