//! Whose ids a sandbox has: a fixed range on disk, and a leased one while it runs.
//!
//! As root, all layers lie on disk in one storage range, and each live sandbox has 65,536 ids that no other live sandbox
//! on this machine has, whichever process made it. A layer's ids are mapped when it is mounted, so a stopped sandbox needs
//! none, and nothing on disk is tied to a range. An ordinary user has one range for all, or a single id.

use std::{
    collections::{HashSet, VecDeque},
    fs::{File, OpenOptions},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::{DirBuilderExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use cabana_guest::IdMap;
use cabana_sandbox::{Error, Identities, Limits, Result};
use rustix::fs::FlockOperation;

use crate::{
    cgroup::{Cgroup, Cgroups, Controllers, Limiter, held},
    kernel::sys,
    rootless::Mode,
};

/// How many ids a sandbox has.
pub(crate) const COUNT: u32 = 65_536;

/// On disk: the range that the systems of this world leave to files of foreign machines, so that nobody on this one owns them.
const STORAGE: u32 = 0x7ffe_0000;

/// Live ranges: above what container managers hand out, below the storage range.
const FIRST_LIVE: u32 = 0x7000_0000;
pub(crate) const RANGES: u32 = (STORAGE - FIRST_LIVE) / COUNT;

/// Where the ranges of this machine are leased.
const RUN: &str = "/run/cabana";

pub(crate) struct Ranges {
    mode: Mode,
    cgroups: Option<Cgroups>,
    /// A directory with a file for each range, locked while it is leased: by the kernel, so that who is killed gives back.
    locks: Option<PathBuf>,
    /// Leased by us and free again, the one that has been so for longest first: a sandbox finds cgroup and id map as it needs them.
    free: Mutex<VecDeque<Lease>>,
    next: AtomicU32,
}

/// A range and a cgroup, for as long as a sandbox lives.
pub(crate) struct Lease {
    pub(crate) number: u32,
    /// Held by the sandbox's init, too, if it outlives us.
    pub(crate) lock: Option<OwnedFd>,
    pub(crate) ids: IdMap,
    pub(crate) cgroup: Option<Cgroup>,
    pub(crate) limiter: Limiter,
    /// What the limiter is set to.
    limits: Limits,
    /// Whether the processes of the sandbox are where the limiter has a say.
    attached: bool,
    /// How often memory had run out in the group before it was this sandbox's, and limited.
    ooms_before: Option<u64>,
}

impl Lease {
    /// Rounds of moving processes that may start others meanwhile. Those that were moved start no more outside.
    const ROUNDS: usize = 64;

    /// Sets what the sandbox may use. Blocks: where its processes have to be moved first, for milliseconds.
    pub(crate) fn limit(&mut self, limits: &Limits) -> Result<()> {
        let limits = &held(limits);
        if !self.differs(limits) {
            return Ok(());
        }
        self.attach()?;
        if limits.memory.is_some() && self.ooms_before.is_none() {
            self.ooms_before = Some(self.limiter.oom_kills());
        }
        if let Err(error) = self.limiter.change(&self.limits, limits) {
            let _ = self.limiter.set(&self.limits); // all or none
            return Err(error);
        }
        self.limits = *limits;
        self.favour_init();
        Ok(())
    }

    /// Init has to come to its turn among commands that use up the limit of the processor: it ends those whose time is over. Not
    /// where the whole server was made to come last: what init starts would not any more.
    fn favour_init(&self) {
        let is_usual = rustix::process::getpriority_process(None) == Ok(0);
        if is_usual && self.limits.cpu_milli.is_some() {
            for pid in self.cgroup.iter().flat_map(Cgroup::own_pids) {
                let _ = sys::favour(pid); // takes root's right
            }
        }
    }

    /// Sets what it may use, whatever is set by now.
    fn restore(&mut self, limits: &Limits) -> Result<()> {
        let limits = &held(limits);
        match self.limiter.is_made() {
            true => self.move_all_still()?, // without making them anew: nothing runs without its limits meanwhile
            false if *limits == Limits::default() => return Ok(()),
            false => self.attach()?,
        }
        self.ooms_before = limits.memory.map(|_| self.limiter.oom_kills());
        self.limiter.set(limits)?;
        self.limits = *limits;
        self.favour_init();
        Ok(())
    }

    /// Nothing of it is slow by its limits any more: it is to end, and would hold up the file system of the host meanwhile.
    pub(crate) fn hurry(&mut self) {
        let limits = Limits { cpu_milli: None, ..self.limits };
        if self.limiter.change(&self.limits, &limits).is_ok() {
            self.limits = limits;
        }
    }

    /// How often memory ran out in it, since it was first limited.
    pub(crate) fn oom_kills(&self) -> u64 {
        self.ooms_before.map_or(0, |before| self.limiter.oom_kills().saturating_sub(before))
    }

    pub(crate) fn differs(&self, limits: &Limits) -> bool {
        self.limits != held(limits)
    }

    /// For the next sandbox: nothing of the last is left.
    fn clear(&mut self) -> Result<()> {
        self.attached = false;
        self.ooms_before = None;
        if self.differs(&Limits::default()) {
            self.limiter.change(&self.limits, &Limits::default())?;
            self.limits = Limits::default();
        }
        match self.cgroup.as_ref().filter(|cgroup| cgroup.is_frozen()) {
            Some(cgroup) => cgroup.set_frozen(false).map_err(|error| Error::failed("resuming", error)),
            None => Ok(()),
        }
    }

    /// Ahead of time: then a limit costs next to nothing.
    pub(crate) fn attach(&mut self) -> Result<()> {
        if self.attached || !self.limiter.has_to_attach() {
            return Ok(());
        }
        self.limiter.make()?;
        self.move_all()
    }

    /// The same for one whose server is gone: commands stand still meanwhile, since nothing else keeps them from starting others.
    fn move_all_still(&mut self) -> Result<()> {
        let going = self.cgroup.clone().filter(|cgroup| !cgroup.is_frozen());
        let failed = |error| Error::failed("moving the sandbox into its group", error);
        going.iter().try_for_each(|cgroup| cgroup.set_frozen(true)).map_err(failed)?;
        let moved = self.move_all();
        going.iter().try_for_each(|cgroup| cgroup.set_frozen(false)).map_err(failed)?;
        moved
    }

    fn move_all(&mut self) -> Result<()> {
        let Some(cgroup) = self.cgroup.as_ref().filter(|_| self.limiter.has_to_attach()) else { return Ok(()) };
        let failed = |error| Error::failed("moving the sandbox into its group", error);
        let mut moved = HashSet::new();
        for _ in 0..Self::ROUNDS {
            let found: Vec<_> = cgroup.pids().into_iter().filter(|pid| moved.insert(*pid)).collect();
            if found.is_empty() {
                self.attached = true;
                return Ok(());
            }
            for pid in found {
                match self.limiter.attach(pid) {
                    Err(error) if error.raw_os_error() != Some(libc::ESRCH) => return Err(failed(error)),
                    _ => {} // one that has just ended needs no limit
                }
            }
        }
        Err(failed(io::Error::other("it starts processes faster than they can be moved")))
    }
}

#[cfg(fuzzing)]
impl Lease {
    /// Of a sandbox that is none: with ids, and nothing that anybody else could have.
    pub(crate) fn of_nothing() -> Self {
        Self {
            number: 0,
            lock: None,
            ids: IdMap { base: FIRST_LIVE, count: COUNT },
            cgroup: None,
            limiter: Limiter::default(),
            limits: Limits::default(),
            attached: false,
            ooms_before: None,
        }
    }
}

impl Ranges {
    const KEEP: usize = 32;
    /// What a sandbox leaves behind is counted to its ids, if another process has got hold of it: so no range is given to the next
    /// one at once.
    const RESTING: usize = 16;

    pub(crate) fn open(mode: Mode, cgroups: bool, data: &Path) -> io::Result<Self> {
        let locks = match mode {
            Mode::Root => Some(make_locks(Path::new(RUN))?),
            Mode::Shared | Mode::Single => None,
        };
        let ranges = Self {
            mode,
            cgroups: if cgroups { Cgroups::find(mode, data) } else { None },
            locks,
            free: Mutex::default(),
            next: AtomicU32::new(std::process::id()),
        };
        ranges.sweep();
        Ok(ranges)
    }

    /// Removes groups of processes that ended without giving back: some each time, so that nobody waits long for it.
    fn sweep(&self) {
        const AT_ONCE: usize = 32;
        let Some(cgroups) = self.cgroups.as_ref().filter(|_| self.locks.is_some()) else { return };
        let lock = |number| self.lock(number).ok().flatten().map(|lock| (number, lock));
        let numbers = cgroups.numbers().into_iter().filter(|number| *number < RANGES);
        for (number, _lock) in numbers.filter_map(lock).take(AT_ONCE) {
            cgroups.remove_left_over(number);
        }
    }

    /// Removes the groups of a range whose sandbox has just ended, without having been ours.
    pub(crate) fn clear(&self, number: u32) {
        if let (Some(cgroups), Ok(Some(_lock))) = (&self.cgroups, self.lock(number)) {
            cgroups.remove_left_over(number);
        }
    }

    /// `None` when somebody else has it. Each lock is an open file of its own, which can be passed on: it is good for nothing
    /// else.
    fn lock(&self, number: u32) -> io::Result<Option<OwnedFd>> {
        let Some(locks) = &self.locks else { return Ok(None) };
        let path = locks.join(number.to_string());
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
                File::open(&path)?
            }
            file => file?,
        };
        Ok(lock(file.as_fd())?.then(|| file.into()))
    }

    /// How files lie on disk.
    pub(crate) fn storage(&self) -> IdMap {
        match self.mode {
            Mode::Root => IdMap { base: STORAGE, count: COUNT },
            Mode::Shared => IdMap { base: 1, count: COUNT },
            Mode::Single => IdMap { base: 0, count: 1 },
        }
    }

    pub(crate) fn identities(&self) -> Identities {
        match self.mode {
            Mode::Root => Identities::Own,
            Mode::Shared => Identities::Shared,
            Mode::Single => Identities::Single,
        }
    }

    pub(crate) fn has_cgroups(&self) -> bool {
        self.cgroups.is_some()
    }

    /// What can be limited here.
    pub(crate) fn controllers(&self) -> Option<&Controllers> {
        self.cgroups.as_ref().map(|cgroups| &cgroups.controllers)
    }

    pub(crate) fn lease(&self) -> Result<Lease> {
        if let Some(lease) = self.take_free(Self::RESTING) {
            return Ok(lease);
        }
        // Each sandbox another one.
        for _ in 0..RANGES {
            let number = self.next.fetch_add(1, Ordering::Relaxed) % RANGES;
            if let Some(lease) = self.try_lease(number).map_err(|error| Error::failed("leasing ids", error))? {
                return Ok(lease);
            }
        }
        self.take_free(0).ok_or(Error::Exhausted("ranges of ids, for the sandboxes that live on this machine"))
    }

    /// The one that has been free for longest, if more than so many are.
    fn take_free(&self, resting: usize) -> Option<Lease> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() > resting { free.pop_front() } else { None }
    }

    fn try_lease(&self, number: u32) -> io::Result<Option<Lease>> {
        let lock = self.lock(number)?;
        if lock.is_none() && self.locks.is_some() {
            return Ok(None);
        }
        let cgroup = match &self.cgroups {
            Some(cgroups) => match cgroups.make(number, self.ids(number).base)? {
                Some(cgroup) => Some(cgroup),
                // Its last processes are still dying, though their owner is gone: a range is used again when nobody has it.
                None => return Ok(None),
            },
            None => None,
        };
        Ok(Some(self.lease_of(number, lock, cgroup)))
    }

    /// The range of a sandbox that outlived its server, with the lock that its init held. What it may use is set anew: its
    /// server may have been killed half-way.
    pub(crate) fn take_up(&self, number: u32, lock: OwnedFd, limits: &Limits) -> Result<Lease> {
        let failed = |error| Error::failed("taking the sandbox's ids up again", error);
        self.check_lock(number, &lock).map_err(failed)?;
        let cgroup = self.cgroups.as_ref().map(|cgroups| cgroups.take_up(number)).transpose().map_err(failed)?;
        let mut lease = self.lease_of(number, Some(lock), cgroup);
        lease.restore(limits)?;
        Ok(lease)
    }

    pub(crate) fn is_frozen(&self, number: u32) -> bool {
        let cgroup = self.cgroups.as_ref().and_then(|cgroups| cgroups.open(number).ok());
        cgroup.is_some_and(|cgroup| cgroup.is_frozen())
    }

    /// Init is not trusted with what it passes.
    fn check_lock(&self, number: u32, lock: &OwnedFd) -> io::Result<()> {
        let known = self.locks.as_ref().ok_or(io::ErrorKind::Unsupported)?.join(number.to_string());
        let (known, given) = (rustix::fs::stat(&known)?, rustix::fs::fstat(lock)?);
        let same = (known.st_dev, known.st_ino) == (given.st_dev, given.st_ino);
        match number < RANGES && same && self::lock(lock.as_fd())? {
            true => Ok(()),
            false => Err(io::Error::other("another sandbox has them")),
        }
    }

    fn ids(&self, number: u32) -> IdMap {
        match self.mode {
            Mode::Root => IdMap { base: FIRST_LIVE + number * COUNT, count: COUNT },
            Mode::Shared | Mode::Single => self.storage(),
        }
    }

    fn lease_of(&self, number: u32, lock: Option<OwnedFd>, cgroup: Option<Cgroup>) -> Lease {
        Lease {
            number,
            lock,
            ids: self.ids(number),
            cgroup,
            limiter: self.cgroups.as_ref().map(|cgroups| cgroups.limiter(number)).unwrap_or_default(),
            limits: Limits::default(),
            attached: false,
            ooms_before: None,
        }
    }

    /// Only when nothing of the sandbox lives any more.
    pub(crate) fn give_back(&self, mut lease: Lease) {
        let clean = lease.clear().is_ok();
        let empty = lease.cgroup.as_ref().is_none_or(Cgroup::is_empty) && self.renew(&mut lease);
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if empty && clean && free.len() < Self::KEEP {
            free.push_back(lease);
        } else {
            drop(free);
            self.end(lease);
        }
    }

    /// What is still charged to the group of the last sandbox is none of the next one's. A group of version 1 is made anew where it is
    /// needed next.
    fn renew(&self, lease: &mut Lease) -> bool {
        let Some(cgroups) = self.cgroups.as_ref().filter(|_| lease.limiter.is_charged()) else { return true };
        if let Some(cgroup) = lease.cgroup.take() {
            cgroup.remove();
        }
        lease.cgroup = cgroups.make(lease.number, lease.ids.base).ok().flatten();
        lease.cgroup.is_some()
    }

    fn end(&self, lease: Lease) {
        let Lease { lock, limiter, cgroup, .. } = lease;
        limiter.remove();
        if let Some(cgroup) = cgroup {
            cgroup.remove();
        }
        drop(lock); // last: nobody else leases the range before its groups are gone
    }
}

impl Drop for Ranges {
    fn drop(&mut self) {
        let free = std::mem::take(&mut *self.free.lock().unwrap_or_else(PoisonError::into_inner));
        free.into_iter().for_each(|lease| self.end(lease));
    }
}

/// Which range a file is locked for.
pub(crate) fn range_of_lease(file: &Path) -> Option<u32> {
    let name = file.strip_prefix(Path::new(RUN).join("leases")).ok()?;
    name.to_str()?.parse().ok()
}

fn make_locks(dir: &Path) -> io::Result<PathBuf> {
    let locks = dir.join("leases");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&locks)?;
    Ok(locks)
}

/// Locks an open file, until the last descriptor of it is closed; false when somebody else has it.
fn lock(file: BorrowedFd<'_>) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_ranges_and_the_storage_range_do_not_touch() {
        const { assert!(FIRST_LIVE + RANGES * COUNT <= STORAGE) };
        const { assert!(STORAGE + (COUNT - 1) < i32::MAX as u32) };
        const { assert!(RANGES > 4000) };
    }

    #[test]
    fn a_range_that_was_given_back_rests_before_it_is_leased_again() {
        let dir = tempfile::tempdir().unwrap();
        let locks = Some(make_locks(dir.path()).unwrap());
        let ranges = Ranges { mode: Mode::Root, cgroups: None, locks, free: Mutex::default(), next: AtomicU32::new(7) };
        let mut leased = Vec::new();
        for _ in 0..3 * Ranges::RESTING {
            let lease = ranges.lease().unwrap();
            leased.push(lease.number);
            ranges.give_back(lease);
        }
        let rests = |round: &[u32]| round.iter().collect::<HashSet<_>>().len() == round.len();
        assert!(leased.windows(Ranges::RESTING).all(rests), "{leased:?}");
        let first: Vec<_> = leased.iter().take(Ranges::RESTING + 1).collect();
        assert!(
            leased.iter().skip(first.len()).all(|number| first.contains(&number)),
            "they are used again: {leased:?}"
        );
    }

    #[test]
    fn a_free_group_is_not_taken_by_an_engine_that_sees_other_leases() {
        let data = tempfile::tempdir().unwrap();
        let open = |run: &Path| Ranges {
            mode: Mode::Root,
            cgroups: Cgroups::find(Mode::Root, data.path()),
            locks: Some(make_locks(run).unwrap()),
            free: Mutex::default(),
            next: AtomicU32::new(0),
        };
        let (here, container) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (ours, theirs) = (open(here.path()), open(container.path()));
        if ours.cgroups.is_none() {
            return; // nothing to take
        }
        let number =
            (0..RANGES).rev().find(|number| !ours.cgroups.as_ref().unwrap().numbers().contains(number)).unwrap();
        let lease = ours.try_lease(number).unwrap().unwrap();
        ours.give_back(lease);
        theirs.clear(number);
        assert!(theirs.try_lease(number).unwrap().is_none(), "it is another's");
        assert!(ours.cgroups.as_ref().unwrap().open(number).is_ok(), "and is there");
        drop(ours);
        assert!(theirs.try_lease(number).unwrap().is_some());
        theirs.clear(number);
        let lease = theirs.try_lease(number).unwrap().unwrap();
        theirs.end(lease);
    }

    #[test]
    fn a_range_has_one_owner_and_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let locks = make_locks(dir.path()).unwrap();
        std::fs::write(locks.join("7"), "").unwrap();
        let open = || File::open(locks.join("7")).unwrap();
        let (one, two) = (open(), open());
        assert!(lock(one.as_fd()).unwrap());
        assert!(!lock(two.as_fd()).unwrap());
        let passed_on = one.try_clone().unwrap();
        drop(one);
        assert!(!lock(two.as_fd()).unwrap());
        assert!(lock(passed_on.as_fd()).unwrap());
        drop(passed_on);
        assert!(lock(two.as_fd()).unwrap());
    }
}
