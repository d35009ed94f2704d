//! Snapshots: a sandbox's files at one moment, for other sandboxes to begin from, or as a stream.
//!
//! `own` is where a sandbox writes. `still` makes layers of what a sandbox wrote, by renaming or by copying them. `record` gives such a stack a name, which
//! `create` takes as a base: forks are sandboxes like others, as cheap as others, and share what they began from. `flatten`
//! merges layers before they pile up. `saved` is the stream of a sandbox, and `restore` makes one of it; `all` is that
//! of everything at once.

mod all;
mod flatten;
mod fresh;
mod gate;
mod layer;
mod own;
mod record;
mod restore;
mod saved;
mod still;

use std::{io, sync::Arc};

use bytes::Bytes;
use cabana_sandbox::{Base, Error, Result, SandboxId, SnapshotId, Stream};

pub(crate) use gate::{Entered, Gate, Gates};
pub(crate) use own::{dress_new, make as make_own, put_away, take_out, upper, work};
pub use record::{Snapshot, Snapshots};
use still::Still;
pub(crate) use still::settle;

use crate::{
    engine::{Shared, Taken, blocking},
    files::from_thread,
};

impl Shared {
    pub(crate) async fn snapshot(self: Arc<Self>, id: SandboxId, name: SnapshotId) -> Result<Base> {
        let shared = self.clone();
        if blocking(move || Ok(Snapshots::new(&shared.data, &shared.store).has(name))).await? {
            return Ok(Base::Snapshot(name));
        }
        let still = self.still_by_id(&id).await?;
        blocking(move || {
            let Still { mut plan, mut fresh, _layers_stay } = still;
            flatten::flatten(&self.store, &mut plan, 0, &mut fresh)?;
            let _until_named = self.store.hold()?;
            if Snapshots::new(&self.data, &self.store).publish(name, &id, plan)? {
                fresh.named();
            }
            Ok(Base::Snapshot(name))
        })
        .await
    }

    /// The sandbox is free again before the first byte is read: how fast they are read is nothing to it.
    pub(crate) async fn save(self: Arc<Self>, id: SandboxId) -> Result<Stream<Bytes>> {
        let still = self.still_by_id(&id).await?;
        let (store, tasks) = (self.store.clone(), self.tasks.clone());
        let write = move |out: &mut dyn io::Write| {
            let still = still; // as a whole: its layers stay until they are written
            saved::write(&store, &still.plan, out)
        };
        from_thread(&tasks, None, write).await
    }

    async fn still_by_id(self: &Arc<Self>, id: &SandboxId) -> Result<Still> {
        let (slot, gate) = (self.slot(id), self.gates.of(id));
        let mut held = slot.lock().await;
        let still = match (self.take_up(id, &mut held).await, gate.close().await) {
            (Ok(Taken::Live(live)), Ok(_closed)) => self.still(id, Some(&live)).await,
            (Ok(Taken::Stopped(_owned)), Ok(_closed)) => self.still(id, None).await,
            (Ok(Taken::Absent), _) => Err(Error::NoSandbox(id.clone())),
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
        drop(held);
        self.let_go(id, &slot);
        still
    }
}
