//! Who may write to a sandbox's files from outside, and when nobody may.
//!
//! A process inside is frozen for a snapshot; a thread of ours is not. So each change through the file interface enters the
//! sandbox's gate, and whoever takes a snapshot closes it. The gate outlives a stop: a change that was under way then may
//! still write, into what would be a read-only layer by now.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use cabana_sandbox::{Error, Result, SandboxId};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// An upload that hangs must not hang a snapshot as well.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(crate) struct Gate(Arc<RwLock<()>>);

/// While one lives, no snapshot is taken. It goes along to the thread that does the change.
pub(crate) type Entered = OwnedRwLockReadGuard<()>;
pub(crate) type Closed = OwnedRwLockWriteGuard<()>;

impl Gate {
    pub(crate) async fn enter(&self) -> Entered {
        self.0.clone().read_owned().await
    }

    pub(crate) async fn close(&self) -> Result<Closed> {
        let closed = tokio::time::timeout(PATIENCE, self.0.clone().write_owned()).await;
        closed.map_err(|_| Error::TimedOut("files are being written to the sandbox from outside; try again after that"))
    }

    /// `None` while somebody writes.
    pub(crate) fn try_close(&self) -> Option<Closed> {
        self.0.clone().try_write_owned().ok()
    }
}

/// All gates that somebody knows.
#[derive(Default)]
pub(crate) struct Gates(Mutex<HashMap<SandboxId, Weak<RwLock<()>>>>);

impl Gates {
    pub(crate) fn of(&self, id: &SandboxId) -> Gate {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(id).and_then(Weak::upgrade) {
            return Gate(known);
        }
        if all.len().is_power_of_two() {
            all.retain(|_, gate| gate.strong_count() > 0);
        }
        let gate = Arc::default();
        all.insert(id.clone(), Arc::downgrade(&gate));
        Gate(gate)
    }
}
