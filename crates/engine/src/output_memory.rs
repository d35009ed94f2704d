//! How much memory the outputs of commands take together: it is the server's, and no limit of a sandbox counts it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Of one sandbox, ended commands among them. More only where its limits say so of each command.
const MAX_SANDBOX: u64 = 32 << 20;
/// Of all sandboxes. The last quarter is for those that have little, so that none takes it from the others by holding on to much.
const MAX_ALL: u64 = 512 << 20;
const RESERVE: u64 = MAX_ALL / 4;
/// As much as one command may keep, and where its output changes between channels.
const LITTLE: u64 = 2 << 20;

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
        is_short(self.0.load(Ordering::Relaxed), ALL.load(Ordering::Relaxed), kept)
    }
}

fn is_short(own: u64, all: u64, kept: u64) -> bool {
    own > MAX_SANDBOX.max(kept) || all > if own > LITTLE { MAX_ALL - RESERVE } else { MAX_ALL }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn those_who_have_much_are_short_first() {
        assert!(!is_short(32 * MIB, 100 * MIB, MIB));
        assert!(is_short(33 * MIB, 100 * MIB, MIB), "more than one sandbox may have");
        assert!(!is_short(33 * MIB, 100 * MIB, 64 * MIB), "unless its limits say so");
        assert!(is_short(8 * MIB, 400 * MIB, MIB), "the last quarter is for others");
        assert!(!is_short(2 * MIB, 400 * MIB, MIB), "for this one");
        assert!(is_short(0, 513 * MIB, MIB));
    }
}
