//! How many of something one tenant has under way at once.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use cabana_model::Tenant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub struct TenantPermits {
    each: usize,
    /// Of those who have or wait for one.
    tenants: Mutex<HashMap<Tenant, Weak<Semaphore>>>,
}

impl TenantPermits {
    pub fn new(each: usize) -> Self {
        Self { each, tenants: Mutex::default() }
    }

    /// Waits for one, in the order in which they were asked for. One that is free is had at once: whoever waits for a permit lets
    /// other tasks run from time to time, also where none had to be waited for.
    pub async fn acquire(&self, tenant: &Tenant) -> Option<OwnedSemaphorePermit> {
        let permits = self.of(tenant);
        match permits.clone().try_acquire_owned() {
            Ok(permit) => Some(permit),
            Err(_) => permits.acquire_owned().await.ok(),
        }
    }

    fn of(&self, tenant: &Tenant) -> Arc<Semaphore> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(permits) = tenants.get(tenant).and_then(Weak::upgrade) {
            return permits;
        }
        tenants.retain(|_, permits| permits.strong_count() > 0);
        let permits = Arc::new(Semaphore::new(self.each));
        tenants.insert(tenant.clone(), Arc::downgrade(&permits));
        permits
    }
}
