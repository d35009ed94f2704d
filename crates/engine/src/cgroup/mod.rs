//! Control groups: one for each live sandbox, handed over to its init.
//!
//! The groups are of version 2: it ends or freezes a whole tree at once and lets a process be started right inside a group.
//! Moving a process into a group afterwards takes a lock that every fork of the machine takes, too; so none is moved, but for
//! limits where the host has their controllers in version 1 (see `limits`).

pub(crate) mod device;
mod limits;

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Read, Seek},
    os::{fd::OwnedFd, unix::fs::chown},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::FlockOperation,
    io::Errno,
};

pub(crate) use self::limits::{Charged, Controllers, DiskTraffic, Limiter, QueueMeter, held};
use crate::{
    kernel::{mounts, proc, sys},
    rootless::Mode,
};

/// So long who stands still for a moment is waited for.
const SHAKING: Duration = Duration::from_millis(250);

/// How long tracers may take to wait for who has ended, while everybody is to stand still.
const TRACERS: Duration = Duration::from_secs(1);

/// How long an owner that has just ended may take to let go of a group.
const LETTING_GO: Duration = Duration::from_millis(500);

/// Where our groups lie.
pub(crate) struct Cgroups {
    parent: PathBuf,
    /// Part of each name where ranges are shared, and so tell nothing apart.
    prefix: String,
    pub(crate) controllers: Controllers,
}

#[derive(Clone)]
pub(crate) struct Cgroup {
    path: PathBuf,
    /// Whose it is, as every engine on this kernel sees it: those in containers may have other files in /run, and so other leases.
    held: Option<Arc<OwnedFd>>,
}

impl Cgroups {
    /// `None`: there is no version 2 here, or nothing of it that we may write to.
    pub(crate) fn find(mode: Mode, data: &Path) -> Option<Self> {
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let mount = mount_point(&mountinfo)?;
        let (parent, prefix) = match mode {
            Mode::Root => (mount.join("cabana"), "r".to_owned()),
            // Below our own group, if it was given to us.
            Mode::Shared | Mode::Single => {
                let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
                let own = own_group(&groups)?;
                (mount.join(own.trim_start_matches('/')).join("cabana"), format!("{}-", std::process::id()))
            }
        };
        match fs::create_dir(&parent) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return None,
            _ => {}
        }
        // Groups without the file that ends a tree are older than all that we need.
        let disk = device::of(data, &mountinfo);
        let controllers = Controllers::find(&mountinfo, &parent, mode == Mode::Root, disk);
        let cgroups = Self { parent, prefix, controllers };
        let probe = cgroups.make(probe_number(), rustix::process::getuid().as_raw()).ok()??;
        let whole = probe.path.join("cgroup.kill").exists();
        probe.remove();
        whole.then_some(cgroups)
    }

    fn name(&self, number: u32) -> String {
        format!("{}{number}", self.prefix)
    }

    pub(crate) fn limiter(&self, number: u32) -> Limiter {
        self.controllers.limiter(&self.name(number))
    }

    /// The numbers of all groups that are there, whoever made them.
    pub(crate) fn numbers(&self) -> BTreeSet<u32> {
        let parents = [self.parent.as_path()].into_iter().chain(self.controllers.parents());
        let names = parents.flat_map(groups_in).filter_map(|group| group.file_name()?.to_str().map(str::to_owned));
        names.filter_map(|name| name.strip_prefix(&self.prefix)?.parse().ok()).collect()
    }

    /// Removes what is left of a group, unless something lives in it. The caller has leased the range.
    pub(crate) fn remove_left_over(&self, number: u32) {
        let Ok(cgroup) = self.open(number) else { return self.controllers.limiter(&self.name(number)).remove() };
        if let Ok(None) = hold(&cgroup.path) {
            return; // another engine has it, for its next sandbox
        }
        if cgroup.is_empty() {
            cgroup.remove();
            self.controllers.limiter(&self.name(number)).remove();
        } else {
            // What is dying in it ends when the kernel is done with it, and holds up the file system until then. It can wait for what others
            // in it have locked.
            let _ = cgroup.kill_commands();
            let _ = self.controllers.limiter(&self.name(number)).lift_cpu_limit();
        }
    }

    /// The group of a sandbox that lives.
    pub(crate) fn open(&self, number: u32) -> io::Result<Cgroup> {
        let path = self.parent.join(self.name(number));
        match fs::metadata(&path)?.is_dir() {
            true => Ok(Cgroup { path, held: None }),
            false => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    /// The same, for who takes it up. Where its last owner does not let go of it in time, its processes keep it all the same. Blocks.
    pub(crate) fn take_up(&self, number: u32) -> io::Result<Cgroup> {
        let Cgroup { path, .. } = self.open(number)?;
        let begun = Instant::now();
        loop {
            match hold(&path)? {
                None if begun.elapsed() < LETTING_GO => std::thread::sleep(LETTING_GO / 50),
                held => return Ok(Cgroup { path, held: held.map(Arc::new) }),
            }
        }
    }

    /// A group whose files belong to `owner`; `None` when there is one with living processes in it, or another engine has it.
    pub(crate) fn make(&self, number: u32, owner: u32) -> io::Result<Option<Cgroup>> {
        let path = self.parent.join(self.name(number));
        if let Err(error) = fs::create_dir(&path) {
            if error.kind() != io::ErrorKind::AlreadyExists {
                return Err(error);
            }
            if let Ok(None) = hold(&path) {
                return Ok(None);
            }
            // What an owner that was killed left in it may be frozen: nothing of it is used again.
            remove_tree(&path);
            match fs::create_dir(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
                made => made?,
            }
        }
        // A group that was made just now is held by another engine that makes it.
        let cgroup = Cgroup { held: hold(&path)?.map(Arc::new), path };
        if cgroup.held.is_none() || !cgroup.is_empty() {
            return Ok(None);
        }
        // Init makes groups below it, and starts processes from its own group into them.
        chown(&cgroup.path, Some(owner), Some(owner))?;
        chown(cgroup.path.join("cgroup.procs"), Some(owner), Some(owner))?;
        Ok(Some(cgroup))
    }
}

impl Cgroup {
    /// The group for its init, as the root of a mount of its own: no `..` leads from it to the host's other groups, nor to the
    /// host's root.
    pub(crate) fn detach(&self) -> io::Result<OwnedFd> {
        mounts::detach(&self.path)
    }

    pub(crate) fn is_empty(&self) -> bool {
        fs::read_to_string(self.path.join("cgroup.events"))
            .is_ok_and(|text| text.lines().any(|line| line == "populated 0"))
    }

    /// Whether a command runs in it, or something that one has left.
    pub(crate) fn has_commands(&self) -> bool {
        let text = fs::read_to_string(self.path.join("run/cgroup.events"));
        !text.is_ok_and(|text| text.lines().any(|line| line == "populated 0"))
    }

    /// Processor time of all that ever ran in it, in microseconds.
    pub(crate) fn cpu_us(&self) -> u64 {
        let text = fs::read_to_string(self.path.join("cpu.stat")).unwrap_or_default();
        let usage = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
        usage.and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    /// All processes in it and below, as the host numbers them.
    pub(crate) fn pids(&self) -> Vec<u32> {
        pids_below(self.path.clone())
    }

    /// Those in no group below it: init, and what it has started for itself.
    pub(crate) fn own_pids(&self) -> Vec<u32> {
        pids_in(&self.path)
    }

    /// Those of the commands alone: what is frozen.
    pub(crate) fn commands(&self) -> Vec<u32> {
        pids_below(self.path.join("run"))
    }

    /// Lets all commands stand still, or go on. Init is not among them. Those who are in the kernel stand still when they come
    /// back from there.
    pub(crate) fn set_frozen(&self, frozen: bool) -> io::Result<()> {
        fs::write(self.path.join("run/cgroup.freeze"), u8::from(frozen).to_string())
    }

    /// Ends all commands, also those that are frozen.
    pub(crate) fn kill_commands(&self) -> io::Result<()> {
        fs::write(self.path.join("run/cgroup.kill"), "1")
    }

    /// Lets all commands stand still for a moment, unless they do anyway. Who waits in the kernel, for another process say, lets go meanwhile
    /// of what it has locked there.
    pub(crate) fn shake(&self) -> io::Result<()> {
        if self.is_frozen() {
            return Ok(());
        }
        self.set_frozen(true)?;
        let _ = self.until_frozen(SHAKING); // who waits for a disk does not stand still
        self.set_frozen(false)
    }

    /// A tracer that does not let a thread go which ends holds up an exec of the others in the kernel, where nobody stands still.
    fn kill_tracers_that_hold(&self) {
        let pids = self.commands();
        for tracer in proc::tracers_that_hold(pids.iter().map(|pid| *pid as i32)) {
            if pids.contains(&(tracer as u32)) {
                sys::kill(tracer, libc::SIGKILL).unwrap_or_default();
            }
        }
    }

    /// Waits for who is in the kernel.
    pub(crate) fn until_frozen(&self, most: Duration) -> io::Result<()> {
        let mut events = fs::File::open(self.path.join("run/cgroup.events"))?;
        let begun = Instant::now();
        loop {
            let mut text = String::new();
            events.rewind()?;
            events.read_to_string(&mut text)?;
            if text.lines().any(|line| line == "frozen 1") {
                return Ok(());
            }
            let left = most.checked_sub(begun.elapsed()).ok_or(io::ErrorKind::TimedOut)?.min(TRACERS);
            if begun.elapsed() >= TRACERS {
                self.kill_tracers_that_hold();
            }
            // Ready when something has changed since it was last read.
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(&events, PollFlags::PRI)], Some(&left)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    pub(crate) fn is_frozen(&self) -> bool {
        fs::read_to_string(self.path.join("run/cgroup.freeze")).is_ok_and(|text| text.trim() == "1")
    }

    /// To look at only: it keeps the group for nobody.
    pub(crate) fn to_look_at(&self) -> Self {
        Self { path: self.path.clone(), held: None }
    }

    pub(crate) fn remove(self) {
        remove_tree(&self.path);
    }

    #[cfg(test)]
    pub(crate) fn at(path: &Path) -> Self {
        Self { path: path.to_owned(), held: None }
    }
}

/// Until the descriptor is closed. `None`: another engine has it.
fn hold(group: &Path) -> io::Result<Option<OwnedFd>> {
    let group = fs::File::open(group)?;
    match rustix::fs::flock(&group, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(group.into())),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Lowest first; what still lives keeps its group, and the range with it (see `Ranges::try_lease`).
fn remove_tree(path: &Path) {
    let mut groups = vec![path.to_owned()];
    let mut next = 0;
    while next < groups.len() {
        let below = groups_in(&groups[next]);
        groups.extend(below);
        next += 1;
    }
    for group in groups.iter().rev() {
        let _ = fs::remove_dir(group);
    }
}

fn pids_below(group: PathBuf) -> Vec<u32> {
    let mut pids = Vec::new();
    let mut left = vec![group];
    while let Some(dir) = left.pop() {
        pids.extend(pids_in(&dir));
        left.extend(groups_in(&dir));
    }
    pids
}

fn pids_in(group: &Path) -> Vec<u32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

fn groups_in(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// Where version 2 is mounted, by the text of mountinfo.
fn mount_point(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let path = mount.split(' ').nth(4)?;
        kind.starts_with("cgroup2 ").then(|| PathBuf::from(path.replace("\\040", " ")))
    })
}

/// Drawn by chance, far above the numbers of sandboxes. By the process's own it would be the same for two engines of one process,
/// and for processes of two pid namespaces: each would remove the other's, and take the host for one without groups.
fn probe_number() -> u32 {
    uuid::Uuid::new_v4().as_fields().0 | 1 << 31
}

fn own_group(cgroup: &str) -> Option<&str> {
    cgroup.lines().find_map(|line| line.strip_prefix("0::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_2_is_found_alone_and_beside_version_1() {
        let alone = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        let hybrid = "31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n32 30 0:28 / /sys/fs/cgroup/unified rw shared:4 - cgroup2 cgroup2 rw\n";
        assert_eq!(mount_point(alone), Some("/sys/fs/cgroup".into()));
        assert_eq!(mount_point(hybrid), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(mount_point("31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"), None);
        assert_eq!(mount_point("odd line\n\n"), None);
    }

    #[test]
    fn engines_that_open_at_once_all_find_cgroups() {
        let data = tempfile::tempdir().unwrap();
        let mode = if rustix::process::getuid().is_root() { Mode::Root } else { Mode::Single };
        let find = || Cgroups::find(mode, data.path()).is_some();
        let there = find();
        let found = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| (0..20).filter(|_| find()).count())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
        });
        assert_eq!(found, if there { 160 } else { 0 });
    }

    #[test]
    fn who_takes_a_group_up_waits_until_its_last_owner_lets_go() {
        let parent = tempfile::tempdir().unwrap();
        let cgroups =
            Cgroups { parent: parent.path().to_owned(), prefix: "r".into(), controllers: Controllers::default() };
        let group = parent.path().join("r7");
        fs::create_dir(&group).unwrap();
        let before = hold(&group).unwrap().unwrap();
        let (waits, waiting) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                waiting.recv().unwrap();
                drop(before);
            });
            assert!(hold(&group).unwrap().is_none());
            waits.send(()).unwrap();
            assert!(cgroups.take_up(7).unwrap().held.is_some());
        });
    }

    #[test]
    fn our_own_group_is_the_one_of_version_2() {
        assert_eq!(own_group("12:cpu:/a\n0::/user.slice/x.scope\n"), Some("/user.slice/x.scope"));
        assert_eq!(own_group("12:cpu:/a\n"), None);
    }
}
