//! The policy file: that it is whole, and what it says.

use std::collections::BTreeSet;

use super::machine::{Call, Direct};
use crate::walls::arch::Arch;
use crate::walls::policy::{Policy, Verdict};

const EPERM: Verdict = Verdict::Errno(libc::EPERM as u16);
const DONE: Verdict = Verdict::Errno(0);
const ENOSYS: Verdict = Verdict::Errno(libc::ENOSYS as u16);
const EAFNOSUPPORT: Verdict = Verdict::Errno(libc::EAFNOSUPPORT as u16);
const EPROTONOSUPPORT: Verdict = Verdict::Errno(libc::EPROTONOSUPPORT as u16);

const SECRET: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];

/// What the embedded policy says, which must be the same on every architecture that has the call.
fn verdict(name: &str, args: &[u64]) -> Verdict {
    verdict_of(&Policy::embedded(), name, args)
}

fn verdict_of(policy: &Policy, name: &str, args: &[u64]) -> Verdict {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    let verdicts: Vec<_> = [Arch::X86_64, Arch::AARCH64]
        .into_iter()
        .filter_map(|arch| {
            let (number, _) = arch.syscalls().find(|(_, known)| *known == name)?;
            Some(Direct::new(arch, policy, SECRET).decide(&Call { arch: arch.audit, number, args: all }))
        })
        .collect();
    assert!(verdicts.iter().all(|verdict| *verdict == verdicts[0]), "{name}: {verdicts:?}");
    verdicts[0]
}

#[test]
fn every_known_call_has_a_verdict_and_no_verdict_is_for_an_unknown_name() {
    let policy = Policy::embedded();
    let written: BTreeSet<_> = policy.rules.keys().map(String::as_str).collect();
    let known: BTreeSet<_> = Arch::X86_64.syscalls().chain(Arch::AARCH64.syscalls()).map(|(_, name)| name).collect();
    assert_eq!(known.difference(&written).collect::<Vec<_>>(), Vec::<&&str>::new(), "without a verdict");
    assert_eq!(written.difference(&known).collect::<Vec<_>>(), Vec::<&&str>::new(), "in no table");
    assert_eq!(policy.default, ENOSYS);
}

#[test]
fn every_paragraph_begins_with_its_reason() {
    let text = include_str!("../policy.txt");
    let has_rule = |paragraph: &&str| paragraph.lines().any(|line| !line.starts_with('#'));
    let paragraphs: Vec<_> = text.split("\n\n").map(str::trim).filter(has_rule).collect();
    assert!(paragraphs.len() > 30, "{}", paragraphs.len());
    for paragraph in paragraphs {
        let first = paragraph.lines().next().unwrap_or_default();
        assert!(first.starts_with("# ") && !first.starts_with("# --"), "without a reason:\n{paragraph}");
    }
}

#[test]
fn what_reaches_the_host_is_refused() {
    for name in [
        "mount",
        "umount2",
        "pivot_root",
        "move_mount",
        "open_tree",
        "open_tree_attr",
        "fsopen",
        "mount_setattr",
        "setns",
        "keyctl",
        "add_key",
        "request_key",
        "bpf",
        "perf_event_open",
        "userfaultfd",
        "kexec_load",
        "kexec_file_load",
        "init_module",
        "finit_module",
        "delete_module",
        "reboot",
        "swapon",
        "swapoff",
        "settimeofday",
        "clock_settime",
        "clock_adjtime",
        "adjtimex",
        "acct",
        "quotactl",
        "quotactl_fd",
        "syslog",
        "iopl",
        "ioperm",
        "name_to_handle_at",
        "open_by_handle_at",
        "fanotify_init",
        "kcmp",
        "lookup_dcookie",
        "sethostname",
    ] {
        assert_eq!(verdict(name, &[]), EPERM, "{name}");
    }
    for name in ["clone3", "io_uring_setup", "io_uring_enter", "io_uring_register", "nfsservctl"] {
        assert_eq!(verdict(name, &[]), ENOSYS, "{name}");
    }
}

#[test]
fn what_the_whole_machine_has_once_is_not_for_one_sandbox_to_take_or_to_watch() {
    for name in ["io_setup", "io_submit", "memfd_secret", "cachestat"] {
        assert_eq!(verdict(name, &[]), ENOSYS, "{name}");
    }
    assert_eq!(verdict("prctl", &[libc::PR_SCHED_CORE as u64, 1, 0, 0, 0]), EPERM);
    assert_eq!(verdict("prctl", &[1 << 32 | libc::PR_SCHED_CORE as u64]), EPERM, "the high half is not read");
    for option in [libc::PR_SET_NAME, libc::PR_SET_PDEATHSIG, libc::PR_SET_NO_NEW_PRIVS, libc::PR_SET_PTRACER] {
        assert_eq!(verdict("prctl", &[option as u64, libc::PR_SCHED_CORE as u64]), Verdict::Allow, "{option}");
    }
}

#[test]
fn memory_is_not_merged_with_that_of_neighbours() {
    let merge = libc::MADV_MERGEABLE as u64;
    assert_eq!(verdict("madvise", &[4096, 4096, merge]), EPERM);
    assert_eq!(verdict("process_madvise", &[3, 4096, 1, merge, 0]), EPERM);
    assert_eq!(verdict("prctl", &[libc::PR_SET_MEMORY_MERGE as u64, 1]), EPERM);
    for other in [libc::MADV_DONTNEED, libc::MADV_UNMERGEABLE, libc::MADV_HUGEPAGE, libc::MADV_FREE] {
        assert_eq!(verdict("madvise", &[4096, 4096, other as u64]), Verdict::Allow, "{other}");
    }
}

#[test]
fn locks_of_open_files_are_taken_by_a_broker() {
    for command in [libc::F_OFD_SETLK, libc::F_OFD_SETLKW] {
        assert_eq!(verdict("fcntl", &[3, 1 << 32 | command as u64]), Verdict::Notify, "{command}");
    }
}

#[test]
fn nobody_holds_up_who_opens_a_file() {
    for command in [libc::F_SETLEASE, 1040] {
        assert_eq!(verdict("fcntl", &[3, command as u64, libc::F_WRLCK as u64]), EPERM, "{command}");
        assert_eq!(verdict("fcntl", &[3, 1 << 32 | command as u64]), EPERM, "the high half is not read");
    }
    for command in [libc::F_GETLEASE, libc::F_SETLKW, libc::F_OFD_GETLK, libc::F_SETFL, libc::F_DUPFD_CLOEXEC] {
        assert_eq!(verdict("fcntl", &[3, command as u64]), Verdict::Allow, "{command}");
    }
}

#[test]
fn no_protocol_is_put_on_top_of_a_connection() {
    let set = |level: libc::c_int, name: libc::c_int| verdict("setsockopt", &[3, level as u64, name as u64]);
    assert_eq!(set(libc::IPPROTO_TCP, libc::TCP_ULP), EPERM);
    assert_eq!(verdict("setsockopt", &[3, 1 << 32 | 6, 1 << 32 | 31]), EPERM, "the high half is not read");
    assert_eq!(set(libc::IPPROTO_TCP, libc::TCP_NODELAY), Verdict::Allow);
    assert_eq!(set(libc::SOL_SOCKET, libc::TCP_ULP), Verdict::Allow, "the same number of another level");
}

#[test]
fn no_key_of_a_connection_names_an_algorithm() {
    for name in [38, 39, 40, 42] {
        assert_eq!(verdict("setsockopt", &[3, libc::IPPROTO_TCP as u64, name]), EPERM, "{name}");
        assert_eq!(verdict("setsockopt", &[3, 1 << 32 | 6, 1 << 32 | name]), EPERM, "the high half is not read");
    }
    for name in [libc::TCP_INQ as u64, 37, 43] {
        assert_eq!(verdict("setsockopt", &[3, libc::IPPROTO_TCP as u64, name]), Verdict::Allow, "{name}");
    }
}

#[test]
fn no_request_to_a_socket_loads_a_module() {
    for request in [0x8940, 0x8941, 0x8980, 0x8981, 0x8982, 0x8983, 0x89a0, 0x89a1] {
        for high in [0, 1, 0xffff_ffff] {
            assert_eq!(verdict("ioctl", &[3, high << 32 | request]), EPERM, "{high:x} {request:#x}");
        }
    }
    for request in [0x893f, 0x8942, 0x897f, 0x8984, 0x899f, 0x89a2] {
        assert_eq!(verdict("ioctl", &[3, request]), Verdict::Allow, "{request:#x}");
    }
}

#[test]
fn no_label_of_a_flow_is_taken_from_the_machine() {
    const FLOWLABEL_MGR: u64 = 32;
    assert_eq!(verdict("setsockopt", &[3, libc::IPPROTO_IPV6 as u64, FLOWLABEL_MGR]), EPERM);
    assert_eq!(verdict("setsockopt", &[3, libc::IPPROTO_IP as u64, FLOWLABEL_MGR]), Verdict::Allow);
}

#[test]
fn no_socket_of_ipv6_joins_a_group() {
    let join = |level: libc::c_int, name: u64| verdict("setsockopt", &[3, level as u64, name]);
    for name in [libc::IPV6_ADD_MEMBERSHIP as u64, 27, 42, 46] {
        assert_eq!(join(libc::IPPROTO_IPV6, name), EPERM, "{name}");
    }
    assert_eq!(join(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY as u64), Verdict::Allow);
    assert_eq!(join(libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP as u64), Verdict::Allow);
}

#[test]
fn no_flag_makes_a_namespace() {
    for flag in [0x80, 0x2_0000, 0x200_0000, 0x400_0000, 0x800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000] {
        assert_eq!(verdict("clone", &[flag | libc::SIGCHLD as u64]), EPERM, "{flag:#x}");
        assert_eq!(verdict("clone", &[flag | 1 << 63]), EPERM, "{flag:#x}");
        assert_eq!(verdict("unshare", &[flag]), EPERM, "{flag:#x}");
        assert_eq!(verdict("unshare", &[flag | libc::CLONE_FS as u64]), EPERM, "{flag:#x}");
        assert_eq!(verdict("setns", &[3, flag]), EPERM, "{flag:#x}");
    }
    assert_eq!(verdict("setns", &[3, 0]), EPERM, "any kind");
    let thread = 0x3d_0f00;
    assert_eq!(verdict("clone", &[thread]), Verdict::Allow);
    assert_eq!(verdict("clone", &[(libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD) as u64]), Verdict::Allow);
    assert_eq!(verdict("unshare", &[(libc::CLONE_FS | libc::CLONE_FILES) as u64]), Verdict::Allow);
    assert_eq!(verdict("unshare", &[1 << 32]), EPERM, "a flag of a later kernel");
}

#[test]
fn clone3_is_for_who_knows_the_secret() {
    let [a, b] = SECRET;
    assert_eq!(verdict("clone3", &[1, 2, 3, 4, a, b]), Verdict::Allow);
    assert_eq!(verdict("clone3", &[1, 2, 3, 4, a ^ 1, b]), Verdict::Allow, "a fifth argument of 32 bits has its place");
    for [c, d] in [[0, 0], [a, 0], [0, b], [a ^ 1 << 32, b], [a ^ 1 << 63, b], [a, b ^ 1], [a, b ^ 1 << 63], [b, a]] {
        assert_eq!(verdict("clone3", &[1, 2, 3, 4, c, d]), ENOSYS, "{c:x} {d:x}");
    }
}

#[test]
fn bits_that_make_a_file_privileged_are_decided_by_who_sees_the_file() {
    let [a, b] = SECRET;
    let modes = [0o4755, 0o2755, 0o6755, 0o4000, 0o2000, 0o10_4755, 1 << 32 | 0o4000];
    let plain = [0, 0o755, 0o1777, 0o10_0644, 0o4000 << 32];
    for (name, before) in [("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2)] {
        let with = |mode| [&vec![7; before][..], &[mode]].concat();
        modes.iter().for_each(|mode| assert_eq!(verdict(name, &with(*mode)), Verdict::Notify, "{name} {mode:o}"));
        plain.iter().for_each(|mode| assert_eq!(verdict(name, &with(*mode)), Verdict::Allow, "{name} {mode:o}"));
    }
    assert_eq!(verdict("fchmodat", &[7, 7, 0o4755, 0, a, b]), Verdict::Allow);
    assert_eq!(verdict("fchmodat2", &[7, 7, 0o4755, 0, a, b]), Verdict::Notify, "a broker does not use it");
    let (create, nameless) = (libc::O_CREAT as u64, libc::O_TMPFILE as u64);
    for (name, before) in [("open", 1), ("openat", 2)] {
        let with = |flags, mode| [&vec![7; before][..], &[flags, mode]].concat();
        for mode in modes {
            assert_eq!(verdict(name, &with(create, mode)), Verdict::Notify, "{name} {mode:o}");
            assert_eq!(verdict(name, &with(create | 0o1101, mode)), Verdict::Notify, "{name} {mode:o}");
            assert_eq!(verdict(name, &with(nameless, mode)), EPERM, "{name} {mode:o}");
            assert_eq!(verdict(name, &with(libc::O_DIRECTORY as u64, mode)), Verdict::Allow, "nothing is made");
        }
        plain.iter().for_each(|mode| assert_eq!(verdict(name, &with(create | nameless, *mode)), Verdict::Allow));
    }
    assert_eq!(verdict("creat", &[7, 0o4755]), Verdict::Notify);
    assert_eq!(verdict("creat", &[7, 0o755]), Verdict::Allow);
    assert_eq!(verdict("mknod", &[7, 0o10_4755]), EPERM);
    assert_eq!(verdict("mknodat", &[7, 7, 0o10_2755]), EPERM);
    assert_eq!(verdict("mknodat", &[7, 7, 0o1_0644]), Verdict::Allow);
    assert_eq!(verdict("openat2", &[7; 4]), ENOSYS);
    assert_eq!(verdict("openat2", &[7, 7, 7, 7, a, b]), Verdict::Allow);
}

#[test]
fn an_attribute_that_can_be_capabilities_or_a_long_list_of_access_is_looked_at() {
    let [a, b] = SECRET;
    for name in ["setxattr", "lsetxattr", "fsetxattr"] {
        for size in [20, 24, 1 << 32 | 20] {
            assert_eq!(verdict(name, &[7, 7, 7, size, 0]), Verdict::Notify, "{name} {size}");
        }
        for size in [0, 1, 12, 19, 21, 23, 25, 28, 36, 255] {
            assert_eq!(verdict(name, &[7, 7, 7, size, 0]), Verdict::Allow, "{name} {size}");
        }
        for size in [256, 260, 1024, 65_536, 1 << 31] {
            assert_eq!(verdict(name, &[7, 7, 7, size, 0]), Verdict::Notify, "{name} {size}");
        }
    }
    let flags = 1;
    assert_eq!(verdict("setxattr", &[7, 7, 7, 24, a & !0xffff_ffff | flags, b]), Verdict::Allow);
    assert_eq!(verdict("setxattrat", &[7; 6]), ENOSYS);
}

#[test]
fn where_labels_are_attributes_each_attribute_is_looked_at() {
    let policy = Policy::embedded().with_labels();
    for name in ["setxattr", "lsetxattr", "fsetxattr"] {
        for size in [0, 20, 27, 36, 255, 256] {
            assert_eq!(verdict_of(&policy, name, &[7, 7, 7, size, 0]), Verdict::Notify, "{name} {size}");
        }
    }
}

#[test]
fn what_a_thread_waits_for_at_once_is_bounded() {
    let einval = Verdict::Errno(libc::EINVAL as u16);
    for (name, place) in [("poll", 1), ("ppoll", 1), ("select", 0), ("pselect6", 0)] {
        let asked = |number| {
            let mut args = [7; 6];
            args[place] = number;
            verdict(name, &args)
        };
        for number in [0, 1, 1023, 1024, 1 << 32] {
            assert_eq!(asked(number), Verdict::Allow, "{name} {number}");
        }
        for number in [1025, 2048, 1 << 31, u64::MAX] {
            assert_eq!(asked(number), einval, "{name} {number}");
        }
    }
}

#[test]
fn wishes_that_others_pay_for_are_not_done() {
    let done = Verdict::Errno(0);
    assert_eq!(verdict("mbind", &[7; 6]), done);
    assert_eq!(verdict("fadvise64", &[7, 0, 0, 4]), done);
    assert_eq!(verdict("fadvise64", &[7, 0, 0, 1 << 32 | 4]), done);
    assert_eq!(verdict("fadvise64", &[7, 0, 0, 3]), Verdict::Allow);
    for (name, place) in [("madvise", 2), ("process_madvise", 3)] {
        let asked = |advice: i32| {
            let mut args = [7; 6];
            args[place] = advice as u64;
            verdict(name, &args)
        };
        assert_eq!([libc::MADV_PAGEOUT, libc::MADV_COLD].map(asked), [done, done], "{name}");
        assert_eq!([libc::MADV_DONTNEED, libc::MADV_WILLNEED].map(asked), [Verdict::Allow; 2], "{name}");
    }
}

#[test]
fn what_file_systems_do_by_numbers_of_their_own_is_absent() {
    const SUBVOL_CREATE: u64 = 0x5000_940e;
    const SUBVOL_SETFLAGS: u64 = 0x4008_941a;
    const BCACHEFS_SUBVOLUME_CREATE: u64 = 0x4020_bc10;
    const XFS_GETBMAP: u64 = 0xc020_5826;
    const SETFLAGS: u64 = 0x4008_6602;
    const EXT4_MIGRATE: u64 = 0x6609;
    for number in [SUBVOL_CREATE, SUBVOL_SETFLAGS, BCACHEFS_SUBVOLUME_CREATE, XFS_GETBMAP, SETFLAGS, EXT4_MIGRATE] {
        assert_eq!(verdict("ioctl", &[7, number]), Verdict::Errno(libc::ENOTTY as u16), "{number:x}");
    }
    const CLONE: u64 = 0x4004_9409;
    const CLONE_RANGE: u64 = 0x4020_940d;
    const DEDUPE_RANGE: u64 = 0xc018_9436;
    const GETFLAGS: u64 = 0x8008_6601;
    const GET_WINDOW_SIZE: u64 = 0x5413;
    for number in [CLONE, CLONE_RANGE, DEDUPE_RANGE, GETFLAGS, GET_WINDOW_SIZE] {
        assert_eq!(verdict("ioctl", &[7, number]), Verdict::Allow, "{number:x}");
    }
}

#[test]
fn init_alone_waits_for_very_many_descriptors() {
    let [upper, sixth] = SECRET;
    let fifth = upper & !u64::from(u32::MAX) | 8;
    assert_eq!(verdict("ppoll", &[7, 5000, 0, 0, fifth, sixth]), Verdict::Allow);
    assert_eq!(verdict("ppoll", &[7, 5000, 0, 0, 8, 0]), Verdict::Errno(libc::EINVAL as u16));
}

#[test]
fn only_the_families_that_programs_live_on_have_sockets() {
    for family in
        [libc::AF_PACKET, libc::AF_VSOCK, libc::AF_ALG, libc::AF_BLUETOOTH, libc::AF_TIPC, libc::AF_KEY, 0, 255]
    {
        assert_eq!(verdict("socket", &[family as u64, 1, 0]), EAFNOSUPPORT, "{family}");
        assert_eq!(verdict("socketpair", &[family as u64, 1, 0]), EAFNOSUPPORT, "{family}");
    }
    let flags = (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as u64;
    for family in [libc::AF_INET, libc::AF_INET6] {
        let family = family as u64;
        assert_eq!(verdict("socket", &[family, 1 | flags, 0]), Verdict::Allow);
        assert_eq!(verdict("socket", &[family, 2 | flags, libc::IPPROTO_UDP as u64]), Verdict::Notify);
        assert_eq!(
            verdict("socket", &[family, 10 | flags, 0]),
            EPROTONOSUPPORT,
            "SOCK_PACKET is AF_PACKET in disguise"
        );
        assert_eq!(verdict("socket", &[family, 5, 0]), EPROTONOSUPPORT, "SOCK_SEQPACKET is SCTP");
        assert_eq!(verdict("socket", &[family, 1, libc::IPPROTO_SCTP as u64]), EPROTONOSUPPORT);
        assert_eq!(verdict("socketpair", &[family, 1, 0]), EAFNOSUPPORT);
    }
    assert_eq!(verdict("socket", &[1, 5 | flags, 0]), Verdict::Allow);
    assert_eq!(verdict("socketpair", &[1, 1, 0]), Verdict::Allow);
    assert_eq!(verdict("socket", &[16, 3, libc::NETLINK_ROUTE as u64]), Verdict::Notify);
    assert_eq!(verdict("socket", &[16, 3, libc::NETLINK_NETFILTER as u64]), EPROTONOSUPPORT);
    assert_eq!(verdict("socket", &[1 << 32 | 17, 3, 0]), EAFNOSUPPORT, "the high half is not read");
}

/// For any other the kernel calls modprobe.
#[test]
fn sockets_are_of_protocols_that_the_kernel_has() {
    let (tcp, udp) = (libc::IPPROTO_TCP as u64, libc::IPPROTO_UDP as u64);
    let (icmp, icmp6) = (libc::IPPROTO_ICMP as u64, libc::IPPROTO_ICMPV6 as u64);
    for (family, own) in [(libc::AF_INET, icmp), (libc::AF_INET6, icmp6)] {
        let made = |kind: i32, protocol| {
            let kind = (kind | libc::SOCK_CLOEXEC) as u64;
            verdict("socket", &[family as u64, 7 << 32 | kind, 7 << 32 | protocol])
        };
        for protocol in [0, tcp, udp, icmp, icmp6, 136, 255] {
            let (stream, datagram) = (made(libc::SOCK_STREAM, protocol), made(libc::SOCK_DGRAM, protocol));
            let has_stream = [0, tcp].contains(&protocol);
            let has_datagram = [0, udp, own].contains(&protocol);
            assert_eq!(stream, if has_stream { Verdict::Allow } else { EPROTONOSUPPORT }, "{family} {protocol}");
            assert_eq!(datagram, if has_datagram { Verdict::Notify } else { EPROTONOSUPPORT }, "{family} {protocol}");
            let raw = if [tcp, udp, icmp, icmp6].contains(&protocol) { EPERM } else { EPROTONOSUPPORT };
            assert_eq!(made(libc::SOCK_RAW, protocol), raw, "{family} {protocol}");
        }
    }
}

#[test]
fn nobody_asks_for_the_tables_of_iptables() {
    for name in ["setsockopt", "getsockopt"] {
        let asked = |level: libc::c_int, option: u64| verdict(name, &[3, 1 << 32 | level as u64, 1 << 32 | option]);
        for option in [64, 65] {
            assert_eq!(asked(libc::IPPROTO_IP, option), EPERM, "{name} {option}");
            assert_eq!(asked(libc::IPPROTO_TCP, option), Verdict::Allow, "{name} {option}");
        }
        for option in [libc::IP_TTL as u64, libc::IP_TOS as u64, 63, 80] {
            assert_eq!(asked(libc::IPPROTO_IP, option), Verdict::Allow, "{name} {option}");
        }
    }
}

#[test]
fn filters_of_programs_are_asked_for_where_they_are_bounded() {
    let mode = u64::from(libc::SECCOMP_MODE_FILTER);
    let by_prctl = |option: u64, mode: u64| ("prctl", [1 << 32 | option, mode]);
    let by_seccomp = |operation: u64| ("seccomp", [1 << 32 | operation, 0]);
    let alone = Policy::embedded().without_broker();
    for (name, args) in [by_seccomp(1), by_prctl(libc::PR_SET_SECCOMP as u64, mode)] {
        assert_eq!(verdict(name, &args), Verdict::Notify, "{name}");
        assert_eq!(verdict_of(&alone, name, &args), Verdict::Allow, "{name}");
    }
    // Strict mode, and questions about what there is.
    let strict = u64::from(libc::SECCOMP_MODE_STRICT);
    for (name, args) in [by_seccomp(0), by_seccomp(2), by_seccomp(3), by_prctl(libc::PR_SET_SECCOMP as u64, strict)] {
        assert_eq!(verdict(name, &args), Verdict::Allow, "{name} {args:x?}");
    }
    assert_eq!(verdict("prctl", &[libc::PR_GET_SECCOMP as u64, mode]), Verdict::Allow);
}

#[test]
fn all_weigh_the_same() {
    let low = |number: i32| u64::from(number as u32);
    for niceness in [0, 1, 19, i32::MAX] {
        assert_eq!(verdict("setpriority", &[0, 0, low(niceness)]), DONE, "{niceness}");
    }
    for niceness in [-1, i32::MIN] {
        assert_eq!(verdict("setpriority", &[0, 0, low(niceness)]), Verdict::Allow, "{niceness}: the kernel decides");
    }
    for policy in [libc::SCHED_IDLE, libc::SCHED_BATCH, libc::SCHED_IDLE | libc::SCHED_RESET_ON_FORK] {
        assert_eq!(verdict("sched_setscheduler", &[0, low(policy)]), DONE, "{policy}");
    }
    assert_eq!(verdict("sched_setscheduler", &[0, low(libc::SCHED_OTHER)]), Verdict::Allow);
    assert_eq!(verdict("sched_setattr", &[]), ENOSYS);
    assert_eq!(verdict("ioprio_set", &[1, 0, 3 << 13 | 7]), DONE);
    assert_eq!(verdict("ioprio_set", &[1, 0, 2 << 13 | 7]), Verdict::Allow);
}

#[test]
fn nobody_types_into_a_terminal_by_ioctl() {
    for request in [0x5412, 0x541c, 0x5423] {
        // The kernel reads the low half alone.
        for high in [0, 1, 0xdead_beef, 0x8000_0000, 0xffff_ffff_u64] {
            assert_eq!(verdict("ioctl", &[0, high << 32 | request]), EPERM, "{high:x} {request:#x}");
        }
    }
    for request in [libc::TCGETS, libc::TIOCGWINSZ, libc::FIONREAD] {
        assert_eq!(verdict("ioctl", &[0x5412, request, 0x5412]), Verdict::Allow);
    }
}

#[test]
fn personality_asks_and_fixes_addresses_but_does_not_weaken_memory() {
    for value in [0, 8, 0x2_0000, 0x2_0008, 0x4_0000, 0xffff_ffff] {
        assert_eq!(verdict("personality", &[value]), Verdict::Allow, "{value:#x}");
    }
    for value in [1, 0x40_0000, 0x10_0000, 0x44_0000, 0x80_0000] {
        assert_eq!(verdict("personality", &[value]), EPERM, "{value:#x}");
    }
}

#[test]
fn programs_of_every_day_have_their_calls() {
    for name in [
        "execve",
        "futex",
        "rseq",
        "membarrier",
        "memfd_create",
        "close_range",
        "faccessat2",
        "statx",
        "pidfd_open",
        "pidfd_send_signal",
        "landlock_create_ruleset",
        "mseal",
        "futex_waitv",
        "epoll_pwait2",
        "process_madvise",
        "ptrace",
        "process_vm_readv",
        "seccomp",
        "chroot",
        "setgroups",
        "prctl",
        "mq_open",
        "shmget",
        "semget",
        "copy_file_range",
        "renameat2",
        "mknodat",
        "inotify_init1",
        "getrandom",
        "map_shadow_stack",
        "set_mempolicy",
        "sync",
    ] {
        assert_eq!(verdict(name, &[]), Verdict::Allow, "{name}");
    }
}

#[test]
fn a_file_that_makes_no_sense_is_refused_with_its_line() {
    for (text, says) in [
        ("allow read\n", "line 1: no `default`"),
        ("default enosys\nallow\n", "line 2: a verdict without a name"),
        ("default enosys\nforbid read\n", "line 2: `forbid` is not a verdict"),
        ("default enosys\nallow read\neperm read\n", "line 3: `read` already has its last word"),
        ("default enosys\nallow read\neperm read if arg0 = 1\n", "line 3: `read` already has its last word"),
        ("default enosys\neperm read if arg0 = 1\n", "line 2: `read` has only conditions"),
        ("default enosys\neperm read if arg6 = 1\n", "line 2: `arg6 = 1` is not a test"),
        ("default enosys\neperm read if arg0 < 1\n", "line 2: `arg0 < 1` is not a test"),
        ("default enosys\neperm read if arg0 = AF_NOWHERE\n", "line 2: `arg0 = AF_NOWHERE` is not a test"),
        ("default enosys\neperm read if arg0 & 1 = 2\n", "line 2: `arg0 & 1 = 2` is not a test that can hold"),
    ] {
        let error = Policy::parse(text).map(|_| ()).unwrap_err().to_string();
        assert!(error.starts_with(says), "{error}");
    }
}
