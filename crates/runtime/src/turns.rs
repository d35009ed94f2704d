//! Turns at work that is done off the workers that everybody waits for: a few at a time, of one tenant and of all.

use std::sync::Arc;

use cabana_model::Tenant;
use cabana_store::TenantPermits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub struct Turns {
    of_tenant: TenantPermits,
    of_all: Arc<Semaphore>,
}

/// A place among those of a tenant, or that of work whose tenant is not known.
pub struct TenantTurn {
    _permit: Option<OwnedSemaphorePermit>,
}

/// Held by the thread that does the work: its client may be gone before it has ended.
pub struct Turn {
    _of_tenant: TenantTurn,
    _of_all: Option<OwnedSemaphorePermit>,
}

impl Turns {
    pub fn new(of_tenant: usize, of_all: usize) -> Self {
        Self { of_tenant: TenantPermits::new(of_tenant), of_all: Arc::new(Semaphore::new(of_all)) }
    }

    /// In the order in which they are asked for. Work whose tenant is not known waits for one of all alone.
    pub async fn take(&self, tenant: Option<&Tenant>) -> Turn {
        let own = match tenant {
            Some(tenant) => self.of_tenant(tenant).await,
            None => TenantTurn { _permit: None },
        };
        self.of_all(own).await
    }

    /// For work that waits for something else of its tenant's first: meanwhile it has no place that others need.
    pub async fn of_tenant(&self, tenant: &Tenant) -> TenantTurn {
        TenantTurn { _permit: self.of_tenant.acquire(tenant).await }
    }

    pub async fn of_all(&self, own: TenantTurn) -> Turn {
        Turn { _of_tenant: own, _of_all: self.of_all.clone().acquire_owned().await.ok() }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn what_waits_with_a_turn_of_its_tenant_holds_up_nobody_else() {
        let (one, other) = (Tenant::new("one").unwrap(), Tenant::new("other").unwrap());
        let turns = Turns::new(2, 1);
        let now = |tenant| turns.of_tenant(tenant).now_or_never();
        let (first, second) = (now(&one).unwrap(), now(&one).unwrap());
        assert!(now(&one).is_none(), "one tenant has as many as it may");
        let of_other = turns.take(Some(&other)).now_or_never().unwrap();
        assert!(turns.of_all(first).now_or_never().is_none(), "all together have as many as they may");
        drop(of_other);
        let working = turns.of_all(second).now_or_never().unwrap();
        assert!(turns.take(Some(&other)).now_or_never().is_none());
        drop(working);
        assert!(turns.take(None).now_or_never().is_some());
    }
}
