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

pub(crate) struct Lookup {
    resolve: Arc<dyn Resolve>,
    tasks: TaskTracker,
    stop: CancellationToken,
    places: Arc<Semaphore>,
    patience: Duration,
    fresh: Duration,
    recent: Mutex<HashMap<Name, (Instant, Vec<IpAddr>)>>,
}

impl Lookup {
    pub(crate) fn new(
        resolve: Arc<dyn Resolve>,
        tasks: TaskTracker,
        stop: CancellationToken,
        at_once: usize,
        patience: Duration,
        fresh: Duration,
    ) -> Lookup {
        let places = Arc::new(Semaphore::new(at_once));
        Lookup { resolve, tasks, stop, places, patience, fresh, recent: Mutex::default() }
    }

    pub(crate) async fn addresses(&self, name: &Name) -> Result<Vec<IpAddr>, ResolveError> {
        if name.as_str() == HOST_NAME {
            return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        }
        if let Some(addresses) = self.recent(name) {
            return Ok(addresses);
        }
        let found = timeout(self.patience, self.ask(name)).await.unwrap_or(Err(ResolveError::Failed))?;
        self.remember(name, &found);
        Ok(found)
    }

    async fn ask(&self, name: &Name) -> Result<Vec<IpAddr>, ResolveError> {
        let place = self.places.clone().acquire_owned().await.map_err(|_| ResolveError::Failed)?;
        let (resolve, stop, name) = (self.resolve.clone(), self.stop.clone(), name.clone());
        let asked = self.tasks.spawn(async move {
            let _place = place;
            stop.run_until_cancelled(resolve.resolve(&name)).await
        });
        let mut found = asked.await.ok().flatten().unwrap_or(Err(ResolveError::Failed))?;
        found.truncate(ADDRESSES);
        if found.is_empty() { Err(ResolveError::Missing) } else { Ok(found) }
    }

    fn recent(&self, name: &Name) -> Option<Vec<IpAddr>> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.get(name).filter(|(at, _)| at.elapsed() < self.fresh).map(|(_, addresses)| addresses.clone())
    }

    fn remember(&self, name: &Name, addresses: &[IpAddr]) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() >= REMEMBERED {
            recent.retain(|_, (at, _)| at.elapsed() < self.fresh);
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

    #[tokio::test]
    async fn a_resolver_that_never_answers_is_asked_only_so_often_at_once() {
        let (stuck, tasks, stop) = (Arc::new(Stuck::default()), TaskTracker::new(), CancellationToken::new());
        let patience = Duration::from_millis(1);
        let lookup = Lookup::new(stuck.clone(), tasks.clone(), stop.clone(), 16, patience, Duration::ZERO);
        for number in 0..100 {
            let name = Host::parse(&format!("n{number}.com")).unwrap().name().unwrap().clone();
            assert_eq!(lookup.addresses(&name).await, Err(ResolveError::Failed));
        }
        assert_eq!(stuck.asked.load(Ordering::SeqCst), 16);
        stop.cancel();
        tasks.close();
        tasks.wait().await;
    }
}
