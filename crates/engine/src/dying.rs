//! A server that was killed and cannot end: a thread of it waits in the kernel for a lock that a guest holds, and no signal ends
//! such a wait. It keeps its port, its lock and its ranges of ids until the guest is done, which its limit of the processor makes
//! slow, and which may be never. Who comes after it lifts those limits, which are set again when the sandboxes are taken up, and lets
//! the guests stand still, again and again, until it has ended: so they let go of the lock. Its end takes such locks, too.

use std::{collections::BTreeSet, fs, path::Path};

use crate::{
    cgroup::{Cgroup, Cgroups},
    identity,
    rootless::Mode,
};

/// Whether this process was killed and has not ended.
pub fn is_dying(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().any(|thread| {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        says_dying(&status)
    })
}

/// The sandboxes whose ranges of ids a process holds. Only root's sandboxes have ranges of their own.
pub struct Guests(Vec<Cgroup>);

impl Guests {
    /// As long as the process has something open. Their limits of the processor are lifted.
    pub fn of(pid: u32, data: &Path) -> Self {
        let cgroups = rustix::process::geteuid().is_root().then(|| Cgroups::find(Mode::Root, data)).flatten();
        let Some(cgroups) = cgroups else { return Self(Vec::new()) };
        let lifted = |range| {
            let _ = cgroups.limiter(range).lift_cpu_limit();
            cgroups.open(range).ok()
        };
        Self(ranges_of(pid).into_iter().filter_map(lifted).collect())
    }

    /// Lets them stand still meanwhile, but for those that do anyway.
    pub fn stand_still_for<T>(&self, act: impl FnOnce() -> T) -> T {
        let move_on: Vec<_> =
            self.0.iter().filter(|group| !group.is_frozen() && group.set_frozen(true).is_ok()).collect();
        let done = act();
        for group in move_on {
            let _ = group.set_frozen(false);
        }
        done
    }
}

/// By what it has open. Its first thread may have ended, and then only the others tell.
fn ranges_of(pid: u32) -> BTreeSet<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return BTreeSet::new() };
    let open = |thread: fs::DirEntry| fs::read_dir(thread.path().join("fd")).ok();
    let links = threads.flatten().filter_map(open).flatten().flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    links.filter_map(|link| identity::range_of_lease(&link)).collect()
}

/// By what `/proc/PID/status` says: it is a zombie, or a signal waits for it that nothing outlives.
fn says_dying(status: &str) -> bool {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let killed = |name| {
        let pending = field(name).and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
        pending & 1 << (libc::SIGKILL - 1) != 0
    };
    field("State:").is_some_and(|state| state.starts_with(['Z', 'X'])) || killed("SigPnd:") || killed("ShdPnd:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_dying_once_it_was_killed() {
        let lives = "State:\tS (sleeping)\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n";
        assert!(!says_dying(lives));
        assert!(says_dying(&lives.replace("S (sleeping)", "Z (zombie)")));
        assert!(says_dying(&lives.replace("SigPnd:\t0000000000000000", "SigPnd:\t0000000000000100")));
        assert!(!says_dying(&lives.replace("ShdPnd:\t0000000000000000", "ShdPnd:\t0000000000000200")), "SIGUSR1");
        assert!(!is_dying(std::process::id()));
    }

    #[test]
    fn the_ranges_of_a_process_are_known_by_what_it_has_open() {
        assert_eq!(identity::range_of_lease(Path::new("/run/cabana/leases/4711")), Some(4711));
        for other in [
            "/run/cabana/leases/x",
            "/run/cabana/leases",
            "/tmp/leases/7",
            "socket:[7]",
            "/run/cabana/leases/7 (deleted)",
        ] {
            assert_eq!(identity::range_of_lease(Path::new(other)), None, "{other}");
        }
        assert!(ranges_of(std::process::id()).is_empty());
    }
}
