//! How much memory the outputs of commands take together: it is the server's, and no limit of a sandbox counts it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Of one sandbox, ended commands among them. More only where its limits say so of each command.
const MAX_SANDBOX: u64 = 32 << 20;
/// Of all sandboxes.
const MAX_ALL: u64 = 512 << 20;

static ALL: AtomicU64 = AtomicU64::new(0);

/// That of one sandbox.
#[derive(Default)]
pub(crate) struct OutputMemory(AtomicU64);

/// The part of one command.
#[derive(Default)]
pub(crate) struct Counted(u64);

impl OutputMemory {
    /// The command's takes so much by now.
    pub(crate) fn set(&self, part: &mut Counted, size: u64) {
        let before = std::mem::replace(&mut part.0, size);
        for sum in [&self.0, &ALL] {
            match size >= before {
                true => sum.fetch_add(size - before, Ordering::Relaxed),
                false => sum.fetch_sub(before - size, Ordering::Relaxed),
            };
        }
    }

    /// Whether a command that says more has to let go of what it said before. `kept` is what each may have.
    pub(crate) fn is_short(&self, kept: u64) -> bool {
        self.0.load(Ordering::Relaxed) > MAX_SANDBOX.max(kept) || ALL.load(Ordering::Relaxed) > MAX_ALL
    }
}
