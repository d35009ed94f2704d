//! The tables of numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

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

/// The names and numbers that the kernel's headers of this machine define, by the compiler's preprocessor.
fn of_header(prologue: &str, header: &str) -> BTreeMap<String, u32> {
    let dir = tempfile::tempdir().unwrap();
    let (source, numbers) = (dir.path().join("names.c"), dir.path().join("numbers.c"));
    let preprocess = |file: &std::path::Path, arguments: &[&str]| {
        let output = Command::new("cc").arg("-E").args(arguments).arg(file).output().expect("cc is on this machine");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let include = format!("{prologue}\n#include <{header}>\n");
    std::fs::write(&source, &include).unwrap();
    let macros = preprocess(&source, &["-dM"]);
    let names = macros.lines().filter_map(|line| line.strip_prefix("#define __NR_")?.split(' ').next());
    // Some numbers are other macros: the preprocessor itself says what they come to.
    let questions: String =
        names.filter(|name| *name != "syscalls").map(|name| format!("\"{name}\" __NR_{name}\n")).collect();
    std::fs::write(&numbers, include + &questions).unwrap();
    let answers = preprocess(&numbers, &["-P"]);
    let answer = |line: &str| {
        let (name, number) = line.strip_prefix('"')?.split_once("\" ")?;
        Some((name.to_owned(), number.trim().parse().ok()?))
    };
    answers.lines().filter_map(answer).collect()
}

/// A later kernel's header has more calls at its end, and an earlier one fewer.
fn agrees(arch: Arch, header: &BTreeMap<String, u32>) {
    let table = by_name(arch);
    let last = table.values().copied().max().unwrap_or_default();
    assert!(header.len() > 300, "{}", header.len());
    for (name, number) in header.iter().filter(|(_, number)| **number <= last) {
        assert_eq!(table.get(name.as_str()), Some(number), "{name}");
    }
}

#[test]
fn the_native_table_has_all_of_the_kernels_header() {
    agrees(Arch::NATIVE, &of_header("", "asm/unistd.h"));
}

#[test]
fn the_arm_table_has_all_of_the_kernels_generic_header() {
    // What asm/unistd.h of 64-bit ARM says before it includes the list that architectures share.
    let wishes = ["RENAMEAT", "NEW_STAT", "SET_GET_RLIMIT", "TIME32_SYSCALLS", "SYS_CLONE3", "MEMFD_SECRET"];
    let prologue: String = wishes.iter().map(|wish| format!("#define __ARCH_WANT_{wish}\n")).collect();
    let header = of_header(&prologue, "asm-generic/unistd.h");
    // The range that each architecture may fill itself; 64-bit ARM leaves it empty.
    agrees(Arch::AARCH64, &header.into_iter().filter(|(name, _)| name != "arch_specific_syscall").collect());
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
