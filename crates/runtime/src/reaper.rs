//! What looks after sandboxes when their time has come: those that are idle, whose time is over, and those that owe something.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use cabana_model::{Due, Life, Operation, SandboxId, Sentence, Tenant, Time, Verdict};
use cabana_store::{By, DueSandbox, Record, TenantPermits};
use jiff::SignedDuration;
use serde::Serialize;
use tokio::{sync::Notify, task::JoinHandle};

use crate::{
    Error, Result, Runtime,
    sandboxes::{Change, Slot},
};

/// How many of one tenant are seen to at once. Hooks, archives and guests decide how long each takes, so tenants do not wait for each other.
const AT_ONCE: usize = 4;
/// When one that could not be looked at is looked at again.
const AGAIN: SignedDuration = SignedDuration::from_secs(30);

/// Between two passes.
const LEAST: Duration = Duration::from_millis(20);
/// A pass goes over all that are due, and each that was seen to is a reason for the next: a rest is so many times as long as the pass was,
/// within a bound, so that very many keep no processor busy.
const REST_FOR_WORK: u32 = 4;
const MOST_REST: Duration = Duration::from_secs(1);

/// What one round did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reaped {
    pub looked_at: u64,
    pub stopped: u64,
    pub paused: u64,
    pub archived: u64,
    pub deleted: u64,
    /// What a crash or a failure had left undone, and is done.
    pub resumed: u64,
    /// What could not be done. It is tried again.
    pub failed: u64,
}

/// Which sandboxes are being seen to, by their physical ids.
pub(crate) struct Reaper {
    permits: TenantPermits,
    under_way: Mutex<HashSet<SandboxId>>,
    /// One of them has been seen to.
    done: Notify,
}

impl Reaper {
    pub(crate) fn new() -> Self {
        Self { permits: TenantPermits::new(AT_ONCE), under_way: Mutex::default(), done: Notify::new() }
    }

    fn under_way(&self) -> MutexGuard<'_, HashSet<SandboxId>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until none of them is seen to any more.
    async fn until_done(&self, some: &[SandboxId]) {
        loop {
            let done = self.done.notified();
            tokio::pin!(done);
            done.as_mut().enable();
            if !some.iter().any(|one| self.under_way().contains(one)) {
                return;
            }
            done.await;
        }
    }
}

/// That one sandbox is being seen to.
struct Turn {
    runtime: Runtime,
    physical: SandboxId,
}

impl Turn {
    async fn take(self, tenant: Tenant) -> Result<Did> {
        let runtime = &self.runtime;
        let permit = runtime.0.reaper.permits.acquire(&tenant);
        let Some(_permit) = runtime.0.closing.run_until_cancelled(permit).await else {
            return Ok(Did::Nothing); // it is left to the next server
        };
        // The record may have grown old meanwhile.
        match runtime.0.store.by_physical(&self.physical).await? {
            Some(record) => runtime.see_to(record).await,
            None => Ok(Did::Nothing),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.runtime.0.reaper.under_way().remove(&self.physical);
        self.runtime.0.reaper.done.notify_waiters();
        self.runtime.0.sandboxes.wake_reaper(); // when it is due again was not looked at
    }
}

/// What is due, and has begun to be seen to.
#[derive(Default)]
struct Begun {
    tasks: Vec<JoinHandle<Result<Did>>>,
    /// By an earlier pass.
    before: Vec<SandboxId>,
}

/// What was done about one.
#[derive(Clone, Copy)]
enum Did {
    Nothing,
    Stopped,
    Paused,
    Archived,
    Deleted,
    Resumed,
}

impl Reaped {
    fn add(&mut self, did: &Result<Did>) {
        self.looked_at += 1;
        let counted = match did {
            Ok(Did::Nothing) => return,
            Ok(Did::Stopped) => &mut self.stopped,
            Ok(Did::Paused) => &mut self.paused,
            Ok(Did::Archived) => &mut self.archived,
            Ok(Did::Deleted) => &mut self.deleted,
            Ok(Did::Resumed) => &mut self.resumed,
            Err(_) => &mut self.failed,
        };
        *counted += 1;
    }
}

impl Runtime {
    /// Looks after them until the runtime closes: at the latest after the interval, and sooner where one is due.
    pub fn look_after(&self) {
        let runtime = self.clone();
        self.0.tasks.spawn(async move {
            loop {
                let begun = Instant::now();
                if let Err(error) = runtime.begin_due(runtime.0.clock.now()).await {
                    tracing::warn!(%error, "sandboxes could not be looked after");
                }
                // What becomes due while this is worked out wakes at once.
                runtime.0.sandboxes.looks_at(None);
                let wait = runtime.until_due().await;
                runtime.0.sandboxes.looks_at(runtime.0.clock.now().checked_add(wait).ok());
                let rest = LEAST.max(begun.elapsed() * REST_FOR_WORK).min(MOST_REST);
                let woken = async {
                    tokio::time::sleep(rest).await;
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = runtime.0.sandboxes.sooner() => {}
                    }
                };
                if runtime.0.closing.run_until_cancelled(woken).await.is_none() {
                    return;
                }
            }
        });
    }

    /// A failed look costs an interval, never a loop without rest.
    async fn until_due(&self) -> Duration {
        let interval = self.0.settings.reaper_interval;
        let under_way = self.0.reaper.under_way().clone();
        let Ok(Some(due)) = self.0.store.next_due(under_way).await else { return interval };
        let wait = due.duration_since(self.0.clock.now());
        Duration::try_from(wait).unwrap_or_default().clamp(LEAST, interval)
    }

    /// Everything that is due by now.
    pub async fn reap(&self) -> Result<Reaped> {
        let Begun { tasks, before } = self.begin_due(self.0.clock.now()).await?;
        let mut reaped = Reaped::default();
        for task in tasks {
            match task.await {
                Ok(did) => reaped.add(&did),
                Err(_) => reaped.failed += 1,
            }
        }
        self.0.reaper.until_done(&before).await;
        Ok(reaped)
    }

    /// Each is seen to in a task of its own, so that the next one does not wait for it. A tenant may have very many that are due, and those
    /// stay so until it is their turn: of one that is under way no more is read than that it is due.
    async fn begin_due(&self, now: Time) -> Result<Begun> {
        let (mut begun, mut after) = (Begun::default(), None);
        let batch = self.0.settings.reaper_batch;
        loop {
            let due = self.0.store.due_sandboxes(now, after, batch).await?;
            after = due.last().cloned().filter(|_| due.len() == batch as usize);
            for DueSandbox { physical, tenant, .. } in due {
                match self.turn(&physical) {
                    Some(turn) => begun.tasks.push(self.0.tasks.spawn(turn.take(tenant))),
                    None => begun.before.push(physical),
                }
            }
            if after.is_none() || self.0.closing.is_cancelled() {
                return Ok(begun);
            }
        }
    }

    /// `None`: it is being seen to.
    fn turn(&self, physical: &SandboxId) -> Option<Turn> {
        let is_new = self.0.reaper.under_way().insert(physical.clone());
        is_new.then(|| Turn { runtime: self.clone(), physical: physical.clone() })
    }

    async fn see_to(&self, record: Record) -> Result<Did> {
        // One that was doomed with many others: whoever listens has not heard of it yet.
        if record.life() == Life::DOOMED
            && record.tries == 0
            && self.0.sandboxes.of_physical(&record.physical).is_none()
        {
            self.0.sandboxes.tell(&record);
        }
        let slot = self.0.sandboxes.of_record(record);
        let judged = slot.record().version;
        let seen = self.judge(&slot).await;
        if let Err(error) = &seen {
            let record = slot.record();
            tracing::warn!(sandbox = %record.id, state = %record.state, %error, "a sandbox could not be seen to yet");
        }
        // Whatever failed, it is not looked at again at once; what somebody else changed meanwhile is.
        let record = slot.record();
        let now = self.0.clock.now();
        let was_changed = matches!(seen, Ok(Did::Nothing)) && record.version != judged;
        if record.due.is_some_and(|due| due <= now) && !was_changed {
            let later = match &seen {
                Err(Error::Busy { until, .. }) => *until,
                _ => now.saturating_add(AGAIN).unwrap_or(Time::MAX),
            };
            self.0.store.set_due(&record.physical, record.version, Some(later)).await?;
        }
        seen
    }

    async fn judge(&self, slot: &Arc<Slot>) -> Result<Did> {
        let (sandboxes, record) = (&self.0.sandboxes, slot.record());
        if record.phase.is_some() {
            let resumed = sandboxes.resume(slot).await?;
            return Ok(if resumed { Did::Resumed } else { Did::Nothing });
        }
        let verdict = sandboxes.lifecycle(slot)?.decide(&sandboxes.facts(slot), self.0.clock.now());
        let Sentence { what, why, spares_work } = match verdict {
            Verdict::Now(sentence) => sentence,
            Verdict::At(time) => {
                return sandboxes.look_at(slot, record.version, Some(time)).await.map(|()| Did::Nothing);
            }
            Verdict::Never => return sandboxes.look_at(slot, record.version, None).await.map(|()| Did::Nothing),
        };
        let by = if spares_work { By::Somebody(None) } else { By::Itself };
        let change = Change { by, why: &why, at: Some(record.version), spares_work };
        let (operation, did) = match what {
            Due::Stop => (Operation::Stop, Did::Stopped),
            Due::Pause => (Operation::Pause, Did::Paused),
            Due::Archive => (Operation::Archive, Did::Archived),
            Due::Delete => (Operation::Delete, Did::Deleted),
        };
        Ok(if sandboxes.end(slot, operation, change).await? { did } else { Did::Nothing })
    }
}
