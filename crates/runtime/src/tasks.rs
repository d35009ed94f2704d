//! Commands in the background: followed to their end, whoever began to follow them.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use cabana_model::{SandboxId, TaskId, TaskState, Tenant};
use cabana_sandbox::{Process, Sandbox};
use cabana_store::{Entry, Log, NewTask, Page, Task, TaskEnd};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span, error_span};

use crate::{
    Error, Event, Result, Runtime,
    acts::exec::{ExitTold, exit_number},
    exec::{self, Followed},
    fault::{self, Point},
    sandboxes::Awake,
};

/// Between two tries to record what could not be recorded.
const AGAIN: Duration = Duration::from_millis(200);

/// Tasks that run.
#[derive(Default)]
pub(crate) struct LiveTasks(Mutex<HashMap<TaskId, LiveTask>>);

#[derive(Clone)]
pub(crate) struct LiveTask {
    pub(crate) log: Arc<Log>,
    pub(crate) cancel: CancellationToken,
    /// Its last word, once it is recorded.
    pub(crate) ended: watch::Receiver<Option<TaskState>>,
}

impl LiveTasks {
    fn all<T>(&self, act: impl FnOnce(&mut HashMap<TaskId, LiveTask>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn count(&self) -> usize {
        self.all(|tasks| tasks.len())
    }

    pub(crate) fn get(&self, id: TaskId) -> Option<LiveTask> {
        self.all(|tasks| tasks.get(&id).cloned())
    }
}

impl Runtime {
    pub(crate) fn begin_task(
        &self,
        task: NewTask,
        sandbox: Arc<dyn Sandbox>,
        process: Process,
        input: Option<Bytes>,
        awake: Option<Awake>,
    ) {
        let id = task.id;
        let log = self.0.store.outputs().begin(id.uuid(), self.0.settings.output_cap);
        self.follow_task(task, sandbox, log, awake, move |log, cancel, grace| async move {
            let away = |error: &_| tracing::error!(task = %id, %error, "what a task says cannot be kept yet");
            exec::follow(process, input, &log, &cancel, grace, away).await
        });
    }

    /// Until it ends, or this server does: then the next one goes on.
    pub(crate) fn follow_task<F>(
        &self,
        task: NewTask,
        sandbox: Arc<dyn Sandbox>,
        log: Arc<Log>,
        awake: Option<Awake>,
        follow: impl FnOnce(Arc<Log>, CancellationToken, Duration) -> F + Send + 'static,
    ) where
        F: Future<Output = Result<Followed>> + Send,
    {
        let (tell, ended) = watch::channel(None);
        let live = LiveTask { log, cancel: CancellationToken::new(), ended };
        self.0.live_tasks.all(|tasks| tasks.insert(task.id, live.clone()));
        self.tell_task(&task, Event::TaskStarted { task: task.id });
        let runtime = self.clone();
        // It goes on when the call that began it has ended: so it is no part of that.
        let span = error_span!(parent: None, "task", task = %task.id, call = %task.call, tenant = %task.tenant, sandbox = %task.sandbox);
        span.follows_from(Span::current());
        let work = async move {
            let _awake = awake;
            let begun = Instant::now();
            let follow = follow(live.log.clone(), live.cancel.clone(), runtime.0.settings.grace);
            let Some(followed) = runtime.0.closing.run_until_cancelled(follow).await else { return };
            fault::at(Point::TaskEnded);
            let state = runtime.end_task(&task, followed, &live, begun).await;
            if let Some(state) = state {
                fault::at(Point::TaskRecorded);
                let _ = sandbox.forget(&task.id.into()).await;
                let _ = tell.send(Some(state));
                runtime.tell_task(&task, Event::TaskEnded { task: task.id, state });
            }
            runtime.0.live_tasks.all(|tasks| tasks.remove(&task.id));
        };
        self.0.tasks.spawn(work.instrument(span));
    }

    /// `None`: the server ends before it could be recorded.
    async fn end_task(
        &self,
        task: &NewTask,
        followed: Result<Followed>,
        live: &LiveTask,
        begun: Instant,
    ) -> Option<TaskState> {
        let output = live.log.end();
        let (state, exit, number) = match &followed {
            Ok(followed) => {
                let exit = serde_json::to_string(&ExitTold::from(followed.exit)).ok();
                (followed.state(), exit, exit_number(&followed.exit))
            }
            // Its sandbox was stopped, deleted or died; if that was asked for the task's sake, it was cancelled.
            Err(_) if live.cancel.is_cancelled() => (TaskState::Cancelled, None, None),
            Err(_) => (TaskState::Failed, None, None),
        };
        let at = self.0.clock.now();
        let end = TaskEnd { id: task.id, state, exit, inline: output.inline, at };
        let entry = Entry {
            exit: number,
            output_digest: (output.stdout + output.stderr > 0).then_some(output.digest),
            duration_ms: begun.elapsed().as_millis() as u64,
            ..self.task_entry(task, state.as_str())
        };
        self.record_end(&live.log, end, entry).await.then_some(state)
    }

    async fn record_end(&self, log: &Log, end: TaskEnd, entry: Entry) -> bool {
        loop {
            let recorded = match log.settle().await {
                Ok(()) => self.0.store.end_task(end.clone(), entry.clone()).await.map(drop),
                Err(error) => Err(error),
            };
            let Err(error) = recorded else {
                self.0.metrics.ledger_row();
                return true;
            };
            let comes_back = matches!(error, cabana_store::Error::Unavailable(_));
            tracing::error!(%error, comes_back, "the end of a task could not be recorded");
            if !comes_back || !self.closing_after(AGAIN).await {
                return false;
            }
        }
    }

    /// A command that could not be started is a task that failed.
    pub(crate) async fn task_never_began(&self, task: &NewTask, why: &Error) -> Result<()> {
        let end = TaskEnd { id: task.id, state: TaskState::Failed, exit: None, inline: None, at: self.0.clock.now() };
        self.0.store.end_task(end, self.task_entry(task, why.code().as_str())).await?;
        self.0.metrics.ledger_row();
        Ok(())
    }

    /// Nobody can say how far it came.
    pub(crate) async fn task_is_lost(&self, task: &NewTask) -> Result<()> {
        let state = TaskState::Unknown;
        let end = TaskEnd { id: task.id, state, exit: None, inline: None, at: self.0.clock.now() };
        self.0.store.end_task(end, self.task_entry(task, state.as_str())).await?;
        self.0.metrics.ledger_row();
        self.tell_task(task, Event::TaskEnded { task: task.id, state });
        Ok(())
    }

    fn task_entry(&self, task: &NewTask, outcome: &str) -> Entry {
        Entry {
            tenant: task.tenant.clone(),
            key: task.key,
            sandbox: Some(task.sandbox.clone()),
            call: task.call,
            verb: "task".into(),
            argv: task.argv.clone(),
            input_digest: None,
            output_digest: None,
            outcome: outcome.to_owned(),
            exit: None,
            duration_ms: 0,
            policy: None,
            at: self.0.clock.now(),
        }
    }

    fn tell_task(&self, task: &NewTask, event: Event) {
        self.0.sandboxes.tell_of(&task.tenant, &task.sandbox, event);
    }

    pub async fn task(&self, tenant: &Tenant, id: TaskId) -> Result<Task> {
        self.0.store.task(tenant, id).await?.ok_or(Error::NoTask(id))
    }

    pub async fn task_list(
        &self,
        tenant: &Tenant,
        sandbox: Option<&SandboxId>,
        state: Option<TaskState>,
        page: Page,
    ) -> Result<Vec<Task>> {
        Ok(self.0.store.tasks(tenant, sandbox, state, page).await?)
    }

    /// Waits for its end.
    pub async fn ended_task(&self, tenant: &Tenant, id: TaskId) -> Result<Task> {
        if let Some(mut live) = self.0.live_tasks.get(id) {
            let _ = live.ended.wait_for(Option::is_some).await;
        }
        self.task(tenant, id).await
    }

    /// Waits until it has ended, by whatever end; one that has ended already stays what it is.
    pub async fn cancel_task(&self, tenant: &Tenant, id: TaskId) -> Result<Task> {
        self.task(tenant, id).await?; // only its own tenant ends it
        if let Some(live) = self.0.live_tasks.get(id) {
            live.cancel.cancel();
        }
        self.ended_task(tenant, id).await
    }
}
