//! What was written in a sandbox as a layer with a name by its content: for a template that is finished inside of one.

use std::{fs::File, os::fd::AsFd, sync::Arc};

use cabana_guest::tree;
use cabana_sandbox::{Error, LayerId, Result, SandboxId};

use super::own::{is_untouched, upper};
use crate::{
    engine::{Shared, blocking},
    layers::failed,
};

impl Shared {
    /// Its commands are ended first, so that nothing changes any more, and it is deleted whatever comes of it. The caller holds
    /// the store until the layer is named by something.
    pub(crate) async fn into_layer(self: Arc<Self>, id: SandboxId) -> Result<Option<LayerId>> {
        let slot = self.slot(&id);
        let mut held = slot.lock().await;
        let layer = match (self.take_down(&id, &mut held).await, self.gates.of(&id).close().await) {
            (Ok(Some(_owned)), Ok(_closed)) => {
                let (shared, id) = (self.clone(), id.clone());
                blocking(move || shared.content_of(&id)).await
            }
            (Ok(None), _) => Err(Error::NoSandbox(id.clone())),
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
        drop(held);
        self.let_go(&id, &slot);
        self.destroy(id).await?;
        layer
    }

    fn content_of(&self, id: &SandboxId) -> Result<Option<LayerId>> {
        let home = self.homes.open_home(id)?;
        if self.homes.read(id)?.plan.overlays() > 1 {
            let why = "a sandbox on the host base wrote over the host's own files, which no other machine has";
            return Err(Error::invalid("base", why));
        }
        let upper = upper(&home.fs(), 0);
        if is_untouched(&upper, self.ranges.storage())? {
            return Ok(None);
        }
        let draft = self.store.draft()?;
        let upper = File::open(upper).map_err(failed("opening the sandbox's layer"))?;
        tree::copy_content(upper.as_fd(), draft.root.as_fd()).map_err(failed("copying the sandbox's layer"))?;
        draft.seal()?.keep().map(Some)
    }
}
