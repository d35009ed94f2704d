//! What one sandbox has of it. Its processes stand still.
//!
//! For each descriptor of a directory that several layers have, overlayfs keeps a list of its names as they were when it was read.
//! Descriptors that read the same state of a directory share one list, and nothing says which do. So one list for each directory is
//! certain, and the others may be more, or the same. But those of earlier states need not stay: the kernel drops one when a descriptor
//! leaves the beginning of the directory, and whoever reads on from where it was reads the list that all share by now.

use std::{
    cmp::Ordering,
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::{BufRead, BufReader},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::Path,
    time::{Duration, Instant},
};

use rustix::{
    fs::{RawDir, SeekFrom, fstat, seek},
    io::Errno,
    net::sockopt,
};

use super::mapped::Mapped;
use crate::{
    disk::measure::{Tables, is_on_an_overlay, threads},
    kernel::{
        queue,
        sys::{self, Common},
    },
};

/// The least that the kernel has for one lock, and for a name in a list beside the name itself (`struct ovl_cache_entry` of Linux 5.19;
/// that of 6.18 is 18 bytes longer).
pub(super) const LOCK: u64 = 192;
const NAME: u64 = 74;

/// More than programs have open, and what a look may take of a processor. What is beyond that is not seen: a guest chooses how long each
/// descriptor takes.
const MAX_DESCRIPTORS: usize = 1 << 18;
const MAX_CPU: Duration = Duration::from_secs(1);

/// To count locks takes the kernel long. Who has this part of what is enough when the time is over has more, if most of the time went
/// there, and is not counted to its end.
const LARGE: u64 = 8;

/// Sockets in queues of sockets in queues. Each takes descriptors of this process while it is looked into.
const MAX_DEPTH: usize = 8;

/// Descriptors of this process that files with locks which were found in queues may take, and that what is taken out of queues may.
const MAX_KEPT: usize = 1024;
const MAX_TAKEN: usize = 1024;

/// The ends of lists are numbers of names. In memory, the end of a directory of one layer is beyond all of them.
const LONGEST_LIST: u64 = 1 << 30;

/// In bytes, but for `shared_locks` and `hidden`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// The least that is there: of locks, and of one list for each directory. More than enough where there is too much to be counted.
    pub(crate) certain: u64,
    /// Further lists of the same directories. Some of them may be the same.
    pub(crate) lists: u64,
    /// As much as locks may take that nothing but a mapping keeps, if that was looked for.
    pub(crate) possible: u64,
    /// Locks on what all sandboxes have in common. They are counted above, too.
    pub(crate) shared_locks: u64,
    /// The sockets that have descriptors where nobody can look: of connections that are not accepted, too deep in queues, or behind very
    /// many messages of no length.
    pub(crate) hidden: Vec<u64>,
    /// Whether all was seen.
    pub(crate) is_whole: bool,
}

pub(crate) struct Look<'a> {
    /// More of either kind need not be known, in bytes.
    pub(crate) enough: u64,
    pub(crate) until: Instant,
    /// Of these sockets what is hidden is taken out.
    pub(crate) takes: &'a HashSet<u64>,
    /// Lists of earlier states are dropped, and nothing is counted.
    pub(crate) drops_lists: bool,
    /// Files that are mapped are looked at, too.
    pub(crate) with_mappings: bool,
    /// What all sandboxes have in common.
    pub(crate) shared: &'a HashSet<(u64, u64)>,
}

/// Whether the kernel tells open files apart: what has several descriptors would be counted for each.
pub(crate) fn can_count() -> bool {
    let us = std::process::id();
    File::open("/dev/null").is_ok_and(|file| {
        let fd = file.as_raw_fd();
        sys::compare_files((us, fd), (us, fd)) == Some(Ordering::Equal)
    })
}

/// `pids` are the processes of the sandbox, as the host numbers them. `taken` is what was taken out: to close it may take long, since that
/// frees what it has. `None`: it is not known by then, which may be the fault of others who take the processor.
pub(crate) fn look(pids: &[u32], look: &Look<'_>, taken: &mut Vec<OwnedFd>) -> Option<Held> {
    let mut count = Count {
        look,
        taken,
        held: Held { is_whole: true, ..Held::default() },
        looked_at: 0,
        queues: HashSet::new(),
        listed: Files::default(),
        locked: Files::default(),
        kept: Vec::new(),
        largest: HashMap::new(),
        begun: sys::thread_time(),
        locks_took: Duration::ZERO,
    };
    let mut tables = Tables::of(Common::Files);
    let mut mapped = Mapped::default();
    // Each thread may have a table of its own, and one whose leader has ended is seen nowhere else.
    'all: for thread in pids.iter().flat_map(|pid| threads(*pid)) {
        if count.is_over() {
            break;
        }
        if look.with_mappings {
            count.held.is_whole &= mapped.add(thread);
        }
        if !tables.insert(thread) {
            continue;
        }
        let owner = format!("/proc/{thread}");
        let mut table = Files::default();
        for entry in fs::read_dir(format!("{owner}/fd")).into_iter().flatten().flatten() {
            let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // Copies in one table have the same locks, and what is told of some takes the kernel long.
            if table.insert(thread, number) {
                count.add(&Place { owner: &owner, thread, number }, None, 0);
            }
            if count.is_over() {
                break 'all;
            }
        }
    }
    count.held.possible = mapped.may_hide(|| count.is_over());
    (!count.is_late()).then_some(count.held)
}

/// A descriptor as `owner` has it in `/proc`: that of a thread that stands still, or one of ours.
struct Place<'a> {
    owner: &'a str,
    thread: u32,
    number: i32,
}

/// Open files by a descriptor of each, in the kernel's order.
#[derive(Default)]
struct Files(Vec<(u32, i32)>);

impl Files {
    /// Whether the file is new.
    fn insert(&mut self, thread: u32, number: i32) -> bool {
        let order = |known: &(u32, i32)| sys::compare_files(*known, (thread, number)).unwrap_or(Ordering::Less);
        match self.0.binary_search_by(order) {
            Ok(_) => false,
            Err(place) => {
                self.0.insert(place, (thread, number));
                true
            }
        }
    }
}

struct Count<'a> {
    look: &'a Look<'a>,
    taken: &'a mut Vec<OwnedFd>,
    held: Held,
    looked_at: usize,
    /// Of sockets that were looked into: they may be in their own queues.
    queues: HashSet<u64>,
    /// Directories in tables.
    listed: Files,
    /// Files with locks of their own: these belong to an open file, however many descriptors that has, in tables and in queues.
    locked: Files,
    /// Those of them that are ours: as long as they are compared.
    kept: Vec<OwnedFd>,
    /// The largest list of each directory.
    largest: HashMap<(u64, u64), u64>,
    /// Of this thread's processor time.
    begun: Duration,
    /// As much of it as locks took.
    locks_took: Duration,
}

impl Count<'_> {
    fn is_over(&mut self) -> bool {
        let is_long = sys::thread_time().saturating_sub(self.begun) > MAX_CPU;
        if is_long && self.locks_took > MAX_CPU / 2 && self.held.certain > self.look.enough / LARGE {
            self.held.certain = self.held.certain.max(self.look.enough + 1);
        }
        let is_over = is_long
            || self.looked_at > MAX_DESCRIPTORS
            || self.kept.len() >= MAX_KEPT
            || self.held.certain.max(self.held.lists) > self.look.enough
            || self.is_late();
        self.held.is_whole &= !is_over;
        is_over
    }

    fn is_late(&self) -> bool {
        Instant::now() > self.look.until
    }

    /// `ours`: what was found in a queue, `depth` deep. Whether that has to be kept.
    fn add(&mut self, place: &Place<'_>, ours: Option<&OwnedFd>, depth: usize) -> bool {
        self.looked_at += 1;
        let path = format!("{}/fd/{}", place.owner, place.number);
        let Ok(file) = fs::metadata(&path) else { return false };
        let before = sys::thread_time();
        let info = File::open(format!("{}/fdinfo/{}", place.owner, place.number));
        let info = info.map(|info| FdInfo::read(BufReader::new(info), self.look.enough / LOCK)).unwrap_or_default();
        if info.process_locks + info.file_locks > 0 {
            self.locks_took += sys::thread_time().saturating_sub(before);
        }
        let is_shared = self.look.shared.contains(&(file.dev(), file.ino()));
        let is_kept = !self.look.drops_lists && self.add_locks(place, ours, &info, is_shared);
        let may_have_list = file.is_dir() && is_on_an_overlay(Path::new(&path));
        if may_have_list && ours.is_none() && !self.listed.insert(place.thread, place.number) {
            return is_kept;
        }
        if may_have_list || info.queued > 0 {
            // Kernels before 6.9 know the table of the whole process alone.
            let is_same =
                |fd: &OwnedFd| fstat(fd).is_ok_and(|found| (found.st_dev, found.st_ino) == (file.dev(), file.ino()));
            let copy = match ours {
                Some(_) => None,
                None => sys::duplicate_of(place.thread, place.number).ok().filter(is_same),
            };
            match ours.or(copy.as_ref()) {
                Some(dir) if may_have_list => self.add_list(dir, (file.dev(), file.ino())),
                Some(socket) => self.add_queue(socket, file.ino(), info.queued, depth),
                None => self.held.is_whole = false,
            }
        }
        is_kept
    }

    /// Whether what is ours is compared with others from here on.
    fn add_locks(&mut self, place: &Place<'_>, ours: Option<&OwnedFd>, info: &FdInfo, is_shared: bool) -> bool {
        let mut locks = info.process_locks;
        let is_full = ours.is_some() && self.kept.len() >= MAX_KEPT;
        let is_new = info.file_locks > 0 && !is_full && self.locked.insert(place.thread, place.number);
        if is_new {
            locks += info.file_locks;
        }
        self.held.certain = self.held.certain.saturating_add(locks.saturating_mul(LOCK));
        self.held.shared_locks += if is_shared { locks } else { 0 };
        self.held.is_whole &= info.file_locks == 0 || !is_full;
        is_new && ours.is_some()
    }

    fn add_list(&mut self, dir: &OwnedFd, id: (u64, u64)) {
        if self.look.drops_lists {
            let _ = drop_earlier_list(dir);
            return;
        }
        // What else is certain is not hidden behind further lists.
        if self.held.lists > self.look.enough && self.largest.contains_key(&id) {
            return;
        }
        let is_enough = |bytes| {
            bytes > self.look.enough || self.is_late() || sys::thread_time().saturating_sub(self.begun) > MAX_CPU
        };
        match list_of(dir, is_enough) {
            Ok(bytes) => {
                let largest = self.largest.entry(id).or_default();
                self.held.certain = self.held.certain.saturating_add(bytes.saturating_sub(*largest));
                self.held.lists = self.held.lists.saturating_add(bytes.min(*largest));
                *largest = bytes.max(*largest);
            }
            Err(Errno::BADF) => {} // a path alone has none
            // It was removed, and nobody can read it any more. At most one list stays, which is shared: that of its last state.
            Err(Errno::NOENT) => drop(drop_earlier_list(dir)),
            Err(_) => self.held.is_whole = false,
        }
    }

    fn add_queue(&mut self, socket: &OwnedFd, inode: u64, queued: u64, depth: usize) {
        if !self.queues.insert(inode) {
            return;
        }
        if depth >= MAX_DEPTH || sockopt::socket_acceptconn(socket).unwrap_or(false) {
            return self.hide(socket, inode);
        }
        let mut found = 0;
        let looked = queue::descriptors_in(socket.as_fd(), |descriptor| {
            found += 1;
            let (thread, number) = (std::process::id(), descriptor.as_raw_fd());
            let place = Place { owner: "/proc/thread-self", thread, number };
            if self.add(&place, Some(&descriptor), depth + 1) {
                self.kept.push(descriptor);
            }
            !self.is_over()
        });
        let is_all = looked.is_ok() && found >= queued;
        self.held.is_whole &= is_all;
        if !is_all && !self.is_over() {
            self.hide(socket, inode); // it was not for want of time
        }
    }

    fn hide(&mut self, socket: &OwnedFd, inode: u64) {
        if self.look.takes.contains(&inode) {
            let room = MAX_TAKEN.saturating_sub(self.taken.len());
            self.taken.extend(queue::take(socket.as_fd(), room));
        }
        self.held.hidden.push(inode);
        self.held.is_whole = false;
    }
}

/// What the kernel says of a descriptor.
#[derive(Debug, Default, PartialEq, Eq)]
struct FdInfo {
    /// Locks that the process has with it, and that the open file has, whoever else has that.
    process_locks: u64,
    file_locks: u64,
    /// Descriptors in the queue of a socket.
    queued: u64,
}

impl FdInfo {
    /// No more than so many locks. They come first.
    fn read(mut info: impl BufRead, most: u64) -> Self {
        let (mut told, mut line) = (Self::default(), Vec::new());
        while info.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            if let Some(lock) = line.strip_prefix(b"lock:") {
                match lock.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).nth(1) {
                    Some(b"POSIX") => told.process_locks += 1,
                    _ => told.file_locks += 1,
                }
            } else if let Some(number) = line.strip_prefix(b"scm_fds:") {
                told.queued = str::from_utf8(number).ok().and_then(|number| number.trim().parse().ok()).unwrap_or(0);
                break;
            } else if line.starts_with(b"tfd:") || line.starts_with(b"inotify ") {
                break; // as many as the guest likes
            }
            line.clear();
            if told.process_locks + told.file_locks > most {
                break;
            }
        }
        told
    }
}

/// What the list takes that this descriptor has. It is read where it is, and the descriptor stays where it was. At the beginning of a
/// directory the kernel makes the list of what is there now, if there is none.
///
/// Of a directory of one layer there is none. It has an end to go to, as its file system has it, but for one in memory; a list has not.
///
/// `is_enough` says of what was found so far whether the rest need not be known.
fn list_of(dir: &OwnedFd, is_enough: impl Fn(u64) -> bool) -> Result<u64, Errno> {
    let before = seek(dir, SeekFrom::Current(0))?;
    let length = match seek(dir, SeekFrom::End(0)) {
        Ok(_) => Ok(0),
        Err(_) => seek(dir, SeekFrom::Start(1)).and_then(|_| length_of(dir, is_enough)),
    };
    seek(dir, SeekFrom::Start(before))?;
    length
}

fn length_of(dir: &OwnedFd, is_enough: impl Fn(u64) -> bool) -> Result<u64, Errno> {
    let mut buffer = Vec::with_capacity(64 << 10);
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    let (mut told, mut bytes) = (0, 0);
    while let Some(entry) = entries.next() {
        bytes += allocated(NAME + entry?.file_name().to_bytes_with_nul().len() as u64);
        told += 1;
        if entries.is_buffer_empty() {
            if seek(dir, SeekFrom::Current(0))? > LONGEST_LIST {
                return Ok(0);
            }
            if is_enough(bytes) {
                return Ok(bytes);
            }
        }
    }
    let end = seek(dir, SeekFrom::Current(0))?;
    let hidden = end.saturating_sub(told); // names that were removed from the layer below
    Ok(if end > LONGEST_LIST { 0 } else { bytes + hidden * allocated(NAME + 1) })
}

/// What the kernel takes for so many bytes, at least.
fn allocated(bytes: u64) -> u64 {
    const SIZES: [u64; 5] = [64, 96, 128, 192, 256];
    SIZES.into_iter().find(|size| *size >= bytes).unwrap_or_else(|| bytes.next_power_of_two())
}

/// Leaves the list of the present state, and the descriptor where it was. With 20,000 names it took 0.3 ms, and freed 2.4 MiB.
fn drop_earlier_list(dir: &OwnedFd) -> Result<(), Errno> {
    let before = seek(dir, SeekFrom::Current(0))?;
    seek(dir, SeekFrom::Start(0))?;
    seek(dir, SeekFrom::Start(1))?; // from there the kernel asks whether it is what is there now
    seek(dir, SeekFrom::Start(before)).map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;
    use crate::kernel::fdpass;

    #[test]
    fn locks_and_queues_are_told_by_descriptor() {
        let file = "pos:\t0\nflags:\t02\nmnt_id:\t65\nino:\t7\nlock:\t1: POSIX  ADVISORY  WRITE 9 fe:00:7 0 0\nlock:\t2: OFDLCK ADVISORY  READ -1 fe:00:7 5 5\nlock:\t3: FLOCK  ADVISORY  WRITE 9 fe:00:7 0 EOF\n";
        let read = |info: &str, most| FdInfo::read(info.as_bytes(), most);
        let locks = FdInfo { process_locks: 1, file_locks: 2, queued: 0 };
        assert_eq!(read(file, 1000), locks);
        assert_eq!(read("pos:\t0\nscm_fds: 12\n", 1000), FdInfo { queued: 12, ..FdInfo::default() });
        assert_eq!(read("", 1000), FdInfo::default());
        let some = read(&file.repeat(10), 4);
        assert_eq!(some.process_locks + some.file_locks, 5, "no more than is needed");
        let polled = format!("{file}tfd: 5 events: 19 data: 5\n{file}");
        assert_eq!(read(&polled, 1000), locks, "what is polled is not read");
    }

    #[test]
    fn a_name_takes_what_the_kernel_gives_for_it() {
        assert_eq!([76, 96, 97, 161, 200, 275].map(allocated), [96, 96, 128, 192, 256, 512]);
    }

    #[test]
    fn a_directory_of_one_layer_has_no_list() {
        let dir = tempfile::tempdir().unwrap();
        for name in 0..100 {
            fs::write(dir.path().join(name.to_string()), "").unwrap();
        }
        let opened = OwnedFd::from(File::open(dir.path()).unwrap());
        let before = seek(&opened, SeekFrom::Current(0)).unwrap();
        let bytes = list_of(&opened, |_| false).unwrap();
        // In memory the kernel numbers names, too, and before Linux 6.6 the end is one of them.
        let is_in_memory = rustix::fs::fstatfs(&opened).unwrap().f_type as u64 == 0x0102_1994;
        assert!(bytes == 0 || is_in_memory, "{bytes}");
        assert_eq!(seek(&opened, SeekFrom::Current(0)).unwrap(), before);
    }

    #[test]
    fn a_descriptor_stays_where_it_was_when_its_list_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        (0..2000).for_each(|name| fs::write(dir.path().join(format!("a-name-{name}")), "").unwrap());
        let opened = OwnedFd::from(File::open(dir.path()).unwrap());
        let mut buffer = Vec::with_capacity(1 << 10);
        assert!(RawDir::new(&opened, buffer.spare_capacity_mut()).next().is_some());
        let before = seek(&opened, SeekFrom::Current(0)).unwrap();
        drop_earlier_list(&opened).unwrap();
        assert_eq!(seek(&opened, SeekFrom::Current(0)).unwrap(), before);
        assert!(before > 0);
    }

    #[test]
    fn a_file_is_known_by_all_its_descriptors() {
        let us = std::process::id();
        let file = File::open("/dev/null").unwrap();
        let (copy, other) = (file.try_clone().unwrap(), File::open("/dev/null").unwrap());
        let mut files = Files::default();
        if !can_count() {
            return; // a kernel that does not say
        }
        assert!(files.insert(us, file.as_raw_fd()));
        assert!(!files.insert(us, copy.as_raw_fd()), "forks and copies have one list together");
        assert!(files.insert(us, other.as_raw_fd()));
    }

    /// What this process has.
    fn own() -> Held {
        let nothing = HashSet::new();
        let until = Instant::now() + Duration::from_secs(60);
        let (takes, shared) = (&nothing, &HashSet::new());
        let all = Look { enough: 1 << 30, until, takes, drops_lists: false, with_mappings: true, shared };
        look(&[std::process::id()], &all, &mut Vec::new()).unwrap()
    }

    #[test]
    fn locks_of_a_file_count_once_for_all_its_descriptors() {
        const FILES: usize = 50;
        if !can_count() {
            return; // a kernel that does not say
        }
        let dir = tempfile::tempdir().unwrap();
        let before = own().certain;
        let locked = |number: usize| {
            let file = File::create(dir.path().join(number.to_string())).unwrap();
            rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
            file
        };
        let files: Vec<_> = (0..FILES).map(locked).collect();
        let copies: Vec<_> = files.iter().map(|file| file.try_clone().unwrap()).collect();
        let (ours, theirs) = fdpass::pair().unwrap();
        let all: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        fdpass::send(ours.as_fd(), b"locked", &all).unwrap();
        let locks = FILES as u64 * LOCK;
        assert_eq!(own().certain - before, locks);
        drop((files, copies));
        assert_eq!(own().certain - before, locks, "those in a queue");
        drop(theirs);
        assert_eq!(own().certain, before);
    }

    #[test]
    fn what_is_hidden_in_connections_is_known_by_its_socket_and_taken_when_that_is_due() {
        let dir = tempfile::tempdir().unwrap();
        let listening = UnixListener::bind(dir.path().join("socket")).unwrap();
        let _waits = UnixStream::connect(dir.path().join("socket")).unwrap();
        assert_eq!(own().hidden, Vec::<u64>::new(), "there is no descriptor in it");
        let hides = UnixStream::connect(dir.path().join("socket")).unwrap();
        fdpass::send(hides.as_fd(), b"hidden", &[listening.as_fd()]).unwrap();
        let inode = fstat(&listening).unwrap().st_ino;
        let held = own();
        if held.hidden.is_empty() {
            return; // a kernel before 6.3
        }
        assert_eq!((held.hidden, held.is_whole), (vec![inode], false));
        let due = HashSet::from([inode]);
        let until = Instant::now() + Duration::from_secs(60);
        let shared = HashSet::new();
        let takes =
            Look { enough: 1 << 30, until, takes: &due, drops_lists: false, with_mappings: false, shared: &shared };
        let mut taken = Vec::new();
        look(&[std::process::id()], &takes, &mut taken).unwrap();
        assert_eq!(taken.len(), 2, "all that wait there");
        drop(taken);
        assert!(own().hidden.is_empty());
    }

    #[test]
    fn what_is_not_known_in_time_is_nothing_against_anybody() {
        let nothing = HashSet::new();
        let (until, takes, shared) = (Instant::now(), &nothing, HashSet::new());
        let late = Look { enough: 1 << 30, until, takes, drops_lists: false, with_mappings: false, shared: &shared };
        assert_eq!(look(&[std::process::id()], &late, &mut Vec::new()), None);
    }
}
