//! Mounts as descriptors: detached clones of directories, and their id maps.
#![allow(unsafe_code)]

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags},
    mount::{MoveMountFlags, OpenTreeFlags},
};

#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns: u64,
}

pub(crate) const RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;
pub(crate) const NOSUID: u64 = libc::MOUNT_ATTR_NOSUID;
pub(crate) const NODEV: u64 = libc::MOUNT_ATTR_NODEV;
pub(crate) const NOEXEC: u64 = libc::MOUNT_ATTR_NOEXEC;

/// A detached clone of the mount at `path`, rooted there, without what is mounted below it.
pub(crate) fn detach(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::mount::open_tree(
        rustix::fs::CWD,
        path,
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_NO_AUTOMOUNT,
    )?)
}

/// The same of what is open.
pub(crate) fn detach_open(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    Ok(rustix::mount::open_tree(fd, c"", flags)?)
}

/// A detached clone of what is open with everything that is mounted below it by now.
pub(crate) fn detach_tree(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    Ok(rustix::mount::open_tree(fd, c"", flags | OpenTreeFlags::AT_RECURSIVE)?)
}

/// Attributes of a detached mount, with the id map of a user namespace if one is given.
pub(crate) fn set_attributes(mount: BorrowedFd<'_>, set: u64, userns: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut attr = MountAttr { set, clear: 0, propagation: libc::MS_PRIVATE, userns: 0 };
    if let Some(userns) = userns {
        attr.set |= libc::MOUNT_ATTR_IDMAP;
        attr.userns = userns.as_raw_fd() as u64;
    }
    // SAFETY: reads a local of the size that is given.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A new, detached tmpfs.
pub(crate) fn tmpfs(options: &[(&CStr, &CStr)]) -> io::Result<OwnedFd> {
    use rustix::mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
    };
    let context = fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        fsconfig_set_string(context.as_fd(), *key, *value)?;
    }
    fsconfig_create(context.as_fd())?;
    Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}

/// Whether an overlay has this directory as its upper one, in whatever mount namespace, or in none any more. Asks the kernel for one
/// more with an index, which it refuses then; a work directory on another file system has it refuse it in any case, later on.
pub(crate) fn is_upper_of_overlay(dir: BorrowedFd<'_>) -> io::Result<bool> {
    use rustix::mount::{FsOpenFlags, fsconfig_create, fsconfig_set_string, fsopen};
    let elsewhere = tmpfs(&[])?;
    let path = |fd: BorrowedFd<'_>| format!("/proc/self/fd/{}", fd.as_raw_fd());
    let context = fsopen(c"overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in [
        (c"index", "on".to_owned()),
        (c"lowerdir", path(elsewhere.as_fd())),
        (c"upperdir", path(dir)),
        (c"workdir", path(elsewhere.as_fd())),
    ] {
        fsconfig_set_string(context.as_fd(), key, value)?;
    }
    match fsconfig_create(context.as_fd()) {
        Err(rustix::io::Errno::BUSY) => Ok(true),
        Err(rustix::io::Errno::INVAL) => Ok(false),
        Err(errno) => Err(errno.into()),
        Ok(()) => Err(io::Error::other("an overlay was made of two file systems")),
    }
}

/// Puts a detached mount to its place.
pub(crate) fn attach(mount: BorrowedFd<'_>, at: &CStr) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(rustix::mount::move_mount(mount, c"", rustix::fs::CWD, at, flags)?)
}

/// Puts a detached mount onto an open directory.
pub(crate) fn attach_onto(mount: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(rustix::mount::move_mount(mount, c"", target, c"", flags)?)
}

/// A detached clone of a mount of this namespace, with the attributes that it has. It does not keep the mount itself in use.
pub(crate) fn clone_of(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_NO_AUTOMOUNT
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    Ok(rustix::mount::open_tree(parent, name, flags)?)
}

/// Makes a mount that is attached read-only or writable, for descriptors that were opened before as well. `EBUSY` while something
/// is open for writing in it.
pub(crate) fn set_read_only(mount: BorrowedFd<'_>, read_only: bool) -> io::Result<()> {
    let (set, clear) = if read_only { (RDONLY, 0) } else { (0, RDONLY) };
    let attr = MountAttr { set, clear, propagation: 0, userns: 0 };
    // SAFETY: reads a local of the size that is given.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Takes off what is mounted at a name of the working directory. `EBUSY` while anything has a hold on it: a working directory, a
/// descriptor of whatever kind and wherever it is, a mapping.
pub(crate) fn unmount(name: &CStr) -> io::Result<()> {
    umount(name, libc::UMOUNT_NOFOLLOW)
}

/// Takes a mount off, whoever uses it: what they have open stays open.
pub(crate) fn detach_lazily(at: &CStr) -> io::Result<()> {
    umount(at, libc::MNT_DETACH)
}

fn umount(at: &CStr, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: a NUL-terminated string, read by the kernel.
    let done = unsafe { libc::umount2(at.as_ptr(), flags) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A part of a path that was made for a mount.
pub(crate) struct Made {
    parent: OwnedFd,
    name: Vec<u8>,
    directory: bool,
}

impl Made {
    pub(crate) fn unmake(&self) {
        let flags = if self.directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let _ = rustix::fs::unlinkat(&self.parent, self.name.as_slice(), flags);
    }
}

/// Opens `path` in a sandbox's root, making what is missing of it. A link on the way is `LOOP`: a guest, or a template, would say
/// where a mount lands.
pub(crate) fn make_mount_point(
    root: BorrowedFd<'_>,
    path: &[u8],
    directory: bool,
    made: &mut Vec<Made>,
) -> rustix::io::Result<OwnedFd> {
    let open = |at: &[u8], flags| {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        let at = if at.is_empty() { b"." } else { at };
        rustix::fs::openat2(root, at, OFlags::PATH | OFlags::CLOEXEC | flags, Mode::empty(), resolve)
    };
    let path = path.strip_prefix(b"/").unwrap_or(path);
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
    let mut above = 0;
    for end in ends.chain([path.len()]) {
        let is_file = end == path.len() && !directory;
        if matches!(open(&path[..end], OFlags::empty()), Err(rustix::io::Errno::NOENT)) {
            let parent = open(path[..above].strip_suffix(b"/").unwrap_or(&path[..above]), OFlags::DIRECTORY)?;
            let name = &path[above..end];
            if is_file {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                rustix::fs::openat(&parent, name, flags, 0o644.into())?;
            } else {
                rustix::fs::mkdirat(&parent, name, 0o755.into())?;
            }
            made.push(Made { parent, name: name.to_vec(), directory: !is_file });
        }
        above = end + 1;
    }
    let point = open(path, if directory { OFlags::DIRECTORY } else { OFlags::empty() })?;
    // Where something is mounted already, such as the root itself, there is nothing to be put over that.
    match is_mount_root(point.as_fd())? {
        true => Err(rustix::io::Errno::BUSY),
        false => Ok(point),
    }
}

/// The first symbolic link on the way to `path`, as far as that is seen with these flags.
pub(crate) fn first_link(root: BorrowedFd<'_>, path: &[u8], seen: ResolveFlags) -> Option<Vec<u8>> {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
    let is_link = |end: &usize| {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | seen;
        let there = rustix::fs::openat2(root, &path[..*end], flags, Mode::empty(), resolve).and_then(rustix::fs::fstat);
        there.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
    };
    let end = ends.chain([path.len()]).find(is_link)?;
    Some([b"/", &path[..end]].concat())
}

/// Something of the kernel's own about processes, by its path. Another sandbox can take `/proc` off, and then the guest can put
/// files of its own there: what is not the kernel's is refused.
pub(crate) fn open_proc(path: impl rustix::path::Arg, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    const PROC: u64 = 0x9fa0;
    let found = rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())?;
    match rustix::fs::fstatfs(&found)?.f_type as u64 == PROC {
        true => Ok(found),
        false => Err(rustix::io::Errno::PERM),
    }
}

/// The number of the mount that something open lies on. No other has it as long as that mount is there.
pub(crate) fn id(fd: BorrowedFd<'_>) -> rustix::io::Result<u64> {
    Ok(rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id)
}

fn is_mount_root(fd: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::empty())?;
    Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

pub(crate) fn plain(source: &CStr, target: &CStr, kind: &CStr, flags: u64, options: &CStr) -> io::Result<()> {
    // SAFETY: NUL-terminated strings, read by the kernel.
    let done = unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

pub(crate) fn pivot_here() -> io::Result<()> {
    // The old root ends up stacked on the new one, and is taken off again: no directory for it is needed.
    // SAFETY: NUL-terminated strings.
    let done = unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    let done = unsafe { libc::umount2(c".".as_ptr(), libc::MNT_DETACH) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The slave of a terminal whose master is open, without any path: it may lie in another mount namespace.
pub(crate) fn pty_peer(master: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    let fd = super::sys::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags as usize)?;
    // SAFETY: the kernel made it for us just now.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
