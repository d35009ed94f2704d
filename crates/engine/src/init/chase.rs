//! Killing processes that begin others as fast as they end, where no cgroup holds them together.
//!
//! Who is listed may be gone before it is hit, and its child is new then. So whole process groups are hit, which no fork escapes;
//! what takes a group of its own each time is looked for again in the next turn of init, which sees to everything else in between;
//! and where that goes on for long, all commands of the sandbox are ended: that is one call of the kernel's, which misses none.

use std::{cell::Cell, collections::BTreeSet};

use crate::kernel::{proc, sys};

/// How often they are looked for in one turn of init.
const ROUNDS: usize = 8;

/// How soon what may not be gone is looked for again.
pub(super) const LOOK_AGAIN_NS: u64 = 20_000_000;

/// How long new ones may be found, before all commands are ended.
const PATIENCE_NS: u64 = 3_000_000_000;

/// Of processes that are to be gone.
#[derive(Default)]
pub(super) struct Chase {
    /// Since when each turn has found new ones to its end.
    since: Cell<Option<u64>>,
}

impl Chase {
    /// Kills what is found until nothing is new. Who was hit begins nothing more, but may stay for as long as a tracer holds it.
    pub(super) fn turn(&self, find: impl Fn() -> Vec<i32>) {
        let mut hit = BTreeSet::new();
        for _ in 0..ROUNDS {
            let missed: Vec<i32> = find().into_iter().filter(|pid| hit.insert(*pid)).collect();
            if missed.is_empty() {
                self.stop();
                return;
            }
            let mut groups = BTreeSet::new();
            for pid in missed {
                // Each as soon as it is known: to read of all of them first takes as long as many of them live.
                if let Some(group) = proc::group(pid)
                    && groups.insert(group)
                {
                    sys::kill_group(group);
                }
                sys::kill(pid, libc::SIGKILL).unwrap_or_default();
            }
        }
        self.since.set(Some(self.since.get().unwrap_or_else(sys::monotonic_ns)));
    }

    pub(super) fn stop(&self) {
        self.since.set(None);
    }

    pub(super) fn goes_on(&self) -> bool {
        self.since.get().is_some()
    }

    pub(super) fn is_hopeless(&self, now: u64) -> bool {
        self.since.get().is_some_and(|since| since.saturating_add(PATIENCE_NS) <= now)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::process::{CommandExt as _, ExitStatusExt as _},
        process::{Child, Command},
    };

    use super::*;

    fn sleeps(group: i32) -> Child {
        Command::new("sleep").arg("1000").process_group(group).spawn().unwrap()
    }

    /// The one that is found is gone when it is hit, and has begun another.
    #[test]
    fn who_is_missed_is_hit_with_its_group() {
        let mut leader = sleeps(0);
        let group = leader.id().cast_signed();
        let mut next = sleeps(group);
        leader.kill().unwrap();
        let chase = Chase::default();
        chase.turn(|| vec![group]);
        assert_eq!(next.wait().unwrap().signal(), Some(libc::SIGKILL));
        assert!(!chase.goes_on());
        leader.wait().unwrap();
    }

    #[test]
    fn processes_that_are_always_new_hold_up_nothing_and_are_given_up_at_last() {
        const NO_PROCESS: i32 = i32::MAX / 2;
        let (chase, looks) = (Chase::default(), Cell::new(0));
        let find = || {
            looks.set(looks.get() + 1);
            vec![NO_PROCESS + looks.get()]
        };
        chase.turn(find);
        let first = sys::monotonic_ns();
        assert_eq!(looks.get(), ROUNDS as i32);
        assert!(chase.goes_on() && !chase.is_hopeless(first.saturating_sub(PATIENCE_NS)));
        chase.turn(find);
        assert!(chase.is_hopeless(first + PATIENCE_NS), "counted from the first turn");
        chase.turn(Vec::new);
        assert!(!chase.goes_on() && !chase.is_hopeless(u64::MAX));
    }
}
