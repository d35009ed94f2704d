//! How many filters of system calls programs may put on themselves.
//!
//! The kernel compiles each into memory that the whole machine has so much of (`net.core.bpf_jit_limit`) and charges it to no group:
//! who has all of it keeps every other filter, those of new sandboxes among them, from being made. A filter is as long as its author
//! likes, up to some hundred KiB, and lies in the caller's memory, where it can change until the kernel has read it. So their number
//! is bounded. Browsers, ssh and apt have some; what is bounded is who has hundreds.
//!
//! A filter lives as long as a process that has it, and the kernel says of each process how many those are, but not which. The first
//! ones are free. Beyond them a broker counts, each process by itself, and what processes have in common as often as they have it.
//! What a thread has for itself nobody could count so; beyond the first ones a filter is for a whole process.

use crate::kernel::{
    proc,
    sys::{Errno, Result},
};

/// How many are put on without anybody counting.
const FREE: u32 = 64;

/// How many there may be beside them.
const MAX_COUNTED: usize = 256;

/// The most that one process can have of the longest. The kernel bounds them together.
const LONGEST_OF_A_PROCESS: usize = 8;

/// What the kernel says of a filter that is too much.
const REFUSED: Errno = Errno(libc::ENOMEM);

/// How many were free.
#[derive(Default)]
pub(super) struct Filters(u32);

/// One that a caller asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FilterCall {
    /// For all threads of the caller's process.
    for_all_threads: bool,
}

impl Filters {
    /// Whether it is one of the first.
    pub(super) fn is_free(&mut self) -> bool {
        let free = self.0 < FREE;
        self.0 += u32::from(free);
        free
    }
}

impl FilterCall {
    pub(super) fn of(number: i64, args: &[u64; 6]) -> Option<Self> {
        let flags = match number {
            libc::SYS_seccomp => args[1],
            libc::SYS_prctl => 0,
            _ => return None,
        };
        Some(Self { for_all_threads: flags & libc::SECCOMP_FILTER_FLAG_TSYNC != 0 })
    }

    /// The caller waits meanwhile: where it is the only thread of its process, it stays that.
    pub(super) fn judge(self, thread: i32) -> Result<()> {
        let threads = proc::Filtered::of(thread).ok_or(Errno(libc::ESRCH))?.threads;
        if !self.for_all_threads && threads > 1 {
            return Err(REFUSED);
        }
        // What init has, everything has from it.
        let common = proc::Filtered::of(1).ok_or(REFUSED)?.filters;
        // Their numbers at once, before any is looked at: who then hands its filters on to a child and ends is still one of them.
        let mut held = 0;
        for pid in proc::all() {
            held += held_by(pid, common);
            if held >= MAX_COUNTED {
                return Err(REFUSED);
            }
        }
        Ok(())
    }
}

fn held_by(pid: i32, common: usize) -> usize {
    // One that has ended meanwhile may have left them to a child that is not listed.
    let Some(process) = proc::Filtered::of(pid) else { return LONGEST_OF_A_PROCESS };
    let found = match process.has_ended && process.threads > 1 {
        // Of a first thread that has ended the kernel says what it had. The others may have more since, and all the same.
        true => proc::threads(pid).into_iter().filter_map(proc::Filtered::of).find(|thread| !thread.has_ended),
        false => Some(process),
    };
    found.map_or(LONGEST_OF_A_PROCESS, |found| found.filters.saturating_sub(common))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ones_are_free() {
        let mut filters = Filters::default();
        assert!((0..FREE).all(|_| filters.is_free()));
        assert!(!filters.is_free() && !filters.is_free());
    }

    #[test]
    fn who_has_ended_since_it_was_listed_counts_for_as_many_as_one_may_have() {
        const NO_PROCESS: i32 = i32::MAX / 2;
        assert_eq!(held_by(NO_PROCESS, 0), LONGEST_OF_A_PROCESS);
        let own = std::process::id().cast_signed();
        let filters = proc::Filtered::of(own).unwrap().filters;
        assert_eq!((held_by(own, 0), held_by(own, filters)), (filters, 0));
        assert!(proc::all().contains(&own));
    }

    #[test]
    fn a_filter_for_all_threads_is_told_by_its_registers() {
        let of = |number, flags| FilterCall::of(number, &[1, flags, 7, 0, 0, 0]);
        for (flags, for_all_threads) in [(0, false), (1, true), (1 << 1, false), (1 | 1 << 4, true)] {
            assert_eq!(of(libc::SYS_seccomp, flags), Some(FilterCall { for_all_threads }), "{flags}");
        }
        // There is nothing to say how.
        let by_prctl = FilterCall::of(libc::SYS_prctl, &[libc::PR_SET_SECCOMP as u64, 2, 1, 1, 1, 1]);
        assert_eq!(by_prctl, Some(FilterCall { for_all_threads: false }));
        assert_eq!(of(libc::SYS_bpf, 1), None);
    }
}
