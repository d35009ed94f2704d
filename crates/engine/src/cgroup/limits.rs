//! What a sandbox may use of memory, processor, process numbers and the disk's time, by the kernel's controllers.
//!
//! A controller lives in the unified hierarchy or in one of its own (version 1), never in both. In the unified one a
//! sandbox's init is started inside its group. In one of version 1 it has to be moved, which takes as long as a part of the
//! create: so that is done to inits that wait for a sandbox, and not while somebody waits for one. A waiting init is
//! held to what the last sandbox was; where the next is to have other limits, they are set when it becomes that sandbox.

use std::{
    fs, io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use cabana_sandbox::{Enforced, Error, Limits, Result};
use rustix::{
    event::{EventfdFlags, eventfd},
    fs::inotify,
};

use super::device::Device;
use crate::places::tcp_memory;

/// Of a processor's time, in microseconds: the kernel's own default, short enough that nobody waits long for its turn.
const PERIOD: u64 = 100_000;

/// The bound of version 1 for the queues of TCP, which it counts apart. Version 2 counts them as memory, and has no bound for them alone.
const TCP_QUEUES: &str = "memory.kmem.tcp.limit_in_bytes";
const IN_TCP_QUEUES: &str = "memory.kmem.tcp.usage_in_bytes";

/// Of what TCP may hold on the whole machine, for all sandboxes together, and for one of them.
const TCP_PART_OF_ALL: u64 = 4;
const TCP_PART_OF_ONE: u64 = 16;

/// What processes of a group of version 1 asked of disks, which is not what the kernel wrote for them later.
const COUNTS_ONE: &str = "blkio.throttle.io_service_bytes";

/// The controllers of this host that we may use, each with the group that holds ours.
#[derive(Clone, Debug, Default)]
pub(crate) struct Controllers {
    memory: Option<Group>,
    cpu: Option<Group>,
    pids: Option<Group>,
    /// Together with the disk whose traffic it counts.
    io: Option<Group>,
    disk: Option<Device>,
}

/// Bytes that were moved between a sandbox and its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskTraffic {
    pub(crate) read: u64,
    pub(crate) written: u64,
}

/// Of what the kernel cannot give up, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charged {
    pub(crate) exact: u64,
    /// In version 1 nobody can tell it from what the kernel could give up, and from stacks.
    pub(crate) with_others: u64,
}

/// Where the kernel counts what waits in queues of TCP apart from memory, of all sandboxes or of one.
#[derive(Clone)]
pub(crate) struct QueueMeter(Group);

/// Where the kernel counts the traffic of one sandbox.
pub(crate) struct DiskMeter {
    group: Group,
    disk: Device,
}

/// The groups of one sandbox, or a part of them: no controller, no group.
#[derive(Default)]
pub(crate) struct Limiter(Controllers);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    version: Version,
    path: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Controllers {
    /// `unified` is our group of version 2; `everywhere`, whether groups may be made in other hierarchies too; `disk`, where
    /// the files of sandboxes lie.
    pub(crate) fn find(mountinfo: &str, unified: &Path, everywhere: bool, disk: Option<Device>) -> Self {
        let find = |two: &str, one: &str| {
            if enable(unified, two) {
                return Some(Group { version: Version::Two, path: unified.to_owned() });
            }
            let parent = v1_mount(mountinfo, one).filter(|_| everywhere)?.join("cabana");
            make(&parent).ok()?;
            Some(Group { version: Version::One, path: parent })
        };
        let counts = |group: &Group| group.version == Version::Two || group.path.join(COUNTS_ONE).exists();
        let io = disk.and_then(|_| find("io", "blkio")).filter(counts);
        let pids = find("pids", "pids");
        if let (Some(group), Some(most)) = (&pids, processes_of_all(Path::new("/proc/sys/kernel"))) {
            let _ = group.lower_pids(most);
        }
        let memory = find("memory", "memory");
        if let (Some(group @ Group { version: Version::One, .. }), Some(bytes)) = (&memory, tcp_memory()) {
            let _ = group.write_if_there(TCP_QUEUES, &(bytes as u64 / TCP_PART_OF_ALL).to_string());
        }
        Self { memory, cpu: find("cpu", "cpu"), pids, disk: disk.filter(|_| io.is_some()), io }
    }

    pub(crate) fn memory(&self) -> Enforced {
        enforced(self.memory.as_ref())
    }

    pub(crate) fn cpu(&self) -> Enforced {
        enforced(self.cpu.as_ref())
    }

    pub(crate) fn pids(&self) -> Enforced {
        enforced(self.pids.as_ref())
    }

    /// The kernel counts, and [`crate::disk_rate`] watches.
    pub(crate) fn io(&self) -> Enforced {
        if self.io.is_some() { Enforced::ByWatching } else { Enforced::No }
    }

    /// What of the kernel's own memory is charged to all sandboxes.
    pub(crate) fn charged(&self) -> Charged {
        let Some(Group { version, path }) = &self.memory else { return Charged::default() };
        match version {
            Version::Two => {
                let text = fs::read_to_string(path.join("memory.stat")).unwrap_or_default();
                let slab = text.lines().find_map(|line| line.strip_prefix("slab_unreclaimable "));
                Charged { exact: slab.and_then(|number| number.parse().ok()).unwrap_or(0), with_others: 0 }
            }
            Version::One => {
                let text = fs::read_to_string(path.join("memory.kmem.usage_in_bytes")).unwrap_or_default();
                Charged { exact: 0, with_others: text.trim().parse().unwrap_or(0) }
            }
        }
    }

    /// `None` where what waits in queues of TCP is memory.
    pub(crate) fn queue_meter(&self) -> Option<QueueMeter> {
        self.memory.clone().filter(|group| group.version == Version::One).map(QueueMeter)
    }

    /// The groups of one sandbox. Those of version 2 are there already; those of version 1 are made when they are needed,
    /// since they take more of the kernel's memory than all else of a sandbox.
    pub(crate) fn limiter(&self, name: &str) -> Limiter {
        let group = |parent: &Option<Group>| {
            parent.as_ref().map(|Group { version, path }| Group { version: *version, path: path.join(name) })
        };
        Limiter(Self {
            memory: group(&self.memory),
            cpu: group(&self.cpu),
            pids: group(&self.pids),
            io: group(&self.io),
            disk: self.disk,
        })
    }

    /// Counts a process, and all that it will start, to those that all sandboxes may have: with groups of version 1 a sandbox without limits is
    /// in none of its own.
    pub(crate) fn count_processes_of(&self, pid: u32) -> io::Result<()> {
        let group = self.pids.iter().find(|group| group.version == Version::One);
        group.map_or(Ok(()), |group| group.write("cgroup.procs", &pid.to_string()))
    }

    /// Where the groups of version 1 lie.
    pub(crate) fn parents(&self) -> impl Iterator<Item = &Path> {
        self.all().filter(|group| group.version == Version::One).map(|group| group.path.as_path())
    }

    fn all(&self) -> impl Iterator<Item = &Group> {
        [&self.memory, &self.cpu, &self.pids, &self.io].into_iter().flatten()
    }
}

impl Limiter {
    /// Makes the groups into which processes have to be moved, without limits.
    pub(crate) fn make(&self) -> Result<()> {
        let memory = self.0.memory.as_ref().filter(|group| group.version == Version::One);
        if let Some(memory) = memory.filter(|_| self.is_charged()) {
            let _ = fs::remove_dir(&memory.path);
        }
        let made = self.moved_into().try_for_each(|group| make(&group.path));
        made.map_err(|error| Error::failed("making the sandbox's groups", error))?;
        self.set(&Limits::default()) // those of whoever had them before may be left
    }

    /// Whether the groups are there: of version 2 they always are.
    pub(crate) fn is_made(&self) -> bool {
        self.0.all().next().is_some() && self.moved_into().all(|group| group.path.exists())
    }

    /// Whether more memory of the last sandbox is charged to the group than the next one would notice: somebody has got hold of it. It
    /// stays charged there until it is let go. What the kernel gives up when memory is short does not count: a group that is
    /// removed stays in its memory as long as that is there.
    pub(crate) fn is_charged(&self) -> bool {
        const MOST: u64 = 4 << 20;
        self.0.memory.as_ref().is_some_and(|group| group.held_memory() > MOST)
    }

    /// Moves a process, and with it all that it will start.
    pub(crate) fn attach(&self, pid: u32) -> io::Result<()> {
        self.moved_into().try_for_each(|group| group.write("cgroup.procs", &pid.to_string()))
    }

    /// Whether a process has to be moved at all.
    pub(crate) fn has_to_attach(&self) -> bool {
        self.moved_into().next().is_some()
    }

    fn moved_into(&self) -> impl Iterator<Item = &Group> {
        self.0.all().filter(|group| group.version == Version::One)
    }

    /// The whole state: what is not limited is free again.
    pub(crate) fn set(&self, limits: &Limits) -> Result<()> {
        self.write(limits, |_| true)
    }

    /// Nothing in it is slow by a limit from here on, whatever the limits were.
    pub(crate) fn lift_cpu_limit(&self) -> io::Result<()> {
        self.0.cpu.as_ref().map_or(Ok(()), |group| group.set_cpu(None))
    }

    /// Where it is known what they were.
    pub(crate) fn change(&self, was: &Limits, limits: &Limits) -> Result<()> {
        self.write(limits, |limit| limit(was) != limit(limits))
    }

    fn write(&self, limits: &Limits, is_new: impl Fn(fn(&Limits) -> Option<u64>) -> bool) -> Result<()> {
        if let Some(group) = self.0.memory.as_ref().filter(|_| is_new(|limits| limits.memory)) {
            group.set_memory(limits.memory).map_err(|error| match error.raw_os_error() {
                Some(libc::EBUSY) => {
                    Error::invalid("limits.memory", "the sandbox uses more than that now: end something first")
                }
                _ => Error::failed("limiting the memory", error),
            })?;
        }
        if let Some(group) = self.0.cpu.as_ref().filter(|_| is_new(|limits| limits.cpu_milli.map(u64::from))) {
            group.set_cpu(limits.cpu_milli).map_err(|error| Error::failed("limiting the processor time", error))?;
        }
        if let Some(group) = self.0.pids.as_ref().filter(|_| is_new(|limits| limits.pids.map(u64::from))) {
            let most = limits.pids.map_or("max".to_owned(), |pids| pids.to_string());
            group.write("pids.max", &most).map_err(|error| Error::failed("limiting the processes", error))?;
        }
        if let (Some(group), Some(disk)) = (&self.0.io, self.0.disk)
            && limits.io.is_some()
            && is_new(|limits| limits.io)
        {
            group.count_traffic(disk).map_err(|error| Error::failed("counting the disk's traffic", error))?;
        }
        Ok(())
    }

    /// `None` where nobody counts it.
    pub(crate) fn disk_meter(&self) -> Option<DiskMeter> {
        Some(DiskMeter { group: self.0.io.clone()?, disk: self.0.disk? })
    }

    pub(crate) fn queue_meter(&self) -> Option<QueueMeter> {
        self.0.queue_meter()
    }

    /// Whether it has as many processes as it may. Some may have ended since the kernel refused one for it, so a few less are as many.
    pub(crate) fn is_full_of_processes(&self) -> bool {
        let number = |file: &str| self.0.pids.as_ref()?.read(file)?.trim().parse::<u64>().ok();
        let (now, most) = (number("pids.current"), number("pids.max"));
        now.zip(most).is_some_and(|(now, most)| now >= most - most / 8)
    }

    /// How often the kernel ended a process of this sandbox for want of memory.
    pub(crate) fn oom_kills(&self) -> u64 {
        let Some(group) = &self.0.memory else { return 0 };
        let file = match group.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        let text = fs::read_to_string(group.path.join(file)).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    /// Becomes readable when memory has run out.
    pub(crate) fn oom_notices(&self) -> io::Result<OwnedFd> {
        let group = self.0.memory.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        match group.version {
            Version::One => {
                let notices = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
                let control = fs::File::open(group.path.join("memory.oom_control"))?;
                let both = format!("{} {}", notices.as_raw_fd(), control.as_raw_fd());
                group.write("cgroup.event_control", &both)?;
                Ok(notices)
            }
            Version::Two => {
                let notices = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
                inotify::add_watch(&notices, group.path.join("memory.events"), inotify::WatchFlags::MODIFY)?;
                Ok(notices)
            }
        }
    }

    pub(crate) fn remove(self) {
        for group in self.moved_into() {
            let _ = fs::remove_dir(&group.path);
        }
    }
}

impl Group {
    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        fs::write(self.path.join(file), text)
    }

    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.path.join(file)).ok()
    }

    /// What the operator allows of them may be less.
    fn lower_pids(&self, most: u64) -> io::Result<()> {
        let now = self.read("pids.max").and_then(|now| now.trim().parse::<u64>().ok());
        if now.is_some_and(|now| now <= most) { Ok(()) } else { self.write("pids.max", &most.to_string()) }
    }

    /// What cannot be reclaimed.
    fn held_memory(&self) -> u64 {
        let text = fs::read_to_string(self.path.join("memory.stat")).unwrap_or_default();
        let stat = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or(0)
        };
        match self.version {
            Version::Two => (stat("anon") + stat("shmem") + stat("kernel")).saturating_sub(stat("slab_reclaimable")),
            Version::One => {
                let kernel = fs::read_to_string(self.path.join("memory.kmem.usage_in_bytes")).unwrap_or_default();
                stat("rss") + stat("shmem") + kernel.trim().parse().unwrap_or(0)
            }
        }
    }

    fn write_if_there(&self, file: &str, text: &str) -> io::Result<()> {
        if self.path.join(file).exists() { self.write(file, text) } else { Ok(()) }
    }

    /// Swap is no second memory: who is over the limit is over it.
    fn set_memory(&self, most: Option<u64>) -> io::Result<()> {
        let bytes = most.map(|bytes| bytes.to_string());
        match self.version {
            Version::Two => {
                self.write("memory.max", bytes.as_deref().unwrap_or("max"))?;
                self.write_if_there("memory.swap.max", if most.is_some() { "0" } else { "max" })
            }
            Version::One => {
                // Memory with swap is never less than memory: so it is let go first, and taken back last.
                let bytes = bytes.as_deref().unwrap_or("-1");
                self.write_if_there("memory.memsw.limit_in_bytes", "-1")?;
                self.write("memory.limit_in_bytes", bytes)?;
                self.write_if_there("memory.memsw.limit_in_bytes", bytes)?;
                // What lies in the queues of sockets is not counted as memory here, and takes from what the host has for
                // all of them.
                let queues = tcp_queues(most, tcp_memory()).map_or("-1".to_owned(), |bytes| bytes.to_string());
                match self.write_if_there(TCP_QUEUES, &queues) {
                    // More waits by now than may: the bound that there is stays, and no guest keeps a change from being made.
                    Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(()),
                    written => written,
                }
            }
        }
    }

    /// In version 1 the kernel counts once it was told a limit for a disk, of whatever group. No limit is one of zero.
    fn count_traffic(&self, disk: Device) -> io::Result<()> {
        match self.version {
            Version::Two => Ok(()),
            Version::One => self.write("blkio.throttle.read_bps_device", &format!("{disk} 0")),
        }
    }

    fn set_cpu(&self, milli: Option<u32>) -> io::Result<()> {
        let quota = milli.map(|milli| (u64::from(milli) * PERIOD / 1000).to_string());
        match self.version {
            Version::Two => self.write("cpu.max", &format!("{} {PERIOD}", quota.as_deref().unwrap_or("max"))),
            Version::One => {
                self.write("cpu.cfs_period_us", &PERIOD.to_string())?;
                self.write("cpu.cfs_quota_us", quota.as_deref().unwrap_or("-1"))
            }
        }
    }
}

impl QueueMeter {
    /// In bytes. Without a limit of memory a sandbox has no group, and none of it is counted.
    pub(crate) fn read(&self) -> u64 {
        self.0.read(IN_TCP_QUEUES).and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0)
    }
}

impl DiskMeter {
    /// In all, since the group was made.
    pub(crate) fn read(&self) -> DiskTraffic {
        let file = match self.group.version {
            Version::One => COUNTS_ONE,
            Version::Two => "io.stat",
        };
        let text = fs::read_to_string(self.group.path.join(file)).unwrap_or_default();
        let disk = format!("{} ", self.disk);
        let lines = text.lines().filter_map(|line| line.strip_prefix(&disk));
        // Version 1 has a line for each word, as `Read 4096`, and version 2 one line, as `rbytes=4096 wbytes=0`.
        let words: Vec<&str> = lines.flat_map(|line| line.split([' ', '='])).collect();
        let after = |name: &str| {
            let place = words.iter().position(|word| *word == name)?;
            words.get(place + 1)?.parse().ok()
        };
        let count = |one, two| after(one).or_else(|| after(two)).unwrap_or(0);
        DiskTraffic { read: count("Read", "rbytes"), written: count("Write", "wbytes") }
    }
}

impl DiskTraffic {
    pub(crate) fn since(self, before: Self) -> Self {
        Self { read: self.read.saturating_sub(before.read), written: self.written.saturating_sub(before.written) }
    }
}

/// As many as all sandboxes may have together: a quarter of those of the machine is left to it.
fn processes_of_all(settings: &Path) -> Option<u64> {
    let number = |name| fs::read_to_string(settings.join(name)).ok()?.trim().parse::<u64>().ok();
    let most = number("pid_max")?.min(number("threads-max")?);
    Some(most - most / 4)
}

/// What may wait in the queues of a sandbox's own connections.
fn tcp_queues(memory: Option<u64>, of_machine: Option<usize>) -> Option<u64> {
    let of_machine = of_machine.map(|bytes| bytes as u64 / TCP_PART_OF_ONE);
    [memory.map(|bytes| bytes / 4), of_machine].into_iter().flatten().min()
}

/// Of what is asked, what groups hold.
pub(crate) fn held(limits: &Limits) -> Limits {
    Limits { disk: None, inodes: None, open_files: None, output: None, ..*limits }
}

fn enforced(group: Option<&Group>) -> Enforced {
    if group.is_some() { Enforced::ByKernel } else { Enforced::No }
}

fn make(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Gives a controller to the groups below ours. The group above has to give it to ours first.
fn enable(ours: &Path, name: &str) -> bool {
    let gives = |group: &Path| fs::write(group.join("cgroup.subtree_control"), format!("+{name}")).is_ok();
    let has = |group: &Path| {
        let text = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
        text.split_whitespace().any(|controller| controller == name)
    };
    (has(ours) || ours.parent().is_some_and(|above| has(above) && gives(above))) && gives(ours)
}

/// Where a controller of version 1 is mounted, by the text of mountinfo.
fn v1_mount(mountinfo: &str, controller: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let options = kind.strip_prefix("cgroup ")?.split(' ').nth(1)?;
        let path = mount.split(' ').nth(4)?;
        options.split(',').any(|option| option == controller).then(|| PathBuf::from(path.replace("\\040", " ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                          33 30 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                          32 30 0:28 / /sys/fs/cgroup/unified rw shared:4 - cgroup2 cgroup2 rw\n";

    const DISK: Device = Device { major: 8, minor: 16 };

    fn group(version: Version, files: &[&str]) -> (tempfile::TempDir, Group) {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            fs::write(dir.path().join(file), "").unwrap();
        }
        let path = dir.path().to_owned();
        (dir, Group { version, path })
    }

    fn text(group: &Group, file: &str) -> String {
        fs::read_to_string(group.path.join(file)).unwrap_or_default()
    }

    #[test]
    fn a_controller_of_version_1_is_found_by_its_option() {
        assert_eq!(v1_mount(HYBRID, "cpu"), Some("/sys/fs/cgroup/cpu,cpuacct".into()));
        assert_eq!(v1_mount(HYBRID, "memory"), Some("/sys/fs/cgroup/memory".into()));
        assert_eq!(v1_mount(HYBRID, "pids"), None);
        assert_eq!(v1_mount("odd\n - cgroup\n", "cpu"), None);
    }

    #[test]
    fn version_2_is_given_a_controller_from_above() {
        let dir = tempfile::tempdir().unwrap();
        let ours = dir.path().join("cabana");
        fs::create_dir(&ours).unwrap();
        fs::write(dir.path().join("cgroup.controllers"), "cpu memory\n").unwrap();
        assert!(enable(&ours, "memory"));
        assert_eq!(fs::read_to_string(dir.path().join("cgroup.subtree_control")).unwrap(), "+memory");
        assert_eq!(fs::read_to_string(ours.join("cgroup.subtree_control")).unwrap(), "+memory");
        assert!(!enable(&ours, "pids"));
    }

    #[test]
    fn limits_are_written_as_each_version_reads_them() {
        let (_one, v1) = group(Version::One, &["memory.memsw.limit_in_bytes"]);
        v1.set_memory(Some(1 << 20)).unwrap();
        v1.set_cpu(Some(1500)).unwrap();
        assert_eq!(text(&v1, "memory.limit_in_bytes"), "1048576");
        assert_eq!(text(&v1, "memory.memsw.limit_in_bytes"), "1048576");
        assert_eq!((text(&v1, "cpu.cfs_quota_us"), text(&v1, "cpu.cfs_period_us")), ("150000".into(), "100000".into()));
        v1.count_traffic(DISK).unwrap();
        assert_eq!(text(&v1, "blkio.throttle.read_bps_device"), "8:16 0", "no request is held back");
        v1.set_memory(None).unwrap();
        v1.set_cpu(None).unwrap();
        assert_eq!((text(&v1, "memory.limit_in_bytes"), text(&v1, "cpu.cfs_quota_us")), ("-1".into(), "-1".into()));

        let (_two, v2) = group(Version::Two, &["memory.swap.max"]);
        v2.set_memory(Some(1 << 20)).unwrap();
        v2.set_cpu(Some(500)).unwrap();
        assert_eq!((text(&v2, "memory.max"), text(&v2, "memory.swap.max")), ("1048576".into(), "0".into()));
        assert_eq!(text(&v2, "cpu.max"), "50000 100000");
        v2.count_traffic(DISK).unwrap();
        assert!(!v2.path.join("io.max").exists(), "no request is held back");
        v2.set_memory(None).unwrap();
        v2.set_cpu(None).unwrap();
        assert_eq!((text(&v2, "memory.max"), text(&v2, "cpu.max")), ("max".into(), "max 100000".into()));
    }

    #[test]
    fn the_traffic_with_the_disk_is_read_in_both_versions() {
        for (version, file, content) in [
            (
                Version::One,
                COUNTS_ONE,
                "8:0 Read 1\n8:0 Write 1\n8:16 Read 4096\n8:16 Write 8192\n8:16 Sync 9\n8:16 Total 12288\nTotal 12290\n",
            ),
            (
                Version::Two,
                "io.stat",
                "8:0 rbytes=1 wbytes=1 rios=1\n8:16 rbytes=4096 wbytes=8192 rios=7 wios=8 dbytes=0\n",
            ),
        ] {
            let (_dir, group) = group(version, &[]);
            let meter = DiskMeter { group: group.clone(), disk: DISK };
            assert_eq!(meter.read(), DiskTraffic::default(), "nothing was moved yet");
            fs::write(group.path.join(file), content).unwrap();
            assert_eq!(meter.read(), DiskTraffic { read: 4096, written: 8192 });
        }
    }

    #[test]
    fn memory_that_somebody_still_holds_is_told_from_what_can_be_reclaimed() {
        let held = |version, stat: &str, kernel: &str| {
            let (dir, group) = group(version, &[]);
            fs::write(dir.path().join("memory.stat"), stat).unwrap();
            fs::write(dir.path().join("memory.kmem.usage_in_bytes"), kernel).unwrap();
            group.held_memory()
        };
        let two = "anon 1\nfile 1000\nkernel 300\nshmem 20\nslab_reclaimable 100\n";
        assert_eq!(held(Version::Two, two, ""), 221);
        let one = "cache 1000\nrss 1\nrss_huge 7\nshmem 20\ntotal_rss 9\n";
        assert_eq!(held(Version::One, one, "300\n"), 321);
        assert_eq!(held(Version::One, "", ""), 0);
    }

    #[test]
    fn all_sandboxes_together_leave_a_quarter_of_the_processes_to_the_machine() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("pid_max"), "32768\n").unwrap();
        assert_eq!(processes_of_all(dir.path()), None);
        fs::write(dir.path().join("threads-max"), "192686\n").unwrap();
        assert_eq!(processes_of_all(dir.path()), Some(24_576));
    }

    #[test]
    fn queues_of_a_sandbox_have_a_part_of_its_memory_and_of_what_the_machine_has_for_tcp() {
        const MIB: u64 = 1 << 20;
        let queues = tcp_queues;
        assert_eq!(queues(Some(512 * MIB), Some(64 << 20)), Some(4 * MIB));
        assert_eq!(queues(Some(512 * MIB), Some(16 << 30)), Some(128 * MIB));
        assert_eq!((queues(None, Some(64 << 20)), queues(None, None)), (Some(4 * MIB), None));
        let (_dir, group) = group(Version::One, &["memory.limit_in_bytes", TCP_QUEUES]);
        group.set_memory(Some(1 << 20)).unwrap();
        let written: u64 = text(&group, TCP_QUEUES).parse().unwrap();
        assert!(0 < written && written <= (1 << 20) / 4, "{written}");
    }

    #[test]
    fn what_the_operator_allows_of_processes_is_never_raised() {
        for (now, after) in [("max\n", "100"), ("", "100"), ("500\n", "100"), ("100\n", "100\n"), ("7\n", "7\n")] {
            let (_dir, group) = group(Version::Two, &[]);
            fs::write(group.path.join("pids.max"), now).unwrap();
            group.lower_pids(100).unwrap();
            assert_eq!(text(&group, "pids.max"), after);
        }
    }

    #[test]
    fn as_many_processes_as_may_be_are_told_from_a_kernel_that_has_no_more() {
        let full = |now: &str, most: &str| {
            let (dir, group) = group(Version::Two, &[]);
            fs::write(dir.path().join("pids.current"), now).unwrap();
            fs::write(dir.path().join("pids.max"), most).unwrap();
            Limiter(Controllers { pids: Some(group), ..Controllers::default() }).is_full_of_processes()
        };
        assert!(full("64\n", "64\n") && full("60\n", "64\n") && full("8", "8"));
        assert!(!full("40\n", "64\n") && !full("40\n", "max\n") && !full("", ""));
    }

    #[test]
    fn kills_for_want_of_memory_are_counted_in_both_versions() {
        for (version, file, content) in [
            (Version::One, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
            (Version::Two, "memory.events", "low 0\nhigh 0\nmax 7\noom 5\noom_kill 3\n"),
        ] {
            let (_dir, group) = group(version, &[]);
            fs::write(group.path.join(file), content).unwrap();
            assert_eq!(Limiter(Controllers { memory: Some(group), ..Controllers::default() }).oom_kills(), 3);
        }
        assert_eq!(Limiter::default().oom_kills(), 0);
    }
}
