//! How many of the kernel's watches (inotify) are in use, and by whom.
//!
//! The kernel gives one user so many, and all tenants are one user to it, as are the other services of the machine. So half of
//! them is ours, a tenant has at most a quarter of that, and the last quarter is for those who have few.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use cabana_model::Tenant;
use cabana_sandbox::WatchBudget;

const MAX_USER_WATCHES: &str = "/proc/sys/fs/inotify/max_user_watches";
/// Where the kernel does not say: what it had before it went by the memory of the machine.
const USUAL: usize = 8192;

#[derive(Default)]
pub(crate) struct KernelWatches {
    /// Read when the first is taken: the server raises what is too low at its start.
    shares: OnceLock<Shares>,
    taken: Mutex<HashMap<Tenant, usize>>,
}

#[derive(Clone, Copy)]
struct Shares {
    all: usize,
    each: usize,
    /// What a tenant may have of the part that is for those who have few.
    few: usize,
}

impl Shares {
    fn of(max_user_watches: usize) -> Self {
        let all = max_user_watches / 2;
        Self { all, each: all / 4, few: all / 128 }
    }

    fn read() -> Self {
        let text = std::fs::read_to_string(MAX_USER_WATCHES).ok();
        Self::of(text.and_then(|text| text.trim().parse().ok()).unwrap_or(USUAL))
    }

    fn has_room(self, all: usize, own: usize) -> bool {
        let most = if own < self.few { self.all } else { self.all - self.all / 4 };
        all < most && own < self.each
    }
}

impl KernelWatches {
    /// The part of one tenant.
    pub(crate) fn of(self: &Arc<Self>, tenant: &Tenant) -> Arc<dyn WatchBudget> {
        Arc::new(OfTenant { watches: self.clone(), tenant: tenant.clone() })
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<Tenant, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct OfTenant {
    watches: Arc<KernelWatches>,
    tenant: Tenant,
}

impl WatchBudget for OfTenant {
    fn take(&self) -> bool {
        let shares = *self.watches.shares.get_or_init(Shares::read);
        let mut taken = self.watches.taken();
        let (all, own) = (taken.values().sum(), taken.get(&self.tenant).copied().unwrap_or(0));
        let has_room = shares.has_room(all, own);
        if has_room {
            taken.insert(self.tenant.clone(), own + 1);
        }
        has_room
    }

    fn give_back(&self, watches: usize) {
        let mut taken = self.watches.taken();
        if let Some(own) = taken.get_mut(&self.tenant) {
            *own = own.saturating_sub(watches);
            if *own == 0 {
                taken.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Tenant {
        Tenant::new(name).unwrap()
    }

    #[test]
    fn tenants_who_take_all_they_get_leave_some_for_those_who_have_few() {
        let watches = Arc::new(KernelWatches { shares: Shares::of(80_000).into(), ..KernelWatches::default() });
        let take_all = |name: &str| {
            let budget = watches.of(&tenant(name));
            (0..).take_while(|_| budget.take()).count()
        };
        assert_eq!([take_all("a"), take_all("b"), take_all("c")], [10_000, 10_000, 10_000]);
        assert_eq!(take_all("d"), 312, "the last quarter is for the first few of each");
        assert_eq!(take_all("e"), 312);
        watches.of(&tenant("a")).give_back(10_000);
        assert_eq!(take_all("d"), 9_376, "up to three quarters of all, with the few of e");
        let all: usize = watches.taken().values().sum();
        assert_eq!(all, 30_000);
    }
}
