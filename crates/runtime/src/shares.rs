//! What all tenants share, and any client can have many of: how many there may be, and how many one holder may have.
//!
//! Descriptors of this process are counted by what they are for, and each kind has a part of those that the process may have. What
//! commands take, and connections out of sandboxes, the provider counts. The last quarter of each kind is for holders that have
//! few, so that nobody takes all of it.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use cabana_egress::{Place, Places};
use cabana_model::{SandboxId, Tenant};
use rustix::process::{Resource, getrlimit};

/// An output is three files.
const OF_READER: usize = 3;

/// Connections to ports, by the sandbox's physical id.
pub(crate) static PORTS: LazyLock<Shares<SandboxId>> = LazyLock::new(|| Shares::new(descriptors() / 8, 1024));
/// Files and outputs that are read.
pub(crate) static READERS: LazyLock<Shares<Tenant>> =
    LazyLock::new(|| Shares::new(descriptors() / 16 / OF_READER, 1024));

/// Archives that are packed: each takes a processor as long as somebody reads it.
pub(crate) static ARCHIVES: LazyLock<Shares<Tenant>> = LazyLock::new(|| Shares::new(32, 8));
/// Who waits for a lease, by the physical id of its sandbox.
pub(crate) static LEASE_WAITERS: LazyLock<Shares<SandboxId>> = LazyLock::new(|| Shares::new(1024, 16));

fn descriptors() -> usize {
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(most).unwrap_or(usize::MAX)
}

pub(crate) struct Shares<K>(Arc<Shared<K>>);

struct Shared<K> {
    places: Places,
    /// What one holder may have.
    each: usize,
    held: Mutex<HashMap<K, usize>>,
}

/// One of a holder's, until it is dropped.
pub(crate) struct Share<K: Eq + Hash> {
    of: Arc<Shared<K>>,
    holder: K,
    _place: Place,
}

impl<K: Eq + Hash + Clone> Shares<K> {
    fn new(most: usize, each: usize) -> Self {
        Self(Arc::new(Shared { places: Places::new(most), each, held: Mutex::default() }))
    }

    /// `None`: the holder has as many as it may, or all have.
    pub(crate) fn take(&self, holder: &K) -> Option<Share<K>> {
        let mut held = self.0.held.lock().unwrap_or_else(PoisonError::into_inner);
        let has = held.get(holder).copied().unwrap_or_default();
        let place = (has < self.0.each).then(|| self.0.places.take(has)).flatten()?;
        held.insert(holder.clone(), has + 1);
        Some(Share { of: self.0.clone(), holder: holder.clone(), _place: place })
    }
}

impl<K: Eq + Hash> Drop for Share<K> {
    fn drop(&mut self) {
        let mut held = self.of.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = held.get_mut(&self.holder) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.holder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(shares: &Shares<u8>, holder: u8) -> Vec<Share<u8>> {
        std::iter::from_fn(|| shares.take(&holder)).collect()
    }

    #[test]
    fn a_holder_has_as_many_as_it_may_and_leaves_a_quarter_to_others() {
        let shares = Shares::new(100, 50);
        let (first, second) = (taken(&shares, 1), taken(&shares, 2));
        assert_eq!((first.len(), second.len()), (50, 25));
        let third = taken(&shares, 3);
        assert!(!third.is_empty() && third.len() < 25, "who has few finds some of the rest: {}", third.len());
        drop(first);
        assert_eq!(taken(&shares, 1).len(), 50 - third.len(), "what is given back is there again");
        drop((second, third));
        assert!(shares.0.held.lock().unwrap().is_empty(), "nothing is kept of those who have none");
    }
}
