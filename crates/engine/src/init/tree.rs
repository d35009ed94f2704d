//! The tree of a command's processes, daemons and double forks included.
//!
//! With a cgroup of its own for each command the kernel knows the tree, and ends it at once. Groups are used again when
//! they are empty: making one costs more than starting a command in it. Without cgroups a supervisor keeps it together.
#![allow(unsafe_code)]

use std::{
    cell::Cell,
    collections::BTreeSet,
    ffi::CString,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
};

use super::supervisor::Supervised;
use crate::kernel::{
    proc,
    sys::{self, Errno, Stack},
};

pub(super) enum Forest {
    Cgroups {
        run: OwnedFd,
        spare: Vec<Leaf>,
        made: u64,
    },
    /// No cgroup may be made here: each command has a supervisor instead.
    Supervised,
}

pub(super) enum Tree {
    Cgroup(Leaf),
    Supervised(Supervised),
}

pub(super) struct Leaf {
    name: CString,
    dir: OwnedFd,
    events: OwnedFd,
    /// Not to be used again: on Linux 6.18, commands that were cloned into a group after it was killed died at their start.
    killed: Cell<bool>,
}

impl Forest {
    const SPARE: usize = 8;

    /// `cgroup` belongs to the sandbox. Commands live below `run` in it, so that they can be frozen without init.
    pub(super) fn in_cgroup(cgroup: &OwnedFd) -> Result<Self, Errno> {
        let run = make_group(cgroup.as_raw_fd(), &CString::from(c"run"))?;
        let mut forest = Self::Cgroups { run, spare: Vec::new(), made: 0 };
        let first = forest.leaf()?; // ahead, for the first command
        forest.fell(Tree::Cgroup(first));
        Ok(forest)
    }

    pub(super) fn without_cgroup() -> Self {
        Self::Supervised
    }

    pub(super) fn descriptors(&self) -> Vec<RawFd> {
        match self {
            Self::Cgroups { run, spare, .. } => {
                let leaves = spare.iter().flat_map(|leaf| [&leaf.dir, &leaf.events]);
                leaves.chain([run]).map(AsRawFd::as_raw_fd).collect()
            }
            Self::Supervised => Vec::new(),
        }
    }

    /// Starts `command(argument)` in a tree of its own. Gives the pid of the command, or of its supervisor. `needed` are the
    /// descriptors that the command takes with it.
    ///
    /// # Safety
    /// As for [`sys::spawn`].
    pub(super) unsafe fn plant(
        &mut self,
        secret: sys::Secret,
        stack: &Stack,
        command: extern "C" fn(usize) -> !,
        argument: usize,
        needed: [RawFd; 4],
    ) -> Result<(i32, Tree), Errno> {
        match self {
            Self::Supervised => {
                // SAFETY: promised by our caller.
                let supervised = unsafe { Supervised::start(secret, command, argument, needed) }?;
                Ok((supervised.pid(), Tree::Supervised(supervised)))
            }
            Self::Cgroups { .. } => {
                let leaf = self.leaf()?;
                let how = sys::Clone { flags: 0, cgroup: Some(leaf.dir.as_raw_fd()) };
                // SAFETY: promised by our caller.
                match unsafe { sys::spawn(how, secret, stack, command, argument) } {
                    Ok(pid) => Ok((pid, Tree::Cgroup(leaf))),
                    Err(errno) => {
                        self.fell(Tree::Cgroup(leaf));
                        Err(errno)
                    }
                }
            }
        }
    }

    fn leaf(&mut self) -> Result<Leaf, Errno> {
        let Self::Cgroups { run, spare, made } = self else { return Err(Errno(libc::ENOENT)) };
        if let Some(leaf) = spare.pop() {
            return Ok(leaf);
        }
        *made += 1;
        let name = CString::new(made.to_string()).unwrap_or_default();
        // One of this name may be left from an earlier life of the sandbox's range, killed.
        let _ = rustix::fs::unlinkat(&*run, &name, rustix::fs::AtFlags::REMOVEDIR);
        let dir = make_group(run.as_raw_fd(), &name)?;
        let events = sys::open_at(dir.as_raw_fd(), c"cgroup.events", libc::O_RDONLY)?;
        // SAFETY: opened just now.
        let events = unsafe { OwnedFd::from_raw_fd(events) };
        Ok(Leaf { name, dir, events, killed: Cell::new(false) })
    }

    /// Whether the commands do not run, whoever froze them.
    pub(super) fn is_frozen(&self) -> bool {
        let Self::Cgroups { run, .. } = self else { return false };
        let Ok(fd) = sys::open_at(run.as_raw_fd(), c"cgroup.freeze", libc::O_RDONLY) else { return false };
        // SAFETY: opened just now.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut text = [0];
        sys::read(file.as_raw_fd(), &mut text) == Ok(1) && text == *b"1"
    }

    /// All commands go on, whoever froze them.
    pub(super) fn thaw(&self) {
        if let Self::Cgroups { run, .. } = self {
            write_in(run, c"cgroup.freeze", b"0");
        }
    }

    /// Takes an empty tree back.
    pub(super) fn fell(&mut self, tree: Tree) {
        let (Self::Cgroups { run, spare, .. }, Tree::Cgroup(leaf)) = (self, tree) else { return };
        if spare.len() < Self::SPARE && !leaf.killed.get() {
            spare.push(leaf);
        } else {
            let _ = rustix::fs::unlinkat(run, &leaf.name, rustix::fs::AtFlags::REMOVEDIR);
        }
    }
}

fn write_in(group: &OwnedFd, file: &std::ffi::CStr, text: &[u8]) {
    if let Ok(fd) = sys::open_at(group.as_raw_fd(), file, libc::O_WRONLY) {
        // SAFETY: opened just now.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let _ = sys::write(fd.as_raw_fd(), text);
    }
}

fn make_group(parent: RawFd, name: &CString) -> Result<OwnedFd, Errno> {
    // SAFETY: a descriptor that the caller holds open.
    let dir = unsafe { std::os::fd::BorrowedFd::borrow_raw(parent) };
    match rustix::fs::mkdirat(dir, name, 0o755.into()) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(errno) => return Err(Errno(errno.raw_os_error())),
    }
    let group = sys::open_at(parent, name, libc::O_RDONLY | libc::O_DIRECTORY)?;
    // SAFETY: opened just now.
    Ok(unsafe { OwnedFd::from_raw_fd(group) })
}

impl Tree {
    /// Where the command's end is reported, if it is not init's own child.
    pub(super) fn supervised(&self) -> Option<&Supervised> {
        match self {
            Self::Cgroup(_) => None,
            Self::Supervised(supervised) => Some(supervised),
        }
    }

    /// The command, where `child` is what init started.
    pub(super) fn leader(&self, child: i32) -> i32 {
        self.supervised().map_or(child, Supervised::leader)
    }

    /// What tells of its first process and its last, until [`Self::is_empty`] is asked.
    pub(super) fn events(&self) -> Option<RawFd> {
        match self {
            Self::Cgroup(leaf) => Some(leaf.events.as_raw_fd()),
            Self::Supervised(_) => None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Cgroup(leaf) => {
                let mut text = [0; 256];
                let length = sys::pread(leaf.events.as_raw_fd(), &mut text).unwrap_or(0);
                text[..length].windows(11).any(|window| window == b"populated 0")
            }
            Self::Supervised(supervised) => supervised.is_gone(),
        }
    }

    /// Where all of it was killed, or has ended, `child` among it: somebody inside traces one of them and does not let it go, or holds
    /// the supervisor still.
    pub(super) fn let_go_of(&self, child: i32) {
        let held = match self {
            Self::Cgroup(leaf) => leaf.pids(),
            Self::Supervised(supervised) => supervised.below(),
        };
        for tracer in proc::tracers(held.into_iter().chain([child])) {
            sys::kill(tracer, libc::SIGKILL).unwrap_or_default();
        }
        if let Self::Supervised(supervised) = self {
            supervised.signal(libc::SIGKILL);
            sys::kill(child, libc::SIGKILL).unwrap_or_default();
        }
    }

    pub(super) fn signal(&self, signal: i32) {
        match self {
            Self::Cgroup(leaf) if signal == libc::SIGKILL => leaf.kill(),
            Self::Cgroup(leaf) => leaf.pids().into_iter().for_each(|pid| sys::kill(pid, signal).unwrap_or_default()),
            Self::Supervised(supervised) => supervised.signal(signal),
        }
    }
}

impl Leaf {
    /// The file ends every process at once, but for those whose first thread has ended: the kernel sends the signal to that
    /// thread alone, where nobody hears it. They are hit one by one, and stand still first, so that they fork nothing more
    /// than what they are about to; that is found in the next round.
    fn kill(&self) {
        const ROUNDS: usize = 64;
        self.killed.set(true);
        write_in(&self.dir, c"cgroup.freeze", b"1");
        let mut hit = BTreeSet::new();
        for _ in 0..ROUNDS {
            write_in(&self.dir, c"cgroup.kill", b"1");
            let missed: Vec<i32> = self.pids().into_iter().filter(|pid| hit.insert(*pid)).collect();
            if missed.is_empty() {
                return;
            }
            missed.into_iter().for_each(|pid| sys::kill(pid, libc::SIGKILL).unwrap_or_default());
        }
    }

    fn pids(&self) -> Vec<i32> {
        let Ok(fd) = sys::open_at(self.dir.as_raw_fd(), c"cgroup.procs", libc::O_RDONLY) else { return Vec::new() };
        // SAFETY: opened just now.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let (mut text, mut part) = (Vec::new(), [0; 4096]);
        while let Ok(count) = sys::read(fd.as_raw_fd(), &mut part)
            && count > 0
        {
            text.extend_from_slice(&part[..count]);
        }
        String::from_utf8_lossy(&text).lines().filter_map(|line| line.parse().ok()).collect()
    }
}
