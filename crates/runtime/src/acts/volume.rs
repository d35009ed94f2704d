//! Directories of a tenant that outlive its sandboxes.

use cabana_model::{VolumeId, VolumeName, VolumeState};
use cabana_store::Volume;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::{
    Act, Cx, Error, Needs, Result,
    fault::{self, Point},
};

pub struct Create(pub VolumeName);

impl Act for Create {
    const VERB: &'static str = "volume.create";
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.0.as_str()).into()
    }

    fn argv(&self) -> Vec<String> {
        vec![self.0.to_string()]
    }

    async fn run(self, cx: Cx) -> Result<()> {
        cx.check_room()?;
        let (store, tenant, name) = (cx.runtime.store(), cx.caller.tenant.clone(), self.0);
        let physical = VolumeId::from(Uuid::new_v4());
        let (state, created) = (VolumeState::Making, cx.runtime.clock().now());
        let new = Volume { tenant: tenant.clone(), name: name.clone(), physical, state, created };
        if !store.claim_volume(new).await? {
            return Err(Error::VolumeExists(name));
        }
        fault::at(Point::VolumeClaimed);
        if let Err(error) = cx.runtime.0.sandboxes.provider().make_volume(physical).await {
            store.forget_volume(physical).await?;
            return Err(error.into());
        }
        fault::at(Point::VolumeMade);
        store.step_volume(&tenant, &name, VolumeState::Making, VolumeState::Ready).await.map(drop)?;
        Ok(())
    }
}

/// One that no sandbox has among its mounts, with all that is in it.
pub struct Remove(pub VolumeName);

impl Act for Remove {
    const VERB: &'static str = "volume.remove";
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    fn stores(&self) -> bool {
        false
    }

    fn removes(&self) -> bool {
        true
    }

    fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.0.as_str()).into()
    }

    fn argv(&self) -> Vec<String> {
        vec![self.0.to_string()]
    }

    /// From the first step on it is on its way out; one that turns out to be in use comes back. After any other failure its files may be gone in
    /// part: its record stays, so that they count and the next removal, or the next server, goes on with them.
    async fn run(self, cx: Cx) -> Result<()> {
        let (store, tenant, name) = (cx.runtime.store(), &cx.caller.tenant, self.0);
        let going = store.begin_removal(tenant, &name).await?.ok_or_else(|| Error::NoVolume(name.clone()))?;
        match cx.runtime.0.sandboxes.provider().remove_volume(going.physical).await {
            Ok(()) => {
                fault::at(Point::VolumeRemoved);
                Ok(store.forget_volume(going.physical).await?)
            }
            Err(cabana_sandbox::Error::VolumeInUse(_)) => {
                store.step_volume(tenant, &name, VolumeState::Deleting, VolumeState::Ready).await?;
                Err(Error::VolumeInUse(name))
            }
            Err(error) => Err(error.into()),
        }
    }
}
