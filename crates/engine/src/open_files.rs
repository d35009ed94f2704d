//! What the server has open of a sandbox's files for clients. It would keep the sandbox mounted, and each mount in it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::runtime::Handle;
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

/// Something of the sandbox that a client holds, and that ends with it.
pub(crate) trait OpenFile: Send + Sync {
    /// The sandbox has ended.
    fn close(&self);

    /// Closes it if it is open on that mount, or for writing there, and no step on it is under way. Waits for nobody.
    fn close_on(&self, mount: u64, writing: bool) -> bool;

    fn mounts_changed(&self);
}

/// Why something is not open any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    SandboxEnded,
    MountChanged,
}

#[derive(Default)]
pub(crate) struct OpenFiles {
    files: Mutex<Vec<Weak<dyn OpenFile>>>,
    walks: Mutex<Walks>,
}

/// Threads that go through the files of a sandbox, with directories open that nobody else knows of.
#[derive(Default)]
struct Walks {
    cancelled: CancellationToken,
    running: TaskTracker,
}

/// One of them, for as long as it goes on.
#[derive(Clone)]
pub(crate) struct Walk {
    cancelled: CancellationToken,
    _running: TaskTrackerToken,
}

impl Walk {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.is_cancelled()
    }

    /// Waits for it on a thread that may block; `None` if the walk has to end first.
    pub(crate) fn wait_for<T>(&self, what: impl Future<Output = T>) -> Option<T> {
        Handle::current().block_on(self.cancelled.run_until_cancelled(what))
    }
}

impl OpenFiles {
    /// `lives` is asked under the lock: the end of a sandbox comes first, and then all that is open is closed.
    pub(crate) fn add(&self, file: &Arc<dyn OpenFile>, lives: impl FnOnce() -> bool) {
        let mut all = self.lock();
        if all.len() >= 32 && all.len().is_power_of_two() {
            all.retain(|file| file.strong_count() > 0);
        }
        match lives() {
            true => all.push(Arc::downgrade(file)),
            false => file.close(),
        }
    }

    pub(crate) fn close_all(&self) {
        let all = std::mem::take(&mut *self.lock());
        all.iter().filter_map(Weak::upgrade).for_each(|file| file.close());
    }

    /// Closes what is open on a mount, or for writing there. Whether there was any.
    pub(crate) fn close_on(&self, mount: u64, writing: bool) -> bool {
        self.all().iter().filter(|file| file.close_on(mount, writing)).count() > 0
    }

    /// What is seen by a path may be something else from now on.
    pub(crate) fn mounts_changed(&self) {
        self.all().iter().for_each(|file| file.mounts_changed());
    }

    pub(crate) fn begin_walk(&self) -> Walk {
        let walks = self.walks.lock().unwrap_or_else(PoisonError::into_inner);
        Walk { cancelled: walks.cancelled.clone(), _running: walks.running.token() }
    }

    /// They end soon. Whether there were any.
    pub(crate) fn end_walks(&self) -> bool {
        let ended = std::mem::take(&mut *self.walks.lock().unwrap_or_else(PoisonError::into_inner));
        ended.cancelled.cancel();
        !ended.running.is_empty()
    }

    fn all(&self) -> Vec<Arc<dyn OpenFile>> {
        self.lock().iter().filter_map(Weak::upgrade).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<dyn OpenFile>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
