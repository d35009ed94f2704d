//! Commands in the background: followed to their end, whoever began to follow them.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use cabana_model::{SandboxId, TaskId, TaskState, Tenant};
use cabana_sandbox::{Control, Process, Sandbox, Stdin, TermSize};
use cabana_store::{Entry, Log, NewTask, Page, Task, TaskEnd};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{
    sync::{Semaphore, SemaphorePermit, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span, error_span};

use crate::{
    Caller, Error, Event, Happened, Result, Runtime,
    acts::exec::{ExitTold, exit_number},
    exec::{self, Followed, Input},
    fault::{self, Point},
    quotas::Pass,
    sandboxes::Awake,
};

/// Between two tries to record what could not be recorded.
const AGAIN: Duration = Duration::from_millis(200);

/// So long one that has ended is still known by what it was called inside.
const LATELY: Duration = Duration::from_secs(30);
/// So many of one sandbox, the newest.
const MAX_LATELY: usize = 64;
const SWEEP: Duration = Duration::from_secs(5);

/// Calls that type to one command: they go on without their clients, and it may never read.
const MAX_INPUTS: usize = 64;

/// How a command in the background is typed to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Typed {
    /// What came with it is all.
    #[default]
    Whole,
    /// Its input stays open until somebody closes it.
    Open,
    Terminal(TermSize),
}

/// What is kept of a task beside its row of columns, for the server that goes on with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct About {
    #[serde(default)]
    pub(crate) typed: Typed,
    #[serde(default, with = "shared")]
    pub(crate) note: Option<Arc<Value>>,
}

impl About {
    pub(crate) fn of(task: &NewTask) -> Self {
        task.about.as_deref().and_then(|about| serde_json::from_str(about).ok()).unwrap_or_default()
    }

    pub(crate) fn written(&self) -> Option<String> {
        (*self != Self::default()).then(|| serde_json::to_string(self).ok())?
    }
}

/// What a task has as long as it runs: its sandbox awake, its place in the quotas, and what can be done to it.
pub(crate) struct Staying {
    pub(crate) awake: Option<Awake>,
    pub(crate) pass: Option<Pass>,
    pub(crate) hands: Option<Hands>,
    /// As it was begun with. They may be secrets, so they are written nowhere, and the next server does not know them.
    pub(crate) env: Arc<BTreeMap<String, String>>,
}

/// What can be done to a command while it runs.
#[derive(Clone)]
pub(crate) struct Hands {
    pub(crate) pid: Option<u32>,
    pub(crate) control: Arc<dyn Control>,
    /// Held for a whole write, so that what two send is not mixed. Empty where there is no input, or none any more.
    pub(crate) stdin: Arc<tokio::sync::Mutex<Option<Stdin>>>,
    /// Of the calls that may wait for that at a time.
    inputs: Arc<Semaphore>,
    /// However many of those there are, one finds room that ends the input.
    closing: Arc<Semaphore>,
}

impl Hands {
    /// The input is the follower's, unless it stays open.
    pub(crate) fn of(process: &mut Process, typed: Typed) -> Self {
        let stdin = if typed == Typed::Whole { None } else { process.stdin.take() };
        Self {
            pid: process.pid,
            control: process.control.clone(),
            stdin: Arc::new(tokio::sync::Mutex::new(stdin)),
            inputs: Arc::new(Semaphore::new(MAX_INPUTS)),
            closing: Arc::new(Semaphore::new(1)),
        }
    }

    /// For one call that types.
    pub(crate) fn take_input(&self) -> Result<SemaphorePermit<'_>> {
        self.inputs.try_acquire().map_err(|_| Error::TooManyInputs(MAX_INPUTS))
    }

    /// For one call that ends the input.
    pub(crate) fn take_close(&self) -> Result<SemaphorePermit<'_>> {
        self.closing.try_acquire().map_err(|_| Error::TooManyInputs(1))
    }

    /// Dropped, it would be the end of the file; but the next server is to type on.
    fn leave(&self) {
        if let Ok(mut stdin) = self.stdin.try_lock() {
            std::mem::forget(stdin.take());
        }
    }
}

/// A command in the background, as it is known in its sandbox.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    pub task: TaskId,
    pub pid: u32,
    pub typed: Typed,
    /// As whoever began it gave it.
    pub note: Option<Arc<Value>>,
    /// What it was begun with beside the sandbox's own, if this server began it.
    pub env: Arc<BTreeMap<String, String>>,
    pub has_ended: bool,
}

/// Tasks that run, and those that did a moment ago.
#[derive(Default)]
pub(crate) struct LiveTasks(Mutex<Tasks>);

#[derive(Default)]
struct Tasks {
    live: HashMap<TaskId, LiveTask>,
    /// The newest last.
    lately: HashMap<Where, VecDeque<(Instant, Seen)>>,
    /// When all of those were looked through.
    swept: Option<Instant>,
}

type Where = (Tenant, SandboxId);

impl Tasks {
    /// Drops what ended too long ago; not at each end, since many may end at once.
    fn sweep(&mut self) {
        let now = Instant::now();
        if self.swept.is_some_and(|last| now.duration_since(last) < SWEEP) {
            return;
        }
        self.swept = Some(now);
        self.lately.retain(|_, lately| {
            lately.retain(|(ended, _)| now.duration_since(*ended) < LATELY);
            !lately.is_empty()
        });
    }
}

/// Notes are shared by all who see a task: they may be long.
mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::Value;

    pub(super) fn serialize<S: Serializer>(note: &Option<Arc<Value>>, to: S) -> Result<S::Ok, S::Error> {
        note.as_deref().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Arc<Value>>, D::Error> {
        Ok(Option::<Value>::deserialize(from)?.map(Arc::new))
    }
}

#[derive(Clone)]
pub(crate) struct LiveTask {
    pub(crate) log: Arc<Log>,
    pub(crate) cancel: CancellationToken,
    /// Its last word, once it is recorded.
    pub(crate) ended: watch::Receiver<Option<TaskState>>,
    pub(crate) place: Where,
    /// None of one that had ended when it was found again.
    pub(crate) hands: Option<Hands>,
    about: About,
    env: Arc<BTreeMap<String, String>>,
}

impl LiveTask {
    fn seen(&self, task: TaskId, has_ended: bool) -> Option<Seen> {
        let pid = self.hands.as_ref()?.pid?;
        Some(Seen {
            task,
            pid,
            typed: self.about.typed,
            note: self.about.note.clone(),
            env: if has_ended { Arc::default() } else { self.env.clone() },
            has_ended,
        })
    }
}

impl LiveTasks {
    fn all<T>(&self, act: impl FnOnce(&mut Tasks) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn count(&self) -> usize {
        self.all(|tasks| tasks.live.len())
    }

    pub(crate) fn get(&self, id: TaskId) -> Option<LiveTask> {
        self.all(|tasks| tasks.live.get(&id).cloned())
    }

    fn remove(&self, id: TaskId) {
        self.all(|tasks| {
            tasks.sweep();
            if let Some(task) = tasks.live.remove(&id)
                && let Some(seen) = task.seen(id, true)
            {
                let lately = tasks.lately.entry(task.place).or_default();
                if lately.len() == MAX_LATELY {
                    lately.pop_front();
                }
                lately.push_back((Instant::now(), seen));
            }
        });
    }

    /// Those that run first: a number may be given again to another.
    fn seen(&self, place: &Where) -> Vec<Seen> {
        self.all(|tasks| {
            let live = tasks.live.iter().filter(|(_, task)| task.place == *place);
            let live = live.filter_map(|(id, task)| task.seen(*id, false));
            let lately = tasks.lately.get(place).into_iter().flatten().rev();
            let lately = lately.filter(|(ended, _)| ended.elapsed() < LATELY);
            live.chain(lately.map(|(_, seen)| seen.clone())).collect()
        })
    }
}

impl Runtime {
    pub(crate) fn begin_task(
        &self,
        task: NewTask,
        sandbox: Arc<dyn Sandbox>,
        mut process: Process,
        input: Input,
        staying: Staying,
    ) {
        let id = task.id;
        let hands = Hands::of(&mut process, About::of(&task).typed);
        let staying = Staying { hands: Some(hands), ..staying };
        let log = self.0.store.outputs().begin(id.uuid(), self.0.settings.output_cap);
        self.follow_task(task, sandbox, log, staying, move |log, cancel, grace| async move {
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
        staying: Staying,
        follow: impl FnOnce(Arc<Log>, CancellationToken, Duration) -> F + Send + 'static,
    ) where
        F: Future<Output = Result<Followed>> + Send,
    {
        let (tell, ended) = watch::channel(None);
        let Staying { awake, pass, hands, env } = staying;
        let place = (task.tenant.clone(), task.sandbox.clone());
        let live =
            LiveTask { log, cancel: CancellationToken::new(), ended, place, hands, about: About::of(&task), env };
        self.0.live_tasks.all(|tasks| tasks.live.insert(task.id, live.clone()));
        self.tell_task(&task, Event::TaskStarted { task: task.id });
        let runtime = self.clone();
        // It goes on when the call that began it has ended: so it is no part of that.
        let span = error_span!(parent: None, "task", task = %task.id, call = %task.call, tenant = %task.tenant, sandbox = %task.sandbox);
        span.follows_from(Span::current());
        let work = async move {
            let _awake = awake;
            let begun = Instant::now();
            let follow = follow(live.log.clone(), live.cancel.clone(), runtime.0.settings.grace);
            let Some(followed) = runtime.0.closing.run_until_cancelled(follow).await else {
                return live.hands.iter().for_each(Hands::leave);
            };
            fault::at(Point::TaskEnded);
            drop(pass); // whoever hears of its end may begin another
            let ended = runtime.end_task(&task, followed, &live, begun).await;
            if let Some((state, told)) = ended {
                fault::at(Point::TaskRecorded);
                let _ = sandbox.forget(&task.id.into()).await;
                let _ = tell.send(Some(state));
                runtime.0.events.tell(told);
            }
            runtime.0.live_tasks.remove(task.id);
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
    ) -> Option<(TaskState, Happened)> {
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
        let told = ended(task, &end);
        self.record_end(&live.log, end, entry).await.then_some((state, told))
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
        let told = ended(task, &end);
        self.0.store.end_task(end, self.task_entry(task, why.code().as_str())).await?;
        self.0.metrics.ledger_row();
        self.0.events.tell(told);
        Ok(())
    }

    /// Nobody can say how far it came.
    pub(crate) async fn task_is_lost(&self, task: &NewTask) -> Result<()> {
        let state = TaskState::Unknown;
        let end = TaskEnd { id: task.id, state, exit: None, inline: None, at: self.0.clock.now() };
        let told = ended(task, &end);
        self.0.store.end_task(end, self.task_entry(task, state.as_str())).await?;
        self.0.metrics.ledger_row();
        self.0.events.tell(told);
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

    pub async fn task(&self, caller: &Caller, id: TaskId) -> Result<Task> {
        let task = self.0.store.task(&caller.tenant, id).await?;
        task.filter(|task| caller.reaches(task.user.as_deref())).ok_or(Error::NoTask(id))
    }

    pub async fn task_list(
        &self,
        caller: &Caller,
        sandbox: Option<&SandboxId>,
        state: Option<TaskState>,
        page: Page,
    ) -> Result<Vec<Task>> {
        Ok(self.0.store.tasks(&caller.tenant, caller.subject.only(), sandbox, state, page).await?)
    }

    /// Those of a sandbox that run, and after them those that ended a moment ago.
    pub async fn seen_tasks(&self, tenant: &Tenant, sandbox: &SandboxId) -> Result<Vec<Seen>> {
        let place = (tenant.clone(), sandbox.clone());
        self.0.sandboxes.taken_up_at(&place).await?;
        Ok(self.0.live_tasks.seen(&place))
    }

    /// Waits for its end.
    pub async fn ended_task(&self, caller: &Caller, id: TaskId) -> Result<Task> {
        self.task(caller, id).await?; // only who sees it waits for it
        self.0.left_tasks.taken_up(&id).await?;
        if let Some(mut live) = self.0.live_tasks.get(id) {
            let _ = live.ended.wait_for(Option::is_some).await;
        }
        self.task(caller, id).await
    }

    /// Waits until it has ended, by whatever end; one that has ended already stays what it is.
    pub async fn cancel_task(&self, caller: &Caller, id: TaskId) -> Result<Task> {
        self.task(caller, id).await?;
        self.0.left_tasks.taken_up(&id).await?;
        if let Some(live) = self.0.live_tasks.get(id) {
            live.cancel.cancel();
        }
        self.ended_task(caller, id).await
    }
}

/// As the store tells webhooks of it.
fn ended(task: &NewTask, end: &TaskEnd) -> Happened {
    Happened {
        id: end.event_id(),
        at: end.at,
        tenant: task.tenant.clone(),
        sandbox: Some(task.sandbox.clone()),
        event: Event::TaskEnded { task: task.id, state: end.state },
    }
}
