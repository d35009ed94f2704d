//! Locks on files that others have.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

use rustix::fs::{FlockOperation, flock};

/// The end of the longest.
pub(crate) const LAST: i64 = i64::MAX;

/// A lock on a part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) first: i64,
    pub(crate) last: i64,
    /// Others can have the same part, too.
    pub(crate) is_shared: bool,
    /// It is an open file's, whoever has that, and no process's.
    pub(crate) is_of_file: bool,
}

/// One of those that are in the way of a lock of ours on this part of the file.
pub(crate) fn in_the_way(file: impl AsFd, first: i64, last: i64) -> io::Result<Option<Found>> {
    let length = if last == LAST { 0 } else { last - first + 1 };
    let mut lock = libc::flock64 {
        l_type: libc::F_WRLCK as _,
        l_whence: libc::SEEK_SET as _,
        l_start: first,
        l_len: length,
        l_pid: 0,
    };
    // SAFETY: reads and writes a local.
    if unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if i32::from(lock.l_type) == libc::F_UNLCK {
        return Ok(None);
    }
    let last = if lock.l_len == 0 { LAST } else { lock.l_start.saturating_add(lock.l_len - 1) };
    let is_shared = i32::from(lock.l_type) == libc::F_RDLCK;
    Ok(Some(Found { first: lock.l_start, last, is_shared, is_of_file: lock.l_pid == -1 }))
}

/// Whether another open file has the whole of it (`flock`). For a moment this one has it.
pub(crate) fn is_taken(file: impl AsFd) -> bool {
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            let _ = flock(&file, FlockOperation::Unlock);
            false
        }
        Err(error) => error == rustix::io::Errno::WOULDBLOCK,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs::File;

    use super::*;

    pub(crate) fn lock(file: &File, shared: bool, first: i64, length: i64) {
        let lock = libc::flock64 {
            l_type: if shared { libc::F_RDLCK } else { libc::F_WRLCK } as _,
            l_whence: libc::SEEK_SET as _,
            l_start: first,
            l_len: length,
            l_pid: 0,
        };
        // SAFETY: reads a local.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }, 0);
    }

    pub(crate) struct Mapping(*mut libc::c_void);

    pub(crate) fn map(file: &File) -> Mapping {
        // SAFETY: new memory, at a place of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 1, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Mapping(at)
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: nobody else knows it.
            unsafe { libc::munmap(self.0, 1) };
        }
    }

    #[test]
    fn locks_of_other_open_files_are_told_with_their_bounds() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("locked");
        let (ours, theirs) =
            (File::create_new(&path).unwrap(), File::options().read(true).write(true).open(&path).unwrap());
        assert_eq!(in_the_way(&ours, 0, LAST).unwrap(), None);
        lock(&theirs, false, 10, 5);
        lock(&theirs, true, 100, 0);
        let first = Found { first: 10, last: 14, is_shared: false, is_of_file: true };
        assert_eq!(in_the_way(&ours, 0, LAST).unwrap(), Some(first));
        assert_eq!(in_the_way(&ours, 0, 9).unwrap(), None);
        assert_eq!(in_the_way(&ours, 14, 14).unwrap(), Some(first));
        let rest = Found { first: 100, last: LAST, is_shared: true, is_of_file: true };
        assert_eq!(in_the_way(&ours, 15, LAST).unwrap(), Some(rest));
        assert_eq!(in_the_way(&theirs, 0, LAST).unwrap(), None, "its own are in nobody's way");
    }

    #[test]
    fn a_file_that_another_has_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("taken");
        let (ours, theirs) = (File::create_new(&path).unwrap(), File::open(&path).unwrap());
        assert!(!is_taken(&ours) && !is_taken(&theirs), "it is let go of again");
        flock(&theirs, FlockOperation::NonBlockingLockShared).unwrap();
        assert!(is_taken(&ours));
        flock(&theirs, FlockOperation::Unlock).unwrap();
        assert!(!is_taken(&ours));
    }
}
