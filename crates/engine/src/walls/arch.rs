//! The two architectures: how the kernel names them to a filter, and their system call numbers.
//!
//! A build carries its own architecture only; the tests carry both, so that either is checked on any machine.

use std::ops::RangeInclusive;

/// One way into the kernel: the calls that mean what the policy says.
#[derive(Clone, Copy)]
pub(crate) struct Arch {
    /// What `seccomp_data.arch` says for it: ELF machine, 64 bits, little endian.
    pub(super) audit: u32,
    /// First of the numbers that reach the kernel by another ABI although `audit` is the same.
    foreign_from: Option<u32>,
    /// `number name` a line.
    table: &'static str,
}

const AUDIT_64BIT_LE: u32 = 0xc000_0000;

/// What a tracer puts in place of a call that it wants skipped (`strace -e inject`). Not a call, and not to be killed.
pub(super) const NO_CALL: u32 = u32::MAX;

impl Arch {
    /// x32 is told from 64-bit x86 by a bit in the number alone.
    #[cfg(any(fuzzing, test, target_arch = "x86_64"))]
    pub(crate) const X86_64: Arch = Arch {
        audit: AUDIT_64BIT_LE | 62,
        foreign_from: Some(0x4000_0000),
        table: include_str!("syscalls_x86_64.txt"),
    };

    #[cfg(any(fuzzing, test, target_arch = "aarch64"))]
    pub(crate) const AARCH64: Arch =
        Arch { audit: AUDIT_64BIT_LE | 183, foreign_from: None, table: include_str!("syscalls_aarch64.txt") };

    #[cfg(target_arch = "x86_64")]
    pub(crate) const NATIVE: Arch = Arch::X86_64;
    #[cfg(target_arch = "aarch64")]
    pub(crate) const NATIVE: Arch = Arch::AARCH64;

    /// Numbers and names, rising by number.
    pub(super) fn syscalls(self) -> impl Iterator<Item = (u32, &'static str)> {
        self.table.lines().filter_map(|line| {
            let (number, name) = line.split_once(' ')?;
            Some((number.parse().ok()?, name))
        })
    }

    /// The numbers to kill for.
    pub(super) fn foreign(self) -> Option<RangeInclusive<u32>> {
        self.foreign_from.map(|first| first..=NO_CALL - 1)
    }
}
