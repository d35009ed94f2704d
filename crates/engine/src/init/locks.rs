//! Locks that belong to an open file, whoever has that (`F_OFD_SETLK`).
//!
//! A file may have any number of them, no limit counts them, and they last as long as the open file: in a queue, a mapping, or a poll that
//! is under way, where nobody finds them, also when no process has it any more. So a broker takes them, which takes its time; and it takes
//! them on files alone: nothing else can be locked so for a purpose, and most else can be hidden better.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, fstat, fstatfs};

use super::{broker::errno, caller::Caller};
use crate::kernel::{
    notify::Listener,
    sys::{self, Errno, Result, Secret},
};

/// File systems of the kernel's own, of which the machine has some once: what looks like a file there is none. Processes, namespaces, open
/// processes, queues of messages, devices, groups, and what has no name.
const NO_FILES: [u64; 9] =
    [0x9fa0, 0x6e73_6673, 0x5049_4446, 0x1980_0202, 0x6265_6572, 0x6367_7270, 0x0027_e0eb, 0x0904_1934, 0x534f_434b];

/// What a caller may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LockCall {
    file: i32,
    lock: u64,
    waits: bool,
}

/// The same, with what lay in the caller's memory and among its descriptors.
pub(super) struct LockRequest {
    file: OwnedFd,
    lock: libc::flock64,
    waits: bool,
}

impl LockCall {
    pub(super) fn of(args: &[u64; 6]) -> Self {
        let [file, command, lock, ..] = *args;
        Self { file: file as i32, lock, waits: command as i32 == libc::F_OFD_SETLKW }
    }

    pub(super) fn read(self, caller: &Caller) -> Result<LockRequest> {
        let file = caller.duplicate(self.file)?;
        if !is_file(&file)? {
            return Err(Errno(libc::ENOLCK));
        }
        let lock = caller.memory().bytes(self.lock, size_of::<libc::flock64>())?;
        Ok(LockRequest { file, lock: sys::lock_from(&lock).ok_or(Errno(libc::EFAULT))?, waits: self.waits })
    }
}

impl LockRequest {
    /// For the open file that the caller has, too: so the lock is its.
    pub(super) fn make(self, secret: Secret, listener: &Listener, id: u64) -> Result<()> {
        match sys::lock_file(secret, self.file.as_fd(), &self.lock) {
            // The kernel waits for it. What the descriptor is then, and the lock, another thread may have changed: it gets one lock for each time
            // that it waits for another.
            Err(Errno(libc::EAGAIN)) if self.waits => listener.let_it_be_made(id),
            made => {
                made?;
                listener.answer(id, Ok(()));
            }
        }
        Ok(())
    }
}

fn is_file(file: &OwnedFd) -> Result<bool> {
    let (stat, fs) = (fstat(file).map_err(errno)?, fstatfs(file).map_err(errno)?);
    Ok(FileType::from_raw_mode(stat.st_mode).is_file() && !NO_FILES.contains(&(fs.f_type as u64)))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn what_looks_like_a_file_is_none_everywhere() {
        let is = |file: OwnedFd| is_file(&file).unwrap();
        assert!(is(tempfile::tempfile().unwrap().into()));
        assert!(is(rustix::fs::memfd_create(c"memory", rustix::fs::MemfdFlags::CLOEXEC).unwrap()));
        for path in ["/proc/self/mounts", "/proc/self/ns/time", "/dev/null", "/tmp"] {
            assert!(!is(File::open(path).unwrap().into()), "{path}");
        }
        assert!(!is(eventfd(0, EventfdFlags::CLOEXEC).unwrap()));
        assert!(!is(rustix::pipe::pipe().unwrap().0));
        let us = rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty());
        assert!(!is(us.unwrap()));
    }

    #[test]
    fn registers_are_read_as_the_kernel_reads_them() {
        let high = 0xdead_beef << 32;
        let call = |command: i32| LockCall::of(&[high | 5, high | command as u64, 7, 1, 2, 3]);
        assert_eq!(call(libc::F_OFD_SETLK), LockCall { file: 5, lock: 7, waits: false });
        assert_eq!(call(libc::F_OFD_SETLKW), LockCall { file: 5, lock: 7, waits: true });
    }
}
