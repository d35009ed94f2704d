//! Telling what changes in a directory, or in the whole tree below it.
//!
//! inotify watches directories, not trees: each directory has a watch of its own, and a new one is armed when it appears.
//! What was put into it before that is found by looking, and what was put in meanwhile is told once: the look and the
//! event are matched by name.
//!
//! A look sees what is there now, and the events that are still queued tell how it came there. So a directory may be found
//! under a name that it gets by a later event, or be told of under a name that an event then says is gone. What whoever
//! listens may have forgotten by that is in doubt, and is looked at and told again when the last of these events has come.
//!
//! The descriptor becomes readable when there is something. An empty answer of [`Watch::take`] means that all was read.
//! `take` opens new directories: it is called as the identity that the watch was made with.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use cabana_sandbox::{Change, Depth, Error, Result, SandboxPath, WatchBudget, WatchEvent};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{
        FileType, OFlags, ResolveFlags,
        inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags},
    },
    io::Errno,
};

use crate::{
    Rooted,
    dir::{each_entry, is_pseudo},
    errno::fault,
    sys, temp,
};

/// Directories that one watch covers. Beyond it comes an Overflow.
pub const MAX_WATCHES: usize = 8192;
/// Entries that one look at new directories tells. Beyond it comes an Overflow.
const MAX_TOLD: usize = 64 * 1024;
/// In bytes of their paths.
const MAX_TOLD_BYTES: usize = 16 << 20;
/// Events of one answer: who is told must get to speak.
const MAX_BATCH: usize = 4096;
const BUFFER: usize = 64 * 1024;
/// The two halves of a rename are queued one right after the other: this is a long time for that.
const OTHER_HALF: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

pub struct Watch {
    rooted: Rooted,
    inotify: OwnedFd,
    base: SandboxPath,
    /// Which directory that is. It is found again by its path and known by this: a descriptor kept open would keep the
    /// kernel from telling that it was removed.
    base_id: (u64, u64),
    depth: Depth,
    dirs: HashMap<i32, Watched>,
    /// Half a rename, until the other half comes or does not.
    half: Option<Half>,
    told: VecDeque<WatchEvent>,
    /// What lies at its paths may be something else by now.
    stale: bool,
    /// For each directory one.
    allowance: Allowance,
    buffer: Vec<MaybeUninit<u8>>,
}

struct Watched {
    /// Relative to the base; empty for the base.
    path: Vec<u8>,
    /// Names that a look has told: their own event, if one is queued, is not told again.
    looked: HashSet<Vec<u8>>,
    /// Whoever listens may not know what is in it.
    doubtful: bool,
}

impl Watched {
    fn new(path: Vec<u8>) -> Self {
        Self { path, looked: HashSet::new(), doubtful: false }
    }
}

/// What was taken of a budget. Given back when nothing is watched any more.
struct Allowance {
    budget: Option<Arc<dyn WatchBudget>>,
    taken: usize,
}

impl Allowance {
    /// Whether it is enough for so many, once more was taken where that was needed.
    fn covers(&mut self, watches: usize) -> bool {
        let Some(budget) = &self.budget else { return true };
        while self.taken < watches {
            if !budget.take() {
                return false;
            }
            self.taken += 1;
        }
        true
    }

    fn shrink_to(&mut self, watches: usize) {
        let more = self.taken.saturating_sub(watches);
        if let Some(budget) = self.budget.as_ref().filter(|_| more > 0) {
            budget.give_back(more);
            self.taken = watches;
        }
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

struct Half {
    cookie: u32,
    path: Vec<u8>,
    is_dir: bool,
    hidden: Option<temp::Aim>,
}

/// An event, taken out of the buffer.
struct Seen {
    wd: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Vec<u8>,
}

/// Whether a look at a directory that is new to us tells what it finds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    Tell,
    Silent,
}

impl Rooted {
    /// Armed once it returns: what happens later is seen. Follows a link to the directory, and none below it.
    pub fn watch(&self, dir: &SandboxPath, depth: Depth) -> Result<Watch> {
        self.watch_within(dir, depth, None)
    }

    /// The same, for as many of the kernel's watches as the budget gives.
    pub fn watch_within(&self, dir: &SandboxPath, depth: Depth, budget: Option<Arc<dyn WatchBudget>>) -> Result<Watch> {
        let failed = |e| match e {
            // Not of the disk: of what the kernel gives one user.
            Errno::NOSPC | Errno::MFILE => Error::TooManyWatches(dir.clone()),
            e => fault(dir, "watch", e),
        };
        let top = self.resolve(dir.relative(), OFlags::PATH | OFlags::DIRECTORY).map_err(failed)?;
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(failed)?;
        let mut allowance = Allowance { budget, taken: 0 };
        if !allowance.covers(1) {
            return Err(Error::TooManyWatches(dir.clone()));
        }
        let mut watch = Watch {
            rooted: self.clone(),
            inotify,
            base: dir.clone(),
            base_id: sys::id(&rustix::fs::fstat(&top).map_err(failed)?),
            depth,
            dirs: HashMap::new(),
            half: None,
            told: VecDeque::new(),
            stale: false,
            allowance,
            buffer: vec![MaybeUninit::uninit(); BUFFER],
        };
        let wd = watch.add(top.as_fd()).map_err(failed)?;
        drop(top);
        watch.dirs.insert(wd, Watched::new(Vec::new()));
        if depth == Depth::Below {
            watch.look_below(wd, Vec::new(), Look::Silent);
        }
        watch.wake();
        Ok(watch)
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

impl Watch {
    /// Lets go of all directories: watches hang on them, and not on mounts, so they would tell of what is not seen any more. The
    /// next look finds those that are there by then, and tells an Overflow.
    pub fn mounts_changed(&mut self) {
        self.stale |= !self.dirs.is_empty();
        for wd in std::mem::take(&mut self.dirs).into_keys() {
            let _ = inotify::remove_watch(&self.inotify, wd); // makes the descriptor readable, too
        }
    }

    /// What happened since the last call, in order. Empty: nothing yet; wait until the descriptor is readable.
    pub fn take(&mut self) -> Result<Vec<WatchEvent>> {
        if std::mem::take(&mut self.stale) {
            self.begin_again();
        }
        loop {
            let read = self.read().map_err(|e| fault(&self.base, "watch", e))?;
            let nothing = read.is_empty();
            for seen in read {
                self.handle(&seen);
            }
            if nothing {
                self.end_half();
            }
            if nothing || self.told.len() >= MAX_BATCH || (!self.told.is_empty() && self.half.is_none()) {
                self.allowance.shrink_to(self.dirs.len());
                return Ok(self.told.drain(..).collect());
            }
        }
    }

    /// One buffer of events. Waits a moment only where half of a rename has been seen.
    fn read(&mut self) -> Result<Vec<Seen>, Errno> {
        let mut all = Vec::new();
        let mut reader = Reader::new(self.inotify.as_fd(), &mut self.buffer);
        let mut waited = self.half.is_none();
        loop {
            match reader.next() {
                Ok(event) => all.push(Seen {
                    wd: event.wd(),
                    flags: event.events(),
                    cookie: event.cookie(),
                    name: event.file_name().map(|name| name.to_bytes().to_vec()).unwrap_or_default(),
                }),
                Err(Errno::AGAIN) if !waited => {
                    waited = true;
                    let _ = poll(&mut [PollFd::new(&self.inotify, PollFlags::IN)], Some(&OTHER_HALF));
                }
                Err(Errno::AGAIN) => return Ok(all),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
            if !all.is_empty() && reader.is_buffer_empty() {
                return Ok(all);
            }
        }
    }

    fn handle(&mut self, seen: &Seen) {
        if seen.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            return self.start_over();
        }
        if self.half.as_ref().is_some_and(|half| half.cookie != seen.cookie && self.is_over(half, seen)) {
            self.end_half();
        }
        let Some(dir) = self.dirs.get_mut(&seen.wd) else { return };
        if seen.flags.contains(ReadFlags::IGNORED) {
            self.dirs.remove(&seen.wd);
            return;
        }
        if seen.name.is_empty() {
            let gone = ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT;
            if dir.path.is_empty() && seen.flags.intersects(gone) {
                self.lose_base();
            }
            return;
        }
        let path = below(&dir.path, &seen.name);
        if path_of(&self.base, &path).is_none() {
            return self.overflow();
        }
        let is_dir = seen.flags.contains(ReadFlags::ISDIR);
        if seen.flags.contains(ReadFlags::MOVED_FROM) {
            dir.looked.remove(&seen.name);
            let hidden = temp::aim(&seen.name);
            self.half = Some(Half { cookie: seen.cookie, path, is_dir, hidden });
        } else if seen.flags.contains(ReadFlags::MOVED_TO) {
            self.moved_to(seen, path, is_dir);
        } else if temp::aim(&seen.name).is_some() {
            // A file that is not shown yet.
        } else if seen.flags.contains(ReadFlags::CREATE) {
            let known = dir.looked.remove(&seen.name);
            self.created(path, is_dir, known);
        } else if seen.flags.contains(ReadFlags::DELETE) {
            dir.looked.remove(&seen.name);
            self.removed(&path, is_dir);
        } else if seen.flags.contains(ReadFlags::MODIFY) {
            self.tell(Change::Write, &path);
        } else if seen.flags.contains(ReadFlags::ATTRIB) {
            self.tell(Change::Chmod, &path);
        }
    }

    /// Whether this says that the other half will not come. Events of other threads may come between the two halves, but
    /// none that speaks of the old name: the kernel keeps both directories locked until it has queued both halves.
    fn is_over(&self, half: &Half, seen: &Seen) -> bool {
        seen.flags.contains(ReadFlags::MOVED_FROM)
            || self.dirs.get(&seen.wd).is_some_and(|dir| below(&dir.path, &seen.name) == half.path)
    }

    fn created(&mut self, path: Vec<u8>, is_dir: bool, known: bool) {
        if !known {
            self.tell(Change::Create, &path);
        }
        if is_dir {
            self.arm_tree(path, Look::Tell);
        }
    }

    fn moved_to(&mut self, seen: &Seen, path: Vec<u8>, is_dir: bool) {
        let half = self.half.take_if(|half| half.cookie == seen.cookie);
        let known = self.dirs.get_mut(&seen.wd).is_some_and(|dir| dir.looked.remove(&seen.name));
        let hidden = temp::aim(&seen.name).is_some();
        match half {
            // Ours: a write that shows what it has written.
            Some(Half { hidden: Some(aim), .. }) if !hidden => match aim {
                temp::Aim::Replaces => self.tell(Change::Write, &path),
                temp::Aim::New => self.created(path, is_dir, known),
            },
            Some(half) if half.hidden.is_none() && hidden => {
                self.forget(&half.path, half.is_dir);
                self.removed(&half.path, half.is_dir);
            }
            Some(half) if half.hidden.is_none() => self.renamed(&half, &path),
            None if !hidden => self.created(path, is_dir, known),
            _ => {}
        }
    }

    fn removed(&mut self, path: &[u8], is_dir: bool) {
        self.tell(Change::Remove, path);
        if is_dir {
            self.doubt(path);
        }
    }

    /// What was told of it so far is forgotten.
    fn doubt(&mut self, path: &[u8]) {
        self.dirs.values_mut().filter(|dir| inside(&dir.path, path).is_some()).for_each(|dir| dir.doubtful = true);
    }

    /// The watches of a renamed directory go on, under their new paths.
    fn renamed(&mut self, half: &Half, path: &[u8]) {
        if let (Some(from), Some(to)) = (path_of(&self.base, &half.path), path_of(&self.base, path)) {
            self.told.push_back(WatchEvent::Renamed(from, to));
        }
        if !half.is_dir {
            return;
        }
        self.doubt(path);
        for watched in self.dirs.values_mut() {
            if let Some(rest) = inside(&watched.path, &half.path) {
                watched.path = [path, rest].concat();
            }
        }
        // One that could not be armed under its old name is armed now; what was found under the new one before is told again.
        self.arm_tree(path.to_vec(), Look::Tell);
        let below = self.dirs.iter().filter(|(_, dir)| dir.doubtful && inside(&dir.path, path).is_some());
        for wd in below.map(|(wd, _)| *wd).collect::<Vec<_>>() {
            // Another look may have cleared it up.
            if let Some(dir) = self.dirs.get_mut(&wd)
                && std::mem::take(&mut dir.doubtful)
            {
                let path = dir.path.clone();
                self.look_below(wd, path, Look::Tell);
            }
        }
    }

    /// The other half did not come: it went to, or comes from, where nobody watches.
    fn end_half(&mut self) {
        if let Some(half) = self.half.take_if(|half| half.hidden.is_none()) {
            self.forget(&half.path, half.is_dir);
            self.removed(&half.path, half.is_dir);
        }
        self.half = None;
    }

    /// Watches of a directory that left would go on telling from where it is now.
    fn forget(&mut self, path: &[u8], is_dir: bool) {
        if !is_dir || path.is_empty() {
            return;
        }
        let gone: Vec<i32> =
            self.dirs.iter().filter(|(_, dir)| inside(&dir.path, path).is_some()).map(|(wd, _)| *wd).collect();
        for wd in gone {
            self.dirs.remove(&wd);
            let _ = inotify::remove_watch(&self.inotify, wd);
        }
    }

    fn lose_base(&mut self) {
        for wd in std::mem::take(&mut self.dirs).into_keys() {
            let _ = inotify::remove_watch(&self.inotify, wd);
        }
        self.end_half();
        self.told.push_back(WatchEvent::Changed(Change::Remove, self.base.clone()));
    }

    /// Events were lost: the paths of all directories may have changed, and new ones may be there.
    fn start_over(&mut self) {
        self.overflow();
        self.half = None;
        if self.depth == Depth::Here || self.dirs.is_empty() {
            return;
        }
        let old = std::mem::take(&mut self.dirs);
        if let Ok(wd) = self.open(b"").and_then(|base| self.add(base.as_fd())) {
            self.dirs.insert(wd, Watched::new(Vec::new()));
            self.look_below(wd, Vec::new(), Look::Silent);
        }
        for wd in old.into_keys().filter(|wd| !self.dirs.contains_key(wd)) {
            let _ = inotify::remove_watch(&self.inotify, wd);
        }
    }

    /// Mounts were changed: the base may be another directory by now, or be gone.
    fn begin_again(&mut self) {
        self.half = None;
        match self.open(b"").and_then(|base| self.add(base.as_fd())) {
            Ok(wd) => {
                self.overflow();
                self.dirs.insert(wd, Watched::new(Vec::new()));
                if self.depth == Depth::Below {
                    self.look_below(wd, Vec::new(), Look::Silent);
                }
            }
            Err(_) => self.lose_base(),
        }
    }

    fn arm_tree(&mut self, path: Vec<u8>, look: Look) {
        if self.depth == Depth::Below
            && let Some(wd) = self.arm(&path)
        {
            self.look_below(wd, path, look);
        }
    }

    /// The watch of a directory that has to be looked at: one that is new to us, that we knew by another name, or that is in
    /// doubt.
    fn arm(&mut self, path: &[u8]) -> Option<i32> {
        let fd = match self.open(path) {
            Ok(fd) => fd,
            // The way to the base has changed: what is new below it cannot be reached.
            Err(Errno::STALE) => {
                self.overflow();
                return None;
            }
            // Gone again; or what it is in has another name by now.
            Err(Errno::NOENT) => {
                let above = path.iter().rposition(|byte| *byte == b'/').map_or(&path[..0], |slash| &path[..slash]);
                self.dirs.values_mut().filter(|dir| dir.path == above).for_each(|dir| dir.doubtful = true);
                return None;
            }
            // Closed to this identity: nothing can be seen there.
            Err(_) => return None,
        };
        if is_pseudo(&fd) {
            return None;
        }
        if self.is_full() {
            self.overflow();
            return None;
        }
        match self.add(fd.as_fd()) {
            Ok(wd) => match self.dirs.get_mut(&wd) {
                Some(watched) => {
                    let known = watched.path == path && !watched.doubtful;
                    (watched.path, watched.doubtful) = (path.to_vec(), false);
                    (!known).then_some(wd)
                }
                None => {
                    self.dirs.insert(wd, Watched::new(path.to_vec()));
                    Some(wd)
                }
            },
            Err(Errno::NOENT | Errno::ACCESS) => None,
            // The system's own limit of watches.
            Err(_) => {
                self.overflow();
                None
            }
        }
    }

    /// Whether no further directory can be watched.
    fn is_full(&mut self) -> bool {
        self.dirs.len() >= MAX_WATCHES || !self.allowance.covers(self.dirs.len() + 1)
    }

    /// Arms all directories below one that is armed. Each is armed before it is looked at, so that nothing falls between.
    fn look_below(&mut self, start: i32, path: Vec<u8>, look: Look) {
        let mut ahead = vec![(start, path)];
        let (mut told, mut bytes) = (0, 0);
        while let Some((wd, path)) = ahead.pop() {
            let Ok(found) = self.entries(&path) else { continue };
            for (name, is_dir) in found {
                let entry = below(&path, &name);
                if look == Look::Tell && temp::aim(&name).is_none() {
                    told += 1;
                    bytes += self.base.as_bytes().len() + entry.len();
                    if told > MAX_TOLD || bytes > MAX_TOLD_BYTES {
                        return self.overflow();
                    }
                    self.tell(Change::Create, &entry);
                    if let Some(dir) = self.dirs.get_mut(&wd) {
                        dir.looked.insert(name);
                    }
                }
                if is_dir && self.is_full() {
                    self.overflow(); // without a look at each of what may be very many
                } else if is_dir && let Some(wd) = self.arm(&entry) {
                    ahead.push((wd, entry));
                }
            }
        }
    }

    fn entries(&self, path: &[u8]) -> Result<Vec<(Vec<u8>, bool)>, Errno> {
        let dir = sys::reopen(&self.open(path)?, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut entries = Vec::new();
        each_entry(dir.as_fd(), |name, kind| {
            let is_dir = match kind {
                FileType::Unknown => sys::stat_at(&dir, name).is_ok_and(|s| sys::file_type(&s) == FileType::Directory),
                kind => kind == FileType::Directory,
            };
            entries.push((name.to_bytes().to_vec(), is_dir));
            Ok::<_, Errno>(entries.len() <= MAX_TOLD)
        })?;
        Ok(entries)
    }

    fn open(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let base = self.rooted.resolve(self.base.relative(), OFlags::PATH | OFlags::DIRECTORY)?;
        if sys::id(&rustix::fs::fstat(&base)?) != self.base_id {
            return Err(Errno::STALE);
        }
        if path.is_empty() {
            return Ok(base);
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        sys::openat2(base.as_fd(), path, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW, resolve)
    }

    fn add(&self, dir: BorrowedFd<'_>) -> Result<i32, Errno> {
        let flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::EXCL_UNLINK
            | WatchFlags::ONLYDIR;
        inotify::add_watch(&self.inotify, sys::proc_path(&dir), flags)
    }

    fn tell(&mut self, change: Change, path: &[u8]) {
        let Some(path) = path_of(&self.base, path) else { return self.overflow() };
        let event = WatchEvent::Changed(change, path);
        // A file that is written in small pieces is one write to whoever listens.
        if change != Change::Write || self.told.back() != Some(&event) {
            self.told.push_back(event);
        }
    }

    fn overflow(&mut self) {
        if self.told.back() != Some(&WatchEvent::Overflow) {
            self.told.push_back(WatchEvent::Overflow);
        }
    }

    /// What is to be told already must not wait for the next change: a watch that is taken away makes an event of its own,
    /// and with it the descriptor readable.
    fn wake(&self) {
        if self.told.is_empty() {
            return;
        }
        if let Ok(wd) = inotify::add_watch(&self.inotify, c"/proc/self", WatchFlags::DELETE_SELF) {
            let _ = inotify::remove_watch(&self.inotify, wd);
        }
    }
}

fn below(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

/// What of a path lies below a directory, or is it.
fn inside<'a>(path: &'a [u8], dir: &[u8]) -> Option<&'a [u8]> {
    path.strip_prefix(dir).filter(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// `None` when it is too long to be named.
fn path_of(base: &SandboxPath, path: &[u8]) -> Option<SandboxPath> {
    base.below(path).ok()
}
