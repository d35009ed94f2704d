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
    let keeps = |pid: &u32| {
        tables_of(*pid).flat_map(|thread| instances_of(thread, until)).any(|instance| {
            let going = instance.watches_in(&view);
            let _ = instance.remove(live, *pid, &going);
            !instance.is_without(&going)
        })
    };
    // Of a thread with a table of its own, or where the kernel lets nobody have a copy, nothing can be taken off.
    let stubborn: Vec<u32> = live.commands().into_iter().filter(keeps).collect();
    end(live, stubborn.into_iter(), until);
    Instant::now() <= until
}

/// A thread for each table of descriptors that a process has.
fn tables_of(pid: u32) -> impl Iterator<Item = u32> {
    let mut last = None;
    threads(pid).filter(move |thread| {
        let before = last.replace(*thread);
        before.is_none_or(|before| !sys::have_in_common(Common::Files, before, *thread))
    })
}

fn open_to_read(view: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    // Directories and regular files are all that is ever shown.
    Ok(rustix::fs::open(format!("/proc/self/fd/{}", view.as_raw_fd()), flags, Mode::empty())?)
}

/// A descriptor of a thread that watches something.
struct Instance {
    thread: u32,
    number: i32,
}

fn instances_of(thread: u32, until: Instant) -> impl Iterator<Item = Instance> {
    let open = fs::read_dir(format!("/proc/{thread}/fd")).into_iter().flatten().flatten();
    open.take_while(move |_| Instant::now() <= until).filter_map(move |entry| {
        let is_inotify = fs::read_link(entry.path()).is_ok_and(|target| target == Path::new("anon_inode:inotify"));
        let number = entry.file_name().to_str()?.parse().ok()?;
        is_inotify.then_some(Instance { thread, number })
    })
}

impl Instance {
    fn watches(&self) -> Vec<Watched> {
        let info = fs::read_to_string(format!("/proc/{}/fdinfo/{}", self.thread, self.number)).unwrap_or_default();
        info.lines().filter_map(Watched::parse).collect()
    }

    fn watches_in(&self, view: &View<'_>) -> Vec<i32> {
        self.watches().iter().filter(|watch| view.has(watch)).map(|watch| watch.wd).collect()
    }

    fn is_without(&self, gone: &[i32]) -> bool {
        !self.watches().iter().any(|watch| gone.contains(&watch.wd))
    }

    fn remove(&self, live: &Live, pid: u32, watches: &[i32]) -> io::Result<()> {
        if watches.is_empty() {
            return Ok(());
        }
        let has_table_of_process = self.thread == pid || sys::have_in_common(Common::Files, pid, self.thread);
        let process = open_process(pid).filter(|_| has_table_of_process).ok_or(io::ErrorKind::NotFound)?;
        // Asked after it was opened: from then on the number is its own.
        if !live.commands().contains(&pid) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let instance = pidfd_getfd(process, self.number, PidfdGetfdFlags::empty())?;
        for wd in watches {
            let _ = inotify::remove_watch(&instance, *wd); // it may have gone by itself
        }
        Ok(())
    }
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
