//! From facts to findings: what works, what is lost, and what to do. A pure function, so every host can be made up.

use std::path::Path;

use serde::Serialize;

use super::ceilings::OPEN_FILES;
use super::{CEILINGS, Ceiling, CgroupVersion, Container, Facts, Obstacle, SUID_DUMPABLE, Tried};
use crate::rootless::Mode;

/// The oldest kernel that overlays idmapped layers.
const MINIMUM: (u32, u32) = (5, 19);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Ok,
    /// Sandboxes run, with less.
    Lost,
    /// Without it no sandbox runs.
    Missing,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub topic: &'static str,
    pub state: State,
    pub found: String,
    /// What it means for sandboxes; empty where all is well.
    pub follows: String,
    /// Each a command or a sentence.
    pub todo: Vec<String>,
}

impl Finding {
    fn new(topic: &'static str, state: State, found: impl Into<String>) -> Self {
        Self { topic, state, found: found.into(), follows: String::new(), todo: Vec::new() }
    }

    fn ok(topic: &'static str, found: impl Into<String>) -> Self {
        Self::new(topic, State::Ok, found)
    }

    fn lost(topic: &'static str, found: impl Into<String>) -> Self {
        Self::new(topic, State::Lost, found)
    }

    fn missing(topic: &'static str, found: impl Into<String>) -> Self {
        Self::new(topic, State::Missing, found)
    }

    fn follows(mut self, what: impl Into<String>) -> Self {
        self.follows = what.into();
        self
    }

    fn todo(mut self, what: impl Into<String>) -> Self {
        self.todo.push(what.into());
        self
    }

    fn todos(mut self, what: Vec<String>) -> Self {
        self.todo.extend(what);
        self
    }
}

pub fn can_run(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.state != State::Missing)
}

pub fn findings(facts: &Facts) -> Vec<Finding> {
    let mut all =
        vec![kernel(facts), container(facts), identities(facts), namespaces(facts), overlay(facts), proc(facts)];
    all.extend(idmap(facts));
    all.extend([seccomp(facts), dumps(facts), cores(facts), network(facts), data(facts), disk(facts)]);
    all.extend(removal(facts));
    all.extend([cgroups(facts), io(facts), kill_tree(facts)]);
    all.extend(ceilings(facts));
    all.push(programs(facts));
    all
}

fn kernel(facts: &Facts) -> Finding {
    let found = format!("Linux {}", facts.release);
    if facts.version >= MINIMUM {
        return Finding::ok("kernel", found);
    }
    let lacks: Vec<&str> = [
        ((5, 9), "close_range (5.9)"),
        ((5, 11), "overlayfs in a user namespace (5.11)"),
        ((5, 12), "idmapped mounts (5.12)"),
        ((5, 14), "cgroup.kill (5.14)"),
        ((5, 19), "overlayfs on idmapped layers (5.19)"),
    ]
    .into_iter()
    .filter_map(|(since, what)| (facts.version < since).then_some(what))
    .collect();
    Finding::missing("kernel", format!("{found}, older than {}.{}", MINIMUM.0, MINIMUM.1))
        .follows(format!("This kernel lacks {}.", lacks.join(", ")))
        .todo("Boot a kernel of 5.19 or later: Debian 12, Ubuntu 22.04 with the HWE kernel, RHEL 10 and their like have one.")
}

fn container(facts: &Facts) -> Finding {
    let name = match facts.container {
        None => return Finding::ok("container", "no marks of a container"),
        Some(Container::Docker) => "marks of a Docker container",
        Some(Container::Podman) => "marks of a Podman container",
        Some(Container::Kubernetes) => "marks of a Kubernetes pod",
        Some(Container::Other) => "marks of a container",
    };
    Finding::ok("container", name)
}

fn identities(facts: &Facts) -> Finding {
    match facts.mode {
        Mode::Root => Finding::ok("identities", "root: each live sandbox has 65,536 ids of its own"),
        Mode::Shared => {
            let whom = if facts.uid == 0 { "root of a user namespace" } else { "an ordinary user with a range of ids" };
            Finding::lost("identities", format!("{whom}: all sandboxes share 65,536 ids"))
                .follows("A process that broke out of one sandbox could touch the files of another.")
                .todo("Run cabana as root of the machine to give each sandbox its own.")
        }
        Mode::Single => {
            Finding::lost("identities", single_because(facts)).follows(single_follows(facts)).todos(single_todo(facts))
        }
    }
}

/// Where nobody may give up groups, every process inside has those of who started us.
fn single_follows(facts: &Facts) -> String {
    let mut follows = "One id: no second user inside, no chown, no apt-get install.".to_owned();
    if !facts.groups.is_empty() {
        let groups: Vec<_> = facts.groups.iter().map(u32::to_string).collect();
        follows += &format!(
            " Sandboxes keep the groups {} of who starts them: what those may read or write in a directory that is mounted, they may.",
            groups.join(", ")
        );
    }
    follows
}

fn single_because(facts: &Facts) -> String {
    let ids = &facts.ids;
    let why = if facts.uid == 0 {
        "root of a user namespace with fewer than 65,537 ids"
    } else if ids.no_new_privs {
        "an ordinary user, and no_new_privs keeps newuidmap from working"
    } else if ids.newuidmap.is_none() || ids.newgidmap.is_none() {
        "an ordinary user, and there is no newuidmap"
    } else if ids.user.is_none() {
        "an ordinary user whose uid has no name, which newuidmap wants"
    } else {
        "an ordinary user without a range of 65,536 ids in /etc/subuid and /etc/subgid"
    };
    why.to_owned()
}

fn single_todo(facts: &Facts) -> Vec<String> {
    let ids = &facts.ids;
    if facts.uid == 0 {
        return vec!["Give the container 65,537 ids or more, or run cabana as root of the machine.".to_owned()];
    }
    let mut todo = Vec::new();
    if !facts.groups.is_empty() {
        let name = ids.user.as_deref().unwrap_or("NAME");
        todo.push(format!(
            "sudo setpriv --reuid {name} --regid {name} --clear-groups cabana serve    # without other groups"
        ));
    }
    if ids.no_new_privs {
        todo.push(
            "Start cabana without no_new_privs (systemd: NoNewPrivileges=no; Kubernetes: \
                   allowPrivilegeEscalation: true)."
                .to_owned(),
        );
    }
    if ids.newuidmap.is_none() || ids.newgidmap.is_none() {
        todo.push("sudo apt-get install uidmap    # Fedora and RHEL: sudo dnf install shadow-utils-subid".to_owned());
    }
    let name = ids.user.as_deref().unwrap_or("NAME");
    if ids.user.is_none() {
        todo.push(format!("sudo useradd --uid {} {name}", facts.uid));
    }
    if ids.subuid.is_none() || ids.subgid.is_none() {
        todo.push(format!("sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {name}"));
    }
    todo
}

fn namespaces(facts: &Facts) -> Finding {
    const TOPIC: &str = "namespaces";
    let (step, errno) = match &facts.namespaces {
        Tried::Works => {
            return Finding::ok(TOPIC, "user, mount, pid, network, ipc, uts and cgroup namespaces can be made");
        }
        Tried::Not => return untried(TOPIC),
        Tried::Refused { step, errno } => (step, *errno),
    };
    let finding = Finding::missing(TOPIC, format!("{step} was refused: {}", words(errno)))
        .follows("No sandbox can be made: its walls are these namespaces.");
    let Some(obstacle) = facts.obstacle.or((errno == libc::ENOSPC).then_some(Obstacle::Ceiling)) else {
        return match facts.container {
            Some(container) => finding.todos(open_container(container)),
            None => finding.todo(
                "Something on this host forbids it (a seccomp filter, an LSM or a kernel without namespaces): run cabana \
                 outside of it, and look into `journalctl -k` for what was denied.",
            ),
        };
    };
    let found = format!("{}: {}", finding.found, obstacle.what());
    Finding { found, ..finding }.todos(remove(obstacle)).todos(facts.container.map(open_container).unwrap_or_default())
}

fn remove(obstacle: Obstacle) -> Vec<String> {
    let set = |key: &str, value: &str| {
        vec![
            format!("sudo sysctl -w {key}={value}"),
            format!("echo {key}={value} | sudo tee /etc/sysctl.d/60-cabana.conf    # after the next boot too"),
        ]
    };
    match obstacle {
        Obstacle::Ceiling => set("user.max_user_namespaces", "65536"),
        Obstacle::Switch => set("kernel.unprivileged_userns_clone", "1"),
        Obstacle::AppArmor => {
            let mut todo = set("kernel.apparmor_restrict_unprivileged_userns", "0");
            todo.push(
                "Or for cabana alone, with the path where yours lies: printf 'abi <abi/4.0>,\\ninclude \
                 <tunables/global>\\nprofile cabana /usr/local/bin/cabana flags=(unconfined) {\\n  userns,\\n}\\n' | sudo tee \
                 /etc/apparmor.d/cabana && sudo apparmor_parser -r /etc/apparmor.d/cabana"
                    .to_owned(),
            );
            todo.push("Or run cabana as root: the restriction is for ordinary users.".to_owned());
            todo
        }
    }
}

fn overlay(facts: &Facts) -> Finding {
    const TOPIC: &str = "overlay";
    match &facts.overlay {
        Tried::Works => Finding::ok(TOPIC, format!("overlayfs in a user namespace works on {}", facts.data.filesystem)),
        Tried::Not => untried(TOPIC),
        Tried::Refused { step, errno } => {
            let finding = Finding::missing(TOPIC, format!("{step} was refused: {}", words(*errno)))
                .follows("A sandbox keeps its changes in an overlay above its template: none can be made.");
            if !facts.namespaces.works() {
                return finding.todo("See `namespaces`: it comes first.");
            }
            match facts.data.filesystem.as_str() {
                "overlay" | "aufs" | "nfs" | "nfs4" | "fuse" | "9p" | "virtiofs" | "vfat" | "ecryptfs" => {
                    finding.todos(move_data(facts))
                }
                _ => match facts.container {
                    Some(container) => finding.todos(open_container(container)),
                    None if *errno == libc::ENODEV => finding.todo("sudo modprobe overlay"),
                    None => finding.todos(move_data(facts)),
                },
            }
        }
    }
}

fn move_data(facts: &Facts) -> Vec<String> {
    let path = facts.data.path.display();
    let what = format!("The data directory lies on {}, which cannot carry an overlay", facts.data.filesystem);
    vec![match facts.container {
        Some(Container::Kubernetes) => {
            format!(
                "{what}: mount a volume there: volumeMounts: [{{name: cabana, mountPath: {path}}}], volumes: [{{name: \
                     cabana, emptyDir: {{}}}}]."
            )
        }
        Some(Container::Docker | Container::Podman) => format!("{what}: mount a volume there: -v cabana:{path}"),
        _ => format!("{what}: point --data or CABANA_DATA to a directory on ext4, xfs or btrfs."),
    }]
}

fn proc(facts: &Facts) -> Finding {
    const TOPIC: &str = "proc";
    match &facts.proc {
        Tried::Works => Finding::ok(TOPIC, "a new /proc can be mounted in a user namespace"),
        Tried::Not => untried(TOPIC),
        Tried::Refused { .. } if !facts.namespaces.works() => {
            Finding::missing(TOPIC, "could not be tried without namespaces").todo("See `namespaces`: it comes first.")
        }
        Tried::Refused { step, errno } => {
            let finding = Finding::missing(TOPIC, format!("{step} was refused: {}", words(*errno)))
                .follows("Parts of /proc are masked here, and the kernel lets nobody get round a mask: no sandbox can have its own.");
            match facts.container {
                Some(container) => finding.todos(open_container(container)),
                None => finding.todo(
                    "Something is mounted on parts of /proc (`grep ' /proc/' /proc/self/mountinfo` shows it): unmount it, \
                     or start cabana outside of what did it (systemd: ProtectKernelTunables=no, ProtectProc=default, \
                     ProcSubset=all).",
                ),
            }
        }
    }
}

/// The exact flags, the narrow ones first.
fn open_container(container: Container) -> Vec<String> {
    let flags = |program: &str, opened: &str| {
        vec![
            format!("{program} run {opened} -v cabana:/var/lib/cabana …"),
            "With --cap-add SYS_ADMIN --cap-add SYS_PTRACE as well, each sandbox has ids of its own, and needs a template."
                .to_owned(),
            format!("Or, with limits too: {program} run --privileged -v cabana:/var/lib/cabana …"),
        ]
    };
    match container {
        Container::Docker => flags(
            "docker",
            "--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined",
        ),
        Container::Podman => flags(
            "podman",
            "--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt label=disable \
             --security-opt unmask=ALL",
        ),
        Container::Kubernetes => vec![
            "In the container's securityContext: seccompProfile: {type: Unconfined}, appArmorProfile: {type: Unconfined}, \
             procMount: Unmasked (which wants hostUsers: false in the pod), and an emptyDir volume at /var/lib/cabana."
                .to_owned(),
            "Or, with limits and more ids: securityContext: {privileged: true}, and an emptyDir volume at /var/lib/cabana."
                .to_owned(),
        ],
        Container::Other => vec![
            "Allow the container nested namespaces and an unmasked /proc (LXC: security.nesting=true; systemd-nspawn: \
             SYSTEMD_SECCOMP=0 and --capability=CAP_SYS_ADMIN)."
                .to_owned(),
        ],
    }
}

fn idmap(facts: &Facts) -> Vec<Finding> {
    if facts.mode != Mode::Root {
        return Vec::new(); // only root of the machine may, and only root needs it
    }
    let of = |topic, what: &str, tried: &Tried, refused: fn(&Facts, String) -> Finding| match tried {
        Tried::Works => Finding::ok(topic, format!("mounts of {what} can be idmapped")),
        Tried::Not => untried(topic),
        Tried::Refused { step, errno } => refused(facts, format!("{what}: {step} was refused: {}", words(*errno))),
    };
    let data = facts.data.path.display().to_string();
    vec![
        of("idmap-data", &data, &facts.idmap_data, |facts, found| {
            Finding::missing("idmap-data", found)
                .follows("Layers lie on disk in one range of ids and are mapped to that of a sandbox: without, none can be made.")
                .todos(right_to_map(facts, &facts.data.filesystem))
        }),
        of("idmap-usr", "/usr", &facts.idmap_usr, |facts, found| {
            Finding::lost("idmap-usr", found)
                .follows("The host's own programs cannot be shown inside as root's: sandboxes need a template.")
                .todo("cabana template add NAME --from debian:bookworm, and cabana run --template NAME")
                .todos(match facts.container {
                    Some(_) => {
                        vec!["Or leave out SYS_ADMIN: the sandboxes then share their ids, and need none.".to_owned()]
                    }
                    None => right_to_map(facts, "its file system"),
                })
        }),
    ]
}

fn right_to_map(facts: &Facts, filesystem: &str) -> Vec<String> {
    match facts.container {
        // A namespace of another process is opened by who may trace it.
        Some(Container::Docker | Container::Podman)
            if matches!(facts.idmap_data, Tried::Refused { errno: libc::EACCES, .. }) =>
        {
            vec!["Add --cap-add SYS_PTRACE, or leave out --cap-add SYS_ADMIN.".to_owned()]
        }
        Some(container) => {
            let mut todo = move_data(facts);
            todo.extend(open_container(container));
            todo
        }
        None => vec![format!(
            "This kernel cannot idmap {filesystem}: use ext4, xfs or btrfs, or a newer kernel (tmpfs needs 6.3)."
        )],
    }
}

fn seccomp(facts: &Facts) -> Finding {
    if facts.seccomp {
        return Finding::ok("seccomp", "system calls can be filtered");
    }
    Finding::missing("seccomp", "the kernel has no seccomp filter")
        .follows("The wall between a sandbox and most of the kernel is that filter: no sandbox is made without it.")
        .todo("Boot a kernel with CONFIG_SECCOMP_FILTER=y: that of every common distribution has it.")
}

fn dumps(facts: &Facts) -> Finding {
    const TOPIC: &str = "suid-dumpable";
    match facts.suid_dumpable {
        Some(SUID_DUMPABLE) => Finding::missing(TOPIC, "fs.suid_dumpable is 1")
            .follows(
                "A process that changes its user can then be traced by that user. A command does that before its program \
                 begins, while it still has the memory of its sandbox's init: no sandbox is made.",
            )
            .todo("sudo sysctl -w fs.suid_dumpable=0")
            .todo("echo fs.suid_dumpable=0 | sudo tee /etc/sysctl.d/60-cabana.conf    # after the next boot too"),
        _ => Finding::ok(TOPIC, "a process that changes its user cannot be traced by that user"),
    }
}

/// A limit of one byte holds for files and for programs, and the kernel asks no limit before it connects to a socket.
fn cores(facts: &Facts) -> Finding {
    const TOPIC: &str = "core-dumps";
    match facts.core_pattern.as_deref() {
        Some(socket) if socket.starts_with('@') => Finding::lost(TOPIC, format!("kernel.core_pattern is {socket:?}"))
            .follows(
                "The kernel hands the memory of whatever crashes to a service of this machine by a socket, and no limit of a \
                 sandbox holds it back: a guest sends that service what it likes, as often as it likes.",
            )
            .todo("sudo sysctl -w kernel.core_pattern=core")
            .todo("echo kernel.core_pattern=core | sudo tee /etc/sysctl.d/60-cabana-core.conf    # after the next boot too"),
        Some(program) if program.starts_with('|') && !facts.can_bound_cores => {
            Finding::lost(TOPIC, format!("kernel.core_pattern is {program:?}, and the limit of core dumps is 0 here"))
                .follows(
                    "The kernel starts that program as root of this machine for every crash, whatever the limit is, unless it is \
                     exactly 1, which cannot be set here. A guest decides what the program reads, and how often it runs.",
                )
                .todo("ulimit -Hc 1 as root, LimitCORE=1 in systemd, `* hard core 1` in limits.conf, --ulimit core=1 for Docker.")
        }
        _ => Finding::ok(TOPIC, "a crash inside starts and tells nothing on this machine"),
    }
}

fn data(facts: &Facts) -> Finding {
    let path = facts.data.path.display();
    match &facts.data.writable {
        Tried::Refused { errno, .. } => {
            Finding::missing("data", format!("the data directory {path} cannot be written to: {}", words(*errno)))
                .follows("Sandboxes have nowhere to keep their files.")
                .todo("Point --data or CABANA_DATA to a directory of your own.")
        }
        _ => Finding::ok("data", format!("the data directory {path} lies on {}", facts.data.filesystem)),
    }
}

fn network(facts: &Facts) -> Finding {
    const TOPIC: &str = "network";
    match &facts.network {
        Tried::Works => Finding::ok(TOPIC, "connections of a sandbox can be led to where its rules are asked"),
        Tried::Not => untried(TOPIC),
        Tried::Refused { .. } if !facts.namespaces.works() => {
            Finding::lost(TOPIC, "could not be tried without namespaces").todo("See `namespaces`: it comes first.")
        }
        Tried::Refused { step, errno } => {
            let finding = Finding::lost(TOPIC, format!("{step} was refused: {}", words(*errno)))
                .follows("Sandboxes run with the network mode off alone; one that asks for a network is refused.");
            match facts.container {
                Some(container) => finding.todos(open_container(container)),
                None => finding.todo("sudo modprobe -a nf_tables nft_chain_nat nft_redir nft_reject_inet").todo(
                    "If there are no such modules: boot a kernel with CONFIG_NF_TABLES, CONFIG_NFT_NAT, CONFIG_NFT_REDIR \
                     and CONFIG_NFT_REJECT, as every common distribution has it.",
                ),
            }
        }
    }
}

fn disk(facts: &Facts) -> Finding {
    const TOPIC: &str = "disk-limits";
    let data = &facts.data;
    if data.quota {
        return Finding::ok(TOPIC, "btrfs with quotas: the kernel holds what a sandbox may take of the disk");
    }
    let path = data.path.display();
    let (found, todo) = match data.filesystem.as_str() {
        "btrfs" => ("btrfs without quotas that we may set".to_owned(), vec![format!("sudo btrfs quota enable {path}")]),
        other => (
            format!("{other}, on which the kernel does not count what a directory takes"),
            vec![
                "Put the data directory on a btrfs of its own, with quotas, for instance in a file: truncate -s 100G \
                 /var/lib/cabana.img && mkfs.btrfs /var/lib/cabana.img"
                    .to_owned(),
                format!("sudo mount -o loop /var/lib/cabana.img {path} && sudo btrfs quota enable {path}"),
            ],
        ),
    };
    Finding::lost(TOPIC, found)
        .follows("A disk limit is held by watching: it can be overrun for a moment, and then the commands are ended.")
        .todos(todo)
}

/// Only where there is something to say: btrfs and others tell the disk later by themselves.
fn removal(facts: &Facts) -> Option<Finding> {
    let is_slow = facts.data.discards && facts.data.filesystem == "ext4";
    is_slow.then(|| {
        Finding::lost("removal", "ext4 with `discard`: each piece of a removed file is told to the disk by itself")
            .follows(
                "A file of very many pieces takes minutes to remove, which nothing ends: the end of a command, of its sandbox, and of the \
                 server can take so long.",
            )
            .todo("Mount the disk of the data directory without `discard`, and have `fstrim` run once a week.")
    })
}

/// Of version 1, only a part of it is limited.
fn io(facts: &Facts) -> Finding {
    const TOPIC: &str = "io-limits";
    const NONE: &str = "No limits of disk traffic: a spec that asks for one is refused.";
    let cgroup = &facts.cgroup;
    let Some(device) = &facts.data.device else {
        return Finding::lost(TOPIC, format!("{} lies on no single disk", facts.data.path.display()))
            .follows(NONE)
            .todo("Put the data directory on a file system of one disk: ext4, xfs, or btrfs on one device.");
    };
    if !has_controller(facts, "io") || !cgroup.delegated.works() {
        return Finding::lost(TOPIC, "no controller of disk traffic that we may use")
            .follows(NONE)
            .todos(delegate(facts));
    }
    match cgroup.version {
        CgroupVersion::V2 => Finding::ok(TOPIC, format!("the traffic with disk {device} can be limited")),
        _ => Finding::lost(TOPIC, format!("cgroup v1 limits the traffic with disk {device} in part"))
            .follows("Reads count, and writes past the page cache; what the kernel writes back later does not.")
            .todo("Boot with cgroup v2: systemd.unified_cgroup_hierarchy=1 on the kernel's command line."),
    }
}

/// By its name in version 2.
fn has_controller(facts: &Facts, name: &str) -> bool {
    let one = if name == "io" { "blkio" } else { name };
    [name, one].into_iter().any(|name| facts.cgroup.controllers.contains(name))
}

fn cgroups(facts: &Facts) -> Finding {
    const TOPIC: &str = "limits";
    let cgroup = &facts.cgroup;
    let version = match cgroup.version {
        CgroupVersion::None => {
            let finding = Finding::lost(TOPIC, "no cgroup tree is mounted").follows(NO_LIMITS);
            return match facts.container {
                Some(container) => finding.todos(share_cgroups(container)),
                None => finding.todo("sudo mount -t cgroup2 none /sys/fs/cgroup"),
            };
        }
        CgroupVersion::V1 => "cgroup v1",
        CgroupVersion::Hybrid => "cgroup v1 with a v2 tree beside it",
        CgroupVersion::V2 => "cgroup v2",
    };
    let names = |wanted: bool| -> Vec<&str> {
        ["memory", "cpu", "pids"].into_iter().filter(|name| has_controller(facts, name) == wanted).collect()
    };
    let (has, lacks) = (names(true), names(false));
    if let Tried::Refused { errno, .. } = cgroup.delegated {
        return Finding::lost(TOPIC, format!("{version}, in which we may make no group: {}", words(errno)))
            .follows(NO_LIMITS)
            .todos(delegate(facts));
    }
    if lacks.is_empty() {
        return Finding::ok(TOPIC, format!("{version}, ours to use, with {}", has.join(", ")));
    }
    Finding::lost(TOPIC, format!("{version} without {}", lacks.join(", ")))
        .follows(format!("No limits of {} for sandboxes.", lacks.join(", ")))
        .todos(delegate(facts))
}

const NO_LIMITS: &str = "No limits of memory, cpu and processes: a spec that asks for one is refused.";

fn delegate(facts: &Facts) -> Vec<String> {
    match (facts.container, facts.uid) {
        (Some(container), _) => share_cgroups(container),
        (None, 0) => vec![
            "As a systemd service: Delegate=yes in its [Service] section.".to_owned(),
            "Otherwise: echo '+memory +cpu +pids +io' > /sys/fs/cgroup/cgroup.subtree_control".to_owned(),
        ],
        (None, _) => vec![
            "systemd-run --user --scope -p Delegate=yes cabana …".to_owned(),
            "For cpu and io too, once as root: mkdir -p /etc/systemd/system/user@.service.d && printf \
             '[Service]\\nDelegate=cpu memory pids io\\n' > /etc/systemd/system/user@.service.d/delegate.conf && systemctl \
             daemon-reload"
                .to_owned(),
        ],
    }
}

fn share_cgroups(container: Container) -> Vec<String> {
    match container {
        Container::Docker => vec!["docker run --privileged --cgroupns=private …".to_owned()],
        Container::Podman => vec!["podman run --privileged --cgroupns=private …".to_owned()],
        Container::Kubernetes => vec!["securityContext: {privileged: true}".to_owned()],
        Container::Other => vec!["Let the container write to its part of /sys/fs/cgroup.".to_owned()],
    }
}

fn kill_tree(facts: &Facts) -> Finding {
    let usable = match facts.cgroup.version {
        CgroupVersion::V2 => facts.cgroup.kill && facts.cgroup.delegated.works(),
        _ => facts.cgroup.kill,
    };
    if usable {
        return Finding::ok("kill-tree", "cgroup.kill: a command ends with everything that it started");
    }
    Finding::lost("kill-tree", "no cgroup.kill that we may use")
        .follows("A command that ends takes its processes along by being their reaper, not by the kernel's own means.")
        .todos(if facts.version < (5, 14) {
            vec!["Boot a kernel of 5.14 or later.".to_owned()]
        } else {
            delegate(facts)
        })
}

fn ceilings(facts: &Facts) -> Vec<Finding> {
    let kernel = &facts.ceilings.kernel;
    let found = CEILINGS.iter().filter_map(|one| kernel.get(one.key).map(|value| ceiling(one, *value)));
    found.chain([files(facts)]).collect()
}

fn ceiling(ceiling: &Ceiling, value: u64) -> Finding {
    let Ceiling { topic, key, enough, better, of } = ceiling;
    let found = format!("{key} is {value}");
    if value >= *enough {
        return Finding::ok(topic, found);
    }
    Finding::lost(topic, found)
        .follows(format!("At most {value} {of}: too few for a thousand sandboxes."))
        .todo(format!("sudo sysctl -w {key}={better}"))
}

fn files(facts: &Facts) -> Finding {
    // The soft limit is ours to raise: only the hard one is a ceiling.
    match facts.ceilings.files_hard {
        Some(hard) if hard < OPEN_FILES => {
            Finding::lost("files", format!("at most {hard} open files for one process"))
                .follows("Each sandbox takes some of the process that made it, and a command in one has no more: too few for a thousand sandboxes.")
                .todo("ulimit -Hn 1048576 as root, LimitNOFILE=1048576 in systemd, --ulimit nofile=1048576 for Docker.")
        }
        Some(hard) => Finding::ok("files", format!("up to {hard} open files for one process")),
        None => Finding::ok("files", "no limit of open files"),
    }
}

fn programs(facts: &Facts) -> Finding {
    const SHOWN: usize = 8;
    if facts.hidden.is_empty() {
        return Finding::ok("programs", "every program on PATH is visible inside on the host base");
    }
    let mut finding = Finding::lost("programs", "some programs on PATH will not be visible inside on the host base");
    let mut lines = Vec::new();
    for hidden in &facts.hidden {
        let names = hidden.programs.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = match hidden.programs.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        lines.push(format!("{}: {names}{more}", hidden.directory.display()));
    }
    finding.follows =
        format!("They lie in homes or elsewhere outside /usr, which sandboxes do not see. {}.", lines.join("; "));
    let first = facts.hidden.first().map_or(Path::new("/opt/tools"), |hidden| hidden.directory.as_path());
    finding
        .todo("Install them below /usr/local, or make a template that has them.")
        .todo(format!("Or show one directory: cabana run --mount {0}:{0}:ro …", first.display()))
}

fn untried(topic: &'static str) -> Finding {
    Finding::lost(topic, "could not be tried")
        .follows("Whether it works will show when the first sandbox is made.")
        .todo("Run `cabana doctor` itself, with a --data directory that you may write to.")
}

/// Never a bare number.
fn words(errno: i32) -> String {
    match errno {
        libc::EPERM => "not permitted".to_owned(),
        libc::EACCES => "permission denied".to_owned(),
        libc::EROFS => "it is read-only".to_owned(),
        libc::ENOSPC => "a ceiling was reached, or no space is left".to_owned(),
        libc::EINVAL => "the kernel or the file system does not support it".to_owned(),
        libc::ENOSYS => "the kernel does not have it".to_owned(),
        libc::ENODEV => "the kernel does not know this file system".to_owned(),
        libc::EUSERS => "too many nested user namespaces".to_owned(),
        libc::ENOENT => "it is not there".to_owned(),
        other => {
            let text = std::io::Error::from_raw_os_error(other).to_string();
            text.split(" (os error").next().unwrap_or_default().to_lowercase()
        }
    }
}

#[cfg(test)]
#[path = "findings_tests.rs"]
mod tests;
