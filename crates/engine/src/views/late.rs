//! The views of a sandbox that runs are changed from outside: a thread of ours enters its mount namespace, and ends there.
//!
//! Init could not do it: it lives behind the filter that guests have, and has no right to mount. What is mounted by then is read
//! from the kernel and never from memory, so that the same function changes, restores, and finishes what a sudden end left
//! undone. The commands stand still meanwhile, and see all of a change or nothing.
//!
//! A guest cannot mount, nor move a mount. But it can rename the directories around a view, and put links where one is to be. So a
//! view is known by what it shows and where the kernel says that it is now, and a new one is put onto the sandbox's own files or
//! another view, and nowhere else.

use std::{
    ffi::CString,
    fs::File,
    io::{self, Read, Seek},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use cabana_sandbox::{Error, Result};
use rustix::{
    fs::{AtFlags, Mode, OFlags, StatxFlags},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use super::invalid;
use crate::{
    kernel::{
        mounts::{self, Made},
        pidfd, sys,
        thread_identity::{ActingAs, Identity},
    },
    plan::Mount,
    wire::Place,
};

/// What the views of a sandbox are to be.
pub(crate) struct Change {
    /// Detached, with their ids mapped; the outer ones first.
    pub(crate) views: Vec<Mount>,
    /// Where its overlays are: the root, and trees of the host.
    pub(crate) overlays: Vec<Vec<u8>>,
    /// Root inside, as the host knows it.
    pub(crate) root: Identity,
}

/// Blocks. An error may leave it half done: then what was before is asked for.
pub(crate) fn change(init: BorrowedFd<'_>, change: Change) -> Result<()> {
    let failed = |error| Error::failed("changing the views", error);
    let pid = pidfd::number(init).map_err(failed)?;
    let namespace = File::open(format!("/proc/{pid}/ns/mnt")).map_err(failed)?;
    let mountinfo = File::open(format!("/proc/{pid}/mountinfo")).map_err(failed)?;
    if !pidfd::is_alive(init) {
        return Err(Error::Gone); // the number may be another's
    }
    // It does not come back: one that did, half-way, would be a danger to what runs next.
    let thread = std::thread::Builder::new().name("views".into()).spawn(move || {
        let inside = Inside::enter(&namespace, mountinfo).map_err(failed)?;
        inside.change(change)
    });
    thread.map_err(failed)?.join().unwrap_or_else(|_| Err(failed(io::Error::other("the thread ended early"))))
}

struct Inside {
    root: OwnedFd,
    /// The host's own list of this thread's descriptors: inside there is no way to name what is open.
    descriptors: OwnedFd,
    mountinfo: File,
}

/// A mount of the sandbox, as the kernel tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    id: u64,
    parent: u64,
    at: Vec<u8>,
    read_only: bool,
}

/// A view that is there.
struct There {
    told: Told,
    fd: OwnedFd,
    shows: (u64, u64),
}

/// One that is wanted.
struct Wanted {
    at: Vec<u8>,
    directory: bool,
    read_only: bool,
    fd: OwnedFd,
    id: u64,
    shows: (u64, u64),
}

impl Inside {
    fn enter(namespace: &File, mountinfo: File) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptors = rustix::fs::open("/proc/thread-self/fd", flags, Mode::empty())?;
        // A root and a working directory of its own, or the whole process would go along.
        sys::unshare(libc::CLONE_FS)?;
        sys::umask(0o022);
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))?;
        let root = rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { root, descriptors, mountinfo })
    }

    fn change(mut self, change: Change) -> Result<()> {
        let failed = |error: io::Error| Error::failed("changing the views", error);
        let Change { views, overlays, root } = change;
        let wanted = views.into_iter().filter_map(Wanted::of).collect::<io::Result<Vec<_>>>().map_err(failed)?;
        let there = self.there(&overlays).map_err(failed)?;
        let kept = kept(&wanted, &there);
        let mut going: Vec<&There> = there.iter().filter(|there| !kept.contains(&there.told.id)).collect();
        going.sort_by_key(|there| std::cmp::Reverse(depth(&there.told.at)));
        for view in going {
            self.unmount(view.fd.as_fd()).map_err(failed)?;
        }
        let coming: Vec<&Wanted> = wanted
            .iter()
            .filter(|wanted| !there.iter().any(|there| kept.contains(&there.told.id) && wanted.is(there)))
            .collect();
        let mut made = Vec::new();
        let done = self.attach(&coming, &overlays, &root, &mut made);
        if done.is_err() {
            for view in coming.iter().rev() {
                let _ = self.unmount(view.fd.as_fd()); // not there yet is fine
            }
            let _acting = ActingAs::new(&root);
            made.iter().rev().for_each(Made::unmake);
        }
        done
    }

    fn attach(
        &mut self,
        coming: &[&Wanted],
        overlays: &[Vec<u8>],
        root: &Identity,
        made: &mut Vec<Made>,
    ) -> Result<()> {
        let failed = |error: io::Error| Error::failed("changing the views", error);
        for view in coming {
            let shown = String::from_utf8_lossy(&view.at).into_owned();
            let point = {
                let _acting = ActingAs::new(root);
                mounts::make_mount_point(self.root.as_fd(), &view.at, view.directory, made)
            };
            let point =
                point.map_err(|errno| invalid(format!("{shown}: no place for it: {}", io::Error::from(errno))))?;
            let (on, _) = identity(point.as_fd()).map_err(failed)?;
            let own = self.told().map_err(failed)?;
            if !own.iter().any(|told| told.id == on && (told.is_overlay(overlays) || told.is_view(overlays))) {
                let why = "a link leads it to what every sandbox has of its own (/proc, /sys, /dev)";
                return Err(invalid(format!("{shown}: {why}")));
            }
            mounts::attach_onto(view.fd.as_fd(), point.as_fd()).map_err(failed)?;
        }
        // Links, and directories that were renamed, can bring a view over another one that is not its own.
        let told = self.told().map_err(failed)?;
        for view in told.iter().filter(|told| coming.iter().any(|view| view.id == told.id)) {
            let hidden = |other: &&Told| is_below(&other.at, &view.at) && !lies_on(&told, other, view.id);
            if let Some(other) = told.iter().find(hidden) {
                let [view, other] = [&view.at, &other.at].map(|at| String::from_utf8_lossy(at));
                return Err(invalid(format!("a view at {view} would hide what is mounted at {other}")));
            }
        }
        Ok(())
    }

    /// All mounts of the sandbox.
    fn told(&mut self) -> io::Result<Vec<Told>> {
        self.mountinfo.rewind()?;
        let mut text = Vec::new();
        self.mountinfo.read_to_end(&mut text)?;
        text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(Told::parse).collect()
    }

    /// Its views, opened.
    fn there(&mut self, overlays: &[Vec<u8>]) -> io::Result<Vec<There>> {
        let views = self.told()?.into_iter().filter(|told| told.is_view(overlays));
        views.map(|told| self.find(told)).collect()
    }

    /// Part by part: a guest may have moved it to where no path is short enough.
    fn find(&self, told: Told) -> io::Result<There> {
        let mut fd = self.root.try_clone()?;
        for part in told.at.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            fd = rustix::fs::openat(&fd, part, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        }
        let (id, shows) = identity(fd.as_fd())?;
        match id == told.id {
            true => Ok(There { told, fd, shows }),
            false => Err(io::Error::other("a view is not where it is said to be")),
        }
    }

    /// By its descriptor, and so that whoever has something open in it keeps that alone.
    fn unmount(&self, view: BorrowedFd<'_>) -> io::Result<()> {
        rustix::process::fchdir(&self.descriptors)?;
        let name = CString::new(view.as_raw_fd().to_string())?;
        mounts::unmount(&name)
    }
}

impl Wanted {
    fn of(mount: Mount) -> Option<io::Result<Self>> {
        let Mount { fd, place: Place::View { at, directory }, read_only, .. } = mount else { return None };
        let known = identity(fd.as_fd());
        Some(known.map(|(id, shows)| Self { at, directory, read_only, fd, id, shows }))
    }

    fn is(&self, there: &There) -> bool {
        self.at == there.told.at && self.read_only == there.told.read_only && self.shows == there.shows
    }
}

impl Told {
    /// A line of `mountinfo`: number, parent, device, root, place, options; what follows is not needed.
    fn parse(line: &[u8]) -> io::Result<Self> {
        let odd = || io::Error::from(io::ErrorKind::InvalidData);
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let [id, parent, _, _, at, options, ..] = fields[..] else { return Err(odd()) };
        let number =
            |field: &[u8]| std::str::from_utf8(field).ok().and_then(|field| field.parse().ok()).ok_or_else(odd);
        let read_only = options.split(|byte| *byte == b',').any(|option| option == b"ro");
        Ok(Self { id: number(id)?, parent: number(parent)?, at: unescape(at), read_only })
    }

    fn is_overlay(&self, overlays: &[Vec<u8>]) -> bool {
        overlays.contains(&self.at)
    }

    /// What is neither an overlay, nor every sandbox's own: there is nothing else, none of those can be moved, and nothing is ever
    /// put onto the root of one.
    fn is_view(&self, overlays: &[Vec<u8>]) -> bool {
        let own = [&b"/proc"[..], b"/dev"];
        !self.is_overlay(overlays) && !own.iter().any(|own| self.at == *own || is_below(&self.at, own))
    }
}

/// The views that stay: what they show, how and where is as wanted, and nothing around them changes.
fn kept(wanted: &[Wanted], there: &[There]) -> Vec<u64> {
    let stays = |there: &&There| wanted.iter().any(|wanted| wanted.is(there));
    let mut kept: Vec<&There> = there.iter().filter(stays).collect();
    loop {
        let is_kept = |told: &Told| kept.iter().any(|there| there.told == *told);
        let moved = there.iter().filter(|there| !is_kept(&there.told)).map(|there| &there.told.at);
        let new = wanted.iter().filter(|wanted| !kept.iter().any(|there| wanted.is(there))).map(|wanted| &wanted.at);
        let changed: Vec<&Vec<u8>> = moved.chain(new).collect();
        let before = kept.len();
        let still: Vec<&There> = kept
            .iter()
            .copied()
            .filter(|there| !changed.iter().any(|changed| is_below(&there.told.at, changed)))
            .collect();
        kept = still;
        if kept.len() == before {
            return kept.iter().map(|there| there.told.id).collect();
        }
    }
}

fn is_below(path: &[u8], other: &[u8]) -> bool {
    path.strip_prefix(other).is_some_and(|rest| rest.starts_with(b"/"))
}

fn depth(path: &[u8]) -> usize {
    path.iter().filter(|byte| **byte == b'/').count()
}

/// Whether a mount lies on another, at whatever remove.
fn lies_on(all: &[Told], mount: &Told, on: u64) -> bool {
    let mut here = mount;
    for _ in all {
        if here.parent == on {
            return true;
        }
        let Some(above) = all.iter().find(|told| told.id == here.parent) else { return false };
        here = above;
    }
    false
}

/// The number of the mount, and what it shows there.
fn identity(fd: BorrowedFd<'_>) -> io::Result<(u64, (u64, u64))> {
    let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID | StatxFlags::INO)?;
    let device = u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor);
    Ok((stat.stx_mnt_id, (device, stat.stx_ino)))
}

/// The kernel writes what would break a line as three octal digits.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        rest = after;
        match (first, after) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                plain.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            (byte, _) => plain.push(*byte),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernels_is_read() {
        let line = br"36 35 98:0 /mnt1 /mnt\0402\134x rw,noatime master:1 - ext3 /dev/root rw,errors=continue";
        let told = Told::parse(line).unwrap();
        assert_eq!(told, Told { id: 36, parent: 35, at: b"/mnt 2\\x".to_vec(), read_only: false });
        for odd in [&b"36"[..], b"x 35 98:0 / / rw - a b c", b"1 2 3 4"] {
            assert!(Told::parse(odd).is_err());
        }
    }

    #[test]
    fn what_every_sandbox_has_is_no_view() {
        let overlays = [b"/".to_vec(), b"/usr".to_vec()];
        let told = |at: &[u8]| Told { id: 1, parent: 1, at: at.to_vec(), read_only: false };
        for own in [&b"/"[..], b"/usr", b"/proc", b"/proc/sys", b"/dev", b"/dev/pts"] {
            assert!(!told(own).is_view(&overlays), "{own:?}");
        }
        for view in [&b"/workspace"[..], b"/usr/local/x", b"/process", b"/devices/x"] {
            assert!(told(view).is_view(&overlays), "{view:?}");
        }
    }

    #[test]
    fn a_mount_lies_on_what_is_below_it() {
        let told = |id, parent| Told { id, parent, at: Vec::new(), read_only: false };
        let all = [told(1, 1), told(2, 1), told(3, 2), told(4, 1)];
        assert!(lies_on(&all, &all[2], 2) && lies_on(&all, &all[2], 1));
        assert!(!lies_on(&all, &all[3], 2));
    }
}
