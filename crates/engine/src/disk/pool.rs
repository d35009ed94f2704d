//! Sandboxes on btrfs: each one's own directory is a subvolume, whose bytes the kernel counts and limits.
//!
//! Quotas are a setting of the whole file system and cost it something, so they are used where they are on, and turned on by
//! nobody but its owner.
#![allow(unsafe_code)]

use std::{
    ffi::CString,
    fs::{self, File},
    io,
    os::{
        fd::{AsRawFd, BorrowedFd},
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::Path,
};

use crate::kernel::sys;

const BTRFS: u64 = 0x9123_683e;
/// The number of every subvolume's top directory, and of no other.
const TOP: u64 = 256;

const SUBVOL_CREATE: u64 = 0x5000_940e;
const SUBVOL_GETFLAGS: u64 = 0x8008_9419;
const SUBVOL_SETFLAGS: u64 = 0x4008_941a;
const READ_ONLY: u64 = 1 << 1;
const QGROUP_LIMIT: u64 = 0x8030_942b;
const MAX_REFERENCED: u64 = 1;

#[repr(C)]
struct NewSubvolume {
    fd: i64,
    name: [u8; 4088],
}

#[repr(C)]
#[derive(Default)]
struct QgroupLimit {
    /// Zero is that of the subvolume itself.
    qgroup: u64,
    flags: u64,
    max_referenced: u64,
    max_exclusive: u64,
    reserved_referenced: u64,
    reserved_exclusive: u64,
}

/// Makes a directory whose bytes can be limited, where that can be had; else a plain one.
pub(crate) fn make_dir(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    if !is_btrfs(parent) || make_subvolume(parent, name.as_bytes()).is_err() {
        return fs::create_dir(path);
    }
    Ok(())
}

/// Whether directories made below this one can be limited: tried with one.
pub(crate) fn can_limit(below: &Path) -> bool {
    if !is_btrfs(below) {
        return false;
    }
    let tried = below.join(format!(".quota-{}", uuid::Uuid::new_v4().simple()));
    let can = make_dir(&tried).is_ok() && limit(&tried, Some(1 << 30)).unwrap_or(false);
    let _ = fs::remove_dir(&tried);
    can
}

/// Limits the bytes of a sandbox's own directory. False where the kernel cannot.
pub(crate) fn limit(own: &Path, most: Option<u64>) -> io::Result<bool> {
    // The limit of a plain directory would be that of all around it.
    if !is_btrfs(own) || fs::metadata(own)?.ino() != TOP {
        return Ok(false);
    }
    let dir = File::open(own)?;
    let mut limit =
        QgroupLimit { flags: MAX_REFERENCED, max_referenced: most.unwrap_or(u64::MAX), ..QgroupLimit::default() };
    // SAFETY: the structure that the call reads.
    match unsafe { sys::ioctl_with(dir.as_raw_fd(), QGROUP_LIMIT, &mut limit) } {
        Ok(_) => Ok(true),
        // No quotas on this file system, or none that are ours to set.
        Err(errno) if matches!(errno.0, libc::ENOTCONN | libc::EPERM | libc::ENOENT | libc::EINVAL) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// A subvolume that its owner, a guest, has made read-only is one in which not even root removes anything. What cannot be made writable shows
/// when something in it is removed.
pub(crate) fn make_writable(dir: BorrowedFd<'_>) {
    let is_btrfs = || rustix::fs::fstatfs(dir).is_ok_and(|fs| fs.f_type as u64 == BTRFS);
    if !rustix::fs::fstat(dir).is_ok_and(|stat| stat.st_ino == TOP) || !is_btrfs() {
        return;
    }
    let mut flags = 0u64;
    // SAFETY: the number that the call fills.
    let read = unsafe { sys::ioctl_with(dir.as_raw_fd(), SUBVOL_GETFLAGS, &mut flags) };
    if read.is_ok() && flags & READ_ONLY != 0 {
        flags &= !READ_ONLY;
        // SAFETY: the number that the call reads.
        let _ = unsafe { sys::ioctl_with(dir.as_raw_fd(), SUBVOL_SETFLAGS, &mut flags) };
    }
}

fn is_btrfs(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|fs| fs.f_type as u64 == BTRFS)
}

fn make_subvolume(parent: &Path, name: &[u8]) -> io::Result<()> {
    let name = CString::new(name)?;
    let name = name.to_bytes_with_nul();
    let mut new = NewSubvolume { fd: 0, name: [0; 4088] };
    new.name.get_mut(..name.len()).ok_or(io::ErrorKind::InvalidFilename)?.copy_from_slice(name);
    let parent = File::open(parent)?;
    // SAFETY: the structure that the call reads; the name in it ends in a NUL byte.
    unsafe { sys::ioctl_with(parent.as_raw_fd(), SUBVOL_CREATE, &mut new) }?;
    Ok(())
}
