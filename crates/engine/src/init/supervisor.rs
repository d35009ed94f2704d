//! A command's tree where no cgroup may be made.
//!
//! Between init and the command stands a process that adopts every orphan below it, so that daemons and double forks stay
//! in the tree. It shares init's memory, makes raw calls only, and does nothing but wait: it reports the command's end over
//! a pipe and lives until the last of the tree is gone. A guest that kills it ends its tree: its orphans are given to init, which
//! kills them.
#![allow(unsafe_code)]

use std::{
    os::fd::{AsRawFd, OwnedFd, RawFd},
    sync::atomic::{AtomicI32, Ordering},
};

use super::chase::Chase;
use crate::kernel::{
    proc,
    sys::{self, Stack, Waited},
};

/// What the supervisor needs, kept by init as long as it lives.
pub(super) struct Supervisor {
    secret: sys::Secret,
    /// For the command, until its exec.
    stack: Stack,
    command: extern "C" fn(usize) -> !,
    argument: usize,
    report: RawFd,
    /// What the command takes with it and the report, in ascending order: all that is open when the command is started.
    open: [RawFd; 5],
    /// Written by the supervisor, read by init: they share their memory.
    leader: AtomicI32,
}

/// Init's side of one.
pub(super) struct Supervised {
    pid: i32,
    report: OwnedFd,
    /// Both are used until the supervisor has ended.
    supervisor: Box<Supervisor>,
    _stack: Stack,
    chase: Chase,
}

const REPORT: usize = 24;

impl Supervised {
    /// Starts `command(argument)` below a supervisor. `needed` are the descriptors that the command takes with it.
    ///
    /// # Safety
    /// As for [`sys::spawn`].
    pub(super) unsafe fn start(
        secret: sys::Secret,
        command: extern "C" fn(usize) -> !,
        argument: usize,
        needed: [RawFd; 4],
    ) -> sys::Result<Self> {
        let (report, write) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK)
                .map_err(|errno| sys::Errno(errno.raw_os_error()))?;
        let (stack, report_to) = (Stack::new()?, write.as_raw_fd());
        let [input, output, errors, status] = needed;
        let mut open = [input, output, errors, status, report_to];
        open.sort_unstable();
        let supervisor = Box::new(Supervisor {
            secret,
            stack: Stack::new()?,
            command,
            argument,
            report: report_to,
            open,
            leader: AtomicI32::new(0),
        });
        let argument = std::ptr::from_ref::<Supervisor>(&supervisor) as usize;
        // SAFETY: `supervise` makes raw calls only and never returns; box and stack are kept in the result.
        let pid = unsafe { sys::spawn(sys::Clone::default(), secret, &stack, supervise, argument) }?;
        Ok(Self { pid, report, supervisor, _stack: stack, chase: Chase::default() })
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// The command itself, once it was started.
    pub(super) fn leader(&self) -> i32 {
        self.supervisor.leader.load(Ordering::Acquire)
    }

    pub(super) fn report(&self) -> RawFd {
        self.report.as_raw_fd()
    }

    /// The command's end, once it was reported.
    pub(super) fn ended(&self) -> Option<Waited> {
        let mut bytes = [0; REPORT];
        match sys::read(self.report.as_raw_fd(), &mut bytes) {
            Ok(REPORT) => {
                let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|place| bytes[at + place]));
                Some(Waited { pid: self.pid, status: number(0) as i32, cpu_us: number(8), peak_kib: number(16) })
            }
            _ => None,
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        sys::kill(self.pid, 0).is_err()
    }

    /// To everything below it, once. What is killed is [`Chase`]d.
    pub(super) fn signal(&self, signal: i32) {
        match signal {
            libc::SIGKILL => self.chase.turn(|| self.below()),
            _ => self.below().into_iter().for_each(|pid| sys::kill(pid, signal).unwrap_or_default()),
        }
    }

    pub(super) fn chase(&self) -> &Chase {
        &self.chase
    }

    pub(super) fn below(&self) -> Vec<i32> {
        proc::tree(self.pid).split_off(1)
    }
}

/// Kills children of init that nobody waits for: orphans of a supervisor that was killed. Children of init's own that are not in
/// `known` can die at any time. Whether there were any.
pub(super) fn kill_strays(chase: &Chase, known: impl Fn(i32) -> bool) -> bool {
    const INIT: i32 = 1;
    let strays = || -> Vec<i32> {
        let children = proc::children(INIT).into_iter().filter(|pid| !known(*pid));
        children.flat_map(proc::tree).collect()
    };
    let found = strays();
    if found.is_empty() {
        chase.stop();
        return false;
    }
    chase.turn(strays);
    // One that is traced stays until its tracer lets it go.
    for tracer in proc::tracers(found) {
        sys::kill(tracer, libc::SIGKILL).unwrap_or_default();
    }
    true
}

/// The supervisor's life. No heap, no thread-local storage: it is a guest in init's memory.
extern "C" fn supervise(supervisor: usize) -> ! {
    // SAFETY: init keeps the box until this process is gone.
    let supervisor = unsafe { &*(supervisor as *const Supervisor) };
    let _ = sys::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
    // With a single id it is root's inside, who can have its session get less of the processors: init's is another one.
    let _ = sys::setsid();
    // Before the command is there: it has what is open here until it has closed all but its own.
    if sys::close_all_but(&supervisor.open).is_err() {
        sys::exit(126)
    }
    // SAFETY: as init promised; the stack lies in the box.
    let command = unsafe {
        sys::spawn(sys::Clone::default(), supervisor.secret, &supervisor.stack, supervisor.command, supervisor.argument)
    };
    supervisor.leader.store(command.unwrap_or(0), Ordering::Release);
    // The command's pipes are its own: with a copy here, nobody would ever see them closed.
    let _ = sys::close_all_but(&[supervisor.report]);
    while let Some(waited) = sys::wait_for_any() {
        if command == Ok(waited.pid) && waited.has_ended() {
            let mut bytes = [0; REPORT];
            bytes[..8].copy_from_slice(&(waited.status as u64).to_le_bytes());
            bytes[8..16].copy_from_slice(&waited.cpu_us.to_le_bytes());
            bytes[16..].copy_from_slice(&waited.peak_kib.to_le_bytes());
            let _ = sys::write(supervisor.report, &bytes);
        }
    }
    sys::exit(if command.is_ok() { 0 } else { 126 })
}
