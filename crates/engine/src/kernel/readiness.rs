//! Descriptors that tokio has no type for: when they are ready.
#![allow(unsafe_code)]

use std::{io, os::fd::OwnedFd};

use tokio::io::unix::AsyncFd;

pub(crate) fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor is the same open file until it is dropped, which the returned value alone does.
    unsafe { AsyncFd::register(fd) }.map_err(Into::into)
}
