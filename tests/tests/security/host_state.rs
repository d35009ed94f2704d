//! The host as it is at one moment: what an attack from inside a sandbox could have changed of it. Taken before and after,
//! and compared. Tests run beside each other, and their sandboxes come and go: what they have by name is left out, and a
//! difference counts when it stays.

use std::{
    collections::BTreeMap,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant, SystemTime},
};

/// How long a difference has to stay. What belongs to a test beside this one goes sooner.
const STAYS: Duration = Duration::from_secs(20);

/// How far the clock may have been corrected meanwhile.
const CORRECTED: Duration = Duration::from_secs(2);

/// Settings that the kernel counts with, or changes by itself.
const COUNTERS: &[&str] = &[
    "fs/aio-nr",
    "fs/dentry-negative",
    "fs/dentry-state",
    "fs/file-nr",
    "fs/inode-nr",
    "fs/inode-state",
    "fs/quota/",
    "kernel/hung_task_detect_count",
    "kernel/ns_last_pid",
    "kernel/perf_cpu_time_max_percent",
    "kernel/perf_event_max_sample_rate",
    "kernel/pty/nr",
    "kernel/random/",
    "net/netfilter/nf_conntrack_count",
];

/// What a server raises when it starts, and never lowers: some other test's may start now.
const CEILINGS: &[&str] =
    &["kernel/pid_max", "kernel/pty/max", "kernel/keys/", "kernel/threads-max", "fs/", "user/", "vm/max_map_count"];

#[derive(Clone, Debug)]
pub(crate) struct HostState {
    facts: BTreeMap<String, String>,
    /// How far the clock is ahead of the time since boot.
    clock: Duration,
    /// A data directory that belongs to this: no test beside it changes it.
    data: Option<PathBuf>,
}

impl HostState {
    pub(crate) fn take() -> Self {
        Self::of(None)
    }

    /// And what lies in this data directory.
    pub(crate) fn take_with(data: &Path) -> Self {
        Self::of(Some(data))
    }

    fn of(data: Option<&Path>) -> Self {
        let mut facts = BTreeMap::new();
        let mut add = |kind: &str, all: Vec<(String, String)>| {
            facts.extend(all.into_iter().map(|(name, value)| (format!("{kind} {name}"), value)));
        };
        add("mount", mounts());
        add("setting", settings());
        add("device", devices());
        add("loop", loops());
        add("cgroup", cgroups());
        add("file", files());
        add("network", network());
        add("process", processes());
        add("text", texts());
        add("data", data.map(data_files).unwrap_or_default());
        Self { facts, clock: clock(), data: data.map(Path::to_owned) }
    }

    /// What is another than before: `+` is new, `-` is gone, `!` is changed.
    pub(crate) fn differences(&self, before: &Self) -> Vec<String> {
        let new = self.facts.keys().filter(|name| !before.facts.contains_key(*name)).map(|name| format!("+ {name}"));
        let gone = before.facts.keys().filter(|name| !self.facts.contains_key(*name)).map(|name| format!("- {name}"));
        let changed = before.facts.iter().filter_map(|(name, was)| {
            let is = self.facts.get(name).filter(|is| *is != was)?;
            Some(format!("! {name}: {was:?} became {is:?}"))
        });
        let moved = self.clock.abs_diff(before.clock) > CORRECTED;
        let clock = moved.then(|| format!("! the clock, by {:?}", self.clock.abs_diff(before.clock)));
        new.chain(gone).chain(changed).chain(clock).collect()
    }

    /// Fails with what differs for good.
    #[track_caller]
    pub(crate) fn assert_unchanged(&self) {
        let began = Instant::now();
        let take = || Self::of(self.data.as_deref());
        let mut left = take().differences(self);
        while !left.is_empty() && began.elapsed() < STAYS {
            std::thread::sleep(Duration::from_millis(200));
            let now = take().differences(self);
            left.retain(|difference| now.contains(difference));
        }
        assert!(left.is_empty(), "the host is another than before:\n{}", left.join("\n"));
    }
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// Of this process, and of the host's first.
fn mounts() -> Vec<(String, String)> {
    let of = |process: &'static str| {
        let text = read(format!("/proc/{process}/mountinfo")).unwrap_or_default();
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.into_iter().filter_map(move |line| {
            let mut words = line.split(' ').skip(3);
            let (root, at) = (words.next()?, words.next()?);
            let rest = words.collect::<Vec<_>>().join(" ");
            (!of_a_test(at)).then(|| (format!("{process} {root} at {at}"), rest))
        })
    };
    of("self").chain(of("1")).collect()
}

/// Named by a test or by an engine of one.
fn of_a_test(name: &str) -> bool {
    name.contains("cabana") || name.contains("/.tmp") || name.contains("/netns")
}

fn settings() -> Vec<(String, String)> {
    let root = Path::new("/proc/sys");
    let of_others = |name: &str| COUNTERS.iter().chain(CEILINGS).any(|skip| name.starts_with(skip));
    let all = walk(root, &|_| true).into_iter().filter_map(|path| {
        let name = path.strip_prefix(root).ok()?.to_str()?.to_owned();
        (!of_others(&name)).then(|| (name, read(&path).unwrap_or_default()))
    });
    all.collect()
}

/// What is below, without following links; directories themselves as well.
fn walk(root: &Path, enter: &dyn Fn(&Path) -> bool) -> Vec<PathBuf> {
    let (mut found, mut left) = (Vec::new(), vec![root.to_owned()]);
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) && enter(&path) {
                left.push(path.clone());
            }
            found.push(path);
        }
    }
    found
}

fn devices() -> Vec<(String, String)> {
    let terminals = |path: &Path| path != Path::new("/dev/pts") && path != Path::new("/dev/shm");
    let about = |path: PathBuf| {
        let known = fs::symlink_metadata(&path).ok()?;
        let kind = known.file_type();
        let device = kind.is_char_device() || kind.is_block_device();
        let number = if device { known.rdev() } else { 0 };
        Some((path.display().to_string(), format!("{:o} {} {number}", known.mode(), known.uid())))
    };
    walk(Path::new("/dev"), &terminals).into_iter().filter_map(about).collect()
}

fn loops() -> Vec<(String, String)> {
    let names = fs::read_dir("/sys/block").into_iter().flatten().flatten().map(|entry| entry.path());
    let backed = |path: PathBuf| Some((path.display().to_string(), read(path.join("loop/backing_file"))?));
    names.filter_map(backed).filter(|(_, file)| !of_a_test(file)).collect()
}

/// Groups that are neither Cabana's nor of a test beside this one.
fn cgroups() -> Vec<(String, String)> {
    let name_of = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let ours = |path: &Path| name_of(path) == "cabana" || name_of(path).starts_with("cabana-matrix-");
    let all = walk(Path::new("/sys/fs/cgroup"), &|path| !ours(path));
    let groups = all.into_iter().filter(|path| path.is_dir() && !ours(path));
    groups.map(|path| (path.display().to_string(), String::new())).collect()
}

/// Names and marks of what an intruder would change first.
fn files() -> Vec<(String, String)> {
    let of = |dir: &'static str| fs::read_dir(dir).into_iter().flatten().flatten();
    let about = |entry: fs::DirEntry| {
        let known = entry.metadata().ok()?;
        let marks = format!("{:o} {}:{}", known.mode(), known.uid(), known.gid());
        let dir = known.is_dir();
        // The times of directories change with what others do in them.
        let times = if dir { String::new() } else { format!(" {} {}", known.size(), known.mtime()) };
        Some((entry.path().display().to_string(), marks + &times))
    };
    ["/", "/etc", "/root", "/usr/bin", "/usr/sbin", "/usr/lib"].into_iter().flat_map(of).filter_map(about).collect()
}

/// Everything below, with its marks and its content; of directories not their times, as of those above. Drafts of sandboxes that
/// come next are the engine's to make and to take.
fn data_files(data: &Path) -> Vec<(String, String)> {
    let about = |path: PathBuf| {
        let known = fs::symlink_metadata(&path).ok()?;
        let mut value = format!("{:o} {}:{}", known.mode(), known.uid(), known.gid());
        if known.is_file() {
            let mut content = DefaultHasher::new();
            fs::read(&path).ok()?.hash(&mut content);
            value += &format!(" {} {}.{} {:x}", known.size(), known.mtime(), known.mtime_nsec(), content.finish());
        }
        Some((path.display().to_string(), value))
    };
    let is_draft = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".draft-"));
    let all = walk(data, &|path| !is_draft(path)).into_iter();
    all.filter(|path| !is_draft(path)).filter_map(about).collect()
}

fn network() -> Vec<(String, String)> {
    let ask = |words: &[&str]| {
        let said = Command::new(words[0]).args(&words[1..]).output().ok().filter(|said| said.status.success())?;
        Some((words.join(" "), String::from_utf8_lossy(&said.stdout).into_owned()))
    };
    let all: [&[&str]; 5] = [
        &["ip", "-o", "link"],
        &["ip", "route", "show", "table", "all"],
        &["ip", "-6", "route", "show", "table", "all"],
        &["ip", "rule"],
        &["nft", "list", "ruleset"],
    ];
    all.into_iter().filter_map(ask).collect()
}

/// This one, which is the server, and the host's first: who they are, what they may, where they stand.
fn processes() -> Vec<(String, String)> {
    const FIELDS: &[&str] = &[
        "Name",
        "Umask",
        "PPid",
        "TracerPid",
        "Uid",
        "Gid",
        "Groups",
        "CapEff",
        "CapBnd",
        "NoNewPrivs",
        "Cpus_allowed",
    ];
    let of = |process: &'static str| {
        let status = read(format!("/proc/{process}/status")).unwrap_or_default();
        let lines: Vec<String> = status.lines().map(str::to_owned).collect();
        let fields = lines.into_iter().filter(|line| FIELDS.contains(&line.split(':').next().unwrap_or_default()));
        let fields = fields.map(move |line| {
            let (name, value) = line.split_once(':').unwrap_or((&line, ""));
            (format!("{process} {name}"), value.trim().to_owned())
        });
        let texts = ["limits", "oom_score_adj", "cgroup"].map(|name| (name, read(format!("/proc/{process}/{name}"))));
        let links = ["cwd", "root", "ns/mnt", "ns/net", "ns/user"].map(|name| {
            (name, fs::read_link(format!("/proc/{process}/{name}")).ok().map(|to| to.display().to_string()))
        });
        let more = texts.into_iter().chain(links);
        fields.chain(more.map(move |(name, value)| (format!("{process} {name}"), value.unwrap_or_default())))
    };
    of("self").chain(of("1")).collect()
}

fn texts() -> Vec<(String, String)> {
    let names = ["/proc/swaps", "/proc/modules", "/proc/mtrr", "/proc/cmdline", "/proc/filesystems"];
    let drop_counts =
        |text: String| text.lines().filter_map(|line| line.split_whitespace().next()).collect::<Vec<_>>().join(" ");
    names.into_iter().filter_map(|name| Some((name.to_owned(), drop_counts(read(name)?)))).collect()
}

fn clock() -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let up: f64 = read("/proc/uptime").and_then(|text| text.split(' ').next()?.parse().ok()).unwrap_or(0.0);
    now.saturating_sub(Duration::from_secs_f64(up))
}

/// A group of its own, which is gone with the test.
struct ControlGroup(PathBuf);

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_change_of_the_host_is_seen() {
    let before = HostState::take();
    assert_eq!(before.differences(&before), Vec::<String>::new());
    let group = ControlGroup(Path::new("/sys/fs/cgroup").join(crate::inside::unique("control-of-tests")));
    fs::create_dir(&group.0).unwrap();
    rustix::process::chdir("/usr").unwrap();
    let seen = HostState::take().differences(&before);
    assert!(seen.contains(&format!("+ cgroup {}", group.0.display())), "{seen:?}");
    assert!(seen.iter().any(|change| change.starts_with("! process self cwd")), "{seen:?}");
}

#[test]
fn a_change_in_the_data_directory_is_seen() {
    let data = tempfile::tempdir().unwrap();
    let [kept, written, removed] = ["kept", "written", "removed"].map(|name| data.path().join(name));
    for file in [&kept, &written, &removed] {
        fs::write(file, "before").unwrap();
    }
    let before = HostState::take_with(data.path());
    fs::write(&written, "after!").unwrap();
    fs::remove_file(&removed).unwrap();
    fs::write(data.path().join("added"), "").unwrap();
    let seen = HostState::take_with(data.path()).differences(&before);
    let of_data = seen.iter().filter(|change| change[1..].starts_with(" data ")).collect::<Vec<_>>();
    assert_eq!(of_data.len(), 3, "{of_data:?}");
    for (sign, name) in [("+", "added"), ("-", "removed"), ("!", "written")] {
        let begin = format!("{sign} data {}", data.path().join(name).display());
        assert!(of_data.iter().any(|change| change.starts_with(&begin)), "{begin}: {of_data:?}");
    }
}

#[test]
fn of_every_kind_something_is_looked_at_and_its_change_and_its_end_are_seen() {
    let before = HostState::take();
    for kind in ["mount", "setting", "device", "cgroup", "file", "network", "process", "text"] {
        let name = before.facts.keys().find(|name| name.starts_with(&format!("{kind} ")));
        let name = name.unwrap_or_else(|| panic!("of {kind} nothing is looked at"));
        let (mut without, mut changed) = (before.clone(), before.clone());
        without.facts.remove(name);
        changed.facts.insert(name.clone(), "another".to_owned());
        assert_eq!(without.differences(&before), [format!("- {name}")]);
        assert_eq!(before.differences(&without), [format!("+ {name}")]);
        assert!(changed.differences(&before)[0].starts_with(&format!("! {name}: ")));
    }
    let later = HostState { clock: before.clock + Duration::from_secs(3600), ..before.clone() };
    assert_eq!(later.differences(&before).len(), 1);
}
