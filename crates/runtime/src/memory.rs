//! Memory of the server that is filled with what a guest says: names, paths, what is attached to files.
//!
//! A guest makes these as long as the kernel lets it, so memory for them is bounded for each tenant, and for all together.
//! Whoever fills it has a charge, which grows with it and ends with it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use cabana_model::Tenant;
use cabana_sandbox::FileInfo;

/// What is charged at once: small answers are not worth a look at the ledger.
const STEP: usize = 64 << 10;

/// How much is in use, and by whom. Cheap to clone.
#[derive(Clone)]
pub struct MemoryLedger(Arc<Ledger>);

struct Ledger {
    each: usize,
    all: usize,
    in_use: Mutex<HashMap<Tenant, usize>>,
}

/// The part of one answer.
pub struct MemoryCharge {
    ledger: MemoryLedger,
    tenant: Tenant,
    used: usize,
    charged: usize,
}

impl MemoryLedger {
    /// In bytes: of one tenant, and of all.
    pub fn new(each: usize, all: usize) -> Self {
        Self(Arc::new(Ledger { each, all, in_use: Mutex::default() }))
    }

    pub fn open(&self, tenant: &Tenant) -> MemoryCharge {
        MemoryCharge { ledger: self.clone(), tenant: tenant.clone(), used: 0, charged: 0 }
    }

    fn in_use(&self) -> MutexGuard<'_, HashMap<Tenant, usize>> {
        self.0.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn charge(&self, tenant: &Tenant, bytes: usize) -> bool {
        let mut in_use = self.in_use();
        let all: usize = in_use.values().sum();
        let own = in_use.get(tenant).copied().unwrap_or(0);
        let fits = own + bytes <= self.0.each && all + bytes <= self.0.all;
        if fits {
            in_use.insert(tenant.clone(), own + bytes);
        }
        fits
    }

    fn release(&self, tenant: &Tenant, bytes: usize) {
        let mut in_use = self.in_use();
        if let Some(own) = in_use.get_mut(tenant) {
            *own = own.saturating_sub(bytes);
            if *own == 0 {
                in_use.remove(tenant);
            }
        }
    }
}

impl MemoryCharge {
    /// False: there is no room for it.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        let used = self.used + bytes;
        // The first step is free.
        let missing = used.saturating_sub(STEP).saturating_sub(self.charged).next_multiple_of(STEP);
        if missing > 0 && !self.ledger.charge(&self.tenant, missing) {
            return false;
        }
        (self.used, self.charged) = (used, self.charged + missing);
        true
    }

    pub fn used(&self) -> usize {
        self.used
    }

    /// Nothing is left of it.
    pub fn clear(&mut self) {
        if self.charged > 0 {
            self.ledger.release(&self.tenant, self.charged);
        }
        (self.used, self.charged) = (0, 0);
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.clear();
    }
}

/// About what an entry takes.
pub(crate) fn size_of_info(info: &FileInfo) -> usize {
    let target = |link: &cabana_sandbox::Link| link.target.as_ref().map_or(0, |(path, ..)| path.as_bytes().len());
    let link = info.link.as_ref().map_or(0, |link| link.text.len() + target(link));
    let tags: usize = info.tags.iter().map(|(name, value)| name.len() + value.len() + 64).sum();
    size_of::<FileInfo>() + info.path.as_bytes().len() + info.owner.len() + info.group.len() + link + tags
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Tenant {
        Tenant::new(name).unwrap()
    }

    #[test]
    fn a_tenant_has_its_share_and_gives_it_back() {
        let ledger = MemoryLedger::new(4 * STEP, 6 * STEP);
        let (mut one, mut more) = (ledger.open(&tenant("one")), ledger.open(&tenant("one")));
        assert!(one.grow(3 * STEP) && more.grow(3 * STEP), "the first step of each is free");
        assert!(!more.grow(STEP), "no more than the share");
        let mut other = ledger.open(&tenant("other"));
        assert!(other.grow(3 * STEP) && !other.grow(STEP), "no more than all");
        drop(one);
        assert!(other.grow(STEP) && more.grow(STEP));
        more.clear();
        other.clear();
        assert!(ledger.in_use().is_empty());
    }

    #[test]
    fn small_answers_cost_nothing() {
        let ledger = MemoryLedger::new(0, 0);
        let mut one = ledger.open(&tenant("one"));
        assert!(one.grow(STEP) && !one.grow(1));
        assert_eq!(one.used(), STEP);
    }
}
