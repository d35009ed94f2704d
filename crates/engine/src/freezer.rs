//! The one owner of whether the commands of a sandbox are frozen.
//!
//! Several parts of the engine freeze them, each for a reason of its own, and none knows of the others: a sandbox that is paused
//! while it is over its rate stays paused when the rate allows more. So they are frozen while there is a reason, and thawed with
//! the last one.
//!
//! The kernel freezes a task when it returns to user mode: one that is frozen holds no lock of the kernel.

use std::{
    collections::BTreeSet,
    io,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::cgroup::Cgroup;

/// A process stands still when it comes back from the kernel, which may be in the middle of something.
const FREEZING: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// A caller asked for it.
    Pause,
    /// For a snapshot, or a change of mounts.
    Hold,
    /// It has used more of the disk than its rate allows.
    DiskRate,
    /// It is looked at how much of the disk it takes, and that lasts.
    DiskLook,
    /// The same, where the disk of all is short, or its tenant stores too much.
    RoomLook,
    /// It is counted what it has of the kernel's memory.
    MemoryLook,
}

/// All of it blocks.
pub(crate) struct Freezer {
    /// `None` without control groups.
    group: Option<Cgroup>,
    /// Held over what is told to the kernel, which thus hears of changes in their order.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    reasons: BTreeSet<Reason>,
    /// How long they have been frozen, and since when they are.
    frozen_for: Duration,
    frozen_since: Option<Instant>,
    /// The group is somebody else's.
    closed: bool,
}

impl Freezer {
    pub(crate) fn new(group: Option<Cgroup>) -> Self {
        Self { group, state: Mutex::default() }
    }

    /// Returns when all of them stand still. An error leaves the reason in place: it has to be taken away, too.
    pub(crate) fn freeze(&self, reason: Reason) -> io::Result<()> {
        self.begin_freeze(reason)?;
        self.until_frozen(FREEZING)
    }

    /// Does not wait for who is still in the kernel.
    pub(crate) fn begin_freeze(&self, reason: Reason) -> io::Result<()> {
        let mut state = self.open_state()?;
        state.reasons.insert(reason);
        state.frozen_since.get_or_insert_with(Instant::now);
        self.group()?.set_frozen(true)
    }

    /// Waits for who is still in the kernel, but no longer than that.
    pub(crate) fn until_frozen(&self, most: Duration) -> io::Result<()> {
        self.group()?.until_frozen(most)
    }

    /// They go on, unless there is another reason. An error leaves the reason in place: it has to be tried again.
    pub(crate) fn thaw(&self, reason: Reason) -> io::Result<()> {
        let mut state = self.open_state()?;
        if state.reasons.iter().all(|left| *left == reason) {
            self.group()?.set_frozen(false)?; // also where a server that was killed froze them
            if let Some(since) = state.frozen_since.take() {
                state.frozen_for += since.elapsed();
            }
        }
        state.reasons.remove(&reason);
        Ok(())
    }

    /// They let go of what they hold of the kernel's while they wait in it.
    pub(crate) fn shake(&self) -> io::Result<()> {
        let _alone = self.state();
        self.group()?.shake()
    }

    /// Ends them, whatever state they are in.
    pub(crate) fn kill(&self) -> io::Result<()> {
        self.group()?.kill_commands()
    }

    /// How long nothing inside has run, in all.
    pub(crate) fn frozen_for(&self) -> Duration {
        let state = self.state();
        state.frozen_for + state.frozen_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// As the kernel has it.
    pub(crate) fn is_frozen(&self) -> bool {
        self.group.as_ref().is_some_and(Cgroup::is_frozen)
    }

    /// From here on nothing is frozen or thawed: the sandbox has ended, or is left as it is. Nobody would thaw it who watches its
    /// disk, so that is done.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        let watched = [Reason::DiskRate, Reason::DiskLook, Reason::RoomLook, Reason::MemoryLook]
            .map(|reason| state.reasons.remove(&reason));
        if watched.contains(&true) && state.reasons.is_empty() {
            let _ = self.group().and_then(|group| group.set_frozen(false));
        }
        state.closed = true;
    }

    fn group(&self) -> io::Result<&Cgroup> {
        self.group.as_ref().ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    fn open_state(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.state();
        if state.closed { Err(io::ErrorKind::NotConnected.into()) } else { Ok(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn commands_are_frozen_while_any_reason_is_left() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("run")).unwrap();
        let frozen = || fs::read_to_string(dir.path().join("run/cgroup.freeze")).unwrap() == "1";
        let freezer = Freezer::new(Some(Cgroup::at(dir.path())));
        let all =
            [Reason::Pause, Reason::Hold, Reason::DiskRate, Reason::DiskLook, Reason::RoomLook, Reason::MemoryLook];
        for first in all {
            for second in all.into_iter().filter(|second| *second != first) {
                freezer.begin_freeze(first).unwrap();
                freezer.begin_freeze(second).unwrap();
                freezer.thaw(first).unwrap();
                assert!(frozen() && freezer.is_frozen(), "{second:?} is left");
                freezer.thaw(second).unwrap();
                assert!(!frozen(), "{first:?}, {second:?}");
            }
        }
        // A reason that was there twice is taken away once, and one that never was does no harm.
        freezer.begin_freeze(Reason::Hold).unwrap();
        freezer.begin_freeze(Reason::Hold).unwrap();
        freezer.thaw(Reason::Pause).unwrap();
        assert!(frozen());
        freezer.thaw(Reason::Hold).unwrap();
        assert!(!frozen());
    }

    #[test]
    fn what_cannot_be_thawed_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        fs::create_dir(&run).unwrap();
        let freezer = Freezer::new(Some(Cgroup::at(dir.path())));
        freezer.begin_freeze(Reason::DiskRate).unwrap();
        fs::rename(&run, dir.path().join("away")).unwrap();
        assert!(freezer.thaw(Reason::DiskRate).is_err());
        fs::rename(dir.path().join("away"), &run).unwrap();
        freezer.begin_freeze(Reason::Hold).unwrap();
        freezer.thaw(Reason::Hold).unwrap();
        assert!(freezer.is_frozen(), "the reason was forgotten");
        freezer.thaw(Reason::DiskRate).unwrap();
        assert!(!freezer.is_frozen());
    }

    #[test]
    fn time_that_was_spent_frozen_is_counted_whatever_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("run")).unwrap();
        let freezer = Freezer::new(Some(Cgroup::at(dir.path())));
        assert_eq!(freezer.frozen_for(), Duration::ZERO);
        for reason in [Reason::Hold, Reason::DiskRate, Reason::DiskLook, Reason::Pause] {
            let before = freezer.frozen_for();
            freezer.begin_freeze(reason).unwrap();
            std::thread::sleep(Duration::from_millis(2));
            let meanwhile = freezer.frozen_for();
            assert!(meanwhile >= before + Duration::from_millis(2), "{reason:?}");
            freezer.thaw(reason).unwrap();
            let after = freezer.frozen_for();
            assert!(after >= meanwhile && freezer.frozen_for() == after, "{reason:?}");
        }
    }

    #[test]
    fn a_sandbox_that_is_left_stays_paused_and_nothing_else() {
        for (reasons, stays) in [
            (vec![Reason::DiskRate, Reason::DiskLook, Reason::RoomLook, Reason::MemoryLook], "0"),
            (vec![Reason::Pause, Reason::DiskRate], "1"),
            (vec![Reason::Pause], "1"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join("run")).unwrap();
            let freezer = Freezer::new(Some(Cgroup::at(dir.path())));
            reasons.iter().for_each(|reason| freezer.begin_freeze(*reason).unwrap());
            freezer.close();
            assert_eq!(fs::read_to_string(dir.path().join("run/cgroup.freeze")).unwrap(), stays, "{reasons:?}");
            // The group is another's now.
            assert!(freezer.begin_freeze(Reason::DiskRate).is_err() && freezer.thaw(Reason::Pause).is_err());
            assert_eq!(fs::read_to_string(dir.path().join("run/cgroup.freeze")).unwrap(), stays, "{reasons:?}");
        }
    }
}
