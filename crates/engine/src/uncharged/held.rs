//! What one sandbox has of it. Its processes stand still.

use std::{
    cmp::Ordering,
    collections::HashSet,
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
};

use crate::{
    disk::measure::{Tables, is_on_an_overlay, threads},
    kernel::{
        queue,
        sys::{self, Common},
    },
};

/// What the kernel has for one lock, and for a name in a list beside the name itself.
const LOCK: u64 = 256;
const NAME: u64 = 96;

/// More than programs have open, and what a look may take of a processor. What is beyond that is not seen: a guest chooses how long each
/// descriptor takes.
const MOST_DESCRIPTORS: usize = 1 << 18;
const LONGEST: Duration = Duration::from_secs(1);

/// Sockets in queues of sockets in queues. Each takes descriptors of this process while it is looked into.
const DEEPEST: usize = 8;

/// The ends of lists are numbers of names. Those of directories of one layer are beyond all of them, and the kernel keeps no list.
const LONGEST_LIST: u64 = 1 << 30;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) bytes: u64,
    /// Something is where nobody can look.
    pub(crate) unseen: bool,
}

impl Held {
    pub(crate) const UNSEEN: Self = Self { bytes: 0, unseen: true };
}

/// Not beyond what is `enough`. `pids` are the processes of the sandbox, as the host numbers them. `None`: it is not known by then, which
/// may be the fault of others who take the processor.
pub(crate) fn count(pids: &[u32], enough: u64, until: Instant) -> Option<Held> {
    let mut count = Count {
        held: Held::default(),
        looked_at: 0,
        queues: HashSet::new(),
        listed: Files::default(),
        enough,
        until,
        begun: sys::thread_time(),
    };
    let mut tables = Tables::of(Common::Files);
    // Each thread may have a table of its own, and one whose leader has ended is seen nowhere else.
    'all: for thread in pids.iter().flat_map(|pid| threads(*pid)) {
        if count.is_over() {
            break;
        }
        if !tables.insert(thread) {
            continue;
        }
        let owner = format!("/proc/{thread}");
        let mut told = Files::default();
        for entry in fs::read_dir(format!("{owner}/fd")).into_iter().flatten().flatten() {
            let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let place = Place { owner: &owner, thread: Some(thread), number };
            count.add(&place, Some(&mut told), 0, || sys::duplicate_of(thread, number).ok());
            if count.is_over() {
                break 'all;
            }
        }
    }
    (!count.is_late()).then_some(count.held)
}

/// A descriptor as `owner` has it in `/proc`: that of a thread that stands still, or one of ours.
struct Place<'a> {
    owner: &'a str,
    thread: Option<u32>,
    number: i32,
}

/// Open files by a descriptor of each, in the kernel's order.
#[derive(Default)]
struct Files(Vec<(u32, i32)>);

impl Files {
    /// Whether the file is new. It is where the kernel does not say.
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

struct Count {
    held: Held,
    looked_at: usize,
    /// Of sockets that were looked into: they may be in their own queues.
    queues: HashSet<u64>,
    /// A list belongs to an open file, however many processes have that.
    listed: Files,
    enough: u64,
    until: Instant,
    /// Of this thread's processor time.
    begun: Duration,
}

impl Count {
    fn is_over(&mut self) -> bool {
        let is_long = self.looked_at > MOST_DESCRIPTORS || sys::thread_time().saturating_sub(self.begun) > LONGEST;
        self.held.unseen |= is_long;
        is_long || self.is_late() || self.held.bytes > self.enough
    }

    fn is_late(&self) -> bool {
        Instant::now() > self.until
    }

    /// `told`: the open files of this table of descriptors, in a queue `depth` deep.
    fn add(
        &mut self,
        place: &Place<'_>,
        told: Option<&mut Files>,
        depth: usize,
        open: impl FnOnce() -> Option<OwnedFd>,
    ) {
        self.looked_at += 1;
        let path = format!("{}/fd/{}", place.owner, place.number);
        let Ok(file) = fs::metadata(&path) else { return };
        // Copies in one table have the same locks, and what is told of some takes the kernel long.
        let is_new = match (told, place.thread) {
            (Some(told), Some(thread)) => told.insert(thread, place.number),
            _ => true,
        };
        if !is_new {
            return;
        }
        let info = File::open(format!("{}/fdinfo/{}", place.owner, place.number));
        let (locks, queued) = info.map(|info| said(BufReader::new(info), self.enough / LOCK)).unwrap_or_default();
        self.held.bytes = self.held.bytes.saturating_add(locks.saturating_mul(LOCK));
        let may_have_list = file.is_dir() && is_on_an_overlay(Path::new(&path));
        if !may_have_list && queued == 0 {
            return;
        }
        if may_have_list && place.thread.is_some_and(|thread| !self.listed.insert(thread, place.number)) {
            return;
        }
        // Kernels before 6.9 know the table of the whole process alone.
        let is_same =
            |fd: &OwnedFd| fstat(fd).is_ok_and(|found| (found.st_dev, found.st_ino) == (file.dev(), file.ino()));
        let Some(opened) = open().filter(is_same) else {
            self.held.unseen = true;
            return;
        };
        if !may_have_list {
            return self.add_queue(&opened, file.ino(), queued, depth);
        }
        match list_of(&opened, |bytes| {
            bytes > self.enough || self.is_late() || sys::thread_time().saturating_sub(self.begun) > LONGEST
        }) {
            Ok(bytes) => self.held.bytes = self.held.bytes.saturating_add(bytes),
            Err(Errno::BADF) => {}             // a path alone has none
            Err(_) => self.held.unseen = true, // of a directory that was removed nobody can read it
        }
    }

    /// What waits in connections that nobody has accepted cannot be looked at.
    fn add_queue(&mut self, socket: &OwnedFd, inode: u64, queued: u64, depth: usize) {
        if !self.queues.insert(inode) {
            return;
        }
        let mut found = 0;
        if depth < DEEPEST {
            let _ = queue::descriptors_in(socket.as_fd(), |descriptor| {
                found += 1;
                let place = Place { owner: "/proc/thread-self", thread: None, number: descriptor.as_raw_fd() };
                self.add(&place, None, depth + 1, || Some(descriptor));
                !self.is_over()
            });
        }
        self.held.unseen |= found < queued;
    }
}

/// Locks, no more than so many, and descriptors in the queue of a socket, of what the kernel says of a descriptor. Locks come first.
fn said(info: impl BufRead, most: u64) -> (u64, u64) {
    let mut locks = 0;
    for line in info.lines().map_while(Result::ok) {
        if line.starts_with("lock:") {
            locks += 1;
        } else if let Some(number) = line.strip_prefix("scm_fds:") {
            return (locks, number.trim().parse().unwrap_or(0));
        } else if line.starts_with("tfd:") || line.starts_with("inotify ") {
            break; // as many as the guest likes
        }
        if locks > most {
            break;
        }
    }
    (locks, 0)
}

/// What the list takes that this descriptor has. It is read where it is, and the descriptor stays where it was: at its beginning the
/// kernel would make a new list of what is there now.
///
/// `is_enough` says of what was found so far whether the rest need not be known.
fn list_of(dir: &OwnedFd, is_enough: impl Fn(u64) -> bool) -> Result<u64, Errno> {
    let before = seek(dir, SeekFrom::Current(0))?;
    seek(dir, SeekFrom::Start(1))?;
    let length = length_of(dir, is_enough);
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

/// What the kernel takes for so many bytes.
fn allocated(bytes: u64) -> u64 {
    if bytes <= 192 { bytes.next_multiple_of(64) } else { bytes.next_power_of_two() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_and_queues_are_told_by_descriptor() {
        let file = "pos:\t0\nflags:\t02\nmnt_id:\t65\nino:\t7\nlock:\t1: POSIX  ADVISORY  WRITE 9 fe:00:7 0 0\nlock:\t2: OFDLCK ADVISORY  READ -1 fe:00:7 5 5\n";
        let said = |info: &str| said(info.as_bytes(), 1000);
        assert_eq!(said(file), (2, 0));
        assert_eq!(said("pos:\t0\nscm_fds: 12\n"), (0, 12));
        assert_eq!(said(""), (0, 0));
        assert_eq!(super::said(file.repeat(10).as_bytes(), 4), (5, 0), "no more than is needed");
        let polled = format!("{file}tfd: 5 events: 19 data: 5\n{file}");
        assert_eq!(said(&polled), (2, 0), "what is polled is not read");
    }

    #[test]
    fn a_name_takes_what_the_kernel_gives_for_it() {
        assert_eq!([104, 128, 161, 200, 352].map(allocated), [128, 128, 192, 256, 512]);
    }

    #[test]
    fn a_directory_of_one_layer_has_no_list() {
        let dir = tempfile::tempdir().unwrap();
        for name in 0..100 {
            fs::write(dir.path().join(name.to_string()), "").unwrap();
        }
        let opened = OwnedFd::from(File::open(dir.path()).unwrap());
        let before = seek(&opened, SeekFrom::Current(0)).unwrap();
        let is_sparse = list_of(&opened, |_| false).unwrap();
        // In memory the kernel numbers names, too.
        let in_memory = rustix::fs::fstatfs(&opened).unwrap().f_type as u64 == 0x0102_1994;
        assert!(is_sparse == 0 || in_memory, "{is_sparse}");
        assert_eq!(seek(&opened, SeekFrom::Current(0)).unwrap(), before);
    }

    #[test]
    fn a_file_is_known_by_all_its_descriptors() {
        let us = std::process::id();
        let file = File::open("/dev/null").unwrap();
        let (copy, other) = (file.try_clone().unwrap(), File::open("/dev/null").unwrap());
        let mut files = Files::default();
        if sys::compare_files((us, file.as_raw_fd()), (us, copy.as_raw_fd())).is_none() {
            return; // a kernel that does not say
        }
        assert!(files.insert(us, file.as_raw_fd()));
        assert!(!files.insert(us, copy.as_raw_fd()), "forks and copies have one list together");
        assert!(files.insert(us, other.as_raw_fd()));
    }

    #[test]
    fn what_is_not_known_in_time_is_nothing_against_anybody() {
        let until = Instant::now();
        assert_eq!(count(&[std::process::id()], 1 << 30, until), None);
    }
}
