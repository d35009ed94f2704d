//! Bytes as a script: what a hostile side says next, and what it passes along. Where the bytes end, everything is zero.
#![allow(unsafe_code)]

use std::{
    ffi::CStr,
    io::Write,
    os::fd::{AsFd, OwnedFd},
    sync::Once,
};

use rustix::{
    fs::{FileType, MemfdFlags, Mode, OFlags, memfd_create},
    net::{AddressFamily, SocketFlags, SocketType, socket_with},
    pipe::{PipeFlags, pipe_with},
    pty::OpenptFlags,
};

pub(crate) struct Script<'a>(pub(crate) &'a [u8]);

impl<'a> Script<'a> {
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or_default()
    }

    /// As many as there are.
    pub(crate) fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        head
    }

    /// Small ones are likelier: they are what numbers of commands and counts are.
    pub(crate) fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..=239 => u64::from(small % 8),
            240..=247 => u64::from(self.byte()),
            _ => self.bytes(8).iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)),
        }
    }

    /// A piece of the script itself.
    pub(crate) fn text(&mut self) -> &'a [u8] {
        let count = usize::from(self.byte());
        self.bytes(count)
    }

    /// Descriptors of every kind that one can get hold of, or might forge: at most nine.
    pub(crate) fn descriptors(&mut self) -> Vec<OwnedFd> {
        let count = usize::from(self.byte() % 10);
        (0..count).filter_map(|_| self.descriptor()).collect()
    }

    pub(crate) fn descriptor(&mut self) -> Option<OwnedFd> {
        let cloexec = OFlags::CLOEXEC | OFlags::NONBLOCK;
        match self.byte() % 12 {
            0 => memfd_create(c"fuzz", MemfdFlags::CLOEXEC).ok(),
            1 => self.memory_file(),
            2 => {
                let file = self.memory_file()?;
                rustix::fs::ftruncate(&file, i64::MAX as u64).ok()?; // a hole, as large as can be
                Some(file)
            }
            3 => {
                let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
                std::fs::File::from(write).write_all(self.text()).ok()?;
                Some(read)
            }
            4 => pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok().map(|(_, write)| write),
            5 => socket(AddressFamily::UNIX, SocketType::STREAM),
            6 => socket(AddressFamily::INET, SocketType::STREAM),
            7 => socket(AddressFamily::INET6, SocketType::DGRAM),
            8 => rustix::fs::open(c"/proc/self/fdinfo", cloexec | OFlags::DIRECTORY, Mode::empty()).ok(),
            9 => rustix::fs::open(c"/dev/null", cloexec | OFlags::RDWR, Mode::empty()).ok(),
            10 => rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok(),
            _ => rustix::fs::open(c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok(),
        }
    }

    /// Of this kind, or of another one.
    pub(crate) fn descriptor_of(&mut self, kind: FileType) -> Option<OwnedFd> {
        match (kind, self.byte()) {
            (FileType::RegularFile, ..128) => self.memory_file(),
            (FileType::Fifo, ..128) => pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok().map(|(read, _)| read),
            (FileType::CharacterDevice, ..250) => {
                rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).ok()
            }
            _ => self.descriptor(),
        }
    }

    pub(crate) fn directory(&self, path: &CStr) -> Option<OwnedFd> {
        rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()
    }

    /// With marks, and with bytes where the output would be.
    pub(crate) fn memory_file(&mut self) -> Option<OwnedFd> {
        let file = memfd_create(c"fuzz", MemfdFlags::CLOEXEC).ok()?;
        let marks = self.byte() % 8;
        for place in 0..u64::from(marks) {
            let mark = [self.number().to_le_bytes(), self.number().to_le_bytes()].concat();
            rustix::io::pwrite(&file, &mark, place * 16).ok()?;
        }
        let output = self.text();
        if !output.is_empty() {
            rustix::io::pwrite(&file, output, crate::spool::OUTPUT).ok()?;
        }
        Some(file)
    }
}

fn socket(family: AddressFamily, kind: SocketType) -> Option<OwnedFd> {
    socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None).ok()
}

/// Borrowed, as they are passed.
pub(crate) fn borrowed(fds: &[OwnedFd]) -> Vec<std::os::fd::BorrowedFd<'_>> {
    fds.iter().map(AsFd::as_fd).collect()
}

/// Acts on a script, and fails when a descriptor stays open that was passed and not used.
pub(crate) fn leave_nothing_open(act: impl FnOnce()) {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        // SAFETY: ignoring a signal installs no handler. The server ignores it, as every Rust program does, and to init, which is
        // the first process of its namespace, the kernel does not send it; the fuzzer's own main does neither.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        drop(runtime()); // the first one opens what all of them share
    });
    let before = open_count();
    act();
    assert_eq!(open_count(), before, "a descriptor that was passed is kept");
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn open_count() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}
