//! Descriptors that tokio has no type for: when they are ready.
#![allow(unsafe_code)]

use std::{io, os::fd::OwnedFd};

use tokio::io::unix::AsyncFd;

use crate::lane::SharedFd;

pub(crate) fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor is the same open file until it is dropped, which the returned value alone does.
    unsafe { AsyncFd::register(fd) }.map_err(Into::into)
}

pub(crate) fn watch_shared(fd: SharedFd) -> io::Result<AsyncFd<SharedFd>> {
    // SAFETY: it owns its descriptor, and gives it away when it is dropped, which the returned value alone does.
    unsafe { AsyncFd::register(fd) }.map_err(Into::into)
}
