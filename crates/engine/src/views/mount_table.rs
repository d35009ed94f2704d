//! The mounts of a sandbox, as the kernel lists them.

use std::{
    fs::File,
    io::{self, Read, Seek},
};

/// The list of one process.
pub(super) struct MountTable(File);

impl MountTable {
    pub(super) fn open(pid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/mountinfo")).map(Self)
    }

    pub(super) fn of_self() -> io::Result<Self> {
        File::open("/proc/self/mountinfo").map(Self)
    }

    pub(super) fn read(&mut self) -> io::Result<Vec<MountEntry>> {
        self.0.rewind()?;
        let mut text = Vec::new();
        self.0.read_to_end(&mut text)?;
        text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(MountEntry::parse).collect()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MountEntry {
    pub(super) id: u64,
    pub(super) parent: u64,
    /// Of the file system, which is not what `stat` says of every file on it.
    pub(super) device: Device,
    /// What of the file system is mounted, from its own root on.
    pub(super) root: Vec<u8>,
    pub(super) at: Vec<u8>,
}

/// Major and minor number.
pub(super) type Device = (u32, u32);

/// What a mount of a sandbox is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MountKind {
    /// The sandbox's own files: an overlay, or a part of one that can be written where the rest cannot.
    Own,
    /// `/proc` and `/dev`, with all below them.
    Kernel,
    View,
}

impl MountEntry {
    /// A line of `mountinfo`: number, parent, device, root, place, options; what follows is not needed.
    fn parse(line: &[u8]) -> io::Result<Self> {
        let odd = || io::Error::from(io::ErrorKind::InvalidData);
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let [id, parent, device, root, at, ..] = fields[..] else { return Err(odd()) };
        let text = |field| std::str::from_utf8(field).map_err(|_| odd());
        let number = |field| text(field)?.parse().map_err(|_| odd());
        let (major, minor) = text(device)?.split_once(':').ok_or_else(odd)?;
        let device = (major.parse().map_err(|_| odd())?, minor.parse().map_err(|_| odd())?);
        Ok(Self { id: number(id)?, parent: number(parent)?, device, root: unescape(root), at: unescape(at) })
    }
}

/// Neither an overlay nor `/proc` or `/dev` can be moved by a guest, and nothing is ever put onto the root of one. Whatever shows
/// something else is a view.
pub(super) fn kind(all: &[MountEntry], mount: &MountEntry, overlays: &[Vec<u8>]) -> MountKind {
    let own = |entry: &&MountEntry| overlays.contains(&entry.at);
    if all.iter().filter(own).any(|entry| entry.device == mount.device) {
        return MountKind::Own;
    }
    let kernel = [&b"/proc"[..], b"/dev"];
    match kernel.iter().any(|own| mount.at == *own || is_below(&mount.at, own)) {
        true => MountKind::Kernel,
        false => MountKind::View,
    }
}

pub(super) fn is_below(path: &[u8], other: &[u8]) -> bool {
    path.strip_prefix(other).is_some_and(|rest| rest.starts_with(b"/"))
}

/// Whether a mount lies on another, at whatever remove.
pub(super) fn lies_on(all: &[MountEntry], mount: &MountEntry, on: u64) -> bool {
    let mut here = mount;
    for _ in all {
        if here.parent == on {
            return true;
        }
        let Some(above) = all.iter().find(|entry| entry.id == here.parent) else { return false };
        here = above;
    }
    false
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

    fn entry(id: u64, parent: u64, minor: u32, at: &[u8]) -> MountEntry {
        MountEntry { id, parent, device: (0, minor), root: b"/".to_vec(), at: at.to_vec() }
    }

    #[test]
    fn a_line_of_the_kernels_is_read() {
        let line = br"36 35 98:0 /mnt1 /mnt\0402\134x rw,noatime master:1 - ext3 /dev/root rw,errors=continue";
        let read = MountEntry::parse(line).unwrap();
        let [root, at] = [&b"/mnt1"[..], b"/mnt 2\\x"].map(<[u8]>::to_vec);
        assert_eq!(read, MountEntry { id: 36, parent: 35, device: (98, 0), root, at });
        for odd in [&b"36"[..], b"x 35 98:0 / / rw - a b c", b"1 2 3 4", b"1 2 3 / /", b"1 2 3:x / /"] {
            assert!(MountEntry::parse(odd).is_err());
        }
    }

    #[test]
    fn what_every_sandbox_has_is_no_view() {
        let overlays = [b"/".to_vec(), b"/usr".to_vec()];
        let base = [entry(1, 1, 50, b"/"), entry(2, 1, 51, b"/usr")];
        let kind_of = |minor, at: &[u8]| kind(&base, &entry(9, 1, minor, at), &overlays);
        for own in [&b"/"[..], b"/tmp", b"/workspace"] {
            assert_eq!(kind_of(50, own), MountKind::Own, "{own:?}");
        }
        for kernel in [&b"/proc"[..], b"/proc/sys", b"/dev", b"/dev/pts"] {
            assert_eq!(kind_of(7, kernel), MountKind::Kernel, "{kernel:?}");
        }
        for view in [&b"/workspace"[..], b"/usr/local/x", b"/process", b"/devices/x"] {
            assert_eq!(kind_of(8, view), MountKind::View, "{view:?}");
        }
    }

    #[test]
    fn a_mount_lies_on_what_is_below_it() {
        let all = [entry(1, 1, 1, b"/"), entry(2, 1, 2, b"/a"), entry(3, 2, 3, b"/a/b"), entry(4, 1, 4, b"/c")];
        assert!(lies_on(&all, &all[2], 2) && lies_on(&all, &all[2], 1));
        assert!(!lies_on(&all, &all[3], 2));
    }
}
