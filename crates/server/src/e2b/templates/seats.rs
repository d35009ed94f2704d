//! Builds that are under way: some of each tenant at once, more in a queue, and what they say.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use cabana_runtime::{BuildId, Tenant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::log::BuildLog;

/// Of one tenant.
const AT_ONCE: usize = 2;
pub(super) const MOST: usize = 16;

#[derive(Default)]
pub(crate) struct Builds(Mutex<HashMap<Tenant, Of>>);

struct Of {
    turns: Arc<Semaphore>,
    live: HashMap<BuildId, Arc<BuildLog>>,
}

/// A place among those that are under way, until it is dropped.
pub(super) struct Seat {
    builds: Arc<Builds>,
    tenant: Tenant,
    build: BuildId,
    turns: Arc<Semaphore>,
}

impl Builds {
    fn all<T>(&self, act: impl FnOnce(&mut HashMap<Tenant, Of>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// `None`: the tenant has as many as it may, or this one is there already.
    pub(super) fn sit(self: &Arc<Self>, tenant: &Tenant, build: BuildId, log: &Arc<BuildLog>) -> Option<Seat> {
        self.all(|all| {
            let of = all
                .entry(tenant.clone())
                .or_insert_with(|| Of { turns: Arc::new(Semaphore::new(AT_ONCE)), live: HashMap::new() });
            if of.live.len() >= MOST || of.live.contains_key(&build) {
                return None;
            }
            of.live.insert(build, log.clone());
            Some(Seat { builds: self.clone(), tenant: tenant.clone(), build, turns: of.turns.clone() })
        })
    }

    /// What it says, as long as it is under way.
    pub(super) fn log(&self, tenant: &Tenant, build: BuildId) -> Option<Arc<BuildLog>> {
        self.all(|all| all.get(tenant)?.live.get(&build).cloned())
    }
}

impl Seat {
    /// Waits until it is its turn.
    pub(super) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        self.turns.clone().acquire_owned().await.ok()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.builds.all(|all| {
            if let Some(of) = all.get_mut(&self.tenant) {
                of.live.remove(&self.build);
                if of.live.is_empty() {
                    all.remove(&self.tenant);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use cabana_runtime::Clock;

    use super::*;

    #[tokio::test]
    async fn a_tenant_has_some_at_once_and_some_in_a_queue() {
        let (builds, log) = (Arc::new(Builds::default()), Arc::new(BuildLog::new(Clock::machine())));
        let (one, other) = (Tenant::new("one").unwrap(), Tenant::new("other").unwrap());
        let seats: Vec<_> = (0..MOST).map(|_| builds.sit(&one, BuildId::now(), &log).unwrap()).collect();
        assert!(builds.sit(&one, BuildId::now(), &log).is_none() && builds.sit(&other, BuildId::now(), &log).is_some());
        let mut turns = Vec::new();
        for seat in &seats[..AT_ONCE] {
            turns.push(seat.turn().await.unwrap());
        }
        let mut next = Box::pin(seats[AT_ONCE].turn());
        assert!(futures_util::poll!(&mut next).is_pending());
        turns.pop();
        drop(next.await.unwrap());
        drop(seats);
        assert!(builds.all(|all| all.is_empty()), "nothing is left of those that went");
    }
}
