//! Made-up hosts, each with what somebody there must be told.

use super::*;
use crate::{
    host::{Ceilings, Cgroup, Data, Hidden},
    rootless::Ids,
};

fn refused(step: &str, errno: i32) -> Tried {
    Tried::Refused { step: step.into(), errno }
}

/// Root on a current kernel with everything there.
fn perfect() -> Facts {
    Facts {
        release: "6.12.0".into(),
        version: (6, 12),
        uid: 0,
        mode: Mode::Root,
        ids: Ids::default(),
        container: None,
        obstacle: None,
        namespaces: Tried::Works,
        overlay: Tried::Works,
        proc: Tried::Works,
        idmap_data: Tried::Works,
        idmap_usr: Tried::Works,
        network: Tried::Works,
        seccomp: true,
        suid_dumpable: Some(2),
        core_pattern: Some("|/usr/lib/systemd/systemd-coredump %P".into()),
        can_bound_cores: true,
        groups: vec![4, 27],
        cgroup: Cgroup {
            version: CgroupVersion::V2,
            controllers: ["cpu", "io", "memory", "pids"].map(String::from).into(),
            delegated: Tried::Works,
            kill: true,
        },
        data: Data {
            path: "/var/lib/cabana".into(),
            filesystem: "btrfs".into(),
            quota: true,
            device: Some("8:0".into()),
            discards: false,
            writable: Tried::Works,
        },
        ceilings: Ceilings {
            kernel: CEILINGS.iter().map(|ceiling| (ceiling.key, ceiling.enough)).collect(),
            files_soft: Some(1_024),
            files_hard: Some(1_048_576),
        },
        hidden: Vec::new(),
    }
}

fn ordinary() -> Facts {
    Facts {
        uid: 1000,
        mode: Mode::Shared,
        ids: Ids {
            user: Some("bob".into()),
            newuidmap: Some("/usr/bin/newuidmap".into()),
            newgidmap: Some("/usr/bin/newgidmap".into()),
            subuid: Some(100_000),
            subgid: Some(100_000),
            no_new_privs: false,
        },
        idmap_data: Tried::Not,
        idmap_usr: Tried::Not,
        ..perfect()
    }
}

fn docker() -> Facts {
    Facts {
        container: Some(Container::Docker),
        mode: Mode::Shared,
        namespaces: refused("making a user namespace", libc::EPERM),
        overlay: refused("making a user namespace", libc::EPERM),
        proc: refused("making a user namespace", libc::EPERM),
        data: Data { filesystem: "overlay".into(), quota: false, ..perfect().data },
        cgroup: Cgroup { delegated: refused("making a group", libc::EROFS), kill: false, ..perfect().cgroup },
        ..perfect()
    }
}

fn with_pids(most: u64) -> Ceilings {
    let mut ceilings = perfect().ceilings;
    ceilings.kernel.insert("kernel.pid_max", most);
    ceilings
}

fn finding(facts: &Facts, topic: &str) -> Finding {
    findings(facts).into_iter().find(|f| f.topic == topic).unwrap_or_else(|| panic!("nothing said of {topic}"))
}

fn says(finding: &Finding, words: &str) -> bool {
    finding.todo.iter().any(|todo| todo.contains(words))
}

/// What holds of every host: nobody is left with a number, or with a loss and no way out.
fn check_house_rules(facts: &Facts) {
    for finding in findings(facts) {
        let text = format!("{} {} {}", finding.found, finding.follows, finding.todo.join(" "));
        assert!(!text.contains("os error") && !text.contains("errno"), "{finding:?}");
        match finding.state {
            State::Ok => assert!(finding.todo.is_empty() && finding.follows.is_empty(), "{finding:?}"),
            _ => assert!(!finding.todo.is_empty() && !finding.found.is_empty(), "{finding:?}"),
        }
    }
}

#[test]
fn a_perfect_host_has_nothing_to_do() {
    let facts = perfect();
    assert!(findings(&facts).iter().all(|f| f.state == State::Ok), "{:#?}", findings(&facts));
    assert!(can_run(&findings(&facts)));
}

#[test]
fn ubuntu_24_04_is_told_of_apparmor() {
    let facts = Facts {
        release: "6.8.0-31-generic".into(),
        version: (6, 8),
        obstacle: Some(Obstacle::AppArmor),
        namespaces: refused("writing the id map", libc::EPERM),
        overlay: refused("writing the id map", libc::EPERM),
        proc: refused("writing the id map", libc::EPERM),
        ..ordinary()
    };
    check_house_rules(&facts);
    assert!(!can_run(&findings(&facts)));
    let namespaces = finding(&facts, "namespaces");
    assert!(namespaces.found.contains("AppArmor"));
    assert!(says(&namespaces, "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"));
    assert!(says(&namespaces, "apparmor_parser"));
    assert!(says(&finding(&facts, "proc"), "comes first"));
}

#[test]
fn docker_as_it_comes_is_told_the_flags() {
    let facts = docker();
    check_house_rules(&facts);
    assert!(!can_run(&findings(&facts)));
    for flag in [
        "--cap-add SYS_ADMIN",
        "--cap-add SYS_PTRACE",
        "seccomp=unconfined",
        "systempaths=unconfined",
        "-v cabana:",
        "--privileged",
    ] {
        assert!(says(&finding(&facts, "namespaces"), flag), "{flag}");
    }
    assert_eq!(finding(&facts, "limits").state, State::Lost);
}

#[test]
fn docker_with_a_masked_proc_is_told_to_unmask_it() {
    let facts = Facts {
        namespaces: Tried::Works,
        overlay: refused("mounting an overlay", libc::EINVAL),
        proc: refused("mounting a new proc", libc::EPERM),
        ..docker()
    };
    check_house_rules(&facts);
    assert!(says(&finding(&facts, "proc"), "systempaths=unconfined"));
    assert!(says(&finding(&facts, "overlay"), "-v cabana:/var/lib/cabana"));
}

#[test]
fn kubernetes_is_told_the_security_context() {
    let facts = Facts { container: Some(Container::Kubernetes), ..docker() };
    check_house_rules(&facts);
    for word in ["seccompProfile: {type: Unconfined}", "procMount: Unmasked", "privileged: true", "emptyDir"] {
        assert!(says(&finding(&facts, "namespaces"), word), "{word}");
    }
}

#[test]
fn kernel_5_4_is_told_what_it_lacks() {
    let facts = Facts { release: "5.4.0-150-generic".into(), version: (5, 4), ..perfect() };
    check_house_rules(&facts);
    assert!(!can_run(&findings(&facts)));
    let kernel = finding(&facts, "kernel");
    assert!(kernel.follows.contains("idmapped mounts") && kernel.follows.contains("cgroup.kill"));
    let younger = Facts { version: (5, 15), ..facts };
    assert!(!finding(&younger, "kernel").follows.contains("cgroup.kill"));
}

#[test]
fn an_ordinary_user_without_newuidmap_is_told_which_package() {
    let ids = Ids { newuidmap: None, newgidmap: None, subuid: None, subgid: None, ..ordinary().ids };
    let facts = Facts { mode: Mode::Single, ids, ..ordinary() };
    check_house_rules(&facts);
    assert!(can_run(&findings(&facts)), "less, but it runs");
    let identities = finding(&facts, "identities");
    assert!(says(&identities, "apt-get install uidmap"));
    assert!(says(&identities, "usermod --add-subuids 100000-165535 --add-subgids 100000-165535 bob"));
}

#[test]
fn a_user_without_a_name_is_told_to_get_one() {
    let ids = Ids { user: None, subuid: None, subgid: None, ..ordinary().ids };
    let facts = Facts { mode: Mode::Single, uid: 12345, ids, ..ordinary() };
    check_house_rules(&facts);
    assert!(says(&finding(&facts, "identities"), "useradd --uid 12345"));
}

#[test]
fn no_new_privs_is_named_as_the_reason() {
    let ids = Ids { no_new_privs: true, ..ordinary().ids };
    let facts = Facts { mode: Mode::Single, ids, ..ordinary() };
    check_house_rules(&facts);
    assert!(says(&finding(&facts, "identities"), "NoNewPrivileges=no"));
}

#[test]
fn a_delegated_v2_tree_gives_an_ordinary_user_limits() {
    let facts = ordinary();
    check_house_rules(&facts);
    assert_eq!(finding(&facts, "limits").state, State::Ok);
    assert_eq!(finding(&facts, "kill-tree").state, State::Ok);
    let without_cpu = Cgroup { controllers: ["memory", "pids"].map(String::from).into(), ..facts.cgroup.clone() };
    let facts = Facts { cgroup: without_cpu, ..facts };
    let limits = finding(&facts, "limits");
    assert_eq!((limits.state, limits.follows.as_str()), (State::Lost, "No limits of cpu for sandboxes."));
    assert!(says(&limits, "Delegate=cpu memory pids io"));
    assert_eq!(finding(&facts, "io-limits").state, State::Lost);
}

#[test]
fn a_kernel_without_nf_tables_has_no_network_for_sandboxes_and_says_so() {
    let facts = Facts { network: refused("redirecting connections by nf_tables", libc::EOPNOTSUPP), ..perfect() };
    check_house_rules(&facts);
    let network = finding(&facts, "network");
    assert_eq!(network.state, State::Lost);
    assert!(network.found.contains("nf_tables") && says(&network, "modprobe"), "{network:?}");
    assert!(can_run(&findings(&facts)));
}

#[test]
fn what_cannot_be_limited_of_the_disk_is_said() {
    let data = Data { quota: false, device: None, ..perfect().data };
    let facts = Facts { data, ..perfect() };
    check_house_rules(&facts);
    assert!(says(&finding(&facts, "disk-limits"), "btrfs quota enable /var/lib/cabana"));
    assert_eq!(finding(&facts, "io-limits").state, State::Lost);
    let one = ["blkio", "cpu", "memory", "pids"].map(String::from).into();
    let facts =
        Facts { cgroup: Cgroup { version: CgroupVersion::V1, controllers: one, ..perfect().cgroup }, ..perfect() };
    check_house_rules(&facts);
    let io = finding(&facts, "io-limits");
    assert!(io.state == State::Lost && io.follows.contains("writes past the page cache"), "{io:?}");
}

#[test]
fn a_disk_that_makes_removals_slow_is_said() {
    let on = |filesystem: &str| Facts {
        data: Data { filesystem: filesystem.into(), discards: true, ..perfect().data },
        ..perfect()
    };
    check_house_rules(&on("ext4"));
    assert!(says(&finding(&on("ext4"), "removal"), "without `discard`"));
    assert!(findings(&on("btrfs")).iter().all(|finding| finding.topic != "removal"), "it does that later");
}

#[test]
fn every_ceiling_that_is_too_low_is_told_with_what_it_means_and_what_to_do() {
    let mut ceilings = perfect().ceilings;
    ceilings.kernel.values_mut().for_each(|value| *value = 7);
    let facts = Facts { ceilings, ..perfect() };
    check_house_rules(&facts);
    for ceiling in &CEILINGS {
        let finding = finding(&facts, ceiling.topic);
        assert!(finding.state == State::Lost && finding.follows.contains("At most 7"), "{finding:?}");
        assert!(says(&finding, &format!("sysctl -w {}={}", ceiling.key, ceiling.better)));
    }
}

#[test]
fn a_tree_that_is_not_ours_gives_no_limits_and_no_kill() {
    let cgroup = Cgroup { delegated: refused("making a group", libc::EACCES), ..perfect().cgroup };
    let facts = Facts { cgroup, ..ordinary() };
    check_house_rules(&facts);
    assert_eq!(finding(&facts, "limits").state, State::Lost);
    assert_eq!(finding(&facts, "kill-tree").state, State::Lost);
    assert!(says(&finding(&facts, "limits"), "systemd-run --user --scope -p Delegate=yes"));
}

#[test]
fn hybrid_cgroups_on_ext4_with_few_pids_run_with_less() {
    let facts = Facts {
        cgroup: Cgroup { version: CgroupVersion::Hybrid, ..perfect().cgroup },
        data: Data { filesystem: "ext4".into(), quota: false, ..perfect().data },
        ceilings: with_pids(32_768),
        hidden: vec![Hidden { directory: "/root/.cargo/bin".into(), programs: vec!["cargo".into(), "rustc".into()] }],
        ..perfect()
    };
    check_house_rules(&facts);
    assert!(can_run(&findings(&facts)));
    assert!(says(&finding(&facts, "disk-limits"), "mkfs.btrfs"));
    assert!(says(&finding(&facts, "pids"), "sysctl -w kernel.pid_max=4194304"));
    assert!(finding(&facts, "programs").follows.contains("/root/.cargo/bin: cargo, rustc"));
}

#[test]
fn suid_dumpable_of_1_is_refused_with_what_to_do() {
    let facts = Facts { suid_dumpable: Some(1), ..perfect() };
    check_house_rules(&facts);
    assert!(!can_run(&findings(&facts)));
    let dumps = finding(&facts, "suid-dumpable");
    assert!(dumps.found.contains("fs.suid_dumpable is 1") && says(&dumps, "sysctl -w fs.suid_dumpable=0"), "{dumps:?}");
    for safe in [Some(0), Some(2), None] {
        assert!(can_run(&findings(&Facts { suid_dumpable: safe, ..perfect() })), "{safe:?}");
    }
}

#[test]
fn groups_that_sandboxes_keep_are_named_with_what_to_do() {
    let single = Facts { mode: Mode::Single, ids: Ids::default(), ..ordinary() };
    let kept = finding(&Facts { groups: vec![4, 998], ..single.clone() }, "identities");
    assert!(kept.follows.contains("groups 4, 998") && says(&kept, "--clear-groups"), "{kept:?}");
    let none = finding(&Facts { groups: Vec::new(), ..single }, "identities");
    assert!(!none.follows.contains("groups") && !says(&none, "--clear-groups"), "{none:?}");
    assert!(!says(&finding(&Facts { groups: vec![4], ..ordinary() }, "identities"), "--clear-groups"));
}

#[test]
fn a_socket_for_core_dumps_is_named_with_what_to_do() {
    for (pattern, state) in [
        ("@/run/coredump.sock", State::Lost),
        ("@@/run/coredump.sock", State::Lost),
        ("|/usr/lib/systemd/systemd-coredump %P", State::Ok),
        ("core", State::Ok),
        ("/var/crash/%p@%h", State::Ok),
    ] {
        let facts = Facts { core_pattern: Some(pattern.into()), ..perfect() };
        check_house_rules(&facts);
        let cores = finding(&facts, "core-dumps");
        assert_eq!(cores.state, state, "{pattern}");
        assert_eq!(says(&cores, "sysctl -w kernel.core_pattern=core"), state == State::Lost, "{pattern}");
    }
}

#[test]
fn a_program_for_core_dumps_that_no_limit_keeps_off_is_named_with_what_to_do() {
    let unbounded = Facts { can_bound_cores: false, ..perfect() };
    check_house_rules(&unbounded);
    let cores = finding(&unbounded, "core-dumps");
    assert_eq!(cores.state, State::Lost);
    assert!(says(&cores, "LimitCORE=1"));
    let of_files = Facts { core_pattern: Some("core".into()), ..unbounded };
    assert_eq!(finding(&of_files, "core-dumps").state, State::Ok, "files are no larger than the limit says");
}

#[test]
fn a_usr_that_cannot_be_idmapped_asks_for_a_template() {
    let facts = Facts {
        container: Some(Container::Docker),
        idmap_usr: refused("mapping the ids of a mount", libc::EINVAL),
        ..perfect()
    };
    check_house_rules(&facts);
    assert!(can_run(&findings(&facts)));
    assert!(says(&finding(&facts, "idmap-usr"), "cabana template add"));
}

#[test]
fn docker_with_one_capability_of_two_is_told_the_other() {
    let idmap_data = refused("making a user namespace to map to", libc::EACCES);
    let facts = Facts { container: Some(Container::Docker), idmap_data, ..perfect() };
    check_house_rules(&facts);
    assert!(!can_run(&findings(&facts)));
    assert!(says(&finding(&facts, "idmap-data"), "--cap-add SYS_PTRACE"));
}

#[test]
fn a_data_directory_that_cannot_be_written_stops_everything() {
    let data = Data { writable: refused("making a directory", libc::EROFS), ..perfect().data };
    let facts = Facts { data, overlay: Tried::Not, idmap_data: Tried::Not, ..perfect() };
    check_house_rules(&facts);
    assert!(!can_run(&findings(&facts)));
    assert!(finding(&facts, "data").found.contains("read-only"));
}
