//! Init: process 1 of a sandbox, a clone of the spawner without an exec.
//!
//! It sets the sandbox up, then starts commands, passes signals on, makes sockets and notes how commands end. It never
//! blocks, opens no file that a guest could have prepared, and sees no byte of anybody's stdio. It ends when the server
//! closes the control socket, and the kernel ends everything else in the sandbox with it.

mod exec;
mod setup;
mod supervisor;
mod tree;

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use self::exec::Execs;
use crate::{
    kernel::{fdpass, sys},
    wire::{FromInit, LONG, MAX_LONG, PROTOCOL, SetupPlan, ToInit},
};

/// The child of the spawner's clone begins here and never returns. It does all that needs no sandbox yet, and waits.
pub(crate) fn main(
    hostname: &[u8],
    control: OwnedFd,
    cgroup: Option<OwnedFd>,
    devices: Option<OwnedFd>,
    go: &OwnedFd,
) -> ! {
    // The spawner waits for nobody and ignores the ends of its children; here they are what is waited for.
    sys::default_signals();
    sys::set_blocked_signals(u64::MAX);
    sys::set_name(c"cabana-init");
    // The id maps are written by the parent; if it dies first, so does this.
    if !matches!(sys::read(go.as_raw_fd(), &mut [0]), Ok(1)) {
        sys::exit(1);
    }
    let ready = setup::prepare(hostname, cgroup, devices).and_then(|prepared| {
        prepared.close_all_others(&control);
        let (plan, mounts) = wait_for_plan(&control);
        setup::finish(prepared, &plan, &mounts)
    });
    match ready {
        Ok(ready) => serve(control, ready),
        Err(failure) => {
            let _ = fdpass::send(control.as_fd(), &FromInit::SetupFailed(failure).encode(), &[]);
            sys::exit(1)
        }
    }
}

/// What the sandbox is to be. A server that goes away before it says so leaves nothing to be.
fn wait_for_plan(control: &OwnedFd) -> (SetupPlan, Vec<OwnedFd>) {
    let mut buffer = vec![0; fdpass::MAX_MESSAGE];
    loop {
        let mut ready = [libc::pollfd { fd: control.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        let _ = sys::poll(&mut ready, None);
        match fdpass::receive(control.as_fd(), &mut buffer) {
            Ok((length, mounts)) => match SetupPlan::decode(&buffer[..length]) {
                Ok(plan) if plan.mounts.len() == mounts.len() => return (plan, mounts),
                _ => sys::exit(0),
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => sys::exit(0),
        }
    }
}

/// What the set-up leaves open.
pub(crate) struct Ready {
    null: OwnedFd,
    signals: OwnedFd,
    forest: tree::Forest,
    /// For the server: it opens files and terminals itself.
    root: OwnedFd,
    terminals: OwnedFd,
    secret: sys::Secret,
}

struct Init {
    control: OwnedFd,
    execs: Execs,
    /// What the socket did not take yet, in order.
    unsent: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
}

fn serve(control: OwnedFd, ready: Ready) -> ! {
    let Ready { null, signals, forest, root, terminals, secret } = ready;
    let said = FromInit::Ready { protocol: PROTOCOL }.encode();
    if fdpass::send(control.as_fd(), &said, &[root.as_fd(), terminals.as_fd()]).is_err() {
        sys::exit(0);
    }
    drop((root, terminals)); // a descriptor of the root would keep it mounted
    let mut init = Init { control, execs: Execs::new(null, forest, secret), unsent: VecDeque::new() };
    loop {
        init.wait(&signals);
        init.take_requests();
        init.reap(&signals);
        let now = sys::monotonic_ns();
        init.execs.enforce_timeouts(now);
        init.flush();
    }
}

impl Init {
    fn wait(&self, signals: &OwnedFd) {
        let mut events = libc::POLLIN;
        if !self.unsent.is_empty() {
            events |= libc::POLLOUT;
        }
        let mut fds = vec![
            libc::pollfd { fd: self.control.as_raw_fd(), events, revents: 0 },
            libc::pollfd { fd: signals.as_raw_fd(), events: libc::POLLIN, revents: 0 },
        ];
        self.execs.add_polled(&mut fds);
        let _ = sys::poll(&mut fds, self.execs.next_deadline(sys::monotonic_ns()));
    }

    fn take_requests(&mut self) {
        let mut buffer = [0; 8192];
        loop {
            match fdpass::receive(self.control.as_fd(), &mut buffer) {
                // The server is gone: so is the sandbox.
                Ok((0, _)) => sys::exit(0),
                Ok((length, mut fds)) if &buffer[..length] == LONG => {
                    if let Some(long) =
                        (!fds.is_empty()).then(|| fds.remove(0)).and_then(|file| read_long(file.as_fd()))
                    {
                        self.handle(&long, &fds);
                    }
                }
                Ok((length, fds)) => self.handle(&buffer[..length], &fds),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Cut off: it was not for us. Its descriptors are closed, its sender hears nothing and gives up.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
                Err(_) => sys::exit(0),
            }
        }
    }

    fn handle(&mut self, bytes: &[u8], fds: &[OwnedFd]) {
        match ToInit::decode(bytes) {
            Ok(ToInit::Exec(body)) => {
                if let Some(answer) = self.execs.start(body, fds) {
                    self.say(answer, None);
                }
            }
            Ok(ToInit::Paused(paused)) => self.execs.pause(paused, sys::monotonic_ns()),
            Ok(ToInit::Signal { exec, signal, tree }) => self.execs.signal(exec, signal as i32, tree),
            Ok(ToInit::Socket { tag, v6 }) => {
                let (errno, socket) = match socket(v6) {
                    Ok(socket) => (0, Some(socket)),
                    Err(error) => (error.raw_os_error().unwrap_or(libc::EIO) as u32, None),
                };
                self.say(FromInit::Socket { tag, errno }, socket);
            }
            Err(_) => {}
        }
    }

    fn reap(&mut self, signals: &OwnedFd) {
        let mut drained = [0; 1024];
        while matches!(sys::read(signals.as_raw_fd(), &mut drained), Ok(count) if count > 0) {}
        for answer in self.execs.started() {
            self.say(answer, None);
        }
        for answer in self.execs.reported() {
            self.say(answer, None);
        }
        while let Some(waited) = sys::wait_any() {
            // A command that could not start has no exit, and orphans that were given to us have nobody who asks.
            for answer in self.execs.ended(&waited) {
                self.say(answer, None);
            }
        }
        self.execs.tidy();
    }

    fn say(&mut self, message: FromInit, fd: Option<OwnedFd>) {
        self.unsent.push_back((message.encode(), fd));
    }

    fn flush(&mut self) {
        while let Some((bytes, fd)) = self.unsent.front() {
            let fds: Vec<BorrowedFd<'_>> = fd.iter().map(AsFd::as_fd).collect();
            match fdpass::send(self.control.as_fd(), bytes, &fds) {
                Ok(()) => drop(self.unsent.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => sys::exit(0),
            }
        }
    }
}

/// A message that was too long for the socket: at most as long as a command line may be.
fn read_long(file: BorrowedFd<'_>) -> Option<Vec<u8>> {
    let length = usize::try_from(rustix::fs::fstat(file).ok()?.st_size).ok().filter(|length| *length <= MAX_LONG)?;
    let mut bytes = vec![0; length];
    let mut filled = 0;
    while filled < length {
        match rustix::io::pread(file, &mut bytes[filled..], filled as u64) {
            Ok(0) | Err(_) => return None,
            Ok(count) => filled += count,
        }
    }
    Some(bytes)
}

/// Not connected here: the server does that, with a deadline of its own, and a full backlog hangs nobody.
fn socket(v6: bool) -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};
    let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?)
}
