//! What a process inside may not do to the kernel, to process 1, and to itself. Each program is shown to get through where
//! nothing stops it; what differs from one kind of sandbox to another is only how it is refused.

use cabana_sandbox::Status;

use super::{Target, combination::Identity, command, path, together};
use crate::{
    attacks::{
        Attack, CALLS, CHROOT, DEVICES, FAMILIES, FILTER, GATE, HALVES, HANDLES, HUGE, IDS, IOCTLS, MOUNTING, NAMED,
        NAMESPACES, NSFS, OTHER_ABI, PEER, PLANT, PRIORITY, PRLIMIT, SETTINGS, STANDING, TYPING,
    },
    inside::unique,
};

/// As one who lacks the right is refused, or as if the kernel did not have the call.
const REFUSED: &[&str] = &["EPERM", "ENOSYS"];

/// As everybody who is inside.
#[track_caller]
fn nothing_done(target: &mut Target<'_>, attack: &Attack, arguments: &[&str]) {
    for user in target.users() {
        target.attack(user, attack, arguments).report().nothing_done();
    }
}

#[track_caller]
fn all_refused(target: &mut Target<'_>, attack: &Attack, arguments: &[&str], answers: &[&str]) {
    for user in target.users() {
        target.attack(user, attack, arguments).report().all_refused(answers);
    }
}

const CALLS_OF_THE_KERNEL: &[&str] = &[
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "keyctl",
    "add_key",
    "request_key",
    "init_module",
    "finit_module",
    "delete_module",
    "kexec_load",
    "kexec_file_load",
    "reboot",
    "settimeofday",
    "clock_settime",
    "clock_adjtime",
    "adjtimex",
    "swapon",
    "swapoff",
    "acct",
    "quotactl",
    "quotactl_fd",
    "mount",
    "umount2",
    "pivot_root",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "move_mount",
    "open_tree",
    "open_tree_attr",
    "mount_setattr",
    "statmount",
    "listmount",
    "open_by_handle_at",
    "name_to_handle_at",
    "fanotify_init",
    "fanotify_mark",
    "sethostname",
    "setdomainname",
    "syslog",
    "kcmp",
    "migrate_pages",
    "move_pages",
    "personality",
];

const SETTINGS_OF_THE_KERNEL: &[&str] = &[
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/sysrq",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/randomize_va_space",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/sys/kernel/shmmax",
    "/proc/sys/kernel/pid_max",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/fs/file-max",
    "/proc/sys/fs/suid_dumpable",
    "/proc/sys/fs/protected_symlinks",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sysrq-trigger",
    "/proc/irq/default_smp_affinity",
];

const SECRETS_OF_THE_KERNEL: &[&str] = &[
    "/proc/slabinfo",
    "/proc/vmallocinfo",
    "/proc/timer_list",
    "/proc/kpagecount",
    "/proc/pagetypeinfo",
    "/proc/cmdline",
];

const FOREIGN_FAMILIES: &[&str] = &[
    "17:3:768", "16:3:9", "16:3:12", "16:3:15", "16:3:16", "16:3:6", "40:1:0", "38:5:0", "29:3:1", "31:1:3", "15:3:2",
    "30:1:0", "21:5:0", "44:3:0", "41:1:0", "2:10:0", "2:3:1", "2:3:6", "10:3:58", "2:3:255",
];

#[test]
fn the_attacks_of_the_matrix_get_through_where_nothing_stops_them() {
    CALLS.run_on_host(CALLS_OF_THE_KERNEL).report().none_refused(&["EPERM", "UNKNOWN"]);
    let report = SETTINGS.run_on_host(&[&["write"], SETTINGS_OF_THE_KERNEL].concat()).report();
    assert_eq!(report.of("/proc/sys/kernel/core_pattern"), "done");
    report.none_refused(&["EPERM", "EACCES", "EROFS"]);
    let report = SETTINGS.run_on_host(&[&["read"], SECRETS_OF_THE_KERNEL].concat()).report();
    assert_eq!((report.of("/proc/vmallocinfo"), report.of("/proc/cmdline")), ("done", "done"));
    let report = FAMILIES.run_on_host(FOREIGN_FAMILIES).report();
    assert_eq!((report.of("17:3:768"), report.of("2:3:1"), report.of("16:3:9")), ("done", "done", "done"));
    MOUNTING.run_in_own_mounts(&[]).report().all_done();
    let work = tempfile::tempdir().unwrap();
    let file = work.path().join("file").to_str().unwrap().to_owned();
    DEVICES.run_on_host(&[work.path().to_str().unwrap()]).report().all_done();
    IDS.run_on_host(&[&file]).report().all_done();
    PRIORITY.run_on_host(&[]).report().all_done();
    std::fs::write(&file, "").unwrap();
    assert_eq!(HANDLES.run_on_host(&[&file]).report().of("opening it"), "done");
    let report = TYPING.run_on_host(&[]).report();
    assert_eq!(report.of("typing into one of its own"), "done");
    assert_eq!(report.of("typing with a high half into one of its own"), "done");
    for way in ["unshare", "clone", "clone3", "enter"] {
        NAMESPACES.run_on_host(&[way]).report().none_refused(&["EPERM", "ENOSYS"]);
    }
    HALVES.run_on_host(&[]).report().none_refused(&["EPERM"]);
    HUGE.run_on_host(&[]).report().none_refused(&["EPERM"]);
    NSFS.run_on_host(&[]).report().none_refused(&["EPERM", "EACCES"]);
    assert_eq!(FILTER.run_on_host(&["allow"]).report().of("the call after it"), "done");
    assert_eq!(FILTER.run_on_host(&["notify"]).report().of("the call that it lets go on"), "done");
    let report = PEER.run_on_host(&[]).report();
    for what in ["reading its memory", "opening mem to write", "taking its descriptor", "tracing it"] {
        assert_eq!(report.of(what), "done", "{what}");
    }
    PRLIMIT.run_on_host(&[]).report().all_done();
    let report = IOCTLS.run_on_host(&[&file]).report();
    assert!(["done", "EOPNOTSUPP", "ENOTTY"].contains(&report.of("pin")), "{report:?}");
}

together! {
    sockets_of_a_sandbox_that_shares_a_directory {
        sockets_named_where_others_reach_them(target) {
            target.create_again_with_shared("/workspace/shared");
            for user in target.users() {
                for own in ["/tmp", "/dev/shm"] {
                    target.attack(user, &NAMED, &[own]).report().all_done();
                }
                target.attack(user, &NAMED, &["/workspace/shared"]).report().all_refused(&["EPERM"]);
            }
        }
    }

    what_only_the_kernel_may_do {
        calls_into_the_kernel(target) {
            all_refused(target, &CALLS, CALLS_OF_THE_KERNEL, REFUSED);
        }

        settings_of_the_kernel(target) {
            nothing_done(target, &SETTINGS, &[&["write"], SETTINGS_OF_THE_KERNEL].concat());
        }

        secrets_of_the_kernel(target) {
            nothing_done(target, &SETTINGS, &[&["read"], SECRETS_OF_THE_KERNEL].concat());
        }

        sockets_of_families_that_reach_the_kernel(target) {
            nothing_done(target, &FAMILIES, FOREIGN_FAMILIES);
            let plain = target.attack("root", &FAMILIES, &["1:1:0", "2:1:0", "2:2:0", "10:1:0"]);
            plain.report().all_done();
        }

        arguments_with_a_half_that_no_kernel_reads(target) {
            all_refused(target, &HALVES, &[], &["EPERM"]);
        }

        huge_pages_of_the_machine(target) {
            all_refused(target, &HUGE, &[], &["EPERM"]);
        }

        a_filter_that_allows_what_another_refused(target) {
            for user in target.users() {
                let report = target.attack(user, &FILTER, &["allow"]).report();
                assert_eq!((report.of("the call after it"), report.of("the call in the end")), ("EPERM", "EPERM"));
                let report = target.attack(user, &FILTER, &["notify"]).report();
                assert_eq!(report.of("the call that it lets go on"), "EPERM");
                target.attack(user, &FILTER, &["checkpoint"]).report().nothing_done();
            }
        }

        priority_over_the_machine(target) {
            nothing_done(target, &PRIORITY, &[]);
        }
    }

    namespaces_and_process_1 {
        new_namespaces_and_those_of_others(target) {
            for way in ["unshare", "clone", "clone3"] {
                nothing_done(target, &NAMESPACES, &[way]);
            }
            for whose in ["self", "1"] {
                nothing_done(target, &NAMESPACES, &["enter", whose]);
            }
            nothing_done(target, &NAMESPACES, &["parents"]);
        }

        namespaces_by_descriptors(target) {
            for user in target.users() {
                let report = target.attack(user, &NSFS, &[]).report();
                for which in [11, 12] {
                    assert_ne!(report.of(&format!("another mount namespace {which}")), "done", "as {user}");
                }
                target.attack(user, &NSFS, &["1", "only"]).report().nothing_done();
            }
        }

        process_1_by_memory_descriptors_and_traces(target) {
            let own = target.attack("root", &PEER, &[]).report();
            assert_eq!((own.of("reading its memory"), own.of("tracing it")), ("done", "done"), "a child of one's own");
            for user in target.users() {
                let report = target.attack(user, &PEER, &["1"]).report();
                // Where there is one id, init's files in /proc belong to it. What the kernel judges by more than that is closed.
                let open: &[&str] = match target.combination.identity {
                    Identity::Single => &OF_ITS_OWN_ID,
                    _ => &[],
                };
                report.nothing_done_but(open);
            }
            target.still_works();
        }

        the_program_of_init_by_a_script_that_starts_it(target) {
            let (library, plant) = (target.install(&GATE), target.install(&PLANT));
            target.run(command("root", &plant, &["script", "/proc/self/exe", "/tmp/door"])).report().all_done();
            for user in target.users() {
                let mut door = command(user, "/tmp/door", &[]);
                door.env.insert("LD_PRELOAD".to_owned(), library.clone());
                let Ok(ran) = target.exec(vec![door]).remove(0) else { continue }; // nobody but its owner may run it
                assert_eq!(target.combination.identity, Identity::Single, "as {user}: {ran:?}");
                if !ran.out.starts_with("runs ") {
                    continue; // what it is linked with is not there
                }
                let report = ran.report();
                assert!(report.of("runs").contains("memfd"), "the library is in the host's program: {report:?}");
                for what in ["opening it to write", "opening it to write both ways", "cutting it off"] {
                    assert!(["EPERM", "EACCES", "ETXTBSY"].contains(&report.of(what)), "{what}: {report:?}");
                }
                assert_eq!(report.of("taking its seals off"), "EPERM");
            }
        }

        limits_of_process_1(target) {
            nothing_done(target, &PRLIMIT, &["1"]);
            target.still_works();
        }
    }

    mounts_devices_and_files_below {
        mounting_by_root_and_user(target) {
            nothing_done(target, &MOUNTING, &[]);
        }

        nodes_of_devices(target) {
            for place in ["/tmp", "/dev/shm", "/home/user"] {
                nothing_done(target, &DEVICES, &[place]);
            }
        }

        files_by_their_handles(target) {
            nothing_done(target, &HANDLES, &["/tmp"]);
        }

        commands_to_the_file_system_below(target) {
            for place in ["/tmp", "/home/user", "/etc"] {
                all_refused(target, &IOCTLS, &[place], &["EPERM", "EACCES", "ENOTTY", "EOPNOTSUPP", "EROFS"]);
            }
        }

        leaving_the_root_by_a_second_root(target) {
            let canary = tempfile::NamedTempFile::new().unwrap();
            let beside = target.install(&STANDING);
            let words = ["/tmp/jail", beside.as_str(), canary.path().to_str().unwrap()];
            let report = target.attack("root", &CHROOT, &words).report();
            assert_eq!(report.of("beside the jail, from within"), "ENOENT", "it was in a jail");
            assert_eq!(report.of("beside the jail, from without"), "done", "the way out of a jail works");
            assert_eq!(report.of("on the host"), "ENOENT");
        }
    }

    rights_of_commands {
        ids_that_belong_to_others(target) {
            for user in target.users() {
                target.attack(user, &IDS, &[&format!("/tmp/{}", unique("ids"))]).report().nothing_done();
            }
        }

        typing_into_terminals(target) {
            for user in target.users() {
                let report = target.attack_in_terminal(user, &TYPING, &[]).report();
                assert_eq!(report.of("typing into the one it has"), "EPERM");
                report.nothing_done();
            }
        }

        what_a_command_begins_with(target) {
            for user in target.users() {
                for (terminal, kinds) in [(false, ["device", "pipe", "pipe"]), (true, ["device"; 3])] {
                    let ran = match terminal {
                        true => target.attack_in_terminal(user, &STANDING, &[]),
                        false => target.attack(user, &STANDING, &[]),
                    };
                    let report = ran.report();
                    for (number, kind) in kinds.iter().enumerate() {
                        assert_eq!(report.of(&format!("descriptor {number}")), *kind);
                    }
                    assert_eq!(report.count("descriptor"), 3, "nothing else is open: {report:?}");
                    assert_eq!(report.of("Seccomp"), "2", "behind a filter");
                    let bounding = u64::from_str_radix(report.of("CapBnd"), 16).unwrap();
                    assert_eq!(bounding & !KEPT, 0, "rights that nobody inside has: {bounding:x}");
                    let privileged = u64::from_str_radix(report.of("CapEff"), 16).unwrap() != 0;
                    assert_eq!(privileged, *user == "root", "{report:?}");
                    assert_eq!(report.of("NoNewPrivs"), if target.combination.sudo { "0" } else { "1" });
                }
            }
        }

        a_set_uid_program_that_root_left(target) {
            let program = target.install(&STANDING);
            let chmod = "chmod 6755 /tmp/standing";
            let mut spec = cabana_sandbox::ExecSpec::shell(chmod, path("/"));
            spec.user = Some(crate::inside::named("root"));
            target.run(spec).ok();
            if target.combination.identity != Identity::Single {
                let report = target.run(command("user", &program, &[])).report();
                let gained = u64::from_str_radix(report.of("CapEff"), 16).unwrap();
                // With sudo it becomes root inside, and no more than that. Where nothing else is writable, /tmp is a mount of its
                // own, on which no program gains anything.
                assert_eq!(gained & !KEPT, 0, "{report:?}");
                if !target.combination.sudo {
                    assert_eq!((report.of("user"), gained), ("1000", 0));
                }
            }
        }
    }
}

/// How many descriptors it has. To write to its files would name it, or have it chosen first when memory runs out: they are
/// read-only.
const OF_ITS_OWN_ID: [&str; 1] = ["listing fd"];

/// What root inside keeps.
const KEPT: u64 = 0xa004_04fb;

#[cfg(target_arch = "x86_64")]
together! {
    calls_that_are_not_what_the_filter_sees {
        calls_by_the_numbers_of_another_architecture(target) {
            const SIGSYS: i32 = 31;
            let program = target.install(&OTHER_ABI);
            assert!(target.run(command("root", &program, &["native"])).ok().starts_with("native "));
            for user in target.users() {
                for way in ["int80", "int80-mount", "x32", "x32-unshare"] {
                    let ran = target.run(command(user, &program, &[way]));
                    assert_eq!((ran.status, ran.out.as_str()), (Status::Signal(SIGSYS), ""), "{way} as {user}");
                }
            }
        }

        a_tracer_that_changes_a_call(target) {
            for user in target.users() {
                let report = target.attack(user, &FILTER, &["rewrite"]).report();
                assert_eq!(report.of("a call that a tracer changed"), "EPERM");
            }
        }
    }
}
