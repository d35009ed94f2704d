//! Memory of the server that is filled with what guests and clients say: names, paths, what is attached to files, input.
//!
//! They make these as long as they may, so memory for them is bounded for each tenant, and for all together. The last quarter is for
//! tenants that have little of it. What fills it has a charge, which grows with it and ends with it. What a tenant owes beyond its share
//! is its own: no other is refused for it.

use std::{
    collections::HashMap,
    io,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use cabana_model::Tenant;
use cabana_sandbox::FileInfo;
use serde::Serialize;
use tokio::sync::Notify;

/// What is charged at once. The first of it is free, and small answers are not worth a look at the ledger; but a client may have very many
/// of them at a time, for as long as it likes.
const STEP: usize = 4 << 10;
/// A tenant that has no more than this part of its share has little.
const LITTLE: usize = 16;

/// How much is in use, and by whom. Cheap to clone.
#[derive(Clone)]
pub struct MemoryLedger(Arc<Ledger>);

struct Ledger {
    each: usize,
    all: usize,
    in_use: Mutex<HashMap<Tenant, usize>>,
    /// Whenever something is given back.
    released: Notify,
}

/// The part of one answer.
pub struct MemoryCharge {
    ledger: MemoryLedger,
    tenant: Tenant,
    used: usize,
    charged: usize,
    /// Charged also where there is no room for it.
    is_owed: bool,
}

impl MemoryLedger {
    /// In bytes: of one tenant, and of all.
    pub fn new(each: usize, all: usize) -> Self {
        Self(Arc::new(Ledger { each, all, in_use: Mutex::default(), released: Notify::new() }))
    }

    pub fn open(&self, tenant: &Tenant) -> MemoryCharge {
        MemoryCharge { ledger: self.clone(), tenant: tenant.clone(), used: 0, charged: 0, is_owed: false }
    }

    fn in_use(&self) -> MutexGuard<'_, HashMap<Tenant, usize>> {
        self.0.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn charge(&self, tenant: &Tenant, bytes: usize) -> bool {
        let mut in_use = self.in_use();
        let own = in_use.get(tenant).copied().unwrap_or(0) + bytes;
        let fits = own <= self.0.each && self.of_all(&in_use) + bytes <= self.room(own);
        if fits {
            in_use.insert(tenant.clone(), own);
        }
        fits
    }

    fn owe(&self, tenant: &Tenant, bytes: usize) {
        *self.in_use().entry(tenant.clone()).or_default() += bytes;
    }

    /// Of each tenant no more than its share, whatever it owes.
    fn of_all(&self, in_use: &HashMap<Tenant, usize>) -> usize {
        in_use.values().map(|own| own.min(&self.0.each)).sum()
    }

    /// Whether a tenant has more than it may: of what it was owed.
    pub(crate) fn is_over(&self, tenant: &Tenant) -> bool {
        let in_use = self.in_use();
        let own = in_use.get(tenant).copied().unwrap_or(0);
        own > self.0.each || (own > self.0.each / LITTLE && self.of_all(&in_use) > self.0.all)
    }

    /// Waits until a tenant has no more than it may.
    pub(crate) async fn wait_for_room(&self, tenant: &Tenant) {
        loop {
            let mut released = pin!(self.0.released.notified());
            released.as_mut().enable(); // before the look: what is given back from here on is heard of
            if !self.is_over(tenant) {
                return;
            }
            released.await;
        }
    }

    /// Of all, for a tenant that has so much.
    fn room(&self, own: usize) -> usize {
        if own <= self.0.each / LITTLE { self.0.all } else { self.0.all - self.0.all / 4 }
    }

    fn release(&self, tenant: &Tenant, bytes: usize) {
        let mut in_use = self.in_use();
        if let Some(own) = in_use.get_mut(tenant) {
            *own = own.saturating_sub(bytes);
            if *own == 0 {
                in_use.remove(tenant);
            }
        }
        drop(in_use);
        self.0.released.notify_waiters();
    }
}

impl MemoryCharge {
    /// False: there is no room for it.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        let used = self.used + bytes;
        // The first step is free.
        let missing = used.saturating_sub(STEP).saturating_sub(self.charged).next_multiple_of(STEP);
        if missing > 0 && self.is_owed {
            self.ledger.owe(&self.tenant, missing);
        } else if missing > 0 && !self.ledger.charge(&self.tenant, missing) {
            return false;
        }
        (self.used, self.charged) = (used, self.charged + missing);
        true
    }

    /// From here on it is never refused: what was done has to be told. Who has more than it may by that is refused what is done next.
    #[must_use]
    pub fn owed(mut self) -> Self {
        self.is_owed = true;
        self
    }

    pub fn used(&self) -> usize {
        self.used
    }

    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// Charged as long as any part of them is there, wherever that is by then.
    pub fn keep(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Kept { bytes, _memory: self.clone() })
    }

    /// No more than this is left of it.
    pub fn shrink(&mut self, bytes: usize) {
        let charged = bytes.saturating_sub(STEP).next_multiple_of(STEP).min(self.charged);
        if charged < self.charged {
            self.ledger.release(&self.tenant, self.charged - charged);
        }
        (self.used, self.charged) = (bytes.min(self.used), charged);
    }

    /// Nothing is left of it.
    pub fn clear(&mut self) {
        self.shrink(0);
    }
}

struct Kept {
    bytes: Bytes,
    _memory: Arc<MemoryCharge>,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
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

/// How long it is as JSON.
pub(crate) fn json_len(value: &impl Serialize) -> usize {
    let mut written = Length(0);
    // Nothing that is asked here fails to be written; if it did, this is how far it came.
    let _ = serde_json::to_writer(&mut written, value);
    written.0
}

struct Length(usize);

impl io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn tenant(name: &str) -> Tenant {
        Tenant::new(name).unwrap()
    }

    #[test]
    fn a_tenant_has_its_share_and_gives_it_back() {
        let ledger = MemoryLedger::new(4 * STEP, 8 * STEP);
        let (mut one, mut more) = (ledger.open(&tenant("one")), ledger.open(&tenant("one")));
        assert!(one.grow(3 * STEP) && more.grow(3 * STEP), "the first step of each is free");
        assert!(!more.grow(STEP), "no more than the share");
        let mut other = ledger.open(&tenant("other"));
        assert!(other.grow(3 * STEP) && !other.grow(STEP), "no more than all");
        one.shrink(2 * STEP);
        assert!(more.grow(STEP), "what is given back is another's");
        drop(one);
        assert!(other.grow(STEP));
        more.clear();
        other.clear();
        assert!(ledger.in_use().is_empty());
    }

    #[test]
    fn the_last_quarter_is_for_tenants_that_have_little() {
        let ledger = MemoryLedger::new(LITTLE * STEP, 2 * LITTLE * STEP);
        let charge = |name: &str, steps: usize| {
            let mut charge = ledger.open(&tenant(name));
            charge.grow((steps + 1) * STEP).then_some(charge)
        };
        let held = [charge("one", LITTLE), charge("two", LITTLE / 2)];
        assert!(held.iter().all(Option::is_some));
        assert!(charge("three", 2).is_none());
        let small: Vec<_> = (0..LITTLE / 2).map(|n| charge(&format!("small-{n}"), 1)).collect();
        assert!(small.iter().all(Option::is_some));
        assert!(charge("late", 1).is_none());
    }

    #[test]
    fn what_is_owed_is_charged_also_where_there_is_no_room() {
        let (ledger, one) = (MemoryLedger::new(4 * STEP, 8 * STEP), tenant("one"));
        let mut full = ledger.open(&one);
        assert!(full.grow(5 * STEP) && !full.grow(1));
        assert!(!ledger.is_over(&one), "it has what it may");
        let mut owed = ledger.open(&one).owed();
        assert!(owed.grow(STEP) && !ledger.is_over(&one), "the first step is free");
        assert!(owed.grow(STEP) && ledger.is_over(&one));
        assert!(!ledger.is_over(&tenant("other")), "another has nothing");
        full.clear();
        assert!(!ledger.is_over(&one));
        drop(owed);
        assert!(ledger.in_use().is_empty());
    }

    #[test]
    fn what_a_tenant_owes_beyond_its_share_is_refused_to_no_other() {
        let (ledger, one, other) = (MemoryLedger::new(4 * STEP, 8 * STEP), tenant("one"), tenant("other"));
        let mut owed = ledger.open(&one).owed();
        assert!(owed.grow(65 * STEP) && ledger.is_over(&one));
        let mut its = ledger.open(&other);
        assert!(its.grow(3 * STEP), "there is as much for it as if the first had its share");
        assert!(!its.grow(STEP), "and its share counts");
        assert!(!ledger.is_over(&other));
        drop(owed);
        assert!(its.grow(2 * STEP) && !its.grow(1), "until all of it is gone");
    }

    #[test]
    fn who_owes_too_much_waits_until_enough_of_it_is_given_back() {
        let (ledger, one) = (MemoryLedger::new(4 * STEP, 8 * STEP), tenant("one"));
        let mut owed = ledger.open(&one).owed();
        assert!(owed.grow(8 * STEP));
        let mut waiting = Box::pin(ledger.wait_for_room(&one));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(ledger.wait_for_room(&tenant("other")).now_or_never().is_some());
        owed.shrink(6 * STEP);
        assert!(waiting.as_mut().now_or_never().is_none(), "it still owes more than it may");
        owed.shrink(5 * STEP);
        assert!(waiting.as_mut().now_or_never().is_some());
    }

    #[test]
    fn small_answers_cost_nothing() {
        let ledger = MemoryLedger::new(0, 0);
        let mut one = ledger.open(&tenant("one"));
        assert!(one.grow(STEP) && !one.grow(1));
        assert_eq!(one.used(), STEP);
    }
}
