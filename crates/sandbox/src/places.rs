//! What all sandboxes of a process share, as descriptors and threads: how many there may be, and who has how many of them.
//!
//! One that takes all it can get leaves some to others. A sandbox leaves the last quarter to sandboxes that have few, and a tenant,
//! however many sandboxes it has, the last eighth to tenants that have few. Once several tenants were there, one has at most half.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::SandboxId;

/// Who has fewer than this many finds one also when there are few left.
const FEW: usize = 8;

/// Who has places: a sandbox, with the tenant that it is counted to beside all others of that tenant; or a tenant as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    tenant: Arc<str>,
    sandbox: Option<SandboxId>,
}

impl Holder {
    /// `tenant`: any name. A sandbox without one is its own.
    pub fn sandbox(tenant: Option<&str>, id: &SandboxId) -> Holder {
        Holder { tenant: tenant.unwrap_or(id.as_str()).into(), sandbox: Some(id.clone()) }
    }

    pub fn tenant(name: &str) -> Holder {
        Holder { tenant: name.into(), sandbox: None }
    }

    pub fn tenant_name(&self) -> &Arc<str> {
        &self.tenant
    }
}

/// A number of places.
#[derive(Clone, Debug)]
pub struct Places(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    /// What one holder may have.
    each: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    all: usize,
    by_tenant: HashMap<Arc<str>, usize>,
    by_holder: HashMap<Holder, usize>,
    /// Of all times: the tenant that came first, and whether it is not the only one.
    first_tenant: Option<Arc<str>>,
    has_several_tenants: bool,
}

/// One of them, or some that were taken together, until it is dropped.
#[derive(Debug)]
pub struct Place {
    shared: Arc<Shared>,
    holder: Holder,
    count: usize,
}

impl Place {
    pub fn count(&self) -> usize {
        self.count
    }
}

impl Places {
    pub fn new(most: usize) -> Places {
        Places::with_each(most, most)
    }

    /// Of which one holder has at most `each`.
    pub fn with_each(most: usize, each: usize) -> Places {
        Places(Arc::new(Shared { most, each, held: Mutex::default() }))
    }

    /// `None`: this holder, its tenant or all have as many as they may.
    pub fn take(&self, holder: &Holder) -> Option<Place> {
        let mut held = self.0.held();
        held.meet(&holder.tenant);
        (self.0.room(&held, holder) > 0).then(|| self.0.give(&mut held, holder, 1))
    }

    /// For what can do with more or less: a part of what this holder may still have, at least one and at most so many. So the less there are,
    /// the fewer each gets, and the more find some.
    pub fn take_part(&self, holder: &Holder, part: usize, most: usize) -> Option<Place> {
        let mut held = self.0.held();
        held.meet(&holder.tenant);
        let room = self.0.room(&held, holder);
        (room > 0).then(|| self.0.give(&mut held, holder, (room / part).clamp(1, most)))
    }

    /// For what is there already, and cannot be refused any more.
    pub fn hold(&self, holder: &Holder) -> Place {
        let mut held = self.0.held();
        held.meet(&holder.tenant);
        self.0.give(&mut held, holder, 1)
    }
}

impl Default for Places {
    /// As many as are asked for.
    fn default() -> Places {
        Places::new(usize::MAX)
    }
}

impl Shared {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many more this holder may take.
    fn room(&self, held: &Held, holder: &Holder) -> usize {
        let free = self.most.saturating_sub(held.all);
        let of_tenant = held.by_tenant.get(&holder.tenant).copied().unwrap_or_default();
        let of_holder = held.by_holder.get(holder).copied().unwrap_or_default();
        let tenant_share = if held.has_several_tenants { self.most / 2 } else { self.most };
        let left_to_tenants = tenant_share.saturating_sub(of_tenant).min(free.saturating_sub(self.most / 8));
        let of_tenants = FEW.saturating_sub(of_tenant).max(left_to_tenants);
        let of_holders = FEW.saturating_sub(of_holder).max(free.saturating_sub(self.most / 4));
        free.min(self.each.saturating_sub(of_holder)).min(of_tenants).min(of_holders)
    }

    fn give(self: &Arc<Self>, held: &mut Held, holder: &Holder, count: usize) -> Place {
        held.all += count;
        *held.by_tenant.entry(holder.tenant.clone()).or_default() += count;
        *held.by_holder.entry(holder.clone()).or_default() += count;
        Place { shared: self.clone(), holder: holder.clone(), count }
    }
}

impl Held {
    fn meet(&mut self, tenant: &Arc<str>) {
        self.has_several_tenants |= self.first_tenant.get_or_insert_with(|| tenant.clone()) != tenant;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = self.shared.held();
        held.all -= self.count;
        let_go(&mut held.by_tenant, &self.holder.tenant, self.count);
        let_go(&mut held.by_holder, &self.holder, self.count);
    }
}

/// Nothing is kept of those that have none.
fn let_go<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K, given_back: usize) {
    if let Some(count) = counts.get_mut(key) {
        *count -= given_back;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(tenant: &str, number: u8) -> Holder {
        Holder::sandbox(Some(tenant), &SandboxId::new(format!("sandbox{number:02}")).unwrap())
    }

    fn all_for(places: &Places, holder: &Holder) -> Vec<Place> {
        std::iter::from_fn(|| places.take(holder)).collect()
    }

    #[test]
    fn a_sandbox_that_takes_much_leaves_a_quarter_to_others() {
        let places = Places::new(100);
        let greedy = all_for(&places, &sandbox("one", 1));
        assert_eq!(greedy.len(), 75);
        let modest = all_for(&places, &sandbox("two", 2));
        assert_eq!(modest.len(), FEW);
        drop(greedy);
        assert!(places.take(&sandbox("two", 2)).is_some(), "what is given back is there again");
    }

    #[test]
    fn many_sandboxes_of_one_tenant_leave_some_to_its_own_and_to_other_tenants() {
        let places = Places::new(100);
        let greedy: Vec<_> = (0..20).map(|number| all_for(&places, &sandbox("one", number))).collect();
        assert_eq!(greedy.iter().map(Vec::len).collect::<Vec<_>>()[..4], [75, FEW, 5, 0]);
        let other = all_for(&places, &sandbox("two", 21));
        assert_eq!(other.len(), FEW, "all that there are of those who have few");
        assert!(places.take(&sandbox("two", 22)).is_none(), "of a tenant, and not of each of its sandboxes");
        assert!(places.take(&sandbox("three", 23)).is_some());
    }

    #[test]
    fn where_there_are_several_tenants_one_has_at_most_half() {
        let places = Places::new(100);
        drop(places.take(&sandbox("two", 1)));
        let one: Vec<_> = (2..10).flat_map(|number| all_for(&places, &sandbox("one", number))).collect();
        let two: Vec<_> = (10..20).flat_map(|number| all_for(&places, &sandbox("two", number))).collect();
        assert_eq!((one.len(), two.len()), (50, 38));
    }

    #[test]
    fn a_sandbox_without_a_tenant_is_its_own() {
        let places = Places::new(100);
        let alone = |number: u8| Holder::sandbox(None, &SandboxId::new(format!("sandbox{number:02}")).unwrap());
        let all: Vec<_> = (0..3).map(|number| all_for(&places, &alone(number))).collect();
        assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [75, FEW, FEW]);
    }

    #[test]
    fn a_holder_has_as_many_as_it_may_and_leaves_a_quarter_to_others() {
        let places = Places::with_each(100, 50);
        let taken = |name: &str| all_for(&places, &Holder::tenant(name));
        let (first, second) = (taken("one"), taken("two"));
        assert_eq!((first.len(), second.len()), (50, 25));
        let third = taken("three");
        assert!(!third.is_empty() && third.len() < 25, "who has few finds some of the rest: {}", third.len());
        drop(first);
        assert_eq!(taken("one").len(), 50 - third.len(), "what is given back is there again");
        drop((second, third));
        let held = places.0.held();
        assert!(held.by_holder.is_empty() && held.by_tenant.is_empty(), "nothing is kept of those who have none");
    }

    #[test]
    fn the_fewer_there_are_the_fewer_each_gets_and_none_is_taken_from_others() {
        let places = Places::new(400);
        let parts = |name: &str| -> Vec<Place> {
            std::iter::from_fn(|| places.take_part(&Holder::tenant(name), 10, 8)).collect()
        };
        let counts = |parts: &[Place]| parts.iter().map(Place::count).collect::<Vec<_>>();
        let one = parts("one");
        let of_one = counts(&one);
        assert!(of_one.is_sorted_by(|more, fewer| more >= fewer), "{of_one:?}");
        assert_eq!((of_one[0], of_one.last().copied(), of_one.iter().sum()), (8, Some(1), 300), "{of_one:?}");
        assert!(of_one.len() > 300 / 8, "more of them find some: {of_one:?}");
        assert_eq!(counts(&parts("two")).iter().sum::<usize>(), FEW);
        drop(one);
        assert_eq!(counts(&parts("two"))[0], 8);
        let held = places.0.held();
        assert!(held.all == 0 && held.by_holder.is_empty() && held.by_tenant.is_empty());
    }

    #[test]
    fn none_is_there_twice() {
        let places = Places::new(4);
        let all: Vec<_> = (0..10).filter_map(|number| places.take(&sandbox("one", number))).collect();
        assert_eq!(all.len(), 4);
    }

    #[test]
    fn what_is_there_already_counts_although_it_is_too_much() {
        let places = Places::new(4);
        let there: Vec<_> = (0..6).map(|_| places.hold(&sandbox("one", 1))).collect();
        assert!(places.take(&sandbox("two", 2)).is_none());
        drop(there);
        assert_eq!(all_for(&places, &sandbox("two", 2)).len(), 4);
    }
}
