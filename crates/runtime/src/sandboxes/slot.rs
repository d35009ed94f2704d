//! One sandbox in use.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicI64, AtomicUsize, Ordering},
};

use cabana_model::SandboxState;
use cabana_sandbox::Sandbox;
use cabana_store::Record;

use super::Wanted;
use crate::{Error, Result};

pub(crate) struct Slot {
    record: Mutex<Arc<Record>>,
    /// While it runs, as far as is known.
    live: Mutex<Option<Arc<dyn Sandbox>>>,
    /// Held by whoever changes what the sandbox is: made, started, stopped, deleted.
    pub(super) changing: tokio::sync::Mutex<()>,
    /// The mark of the links to it, once somebody wanted to know. Locked while it is looked up or changed.
    pub(crate) link_mark: tokio::sync::Mutex<Option<[u8; 32]>>,
    awake: AtomicUsize,
    /// When its use was last written down, in seconds.
    touched: AtomicI64,
}

impl Slot {
    pub(super) fn new(record: Record) -> Self {
        Self {
            touched: AtomicI64::new(record.active.as_second()),
            record: Mutex::new(Arc::new(record)),
            live: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
            link_mark: tokio::sync::Mutex::default(),
            awake: AtomicUsize::new(0),
        }
    }

    pub(crate) fn record(&self) -> Arc<Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_record(&self, record: Record) {
        *self.record.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(record);
    }

    pub(crate) fn is_deleting(&self) -> bool {
        self.record().state == SandboxState::Deleting
    }

    pub(crate) fn wanted(&self) -> Result<Wanted> {
        let read = serde_json::from_str(&self.record().spec);
        read.map_err(|error| Error::Store(cabana_store::Error::Corrupt(format!("the spec of a sandbox: {error}"))))
    }

    pub(crate) fn live(&self) -> Option<Arc<dyn Sandbox>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_live(&self, sandbox: Option<Arc<dyn Sandbox>>) {
        *self.live.lock().unwrap_or_else(PoisonError::into_inner) = sandbox;
    }

    /// Whether a use at this time has to be written down: not each one is.
    pub(super) fn touch(&self, second: i64) -> bool {
        const EVERY: i64 = 10;
        let last = self.touched.load(Ordering::Relaxed);
        let due = (second - last).abs() >= EVERY;
        due && self.touched.compare_exchange(last, second, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    pub(crate) fn awake(self: &Arc<Self>) -> Awake {
        self.awake.fetch_add(1, Ordering::Relaxed);
        Awake(self.clone())
    }
}

/// Somebody needs the sandbox, as long as this is held.
pub(crate) struct Awake(Arc<Slot>);

impl Drop for Awake {
    fn drop(&mut self) {
        self.0.awake.fetch_sub(1, Ordering::Relaxed);
    }
}
