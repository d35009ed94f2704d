//! Small steps on descriptors that several operations share.

use std::{
    ffi::{CStr, CString},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use cabana_sandbox::Kind;
use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps},
    io::Errno,
};

/// How often a resolution is tried again when renames elsewhere make the kernel give up on a `..` of a link.
const TRIES: usize = 128;

/// The name by which this process reaches the very file behind a descriptor, whatever became of its path. It is good only
/// as long as the descriptor is open, so this borrows it.
pub(crate) fn proc_path(fd: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// The same for a name in a directory: where the kernel has no call that takes the two apart.
pub(crate) fn proc_entry(dir: &impl AsFd, name: &CStr) -> Vec<u8> {
    [proc_path(dir).as_bytes(), b"/", name.to_bytes()].concat()
}

pub(crate) fn openat2(
    dir: BorrowedFd<'_>,
    path: impl rustix::path::Arg + Copy,
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    for _ in 1..TRIES {
        match rustix::fs::openat2(dir, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return result,
        }
    }
    rustix::fs::openat2(dir, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Opens the file behind an `O_PATH` descriptor. Only for what is known to be a regular file or a directory: a pipe or a
/// device would do something at open. `O_NONBLOCK` makes a file under lease an error instead of a wait of 45 seconds.
pub(crate) fn reopen(fd: &impl AsFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    let safe = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    retry(|| rustix::fs::open(proc_path(fd), flags | safe, Mode::empty()))
}

/// The regular file of this name, never through a link. A directory is `ISDIR`, anything else `NXIO`.
pub(crate) fn open_regular(dir: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> Result<(OwnedFd, Stat), Errno> {
    let found = rustix::fs::openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    regular(&found, flags)
}

pub(crate) fn regular(found: &OwnedFd, flags: OFlags) -> Result<(OwnedFd, Stat), Errno> {
    let stat = rustix::fs::fstat(found)?;
    match file_type(&stat) {
        FileType::RegularFile => Ok((reopen(found, flags)?, stat)),
        FileType::Directory => Err(Errno::ISDIR),
        _ => Err(Errno::NXIO),
    }
}

pub(crate) fn stat_at(dir: impl AsFd, name: &CStr) -> Result<Stat, Errno> {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// What a relative path leads to, through no link, and however long it is: the kernel takes a part of it at a time.
pub(crate) fn find_below(dir: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    /// Of a path, for the kernel, with the NUL at its end.
    const MAX_PATH: usize = 4096;
    let (mut rest, mut found) = (path, None::<OwnedFd>);
    loop {
        let part = match rest.len() < MAX_PATH {
            true => rest,
            // Names have up to 255 bytes: there is a slash.
            false => &rest[..rest[..MAX_PATH].iter().rposition(|byte| *byte == b'/').ok_or(Errno::NAMETOOLONG)?],
        };
        let from = found.as_ref().map_or(dir, AsFd::as_fd);
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let next = openat2(from, part, OFlags::PATH | OFlags::NOFOLLOW, resolve)?;
        rest = rest.get(part.len() + 1..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(next);
        }
        found = Some(next);
    }
}

/// The text of a link. What is none any more since it was looked at is gone, as a link.
pub(crate) fn link_text(dir: impl AsFd, name: &CStr) -> Result<Vec<u8>, Errno> {
    match rustix::fs::readlinkat(dir, name, Vec::new()) {
        Err(Errno::INVAL) => Err(Errno::NOENT),
        text => Ok(text?.into_bytes()),
    }
}

/// `BUSY` for what something is mounted on. The kernel says so itself only to those in whose mount namespace it is mounted:
/// for us it would take the mount off.
pub(crate) fn check_no_mount(dir: impl AsFd, name: &CStr) -> Result<(), Errno> {
    use rustix::fs::{StatxAttributes, StatxFlags};
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    match rustix::fs::statx(dir, name, flags, StatxFlags::TYPE) {
        Ok(stat) if stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) => Err(Errno::BUSY),
        _ => Ok(()), // what cannot be looked at, the step itself will say
    }
}

pub(crate) fn retry<T>(mut step: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match step() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

pub(crate) fn write_all(fd: impl AsFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let n = retry(|| rustix::io::write(&fd, bytes))?;
        bytes = &bytes[n..];
    }
    Ok(())
}

pub(crate) fn write_all_at(fd: impl AsFd, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let n = retry(|| rustix::io::pwrite(&fd, bytes, at))?;
        bytes = &bytes[n..];
        at += n as u64;
    }
    Ok(())
}

pub(crate) fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

pub(crate) fn kind(stat: &Stat) -> Kind {
    match file_type(stat) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        _ => Kind::Other,
    }
}

pub(crate) fn id(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

pub(crate) fn mode(stat: &Stat) -> u32 {
    stat.st_mode & 0o7777
}

pub(crate) fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

pub(crate) fn modified(stat: &Stat) -> SystemTime {
    let nanos = Duration::from_nanos(stat.st_mtime_nsec);
    let whole = Duration::from_secs(stat.st_mtime.unsigned_abs());
    let time = if stat.st_mtime < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    time.and_then(|t| t.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

/// Only the time of modification; the time of access stays.
pub(crate) fn mtime(seconds: i64, nanos: u32) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: i64::from(nanos) },
    }
}

/// The mode of a file that is there, exactly as given: the process's umask has no say.
pub(crate) fn chmod(fd: impl AsFd, mode: u32) -> Result<(), Errno> {
    rustix::fs::fchmod(fd, Mode::from_raw_mode(mode & 0o7777))
}

/// The same for an `O_PATH` descriptor, which fchmod refuses.
pub(crate) fn chmod_path(fd: &impl AsFd, mode: u32) -> Result<(), Errno> {
    rustix::fs::chmod(proc_path(fd), Mode::from_raw_mode(mode & 0o7777))
}

pub(crate) fn uid(raw: u32) -> rustix::fs::Uid {
    rustix::fs::Uid::from_raw(raw)
}

pub(crate) fn gid(raw: u32) -> rustix::fs::Gid {
    rustix::fs::Gid::from_raw(raw)
}

/// A name without NUL; others cannot exist.
pub(crate) fn c_name(name: &[u8]) -> Result<CString, Errno> {
    CString::new(name).map_err(|_| Errno::INVAL)
}
