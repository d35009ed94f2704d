//! Commands that outlived their server: those of tasks, and those that were waited for.

use std::sync::Arc;

use cabana_model::{ExecId, Outcome};
use cabana_sandbox::{Output, Process, Reattached, Sandbox, Stream};
use cabana_store::{CallRow, Log, NewTask};
use futures_util::TryStreamExt;
use tracing::{Instrument as _, Span};

use super::survey::{LeftCall, LeftTask, MayRun};
use crate::{
    Act, Result, Runtime,
    acts::{
        exec::{self, exit_number},
        terminal::Terminal,
    },
    call::{RawCall, outcome_of},
    exec::{Followed, Input, Taker, follow},
    fault::{self, Point},
    said,
    tasks::{About, Hands, Staying},
};

impl Runtime {
    /// In a sandbox that is there, or that is not.
    pub(super) async fn recover_task(&self, left: LeftTask, sandbox: Option<&Arc<dyn Sandbox>>) {
        let LeftTask { task, may_run, _outstanding } = left;
        let id = task.id;
        if let Err(error) = self.follow_left_task(task, may_run, sandbox).await {
            tracing::error!(task = %id, %error, "a task of the last server could not be taken up");
        }
    }

    async fn follow_left_task(
        &self,
        task: NewTask,
        may_run: Option<MayRun>,
        sandbox: Option<&Arc<dyn Sandbox>>,
    ) -> Result<()> {
        let Some(sandbox) = sandbox.cloned() else { return self.task_is_lost(&task).await };
        let log = self.left_output(task.id.uuid()).await?;
        match reattach(&*sandbox, &task.id.into(), &log).await {
            Reattached::Missing => self.task_is_lost(&task).await,
            Reattached::Running(mut process) => {
                let (pass, awake) = may_run.map(|MayRun { pass, awake }| (pass, awake)).unzip();
                let hands = Some(Hands::of(&mut process, About::of(&task).typed));
                let staying = Staying { awake, pass, hands, env: Arc::default() };
                self.follow_task(task, sandbox, log, staying, move |log, cancel, grace| async move {
                    follow(process, Input::default(), &log, &cancel, grace, |_| ()).await
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

    pub(super) async fn recover_command(&self, left: LeftCall, sandbox: Option<&Arc<dyn Sandbox>>) {
        let LeftCall { row, may_run, _outstanding } = left;
        let id = row.id;
        let span = said::span_in(&row.verb, id, &row.tenant, row.sandbox.as_ref());
        let followed = self.follow_left_call(row, may_run, sandbox).instrument(span).await;
        fault::at(Point::RecoverCall);
        if let Err(error) = followed {
            tracing::error!(call = %id, %error, "a call of the last server could not be taken up");
        }
    }

    async fn follow_left_call(
        &self,
        row: CallRow,
        may_run: Option<MayRun>,
        sandbox: Option<&Arc<dyn Sandbox>>,
    ) -> Result<()> {
        let Some(sandbox) = sandbox.cloned() else {
            return self.settle_left(&row, Outcome::Unknown, None, None).await;
        };
        let log = self.left_output(row.id.uuid()).await?;
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
                self.follow_process(row, may_run, sandbox, log, process);
                Ok(())
            }
        }
    }

    /// Until it ends, or this server does.
    fn follow_process(
        &self,
        row: CallRow,
        may_run: Option<MayRun>,
        sandbox: Arc<dyn Sandbox>,
        log: Arc<Log>,
        process: Process,
    ) {
        let (call, tell) = RawCall::new(row.id, log);
        if row.verb == Terminal::VERB {
            call.cancel.cancel(); // its client went with the last server
        }
        self.0.calls.add(call.clone());
        let runtime = self.clone();
        let work = async move {
            let log = &call.output;
            let followed = follow(process, Input::default(), log, &call.cancel, runtime.0.settings.grace, |_| ());
            let Some(followed) = runtime.0.closing.run_until_cancelled(followed).await else {
                log.end(); // for clients that read along
                return runtime.0.calls.remove(row.id);
            };
            let number = followed.as_ref().ok().and_then(|followed| exit_number(&followed.exit));
            let answer = match followed {
                Ok(followed) => exec::recovered(row.id, followed, log).await,
                Err(error) => Err(error),
            };
            let outcome = outcome_of(answer);
            drop(may_run); // a client that hears of its end may begin another
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
    }
}

/// A command whose sandbox does not answer is as good as lost.
async fn reattach(sandbox: &dyn Sandbox, id: &ExecId, log: &Log) -> Reattached {
    sandbox.reattach(id, log.position()).await.unwrap_or_else(|error| {
        tracing::warn!(exec = %id, %error, "a command could not be found again");
        Reattached::Missing
    })
}

/// The rest of what a command said that ended while there was no server.
async fn said_meanwhile(log: &Log, mut rest: Stream<Output>) -> Result<()> {
    let mut taker = Taker::new(log);
    while let Some(output) = rest.try_next().await? {
        taker.take(output).await?;
    }
    Ok(())
}
