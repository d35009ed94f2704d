//! What one sandbox has of it. Its processes stand still.

use std::{
    collections::HashSet,
    fs,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::Path,
    time::Instant,
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

/// More than any program has open, and as many as can be looked at in a second or two. Who has more has too much.
const MOST_DESCRIPTORS: usize = 1 << 18;

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

/// Not beyond what is `enough`, and what lasts longer is not seen. `pids` are the processes of the sandbox, as the host numbers them.
pub(crate) fn count(pids: &[u32], enough: u64, until: Instant) -> Held {
    let mut count = Count { held: Held::default(), looked_at: 0, queues: HashSet::new(), enough, until };
    let mut tables = Tables::of(Common::Files);
    // Each thread may have a table of its own, and one whose leader has ended is seen nowhere else.
    for thread in pids.iter().flat_map(|pid| threads(*pid)) {
        if !tables.insert(thread) {
            continue;
        }
        let owner = format!("/proc/{thread}");
        for entry in fs::read_dir(format!("{owner}/fd")).into_iter().flatten().flatten() {
            let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            count.add(&owner, number, 0, || sys::duplicate_of(thread, number).ok());
            if count.is_over() {
                return count.held;
            }
        }
    }
    count.held
}

struct Count {
    held: Held,
    looked_at: usize,
    /// Of sockets that were looked into: they may be in their own queues.
    queues: HashSet<u64>,
    enough: u64,
    until: Instant,
}

impl Count {
    fn is_over(&mut self) -> bool {
        if self.looked_at > MOST_DESCRIPTORS {
            self.held.bytes = self.held.bytes.max(self.enough + 1);
        }
        let is_late = Instant::now() > self.until;
        self.held.unseen |= is_late;
        is_late || self.held.bytes > self.enough
    }

    /// A descriptor as `owner` has it in `/proc`, in a queue `depth` deep.
    fn add(&mut self, owner: &str, number: i32, depth: usize, open: impl FnOnce() -> Option<OwnedFd>) {
        self.looked_at += 1;
        let path = format!("{owner}/fd/{number}");
        let Ok(file) = fs::metadata(&path) else { return };
        let info = fs::read_to_string(format!("{owner}/fdinfo/{number}")).unwrap_or_default();
        let (locks, queued) = said(&info);
        self.held.bytes += locks * LOCK;
        let may_have_list = file.is_dir() && is_on_an_overlay(Path::new(&path));
        if !may_have_list && queued == 0 {
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
        match list_of(&opened) {
            Ok(bytes) => self.held.bytes += bytes,
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
                let number = descriptor.as_raw_fd();
                self.add("/proc/thread-self", number, depth + 1, || Some(descriptor));
                !self.is_over()
            });
        }
        self.held.unseen |= found < queued;
    }
}

/// Locks, and descriptors in the queue of a socket, of what the kernel says of a descriptor.
fn said(info: &str) -> (u64, u64) {
    let locks = info.lines().filter(|line| line.starts_with("lock:")).count() as u64;
    let queued = info.lines().find_map(|line| line.strip_prefix("scm_fds:"));
    (locks, queued.and_then(|number| number.trim().parse().ok()).unwrap_or(0))
}

/// What the list takes that this descriptor has. It is read where it is, and the descriptor stays where it was: at its beginning the
/// kernel would make a new list of what is there now.
fn list_of(dir: &OwnedFd) -> Result<u64, Errno> {
    let before = seek(dir, SeekFrom::Current(0))?;
    seek(dir, SeekFrom::Start(1))?;
    let length = length_of(dir);
    seek(dir, SeekFrom::Start(before))?;
    length
}

fn length_of(dir: &OwnedFd) -> Result<u64, Errno> {
    let mut buffer = Vec::with_capacity(64 << 10);
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    let (mut told, mut bytes) = (0, 0);
    while let Some(entry) = entries.next() {
        bytes += allocated(NAME + entry?.file_name().to_bytes_with_nul().len() as u64);
        told += 1;
        if entries.is_buffer_empty() && seek(dir, SeekFrom::Current(0))? > LONGEST_LIST {
            return Ok(0);
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
        assert_eq!(said(file), (2, 0));
        assert_eq!(said("pos:\t0\nscm_fds: 12\n"), (0, 12));
        assert_eq!(said(""), (0, 0));
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
        let opened = OwnedFd::from(fs::File::open(dir.path()).unwrap());
        let before = seek(&opened, SeekFrom::Current(0)).unwrap();
        let is_sparse = list_of(&opened).unwrap();
        // In memory the kernel numbers names, too.
        let in_memory = rustix::fs::fstatfs(&opened).unwrap().f_type as u64 == 0x0102_1994;
        assert!(is_sparse == 0 || in_memory, "{is_sparse}");
        assert_eq!(seek(&opened, SeekFrom::Current(0)).unwrap(), before);
    }
}
