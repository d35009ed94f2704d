//! Snapshots: whose they are, what became of them when a server was killed, and the space that is left when they go.
//!
//! The record of a snapshot is written before the provider takes it, and goes after the provider has removed it. So a crash
//! leaves a record that says what to look for, and never a snapshot that nobody knows of.

use std::{collections::HashSet, time::Duration};

use cabana_model::{Outcome, SandboxId, SnapshotId, SnapshotState};
use cabana_store::{CallRow, Page, Snapshot, SnapshotStep};
use futures_util::TryStreamExt;

use crate::{Caller, Error, Result, Runtime, acts::snapshot::Taken, call::outcome_of};

/// Those that go together are tidied up after together.
const TOGETHER: Duration = Duration::from_secs(3);

impl Runtime {
    pub async fn snapshot(&self, caller: &Caller, id: SnapshotId) -> Result<Snapshot> {
        let found = self.0.store.snapshot(&caller.tenant, id).await?;
        found.filter(|found| caller.reaches(found.user.as_deref())).ok_or(Error::NoSnapshot(id))
    }

    /// The newest one of this name.
    pub async fn snapshot_named(&self, caller: &Caller, name: &str) -> Result<Option<Snapshot>> {
        Ok(self.0.store.snapshot_named(&caller.tenant, caller.subject.only(), name).await?)
    }

    /// The newest first.
    pub async fn snapshots_named(&self, caller: &Caller, name: &str) -> Result<Vec<Snapshot>> {
        Ok(self.0.store.snapshots_named(&caller.tenant, caller.subject.only(), name).await?)
    }

    /// Of one sandbox, which may be gone by now, or of all. The newest first.
    pub async fn snapshot_list(
        &self,
        caller: &Caller,
        sandbox: Option<&SandboxId>,
        page: Page,
    ) -> Result<Vec<Snapshot>> {
        Ok(self.0.store.snapshots(&caller.tenant, caller.subject.only(), sandbox, page).await?)
    }

    /// One that the provider has was taken, and nobody was told.
    pub(crate) async fn recover_taking(&self, row: &CallRow) -> Result<()> {
        let id = SnapshotId::from(row.id.uuid());
        let (outcome, step) = match self.0.store.any_snapshot(&row.tenant, id).await? {
            Some(found) if self.kept_snapshots().await?.contains(&found.physical) => {
                let answer = serde_json::to_vec(&Taken { snapshot: id }).map(Into::into);
                let answer = answer.map_err(|error| Error::invalid("answer", error.to_string()));
                (outcome_of(answer), Some(SnapshotStep::Ready(id)))
            }
            Some(_) => (Outcome::Unknown, Some(SnapshotStep::Gone(id))),
            None => (Outcome::Unknown, None),
        };
        self.settle_left_with(row, outcome, None, None, step).await
    }

    async fn kept_snapshots(&self) -> Result<HashSet<SnapshotId>> {
        let provider = self.0.sandboxes.provider();
        match provider.capabilities().snapshot {
            true => Ok(provider.snapshots().await?.try_collect().await?),
            false => Ok(HashSet::new()),
        }
    }

    /// Records of the last server and snapshots as one. Its calls have ended by now; those of this server have others.
    pub(crate) async fn find_snapshots(&self, records: Vec<Snapshot>) -> Result<()> {
        let kept = self.kept_snapshots().await?;
        for Snapshot { tenant, id, physical, .. } in records {
            // What became of its call may have changed it.
            let Some(Snapshot { state, .. }) = self.0.store.any_snapshot(&tenant, id).await? else { continue };
            if state == SnapshotState::Ready && kept.contains(&physical) {
                continue;
            }
            if state == SnapshotState::Ready {
                tracing::warn!(snapshot = %id, "the files of a snapshot are not there any more: its record goes");
            }
            match self.0.sandboxes.provider().remove_snapshot(physical).await {
                Ok(()) => self.0.store.forget_snapshot(&tenant, id).await?,
                Err(error) => tracing::warn!(snapshot = %id, %error, "a snapshot could not be removed yet"),
            }
        }
        self.warn_of_unrecorded_snapshots(kept).await
    }

    /// A snapshot without a record may be all that is left of a database that was lost: it is not ours to remove.
    async fn warn_of_unrecorded_snapshots(&self, kept: HashSet<SnapshotId>) -> Result<()> {
        let recorded = self.0.store.all_snapshots().await?;
        let recorded: HashSet<_> = recorded.into_iter().map(|snapshot| snapshot.physical).collect();
        let left: Vec<_> = kept.into_iter().filter(|physical| !recorded.contains(physical)).collect();
        if left.is_empty() {
            return Ok(());
        }
        // Some may have been deleted meanwhile.
        let kept = self.kept_snapshots().await?;
        for left in left.into_iter().filter(|physical| kept.contains(physical)) {
            tracing::warn!(snapshot = %left, "there is a snapshot without a record: it is left alone");
        }
        Ok(())
    }

    /// Lets the provider give back the space of what went, until the runtime closes.
    pub fn tidy(&self) {
        let runtime = self.clone();
        self.0.tasks.spawn(async move {
            loop {
                let done = match runtime.0.sandboxes.provider().tidy().await {
                    Ok(done) => done,
                    Err(error) => {
                        tracing::warn!(%error, "the space of what went could not be given back");
                        true
                    }
                };
                if done && runtime.0.closing.run_until_cancelled(runtime.0.sandboxes.gone()).await.is_none() {
                    return;
                }
                if !runtime.closing_after(TOGETHER).await {
                    return;
                }
            }
        });
    }
}
