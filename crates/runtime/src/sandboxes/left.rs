//! Sandboxes of the last server: counted, attached to, or doomed.

use std::{collections::HashSet, sync::Arc, time::Duration};

use cabana_model::{Life, SandboxId, SandboxState, Tenant, Time};
use cabana_sandbox::{Sandbox, State};
use cabana_store::By;
use futures_util::TryStreamExt;
use tokio::sync::MutexGuard;

use super::{Sandboxes, Slot};
use crate::Result;

/// How often it is tried to attach to one, and how long between two tries: a server that serves may be short of something.
const TRIES: u32 = 3;
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// One that was looked at. Nothing changes its shape before this is dropped.
pub(crate) struct Attached<'a> {
    /// Of one that runs or is paused.
    pub(crate) handle: Option<Arc<dyn Sandbox>>,
    /// False: there is a record, and there never was a sandbox.
    pub(crate) is_made: bool,
    _alone: MutexGuard<'a, ()>,
}

impl Sandboxes {
    /// Waits for one of the last server's until it is attached to.
    pub(crate) async fn taken_up(&self, slot: &Slot) -> Result<()> {
        self.left.taken_up(&slot.record().physical).await
    }

    /// The same by its public id.
    pub(crate) async fn taken_up_at(&self, place: &(Tenant, SandboxId)) -> Result<()> {
        // One that is not taken up yet is in hand.
        match self.slots(|slots| slots.by_id.get(place).and_then(std::sync::Weak::upgrade)) {
            Some(slot) => self.taken_up(&slot).await,
            None => Ok(()),
        }
    }

    /// Against the quotas, before it is known what became of it: whatever may run counts. Its idle time begins anew, since no client
    /// could use it while there was no server.
    pub(crate) fn count_left(&self, slot: &Slot) {
        use SandboxState as S;
        let record = slot.record();
        if record.state == S::Running {
            slot.used();
        }
        if matches!(record.state, S::Failed | S::Archiving | S::Archived | S::Restoring | S::Stopped) {
            return;
        }
        match slot.wanted() {
            Ok(wanted) => self.quotas.runs(&record, &wanted.sandbox.limits),
            Err(error) => tracing::error!(sandbox = %record.id, %error, "a sandbox is counted in no quota"),
        }
    }

    /// Of those that are to go, what runs counts until it has gone, and the rest does not.
    pub(crate) async fn count_awake(&self, doomed: &[Arc<Slot>]) -> Result<()> {
        if doomed.is_empty() {
            return Ok(());
        }
        let all: Vec<_> = self.provider.list().await?.try_collect().await?;
        let awake = all.into_iter().filter(|(_, state)| *state != State::Stopped);
        let awake: HashSet<SandboxId> = awake.map(|(id, _)| id).collect();
        let physical = doomed.iter().map(|slot| slot.record().physical.clone());
        physical.filter(|physical| !awake.contains(physical)).for_each(|physical| self.quotas.rests(&physical));
        Ok(())
    }

    /// It is to go. Its files are removed when those that look after sandboxes get to it.
    pub(crate) async fn doom(&self, slot: &Arc<Slot>, why: &str) -> Result<()> {
        let _alone = slot.changing.lock().await;
        if !slot.is_deleting() {
            self.step(slot, Life::DOOMED, why, By::Itself).await?;
        }
        self.let_go(slot);
        self.look_at_now(slot).await
    }

    /// What it owes is done by those that look after sandboxes, as soon as they can.
    pub(crate) async fn look_at_now(&self, slot: &Slot) -> Result<()> {
        self.look_at(slot, slot.record().version, Some(Time::UNIX_EPOCH)).await?;
        self.wake_reaper();
        Ok(())
    }

    /// What became of it while there was no server. Nothing is started for it, what it owes is done later, and no call finds it yet.
    pub(crate) async fn attach_left<'a>(&self, slot: &'a Arc<Slot>) -> Result<Attached<'a>> {
        for _ in 1..TRIES {
            match self.attach_once(slot).await {
                Err(error) => {
                    tracing::warn!(sandbox = %slot.record().id, %error, "a sandbox could not be attached to yet");
                }
                attached => return attached,
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
        self.attach_once(slot).await
    }

    async fn attach_once<'a>(&self, slot: &'a Arc<Slot>) -> Result<Attached<'a>> {
        let _alone = slot.changing.lock().await;
        let was = slot.record().life();
        // It may have been stopped, or gone on with, since this server began.
        let handle = match (slot.live(), was.state) {
            (Some(live), _) => Some(live),
            (None, SandboxState::Deleting | SandboxState::Archived | SandboxState::Failed) => None,
            (None, _) => self.reconcile(slot).await?,
        };
        if handle.is_none() && !slot.is_deleting() {
            self.quotas.rests(&slot.record().physical);
        }
        let is_made = was != Life::CLAIMED || slot.record().life() != Life::CLAIMED;
        let handle = handle.filter(|_| matches!(slot.record().state, SandboxState::Running | SandboxState::Paused));
        Ok(Attached { handle, is_made, _alone })
    }

    /// Its tasks go on, so calls may come.
    pub(crate) fn open_to_calls(&self, slot: &Arc<Slot>, attached: Attached<'_>) {
        if let Some(handle) = attached.handle
            && slot.record().state == SandboxState::Running
            && slot.live().is_none()
        {
            self.hold(slot, handle);
        }
    }
}
