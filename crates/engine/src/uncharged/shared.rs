//! Locks on what all sandboxes have in common, whoever takes them: the kernel has one inode for all descriptors that are no files (eventfd,
//! epoll, timerfd, signalfd, inotify), and one for each namespace of the machine that sandboxes are in. Each close of such a descriptor, on the
//! whole machine, goes through all locks on its inode. No program has a use for one.

use std::{
    collections::HashSet,
    fs::{self, File},
    os::fd::OwnedFd,
};

use rustix::{
    event::{EventfdFlags, eventfd},
    fs::fstat,
};

use crate::kernel::locks::{self, LAST};

pub(super) struct Shared {
    files: Vec<OwnedFd>,
    inodes: HashSet<(u64, u64)>,
}

impl Shared {
    pub(super) fn open() -> Self {
        let event = eventfd(0, EventfdFlags::CLOEXEC).ok();
        let namespaces = fs::read_dir("/proc/self/ns").into_iter().flatten().flatten();
        let namespaces = namespaces.filter_map(|entry| Some(File::open(entry.path()).ok()?.into()));
        let files: Vec<_> = event.into_iter().chain(namespaces).collect();
        let inodes = files.iter().filter_map(|file| fstat(file).ok()).map(|stat| (stat.st_dev, stat.st_ino)).collect();
        Self { files, inodes }
    }

    /// Device and number of each.
    pub(super) fn inodes(&self) -> &HashSet<(u64, u64)> {
        &self.inodes
    }

    pub(super) fn are_locked(&self) -> bool {
        let is_locked_in_part = |file| locks::in_the_way(file, 0, LAST).is_ok_and(|lock| lock.is_some());
        self.files.iter().any(|file| is_locked_in_part(file) || locks::is_taken(file))
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FlockOperation, flock};

    use super::*;

    /// In one test: it is one inode for the whole machine.
    #[test]
    fn a_lock_on_any_descriptor_that_is_no_file_is_seen() {
        let shared = Shared::open();
        let polls = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
        let stat = fstat(&polls).unwrap();
        assert!(shared.inodes().contains(&(stat.st_dev, stat.st_ino)), "it is the same");
        flock(&polls, FlockOperation::NonBlockingLockShared).unwrap();
        assert!(shared.are_locked());
        let user = File::open("/proc/self/ns/user").unwrap();
        let stat = fstat(&user).unwrap();
        assert!(shared.inodes().contains(&(stat.st_dev, stat.st_ino)));
    }
}
