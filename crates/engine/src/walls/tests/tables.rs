//! The tables of numbers.

use std::collections::{BTreeMap, BTreeSet};

use super::libc_numbers::{BOTH, ONLY_HERE};
use crate::walls::arch::Arch;

fn by_name(arch: Arch) -> BTreeMap<&'static str, u32> {
    arch.syscalls().map(|(number, name)| (name, number)).collect()
}

#[test]
fn each_table_is_read_to_its_last_line_and_rises_without_a_name_twice() {
    for (arch, text) in [
        (Arch::X86_64, include_str!("../syscalls_x86_64.txt")),
        (Arch::AARCH64, include_str!("../syscalls_aarch64.txt")),
    ] {
        let lines = text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(arch.syscalls().count(), lines);
        assert_eq!(by_name(arch).len(), lines);
        assert!(arch.syscalls().map(|(number, _)| number).is_sorted_by(|a, b| a < b));
    }
}

#[test]
fn the_native_table_agrees_with_libc() {
    let table = by_name(Arch::NATIVE);
    for (constant, number) in BOTH.iter().chain(ONLY_HERE) {
        let name = constant.trim_start_matches("SYS_");
        assert_eq!(table.get(name).map(|number| i64::from(*number)), Some(*number), "{name}");
    }
}

#[test]
fn the_arm_table_has_the_known_numbers() {
    let table = by_name(Arch::AARCH64);
    for (name, number) in [
        ("io_setup", 0),
        ("getcwd", 17),
        ("dup3", 24),
        ("ioctl", 29),
        ("mount", 40),
        ("openat", 56),
        ("close", 57),
        ("read", 63),
        ("write", 64),
        ("newfstatat", 79),
        ("fstat", 80),
        ("personality", 92),
        ("unshare", 97),
        ("futex", 98),
        ("ptrace", 117),
        ("rt_sigreturn", 139),
        ("reboot", 142),
        ("prctl", 167),
        ("getpid", 172),
        ("socket", 198),
        ("socketpair", 199),
        ("keyctl", 219),
        ("clone", 220),
        ("execve", 221),
        ("mmap", 222),
        ("perf_event_open", 241),
        ("accept4", 242),
        ("wait4", 260),
        ("setns", 268),
        ("seccomp", 277),
        ("bpf", 280),
        ("execveat", 281),
        ("statx", 291),
        ("rseq", 293),
        ("kexec_file_load", 294),
        ("io_uring_setup", 425),
        ("clone3", 435),
        ("close_range", 436),
        ("openat2", 437),
        ("mount_setattr", 442),
        ("futex_waitv", 449),
        ("mseal", 462),
    ] {
        assert_eq!(table.get(name), Some(&number), "{name}");
    }
}

#[test]
fn from_424_on_both_tables_say_the_same() {
    let newer = |arch: Arch| arch.syscalls().filter(|(number, _)| *number >= 424).collect::<Vec<_>>();
    assert_eq!(newer(Arch::X86_64), newer(Arch::AARCH64));
    assert_eq!(newer(Arch::X86_64).len(), 46);
}

#[test]
fn the_arm_table_has_no_name_that_only_x86_has() {
    let x86: BTreeSet<_> = Arch::X86_64.syscalls().map(|(_, name)| name).collect();
    let arm: BTreeSet<_> = Arch::AARCH64.syscalls().map(|(_, name)| name).collect();
    assert!(arm.is_subset(&x86), "every generic call is on x86 too");
    for name in ["open", "fork", "vfork", "stat", "poll", "pipe", "arch_prctl", "iopl", "modify_ldt", "time", "uselib"]
    {
        assert!(!arm.contains(name), "{name}");
    }
}
