//! Turns at work that is done off the workers that everybody waits for: a few at a time, of one tenant and of all.

use std::sync::Arc;

use cabana_model::Tenant;
use cabana_store::TenantPermits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub struct Turns {
    of_tenant: TenantPermits,
    of_all: Arc<Semaphore>,
}

/// Held by the thread that does the work: its client may be gone before it has ended.
pub struct Turn {
    _of_tenant: Option<OwnedSemaphorePermit>,
    _of_all: Option<OwnedSemaphorePermit>,
}

impl Turns {
    pub fn new(of_tenant: usize, of_all: usize) -> Self {
        Self { of_tenant: TenantPermits::new(of_tenant), of_all: Arc::new(Semaphore::new(of_all)) }
    }

    /// In the order in which they are asked for. Work whose tenant is not known waits for one of all alone.
    pub async fn take(&self, tenant: Option<&Tenant>) -> Turn {
        let of_tenant = match tenant {
            Some(tenant) => self.of_tenant.acquire(tenant).await,
            None => None,
        };
        Turn { _of_tenant: of_tenant, _of_all: self.of_all.clone().acquire_owned().await.ok() }
    }
}
