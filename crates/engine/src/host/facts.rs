//! The facts about a host, each found by looking or by trying, none of them judged.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::{Ceilings, probe};
use crate::{
    cgroup::device,
    disk::pool,
    layers::hidden_tools,
    rootless::{self, Ids, Mode},
};

#[derive(Clone, Debug, Serialize)]
pub struct Facts {
    /// As `uname -r` says it.
    pub release: String,
    pub version: (u32, u32),
    pub uid: u32,
    /// What sandboxes will have once our own user namespace is entered.
    pub mode: Mode,
    pub ids: Ids,
    pub container: Option<Container>,
    pub obstacle: Option<Obstacle>,
    /// All the namespaces of a sandbox, and its id map.
    pub namespaces: Tried,
    pub overlay: Tried,
    pub proc: Tried,
    pub idmap_data: Tried,
    pub idmap_usr: Tried,
    /// A network namespace in which every connection leads to our listeners, as a sandbox with a network has it.
    pub network: Tried,
    pub seccomp: bool,
    /// `fs.suid_dumpable`: whose memory may be read after a change of user.
    pub suid_dumpable: Option<u64>,
    /// `kernel.core_pattern`: where the kernel leaves the memory of what crashes.
    pub core_pattern: Option<String>,
    /// Whether sandboxes can be given the limit of core dumps with which the kernel starts no program for them.
    pub can_bound_cores: bool,
    /// Of this process, beside its own. Where there is one id alone, sandboxes keep them.
    pub groups: Vec<u32>,
    pub cgroup: Cgroup,
    pub data: Data,
    pub ceilings: Ceilings,
    pub hidden: Vec<Hidden>,
}

/// What came of trying something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tried {
    Works,
    Refused {
        step: String,
        errno: i32,
    },
    /// There was no need, or no way, to try.
    Not,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Container {
    Docker,
    Podman,
    Kubernetes,
    Other,
}

/// A setting of the host that forbids user namespaces to ordinary users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Obstacle {
    /// Ubuntu 23.10 and later.
    AppArmor,
    /// A patch that Debian had and some hardened kernels have.
    Switch,
    /// `user.max_user_namespaces` is 0.
    Ceiling,
}

impl Obstacle {
    pub(crate) fn find() -> Option<Self> {
        if number("/proc/sys/user/max_user_namespaces") == Some(0) {
            return Some(Self::Ceiling);
        }
        if rustix::process::geteuid().is_root() {
            return None;
        }
        if number("/proc/sys/kernel/unprivileged_userns_clone") == Some(0) {
            return Some(Self::Switch);
        }
        let restricts = number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == Some(1);
        restricts.then_some(Self::AppArmor)
    }

    pub fn what(self) -> &'static str {
        match self {
            Self::AppArmor => "AppArmor restricts user namespaces: kernel.apparmor_restrict_unprivileged_userns is 1",
            Self::Switch => "the kernel's switch for them is off: kernel.unprivileged_userns_clone is 0",
            Self::Ceiling => "the kernel allows none: user.max_user_namespaces is 0",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cgroup {
    pub version: CgroupVersion,
    pub controllers: BTreeSet<String>,
    /// Whether a group can be made below our own, in the tree that has the controllers.
    pub delegated: Tried,
    /// `cgroup.kill`: the end of a whole tree in one write.
    pub kill: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CgroupVersion {
    None,
    V1,
    /// The controllers on v1, and a v2 tree beside them.
    Hybrid,
    V2,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Data {
    pub path: PathBuf,
    pub filesystem: String,
    /// Whether the kernel can hold the bytes of each sandbox's own directory.
    pub quota: bool,
    /// The disk that it lies on, if it is a single one.
    pub device: Option<String>,
    /// Each piece of a removed file is told to the disk at once.
    pub discards: bool,
    pub writable: Tried,
}

/// Programs on PATH that a sandbox on the host base will not see, by where they really lie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hidden {
    pub directory: PathBuf,
    pub programs: Vec<String>,
}

/// Looks at everything. Starts a few short processes, so call it from no async task.
pub fn gather(data: &Path) -> io::Result<Facts> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let (mode, ids) = rootless::outlook()?;
    let (room, writable) = Room::beside(data);
    let tried = |what: &str, dir: Option<&Path>| probe::ask(what, dir);
    let in_room = |what: &str| room.as_ref().map_or(Tried::Not, |room| tried(what, Some(room.path())));
    let as_root = |what: Tried| if mode == Mode::Root { what } else { Tried::Not };
    Ok(Facts {
        version: version_of(&release),
        release,
        uid: rustix::process::geteuid().as_raw(),
        mode,
        ids,
        container: container(),
        obstacle: Obstacle::find(),
        namespaces: tried("namespaces", None),
        overlay: in_room("overlay"),
        proc: tried("proc", None),
        idmap_data: as_root(in_room("idmap")),
        idmap_usr: as_root(tried("idmap", Some(Path::new("/usr")))),
        network: tried("network", None),
        seccomp: Path::new("/proc/sys/kernel/seccomp/actions_avail").exists(),
        suid_dumpable: suid_dumpable(),
        core_pattern: core_pattern(),
        can_bound_cores: can_bound_cores(),
        groups: groups(),
        cgroup: cgroup(),
        data: data_facts(data, writable, room.as_ref()),
        ceilings: Ceilings::read(),
        hidden: hidden_programs(),
    })
}

/// With 1, a process that changes its user can be traced by that user from then on. A command does so between its clone and
/// its exec, while it still has the memory of its sandbox's init.
pub(crate) const SUID_DUMPABLE: u64 = 1;

pub(crate) fn suid_dumpable() -> Option<u64> {
    number("/proc/sys/fs/suid_dumpable")
}

fn groups() -> Vec<u32> {
    let own = rustix::process::getegid();
    let all = rustix::process::getgroups().unwrap_or_default();
    all.into_iter().filter(|group| *group != own).map(rustix::process::Gid::as_raw).collect()
}

fn core_pattern() -> Option<String> {
    Some(fs::read_to_string("/proc/sys/kernel/core_pattern").ok()?.trim_end().to_owned())
}

/// It is one byte, which is more than a hard limit of 0 lets anybody set but root of the machine.
fn can_bound_cores() -> bool {
    let hard = rustix::process::getrlimit(rustix::process::Resource::Core).maximum;
    hard.is_none_or(|most| most >= 1) || may_raise_limits()
}

fn may_raise_limits() -> bool {
    const SYS_RESOURCE: u32 = 24;
    let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    let status = read("status");
    let held = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    // Another user namespace than the machine's own has a map of its own, and its root no right over limits.
    let is_of_machine = read("uid_map").split_whitespace().eq(["0", "0", "4294967295"]);
    is_of_machine && held.is_some_and(|held| held >> SYS_RESOURCE & 1 == 1)
}

pub(super) fn version_of(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn number(file: &str) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// A directory for the probes on the file system of the data directory, gone at the end. The data directory may not be
/// there yet: then the nearest directory above it serves.
struct Room(PathBuf);

impl Room {
    fn beside(data: &Path) -> (Option<Self>, Tried) {
        let path = existing(data).join(format!(".cabana-probe-{}", std::process::id()));
        match fs::create_dir(&path) {
            Ok(()) => (Some(Self(path)), Tried::Works),
            Err(error) => (None, Tried::refused("making a directory", &error)),
        }
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // The kernel makes the inside of an overlay's work directory unreadable, for its owner too.
        let _ = fs::set_permissions(self.0.join("work/work"), fs::Permissions::from_mode(0o700));
        // Only what this process made lies there, and the mounts ended with the probes' own namespaces.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Tried {
    pub(super) fn refused(step: &str, error: &io::Error) -> Self {
        Self::Refused { step: step.to_owned(), errno: error.raw_os_error().unwrap_or(0) }
    }

    pub fn works(&self) -> bool {
        matches!(self, Self::Works)
    }
}

fn existing(path: &Path) -> &Path {
    path.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("/"))
}

fn container() -> Option<Container> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let marker = env::var("container").ok();
    container_of(
        env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
        Path::new("/.dockerenv").exists(),
        Path::new("/run/.containerenv").exists(),
        marker.as_deref(),
        &groups,
    )
}

fn container_of(kubernetes: bool, docker: bool, podman: bool, marker: Option<&str>, groups: &str) -> Option<Container> {
    let path_has = |word: &str| groups.lines().any(|line| line.contains(word));
    if kubernetes || path_has("kubepods") {
        Some(Container::Kubernetes)
    } else if podman || marker == Some("podman") || path_has("/libpod-") {
        Some(Container::Podman)
    } else if docker || path_has("/docker/") || path_has("/docker-") {
        Some(Container::Docker)
    } else if marker.is_some_and(|m| !m.is_empty()) || path_has("/lxc/") || path_has("/lxc.payload") {
        Some(Container::Other)
    } else {
        None
    }
}

fn cgroup() -> Cgroup {
    let mounts = mounts();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let v1: Vec<&Mount> = mounts.iter().filter(|m| m.kind == "cgroup").collect();
    let v2 = mounts.iter().find(|m| m.kind == "cgroup2");
    // A v1 tree with a name and no controller (systemd's) limits nothing.
    let limiting: Vec<&Mount> = v1.into_iter().filter(|m| !m.has_option_with("name=")).collect();
    let version = match (limiting.is_empty(), v2.is_some()) {
        (true, true) => CgroupVersion::V2,
        (false, true) => CgroupVersion::Hybrid,
        (false, false) => CgroupVersion::V1,
        (true, false) => CgroupVersion::None,
    };
    let unified = v2.map(|mount| mount.place_of(group_of(&own, "")));
    let unified_try = unified.as_deref().map(try_child);
    let controllers = match version {
        CgroupVersion::V2 => unified.as_deref().map(controllers_in).unwrap_or_default(),
        _ => limiting.iter().flat_map(|m| m.controllers()).collect(),
    };
    let delegated = match version {
        CgroupVersion::V2 => unified_try.as_ref().map_or(Tried::Not, |t| t.made.clone()),
        CgroupVersion::None => Tried::Not,
        _ => limiting
            .iter()
            .find(|m| m.controllers().any(|c| c == "memory"))
            .map_or(Tried::Not, |m| try_child(&m.place_of(group_of(&own, "memory"))).made),
    };
    Cgroup { version, controllers, delegated, kill: unified_try.is_some_and(|t| t.kill) }
}

struct ChildGroup {
    made: Tried,
    kill: bool,
}

/// Makes a group below `group`, looks, and removes it again.
fn try_child(group: &Path) -> ChildGroup {
    let child = group.join(format!("cabana-probe-{}", std::process::id()));
    if let Err(error) = fs::create_dir(&child) {
        return ChildGroup { made: Tried::refused("making a group", &error), kill: group.join("cgroup.kill").exists() };
    }
    let kill = child.join("cgroup.kill").exists();
    let _ = fs::remove_dir(&child);
    ChildGroup { made: Tried::Works, kill }
}

fn controllers_in(group: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

/// Our group in the tree of a controller; the empty name is the v2 tree.
fn group_of<'a>(own: &'a str, controller: &str) -> &'a str {
    let of_line = |line: &'a str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (names, path) = (fields.next()?, fields.next()?);
        names.split(',').any(|name| name == controller).then_some(path)
    };
    own.lines().find_map(of_line).unwrap_or("/")
}

struct Mount {
    root: PathBuf,
    at: PathBuf,
    kind: String,
    /// Of the file system, not of this mount of it.
    options: String,
}

impl Mount {
    /// A container may see only a part of the tree, mounted as if it were the whole.
    fn place_of(&self, group: &str) -> PathBuf {
        let group = Path::new(group);
        let below = group.strip_prefix(&self.root).or_else(|_| group.strip_prefix("/")).unwrap_or(Path::new(""));
        let place = self.at.join(below);
        if place.is_dir() { place } else { self.at.clone() }
    }

    fn has_option_with(&self, start: &str) -> bool {
        self.options.split(',').any(|option| option.starts_with(start))
    }

    fn controllers(&self) -> impl Iterator<Item = String> {
        const NOT: [&str; 4] = ["rw", "ro", "xattr", "clone_children"];
        let names = self.options.split(',').filter(|o| !NOT.contains(o) && !o.contains('='));
        names.map(str::to_owned)
    }
}

fn mounts() -> Vec<Mount> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines().filter_map(mount_of).collect()
}

fn mount_of(line: &str) -> Option<Mount> {
    let (mine, its) = line.split_once(" - ")?;
    let mut mine = mine.split(' ').skip(3);
    let mut its = its.split(' ');
    Some(Mount {
        root: mine.next()?.into(),
        at: mine.next()?.replace("\\040", " ").into(),
        kind: its.next()?.to_owned(),
        options: its.nth(1).unwrap_or_default().to_owned(),
    })
}

fn data_facts(data: &Path, writable: Tried, room: Option<&Room>) -> Data {
    let place = existing(data).canonicalize().unwrap_or_else(|_| "/".into());
    let mounts = mounts();
    // Of mounts at one place the last covers the others.
    let mount = mounts.iter().filter(|m| place.starts_with(&m.at)).max_by_key(|m| m.at.components().count());
    Data {
        path: data.to_owned(),
        filesystem: mount.map_or_else(|| "unknown".to_owned(), |m| m.kind.clone()),
        quota: room.is_some_and(|room| pool::can_limit(room.path())),
        device: device::of(&place, &fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
            .map(|device| device.to_string()),
        discards: mount.is_some_and(|mount| mount.options.split(',').any(|option| option == "discard")),
        writable,
    }
}

fn hidden_programs() -> Vec<Hidden> {
    let mut places: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
    for tool in hidden_tools(&env::var("PATH").unwrap_or_default()) {
        let directory = tool.at.parent().unwrap_or(Path::new("/")).to_owned();
        places.entry(directory).or_default().push(tool.name);
    }
    places.into_iter().map(|(directory, programs)| Hidden { directory, programs }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_begins_with_two_numbers() {
        assert_eq!(version_of("6.18.44-fc"), (6, 18));
        assert_eq!(version_of("5.4.0-150-generic"), (5, 4));
        assert_eq!(version_of("6.1"), (6, 1));
        assert_eq!(version_of("odd"), (0, 0));
    }

    #[test]
    fn containers_are_known_by_their_marks() {
        let of = |k, d, p, marker, groups| container_of(k, d, p, marker, groups);
        assert_eq!(of(true, true, false, None, ""), Some(Container::Kubernetes));
        assert_eq!(of(false, true, false, None, "0::/"), Some(Container::Docker));
        assert_eq!(of(false, false, true, None, "0::/"), Some(Container::Podman));
        assert_eq!(of(false, false, false, Some("lxc"), "0::/"), Some(Container::Other));
        assert_eq!(of(false, false, false, None, "4:memory:/docker/0123\n"), Some(Container::Docker));
        assert_eq!(of(false, false, false, None, "0::/user.slice/user-0.slice/session-1.scope\n"), None);
    }

    #[test]
    fn our_group_is_found_by_controller() {
        let own = "9:name=systemd:/\n5:cpu,cpuacct:/a\n4:memory:/b/c\n0::/user.slice\n";
        assert_eq!(group_of(own, "memory"), "/b/c");
        assert_eq!(group_of(own, "cpuacct"), "/a");
        assert_eq!(group_of(own, ""), "/user.slice");
        assert_eq!(group_of("", ""), "/");
    }

    #[test]
    fn a_line_of_mountinfo_is_taken_apart() {
        let line = "35 31 0:32 /part /sys/fs/cgroup/memory rw,relatime shared:1 - cgroup cgroup rw,memory";
        let mount = mount_of(line).unwrap();
        assert_eq!(mount.controllers().collect::<Vec<_>>(), ["memory"]);
        assert_eq!((mount.root.as_path(), mount.kind.as_str()), (Path::new("/part"), "cgroup"));
        assert_eq!(mount_of("nonsense").map(|m| m.kind), None);
    }
}
