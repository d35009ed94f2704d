//! Sockets whose queues are memory of the kernel that no limit counts: what a broker makes and sets, and how much of it.
//!
//! Answers of netlink lie in the socket's queue until somebody reads them, a datagram that was begun until it is sent, and a TCP
//! connection is given to a group of the kernel's when it is accepted. So there is a bound on netlink's sockets and on those for
//! datagrams, and on the connections that can wait at all sockets that listen; and netlink's and TCP's have short queues, whatever
//! a guest asks for.

use std::os::fd::{AsFd, OwnedFd};

use rustix::{
    fs::OFlags,
    net::{AddressFamily, SocketType, sockopt},
};

use super::caller::{Caller, read_all};
use crate::kernel::{
    mounts,
    notify::Listener,
    sys::{self, Errno, Result, Secret},
};

/// How many sockets of netlink a sandbox may have. Who asks for addresses has one for a moment.
const MAX_NETLINK: usize = 256;

/// How many sockets for datagrams it may have, of all kinds. Nothing but questions to the DNS gets out by them.
const MAX_DATAGRAM: usize = 512;
const DATAGRAM: [&str; 6] = ["UDP", "UDPv6", "PING", "PINGv6", "RAW", "RAWv6"];

/// How many sockets may listen for TCP connections.
const MAX_LISTENERS: usize = 256;

/// What may wait in one of netlink's sockets: an answer is at most 32 KiB. The kernel takes twice what it is told.
const NETLINK_QUEUE: u32 = 32 << 10;

/// What may wait at a socket for datagrams, and its own notices, which no limit counts. Somewhat more than what it has by itself.
const DATAGRAM_QUEUE: u32 = 128 << 10;

/// The longest queue of a TCP connection whose length a guest has set: what the others have (see [`TCP_QUEUE`]).
const TCP_QUEUE_SET: u32 = TCP_QUEUE / 2;

/// What may wait in a TCP connection. All of them end on this machine, where longer ones are no faster.
pub(super) const TCP_QUEUE: u32 = 128 << 10;

/// What a caller may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketCall {
    Make(Wanted),
    Listen { socket: i32, backlog: u32 },
    SetQueue { socket: i32, value: u64, size: i32 },
    SetLinger { socket: i32, value: u64, size: i32 },
}

/// The same, with what lay in the caller's memory and among its descriptors.
pub(super) enum SocketRequest {
    Make(Wanted),
    Listen {
        socket: OwnedFd,
        backlog: u32,
    },
    SetQueue {
        socket: OwnedFd,
        bytes: u32,
    },
    /// Whether its end breaks off what is not sent.
    SetLinger {
        socket: OwnedFd,
        breaks_off: bool,
    },
}

/// A new socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    family: i32,
    kind: i32,
    protocol: i32,
}

impl SocketCall {
    pub(super) fn of(number: i64, args: &[u64; 6]) -> Option<Self> {
        let [first, second, third, fourth, fifth, _] = *args;
        Some(match number {
            libc::SYS_socket => {
                Self::Make(Wanted { family: first as i32, kind: second as i32, protocol: third as i32 })
            }
            libc::SYS_listen => Self::Listen { socket: first as i32, backlog: second as u32 },
            libc::SYS_setsockopt => match third as i32 {
                libc::SO_LINGER => Self::SetLinger { socket: first as i32, value: fourth, size: fifth as i32 },
                _ => Self::SetQueue { socket: first as i32, value: fourth, size: fifth as i32 },
            },
            _ => return None,
        })
    }

    /// While it can be looked at what there is: the caller may have no `/proc`.
    pub(super) fn read(self, caller: &Caller, memory: u64) -> Result<SocketRequest> {
        Ok(match self {
            Self::Make(wanted) => {
                let (protocols, most) = match wanted.family {
                    libc::AF_NETLINK => (&["NETLINK"][..], MAX_NETLINK),
                    _ => (&DATAGRAM[..], MAX_DATAGRAM),
                };
                if count_sockets(protocols)? >= most {
                    return Err(Errno(libc::EMFILE));
                }
                SocketRequest::Make(wanted)
            }
            Self::Listen { socket, backlog } => {
                let socket = caller.duplicate(socket)?;
                let backlog = if is_tcp(&socket) { backlog.min(waiting_allowed(memory)?) } else { backlog };
                SocketRequest::Listen { socket, backlog }
            }
            Self::SetQueue { socket, value, size } => {
                let socket = caller.duplicate(socket)?;
                let [bytes] = words_of(caller, value, size)?;
                let most = most_queued(&socket);
                SocketRequest::SetQueue { socket, bytes: bytes.min(most) }
            }
            // One that would wait ends as all others do, which is to send what is left while nobody waits. Where the kernel itself is
            // the last to close it, it waits with all that it closes for anybody.
            Self::SetLinger { socket, value, size } => {
                let socket = caller.duplicate(socket)?;
                let [is_on, seconds] = words_of(caller, value, size)?;
                SocketRequest::SetLinger { socket, breaks_off: is_on != 0 && seconds == 0 }
            }
        })
    }
}

impl SocketRequest {
    /// As the caller.
    pub(super) fn make(&self, secret: Secret, listener: &Listener, id: u64) -> Result<()> {
        match self {
            Self::Make(Wanted { family, kind, protocol }) => {
                let socket = sys::socket(secret, *family, *kind | libc::SOCK_CLOEXEC, *protocol)?;
                if *family == libc::AF_NETLINK {
                    sys::set_receive_buffer(secret, socket.as_fd(), NETLINK_QUEUE)?;
                }
                // Whether it waits is a trait of the socket; whether an exec closes it, of the descriptor.
                return listener.answer_with(id, socket.as_fd(), kind & libc::SOCK_CLOEXEC != 0);
            }
            Self::Listen { socket, backlog } => sys::listen(secret, socket.as_fd(), *backlog)?,
            Self::SetQueue { socket, bytes } => sys::set_receive_buffer(secret, socket.as_fd(), *bytes)?,
            Self::SetLinger { socket, breaks_off } => sys::set_linger(secret, socket.as_fd(), *breaks_off)?,
        }
        listener.answer(id, Ok(()));
        Ok(())
    }
}

/// Of an option, in the caller's memory.
fn words_of<const COUNT: usize>(caller: &Caller, value: u64, size: i32) -> Result<[u32; COUNT]> {
    if size < (4 * COUNT) as i32 {
        return Err(Errno(libc::EINVAL));
    }
    let bytes = caller.memory().bytes(value, 4 * COUNT)?;
    let mut words = bytes.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    Ok(std::array::from_fn(|_| words.next().unwrap_or_default()))
}

fn is_tcp(socket: &OwnedFd) -> bool {
    let inet = matches!(sockopt::socket_domain(socket), Ok(AddressFamily::INET | AddressFamily::INET6));
    inet && sockopt::socket_type(socket) == Ok(SocketType::STREAM)
}

/// Other sockets' queues count as memory of whoever made them.
fn most_queued(socket: &OwnedFd) -> u32 {
    match sockopt::socket_domain(socket) {
        Ok(AddressFamily::NETLINK) => NETLINK_QUEUE,
        _ if is_tcp(socket) => TCP_QUEUE_SET,
        Ok(AddressFamily::INET | AddressFamily::INET6) => DATAGRAM_QUEUE,
        _ => u32::MAX,
    }
}

/// How many connections may wait at one more socket that listens: the less, the more there are. Together they may hold about a
/// quarter of the memory.
fn waiting_allowed(memory: u64) -> Result<u32> {
    let others = count_listeners()?;
    if others >= MAX_LISTENERS {
        return Err(Errno(libc::ENOBUFS));
    }
    Ok(share_of_waiting(memory, others))
}

fn share_of_waiting(memory: u64, others: usize) -> u32 {
    let all = memory / 4 / u64::from(TCP_QUEUE);
    u32::try_from(all / (4 * (others as u64 + 1))).unwrap_or(u32::MAX).max(1)
}

fn count_listeners() -> Result<usize> {
    // Most sandboxes have few sockets. To list them the kernel goes through those of the whole machine.
    const FEW: usize = 4;
    let sockets = count_sockets(&["TCP", "TCPv6"])?;
    if sockets <= FEW {
        return Ok(sockets);
    }
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"].map(|table| read(table).unwrap_or_default());
    Ok(tables.iter().map(|table| listening(table)).sum())
}

/// In a table of `/proc/net`: the fourth column is the state, of which 0A is LISTEN.
fn listening(table: &str) -> usize {
    table.lines().filter(|line| line.split_whitespace().nth(3) == Some("0A")).count()
}

/// Of the sandbox's network: those of the sandbox alone.
fn count_sockets(protocols: &[&str]) -> Result<usize> {
    let table = read("/proc/self/net/protocols")?;
    // A kernel without IPv6 has no such sockets.
    Ok(protocols.iter().filter_map(|protocol| sockets_of(protocol, &table)).sum())
}

fn sockets_of(protocol: &str, table: &str) -> Option<usize> {
    let mut lines = table.lines().map(str::split_whitespace);
    lines.find_map(|mut line| (line.next() == Some(protocol)).then(|| line.nth(1)?.parse().ok()).flatten())
}

fn read(path: &str) -> Result<String> {
    let file = mounts::open_proc(path, OFlags::RDONLY);
    let text = read_all(&file.map_err(|errno| Errno(errno.raw_os_error()))?)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_are_read_by_their_columns() {
        let protocols = "protocol  size sockets  memory press\n\
                         TCPv6     2432      3     160   no\n\
                         TCP       2304     12     160   no\n\
                         NETLINK   1096      7      -1   NI\n";
        assert_eq!(sockets_of("NETLINK", protocols), Some(7));
        assert_eq!(sockets_of("TCP", protocols), Some(12));
        assert_eq!(sockets_of("SCTP", protocols), None);
        let tcp = "  sl  local_address rem_address   st tx_queue rx_queue\n\
                   \x20  0: 0100007F:1E61 00000000:0000 0A 00000000:00000065\n\
                   \x20  1: 0100007F:1E62 00000000:0000 0A 00000000:00000000\n\
                   \x20  2: 0100007F:1E61 0100007F:0A0A 01 00000000:00020000\n";
        assert_eq!(listening(tcp), 2);
    }

    #[test]
    fn what_waits_at_all_sockets_stays_within_half_of_the_memory() {
        for memory in [64_u64 << 20, 128 << 20, 512 << 20, 8 << 30] {
            let waiting: u64 = (0..MAX_LISTENERS).map(|others| u64::from(share_of_waiting(memory, others)) + 1).sum();
            let least = 2 * MAX_LISTENERS as u64 * u64::from(TCP_QUEUE);
            assert!(waiting * u64::from(TCP_QUEUE) <= memory / 2 + least, "{waiting} of {memory}");
        }
        assert_eq!(share_of_waiting(512 << 20, 0), 256, "what servers ask for");
        assert_eq!(share_of_waiting(512 << 20, 7), 32);
    }
}
