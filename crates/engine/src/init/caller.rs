//! A process that waits for the answer to a call: what it may, and what it asked for.

use std::{
    ffi::CString,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno as RxErrno,
};

use crate::kernel::{
    mounts,
    sys::{self, Capabilities, Errno, Result},
};

/// As the kernel bounds them, with the byte at their end.
const MAX_PATH: usize = 4096;
const MAX_ATTRIBUTE_NAME: usize = 256;

/// Which file a call means, as its registers say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum File {
    Open(i32),
    Path { dir: i32, path: u64, follow: bool, may_be_empty: bool },
}

pub(super) struct Caller {
    thread: u32,
    /// Its directory in `/proc`: what is opened there is this very process's, or nothing.
    proc: OwnedFd,
}

impl Caller {
    pub(super) fn open(thread: u32) -> Result<Self> {
        let proc = mounts::open_proc(format!("/proc/{thread}"), OFlags::PATH | OFlags::DIRECTORY).map_err(errno)?;
        Ok(Self { thread, proc })
    }

    pub(super) fn credentials(&self) -> Result<Credentials> {
        Credentials::parse(&self.read("status")?).ok_or(Errno(libc::EPERM))
    }

    pub(super) fn root(&self) -> Result<OwnedFd> {
        self.reach("root").map_err(errno)
    }

    /// Whether its paths begin elsewhere than ours.
    pub(super) fn is_in_chroot(&self) -> Result<bool> {
        let of = |dir: &OwnedFd| -> Result<(u64, u64)> {
            let inode = rustix::fs::fstat(dir).map_err(errno)?.st_ino;
            Ok((mounts::id(dir.as_fd()).map_err(errno)?, inode))
        };
        let ours = rustix::fs::open(c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(errno)?;
        Ok(of(&self.root()?)? != of(&ours)?)
    }

    /// Where its paths begin that are not absolute: a directory that it has open, or the one that it works in.
    pub(super) fn directory(&self, number: i32) -> Result<OwnedFd> {
        match number {
            libc::AT_FDCWD => self.reach("cwd").map_err(errno),
            number => self.descriptor(number),
        }
    }

    /// What it has open.
    pub(super) fn descriptor(&self, number: i32) -> Result<OwnedFd> {
        match u32::try_from(number).map(|number| self.reach(&format!("fd/{number}"))) {
            Ok(Err(RxErrno::NOENT)) | Err(_) => Err(Errno(libc::EBADF)),
            Ok(found) => found.map_err(errno),
        }
    }

    /// The same as it has it open, to be used: a socket cannot be reached by its name.
    pub(super) fn duplicate(&self, number: i32) -> Result<OwnedFd> {
        sys::duplicate_of(self.thread, number)
    }

    pub(super) fn memory(&self) -> Memory {
        Memory { thread: self.thread }
    }

    /// The file itself behind a link of `/proc`, without opening it.
    fn reach(&self, link: &str) -> rustix::io::Result<OwnedFd> {
        rustix::fs::openat(&self.proc, link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
    }

    fn read(&self, file: &str) -> Result<Vec<u8>> {
        let file = rustix::fs::openat(&self.proc, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        read_all(&file.map_err(errno)?)
    }
}

pub(super) fn read_all(file: &OwnedFd) -> Result<Vec<u8>> {
    let (mut all, mut part) = (Vec::new(), vec![0; 16 * 1024]);
    loop {
        match rustix::io::read(file, &mut part).map_err(errno)? {
            0 => return Ok(all),
            count => all.extend_from_slice(part.get(..count).unwrap_or_default()),
        }
    }
}

/// What the file system judges a process by.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Credentials {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    /// Those in effect.
    capabilities: u64,
    pub(super) umask: u32,
}

impl Credentials {
    /// From `/proc/PID/status`. A process names itself there, but cannot begin a line.
    fn parse(status: &[u8]) -> Option<Self> {
        let status = String::from_utf8_lossy(status);
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        // Real, effective, saved, and the file system's.
        let id = |name| field(name)?.split_whitespace().nth(3)?.parse().ok();
        let groups = field("Groups:")?.split_whitespace().map(|group| group.parse().ok());
        Some(Self {
            uid: id("Uid:")?,
            gid: id("Gid:")?,
            groups: groups.collect::<Option<_>>()?,
            capabilities: u64::from_str_radix(field("CapEff:")?, 16).ok()?,
            umask: u32::from_str_radix(field("Umask:")?, 8).ok()?,
        })
    }

    /// For good, with these capabilities beside its own until [`Credentials::drop_others`].
    pub(super) fn assume_with(&self, others: u64) -> Result<()> {
        // Where there is a single id nobody may change groups, and all have the same.
        if let Err(refused) = sys::setgroups(&self.groups)
            && own_groups()? != self.groups
        {
            return Err(refused);
        }
        sys::prctl(libc::PR_SET_KEEPCAPS, 1)?;
        sys::setresgid(self.gid, self.gid, self.gid)?;
        sys::setresuid(self.uid, self.uid, self.uid)?;
        // A change of user resets it to what the host says.
        sys::prctl(libc::PR_SET_DUMPABLE, 0)?;
        sys::set_capabilities(&Capabilities::exactly(self.capabilities | others))
    }

    pub(super) fn drop_others(&self) -> Result<()> {
        sys::set_capabilities(&Capabilities::exactly(self.capabilities))
    }
}

fn own_groups() -> Result<Vec<u32>> {
    let groups = rustix::process::getgroups().map_err(errno)?;
    Ok(groups.into_iter().map(rustix::process::Gid::as_raw).collect())
}

/// The memory of a process. It may change at any moment: each byte is read once.
pub(super) struct Memory {
    thread: u32,
}

impl Memory {
    /// One that is not empty.
    pub(super) fn path(&self, at: u64) -> Result<CString> {
        let path = self.path_or_empty(at)?;
        if path.is_empty() { Err(Errno(libc::ENOENT)) } else { Ok(path) }
    }

    pub(super) fn path_or_empty(&self, at: u64) -> Result<CString> {
        self.text(at, MAX_PATH)?.ok_or(Errno(libc::ENAMETOOLONG))
    }

    pub(super) fn attribute_name(&self, at: u64) -> Result<CString> {
        self.text(at, MAX_ATTRIBUTE_NAME)?.filter(|name| !name.is_empty()).ok_or(Errno(libc::ERANGE))
    }

    /// Up to the first NUL; none where there is none among so many bytes.
    fn text(&self, at: u64, most: usize) -> Result<Option<CString>> {
        const PAGE: u64 = 4096;
        let mut text = Vec::new();
        while text.len() < most {
            let from = at.checked_add(text.len() as u64).ok_or(Errno(libc::EFAULT))?;
            // Not past the end of a page: the next may not be there, and need not be.
            let count = usize::try_from(PAGE - from % PAGE).unwrap_or(most).min(most - text.len());
            let part = self.bytes(from, count)?;
            match part.iter().position(|byte| *byte == 0) {
                Some(end) => {
                    text.extend_from_slice(part.get(..end).unwrap_or_default());
                    return Ok(CString::new(text).ok());
                }
                None => text.extend_from_slice(&part),
            }
        }
        Ok(None)
    }

    pub(super) fn bytes(&self, at: u64, count: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        match sys::read_memory(self.thread, at, &mut bytes) {
            Ok(read) if read == count => Ok(bytes),
            // It may not be looked into: another reason than that there is nothing.
            Err(Errno(libc::EPERM)) => Err(Errno(libc::EPERM)),
            _ => Err(Errno(libc::EFAULT)),
        }
    }
}

fn errno(errno: RxErrno) -> Errno {
    Errno(errno.raw_os_error())
}

/// Who a process is, is what its state says in lines of their own; half a state says nothing.
#[cfg(fuzzing)]
pub(super) fn check_status(status: &[u8]) {
    let Some(read) = Credentials::parse(status) else { return };
    let text = String::from_utf8_lossy(status);
    let says = |name: &str| text.lines().any(|line| line.starts_with(name));
    assert!(["Uid:", "Gid:", "Groups:", "CapEff:", "Umask:"].into_iter().all(says));
    let line = text.lines().find(|line| line.starts_with("Uid:")).unwrap_or_default();
    assert!(line.split_whitespace().any(|word| word.trim_start_matches("Uid:").parse() == Ok(read.uid)));
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tx\\nUid:\t0\t0\t0\t0\nUmask:\t0027\nState:\tS (sleeping)\nUid:\t1000\t1001\t1002\t1003\n\
                          Gid:\t5\t6\t7\t8\nGroups:\t4 24 27 \nCapPrm:\t00000000a80425fb\nCapEff:\t0000000000000009\n";

    #[test]
    fn credentials_are_those_of_the_file_system() {
        let found = Credentials::parse(STATUS.as_bytes()).unwrap();
        let wanted = Credentials { uid: 1003, gid: 8, groups: vec![4, 24, 27], capabilities: 9, umask: 0o027 };
        assert_eq!(found, wanted);
    }

    #[test]
    fn a_status_without_one_of_its_lines_is_nobodys() {
        for line in ["Uid:\t1000", "Gid:", "Groups:", "CapEff:", "Umask:"] {
            let without: String = STATUS.lines().filter(|l| !l.starts_with(line)).map(|l| format!("{l}\n")).collect();
            assert_eq!(Credentials::parse(without.as_bytes()), None, "{line}");
        }
    }

    /// Our own memory stands for the caller's.
    fn own_memory() -> Memory {
        Memory { thread: std::process::id() }
    }

    #[test]
    fn text_is_read_up_to_its_end_across_pages() {
        let mut bytes = vec![b'x'; 10_000];
        bytes[5000] = 0;
        let memory = own_memory();
        let at = |place: usize| bytes.as_ptr() as u64 + place as u64;
        for from in [4999, 4000, 1500, 905] {
            assert_eq!(memory.path_or_empty(at(from)).unwrap().as_bytes().len(), 5000 - from, "{from}");
        }
        assert_eq!(memory.path_or_empty(at(904)), Err(Errno(libc::ENAMETOOLONG)));
        assert_eq!(memory.path(at(5000)), Err(Errno(libc::ENOENT)));
        assert_eq!(memory.attribute_name(at(4745)).unwrap().as_bytes().len(), 255);
        for wrong in [4744, 5000] {
            assert_eq!(memory.attribute_name(at(wrong)), Err(Errno(libc::ERANGE)), "{wrong}");
        }
    }

    #[test]
    fn memory_that_is_not_there_is_a_fault() {
        let memory = own_memory();
        for address in [0, 1, u64::MAX, u64::MAX - 4096, 1 << 63] {
            assert_eq!(memory.path_or_empty(address), Err(Errno(libc::EFAULT)), "{address:x}");
            assert_eq!(memory.bytes(address, 24), Err(Errno(libc::EFAULT)), "{address:x}");
        }
    }
}
