//! What looks after sandboxes when their time has come: those that are idle, whose time is over, and those that owe something.

use std::{sync::Arc, time::Duration};

use cabana_model::{Due, Life, Operation, Sentence, Time, Verdict};
use cabana_store::{By, Record};
use futures_util::{StreamExt, stream};
use jiff::SignedDuration;
use serde::Serialize;

use crate::{
    Error, Result, Runtime,
    sandboxes::{Change, Slot},
};

/// How many are seen to at once.
const AT_ONCE: usize = 4;
/// When one that could not be looked at is looked at again.
const AGAIN: SignedDuration = SignedDuration::from_secs(30);

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
                if let Err(error) = runtime.reap().await {
                    tracing::warn!(%error, "sandboxes could not be looked after");
                }
                // What becomes due while this is worked out wakes at once.
                runtime.0.sandboxes.looks_at(None);
                let wait = runtime.until_due().await;
                runtime.0.sandboxes.looks_at(runtime.0.clock.now().checked_add(wait).ok());
                let woken = async {
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
        const LEAST: Duration = Duration::from_millis(20);
        let interval = self.0.settings.reaper_interval;
        let Ok(Some(due)) = self.0.store.next_due().await else { return interval };
        let wait = due.duration_since(self.0.clock.now());
        Duration::try_from(wait).unwrap_or_default().clamp(LEAST, interval)
    }

    /// Everything that is due by now, in batches.
    pub async fn reap(&self) -> Result<Reaped> {
        let (mut reaped, now) = (Reaped::default(), self.0.clock.now());
        let batch = self.0.settings.reaper_batch;
        loop {
            let due = self.0.store.due_sandboxes(now, batch).await?;
            let whole = due.len() == batch as usize;
            let mut seen = stream::iter(due).map(|record| self.see_to(record)).buffer_unordered(AT_ONCE);
            while let Some(did) = seen.next().await {
                reaped.add(&did);
            }
            if !whole || self.0.closing.is_cancelled() {
                return Ok(reaped);
            }
        }
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
