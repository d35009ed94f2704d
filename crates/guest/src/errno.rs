//! What the kernel's error numbers mean to a caller: the one place that says so.

use std::io;

use cabana_model::PathError;
use cabana_sandbox::{Error, SandboxPath};
use rustix::io::Errno;

/// Of descriptors or memory: it says nothing of the file.
pub(crate) fn is_shortage(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)
}

/// The error of one step on one path.
pub(crate) fn fault(path: &SandboxPath, step: &'static str, errno: Errno) -> Error {
    let path = || path.clone();
    match errno {
        // A file handle that went stale is a file that went away.
        Errno::NOENT | Errno::STALE => Error::NotFound(path()),
        Errno::EXIST => Error::Exists(path()),
        // BUSY is a mount point, XDEV the edge of one: not the sandbox's user's to change.
        Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::BUSY | Errno::XDEV => Error::Denied(path()),
        Errno::ISDIR => Error::IsDirectory(path()),
        Errno::NOTDIR => Error::NotDirectory(path()),
        Errno::NOTEMPTY => Error::NotEmpty(path()),
        Errno::LOOP => Error::Loop(path()),
        Errno::NXIO | Errno::NODEV => Error::NotRegular(path()),
        // AGAIN is a lease, or a tree that was renamed under every one of our tries.
        Errno::AGAIN | Errno::TXTBSY => Error::Busy(path()),
        Errno::NOSPC | Errno::DQUOT => Error::NoSpace,
        Errno::FBIG => Error::TooLarge { cap: i64::MAX as u64 },
        Errno::NAMETOOLONG => Error::Path(PathError::Long),
        other => Error::failed(step, format!("{}: {}", path(), io::Error::from(other))),
    }
}

pub(crate) fn io_fault(path: &SandboxPath, step: &'static str, error: io::Error) -> Error {
    match Errno::from_io_error(&error) {
        Some(errno) => fault(path, step, errno),
        None => Error::failed(step, error),
    }
}
