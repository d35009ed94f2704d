//! Locks between processes: flock on a directory or file, let go by closing it, also by kill -9.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{fs::FlockOperation, io::Errno};

/// Held until it is dropped.
pub(crate) struct Lock(OwnedFd);

impl Lock {
    /// Waits until nobody else holds it.
    pub(crate) fn exclusive(path: &Path) -> io::Result<Self> {
        Self::take(path, FlockOperation::LockExclusive)
    }

    /// Waits until nobody holds it exclusively.
    pub(crate) fn shared(path: &Path) -> io::Result<Self> {
        Self::take(path, FlockOperation::LockShared)
    }

    /// `None` when somebody holds it.
    pub(crate) fn try_exclusive(path: &Path) -> io::Result<Option<Self>> {
        match Self::take(path, FlockOperation::NonBlockingLockExclusive) {
            Ok(lock) => Ok(Some(lock)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn take(path: &Path, how: FlockOperation) -> io::Result<Self> {
        let file = OwnedFd::from(File::open(path)?);
        loop {
            match rustix::fs::flock(&file, how) {
                Ok(()) => return Ok(Self(file)),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Whether what was locked has no name any more: it was removed between opening and locking.
    pub(crate) fn is_removed(&self) -> io::Result<bool> {
        Ok(rustix::fs::fstat(self.0.as_fd())?.st_nlink == 0)
    }
}
