//! Names to addresses, once: what was checked is what is connected.
//!
//! A lookup holds sockets for as long as a name server is silent. So a sandbox has few lookups at once, and all together have
//! a bound, too. One that nobody waits for any more has ended.

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

use crate::{
    host::Name,
    outside::{Resolve, ResolveError},
};

/// What this host's own loopback is called inside, where `localhost` is the sandbox's own. As with any name, the policy
/// judges its addresses.
pub const HOST_NAME: &str = "host.cabana.internal";

const ADDRESSES: usize = 16;
const REMEMBERED: usize = 256;

/// What the lookups of all sandboxes share: how many of them there may be.
#[derive(Clone, Debug, Default)]
pub struct Lookups(Places);

impl Lookups {
    pub fn new(most: usize) -> Lookups {
        Lookups(Places::new(most))
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
    places: Semaphore,
    bounds: Bounds,
    recent: Mutex<HashMap<Name, (Instant, Vec<IpAddr>)>>,
}

impl Lookup {
    pub(crate) fn new(resolve: Arc<dyn Resolve>, bounds: Bounds) -> Lookup {
        Lookup { resolve, places: Semaphore::new(bounds.at_once), bounds, recent: Mutex::default() }
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
        let _place = self.places.acquire().await.map_err(|_| ResolveError::Failed)?;
        let _shared = self.bounds.of_all.0.take(&self.bounds.holder).ok_or(ResolveError::Failed)?;
        let mut found = self.resolve.resolve(name).await?;
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
    use std::{
        future::pending,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use async_trait::async_trait;
    use tokio::task::JoinSet;

    use super::*;
    use crate::host::Host;

    /// Never answers, and counts who waits.
    #[derive(Default)]
    struct Silent {
        waiting: AtomicUsize,
        most: AtomicUsize,
    }

    #[async_trait]
    impl Resolve for Silent {
        async fn resolve(&self, _: &Name) -> Result<Vec<IpAddr>, ResolveError> {
            let _waiter = Waiter::new(self);
            pending().await
        }
    }

    struct Waiter<'a>(&'a Silent);

    impl<'a> Waiter<'a> {
        fn new(silent: &'a Silent) -> Self {
            let waiting = silent.waiting.fetch_add(1, Ordering::SeqCst) + 1;
            silent.most.fetch_max(waiting, Ordering::SeqCst);
            Self(silent)
        }
    }

    impl Drop for Waiter<'_> {
        fn drop(&mut self) {
            self.0.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// A sandbox of the tenant's that asks for so many names.
    fn ask(resolve: &Arc<Silent>, tenant: &str, of_all: &Lookups, names: usize, patience: Duration) -> JoinSet<()> {
        let (holder, of_all) = (Holder::tenant(tenant), of_all.clone());
        let bounds = Bounds { at_once: 16, holder, of_all, patience, fresh: Duration::ZERO };
        let lookup = Arc::new(Lookup::new(resolve.clone(), bounds));
        let mut asking = JoinSet::new();
        for number in 0..names {
            let lookup = lookup.clone();
            asking.spawn(async move {
                let name = Host::parse(&format!("n{number}.com")).unwrap().name().unwrap().clone();
                assert_eq!(lookup.addresses(&name).await, Err(ResolveError::Failed));
            });
        }
        asking
    }

    #[tokio::test]
    async fn a_resolver_that_never_answers_is_asked_only_so_often_at_once() {
        let silent = Arc::new(Silent::default());
        let asked = ask(&silent, "one", &Lookups::default(), 100, Duration::from_millis(20)).join_all().await;
        assert_eq!(asked.len(), 100, "each of them ends");
        assert_eq!((silent.most.load(Ordering::SeqCst), silent.waiting.load(Ordering::SeqCst)), (16, 0));
    }

    #[tokio::test]
    async fn lookups_of_all_sandboxes_have_one_bound_and_end_when_sandboxes_go() {
        let (silent, shared) = (Arc::new(Silent::default()), Lookups::new(40));
        let sandboxes = || (0..20).map(|n| ask(&silent, &format!("tenant {n}"), &shared, 20, Duration::from_secs(999)));
        for _ in 0..2 {
            let mut sandboxes: Vec<JoinSet<()>> = sandboxes().collect();
            while silent.waiting.load(Ordering::SeqCst) < 40 {
                tokio::task::yield_now().await;
            }
            for asking in &mut sandboxes {
                asking.shutdown().await;
            }
            assert_eq!((silent.most.load(Ordering::SeqCst), silent.waiting.load(Ordering::SeqCst)), (40, 0));
        }
    }
}
