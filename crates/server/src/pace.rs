//! How fast the server works for each tenant, where guests decide how much there is to do.
//!
//! Outputs that are followed: what one of their followers is told is written for it alone, so many of them behind a command that says much
//! would take the processors of all. And answers of ports: a guest sends very many chunks with one call of the kernel, and each is work
//! of ours.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cabana_runtime::Tenant;
use tokio::time::Instant;

/// Bytes, of all that one tenant has of its kind; and what is done at once after a quiet while.
const PER_SEC: u32 = 64 << 20;
const AT_ONCE: Duration = Duration::from_secs(1);

/// When each tenant that had something lately may have all again of what is done at once.
#[derive(Default)]
pub(crate) struct TenantPace(Mutex<HashMap<Tenant, Instant>>);

impl TenantPace {
    /// Returns when so many bytes may be worked off.
    pub(crate) async fn wait(&self, tenant: &Tenant, bytes: usize) {
        let now = Instant::now();
        let due = self.reserve(tenant, bytes, now);
        if due <= now {
            return; // a timer is late by up to a millisecond
        }
        let given_up = GivenUp { pace: self, tenant, bytes };
        tokio::time::sleep_until(due).await;
        std::mem::forget(given_up);
    }

    fn reserve(&self, tenant: &Tenant, bytes: usize, now: Instant) -> Instant {
        let mut rested = self.rested();
        if !rested.contains_key(tenant) {
            rested.retain(|_, rested| *rested > now);
        }
        let rested = rested.entry(tenant.clone()).or_insert(now);
        *rested = (*rested).max(now) + takes(bytes);
        rested.checked_sub(AT_ONCE).unwrap_or(now).max(now)
    }

    fn rested(&self) -> MutexGuard<'_, HashMap<Tenant, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn takes(bytes: usize) -> Duration {
    Duration::from_secs(bytes as u64) / PER_SEC
}

/// Of one that went away while it waited: its turn is another's.
struct GivenUp<'a> {
    pace: &'a TenantPace,
    tenant: &'a Tenant,
    bytes: usize,
}

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        if let Some(rested) = self.pace.rested().get_mut(self.tenant) {
            *rested = rested.checked_sub(takes(self.bytes)).unwrap_or(*rested);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn one_that_goes_away_while_it_waits_gives_its_turn_to_others() {
        let (pace, tenant, now) = (TenantPace::default(), Tenant::new("one").unwrap(), Instant::now());
        let hour = PER_SEC as usize * 3600;
        pace.reserve(&tenant, hour, now);
        for _ in 0..100 {
            assert!(pace.wait(&tenant, hour).now_or_never().is_none());
        }
        let due = pace.reserve(&tenant, 0, now);
        assert!(due < now + Duration::from_secs(3601), "{:?}", due - now);
    }

    #[test]
    fn a_tenants_followers_share_one_pace_and_anothers_have_their_own() {
        let (pace, now) = (TenantPace::default(), Instant::now());
        let [one, two] = ["one", "two"].map(|name| Tenant::new(name).unwrap());
        let second = PER_SEC as usize;
        let wait = |tenant: &Tenant, bytes: usize, after: u64| {
            let at = now + Duration::from_secs(after);
            pace.reserve(tenant, bytes, at).duration_since(at).as_millis()
        };
        assert_eq!([wait(&one, second, 0), wait(&one, second / 2, 0), wait(&one, second / 2, 0)], [0, 500, 1000]);
        assert_eq!(wait(&two, second, 0), 0);
        assert_eq!(wait(&one, second, 60), 0, "it had time to rest");
        wait(&Tenant::new("three").unwrap(), 1, 120);
        assert_eq!(pace.0.lock().unwrap().len(), 1, "who rests takes no room");
    }
}
