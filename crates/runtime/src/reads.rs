//! What is recorded, for whoever may know it.

use std::time::Instant;

use cabana_model::{CallId, SandboxId, SandboxState, Tenant};
use cabana_store::{BegunPage, CallRow, Dropped, Head, KnownSpec, LedgerRow, Page, Record};
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    Caller, Error, MemoryCharge, Result, Runtime,
    shares::{self, REQUESTS, Share},
};

/// A tenant's turn to make an answer, until that is charged.
pub struct AnswerTurn {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Runtime {
    pub async fn sandbox(&self, caller: &Caller, id: &SandboxId) -> Result<Record> {
        self.sandbox_again(caller, id, None).await
    }

    /// By one who may have its spec: that is read only where it has changed.
    pub async fn sandbox_again(&self, caller: &Caller, id: &SandboxId, known: Option<KnownSpec>) -> Result<Record> {
        let record = match known {
            Some(known) => self.0.store.sandbox_again(&caller.tenant, id, known).await?,
            None => self.0.store.sandbox(&caller.tenant, id).await?,
        };
        let is_there =
            |record: &Record| record.state != SandboxState::Deleting && caller.reaches(record.user.as_deref());
        record.filter(is_there).ok_or_else(|| Error::NoSandbox(id.clone()))
    }

    /// The newest first.
    pub async fn sandbox_list(&self, caller: &Caller, state: Option<SandboxState>, page: Page) -> Result<Vec<Record>> {
        Ok(self.0.store.sandboxes(&caller.tenant, caller.subject.only(), state, page).await?)
    }

    /// By when they began to run.
    pub async fn sandboxes_by_start(&self, caller: &Caller, page: BegunPage) -> Result<Vec<Record>> {
        Ok(self.0.store.sandboxes_by_start(&caller.tenant, caller.subject.only(), page).await?)
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

    pub async fn call_row(&self, caller: &Caller, id: CallId) -> Result<CallRow> {
        let row = self.0.store.call(&caller.tenant, id).await?;
        // What is about no sandbox may be about anything of the tenant.
        let is_about_all = |row: &CallRow| row.user.is_none() && row.sandbox.is_none();
        let is_seen = |row: &CallRow| match caller.subject.only() {
            Some(_) if is_about_all(row) => false,
            _ => caller.reaches(row.user.as_deref()),
        };
        row.filter(is_seen).ok_or(Error::NoCall(id))
    }

    pub async fn call_list(&self, caller: &Caller, sandbox: Option<&SandboxId>, page: Page) -> Result<Vec<CallRow>> {
        Ok(self.0.store.calls(&caller.tenant, caller.subject.only(), sandbox, page).await?)
    }

    /// Waits for its end.
    pub async fn ended_call(&self, caller: &Caller, id: CallId) -> Result<CallRow> {
        self.call_row(caller, id).await?; // only who sees it waits for it
        self.end_of_call(id).await?;
        self.call_row(caller, id).await
    }

    pub(crate) async fn end_of_call(&self, id: CallId) -> Result<()> {
        self.0.left_calls.taken_up(&id).await?;
        if let Some(call) = self.0.calls.get(id) {
            call.outcome().await;
        }
        Ok(())
    }

    /// Waits until it has ended, by whatever end; one that has ended already stays what it is.
    pub async fn cancel_call(&self, caller: &Caller, id: CallId) -> Result<CallRow> {
        self.call_row(caller, id).await?;
        self.0.left_calls.taken_up(&id).await?;
        if let Some(call) = self.0.calls.get(id) {
            call.cancel.cancel();
        }
        self.ended_call(caller, id).await
    }

    /// From the oldest on, with what is missing before it.
    pub async fn ledger(&self, caller: &Caller, after: u64, limit: u32) -> Result<(Vec<LedgerRow>, Option<Dropped>)> {
        caller.require_all_users()?;
        Ok(self.0.store.ledger_page(&caller.tenant, after, limit).await?)
    }

    /// Whether the store can be read and written to, as it was within a second.
    pub async fn check_store(&self) -> Result<()> {
        let store = self.0.store.clone();
        Ok(self.0.store_health.answer(Instant::now(), &self.0.tasks, async move { store.check().await }).await?)
    }

    pub async fn ledger_head(&self, caller: &Caller) -> Result<Option<Head>> {
        caller.require_all_users()?;
        Ok(self.0.store.ledger_head(&caller.tenant).await?)
    }
}
