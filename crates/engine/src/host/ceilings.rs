//! What the kernel allows of each kind on the whole machine, and how much a thousand sandboxes want.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

const SYS: &str = "/proc/sys";
/// Of one process that has a thousand sandboxes.
pub(super) const OPEN_FILES: u64 = 65_536;
/// Each sandbox has one of each kind.
const NAMESPACES: &str = "sandboxes at once";

/// A number of the kernel that limits how many sandboxes there can be, or what they can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ceiling {
    pub topic: &'static str,
    /// As sysctl names it.
    pub key: &'static str,
    /// For a thousand sandboxes.
    pub enough: u64,
    /// What it is best set to.
    pub better: u64,
    /// What there is at most so many of.
    pub of: &'static str,
}

const fn ceiling(topic: &'static str, key: &'static str, enough: u64, better: u64, of: &'static str) -> Ceiling {
    Ceiling { topic, key, enough, better, of }
}

pub const CEILINGS: [Ceiling; 13] = [
    ceiling("pids", "kernel.pid_max", 65_536, 4_194_304, "processes on the whole machine, those in sandboxes included"),
    ceiling(
        "terminals",
        "kernel.pty.max",
        4_096,
        65_536,
        "terminals on the whole machine, those in sandboxes included",
    ),
    ceiling(
        "inotify-instances",
        "fs.inotify.max_user_instances",
        128,
        8_192,
        "watchers in one sandbox, and from outside",
    ),
    ceiling(
        "inotify-watches",
        "fs.inotify.max_user_watches",
        65_536,
        1_048_576,
        "watched files in one sandbox, and from outside",
    ),
    ceiling("user-namespaces", "user.max_user_namespaces", 4_096, 65_536, NAMESPACES),
    ceiling("mount-namespaces", "user.max_mnt_namespaces", 4_096, 65_536, NAMESPACES),
    ceiling("pid-namespaces", "user.max_pid_namespaces", 4_096, 65_536, NAMESPACES),
    ceiling("net-namespaces", "user.max_net_namespaces", 4_096, 65_536, NAMESPACES),
    ceiling("ipc-namespaces", "user.max_ipc_namespaces", 4_096, 65_536, NAMESPACES),
    ceiling("uts-namespaces", "user.max_uts_namespaces", 4_096, 65_536, NAMESPACES),
    ceiling("cgroup-namespaces", "user.max_cgroup_namespaces", 4_096, 65_536, NAMESPACES),
    ceiling("open-files", "fs.file-max", 1_048_576, 9_223_372_036_854_775_807, "open files on the whole machine"),
    ceiling("open-files-of-one", "fs.nr_open", 524_288, 1_048_576, "open files of one process, also in a sandbox"),
];

/// As they are now. What this kernel does not have is not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ceilings {
    pub kernel: BTreeMap<&'static str, u64>,
    /// Of this process, and of what it starts.
    pub files_soft: Option<u64>,
    pub files_hard: Option<u64>,
}

/// A ceiling that was too low, and what it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Raised {
    pub key: &'static str,
    pub from: u64,
    pub to: u64,
}

impl Ceilings {
    pub(super) fn read() -> Self {
        Self::read_from(Path::new(SYS))
    }

    fn read_from(sys: &Path) -> Self {
        let files = getrlimit(Resource::Nofile);
        let kernel = CEILINGS.iter().filter_map(|ceiling| Some((ceiling.key, number(sys, ceiling)?))).collect();
        Self { kernel, files_soft: files.current, files_hard: files.maximum }
    }
}

/// Raises what is too low for a thousand sandboxes and may be raised: the kernel's numbers for root of the machine, the
/// limit of open files for everybody. Says what it has changed. Nothing is ever lowered.
pub fn raise_ceilings() -> Vec<Raised> {
    let mut raised = raise_in(Path::new(SYS));
    raised.extend(raise_files());
    raised
}

fn raise_in(sys: &Path) -> Vec<Raised> {
    let raise = |ceiling: &Ceiling| {
        let from = number(sys, ceiling).filter(|now| *now < ceiling.enough)?;
        write(sys, ceiling, ceiling.better).ok()?;
        // The kernel may have a bound of its own.
        let to = number(sys, ceiling).filter(|to| *to > from)?;
        Some(Raised { key: ceiling.key, from, to })
    };
    CEILINGS.iter().filter_map(raise).collect()
}

/// Root may raise the hard limit, everybody the soft one up to it: a descriptor or more for each sandbox.
fn raise_files() -> Option<Raised> {
    let now = getrlimit(Resource::Nofile);
    let (soft, hard) = (now.current?, now.maximum.unwrap_or(u64::MAX));
    let set = |to| setrlimit(Resource::Nofile, Rlimit { current: Some(to), maximum: Some(to) }).ok().map(|()| to);
    let to = if hard < OPEN_FILES { set(OPEN_FILES).unwrap_or(hard) } else { hard };
    if soft >= to {
        return None;
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(to), maximum: Some(to) }).ok()?;
    Some(Raised { key: "RLIMIT_NOFILE", from: soft, to })
}

fn file(sys: &Path, ceiling: &Ceiling) -> PathBuf {
    sys.join(ceiling.key.replace('.', "/"))
}

fn number(sys: &Path, ceiling: &Ceiling) -> Option<u64> {
    fs::read_to_string(file(sys, ceiling)).ok()?.trim().parse().ok()
}

fn write(sys: &Path, ceiling: &Ceiling, value: u64) -> io::Result<()> {
    fs::write(file(sys, ceiling), value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_low_is_raised_and_nothing_else_is_touched() {
        let sys = tempfile::tempdir().unwrap();
        for ceiling in CEILINGS.iter().filter(|ceiling| ceiling.key != "fs.nr_open") {
            let value = match ceiling.key {
                "kernel.pid_max" => 32_768,
                "user.max_net_namespaces" => 10,
                _ => ceiling.enough,
            };
            fs::create_dir_all(file(sys.path(), ceiling).parent().unwrap()).unwrap();
            write(sys.path(), ceiling, value).unwrap();
        }
        let raised = raise_in(sys.path());
        let expected = [("kernel.pid_max", 32_768, 4_194_304), ("user.max_net_namespaces", 10, 65_536)];
        assert_eq!(raised, expected.map(|(key, from, to)| Raised { key, from, to }));
        for ceiling in CEILINGS.iter().filter(|ceiling| ceiling.key != "fs.nr_open") {
            let wanted =
                raised.iter().find(|raised| raised.key == ceiling.key).map_or(ceiling.enough, |raised| raised.to);
            assert_eq!(number(sys.path(), ceiling), Some(wanted), "{}", ceiling.key);
        }
        assert_eq!(raise_in(sys.path()), []);
        assert!(!Ceilings::read_from(sys.path()).kernel.contains_key("fs.nr_open"), "this kernel does not have it");
    }

    /// Puts the machine's own numbers back, whatever becomes of the test.
    struct AsItWas(Vec<(&'static Ceiling, u64)>);

    impl Drop for AsItWas {
        fn drop(&mut self) {
            for (ceiling, value) in &self.0 {
                let _ = write(Path::new(SYS), ceiling, *value);
            }
        }
    }

    #[test]
    fn root_raises_the_machines_own_and_the_limit_of_open_files() {
        let now: Vec<_> = CEILINGS.iter().filter_map(|one| Some((one, number(Path::new(SYS), one)?))).collect();
        assert!(now.len() >= 10, "{now:?}");
        let before: BTreeMap<_, _> = now.iter().map(|(ceiling, value)| (ceiling.key, *value)).collect();
        let _as_it_was = AsItWas(now);
        let raised = raise_ceilings();
        let after = Ceilings::read();
        assert_eq!(after.files_soft, after.files_hard);
        for ceiling in &CEILINGS {
            let Some(was) = before.get(ceiling.key) else { continue };
            assert!(after.kernel[ceiling.key] >= ceiling.enough, "{}", ceiling.key);
            assert_eq!(raised.iter().any(|raised| raised.key == ceiling.key), *was < ceiling.enough, "{}", ceiling.key);
        }
        assert_eq!(raise_ceilings(), [], "there is nothing left to raise");
    }
}
