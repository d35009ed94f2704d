//! Calls that the filter leaves to init: each is made by a broker, a child of init's own, as the caller itself would make it.
//!
//! Init only receives them and counts the brokers: what a guest may have prepared is touched by a broker alone.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::{
    Polled,
    broker::Broker,
    exit_tracers::ExitTracers,
    filters::{FilterCall, Filters},
};
use crate::kernel::{
    mounts,
    notify::Listener,
    sys::{self, Errno},
};

/// Further calls wait in the kernel.
const MAX_BROKERS: usize = 8;
/// How many calls are looked at before init sees to everything else again.
const AT_A_TIME: usize = 16;

/// Root inside may stop a broker. Its caller cannot be frozen before it has its answer, so it does not wait for ever.
const MAX_TIME_NS: u64 = 5_000_000_000;

pub(super) struct Notifications {
    /// None where the host has a listener of its own around us: then the kernel says ENOSYS to such calls.
    listener: Option<Listener>,
    own_mounts: OwnMounts,
    /// What the sandbox may have of it, at its start.
    memory: u64,
    secret: sys::Secret,
    brokers: Vec<Running>,
    /// Whether a process has built a wall of Landlock's around itself. Nobody can tell which ones stand behind it, and a broker
    /// that opens files would reach through it for them.
    has_landlock: bool,
    exit_tracers: ExitTracers,
    filters: Filters,
}

struct Running {
    pid: i32,
    /// The call that it makes.
    id: u64,
    /// None once it was killed.
    deadline: Option<u64>,
}

/// The mounts that are the sandbox's own, by their numbers.
pub(super) struct OwnMounts {
    numbers: Vec<u64>,
    /// The same mounts once more, without anything else: no path leads from here to a view, whatever a guest moves.
    pub(super) without_views: OwnedFd,
    /// As long as it is open, a mount's number is not given to another, also when somebody takes the mount off.
    _held: Vec<OwnedFd>,
}

impl OwnMounts {
    pub(super) fn new(held: Vec<OwnedFd>, without_views: OwnedFd) -> rustix::io::Result<Self> {
        let numbers = held.iter().map(|mount| mounts::id(mount.as_fd())).collect::<Result<_, _>>()?;
        Ok(Self { numbers, without_views, _held: held })
    }

    pub(super) fn has(&self, file: BorrowedFd<'_>) -> rustix::io::Result<bool> {
        mounts::id(file).map(|number| self.numbers.contains(&number))
    }
}

impl Notifications {
    pub(super) fn new(listener: Option<Listener>, own_mounts: OwnMounts, memory: u64, secret: sys::Secret) -> Self {
        Self {
            listener,
            own_mounts,
            memory,
            secret,
            brokers: Vec::new(),
            has_landlock: false,
            exit_tracers: ExitTracers::default(),
            filters: Filters::default(),
        }
    }

    pub(super) fn add_polled(&self, fds: &mut Vec<libc::pollfd>) {
        if self.brokers.len() < MAX_BROKERS {
            let poll = |listener: &Listener| libc::pollfd {
                fd: listener.as_fd().as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            fds.extend(self.listener.iter().map(poll));
        }
    }

    pub(super) fn next_deadline(&self, now: u64) -> Option<u64> {
        self.brokers.iter().filter_map(|broker| broker.deadline).map(|deadline| deadline.saturating_sub(now)).min()
    }

    /// Starts a broker for each call that waits, or decides it. Some at a time: there are always more where somebody wants that, and
    /// timeouts are to be held in between.
    pub(super) fn take(&mut self, polled: &Polled) {
        let Some(listener) = self.listener.as_ref().filter(|listener| polled.has(listener.as_fd().as_raw_fd())) else {
            return;
        };
        for _ in 0..AT_A_TIME {
            if self.brokers.len() >= MAX_BROKERS || !listener.is_ready() {
                return;
            }
            let Ok(notification) = listener.receive() else { return };
            let id = notification.id;
            if notification.number == libc::SYS_landlock_restrict_self {
                self.has_landlock = true;
                listener.let_it_be_made(id);
                continue;
            }
            if notification.number == libc::SYS_ptrace {
                // All that it says is in its registers.
                match self.exit_tracers.admit(notification.thread as i32, notification.args[1] as i32) {
                    true => listener.let_it_be_made(id),
                    false => listener.answer(id, Err(Errno(libc::EPERM))),
                }
                continue;
            }
            if FilterCall::of(notification.number, &notification.args).is_some() && self.filters.is_free() {
                listener.let_it_be_made(id);
                continue;
            }
            // SAFETY: this process has one thread, and the child does not return.
            match unsafe { sys::fork_self() } {
                Ok(Some(pid)) => {
                    let deadline = Some(sys::monotonic_ns().saturating_add(MAX_TIME_NS));
                    self.brokers.push(Running { pid, id, deadline });
                }
                Ok(None) => {
                    let Self { own_mounts, memory, secret, .. } = self;
                    let may_open = !self.has_landlock;
                    Broker { listener, notification, own_mounts, may_open, memory: *memory, secret: *secret }.run();
                }
                Err(_) => listener.answer(id, Err(Errno(libc::ENOMEM))),
            }
        }
    }

    /// A child was waited for. A broker that did not come to its end has answered nobody.
    pub(super) fn ended(&mut self, pid: i32) {
        let Some(place) = self.brokers.iter().position(|broker| broker.pid == pid) else { return };
        let Running { id, .. } = self.brokers.swap_remove(place);
        if let Some(listener) = &self.listener {
            listener.answer(id, Err(Errno(libc::EPERM)));
        }
    }

    pub(super) fn enforce_deadlines(&mut self, now: u64) {
        let late = |broker: &&mut Running| broker.deadline.is_some_and(|deadline| deadline <= now);
        for broker in self.brokers.iter_mut().filter(late) {
            broker.deadline = None;
            sys::kill(broker.pid, libc::SIGKILL).unwrap_or_default();
        }
    }
}
