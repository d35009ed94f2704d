//! The events that are kept for watchers who do not ask, in bytes.
//!
//! What an event says is the guest's: paths, and what is attached to files. So the memory of it is bounded for each watcher, for
//! each tenant, and for all together.

use cabana_e2b_wire::filesystem::{EntryInfo, FilesystemEvent};
use cabana_runtime::{MemoryCharge, MemoryLedger};

use crate::long_answer::written_len;

/// Of one watcher.
const MAX_EVENTS: usize = 10_000;
const MAX_BYTES: usize = 4 << 20;
const MAX_TENANT_BYTES: usize = 32 << 20;
const MAX_ALL_BYTES: usize = 256 << 20;

pub(super) fn ledger() -> MemoryLedger {
    MemoryLedger::new(MAX_TENANT_BYTES, MAX_ALL_BYTES)
}

/// The events of one watcher, since it asked last.
pub(super) struct KeptEvents {
    events: Vec<FilesystemEvent>,
    memory: MemoryCharge,
}

impl KeptEvents {
    pub(super) fn new(memory: MemoryCharge) -> Self {
        Self { events: Vec::new(), memory }
    }

    /// False: there is no room for it, and it is lost.
    pub(super) fn push(&mut self, event: FilesystemEvent) -> bool {
        let bytes = weight(&event);
        let fits = self.events.len() < MAX_EVENTS && self.memory.used() + bytes <= MAX_BYTES;
        if !fits || !self.memory.grow(bytes) {
            return false;
        }
        self.events.push(event);
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.memory.used()
    }

    pub(super) fn take(&mut self) -> Vec<FilesystemEvent> {
        self.memory.clear();
        std::mem::take(&mut self.events)
    }
}

/// In memory, and no less as JSON.
fn weight(event: &FilesystemEvent) -> usize {
    let entry = |entry: &EntryInfo| {
        let target = entry.symlink_target.as_ref().map_or(0, |target| written_len(target));
        let metadata: usize =
            entry.metadata.iter().map(|(name, value)| written_len(name) + written_len(value) + 64).sum();
        let texts = [&entry.name, &entry.path, &entry.permissions, &entry.owner, &entry.group];
        size_of::<EntryInfo>() + texts.into_iter().map(|text| written_len(text)).sum::<usize>() + target + metadata
    };
    size_of::<FilesystemEvent>() + written_len(&event.name) + event.entry.as_deref().map_or(0, entry)
}
