//! How fast the server works for each tenant, where guests decide how much there is to do.
//!
//! Outputs that are followed: what one of their followers is told is written for it alone, so many of them behind a command that says much
//! would take the processors of all. And answers of ports: a guest sends very many chunks with one call of the kernel, and each is work
//! of ours.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
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
        tokio::time::sleep_until(self.reserve(tenant, bytes, Instant::now())).await;
    }

    fn reserve(&self, tenant: &Tenant, bytes: usize, now: Instant) -> Instant {
        let takes = Duration::from_secs(bytes as u64) / PER_SEC;
        let mut rested = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !rested.contains_key(tenant) {
            rested.retain(|_, rested| *rested > now);
        }
        let rested = rested.entry(tenant.clone()).or_insert(now);
        *rested = (*rested).max(now) + takes;
        rested.checked_sub(AT_ONCE).unwrap_or(now).max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
