//! Processes inside that have a hold on a mount: they are found by what the kernel lists of each of their threads, and ended.
//!
//! The kernel alone knows whether a mount is in use; this only finds who uses it. What lies in the queue of a socket is in no list.
//! The commands stand still meanwhile, so nobody who was passed by gets hold of it afterwards.

use std::{
    collections::HashSet,
    fs,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::Path,
    time::Instant,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{AtFlags, CWD, StatxFlags},
    process::{Pid, PidfdFlags, pidfd_open},
};

use super::mount_table::{Device, is_below};
use crate::{
    kernel::sys::{self, Common},
    live::Live,
};

/// A mount that the kernel does not change as long as something has such a hold on it.
#[derive(Clone, Debug)]
pub(super) struct BusyMount {
    pub(super) id: u64,
    pub(super) device: Device,
    pub(super) at: Vec<u8>,
    pub(super) purpose: Purpose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Unmount,
    ReadOnly,
}

/// How a process has hold of a mount.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Grip {
    Any,
    /// A descriptor or a shared mapping that may write.
    Writing,
    /// A private mapping, too: of a file that was open for writing it counts as a writer, and nothing says that it was.
    Mapped,
}

/// Ends what keeps a mount busy, the mildest way first: what the server itself has open there, then processes that are found to
/// use it, then walks of the server's through the sandbox's files. Whether there was any; then it is worth another try.
pub(super) fn free(live: &Live, mount: &BusyMount, until: Instant) -> bool {
    let grips: &[Grip] = match mount.purpose {
        Purpose::Unmount => &[Grip::Any],
        Purpose::ReadOnly => &[Grip::Writing, Grip::Mapped],
    };
    live.close_files_on(mount.id, mount.purpose == Purpose::ReadOnly)
        || grips.iter().any(|grip| end_holders(live, mount, *grip, until))
        || live.open_files.end_walks()
}

fn end_holders(live: &Live, mount: &BusyMount, grip: Grip, until: Instant) -> bool {
    let pids = live.commands();
    let sockets = if grip == Grip::Any { sockets_bound_below(&pids, &mount.at) } else { HashSet::new() };
    let search = Search { mount, grip, sockets: &sockets, until };
    end(live, pids.into_iter().filter(|pid| search.is_holder(*pid)), until)
}

/// Whether one of them was there to be ended.
pub(super) fn end(live: &Live, pids: impl Iterator<Item = u32>, until: Instant) -> bool {
    let opened: Vec<(u32, OwnedFd)> = pids.filter_map(|pid| Some((pid, open_process(pid)?))).collect();
    // Asked after they were opened: from then on the number is their own, and nobody else is ended.
    let still: HashSet<u32> = live.commands().into_iter().collect();
    let ours = opened.into_iter().filter(|(pid, _)| still.contains(pid));
    let ended: Vec<OwnedFd> = ours.map(|(_, pidfd)| pidfd).filter(kill).collect();
    ended.iter().for_each(|pidfd| wait_for_end(pidfd, until));
    !ended.is_empty()
}

pub(super) fn open_process(pid: u32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()
}

/// A process of a frozen group dies of this signal, too.
fn kill(pidfd: &OwnedFd) -> bool {
    sys::pidfd_kill(pidfd.as_raw_fd()).is_ok()
}

/// It has nothing open any more by then, though its parent may not have asked for its status.
fn wait_for_end(pidfd: &OwnedFd, until: Instant) {
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        let left = Timespec::try_from(left).unwrap_or_default();
        match poll(&mut [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            _ => return,
        }
    }
}

pub(super) fn threads(pid: u32) -> impl Iterator<Item = u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok())
}

struct Search<'a> {
    mount: &'a BusyMount,
    grip: Grip,
    sockets: &'a HashSet<u64>,
    until: Instant,
}

impl Search<'_> {
    /// Each thread may have a working directory and descriptors of its own.
    fn is_holder(&self, pid: u32) -> bool {
        let mut last = None;
        for thread in threads(pid) {
            let own = |what| last.is_none_or(|last| !sys::have_in_common(what, last, thread));
            if own(Common::Place) && self.stands_in(thread)
                || own(Common::Files) && self.has_open(thread)
                || own(Common::Memory) && self.has_mapped(thread)
            {
                return true;
            }
            last = Some(thread);
        }
        false
    }

    fn stands_in(&self, thread: u32) -> bool {
        let is_here = |what| self.is_on_mount(Path::new(&format!("/proc/{thread}/{what}")));
        self.grip == Grip::Any && (is_here("cwd") || is_here("root"))
    }

    fn has_open(&self, thread: u32) -> bool {
        let open = fs::read_dir(format!("/proc/{thread}/fd")).into_iter().flatten().flatten();
        open.take_while(|_| Instant::now() <= self.until).any(|entry| {
            let path = entry.path();
            match self.grip {
                Grip::Any => self.is_on_mount(&path) || self.is_bound_socket(&path),
                Grip::Writing => may_write(&path) && self.is_on_mount(&path),
                Grip::Mapped => false,
            }
        })
    }

    fn has_mapped(&self, thread: u32) -> bool {
        if self.grip == Grip::Any && self.is_on_mount(Path::new(&format!("/proc/{thread}/exe"))) {
            return true;
        }
        let maps = fs::read(format!("/proc/{thread}/maps")).unwrap_or_default();
        let mut maps = maps.split(|byte| *byte == b'\n').filter_map(Mapping::parse);
        maps.any(|mapping| {
            let Mapping { start, end, shared, device } = mapping;
            device == self.mount.device
                && (shared || self.grip != Grip::Writing)
                && self.is_on_mount(Path::new(&format!("/proc/{thread}/map_files/{start:x}-{end:x}")))
        })
    }

    /// By what a link of `/proc` leads to.
    fn is_on_mount(&self, link: &Path) -> bool {
        let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        rustix::fs::statx(CWD, link, flags, StatxFlags::MNT_ID).is_ok_and(|stat| stat.stx_mnt_id == self.mount.id)
    }

    fn is_bound_socket(&self, link: &Path) -> bool {
        if self.sockets.is_empty() {
            return false;
        }
        let text = fs::read_link(link).unwrap_or_default();
        let number = text.to_str().and_then(|text| text.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
        number.is_some_and(|number| self.sockets.contains(&number))
    }
}

/// The kernel shows in the mode of the link what the descriptor may.
fn may_write(link: &Path) -> bool {
    fs::symlink_metadata(link).is_ok_and(|link| link.mode() & 0o200 != 0)
}

/// A socket that is bound to a name keeps hold of where that lies. Known by the name that it was bound to; all commands of a
/// sandbox have one network, so one list has them all.
fn sockets_bound_below(pids: &[u32], at: &[u8]) -> HashSet<u64> {
    let list = pids.iter().find_map(|pid| fs::read(format!("/proc/{pid}/net/unix")).ok()).unwrap_or_default();
    list.split(|byte| *byte == b'\n')
        .filter_map(bound_socket)
        .filter(|(_, name)| is_below(name, at))
        .map(|(number, _)| number)
        .collect()
}

/// Address, count, protocol, flags, type, state, inode, and for some a name, which may have spaces in it.
fn bound_socket(line: &[u8]) -> Option<(u64, &[u8])> {
    let mut rest = line;
    let mut number = None;
    for _ in 0..7 {
        rest = rest.trim_ascii_start();
        let end = rest.iter().position(|byte| *byte == b' ')?;
        number = std::str::from_utf8(&rest[..end]).ok();
        rest = &rest[end..];
    }
    Some((number?.parse().ok()?, &rest[1..]))
}

/// A line of `maps` with a file behind it.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    shared: bool,
    device: Device,
}

impl Mapping {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
        let mut next = || fields.next().and_then(|field| std::str::from_utf8(field).ok());
        let (range, modes, _offset, device, inode) = (next()?, next()?, next()?, next()?, next()?);
        let (start, end) = range.split_once('-')?;
        let (major, minor) = device.split_once(':')?;
        let wide = |text| u64::from_str_radix(text, 16).ok();
        let narrow = |text| u32::from_str_radix(text, 16).ok();
        (inode != "0").then_some(Self {
            start: wide(start)?,
            end: wide(end)?,
            shared: modes.ends_with('s'),
            device: (narrow(major)?, narrow(minor)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_of_a_file_is_read() {
        let line = b"00400000-0040b000 rw-s 00000000 fd:1f 173521      /a file (deleted)";
        let read = Mapping { start: 0x40_0000, end: 0x40_b000, shared: true, device: (0xfd, 0x1f) };
        assert_eq!(Mapping::parse(line), Some(read));
        for odd in [&b"00400000-0040b000 rw-p 00000000 00:00 0  [heap]"[..], b"", b"x", b"1-2 rw-p 0 1 3"] {
            assert_eq!(Mapping::parse(odd), None);
        }
    }

    #[test]
    fn a_socket_is_known_by_its_name() {
        let line = b"ffff8d: 00000002 00000000 00010000 0001 01 20453 /w/a b";
        assert_eq!(bound_socket(line), Some((20453, &b"/w/a b"[..])));
        for odd in [&b"ffff8d: 00000002 00000000 00000000 0001 03 20454"[..], b"Num       RefCount Protocol Flags", b""]
        {
            assert_eq!(bound_socket(odd), None);
        }
    }

    #[test]
    fn what_a_descriptor_may_is_seen_in_its_link() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let written = fs::File::create(&path).unwrap();
        let read = fs::File::open(&path).unwrap();
        let link = |file: &fs::File| format!("/proc/self/fd/{}", file.as_raw_fd());
        assert!(may_write(Path::new(&link(&written))) && !may_write(Path::new(&link(&read))));
    }
}
