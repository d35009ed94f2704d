//! System calls about which the kernel asks us before it makes them: the listener of a seccomp filter.
#![allow(unsafe_code)]

use std::{
    mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use super::sys::{self, Errno, Result};

/// Where the calls arrive whose verdict is `notify`. Who made one waits until it is answered.
pub(crate) struct Listener(OwnedFd);

/// A call that waits for its answer.
pub(crate) struct Notification {
    pub(crate) id: u64,
    /// The thread that made it.
    pub(crate) thread: u32,
    pub(crate) number: i64,
    /// As its registers were: nobody can change them meanwhile, unlike what they point to.
    pub(crate) args: [u64; 6],
}

impl Listener {
    pub(crate) fn new(listener: OwnedFd) -> Self {
        Self(listener)
    }

    /// Whether one has arrived. Without, [`Listener::receive`] would wait.
    pub(crate) fn is_ready(&self) -> bool {
        let mut poll = [libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        matches!(sys::poll(&mut poll, Some(0)), Ok(1)) && poll[0].revents & libc::POLLIN != 0
    }

    /// An error when who made it has ended since.
    pub(crate) fn receive(&self) -> Result<Notification> {
        // SAFETY: plain numbers, and the kernel wants them all to be zero.
        let mut notification: libc::seccomp_notif = unsafe { mem::zeroed() };
        // SAFETY: the request fills this structure, whose size is part of its number.
        unsafe { sys::ioctl_with(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &mut notification) }?;
        let libc::seccomp_notif { id, pid, data, .. } = notification;
        Ok(Notification { id, thread: pid, number: data.nr.into(), args: data.args })
    }

    /// Whether who made the call still waits: then its number is still its own.
    pub(crate) fn still_waits(&self, mut id: u64) -> bool {
        // SAFETY: the request reads a number of 64 bits.
        unsafe { sys::ioctl_with(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &mut id) }.is_ok()
    }

    /// What the call gives. Nobody hears it if it was answered before, or who made it has ended.
    pub(crate) fn answer(&self, id: u64, result: Result<()>) {
        let error = result.err().map_or(0, |Errno(errno)| -errno);
        let mut answer = libc::seccomp_notif_resp { id, val: 0, error, flags: 0 };
        // SAFETY: the request reads this structure.
        let _ = unsafe { sys::ioctl_with(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &mut answer) };
    }

    /// The kernel makes the call itself. Only for one whose registers say all that it does: what lies in memory may be
    /// another thing by then.
    pub(crate) fn let_it_be_made(&self, id: u64) {
        let mut answer =
            libc::seccomp_notif_resp { id, val: 0, error: 0, flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32 };
        // SAFETY: the request reads this structure.
        let _ = unsafe { sys::ioctl_with(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &mut answer) };
    }

    /// Gives who made the call a descriptor of this file, and the call its number.
    pub(crate) fn answer_with(&self, id: u64, file: BorrowedFd<'_>, close_on_exec: bool) -> Result<()> {
        let mut answer = libc::seccomp_notif_addfd {
            id,
            flags: libc::SECCOMP_ADDFD_FLAG_SEND as u32,
            srcfd: file.as_raw_fd() as u32,
            newfd: 0,
            newfd_flags: if close_on_exec { libc::O_CLOEXEC as u32 } else { 0 },
        };
        // SAFETY: the request reads this structure.
        unsafe { sys::ioctl_with(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ADDFD, &mut answer) }.map(drop)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
