//! Volumes: whose they are, and what became of them when a server was killed.
//!
//! The record of a volume is written before the provider makes it, and goes after the provider has removed it. So a crash leaves a
//! record that says what to look for, and never a volume that nobody knows of.

use std::collections::HashSet;

use cabana_model::{Tenant, VolumeId, VolumeName, VolumeState};
use cabana_store::{Page, Volume};
use futures_util::TryStreamExt;

use crate::{Error, Result, Runtime};

impl Runtime {
    pub async fn volume(&self, tenant: &Tenant, name: &VolumeName) -> Result<Volume> {
        self.0.store.volume(tenant, name).await?.ok_or_else(|| Error::NoVolume(name.clone()))
    }

    /// In bytes on the disk.
    pub async fn volume_usage(&self, volume: &Volume) -> Result<u64> {
        let usage = self.0.sandboxes.provider().volume_usage(volume.physical).await;
        usage.map_err(|error| match error {
            cabana_sandbox::Error::NoVolume(_) => Error::NoVolume(volume.name.clone()),
            error => error.into(),
        })
    }

    /// By name.
    pub async fn volume_list(&self, tenant: &Tenant, page: Page) -> Result<Vec<Volume>> {
        Ok(self.0.store.volumes(tenant, page).await?)
    }

    /// Records and volumes as one. No call is open any more that would change them.
    pub(crate) async fn find_volumes(&self) -> Result<()> {
        let records = self.0.store.all_volumes().await?;
        let provider = self.0.sandboxes.provider();
        let mut kept: HashSet<VolumeId> = match provider.capabilities().volumes {
            true => provider.volumes().await?.try_collect().await?,
            false => HashSet::new(),
        };
        for Volume { tenant, name, physical, state, .. } in records {
            let is_there = kept.remove(&physical);
            match state {
                VolumeState::Ready if is_there => continue,
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
        for left in kept {
            // It may be all that is left of a database that was lost: it is not ours to remove.
            tracing::warn!(volume = %left, "there is a volume without a record: it is left alone");
        }
        Ok(())
    }
}
