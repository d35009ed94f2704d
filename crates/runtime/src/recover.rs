//! What the last server left open: followed, recorded, or honestly unknown. Nothing is run again.

use std::{pin::pin, sync::Arc, time::Duration};

use cabana_model::{ExecId, Outcome, TaskId, Time};
use cabana_sandbox::{Output, Reattached, Sandbox, State, Stream};
use cabana_store::{By, CallRow, Done, Entry, Log, NewTask, SnapshotStep, Task};
use futures_util::TryStreamExt;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use crate::{
    Act, Error, Result, Runtime,
    acts::{
        exec::{self, Exec, exit_number},
        snapshot::Take,
        start::{self, Start},
        terminal::Terminal,
    },
    call::{RawCall, outcome_of},
    exec::{Followed, Taker, follow},
    fault::{self, Point},
    said,
    sandboxes::{Change, Kind},
    tasks::{About, Hands, Staying},
};

/// Why a sandbox goes that was made for one call.
pub(crate) const ONCE_ENDED: &str = "its one call has ended";
/// How many sandboxes are looked at at once.
const AT_ONCE: usize = 8;

impl Runtime {
    /// Before the first front opens.
    pub async fn recover(&self) -> Result<()> {
        self.load_quotas().await?;
        self.find_sandboxes().await?;
        fault::at(Point::RecoverSandboxes);
        for task in self.0.store.open_tasks().await? {
            self.recover_task(task).await?;
        }
        fault::at(Point::RecoverTasks);
        for call in self.0.store.open_calls().await? {
            let span = said::span_in(&call.verb, call.id, &call.tenant, call.sandbox.as_ref());
            self.recover_call(call).instrument(span).await?;
            fault::at(Point::RecoverCall);
        }
        fault::at(Point::RecoverCalls);
        self.find_snapshots().await?;
        self.find_builds().await?;
        self.find_volumes().await?;
        self.remove_upload_drafts().await;
        self.end_those_of_one_call().await
    }

    /// A sandbox that was made for one call ends with it, whichever server sees the end.
    async fn end_those_of_one_call(&self) -> Result<()> {
        let open = self.0.store.open_calls().await?;
        let mut restless = pin!(self.0.store.restless_sandboxes());
        while let Some(record) = restless.try_next().await? {
            let slot = self.0.sandboxes.of_record(record);
            let record = slot.record();
            if slot.is_deleting() || !slot.wanted()?.once {
                continue;
            }
            let mut of_it =
                open.iter().filter(|call| call.tenant == record.tenant && call.sandbox.as_ref() == Some(&record.id));
            match of_it.next().map(|call| call.id) {
                None => self.0.sandboxes.delete(&slot, Change::asked(By::Itself, ONCE_ENDED)).await?,
                Some(call) => {
                    let runtime = self.clone();
                    self.0.tasks.spawn(async move {
                        let ended = runtime.ended_call(&record.tenant, call);
                        let Some(Ok(_)) = runtime.0.closing.run_until_cancelled(ended).await else { return };
                        if let Err(error) =
                            runtime.0.sandboxes.delete(&slot, Change::asked(By::Itself, ONCE_ENDED)).await
                        {
                            tracing::warn!(%error, "a sandbox for one call could not be deleted yet");
                        }
                    });
                }
            }
        }
        Ok(())
    }

    /// Those that rest are found when they are needed. What others owe is done by whoever looks after sandboxes.
    async fn find_sandboxes(&self) -> Result<()> {
        self.0.sandboxes.count_doomed().await?;
        let restless = self.0.store.restless_sandboxes().map_err(Error::from);
        let found = restless.try_for_each_concurrent(AT_ONCE, |record| async move {
            let id = record.id.clone();
            let slot = self.0.sandboxes.of_record(record);
            let found = match self.0.sandboxes.found_again(&slot).await {
                // Nobody was told of it, and no scope leads to it.
                Ok(false) if slot.record().scope.is_none() => {
                    let change = Change::asked(By::Itself, "a crash came before it was made");
                    self.0.sandboxes.delete(&slot, change).await
                }
                found => found.map(drop),
            };
            let owes = slot.record().phase.is_some();
            let found = match (found, owes) {
                (Ok(()), true) => self.0.sandboxes.look_at(&slot, slot.record().version, Some(Time::UNIX_EPOCH)).await,
                (found, _) => found,
            };
            fault::at(Point::RecoverFound);
            // One that cannot be looked at now is looked at when it is needed.
            if let Err(error) = found {
                tracing::warn!(sandbox = %id, %error, "a sandbox could not be looked at");
            }
            Ok(())
        });
        found.await?;
        self.due_by_settings().await
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

    async fn recover_task(&self, row: Task) -> Result<()> {
        let Task { id, tenant, call, key, sandbox, argv, about, started, .. } = row;
        let task = NewTask { id, tenant, call, key, sandbox, argv, about, at: started };
        let Some(sandbox) = self.0.sandboxes.still_there(&task.tenant, &task.sandbox).await else {
            return self.task_is_lost(&task).await;
        };
        let log = self.left_output(id.uuid())?;
        match reattach(&*sandbox, &id.into(), &log).await {
            Reattached::Missing => self.task_is_lost(&task).await,
            Reattached::Running(mut process) => {
                let slot = self.0.sandboxes.of_id(&task.tenant, &task.sandbox).await?;
                let pass = Some(self.0.quotas.left_task(&task.tenant, task.key));
                let hands = Some(Hands::of(&mut process, About::of(&task).typed));
                let staying = Staying { awake: Some(slot.awake(Kind::Task)), pass, hands, env: Arc::default() };
                self.follow_task(task, sandbox, log, staying, move |log, cancel, grace| async move {
                    follow(process, None, &log, &cancel, grace, |_| ()).await
                });
                Ok(())
            }
            Reattached::Exited(exit, rest) => {
                let staying = Staying { awake: None, pass: None, hands: None, env: Arc::default() };
                self.follow_task(task, sandbox, log, staying, move |log, _, _| async move {
                    said_meanwhile(&log, rest).await?;
                    Ok(Followed { exit, cancelled: false })
                });
                Ok(())
            }
        }
    }

    async fn recover_call(&self, row: CallRow) -> Result<()> {
        match row.verb.as_str() {
            Exec::VERB | Terminal::VERB => self.recover_exec(row).await,
            Start::VERB => {
                let task = TaskId::from(row.id.uuid());
                let outcome = match self.0.store.task(&row.tenant, task).await? {
                    Some(_) => outcome_of(
                        serde_json::to_vec(&start::Answer { task, pid: None })
                            .map(Into::into)
                            .map_err(|error| Error::invalid("answer", error.to_string())),
                    ),
                    None => Outcome::Unknown,
                };
                self.settle_left(&row, outcome, None, None).await
            }
            Take::VERB => self.recover_taking(&row).await,
            _ => self.settle_left(&row, Outcome::Unknown, None, None).await,
        }
    }

    async fn recover_exec(&self, row: CallRow) -> Result<()> {
        let sandbox = match &row.sandbox {
            Some(sandbox) => self.0.sandboxes.still_there(&row.tenant, sandbox).await,
            None => None,
        };
        let Some(sandbox) = sandbox else {
            return self.settle_left(&row, Outcome::Unknown, None, None).await;
        };
        let log = self.left_output(row.id.uuid())?;
        match reattach(&*sandbox, &row.id.into(), &log).await {
            Reattached::Missing => self.settle_left(&row, Outcome::Unknown, Some(&log), None).await,
            Reattached::Exited(exit, rest) => {
                said_meanwhile(&log, rest).await?;
                let number = exit_number(&exit);
                let answer = exec::recovered(row.id, Followed { exit, cancelled: false }, &log).await;
                self.settle_left(&row, outcome_of(answer), Some(&log), number).await?;
                let _ = sandbox.forget(&row.id.into()).await;
                Ok(())
            }
            Reattached::Running(process) => {
                let (call, tell) = RawCall::new(row.id, log);
                if row.verb == Terminal::VERB {
                    call.cancel.cancel(); // whoever sat at it went with the last server
                }
                self.0.calls.add(call.clone());
                let (runtime, pass) = (self.clone(), self.0.quotas.left_call(&row.tenant, row.key));
                let work = async move {
                    let (cancel, log): (&CancellationToken, _) = (&call.cancel, &call.output);
                    let followed = follow(process, None, log, cancel, runtime.0.settings.grace, |_| ());
                    let Some(followed) = runtime.0.closing.run_until_cancelled(followed).await else {
                        log.end(); // for whoever reads along
                        return runtime.0.calls.remove(row.id);
                    };
                    let number = followed.as_ref().ok().and_then(|followed| exit_number(&followed.exit));
                    let answer = match followed {
                        Ok(followed) => exec::recovered(row.id, followed, log).await,
                        Err(error) => Err(error),
                    };
                    let outcome = outcome_of(answer);
                    drop(pass); // whoever hears of its end may begin another
                    match runtime.settle_left(&row, outcome.clone(), Some(log), number).await {
                        Ok(()) => {
                            let _ = tell.send(Some(outcome));
                            let _ = sandbox.forget(&row.id.into()).await;
                        }
                        Err(error) => tracing::error!(%error, "a call could not be recorded"),
                    }
                    runtime.0.calls.remove(row.id);
                };
                self.0.tasks.spawn(work.instrument(Span::current()));
                Ok(())
            }
        }
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
        said::recorded(&self.0.metrics, &row.tenant, &row.verb, &outcome, spent);
        Ok(())
    }
}

/// A sandbox that does not answer keeps no server from its start: its command is as good as lost.
async fn reattach(sandbox: &dyn Sandbox, id: &ExecId, log: &Log) -> Reattached {
    sandbox.reattach(id, log.position()).await.unwrap_or_else(|error| {
        tracing::warn!(exec = %id, %error, "a command could not be found again");
        Reattached::Missing
    })
}

/// The rest of what a command said that ended while nobody listened.
async fn said_meanwhile(log: &Log, mut rest: Stream<Output>) -> Result<()> {
    let mut taker = Taker::new(log);
    while let Some(output) = rest.try_next().await? {
        taker.take(output).await?;
    }
    Ok(())
}
