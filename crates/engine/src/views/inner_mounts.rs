//! Mounts of the machine below a directory that is to be shown.
//!
//! A view is one mount, without what is mounted below it. Inside, the directory under such a mount is an empty one like any other,
//! since it is a mount point in other mount namespaces alone. Who removes it, or moves it, takes the mount off on the machine, or
//! moves it: the kernel detaches what is mounted there.

use std::{io, os::fd::BorrowedFd};

use super::mount_table::{MountEntry, MountTable, is_below};
use crate::kernel::mounts;

/// Where something is mounted below a directory, as this process sees it.
pub(super) fn find_inner_mount(directory: BorrowedFd<'_>, path: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let all = MountTable::of_self()?.read()?;
    let on = mounts::id(directory)?;
    Ok(inner_mounts(&all, on, path).next().map(|mount| mount.at.clone()))
}

/// `on` is the mount that the directory lies on. The same directory can be seen at several places, with mounts below any of them:
/// so they are told by the file system and the path in it. A mount that this process cannot see the root of is told by its path.
fn inner_mounts<'a>(all: &'a [MountEntry], on: u64, path: &'a [u8]) -> impl Iterator<Item = &'a MountEntry> {
    let of = |id: u64| all.iter().find(move |entry| entry.id == id);
    let shown = of(on).and_then(|mount| Some((mount.device, path_on_device(mount, path)?)));
    all.iter().filter(move |mount| {
        let lies_on = of(mount.parent).and_then(|around| Some((around.device, path_on_device(around, &mount.at)?)));
        let is_same_directory = match (&shown, &lies_on) {
            (Some((device, shown)), Some((other, point))) => device == other && is_below_path(point, shown),
            _ => false,
        };
        is_same_directory || is_below_path(&mount.at, path)
    })
}

/// From the root of the file system that is mounted there.
fn path_on_device(mount: &MountEntry, path: &[u8]) -> Option<Vec<u8>> {
    let at = if mount.at == b"/" { &b""[..] } else { &mount.at };
    let below = path.strip_prefix(at).filter(|rest| rest.is_empty() || rest.starts_with(b"/"))?;
    let root = if mount.root == b"/" { &b""[..] } else { &mount.root };
    Some([root, below].concat())
}

fn is_below_path(path: &[u8], other: &[u8]) -> bool {
    is_below(path, other.strip_suffix(b"/").unwrap_or(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u64, parent: u64, minor: u32, root: &str, at: &str) -> MountEntry {
        MountEntry { id, parent, device: (0, minor), root: root.into(), at: at.into() }
    }

    fn below(all: &[MountEntry], on: u64, path: &str) -> Vec<u64> {
        inner_mounts(all, on, path.as_bytes()).map(|mount| mount.id).collect()
    }

    #[test]
    fn a_mount_below_a_directory_is_found() {
        let all = [
            entry(1, 0, 1, "/", "/"),
            entry(2, 1, 2, "/", "/srv/a/disk"),
            entry(3, 1, 3, "/", "/srv/ab"),
            entry(4, 2, 4, "/", "/srv/a/disk/deep"),
        ];
        assert_eq!(below(&all, 1, "/srv/a"), [2, 4]);
        assert_eq!(below(&all, 1, "/srv/b"), [0; 0]);
        assert_eq!(below(&all, 2, "/srv/a/disk"), [4], "the directory itself may be one");
    }

    #[test]
    fn a_mount_is_found_by_another_name_of_the_directory() {
        let all = [
            entry(1, 0, 1, "/", "/"),
            entry(2, 1, 1, "/srv/a", "/other"),
            entry(3, 2, 9, "/", "/other/disk"),
            entry(4, 1, 1, "/srv", "/all"),
        ];
        assert_eq!(below(&all, 1, "/srv/a"), [3]);
        assert_eq!(below(&all, 4, "/all/a"), [3]);
        assert_eq!(below(&all, 2, "/other"), [3]);
        assert_eq!(below(&all, 1, "/srv/a/disk"), [0; 0]);
        assert_eq!(below(&all, 1, "/all-else"), [0; 0]);
    }
}
