//! The tree of a command's processes, daemons and double forks included.
//!
//! With a cgroup of its own for each command the kernel knows the tree, and ends it at once. Groups are used again when
//! they are empty: making one costs more than starting a command in it.
#![allow(unsafe_code)]

use std::{
    ffi::CString,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
};

use crate::kernel::sys::{self, Errno};

pub(super) enum Forest {
    Cgroups {
        run: OwnedFd,
        spare: Vec<Leaf>,
        made: u64,
    },
    /// No cgroup may be made here: a tree is what can still be found of it.
    Sessions,
}

pub(super) enum Tree {
    Cgroup(Leaf),
    Session(i32),
}

pub(super) struct Leaf {
    name: CString,
    dir: OwnedFd,
    events: OwnedFd,
}

impl Forest {
    const SPARE: usize = 8;

    /// `cgroup` belongs to the sandbox. Commands live below `run` in it, so that they can be frozen without init.
    pub(super) fn in_cgroup(cgroup: OwnedFd) -> Result<Self, Errno> {
        let run = make_group(cgroup.as_raw_fd(), &CString::from(c"run"))?;
        Ok(Self::Cgroups { run, spare: Vec::new(), made: 0 })
    }

    pub(super) fn without_cgroup() -> Self {
        Self::Sessions
    }

    pub(super) fn descriptors(&self) -> Option<u32> {
        match self {
            Self::Cgroups { run, .. } => Some(run.as_raw_fd() as u32),
            Self::Sessions => None,
        }
    }

    pub(super) fn plant(&mut self) -> Result<Tree, Errno> {
        let Self::Cgroups { run, spare, made } = self else { return Ok(Tree::Session(0)) };
        if let Some(leaf) = spare.pop() {
            return Ok(Tree::Cgroup(leaf));
        }
        *made += 1;
        let name = CString::new(made.to_string()).unwrap_or_default();
        let dir = make_group(run.as_raw_fd(), &name)?;
        let events = sys::open_at(dir.as_raw_fd(), c"cgroup.events", libc::O_RDONLY)?;
        // SAFETY: opened just now.
        let events = unsafe { OwnedFd::from_raw_fd(events) };
        Ok(Tree::Cgroup(Leaf { name, dir, events }))
    }

    /// Takes an empty tree back.
    pub(super) fn fell(&mut self, tree: Tree) {
        let (Self::Cgroups { run, spare, .. }, Tree::Cgroup(leaf)) = (self, tree) else { return };
        if spare.len() < Self::SPARE {
            spare.push(leaf);
        } else {
            let _ = rustix::fs::unlinkat(run, &leaf.name, rustix::fs::AtFlags::REMOVEDIR);
        }
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
    pub(super) fn cgroup(&self) -> Option<RawFd> {
        match self {
            Self::Cgroup(leaf) => Some(leaf.dir.as_raw_fd()),
            Self::Session(_) => None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Cgroup(leaf) => {
                let mut text = [0; 256];
                let length = sys::pread(leaf.events.as_raw_fd(), &mut text).unwrap_or(0);
                text[..length].windows(11).any(|window| window == b"populated 0")
            }
            Self::Session(_) => true,
        }
    }

    pub(super) fn signal(&self, leader: i32, signal: i32) {
        match self {
            Self::Cgroup(leaf) if signal == libc::SIGKILL => leaf.write(c"cgroup.kill", b"1"),
            Self::Cgroup(leaf) => leaf.pids().into_iter().for_each(|pid| sys::kill(pid, signal).unwrap_or_default()),
            Self::Session(_) => {
                let _ = sys::kill(-leader, signal);
            }
        }
    }
}

impl Leaf {
    fn write(&self, file: &std::ffi::CStr, text: &[u8]) {
        if let Ok(fd) = sys::open_at(self.dir.as_raw_fd(), file, libc::O_WRONLY) {
            // SAFETY: opened just now.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            let _ = sys::write(fd.as_raw_fd(), text);
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
