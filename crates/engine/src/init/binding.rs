//! The names of sockets. A broker gives them, since a Unix socket whose name lies on a view could be reached by whoever else sees that
//! directory, and descriptors could be handed through it from one sandbox to another.
//!
//! The name is looked up as the caller first: what does not lie on the sandbox's own files is refused. A guest can have moved another
//! directory there by the time the kernel looks it up to make it. So it is made in a copy of the sandbox's mounts that has no views at
//! all, with the very words of the caller: they are the socket's address from then on, and programs ask for it. A caller
//! whose own directory is not in the copy, or that names one by a descriptor, has it made by its last part alone, in the directory that was looked at.

use std::{
    ffi::CString,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use rustix::fs::{OFlags, ResolveFlags};

use super::{
    broker::{Broker, descriptor_of_self, errno, is_absolute, split},
    caller::{Caller, Credentials},
    notifications::OwnMounts,
};
use crate::kernel::{
    mounts,
    sys::{self, Errno, Result, Secret},
};

/// As the kernel bounds it: a `sockaddr_storage`.
const MAX_ADDRESS: usize = 128;
/// Where the path of a Unix socket begins.
const PATH: usize = 2;
const CAP_SYS_CHROOT: u64 = 1 << 18;

/// What the registers say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BindCall {
    pub(super) socket: i32,
    pub(super) address: u64,
    pub(super) length: i32,
}

/// The same, with what lay in the caller's memory and among its descriptors.
pub(super) struct BindRequest {
    socket: OwnedFd,
    address: Vec<u8>,
    /// None of addresses that are no path.
    name: Option<Name>,
}

/// The path of a Unix socket.
struct Name {
    /// From this directory on; without one it is an absolute path.
    dir: Option<OwnedFd>,
    path: CString,
    copy: Option<InCopy>,
}

/// Where the caller's paths begin, in the copy without views.
struct InCopy {
    root: OwnedFd,
    dir: Option<OwnedFd>,
}

impl BindCall {
    pub(super) fn read(self, secret: Secret, caller: &Caller, own: &OwnMounts) -> Result<BindRequest> {
        let length = usize::try_from(self.length).ok().filter(|length| *length <= MAX_ADDRESS);
        let length = length.ok_or(Errno(libc::EINVAL))?;
        let address = caller.memory().bytes(self.address, length)?;
        let socket = caller.duplicate(self.socket)?;
        let name = match path_of(&address) {
            Some(path) => Some(Name::read(secret, caller, own, path)?),
            None => None,
        };
        Ok(BindRequest { socket, address, name })
    }
}

impl BindRequest {
    /// The name is looked up in two trees, and as the caller in both.
    pub(super) fn needs_beside(&self) -> u64 {
        if self.name.is_some() { CAP_SYS_CHROOT } else { 0 }
    }
}

/// As the kernel reads it: up to the first NUL. One that begins with a NUL is abstract, and none at all is for the kernel to choose.
fn path_of(address: &[u8]) -> Option<CString> {
    let family = u16::from_ne_bytes([*address.first()?, *address.get(1)?]);
    let path = address.get(PATH..)?.split(|byte| *byte == 0).next()?;
    let is_path = i32::from(family) == libc::AF_UNIX && !path.is_empty();
    is_path.then(|| CString::new(path).ok()).flatten()
}

impl Name {
    fn read(secret: Secret, caller: &Caller, own: &OwnMounts, path: CString) -> Result<Self> {
        // The way to directories whose path is too long for an address.
        if let Some((number, rest)) = below_descriptor(path.as_bytes())
            && !caller.is_in_chroot()?
        {
            return Ok(Self { dir: Some(caller.descriptor(number)?), path: rest, copy: None });
        }
        let dir = if is_absolute(&path) { None } else { Some(caller.directory(libc::AT_FDCWD)?) };
        let copy = InCopy::find(secret, own, caller.root()?.as_fd(), dir.as_ref())?;
        Ok(Self { dir, path, copy })
    }
}

/// `/proc/self/fd/N/rest`.
fn below_descriptor(path: &[u8]) -> Option<(i32, CString)> {
    let mut slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    let cut = slashes.nth(4)?;
    let rest = CString::new(&path[cut + 1..]).ok().filter(|rest| !is_absolute(rest))?;
    Some((descriptor_of_self(&path[..cut])?, rest))
}

impl InCopy {
    fn find(secret: Secret, own: &OwnMounts, root: BorrowedFd<'_>, dir: Option<&OwnedFd>) -> Result<Option<Self>> {
        let links = mounts::open_proc(c"/proc/self/fd", OFlags::PATH | OFlags::DIRECTORY).map_err(errno)?;
        let find = |directory: BorrowedFd<'_>| find_in_copy(secret, own, links.as_fd(), directory);
        let Some(root) = find(root) else { return Ok(None) };
        Ok(match dir.map(|dir| find(dir.as_fd())) {
            None => Some(Self { root, dir: None }),
            Some(Some(dir)) => Some(Self { root, dir: Some(dir) }),
            Some(None) => None,
        })
    }
}

/// The very same directory, by its path of now.
fn find_in_copy(secret: Secret, own: &OwnMounts, links: BorrowedFd<'_>, directory: BorrowedFd<'_>) -> Option<OwnedFd> {
    let path = rustix::fs::readlinkat(links, directory.as_raw_fd().to_string(), Vec::new()).ok()?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    let copy = own.without_views.as_raw_fd();
    let found = sys::open_at2(secret, copy, &path, flags.bits().into(), resolve.bits()).ok()?;
    let [one, other] =
        [found.as_fd(), directory].map(|fd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino)));
    (one.ok()? == other.ok()?).then_some(found)
}

impl Broker<'_> {
    /// As the caller.
    pub(super) fn bind(&self, request: BindRequest, credentials: &Credentials) -> Result<()> {
        let BindRequest { socket, mut address, name } = request;
        sys::umask(credentials.umask);
        if let Some(name) = name
            && let Some(last) = self.stand_at(name)?
        {
            address.truncate(PATH);
            address.extend_from_slice(last.as_bytes_with_nul());
        }
        credentials.drop_others()?;
        sys::bind(self.secret, socket.as_fd(), &address)?;
        self.listener.answer(self.notification.id, Ok(()));
        Ok(())
    }

    /// Goes where the name is to be made: in the copy with the caller's own words, or else by those that are given.
    fn stand_at(&self, name: Name) -> Result<Option<CString>> {
        let Name { dir, path, copy } = name;
        let (above, last) = split(path.as_bytes()).map_err(|_| Errno(libc::EADDRINUSE))?;
        let dir = self.open(dir.as_ref(), &above, OFlags::PATH | OFlags::DIRECTORY)?;
        if !self.own_mounts.has(dir.as_fd()).map_err(errno)? {
            return Err(Errno(libc::EPERM));
        }
        let Some(InCopy { root, dir: start }) = copy else {
            rustix::process::fchdir(&dir).map_err(errno)?;
            return Ok(Some(last));
        };
        rustix::process::fchdir(&root).map_err(errno)?;
        rustix::process::chroot(c".").map_err(errno)?;
        if let Some(start) = start {
            rustix::process::fchdir(&start).map_err(errno)?;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unix(path: &[u8]) -> Vec<u8> {
        [&(libc::AF_UNIX as u16).to_ne_bytes()[..], path].concat()
    }

    #[test]
    fn only_a_unix_address_with_a_name_is_a_path() {
        let path = |address: &[u8]| path_of(address).map(|path| path.into_string().unwrap());
        assert_eq!(path(&unix(b"/tmp/s")), Some("/tmp/s".into()));
        assert_eq!(path(&unix(b"s\0rest")), Some("s".into()));
        for other in [&b""[..], b"\x01", &unix(b""), &unix(b"\0abstract"), b"\x02\x00\x1f\x90\x7f\0\0\x01"] {
            assert_eq!(path(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_name_below_a_descriptor_is_known() {
        let found = |path: &[u8]| below_descriptor(path).map(|(number, rest)| (number, rest.into_string().unwrap()));
        assert_eq!(found(b"/proc/self/fd/7/s"), Some((7, "s".into())));
        assert_eq!(found(b"/proc/self/fd/7/a/s"), Some((7, "a/s".into())));
        for other in
            [&b"/proc/self/fd/7"[..], b"/proc/self/fd/x/s", b"/proc/1/fd/7/s", b"/tmp/s", b"/proc/self/fd/7//s"]
        {
            assert_eq!(found(other), None, "{other:?}");
        }
    }
}
