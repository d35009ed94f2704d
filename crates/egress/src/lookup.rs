//! Names to addresses, once: what was checked is what is connected.
//!
//! The C library's resolver holds a thread for as long as it likes and cannot be told to stop. So a lookup keeps its place
//! until it has really ended, however soon the asker lost patience: a guest holds few threads of the server, and no more.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use cabana_sandbox::{Holder, Places};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    host::Name,
    outside::{Resolve, ResolveError},
};

/// What this host's own loopback is called inside, where `localhost` is the sandbox's own. As with any name, the policy
/// judges its addresses.
pub const HOST_NAME: &str = "host.cabana.internal";

const ADDRESSES: usize = 16;
const REMEMBERED: usize = 256;

/// What the lookups of all sandboxes share: how many of them there may be, each until it has really ended.
#[derive(Clone, Debug, Default)]
pub struct Lookups {
    places: Places,
    tasks: TaskTracker,
}

impl Lookups {
    pub fn new(most: usize) -> Lookups {
        Lookups { places: Places::new(most), tasks: TaskTracker::new() }
    }
}

/// What the lookups of one sandbox may take.
pub(crate) struct Bounds {
    pub at_once: usize,
    /// Whose they are, among those of all.
    pub holder: Holder,
    pub of_all: Lookups,
    pub patience: Duration,
    /// How long an answer is good.
    pub fresh: Duration,
}

pub(crate) struct Lookup {
    resolve: Arc<dyn Resolve>,
    tasks: TaskTracker,
    stop: CancellationToken,
    places: Arc<Semaphore>,
    bounds: Bounds,
    recent: Mutex<HashMap<Name, (Instant, Vec<IpAddr>)>>,
}

impl Lookup {
    pub(crate) fn new(
        resolve: Arc<dyn Resolve>,
        tasks: TaskTracker,
        stop: CancellationToken,
        bounds: Bounds,
    ) -> Lookup {
        let places = Arc::new(Semaphore::new(bounds.at_once));
        Lookup { resolve, tasks, stop, places, bounds, recent: Mutex::default() }
    }

    pub(crate) async fn addresses(&self, name: &Name) -> Result<Vec<IpAddr>, ResolveError> {
        if name.as_str() == HOST_NAME {
            return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        }
        if let Some(addresses) = self.recent(name) {
            return Ok(addresses);
        }
        let found = timeout(self.bounds.patience, self.ask(name)).await.unwrap_or(Err(ResolveError::Failed))?;
        self.remember(name, &found);
        Ok(found)
    }

    async fn ask(&self, name: &Name) -> Result<Vec<IpAddr>, ResolveError> {
        let place = self.places.clone().acquire_owned().await.map_err(|_| ResolveError::Failed)?;
        let shared = self.bounds.of_all.places.take(&self.bounds.holder).ok_or(ResolveError::Failed)?;
        let (resolve, stop, name) = (self.resolve.clone(), self.stop.clone(), name.clone());
        // The thread behind it goes on, also when the sandbox has gone.
        let resolving = self.bounds.of_all.tasks.spawn(async move {
            let _shared = shared;
            resolve.resolve(&name).await
        });
        let asked = self.tasks.spawn(async move {
            let _place = place;
            stop.run_until_cancelled(resolving).await?.ok()
        });
        let mut found = asked.await.ok().flatten().unwrap_or(Err(ResolveError::Failed))?;
        found.truncate(ADDRESSES);
        if found.is_empty() { Err(ResolveError::Missing) } else { Ok(found) }
    }

    fn recent(&self, name: &Name) -> Option<Vec<IpAddr>> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.get(name).filter(|(at, _)| at.elapsed() < self.bounds.fresh).map(|(_, addresses)| addresses.clone())
    }

    fn remember(&self, name: &Name, addresses: &[IpAddr]) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() >= REMEMBERED {
            recent.retain(|_, (at, _)| at.elapsed() < self.bounds.fresh);
        }
        if recent.len() < REMEMBERED {
            recent.insert(name.clone(), (Instant::now(), addresses.to_vec()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;

    use super::*;
    use crate::host::Host;

    #[derive(Default)]
    struct Stuck {
        asked: AtomicUsize,
    }

    #[async_trait]
    impl Resolve for Stuck {
        async fn resolve(&self, _: &Name) -> Result<Vec<IpAddr>, ResolveError> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            std::future::pending().await
        }
    }

    fn bounds(tenant: &str, of_all: &Lookups) -> Bounds {
        let (holder, patience) = (Holder::tenant(tenant), Duration::from_millis(1));
        Bounds { at_once: 16, holder, of_all: of_all.clone(), patience, fresh: Duration::ZERO }
    }

    #[tokio::test]
    async fn a_resolver_that_never_answers_is_asked_only_so_often_at_once() {
        let (stuck, tasks, stop) = (Arc::new(Stuck::default()), TaskTracker::new(), CancellationToken::new());
        let lookup = Lookup::new(stuck.clone(), tasks.clone(), stop.clone(), bounds("one", &Lookups::default()));
        for number in 0..100 {
            let name = Host::parse(&format!("n{number}.com")).unwrap().name().unwrap().clone();
            assert_eq!(lookup.addresses(&name).await, Err(ResolveError::Failed));
        }
        assert_eq!(stuck.asked.load(Ordering::SeqCst), 16);
        stop.cancel();
        tasks.close();
        tasks.wait().await;
    }

    #[tokio::test]
    async fn lookups_of_all_sandboxes_have_one_bound_also_when_sandboxes_go() {
        let (stuck, shared) = (Arc::new(Stuck::default()), Lookups::new(40));
        for sandbox in 0..20 {
            let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
            let bounds = bounds(&format!("tenant {sandbox}"), &shared);
            let lookup = Lookup::new(stuck.clone(), tasks.clone(), stop.clone(), bounds);
            for number in 0..20 {
                let name = Host::parse(&format!("n{number}.s{sandbox}.com")).unwrap().name().unwrap().clone();
                assert_eq!(lookup.addresses(&name).await, Err(ResolveError::Failed));
            }
            stop.cancel();
            tasks.close();
            tasks.wait().await;
        }
        assert_eq!(stuck.asked.load(Ordering::SeqCst), 40);
    }
}
