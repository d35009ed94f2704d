//! Messages with descriptors over a SOCK_SEQPACKET socket: whole or not at all, in order.
#![allow(unsafe_code)]

use std::{
    io, mem,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr,
};

/// The kernel's own limit of descriptors in one message is 253.
pub(crate) const MAX_FDS: usize = 64;

/// Messages are small; what is larger travels in a memory file whose descriptor is passed.
pub(crate) const MAX_MESSAGE: usize = 64 * 1024;

const CONTROL_WORDS: usize = (MAX_FDS * size_of::<RawFd>() + 64).div_ceil(8);

/// A connected pair: close-on-exec and non-blocking at both ends.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if fds.len() > MAX_FDS || bytes.len() > MAX_MESSAGE {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "message too large"));
    }
    let mut control = [0u64; CONTROL_WORDS];
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: msghdr is plain data: all zero is a value of it.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    if !fds.is_empty() {
        let size = size_of_val(fds) as u32;
        header.msg_control = control.as_mut_ptr().cast();
        // SAFETY: pure arithmetic.
        header.msg_controllen = unsafe { libc::CMSG_SPACE(size) } as _;
        // SAFETY: the control buffer is aligned, zeroed and longer than CMSG_SPACE of MAX_FDS descriptors.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(size) as _;
            ptr::copy_nonoverlapping(fds.as_ptr().cast::<RawFd>(), libc::CMSG_DATA(first).cast(), fds.len());
        }
    }
    loop {
        // SAFETY: everything that the header points to lives in this function.
        let sent =
            unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
        if sent >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// One message into `buffer`: its length and its descriptors. Zero is the end. A message that did not fit is `InvalidData`; one whose
/// descriptors this process has no numbers for is EMFILE. Either is gone then, and what came with it is closed.
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = [0u64; CONTROL_WORDS];
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: as in `send`.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    let length = loop {
        // SAFETY: everything that the header points to lives in this function or belongs to `buffer`.
        let got =
            unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) };
        if got >= 0 {
            break got as usize;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    };
    let mut fds = Vec::new();
    // SAFETY: the kernel filled the control buffer; the macros stay within msg_controllen, and each descriptor in it is
    // new in this process and nobody else's.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(&raw const header);
        while !at.is_null() {
            if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_RIGHTS {
                let count = ((*at).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                let data = libc::CMSG_DATA(at).cast::<RawFd>();
                fds.extend((0..count).map(|n| OwnedFd::from_raw_fd(ptr::read_unaligned(data.add(n)))));
            }
            at = libc::CMSG_NXTHDR(&raw const header, at);
        }
    }
    if header.msg_flags & libc::MSG_TRUNC != 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message was cut off"));
    }
    if header.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    Ok((length, fds))
}
