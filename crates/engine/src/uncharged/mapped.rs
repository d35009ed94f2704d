//! Locks that nothing but a mapping keeps: their descriptors are closed, but the open file that has them is mapped. The kernel tells of each
//! file whether somebody has locks on it, and not how many.

use std::{
    collections::HashMap,
    fs::{self, File},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::PathBuf,
    time::Duration,
};

use rustix::fs::OFlags;

use super::held::LOCK;
use crate::{
    disk::measure::Tables,
    kernel::{
        locks::{self, Found, LAST},
        sys::{self, Common},
    },
};

/// More than anybody needs take too long to look at: who has them may have any number of locks behind them.
const MAX_MAPPINGS: usize = 1 << 19;

/// Parts of one file that are asked for, and how long all files may take: to find a lock, the kernel goes through those before it. Whoever has
/// more may have any number.
const MAX_ASKED: u32 = 1024;
const MAX_CPU: Duration = Duration::from_millis(200);

/// The files that are mapped in one sandbox.
pub(super) struct Mapped {
    memories: Tables,
    looked_at: usize,
    /// By device and number: where one of the mappings is, and how many there are.
    files: HashMap<(u64, u64), (PathBuf, u64)>,
    /// What cannot be asked, and nobody needs: sockets, and too many.
    others: u64,
}

impl Default for Mapped {
    fn default() -> Self {
        Self { memories: Tables::of(Common::Memory), looked_at: 0, files: HashMap::new(), others: 0 }
    }
}

impl Mapped {
    /// Says whether all was seen.
    pub(super) fn add(&mut self, thread: u32) -> bool {
        if !self.memories.insert(thread) {
            return true;
        }
        let Ok(mappings) = fs::read_dir(format!("/proc/{thread}/map_files")) else { return false };
        for path in mappings.flatten().map(|mapping| mapping.path()) {
            self.looked_at += 1;
            if self.looked_at > MAX_MAPPINGS {
                self.others += 1;
                return false;
            }
            let Ok(file) = fs::metadata(&path) else { continue };
            match file.mode() & libc::S_IFMT {
                libc::S_IFREG | libc::S_IFCHR => self.files.entry((file.dev(), file.ino())).or_insert((path, 0)).1 += 1,
                _ => self.others += 1,
            }
        }
        true
    }

    /// As many bytes as locks of open files may take, each of which is mapped.
    pub(super) fn may_hide(&self, mut is_over: impl FnMut() -> bool) -> u64 {
        if self.others > 0 {
            return u64::MAX;
        }
        let (mut bytes, mut took) = (0_u64, Duration::ZERO);
        for (path, mappings) in self.files.values() {
            if is_over() {
                break;
            }
            let begun = sys::thread_time();
            // To open a file that somebody has leased would wait.
            let mut options = File::options();
            let opened = options.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path);
            let locks = opened.map_or(0, |file| most_locks(&file, *mappings));
            bytes = bytes.saturating_add(locks.saturating_mul(LOCK));
            took += sys::thread_time().saturating_sub(begun);
            if took > MAX_CPU && bytes > 0 {
                return u64::MAX;
            }
        }
        bytes
    }
}

/// As many locks as so many open files may have on this one. Behind a lock that is not exclusive, the others may each have one on every byte.
fn most_locks(file: &File, open_files: u64) -> u64 {
    let (mut parts, mut asked, mut most) = (vec![(0, LAST)], 0, 0_u64);
    while let Some((first, last)) = parts.pop() {
        asked += 1;
        if asked > MAX_ASKED {
            return u64::MAX;
        }
        let Ok(Some(found)) = locks::in_the_way(file, first, last) else { continue };
        let (from, to) = (found.first.max(first), found.last.min(last));
        most = most.saturating_add(behind(&found, from, to, open_files));
        if from > first {
            parts.push((first, from - 1));
        }
        if to < last {
            parts.push((to + 1, last));
        }
    }
    most
}

/// Locks of a process go with its descriptor.
fn behind(found: &Found, from: i64, to: i64, open_files: u64) -> u64 {
    match found.is_shared {
        true => ((to - from) as u64 + 1).saturating_mul(open_files),
        false => u64::from(found.is_of_file),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::kernel::locks::tests::{lock, map};

    /// What this process has.
    fn own() -> u64 {
        let mut mapped = Mapped::default();
        assert!(mapped.add(std::process::id()));
        mapped.may_hide(|| false)
    }

    #[test]
    fn locks_that_only_a_mapping_keeps_are_known() {
        const LOCKS: i64 = 100;
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let open = || {
            File::options().read(true).write(true).create(true).truncate(false).open(dir.path().join("mapped")).unwrap()
        };
        let (before, file) = (own(), open());
        file.set_len(1).unwrap();
        (0..LOCKS).for_each(|place| lock(&file, false, 2 * place, 1));
        let mapping = map(&file);
        drop(file);
        assert_eq!(own() - before, LOCKS as u64 * LOCK);
        let covering = open();
        lock(&covering, true, 2 * LOCKS, 0);
        assert!(own() > 1 << 40, "behind this one could be any number");
        drop(mapping);
        assert_eq!(own(), before, "no mapping keeps the others");
    }

    #[test]
    fn who_has_very_many_may_have_any_number() {
        let file = tempfile::tempfile().unwrap();
        let other = File::options().read(true).write(true).open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        (0..200).for_each(|place| lock(&other, false, 2 * place, 1));
        assert_eq!(most_locks(&file, 1), 200);
        (200..1000).for_each(|place| lock(&other, false, 2 * place, 1));
        assert_eq!(most_locks(&file, 1), u64::MAX);
    }
}
