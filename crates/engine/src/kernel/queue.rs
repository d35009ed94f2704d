//! Descriptors in the queue of a guest's Unix socket: looked at where they are, or taken out.
#![allow(unsafe_code)]

use std::{
    io, mem,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{SocketFlags, accept_with, sockopt},
};

/// The libc crate does not know it.
const SCM_PIDFD: i32 = 4;

/// The kernel's own limit of descriptors in one message, and room for what else may come with them.
const CONTROL_WORDS: usize = (253 * size_of::<RawFd>() + 256).div_ceil(8);

/// Of messages without a length that follow each other. By default a queue of messages has room for some ten.
const MOST_EMPTY: usize = 1000;

/// The socket gives next what it gave before: only where one looks moves. `each` says whether to go on.
pub(crate) fn descriptors_in(socket: BorrowedFd<'_>, mut each: impl FnMut(OwnedFd) -> bool) -> io::Result<()> {
    let before = peek_offset(socket)?;
    set_peek_offset(socket, 0)?;
    let (mut bytes, mut empty) = (vec![0; 64 << 10], 0);
    let looked = loop {
        match receive(socket, &mut bytes, libc::MSG_PEEK) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
            Err(error) => break Err(error),
            // The end, or a message of no length, which is passed over the next time.
            Ok((0, descriptors)) if descriptors.is_empty() => {
                empty += 1;
                if empty > MOST_EMPTY {
                    break Ok(());
                }
            }
            Ok((_, descriptors)) => {
                if !descriptors.into_iter().all(&mut each) {
                    break Ok(());
                }
            }
        }
    };
    set_peek_offset(socket, before)?;
    looked
}

/// What waits in it is its owner's no longer: the connections at a listening socket, or what came with the messages of another. Not more
/// of it than `most`, and that of one message.
///
/// Nobody else may accept meanwhile: the next connection would be waited for.
pub(crate) fn take(socket: BorrowedFd<'_>, most: usize) -> Vec<OwnedFd> {
    let mut taken = Vec::new();
    if sockopt::socket_acceptconn(socket).unwrap_or(false) {
        while taken.len() < most && is_ready(socket) {
            let Ok(connection) = accept_with(socket, SocketFlags::CLOEXEC) else { break };
            taken.push(connection);
        }
        return taken;
    }
    let mut bytes = vec![0; 64 << 10];
    while taken.len() < most {
        match receive(socket, &mut bytes, 0) {
            Ok((length, descriptors)) if length > 0 || !descriptors.is_empty() => taken.extend(descriptors),
            _ => break,
        }
    }
    taken
}

fn is_ready(socket: BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::IN)], Some(&Timespec::default())) == Ok(1)
}

fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8], flags: i32) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = [0u64; CONTROL_WORDS];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: msghdr is plain data: all zero is a value of it.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    let flags = flags | libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: everything that the header points to lives in this function or belongs to `bytes`.
    let length = match unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) } {
        length if length >= 0 => length as usize,
        _ => return Err(io::Error::last_os_error()),
    };
    let mut descriptors = Vec::new();
    // SAFETY: the kernel filled the control buffer; the macros stay within msg_controllen, and each descriptor in it is
    // new in this process and nobody else's.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(&raw const header);
        while !at.is_null() {
            // A guest may have asked for the senders of messages, too: those are closed with the others.
            if (*at).cmsg_level == libc::SOL_SOCKET && matches!((*at).cmsg_type, libc::SCM_RIGHTS | SCM_PIDFD) {
                let count = ((*at).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                let data = libc::CMSG_DATA(at).cast::<RawFd>();
                let numbers = (0..count).map(|place| ptr::read_unaligned(data.add(place)));
                let is_rights = (*at).cmsg_type == libc::SCM_RIGHTS;
                let opened = numbers.filter(|number| *number >= 0).map(|number| OwnedFd::from_raw_fd(number));
                match is_rights {
                    true => descriptors.extend(opened),
                    false => opened.for_each(drop),
                }
            }
            at = libc::CMSG_NXTHDR(&raw const header, at);
        }
    }
    match header.msg_flags & libc::MSG_CTRUNC {
        0 => Ok((length, descriptors)),
        _ => Err(io::Error::from_raw_os_error(libc::EMFILE)), // there was room for all in the buffer
    }
}

fn peek_offset(socket: BorrowedFd<'_>) -> io::Result<i32> {
    let (mut offset, mut size) = (0_i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: writes to two locals, of the size that is given.
    let got = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEEK_OFF,
            (&raw mut offset).cast(),
            &raw mut size,
        )
    };
    if got == 0 { Ok(offset) } else { Err(io::Error::last_os_error()) }
}

fn set_peek_offset(socket: BorrowedFd<'_>, offset: i32) -> io::Result<()> {
    let size = size_of::<i32>() as libc::socklen_t;
    // SAFETY: reads a local of the size that is given.
    let set = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEEK_OFF, (&raw const offset).cast(), size)
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::Read,
        os::{
            fd::AsFd,
            unix::net::{UnixListener, UnixStream},
        },
    };

    use super::*;
    use crate::kernel::fdpass;

    #[test]
    fn what_is_in_a_queue_is_found_and_stays_there() {
        let (ours, theirs) = fdpass::pair().unwrap();
        let files: Vec<File> = (0..3).map(|_| File::open("/dev/null").unwrap()).collect();
        for (number, file) in files.iter().enumerate() {
            fdpass::send(ours.as_fd(), b"bytes", &[file.as_fd(), ours.as_fd()][..1 + number % 2]).unwrap();
        }
        for _ in 0..2 {
            let mut found = 0;
            descriptors_in(theirs.as_fd(), |_| {
                found += 1;
                true
            })
            .unwrap();
            assert_eq!(found, 4);
        }
        let mut first = 0;
        descriptors_in(theirs.as_fd(), |_| {
            first += 1;
            false
        })
        .unwrap();
        assert_eq!(first, 1);
        let (length, descriptors) = fdpass::receive(theirs.as_fd(), &mut [0; 16]).unwrap();
        assert_eq!((length, descriptors.len()), (5, 1), "the first is still the first");
    }

    #[test]
    fn what_is_behind_messages_of_no_length_is_found() {
        let kind = rustix::net::SocketType::SEQPACKET;
        let unix = rustix::net::AddressFamily::UNIX;
        let (ours, theirs) = rustix::net::socketpair(unix, kind, SocketFlags::CLOEXEC, None).unwrap();
        let file = File::open("/dev/null").unwrap();
        for _ in 0..3 {
            rustix::net::send(&ours, &[], rustix::net::SendFlags::empty()).unwrap();
        }
        fdpass::send(ours.as_fd(), b"behind", &[file.as_fd()]).unwrap();
        drop(ours);
        for _ in 0..2 {
            let mut found = 0;
            descriptors_in(theirs.as_fd(), |_| {
                found += 1;
                true
            })
            .unwrap();
            assert_eq!(found, 1);
        }
        let empty = fdpass::receive(theirs.as_fd(), &mut [0; 16]).unwrap();
        assert_eq!((empty.0, empty.1.len()), (0, 0), "the first is still the first");
    }

    #[test]
    fn what_is_taken_out_of_a_queue_is_there_no_longer() {
        let (ours, theirs) = fdpass::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        for _ in 0..3 {
            fdpass::send(ours.as_fd(), b"bytes", &[file.as_fd(), ours.as_fd()]).unwrap();
        }
        assert_eq!(take(theirs.as_fd(), 3).len(), 4, "no more than is asked for, and what comes with that");
        assert_eq!(take(theirs.as_fd(), 3).len(), 2);
        assert!(take(theirs.as_fd(), 3).is_empty());
    }

    #[test]
    fn connections_that_wait_are_taken_without_waiting_for_more() {
        let dir = tempfile::tempdir().unwrap();
        let listening = UnixListener::bind(dir.path().join("socket")).unwrap();
        let connect = || UnixStream::connect(dir.path().join("socket")).unwrap();
        let clients = [connect(), connect(), connect()];
        assert_eq!(take(listening.as_fd(), 2).len(), 2);
        assert_eq!(take(listening.as_fd(), 2).len(), 1);
        assert!(take(listening.as_fd(), 2).is_empty());
        for mut client in clients {
            assert_eq!(client.read(&mut [0; 8]).unwrap(), 0, "its other end is closed");
        }
        assert!(!listening_is_nonblocking(&listening), "the listener is as it was");
    }

    fn listening_is_nonblocking(listening: &UnixListener) -> bool {
        rustix::fs::fcntl_getfl(listening).unwrap().contains(rustix::fs::OFlags::NONBLOCK)
    }

    #[test]
    fn bytes_without_descriptors_are_left_alone() {
        let (mut reads, writes) = UnixStream::pair().unwrap();
        io::Write::write_all(&mut &writes, &[7; 100_000]).unwrap();
        drop(writes);
        descriptors_in(reads.as_fd(), |_| panic!("there is none")).unwrap();
        let mut all = Vec::new();
        reads.read_to_end(&mut all).unwrap();
        assert_eq!(all, [7; 100_000]);
    }
}
