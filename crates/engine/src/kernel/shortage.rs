//! Answers of the kernel that say nothing about what was asked for: there is no room for it now, and may be soon.

use std::io;

use cabana_sandbox::Error;

/// Of descriptors or memory: of this process, of all, or of those that one user has on their way in Unix sockets.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    use libc::{EMFILE, ENFILE, ENOBUFS, ENOMEM, ETOOMANYREFS};
    matches!(error.raw_os_error(), Some(EMFILE | ENFILE | ENOBUFS | ENOMEM | ETOOMANYREFS))
}

/// The caller's own error, or that there is no room.
pub(crate) fn told_apart(error: io::Error, other: impl FnOnce(io::Error) -> Error) -> Error {
    match is_shortage(&error) {
        true => Error::Exhausted("descriptors or memory of the kernel"),
        false => other(error),
    }
}
