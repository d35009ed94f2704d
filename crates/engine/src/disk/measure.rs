//! What the sandbox's own layer takes, with what has no name any more and is still open.

use std::{
    cmp::Ordering,
    collections::HashSet,
    fs, io,
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

use cabana_guest::tree::{self, Measured, Usage};

use crate::kernel::sys::{self, Common};

const OVERLAY: u64 = 0x794c_7630;

/// Blocks, with those of these volumes. `pids` are the processes of the sandbox, as the host numbers them.
pub(crate) fn measure(own: &Path, volumes: &[PathBuf], pids: &[u32]) -> io::Result<Measured> {
    let (mut sum, mut is_whole, mut devices) = (Usage::default(), true, HashSet::new());
    for tree in [own].into_iter().chain(volumes.iter().map(PathBuf::as_path)) {
        let tree = fs::File::open(tree)?;
        let measured = tree::usage(tree.as_fd())?;
        is_whole &= matches!(measured, Measured::Whole(_));
        sum = both(sum, measured.found());
        devices.insert(tree.metadata()?.dev());
    }
    if volumes.is_empty() {
        devices.clear(); // its own layer is seen through an overlay alone
    }
    sum = both(sum, nameless(pids, &devices));
    Ok(if is_whole { Measured::Whole(sum) } else { Measured::AtLeast(sum) })
}

fn both(one: Usage, other: Usage) -> Usage {
    Usage { bytes: one.bytes.saturating_add(other.bytes), entries: one.entries.saturating_add(other.entries) }
}

/// Files that were removed while a process has them open or mapped: they take the disk until it lets go. `devices` are those of volumes.
fn nameless(pids: &[u32], devices: &HashSet<u64>) -> Usage {
    let (mut usage, mut seen) = (Usage::default(), HashSet::new());
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
    usage
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
