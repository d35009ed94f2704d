//! Volumes: whose they are, and what became of them when a server was killed.
//!
//! The record of a volume is written before the provider makes it, and goes after the provider has removed it. So a crash leaves a
//! record that says what to look for, and never a volume that nobody knows of.

use std::{collections::HashSet, time::Duration};

use cabana_model::{Tenant, VolumeId, VolumeName, VolumeState};
use cabana_store::{Page, Volume};
use futures_util::TryStreamExt;
use tokio::time::timeout;

use crate::{Error, Result, Runtime};

/// How many walks through volumes one tenant has at a time, and how long one more waits for its turn.
pub(crate) const WALKS_AT_ONCE: usize = 2;
const PATIENCE: Duration = Duration::from_secs(30);

impl Runtime {
    pub async fn volume(&self, tenant: &Tenant, name: &VolumeName) -> Result<Volume> {
        self.0.store.volume(tenant, name).await?.ok_or_else(|| Error::NoVolume(name.clone()))
    }

    /// In bytes on the disk. Measuring is a walk on a thread that a guest can hold up, so a tenant has a few of them at a time, whether or
    /// not somebody still waits for their answers.
    pub async fn volume_usage(&self, volume: &Volume) -> Result<u64> {
        let held_up =
            || cabana_sandbox::Error::TimedOut("a sandbox holds up the measuring of volumes: end its commands");
        let permit = self.0.volume_walks.acquire(&volume.tenant);
        let permit = timeout(PATIENCE, permit).await.map_err(|_| held_up())?;
        let (runtime, physical) = (self.clone(), volume.physical);
        let walk = self.0.tasks.spawn(async move {
            let _permit = permit;
            let usage = runtime.0.sandboxes.provider().volume_usage(physical);
            runtime.0.closing.run_until_cancelled(usage).await.unwrap_or_else(|| Err(held_up()))
        });
        let usage = walk.await.unwrap_or_else(|error| Err(cabana_sandbox::Error::failed("measuring a volume", error)));
        usage.map_err(|error| match error {
            cabana_sandbox::Error::NoVolume(_) => Error::NoVolume(volume.name.clone()),
            error => error.into(),
        })
    }

    /// By name.
    pub async fn volume_list(&self, tenant: &Tenant, page: Page) -> Result<Vec<Volume>> {
        Ok(self.0.store.volumes(tenant, page).await?)
    }

    /// Records of the last server and volumes as one. None of its calls goes on that would change them; those of this server have others.
    pub(crate) async fn find_volumes(&self, records: Vec<Volume>) -> Result<()> {
        let kept = self.kept_volumes().await?;
        let provider = self.0.sandboxes.provider();
        for Volume { tenant, name, physical, state, .. } in records {
            match state {
                VolumeState::Ready if kept.contains(&physical) => continue,
                VolumeState::Ready => {
                    tracing::warn!(volume = %name, "the files of a volume are not there any more: its record goes");
                }
                VolumeState::Making | VolumeState::Deleting => {}
            }
            match provider.remove_volume(physical).await {
                Ok(()) => self.0.store.forget_volume(physical).await?,
                // Whoever wanted it gone was never told that it is.
                Err(cabana_sandbox::Error::VolumeInUse(_)) => {
                    self.0.store.step_volume(&tenant, &name, state, VolumeState::Ready).await?;
                }
                Err(error) => tracing::warn!(volume = %name, %error, "a volume could not be removed yet"),
            }
        }
        self.warn_of_unrecorded_volumes(kept).await
    }

    /// A volume without a record may be all that is left of a database that was lost: it is not ours to remove.
    async fn warn_of_unrecorded_volumes(&self, kept: HashSet<VolumeId>) -> Result<()> {
        let recorded: HashSet<_> =
            self.0.store.all_volumes().await?.into_iter().map(|volume| volume.physical).collect();
        let left: Vec<_> = kept.into_iter().filter(|physical| !recorded.contains(physical)).collect();
        if left.is_empty() {
            return Ok(());
        }
        // Some may have been deleted meanwhile.
        let kept = self.kept_volumes().await?;
        for left in left.into_iter().filter(|physical| kept.contains(physical)) {
            tracing::warn!(volume = %left, "there is a volume without a record: it is left alone");
        }
        Ok(())
    }

    async fn kept_volumes(&self) -> Result<HashSet<VolumeId>> {
        let provider = self.0.sandboxes.provider();
        match provider.capabilities().volumes {
            true => Ok(provider.volumes().await?.try_collect().await?),
            false => Ok(HashSet::new()),
        }
    }
}
