//! Watches (inotify) of processes inside on files of a view that went. The kernel hangs them onto files and not onto mounts, so they
//! would go on telling of what others do there.
//!
//! A watch is known by the file system and the handle of its file. It is taken off through a copy of the very descriptor that it
//! belongs to, and the process hears that it is gone (`IN_IGNORED`).
#![allow(unsafe_code)]

use std::{
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    time::Instant,
};

use rustix::{
    fs::{Mode, OFlags, ResolveFlags, inotify},
    process::{PidfdGetfdFlags, pidfd_getfd},
};

use super::{
    holders::{end, open_process, threads},
    mount_table::Device,
};
use crate::{
    kernel::sys::{self, Common},
    live::Live,
};

const MAX_HANDLE: usize = 128;

/// `view` is a detached mount that shows the same. False when there was not the time to look at everything.
pub(super) fn take_off(live: &Live, view: BorrowedFd<'_>, device: Device, until: Instant) -> bool {
    let root = open_to_read(view);
    let view = View { root: root.as_ref().ok(), device };
    let mut stubborn = Vec::new();
    for pid in live.commands() {
        let mut last = None;
        for thread in threads(pid) {
            if last.is_none_or(|last| !sys::have_in_common(Common::Files, last, thread)) {
                for (number, watches) in instances_of(thread) {
                    if Instant::now() > until {
                        return false;
                    }
                    let going: Vec<i32> =
                        watches.iter().filter(|watch| view.has(watch)).map(|watch| watch.wd).collect();
                    if !going.is_empty() && remove(pid, number, &going).is_err() {
                        stubborn.push(pid); // a table of a thread's own, or a kernel that lets nobody have a copy
                    }
                }
            }
            last = Some(thread);
        }
    }
    end(live, stubborn.into_iter(), until);
    Instant::now() <= until
}

fn open_to_read(view: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    // Directories and regular files are all that is ever shown.
    Ok(rustix::fs::open(format!("/proc/self/fd/{}", view.as_raw_fd()), flags, Mode::empty())?)
}

/// The descriptors of a thread that watch something.
fn instances_of(thread: u32) -> impl Iterator<Item = (i32, Vec<Watched>)> {
    let open = fs::read_dir(format!("/proc/{thread}/fd")).into_iter().flatten().flatten();
    open.filter_map(move |entry| {
        let target = fs::read_link(entry.path()).ok()?;
        let number: i32 = entry.file_name().to_str()?.parse().ok()?;
        (target == Path::new("anon_inode:inotify")).then_some(())?;
        let info = fs::read_to_string(format!("/proc/{thread}/fdinfo/{number}")).ok()?;
        Some((number, info.lines().filter_map(Watched::parse).collect()))
    })
}

fn remove(pid: u32, number: i32, watches: &[i32]) -> io::Result<()> {
    let process = open_process(pid).ok_or(io::ErrorKind::NotFound)?;
    let instance = pidfd_getfd(process, number, PidfdGetfdFlags::empty())?;
    for wd in watches {
        match inotify::remove_watch(&instance, *wd) {
            Ok(()) | Err(rustix::io::Errno::INVAL) => {} // it may have gone by itself
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// A line of what the kernel tells of an inotify descriptor.
#[derive(Debug, PartialEq, Eq)]
struct Watched {
    wd: i32,
    device: Device,
    /// None where the file system has no handles.
    handle: Option<(i32, Vec<u8>)>,
}

impl Watched {
    fn parse(line: &str) -> Option<Self> {
        let line = line.strip_prefix("inotify ")?;
        let field = |name: &str| line.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix(':'));
        let device = u32::from_str_radix(field("sdev")?, 16).ok()?;
        let handle = || {
            let kind = i32::from_str_radix(field("fhandle-type")?, 16).ok()?;
            let digits = field("f_handle")?.as_bytes();
            let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
            let bytes: Vec<u8> = digits.chunks_exact(2).map(byte).collect::<Option<_>>()?;
            (!bytes.is_empty() && bytes.len() <= MAX_HANDLE).then_some((kind, bytes))
        };
        let wd = i32::from_str_radix(field("wd")?, 16).ok()?;
        Some(Self { wd, device: (device >> 20, device & 0xf_ffff), handle: handle() })
    }
}

struct View<'a> {
    root: Option<&'a OwnedFd>,
    device: Device,
}

impl View<'_> {
    /// What cannot be told lies in it.
    fn has(&self, watched: &Watched) -> bool {
        watched.device == self.device && self.place_of(watched).is_none_or(|place| place)
    }

    /// Whether the file is found in the view by the path that the kernel knows of it.
    fn place_of(&self, watched: &Watched) -> Option<bool> {
        let (root, (kind, handle)) = (self.root?, watched.handle.as_ref()?);
        let file = open_by_handle(root.as_fd(), *kind, handle).ok()?;
        let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        if path.as_os_str().as_bytes().ends_with(b" (deleted)") {
            return None;
        }
        let here = rustix::fs::fstat(&file).ok()?;
        let there = open_below(root, &path).and_then(rustix::fs::fstat);
        Some(there.is_ok_and(|there| (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)))
    }
}

fn open_below(root: &OwnedFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let below: PathBuf = path.components().skip(1).collect(); // without the slash that it begins with
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if below.as_os_str().is_empty() {
        return rustix::io::dup(root);
    }
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(root, &below, flags, Mode::empty(), resolve)
}

fn open_by_handle(mount: BorrowedFd<'_>, kind: i32, bytes: &[u8]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Handle {
        length: u32,
        kind: i32,
        bytes: [u8; MAX_HANDLE],
    }
    let mut handle = Handle { length: bytes.len() as u32, kind, bytes: [0; MAX_HANDLE] };
    handle.bytes[..bytes.len()].copy_from_slice(bytes);
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    // SAFETY: reads a local that is at least as long as it says.
    let fd = unsafe { libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw mut handle, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel made it for us just now.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_about_a_watch_is_read() {
        let line = "inotify wd:a ino:9e7e sdev:800013 mask:800afce ignored_mask:0 fhandle-bytes:8 fhandle-type:1 f_handle:7e9e0000640d1b6d";
        let handle = vec![0x7e, 0x9e, 0, 0, 0x64, 0x0d, 0x1b, 0x6d];
        assert_eq!(Watched::parse(line), Some(Watched { wd: 10, device: (8, 0x13), handle: Some((1, handle)) }));
        let bare = "inotify wd:1 ino:2 sdev:1e mask:2 ignored_mask:0 ";
        assert_eq!(Watched::parse(bare), Some(Watched { wd: 1, device: (0, 0x1e), handle: None }));
        for odd in ["pos:\t0", "inotify wd:1 ino:2", "inotify wd:x sdev:1"] {
            assert_eq!(Watched::parse(odd), None);
        }
    }

    #[test]
    fn a_watched_file_is_known_to_lie_in_a_directory_or_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let (inner, beside) = (dir.path().join("inner"), dir.path().join("beside"));
        for path in [&inner, &beside] {
            fs::create_dir_all(path.join("deep")).unwrap();
            fs::write(path.join("file"), "").unwrap();
        }
        let instance = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
        // A mount of its own, rooted there, as a view is.
        let mount = crate::kernel::mounts::detach(&inner).unwrap();
        let root = open_to_read(mount.as_fd()).unwrap();
        let watched = |path: &Path| {
            let wd =
                inotify::add_watch(&instance, path, inotify::WatchFlags::CREATE | inotify::WatchFlags::MODIFY).unwrap();
            let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", instance.as_raw_fd())).unwrap();
            info.lines().filter_map(Watched::parse).find(|watched| watched.wd == wd).unwrap()
        };
        let device = watched(&inner).device;
        let view = View { root: Some(&root), device };
        for name in ["", "deep", "file"] {
            assert!(view.has(&watched(&inner.join(name))), "{name}");
            assert!(!view.has(&watched(&beside.join(name))), "{name}");
        }
        assert!(!view.has(&watched(Path::new("/proc"))));
    }
}
