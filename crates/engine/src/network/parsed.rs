//! Policies as they are looked up in. A change is checked, recorded and made, and each of these needs the same long list read: it is
//! read once, and not on a worker.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, RandomState},
    sync::{LazyLock, Mutex, PoisonError},
};

use cabana_egress::{Policy, PolicyError};
use cabana_sandbox::NetworkPolicy;

/// Those that were read last.
const KEPT: usize = 16;

static CACHE: LazyLock<PolicyCache> = LazyLock::new(PolicyCache::default);

/// Without the addresses of this host, which may change.
pub(super) fn parsed(wanted: &NetworkPolicy) -> Result<Policy, PolicyError> {
    if wanted.is_long() { CACHE.parsed(wanted) } else { Policy::new(wanted, []) }
}

/// A long one that was read lately.
pub(super) fn known(wanted: &NetworkPolicy) -> Option<Policy> {
    wanted.is_long().then(|| CACHE.find(CACHE.hashes.hash_one(wanted), wanted))?
}

#[derive(Default)]
struct PolicyCache {
    hashes: RandomState,
    /// The newest last.
    policies: Mutex<VecDeque<Cached>>,
}

struct Cached {
    /// So that only one of them is compared as a whole.
    hash: u64,
    wanted: NetworkPolicy,
    policy: Policy,
}

impl PolicyCache {
    fn parsed(&self, wanted: &NetworkPolicy) -> Result<Policy, PolicyError> {
        let hash = self.hashes.hash_one(wanted);
        if let Some(policy) = self.find(hash, wanted) {
            return Ok(policy);
        }
        let policy = Policy::new(wanted, [])?;
        let mut policies = self.policies.lock().unwrap_or_else(PoisonError::into_inner);
        if policies.len() >= KEPT {
            policies.pop_front();
        }
        policies.push_back(Cached { hash, wanted: wanted.clone(), policy: policy.clone() });
        Ok(policy)
    }

    fn find(&self, hash: u64, wanted: &NetworkPolicy) -> Option<Policy> {
        let policies = self.policies.lock().unwrap_or_else(PoisonError::into_inner);
        let known = policies.iter().find(|known| known.hash == hash && known.wanted == *wanted);
        known.map(|known| known.policy.clone())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::network::read;

    #[tokio::test]
    async fn a_long_list_that_is_not_known_is_read_off_the_workers() {
        let wanted = list("off.example", 100);
        assert!(read(&wanted).now_or_never().is_none());
        read(&wanted).await.unwrap();
        assert!(read(&wanted).now_or_never().is_some(), "it is known");
        assert!(read(&list("off.example", 1)).now_or_never().is_some(), "it is short");
    }

    fn list(of: &str, count: usize) -> NetworkPolicy {
        NetworkPolicy::Allow((0..count).map(|n| format!("host{n}.{of}")).collect())
    }

    #[test]
    fn a_long_list_is_read_once_and_only_so_many_are_kept() {
        let cache = PolicyCache::default();
        let known = |wanted: &NetworkPolicy| cache.find(cache.hashes.hash_one(wanted), wanted).is_some();
        let first = list("first.example", 100);
        assert!(!known(&first));
        cache.parsed(&first).unwrap();
        assert!(known(&first) && !known(&list("first.example", 101)));
        for n in 0..KEPT {
            cache.parsed(&list(&format!("n{n}.example"), 100)).unwrap();
        }
        assert!(!known(&first));
        assert_eq!(cache.policies.lock().unwrap().len(), KEPT);
        assert!(cache.parsed(&NetworkPolicy::Allow(vec!["https://x".to_owned(); 100])).is_err());
    }
}
