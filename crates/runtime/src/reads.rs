//! What is recorded, for whoever may know it.

use std::time::Instant;

use cabana_model::{CallId, SandboxId, SandboxState, Tenant};
use cabana_store::{BegunPage, CallRow, Dropped, Head, KnownSpec, LedgerRow, Page, Record};
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    Error, MemoryCharge, Result, Runtime,
    shares::{self, REQUESTS, Share},
};

/// A tenant's turn to make an answer, until that is charged.
pub struct AnswerTurn {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Runtime {
    pub async fn sandbox(&self, tenant: &Tenant, id: &SandboxId) -> Result<Record> {
        self.sandbox_again(tenant, id, None).await
    }

    /// By one who may have its spec: that is read only where it has changed.
    pub async fn sandbox_again(&self, tenant: &Tenant, id: &SandboxId, known: Option<KnownSpec>) -> Result<Record> {
        let record = match known {
            Some(known) => self.0.store.sandbox_again(tenant, id, known).await?,
            None => self.0.store.sandbox(tenant, id).await?,
        };
        record.filter(|record| record.state != SandboxState::Deleting).ok_or_else(|| Error::NoSandbox(id.clone()))
    }

    /// The newest first.
    pub async fn sandbox_list(&self, tenant: &Tenant, state: Option<SandboxState>, page: Page) -> Result<Vec<Record>> {
        Ok(self.0.store.sandboxes(tenant, state, page).await?)
    }

    /// By when they began to run.
    pub async fn sandboxes_by_start(&self, tenant: &Tenant, page: BegunPage) -> Result<Vec<Record>> {
        Ok(self.0.store.sandboxes_by_start(tenant, page).await?)
    }

    /// For an answer that is made of what was read for it.
    pub fn list_memory(&self, tenant: &Tenant) -> MemoryCharge {
        self.0.lists.open(tenant)
    }

    /// For an answer to one who has no key but a URL.
    pub fn url_memory(&self, tenant: &Tenant) -> MemoryCharge {
        self.0.by_url.open(tenant)
    }

    /// For an answer that waits until its client takes it.
    pub fn answer_memory(&self, tenant: &Tenant) -> MemoryCharge {
        self.0.answers.open(tenant)
    }

    /// For what comes out of a port and waits until its client takes it: of a tenant's sandboxes, whoever the clients are.
    pub fn port_memory(&self, tenant: &Tenant) -> MemoryCharge {
        self.0.from_ports.open(tenant)
    }

    /// Before something is done: its answer is charged whether there is room or not, so who has more than it may waits.
    pub fn check_answers(&self, tenant: &Tenant) -> Result<()> {
        let is_over = self.0.lists.is_over(tenant) || self.0.answers.is_over(tenant);
        if is_over { Err(Error::ListsTooLarge) } else { Ok(()) }
    }

    /// Before a long answer is made of what was done: who has more than it may waits until its clients have taken enough, and then one
    /// goes on at a time. What waits has nothing that was made for its answer, so nothing waits for it.
    pub async fn answer_turn(&self, tenant: &Tenant) -> AnswerTurn {
        let _first = self.0.answer_queue.acquire(tenant).await;
        loop {
            self.0.lists.wait_for_room(tenant).await;
            self.0.answers.wait_for_room(tenant).await;
            let turn = self.making_turn(tenant).await;
            if self.check_answers(tenant).is_ok() {
                return turn;
            }
        }
    }

    /// Only behind those who make theirs, and not behind those who wait for room.
    pub(crate) async fn making_turn(&self, tenant: &Tenant) -> AnswerTurn {
        AnswerTurn { _permit: self.0.answer_turns.acquire(tenant).await }
    }

    /// For a request, until it is answered.
    pub fn request_place(&self, tenant: &Tenant) -> Result<Share> {
        REQUESTS.take(&shares::tenant(tenant)).ok_or(Error::TooManyRequests)
    }

    pub async fn call_row(&self, tenant: &Tenant, id: CallId) -> Result<CallRow> {
        self.0.store.call(tenant, id).await?.ok_or(Error::NoCall(id))
    }

    pub async fn call_list(&self, tenant: &Tenant, sandbox: Option<&SandboxId>, page: Page) -> Result<Vec<CallRow>> {
        Ok(self.0.store.calls(tenant, sandbox, page).await?)
    }

    /// Waits for its end.
    pub async fn ended_call(&self, tenant: &Tenant, id: CallId) -> Result<CallRow> {
        self.call_row(tenant, id).await?;
        self.0.left_calls.taken_up(&id).await?;
        if let Some(call) = self.0.calls.get(id) {
            call.outcome().await;
        }
        self.call_row(tenant, id).await
    }

    /// Waits until it has ended, by whatever end; one that has ended already stays what it is.
    pub async fn cancel_call(&self, tenant: &Tenant, id: CallId) -> Result<CallRow> {
        self.call_row(tenant, id).await?; // only its own tenant ends it
        self.0.left_calls.taken_up(&id).await?;
        if let Some(call) = self.0.calls.get(id) {
            call.cancel.cancel();
        }
        self.ended_call(tenant, id).await
    }

    /// From the oldest on, with what is missing before it.
    pub async fn ledger(&self, tenant: &Tenant, after: u64, limit: u32) -> Result<(Vec<LedgerRow>, Option<Dropped>)> {
        Ok(self.0.store.ledger_page(tenant, after, limit).await?)
    }

    /// Whether the store can be read and written to, as it was within a second.
    pub async fn check_store(&self) -> Result<()> {
        let store = self.0.store.clone();
        Ok(self.0.store_health.answer(Instant::now(), &self.0.tasks, async move { store.check().await }).await?)
    }

    pub async fn ledger_head(&self, tenant: &Tenant) -> Result<Option<Head>> {
        Ok(self.0.store.ledger_head(tenant).await?)
    }
}
