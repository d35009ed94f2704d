//! What the last server left open: followed, recorded, or honestly unknown. Nothing is run again.
//!
//! Before the first front opens, the store is read, and what may run is counted ([`survey`]). All that asks a sandbox or removes files
//! comes after, while others are served, since tenants decide how long that takes: who wants something that is not taken up yet waits
//! for that ([`pending`]). What cannot be taken up is logged, and keeps nothing else from it.

mod commands;
mod pending;
mod survey;

use std::{sync::Arc, time::Duration};

use cabana_model::{CallId, Outcome, SandboxState, TaskId};
use cabana_sandbox::State;
use cabana_store::{By, CallRow, Done, Entry, Log, Page, Record, SnapshotStep};
use futures_util::TryStreamExt;
use tokio::{task::JoinHandle, time::timeout};
use tracing::Instrument as _;

pub(crate) use self::pending::Pending;
use self::survey::{Doomed, Left, LeftCall, LeftSandbox};
use crate::{
    Act, Error, Result, Runtime,
    acts::{
        sandbox::{Ensure, Ensured},
        snapshot::Take,
        start::{self, Start},
    },
    call::outcome_of,
    fault::{self, Point},
    said,
    sandboxes::{Change, Slot},
};

/// Why a sandbox goes that was made for one call.
pub(crate) const ONCE_ENDED: &str = "its one call has ended";
/// Why one goes that no client was told of, or can ask for, and that no scope leads to.
const UNTOLD: &str = "a crash came before anybody was told of it";
/// How many sandboxes of one tenant are attached to at once.
pub(crate) const AT_ONCE: usize = 8;
/// One that does not answer within this time lets the next one begin, and has its own time still.
const TURN: Duration = Duration::from_secs(2);

/// What was left is being taken up, whether or not this is held.
#[derive(Debug)]
pub struct Recovery(JoinHandle<()>);

impl Recovery {
    pub async fn finished(self) {
        let _ = self.0.await; // it ends with the runtime at the latest
    }
}

impl Runtime {
    /// Before the first front opens.
    pub async fn recover(&self) -> Result<Recovery> {
        self.load_quotas().await?;
        self.fail_left_builds().await?;
        let left = self.survey().await?;
        self.due_by_settings().await?;
        let runtime = self.clone();
        Ok(Recovery(self.0.tasks.spawn(async move { runtime.take_up(left).await })))
    }

    /// How many sandboxes, tasks and calls of the last server are not taken up yet.
    pub fn recovering(&self) -> usize {
        self.0.sandboxes.left.count() + self.0.left_tasks.count() + self.0.left_calls.count()
    }

    async fn take_up(&self, left: Left) {
        let Left { sandboxes, doomed, tasks, calls, snapshots, loose, volumes } = left;
        // First: who lists what runs waits for each sandbox that is being attached to.
        self.doom_left(doomed).await;
        let spawn = |left| self.0.tasks.spawn(self.clone().take_up_sandbox(left));
        let attached: Vec<_> = sandboxes.into_iter().map(spawn).collect();
        for task in tasks {
            self.recover_task(task, None).await;
        }
        for call in calls {
            self.recover_call(&call, None).await;
        }
        log("snapshots", self.find_snapshots(snapshots).await);
        for (tenant, snapshot) in loose {
            self.remove_loose(&tenant, vec![snapshot]).await;
        }
        log("volumes", self.find_volumes(volumes).await);
        self.remove_upload_drafts().await;
        for one in attached {
            let _ = one.await;
        }
    }

    /// Their files go when those that look after sandboxes get to it.
    async fn doom_left(&self, doomed: Vec<Doomed>) {
        for Doomed { slot, why } in &doomed {
            let doomed = match why {
                Some(why) => self.0.sandboxes.doom(slot, why).await,
                None => self.0.sandboxes.look_at_now(slot).await,
            };
            if let Err(error) = doomed {
                tracing::warn!(sandbox = %slot.record().id, %error, "a sandbox could not be deleted yet");
            }
        }
        let doomed: Vec<_> = doomed.into_iter().map(|doomed| doomed.slot).collect();
        log("sandboxes that go", self.0.sandboxes.count_awake(&doomed).await);
    }

    async fn take_up_sandbox(self, left: LeftSandbox) {
        let LeftSandbox { slot, outstanding, tasks, calls, ensures } = left;
        let record = slot.record();
        let permit = tokio::select! {
            permit = self.0.attaching.acquire(&record.tenant) => permit,
            () = outstanding.wanted() => None,
        };
        let attach = self.0.closing.run_until_cancelled(self.0.sandboxes.attach_left(&slot));
        tokio::pin!(attach);
        let attached = match timeout(TURN, &mut attach).await {
            Ok(attached) => attached,
            Err(_) => {
                drop(permit);
                attach.await
            }
        };
        let Some(attached) = attached else { return }; // it is left to the next server
        fault::at(Point::RecoverFound);
        let attached = attached.inspect_err(|error| {
            // It is looked at again when it is needed.
            tracing::warn!(sandbox = %slot.record().id, %error, "a sandbox could not be attached to");
        });
        let sandbox = attached.as_ref().ok().and_then(|attached| attached.handle.clone());
        fault::at(Point::RecoverSandboxes);
        for task in tasks {
            self.recover_task(task, sandbox.as_ref()).await;
        }
        fault::at(Point::RecoverTasks);
        let once = calls.first().map(|call| call.row.id);
        for call in calls {
            self.recover_command(call, sandbox.as_ref()).await;
        }
        fault::at(Point::RecoverCalls);
        for ensure in &ensures {
            self.recover_call(ensure, Some(&record)).await;
        }
        let Ok(attached) = attached else { return };
        let is_made = attached.is_made;
        self.0.sandboxes.open_to_calls(&slot, attached);
        let is_nobodys = match ensures.iter().find(|ensure| ensure.row.made) {
            Some(ensure) => self.is_untold(&record, &ensure.row).await,
            // Claimed, and not even its call was written down.
            None => Ok(!is_made && record.scope.is_none() && record.version == 1),
        };
        let settled = async { self.settle_left_sandbox(&slot, is_nobodys?, once).await };
        log("what a sandbox owes", settled.await);
        drop(outstanding);
    }

    async fn settle_left_sandbox(&self, slot: &Arc<Slot>, is_nobodys: bool, once: Option<CallId>) -> Result<()> {
        if is_nobodys {
            return self.0.sandboxes.doom(slot, UNTOLD).await;
        }
        if slot.record().phase.is_some() {
            self.0.sandboxes.look_at_now(slot).await?;
        }
        if let Some(call) = once.filter(|_| slot.wanted().is_ok_and(|wanted| wanted.once)) {
            self.delete_after(slot.clone(), call);
        }
        Ok(())
    }

    /// A sandbox that was made for one call ends with it.
    fn delete_after(&self, slot: Arc<Slot>, call: CallId) {
        let runtime = self.clone();
        self.0.tasks.spawn(async move {
            let ended = runtime.end_of_call(call);
            let Some(Ok(())) = runtime.0.closing.run_until_cancelled(ended).await else { return };
            let change = Change::asked(By::Itself, ONCE_ENDED);
            if let Err(error) = runtime.0.sandboxes.delete(&slot, change).await {
                tracing::warn!(%error, "a sandbox for one call could not be deleted yet");
            }
        });
    }

    /// When sandboxes are due may have been decided by other settings.
    pub(crate) async fn due_by_settings(&self) -> Result<()> {
        let rule = serde_json::to_string(&self.0.settings.lifecycle).unwrap_or_default();
        Ok(self.0.store.due_by(&rule).await?)
    }

    /// Looks for sandboxes that nobody knows of. Nothing waits for it: there may be very many to look through.
    pub fn find_strangers(&self) {
        let runtime = self.clone();
        self.0.tasks.spawn(async move {
            let looked = runtime.0.closing.run_until_cancelled(runtime.strangers()).await;
            if let Some(Err(error)) = looked {
                tracing::warn!(%error, "sandboxes without a record could not be looked for");
            }
        });
    }

    async fn strangers(&self) -> Result<()> {
        let mut all = self.0.sandboxes.provider().list().await?;
        while let Some((id, state)) = all.try_next().await? {
            if state == State::Stopped || self.0.store.by_physical(&id).await?.is_some() {
                continue;
            }
            // Its files may be all that is left of a database that was lost: they are not ours to remove.
            match self.0.sandboxes.provider().stop(&id).await {
                Ok(()) => {
                    tracing::warn!(sandbox = %id, ?state, "there is a sandbox without a record: it was stopped and is left alone");
                }
                Err(cabana_sandbox::Error::NoSandbox(_)) => {} // it was deleted since it was listed
                Err(error) => {
                    tracing::warn!(sandbox = %id, %error, "there is a sandbox without a record, and it could not be stopped");
                }
            }
        }
        Ok(())
    }

    /// What no command tells of. `sandbox`: what it was before it was attached to, if it may run.
    async fn recover_call(&self, left: &LeftCall, sandbox: Option<&Record>) {
        let row = &left.row;
        let span = said::span_in(&row.verb, row.id, &row.tenant, row.sandbox.as_ref());
        let settled = async {
            match row.verb.as_str() {
                Start::VERB => self.recover_start(row).await,
                Take::VERB => self.recover_taking(row).await,
                Ensure::VERB => self.recover_ensure(row, sandbox).await,
                _ => self.settle_left(row, Outcome::Unknown, None, None).await,
            }
        };
        let settled = settled.instrument(span).await;
        fault::at(Point::RecoverCall);
        if let Err(error) = settled {
            tracing::error!(call = %row.id, %error, "a call of the last server could not be recorded");
        }
    }

    async fn recover_start(&self, row: &CallRow) -> Result<()> {
        let task = TaskId::from(row.id.uuid());
        let outcome = match self.0.store.task(&row.tenant, task).await? {
            Some(_) => outcome_of(
                serde_json::to_vec(&start::Answer { task, pid: None })
                    .map(Into::into)
                    .map_err(|error| Error::invalid("answer", error.to_string())),
            ),
            None => Outcome::Unknown,
        };
        self.settle_left(row, outcome, None, None).await
    }

    /// Its sandbox is there, or is made or started as soon as it is used: the answer is what it would have been.
    async fn recover_ensure(&self, row: &CallRow, sandbox: Option<&Record>) -> Result<()> {
        let resting = match (sandbox, &row.sandbox) {
            (None, Some(id)) => self.0.store.sandbox(&row.tenant, id).await?,
            _ => None,
        };
        let is_there = |record: &&Record| !matches!(record.state, SandboxState::Deleting | SandboxState::Failed);
        let outcome = match sandbox.or(resting.as_ref()).filter(is_there) {
            Some(record) if is_asked_for(record, row) => {
                let answer = Ensured { sandbox: record.id.clone(), created: row.made };
                let answer = serde_json::to_vec(&answer).map(Into::into);
                outcome_of(answer.map_err(|error| Error::invalid("answer", error.to_string())))
            }
            _ => Outcome::Unknown,
        };
        if let Some(record) = resting
            && self.is_untold(&record, row).await?
        {
            self.0.sandboxes.doom(&self.0.sandboxes.of_record(record), UNTOLD).await?;
        }
        self.settle_left(row, outcome, None, None).await
    }

    /// Whether nobody can know of the sandbox that was made for this call: no client was told, none can ask again, no scope leads to it,
    /// and nobody has used it who saw it in a list.
    async fn is_untold(&self, record: &Record, row: &CallRow) -> Result<bool> {
        if !row.made || is_asked_for(record, row) {
            return Ok(false);
        }
        let calls = self.0.store.calls(&record.tenant, None, Some(&record.id), Page::first(2)).await?;
        Ok(calls.iter().all(|call| call.id == row.id))
    }

    async fn settle_left(
        &self,
        row: &CallRow,
        outcome: Outcome,
        log: Option<&Arc<Log>>,
        exit: Option<i64>,
    ) -> Result<()> {
        self.settle_left_with(row, outcome, log, exit, None).await
    }

    pub(crate) async fn settle_left_with(
        &self,
        row: &CallRow,
        outcome: Outcome,
        log: Option<&Arc<Log>>,
        exit: Option<i64>,
        step: Option<SnapshotStep>,
    ) -> Result<()> {
        let ended = log.map(|log| log.end());
        let at = self.0.clock.now();
        let entry = Entry {
            tenant: row.tenant.clone(),
            key: row.key,
            sandbox: row.sandbox.clone(),
            call: row.id,
            verb: row.verb.clone(),
            argv: row.argv.clone(),
            input_digest: None,
            output_digest: ended.as_ref().filter(|ended| ended.stdout + ended.stderr > 0).map(|ended| ended.digest),
            outcome: match &outcome {
                Outcome::Failed { code, .. } => code.as_str().to_owned(),
                outcome => outcome.as_str().to_owned(),
            },
            exit,
            duration_ms: at.duration_since(row.reserved).as_millis().try_into().unwrap_or(0),
            policy: None,
            at,
        };
        let done = Done { id: row.id, outcome, output: ended.and_then(|ended| ended.inline), entry };
        let (spent, outcome) = (Duration::from_millis(done.entry.duration_ms), done.outcome.clone());
        match step {
            None => self.0.store.record(done).await?,
            Some(step) => self.0.store.record_snapshot(done, step).await?,
        }
        self.0.metrics.ledger_row();
        said::recorded(&self.0.metrics, &row.tenant, &row.verb, &outcome, spent);
        Ok(())
    }
}

/// Whether somebody can come to it who does not know its id.
fn is_asked_for(record: &Record, row: &CallRow) -> bool {
    record.scope.is_some() || row.can_be_repeated
}

/// What is the matter with one thing keeps no other from being taken up.
fn log(what: &str, done: Result<()>) {
    if let Err(error) = done {
        tracing::warn!(%error, "the last server left {what}: not all could be taken up");
    }
}
