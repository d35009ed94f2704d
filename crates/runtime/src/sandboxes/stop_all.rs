//! The end of all that runs, for a server that is told to leave none behind.

use std::sync::atomic::Ordering;

use cabana_model::{Operation, SandboxId, SandboxState};
use cabana_sandbox::State;
use cabana_store::{By, Record};
use futures_util::TryStreamExt;

use super::{Change, Sandboxes};
use crate::{Error, Result};

const AT_ONCE: usize = 8;

impl Sandboxes {
    /// From here on none is made, started or brought back: it stays where it is, and the next server goes on with it.
    fn start_no_more(&self) {
        self.starts_no_more.store(true, Ordering::SeqCst);
    }

    /// Asked under the lock of the slot.
    pub(super) fn check_starts(&self) -> Result<()> {
        if self.starts_no_more.load(Ordering::SeqCst) { Err(Error::Ending) } else { Ok(()) }
    }

    /// Files are kept, and so is what commands said until then. Which ones run still, since they could not be stopped.
    pub(crate) async fn stop_all(&self, why: &str) -> Result<Vec<SandboxId>> {
        self.start_no_more();
        let change = Change::asked(By::Itself, why);
        // Who held the lock of one when starts ended has made or started it by the time that it is ours. One that was claimed
        // meanwhile is not among those that this finds, and is not made either.
        self.store
            .restless_sandboxes()
            .map_err(Error::from)
            .try_for_each_concurrent(AT_ONCE, async |record| {
                if let Err(error) = self.put_to_rest(record, change).await {
                    tracing::warn!(%error, "a sandbox could not be stopped");
                }
                Ok(())
            })
            .await?;
        self.stop_what_runs().await
    }

    async fn put_to_rest(&self, record: Record, change: Change<'_>) -> Result<()> {
        let slot = self.of_record(record);
        let _alone = slot.changing.lock_to_end().await;
        match slot.record().state {
            SandboxState::Running | SandboxState::Paused => {}
            SandboxState::Deleting => return Ok(()),
            // It was left half-way by somebody, and may run.
            _ => drop(self.reconcile(&slot).await?),
        }
        self.end_alone(&slot, Operation::Stop, change).await?;
        if slot.record().state == SandboxState::Stopping {
            self.drive(&slot, change.why).await?;
        }
        Ok(())
    }

    /// Whatever records say.
    async fn stop_what_runs(&self) -> Result<Vec<SandboxId>> {
        let (mut all, mut left) = (self.provider.list().await?, Vec::new());
        while let Some((id, state)) = all.try_next().await? {
            if state == State::Stopped {
                continue;
            }
            tracing::warn!(sandbox = %id, ?state, "a sandbox runs that was to be stopped: it is stopped now");
            match self.provider.stop(&id).await {
                Ok(()) | Err(cabana_sandbox::Error::NoSandbox(_)) => {}
                Err(error) => {
                    tracing::error!(sandbox = %id, %error, "a sandbox could not be stopped");
                    left.push(id);
                }
            }
        }
        Ok(left)
    }
}
