//! Init: process 1 of a sandbox, a clone of the spawner without an exec.
//!
//! It sets the sandbox up, then starts commands, passes signals on, makes sockets and notes how commands end. It never
//! blocks, opens no file that a guest could have prepared, and looks at no byte of anybody's stdio; what has to be opened for a
//! guest is opened by a child with that guest's rights (see `broker`). When the server closes
//! the control socket, it ends, and the kernel ends everything else in the sandbox with it; unless it was told to outlive
//! the server, and waits for the next one (see `keep`).

mod binding;
mod broker;
mod caller;
mod chase;
mod exec;
mod exit_tracers;
mod filters;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod keep;
mod locks;
mod notifications;
mod oom_score;
mod setup;
mod sockets;
mod supervisor;
mod tree;

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

pub(crate) use self::keep::ENDED;
use self::{exec::Execs, keep::Keeper, notifications::Notifications, oom_score::OomScore};
use crate::{
    kernel::{fdpass, shortage::is_shortage, sys},
    wire::{ExecPlan, FromInit, LONG, MAX_LONG, PROTOCOL, SetupPlan, Stillness, ToInit},
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
    // A host may share its processors out by sessions: one of a sandbox's own, lest root inside give that of all less.
    let _ = sys::setsid();
    // The id maps are written by the parent; if it dies first, so does this.
    if !matches!(sys::read(go.as_raw_fd(), &mut [0]), Ok(1)) {
        sys::exit(1);
    }
    let prepared = setup::prepare(hostname, cgroup, devices).and_then(|prepared| {
        prepared.close_all_others(&control)?;
        Ok(prepared)
    });
    // What has failed by now is told to who wants a sandbox, and not before.
    let (plan, mounts) = wait_for_plan(&control);
    let ready = prepared.and_then(|prepared| setup::finish(prepared, &plan, &mounts));
    drop(mounts); // a process that holds one keeps it from being taken away
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
    notifications: Notifications,
    oom_score: Option<OomScore>,
}

/// What a process may keep in memory, in bytes. Files of a layer that others see, too, are charged to who read them first, not to
/// who locks them.
const LOCKED_MEMORY: u64 = 64 << 10;

/// How many children are waited for before anybody else is heard.
const AT_ONCE: usize = 1024;

/// How long everybody waits where the kernel cannot say who has something.
const UNPOLLED_NS: u64 = 1_000_000;

struct Init {
    /// None while no server is there.
    control: Option<OwnedFd>,
    /// Those who knocked and have not said who they are, the oldest first.
    knocking: VecDeque<OwnedFd>,
    /// One that is known, and has to wait until the output is nobody else's.
    welcomed: Option<OwnedFd>,
    execs: Execs,
    keeper: Keeper,
    notifications: Notifications,
    /// Whether more children may have ended than were waited for.
    unwaited: bool,
    /// What the socket did not take yet, in order.
    unsent: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
}

fn serve(control: OwnedFd, ready: Ready) -> ! {
    let Ready { null, signals, forest, root, terminals, secret, notifications, oom_score } = ready;
    let said = FromInit::Ready { protocol: PROTOCOL }.encode();
    if fdpass::send(control.as_fd(), &said, &[root.as_fd(), terminals.as_fd()]).is_err() {
        sys::exit(0);
    }
    let _ = sys::set_rlimit(libc::RLIMIT_MEMLOCK, LOCKED_MEMORY, LOCKED_MEMORY); // for all commands: they have it from init
    let Ok(nowhere) = null.try_clone() else { sys::exit(1) };
    let keeper = Keeper::new(root, terminals, nowhere, secret);
    let execs = Execs::new(null, forest, secret);
    let mut init = Init {
        control: Some(control),
        knocking: VecDeque::new(),
        welcomed: None,
        execs,
        keeper,
        notifications,
        unwaited: false,
        unsent: VecDeque::new(),
    };
    loop {
        let polled = init.wait(&signals);
        let now = sys::monotonic_ns();
        init.take_requests(&polled);
        init.answer_the_door(&polled);
        init.notifications.take(&polled);
        init.reap(&signals, &polled, now);
        init.execs.note_emptied(&polled, now);
        init.execs.enforce_timeouts(now);
        init.notifications.enforce_deadlines(now);
        if let Some(oom_score) = oom_score.as_ref().filter(|_| polled.has(signals.as_raw_fd())) {
            oom_score.put_back(); // by whom it was changed has ended, or will
        }
        init.flush();
        if let Some(server) = init.welcomed.take() {
            init.welcome(server);
        } else if init.control.is_none() {
            init.keeper.drain();
        }
    }
}

/// Who has something for init. The others are not asked: a command takes several turns, and each would cost a call for each of them.
struct Polled(Vec<libc::pollfd>);

impl Polled {
    /// Also when another has its number by now: who asks takes what is there without waiting.
    fn has(&self, fd: RawFd) -> bool {
        self.0.iter().any(|polled| polled.fd == fd && polled.revents != 0)
    }

    fn is_timeout(&self) -> bool {
        self.0.iter().all(|polled| polled.revents == 0)
    }
}

impl Init {
    fn wait(&self, signals: &OwnedFd) -> Polled {
        let poll = |fd: &OwnedFd, events| libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
        let mut fds = vec![poll(signals, libc::POLLIN)];
        let room = if self.unsent.is_empty() { 0 } else { libc::POLLOUT };
        fds.extend(self.control.iter().map(|control| poll(control, libc::POLLIN | room)));
        fds.extend(self.keeper.door().into_iter().chain(&self.knocking).map(|fd| poll(fd, libc::POLLIN)));
        self.execs.add_polled(&mut fds);
        self.notifications.add_polled(&mut fds);
        let now = sys::monotonic_ns();
        let at_once = self.unwaited.then_some(0);
        let of_brokers = self.notifications.next_deadline(now);
        let deadlines = [self.execs.next_deadline(now), self.keeper.next_deadline(now), of_brokers, at_once];
        if sys::poll_many(self.execs.secret(), &mut fds, deadlines.into_iter().flatten().min()).is_err() {
            // Memory may be short. Each is heard then as if it had something: that waits for nobody.
            let _ = sys::poll(&mut [], Some(UNPOLLED_NS));
            fds.iter_mut().for_each(|fd| fd.revents = fd.events);
        }
        Polled(fds)
    }

    fn take_requests(&mut self, polled: &Polled) {
        if !self.control.as_ref().is_some_and(|control| polled.has(control.as_raw_fd())) {
            return;
        }
        let mut buffer = [0; 8192];
        while let Some(control) = &self.control {
            match fdpass::receive(control.as_fd(), &mut buffer) {
                Ok((0, _)) => self.lose_the_server(),
                Ok((length, mut fds)) if &buffer[..length] == LONG => {
                    if let Some(long) =
                        (!fds.is_empty()).then(|| fds.remove(0)).and_then(|file| read_long(file.as_fd()))
                    {
                        self.handle(&long, fds);
                    }
                }
                Ok((length, fds)) => self.handle(&buffer[..length], fds),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Cut off: it was not for us. Its descriptors are closed, its sender hears nothing and gives up.
                Err(error) if error.kind() == io::ErrorKind::InvalidData || is_shortage(&error) => {}
                Err(_) => self.lose_the_server(),
            }
        }
    }

    /// The server is gone. So is the sandbox, unless it was told to stay.
    fn lose_the_server(&mut self) {
        if self.keeper.door().is_none() {
            sys::exit(0);
        }
        self.control = None;
        self.unsent.clear();
        self.execs.go_on_alone();
        self.keeper.take_over();
    }

    /// Hears who is there. Of many who say nothing, the last ones may stay.
    fn answer_the_door(&mut self, polled: &Polled) {
        const WAITING: usize = 8;
        let Some(door) = self.keeper.door() else { return };
        if !self.knocking.iter().chain([door]).any(|fd| polled.has(fd.as_raw_fd())) {
            return;
        }
        let flags = rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK;
        if let Ok(knocking) = rustix::net::accept_with(door, flags) {
            self.knocking.push_back(knocking);
            if self.knocking.len() > WAITING {
                self.knocking.pop_front();
            }
        }
        for _ in 0..self.knocking.len() {
            let Some(knocking) = self.knocking.pop_front() else { return };
            self.hear(knocking);
        }
    }

    fn hear(&mut self, server: OwnedFd) {
        let mut buffer = [0; 64];
        let said = match fdpass::receive(server.as_fd(), &mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.knocking.push_back(server);
                return;
            }
            Ok((length, _)) => ToInit::decode(&buffer[..length]).ok(),
            Err(_) => None,
        };
        match said {
            Some(ToInit::Hello { protocol: PROTOCOL, token }) if self.keeper.knows(token) => self.welcome(server),
            Some(ToInit::Hello { token, .. }) if self.keeper.knows(token) => {
                // It hears which one is spoken here, and decides what becomes of us.
                let other = FromInit::Welcome { protocol: PROTOCOL, stillness: Stillness::Going, last: 0, execs: 0 };
                let _ = fdpass::send(server.as_fd(), &other.encode(), &[]);
            }
            _ => {}
        }
    }

    /// Once nobody else moves output on.
    fn welcome(&mut self, server: OwnedFd) {
        if !self.keeper.stop_draining() {
            self.welcomed = Some(server);
            return;
        }
        // Descriptors may have run out: then the next one may have more luck.
        let Ok(all) = self.keeper.hand_over(self.execs.stillness()) else { return };
        self.control = Some(server);
        self.unsent = all.into_iter().map(|(message, fds)| (message.encode(), fds)).collect();
    }

    fn handle(&mut self, bytes: &[u8], mut fds: Vec<OwnedFd>) {
        match ToInit::decode(bytes) {
            Ok(ToInit::Exec(body)) => {
                let Ok(plan) = ExecPlan::decode(body) else { return };
                let kept = fds.split_off(plan.descriptors().min(fds.len()));
                for exec in &plan.forgotten {
                    self.keeper.forget(*exec);
                }
                self.keeper.begin(&plan, kept);
                if let Some(answer) = self.execs.start(&plan, &fds) {
                    self.say(answer, None);
                }
            }
            Ok(ToInit::Still(stillness)) => self.execs.stand_still(stillness, sys::monotonic_ns()),
            Ok(ToInit::EndAll) => sys::kill_all_others(),
            Ok(ToInit::Signal { exec, signal, tree }) => self.execs.signal(exec, signal as i32, tree),
            Ok(ToInit::Socket { tag, v6 }) => {
                let (errno, socket) = match socket(v6) {
                    Ok(socket) => (0, Some(socket)),
                    Err(error) => (error.raw_os_error().unwrap_or(libc::EIO) as u32, None),
                };
                self.say(FromInit::Socket { tag, errno }, socket);
            }
            Ok(ToInit::Keep { token }) => self.keeper.keep(token, fds),
            Ok(ToInit::CloseInput { exec }) => self.keeper.close_input(exec),
            Ok(ToInit::Forget { exec }) => self.keeper.forget(exec),
            Ok(ToInit::Hello { .. }) | Err(_) => {}
        }
    }

    fn reap(&mut self, signals: &OwnedFd, polled: &Polled, now: u64) {
        let signalled = polled.has(signals.as_raw_fd());
        if signalled {
            let _ = sys::read(signals.as_raw_fd(), &mut [0; 1024]); // if there are more, the next turn has them
        }
        if self.execs.is_through(polled) {
            for answer in self.execs.started() {
                self.say(answer, None);
            }
        }
        for answer in self.execs.reported() {
            self.say(answer, None);
        }
        let waits = signalled || self.unwaited || polled.is_timeout();
        if waits {
            self.wait_for_children();
        }
        self.execs.tidy();
        self.keeper.tidy(now, waits);
    }

    fn wait_for_children(&mut self) {
        // Orphans may die as fast as they are waited for: the server is heard in between.
        self.unwaited = true;
        for _ in 0..AT_ONCE {
            let Some(waited) = sys::wait_any() else {
                self.unwaited = false;
                break;
            };
            if !waited.has_ended() {
                continue;
            }
            self.notifications.ended(waited.pid);
            self.keeper.ended(&waited);
            // A command that could not start has no exit, and orphans that were given to us have nobody who asks.
            for answer in self.execs.ended(&waited) {
                self.say(answer, None);
            }
        }
    }

    fn say(&mut self, message: FromInit, fd: Option<OwnedFd>) {
        self.keeper.note(&message);
        if self.control.is_some() {
            self.unsent.push_back((message.encode(), fd.into_iter().collect()));
        }
    }

    fn flush(&mut self) {
        while let (Some(control), Some((bytes, fds))) = (&self.control, self.unsent.front()) {
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match fdpass::send(control.as_fd(), bytes, &fds) {
                Ok(()) => drop(self.unsent.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => match (is_shortage(&error), FromInit::decode(bytes)) {
                    // Processes of this user hold too many in their sockets: who asked for this one hears that.
                    (true, Ok(FromInit::Socket { tag, errno: 0 })) => {
                        let errno = error.raw_os_error().unwrap_or(libc::EIO) as u32;
                        self.unsent[0] = (FromInit::Socket { tag, errno }.encode(), Vec::new());
                    }
                    _ => self.lose_the_server(),
                },
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
