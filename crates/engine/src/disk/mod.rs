//! How much a sandbox's own layer takes of the disk, and what happens at its limit.
//!
//! On btrfs with quotas the kernel holds the bytes (`pool`). Everywhere else, and for the number of files, the layer is
//! measured: more often the nearer it is to its limit, and hardly ever while nothing runs in the sandbox (`watch`). There is
//! no way to make just the writing fail then, so at the limit the sandbox's commands are ended; new ones may run, since
//! somebody has to delete something, and are ended when they make it more. The file interface asks before it writes, and
//! is refused in time.

pub(crate) mod measure;
pub(crate) mod pool;
mod stored;
mod watch;

use std::{
    collections::HashSet,
    io,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use cabana_guest::tree::{Measured, Usage};
use cabana_sandbox::{Error, Limits, Result};
use tokio::sync::Notify;

use self::measure::measure;
pub(crate) use self::{
    stored::{StoredOnce, end_for_want_of_room, stored},
    watch::{measured, watch},
};

/// What a full sandbox may grow by: deleting takes some room too.
const SLACK: Usage = Usage { bytes: 1 << 20, entries: 64 };

/// Of one live sandbox.
pub(crate) struct Disk {
    own: PathBuf,
    state: Mutex<State>,
    /// Something may have been written, or the limit is another.
    changed: Notify,
    /// Counts what was changed through the file interface.
    changes: AtomicU64,
    /// One at a time measures because it was asked; until when its answer holds, if nothing is removed.
    asking: tokio::sync::Mutex<Instant>,
}

#[derive(Default)]
struct State {
    most: Most,
    /// As it was last measured; `None` where nobody has looked since there is a limit.
    used: Option<Usage>,
    /// Written through the file interface since then.
    since: Usage,
    /// In files without a name yet, which no measuring sees.
    pending: u64,
    touched: bool,
    /// Something may have been removed through the file interface.
    removed: bool,
    watched: bool,
    /// With its names, when all of it was last measured.
    known: u64,
    /// Whether the limit is new: who was over it before has done nothing wrong.
    fresh: bool,
    full: Option<Full>,
    /// The commands that were ended for it, by their numbers.
    ended: HashSet<u64>,
}

/// What is held by watching.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Most {
    bytes: Option<u64>,
    entries: Option<u64>,
}

/// Over the limit. `mark` is the least that was measured since the commands were ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Full {
    mark: Option<Usage>,
}

/// What a measurement says is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Nothing,
    /// It is over a limit that is new.
    Tell,
    /// The limit is reached: say so, and end the commands.
    TellAndEnd,
    /// It is over the limit, and has grown.
    End,
}

impl Most {
    /// What the kernel does not hold.
    pub(crate) fn of(limits: &Limits, bytes_by_kernel: bool) -> Self {
        Self { bytes: limits.disk.filter(|_| !bytes_by_kernel), entries: limits.inodes }
    }

    fn is_some(self) -> bool {
        self != Self::default()
    }

    fn allows(self, used: Usage) -> bool {
        self.bytes.is_none_or(|most| used.bytes <= most) && self.entries.is_none_or(|most| used.entries <= most)
    }
}

impl Disk {
    /// `own` is the sandbox's own directory.
    pub(crate) fn new(own: PathBuf) -> Self {
        Self {
            own,
            state: Mutex::default(),
            changed: Notify::new(),
            changes: AtomicU64::new(0),
            asking: tokio::sync::Mutex::new(Instant::now()),
        }
    }

    pub(crate) fn own(&self) -> &Path {
        &self.own
    }

    /// Whether somebody has to begin to watch.
    pub(crate) fn set(&self, most: Most) -> bool {
        let mut state = self.state();
        if !state.most.is_some() {
            state.used = None;
        }
        state.most = most;
        state.fresh = true;
        let begins = most.is_some() && !state.watched;
        state.watched |= begins;
        drop(state);
        self.touch();
        begins
    }

    /// Something may have been written that was not asked for.
    pub(crate) fn touch(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state();
        if state.most.is_some() {
            (state.touched, state.removed) = (true, true);
            self.changed.notify_one();
        }
    }

    /// Whether this may be written through the file interface. `measure` is done only when it seems too much.
    pub(crate) async fn ask(
        &self,
        bytes: u64,
        entries: u64,
        measure: impl Future<Output = io::Result<Measured>>,
    ) -> Result<()> {
        if self.fits(bytes, entries) {
            return Ok(());
        }
        // Who asks again and again costs no more than it would by writing.
        let mut holds = self.asking.lock().await;
        if self.fits(bytes, entries) {
            return Ok(()); // somebody has measured meanwhile
        }
        let removed = std::mem::take(&mut self.state().removed);
        if !removed && Instant::now() < *holds {
            return Err(Error::NoSpace);
        }
        let (begun, since) = (Instant::now(), self.state().since);
        let measured = measure.await.map_err(|error| Error::failed("measuring the sandbox's layer", error))?;
        self.measured(measured, since);
        *holds = Instant::now() + begun.elapsed();
        if self.fits(bytes, entries) { Ok(()) } else { Err(Error::NoSpace) }
    }

    fn fits(&self, bytes: u64, entries: u64) -> bool {
        let mut state = self.state();
        if !state.most.is_some() {
            return true;
        }
        let Some(used) = state.used else { return false };
        let after = Usage {
            bytes: used.bytes.saturating_add(state.since.bytes).saturating_add(state.pending).saturating_add(bytes),
            entries: used.entries.saturating_add(state.since.entries).saturating_add(entries),
        };
        let fits = state.most.allows(after);
        if fits {
            state.since.bytes = state.since.bytes.saturating_add(bytes);
            state.since.entries = state.since.entries.saturating_add(entries);
            state.touched = true;
            self.changed.notify_one();
        }
        fits
    }

    /// What was asked for goes to a file that has no name until it is whole.
    pub(crate) fn hide(&self, bytes: u64) {
        let mut state = self.state();
        state.pending = state.pending.saturating_add(bytes);
        state.since.bytes = state.since.bytes.saturating_sub(bytes);
    }

    /// It has one now, or is gone.
    pub(crate) fn show(&self, bytes: u64) {
        let mut state = self.state();
        state.pending = state.pending.saturating_sub(bytes);
        state.since.bytes = state.since.bytes.saturating_add(bytes);
    }

    /// `since` is what had been written through the file interface when the measuring began.
    fn measured(&self, measured: Measured, since: Usage) {
        let mut state = self.state();
        // What could not be measured is refused, until it can.
        state.used = if let Measured::Whole(used) = measured { Some(used) } else { None };
        if state.used.is_some_and(|used| state.most.allows(used)) {
            state.full = None; // whoever looked: the next time that it is full is told again
        }
        state.since.bytes = state.since.bytes.saturating_sub(since.bytes);
        state.since.entries = state.since.entries.saturating_sub(since.entries);
    }

    /// What it takes, its names included. What was known before may still be there where not all could be measured.
    pub(crate) fn known(&self, measured: Measured) -> u64 {
        let (mut state, found) = (self.state(), measured.found().with_names());
        state.known = if let Measured::Whole(_) = measured { found } else { found.max(state.known) };
        state.known
    }

    fn judge(&self, measured: Measured) -> Act {
        let mut state = self.state();
        let fresh = std::mem::take(&mut state.fresh);
        let (full, act) = match measured {
            Measured::Whole(used) => judge(state.most, state.full, used, fresh),
            Measured::AtLeast(_) => judge_unmeasured(state.most, state.full),
        };
        state.full = full;
        act
    }

    /// These commands are being ended for want of disk.
    fn note_ended(&self, numbers: impl IntoIterator<Item = u64>) {
        self.state().ended.extend(numbers);
    }

    /// Whether this command was one of them.
    pub(crate) fn has_ended(&self, number: u64) -> bool {
        self.state().ended.remove(&number)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who moves directories so fast that nobody can say what lies in them may hide anything there.
fn judge_unmeasured(most: Most, full: Option<Full>) -> (Option<Full>, Act) {
    match (most.is_some(), full) {
        (false, _) => (None, Act::Nothing),
        (true, None) => (Some(Full { mark: None }), Act::TellAndEnd),
        (true, full) => (full, Act::End),
    }
}

/// A pure decision: what was, what is measured, what follows.
fn judge(most: Most, full: Option<Full>, used: Usage, fresh: bool) -> (Option<Full>, Act) {
    if most.allows(used) {
        return (None, Act::Nothing);
    }
    if fresh {
        return (Some(Full { mark: Some(used) }), if full.is_none() { Act::Tell } else { Act::Nothing });
    }
    match full {
        None => (Some(Full { mark: None }), Act::TellAndEnd),
        Some(Full { mark: None }) => (Some(Full { mark: Some(used) }), Act::Nothing),
        Some(Full { mark: Some(mark) }) => {
            let mark = Usage { bytes: mark.bytes.min(used.bytes), entries: mark.entries.min(used.entries) };
            // Only what is limited counts: a sandbox full of files may still write to them.
            let grown = most.bytes.is_some() && used.bytes > mark.bytes + SLACK.bytes
                || most.entries.is_some() && used.entries > mark.entries + SLACK.entries;
            (Some(Full { mark: Some(mark) }), if grown { Act::End } else { Act::Nothing })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn bytes(mib: u64) -> Usage {
        Usage { bytes: mib * MIB, entries: 10 }
    }

    #[test]
    fn the_limit_is_told_once_and_what_grows_beyond_it_is_ended() {
        let most = Most { bytes: Some(100 * MIB), entries: None };
        let mut full = None;
        let rows = [
            (bytes(100), Act::Nothing),
            (bytes(105), Act::TellAndEnd),
            (bytes(107), Act::Nothing), // written while the commands were being ended
            (bytes(108), Act::Nothing),
            (bytes(109), Act::End),
            (bytes(104), Act::Nothing),
            (bytes(106), Act::End),
            (bytes(99), Act::Nothing),
            (bytes(101), Act::TellAndEnd),
        ];
        for (number, (used, expected)) in rows.into_iter().enumerate() {
            let (now, act) = judge(most, full, used, false);
            assert_eq!(act, expected, "step {number}");
            full = now;
        }
    }

    #[test]
    fn what_cannot_be_measured_takes_what_it_took() {
        let disk = Disk::new("/nowhere".into());
        let usage = |mib: u64| Usage { bytes: mib * MIB, entries: 0 };
        let known = [(50, true), (3, false), (60, false), (2, true), (1, false)].map(|(mib, is_whole)| {
            disk.known(if is_whole { Measured::Whole(usage(mib)) } else { Measured::AtLeast(usage(mib)) }) / MIB
        });
        assert_eq!(known, [50, 50, 60, 2, 2]);
    }

    #[test]
    fn only_what_is_limited_counts() {
        let most = Most { bytes: None, entries: Some(100) };
        let used = |mib, entries| Usage { bytes: mib * MIB, entries };
        let (full, act) = judge(most, None, used(1, 200), false);
        assert_eq!(act, Act::TellAndEnd);
        let (full, _) = judge(most, full, used(1, 200), false);
        let (full, act) = judge(most, full, used(500, 200), false);
        assert_eq!(act, Act::Nothing, "bytes are not limited");
        assert_eq!(judge(most, full, used(500, 300), false).1, Act::End);
    }

    #[test]
    fn a_new_limit_below_what_is_there_ends_only_who_writes_more() {
        let most = Most { bytes: Some(100 * MIB), entries: None };
        let (full, act) = judge(most, None, bytes(500), true);
        assert_eq!(act, Act::Tell);
        let (full, act) = judge(most, full, bytes(501), false);
        assert_eq!(act, Act::Nothing);
        assert_eq!(judge(most, full, bytes(510), false).1, Act::End);
        assert_eq!(judge(most, full, bytes(510), true).1, Act::Nothing, "told before");
    }

    #[tokio::test]
    async fn whoever_asks_is_refused_before_the_limit_is_passed() {
        let disk = Disk::new("/nowhere".into());
        let unused = || async { panic!("nothing is limited") };
        disk.ask(u64::MAX, 1, unused()).await.unwrap();
        assert!(disk.set(Most { bytes: Some(10 * MIB), entries: None }) && !disk.set(Most::default()));
        assert!(!disk.set(Most { bytes: Some(10 * MIB), entries: None }), "one watches already");
        let now = |mib| async move { Ok(Measured::Whole(bytes(mib))) };
        disk.ask(6 * MIB, 1, now(0)).await.unwrap(); // nobody had looked before
        let refused = disk.ask(6 * MIB, 1, now(6)).await.unwrap_err();
        assert!(matches!(refused, Error::NoSpace));
        disk.touch(); // something was deleted: what was measured a moment ago holds no longer
        disk.ask(6 * MIB, 1, now(2)).await.unwrap();
        // What has no name yet is not measured, and counts.
        disk.hide(6 * MIB);
        assert!(disk.ask(6 * MIB, 1, now(2)).await.is_err());
        disk.show(6 * MIB);
        disk.touch();
        disk.ask(6 * MIB, 1, now(2)).await.unwrap();
    }
}
