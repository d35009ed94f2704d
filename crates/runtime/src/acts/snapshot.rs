//! A sandbox's files at one moment, kept.

use cabana_model::SnapshotId;
use cabana_store::{AboutSnapshot, NewSnapshot, SnapshotStep};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::{
    Act, Cx, Error, Needs, Result,
    fault::{self, Point},
};

/// Of a running sandbox, a paused or a stopped one, which stays what it is.
#[derive(Default)]
pub struct Take {
    pub about: AboutSnapshot,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    pub snapshot: SnapshotId,
}

impl Act for Take {
    const VERB: &'static str = "snapshot.take";
    type Answer = Taken;

    fn needs(&self) -> Needs {
        Needs::Record
    }

    fn digest(&self) -> [u8; 32] {
        match self.about == AboutSnapshot::default() {
            true => [0; 32],
            false => Sha256::digest(format!("{:?}", self.about)).into(),
        }
    }

    fn argv(&self) -> Vec<String> {
        self.about.name.clone().into_iter().collect()
    }

    /// The snapshot has the call's own number, so that whoever finds the call after a crash finds the snapshot. Its record is
    /// written first, and becomes everybody's with the end of the call.
    async fn run(self, cx: Cx) -> Result<Taken> {
        cx.check_room()?;
        let (id, physical) = (SnapshotId::from(cx.call.uuid()), SnapshotId::from(Uuid::new_v4()));
        let (tenant, sandbox) = (cx.caller.tenant.clone(), cx.record()?.id.clone());
        let sandboxes = &cx.runtime.0.sandboxes;
        let slot = sandboxes.of_id(&cx.caller, &sandbox).await?;
        let new = NewSnapshot { tenant, id, physical, sandbox, about: self.about, at: cx.runtime.clock().now() };
        sandboxes.measure_one(&slot).await; // it takes as much
        cx.runtime.store().claim_snapshot(new).await?;
        fault::at(Point::SnapshotClaimed);
        match sandboxes.snapshot(&slot, physical).await {
            Ok(()) => {
                fault::at(Point::SnapshotTaken);
                cx.note(|notes| notes.snapshot = Some(SnapshotStep::Ready(id)));
                Ok(Taken { snapshot: id })
            }
            Err(error) => {
                // What cannot be removed now keeps its record, and is removed by the next server.
                match sandboxes.provider().remove_snapshot(physical).await {
                    Ok(()) => cx.note(|notes| notes.snapshot = Some(SnapshotStep::Gone(id))),
                    Err(error) => tracing::warn!(snapshot = %id, %error, "a snapshot that failed could not be removed"),
                }
                Err(error)
            }
        }
    }
}

/// What was made from it stays as it is.
pub struct Delete(pub SnapshotId);

impl Act for Delete {
    const VERB: &'static str = "snapshot.delete";
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
        Sha256::digest(self.0.to_string()).into()
    }

    fn argv(&self) -> Vec<String> {
        vec![self.0.to_string()]
    }

    async fn run(self, cx: Cx) -> Result<()> {
        let Self(id) = self;
        let known = cx.runtime.store().any_snapshot(&cx.caller.tenant, id).await?;
        known.filter(|known| cx.caller.reaches(known.user.as_deref())).ok_or(Error::NoSnapshot(id))?;
        let found = cx.runtime.store().begin_snapshot_delete(&cx.caller.tenant, id).await?;
        let found = found.ok_or(Error::NoSnapshot(id))?;
        let sandboxes = &cx.runtime.0.sandboxes;
        sandboxes.provider().remove_snapshot(found.physical).await?;
        fault::at(Point::SnapshotRemoved);
        sandboxes.went();
        cx.note(|notes| notes.snapshot = Some(SnapshotStep::Gone(id)));
        Ok(())
    }
}
