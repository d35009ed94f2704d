//! What the sandbox's own layer takes, with what has no name any more and is still open.

use std::{
    cmp::Ordering,
    collections::HashSet,
    fs, io,
    os::{
        fd::AsFd,
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::{Path, PathBuf},
};

use cabana_guest::tree::{self, Measured, Usage};

use crate::kernel::sys::{self, Common};

const OVERLAY: u64 = 0x794c_7630;

/// More descriptors and maps than anybody needs take too long to look at.
const MOST_FILES: usize = 1 << 20;

/// What is measured of one sandbox, each by itself.
pub(crate) struct Parts {
    /// With what has no name any more, wherever that lies.
    pub(crate) own: Usage,
    /// In the order of their trees.
    pub(crate) volumes: Vec<Usage>,
    /// False: directories were moved about.
    pub(crate) is_whole: bool,
    /// False: it has more files open than are looked at.
    pub(crate) is_all_seen: bool,
}

/// Its own layer alone. `pids` are the processes of the sandbox, as the host numbers them.
pub(crate) fn measure(own: &Path, pids: &[u32]) -> io::Result<Measured> {
    // It is seen through an overlay alone.
    let Parts { own, is_whole, is_all_seen, .. } = measure_on(own, &[], pids, |_| HashSet::new())?;
    Ok(if is_whole && is_all_seen { Measured::Whole(own) } else { Measured::AtLeast(own) })
}

/// With what has no name any more on the same disks: also of a volume that is not seen any more.
pub(crate) fn measure_parts(own: &Path, volumes: &[PathBuf], pids: &[u32]) -> io::Result<Parts> {
    measure_on(own, volumes, pids, |devices| devices)
}

fn measure_on(
    own: &Path,
    volumes: &[PathBuf],
    pids: &[u32],
    of: impl FnOnce(HashSet<u64>) -> HashSet<u64>,
) -> io::Result<Parts> {
    let (mut is_whole, mut devices) = (true, HashSet::new());
    let mut walk = |tree: &Path| {
        let tree = fs::File::open(tree)?;
        let measured = tree::usage(tree.as_fd())?;
        is_whole &= matches!(measured, Measured::Whole(_));
        devices.insert(tree.metadata()?.dev());
        io::Result::Ok(measured.found())
    };
    let own = walk(own)?;
    let volumes = volumes.iter().map(|tree| walk(tree)).collect::<io::Result<Vec<_>>>()?;
    let (nameless, is_all_seen) = nameless(pids, &of(devices), MOST_FILES);
    Ok(Parts { own: both(own, nameless), volumes, is_whole, is_all_seen })
}

fn both(one: Usage, other: Usage) -> Usage {
    Usage { bytes: one.bytes.saturating_add(other.bytes), entries: one.entries.saturating_add(other.entries) }
}

/// Files that were removed while a process has them open or mapped: they take the disk until it lets go. `devices` are what counts beside overlays.
/// And whether all was seen.
fn nameless(pids: &[u32], devices: &HashSet<u64>, most: usize) -> (Usage, bool) {
    let (mut usage, mut seen, mut looked_at) = (Usage::default(), HashSet::new(), 0);
    let mut tables = [("fd", Tables::of(Common::Files)), ("map_files", Tables::of(Common::Memory))];
    // Each thread may have a table of its own, and one whose leader has ended is seen nowhere else.
    for thread in pids.iter().flat_map(|pid| threads(*pid)) {
        for (held, tables) in &mut tables {
            if !tables.insert(thread) {
                continue;
            }
            let entries = fs::read_dir(format!("/proc/{thread}/{held}")).into_iter().flatten().flatten();
            // A program holds its file also when it has nothing of it mapped.
            let program = PathBuf::from(format!("/proc/{thread}/exe"));
            for path in entries.map(|entry| entry.path()).chain([program]) {
                looked_at += 1;
                if looked_at > most {
                    return (usage, false);
                }
                if !may_be_removed(&path) {
                    continue;
                }
                let Ok(file) = fs::metadata(&path) else { continue };
                let is_ours = || devices.contains(&file.dev()) || is_on_an_overlay(&path);
                let gone = file.is_file() && file.nlink() == 0 && is_ours();
                if gone && seen.insert((file.dev(), file.ino())) {
                    usage.bytes = usage.bytes.saturating_add(file.blocks().saturating_mul(512));
                    usage.entries += 1;
                }
            }
        }
    }
    (usage, true)
}

/// As the kernel names what is open. A path that is too long for it says nothing.
fn may_be_removed(link: &Path) -> bool {
    match fs::read_link(link) {
        Ok(name) => name.as_os_str().as_bytes().ends_with(b" (deleted)"),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Tables that were looked at. Any number of processes may share one, and it would be looked at for each.
pub(crate) struct Tables {
    what: Common,
    /// A thread of each, in the kernel's order.
    threads: Vec<u32>,
}

impl Tables {
    pub(crate) fn of(what: Common) -> Self {
        Self { what, threads: Vec::new() }
    }

    /// Whether the one of this thread is new. It is where the kernel does not say.
    pub(crate) fn insert(&mut self, thread: u32) -> bool {
        // One that has ended meanwhile compares with nobody, and is not in the way.
        let order = |known: &u32| sys::compare(self.what, *known, thread).unwrap_or(Ordering::Less);
        match self.threads.binary_search_by(order) {
            Ok(_) => false,
            Err(place) => {
                self.threads.insert(place, thread);
                true
            }
        }
    }
}

pub(crate) fn threads(pid: u32) -> impl Iterator<Item = u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok())
}

/// And not in memory, where others have no name either.
pub(crate) fn is_on_an_overlay(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|fs| fs.f_type as u64 == OVERLAY)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn who_has_more_files_open_than_are_looked_at_is_told_from_who_has_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("removed");
        fs::write(&path, [1; 8192]).unwrap();
        let (file, devices) = (fs::File::open(&path).unwrap(), HashSet::from([fs::metadata(&path).unwrap().dev()]));
        let link = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        assert!(!may_be_removed(&link), "it has a name");
        fs::remove_file(&path).unwrap();
        assert!(may_be_removed(&link));
        let own = [std::process::id()];
        let (found, is_all_seen) = nameless(&own, &devices, MOST_FILES);
        assert!(is_all_seen && found.entries >= 1, "{found:?}");
        assert!(!nameless(&own, &devices, 2).1);
    }

    #[test]
    fn each_volume_is_measured_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let trees = ["own", "one", "two"].map(|name| dir.path().join(name));
        for (tree, files) in trees.iter().zip([0, 1, 3]) {
            fs::create_dir(tree).unwrap();
            (0..files).for_each(|number| fs::write(tree.join(number.to_string()), "x").unwrap());
        }
        let parts = measure_parts(&trees[0], &trees[1..], &[]).unwrap();
        assert_eq!((parts.own.entries, parts.is_whole, parts.is_all_seen), (0, true, true));
        assert_eq!(parts.volumes.iter().map(|usage| usage.entries).collect::<Vec<_>>(), [1, 3]);
    }
}
