//! The kernel's filter machine, as far as our programs use it, and the policy read directly: two ways to one verdict.

use std::collections::BTreeMap;

use libc::sock_filter;

use crate::walls::arch::{Arch, NO_CALL};
use crate::walls::policy::{Argument, Half, Policy, Rule, Test, Verdict};

#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) arch: u32,
    pub(super) number: u32,
    pub(super) args: [u64; 6],
}

pub(super) struct Run {
    pub(super) verdict: Verdict,
    /// Instructions executed.
    pub(super) steps: usize,
}

/// Executes `program` on `call`. Panics where the kernel would refuse the program.
pub(super) fn run(program: &[sock_filter], call: &Call) -> Run {
    let (mut accumulator, mut index, mut at, mut steps) = (0_u32, 0, 0, 0);
    loop {
        let instruction = &program[at];
        let k = instruction.k;
        at += 1;
        steps += 1;
        let skip = |holds| usize::from(if holds { instruction.jt } else { instruction.jf });
        match instruction.code {
            0x20 => accumulator = field(call, k),
            0x54 => accumulator &= k,
            0x14 => accumulator = accumulator.wrapping_sub(k),
            0x4c => accumulator |= index,
            0x07 => index = accumulator,
            0x05 => at += k as usize,
            0x15 => at += skip(accumulator == k),
            0x35 => at += skip(accumulator >= k),
            0x06 => return Run { verdict: verdict(k), steps },
            other => panic!("instruction {} has the unknown code {other:#x}", at - 1),
        }
    }
}

/// The most instructions that any call can cost, known or not: over all paths, whatever the arguments.
pub(super) fn longest_path(program: &[sock_filter]) -> usize {
    // Jumps only go forward, so from the end on everything that a place leads to is known.
    let mut longest = vec![0_usize; program.len()];
    for at in (0..program.len()).rev() {
        let instruction = &program[at];
        let next = at + 1;
        longest[at] = 1 + match instruction.code {
            0x06 => 0,
            0x05 => longest[next + instruction.k as usize],
            0x15 | 0x35 => longest[next + usize::from(instruction.jt)].max(longest[next + usize::from(instruction.jf)]),
            _ => longest[next],
        };
    }
    longest[0]
}

/// A 32-bit word of `struct seccomp_data`, by its offset.
fn field(call: &Call, offset: u32) -> u32 {
    match offset {
        0 => call.number,
        4 => call.arch,
        16.. if offset.is_multiple_of(4) => {
            let arg = call.args[(offset as usize - 16) / 8];
            if offset.is_multiple_of(8) { arg as u32 } else { (arg >> 32) as u32 }
        }
        _ => panic!("nothing to load at {offset}"),
    }
}

fn verdict(k: u32) -> Verdict {
    match k {
        0x7fff_0000 => Verdict::Allow,
        0x7fc0_0000 => Verdict::Notify,
        0x8000_0000 => Verdict::Kill,
        _ if k >> 16 == 5 => Verdict::Errno(k as u16),
        _ => panic!("{k:#x} is not a verdict of ours"),
    }
}

/// The policy at the door of one architecture, read without any program.
pub(super) struct Direct<'a> {
    arch: Arch,
    default: Verdict,
    rules: BTreeMap<u32, &'a Rule>,
    secret: [u64; 2],
}

impl<'a> Direct<'a> {
    pub(super) fn new(arch: Arch, policy: &'a Policy, secret: [u64; 2]) -> Self {
        let rules = arch.syscalls().filter_map(|(number, name)| Some((number, policy.rules.get(name)?))).collect();
        Direct { arch, default: policy.default, rules, secret }
    }

    pub(super) fn rule(&self, number: u32) -> Option<&'a Rule> {
        self.rules.get(&number).copied()
    }

    pub(super) fn decide(&self, call: &Call) -> Verdict {
        let foreign = self.arch.foreign().is_some_and(|foreign| foreign.contains(&call.number));
        if call.arch != self.arch.audit || foreign {
            return Verdict::Kill;
        }
        let Some(rule) = self.rule(call.number) else { return self.default };
        let clause = rule.clauses.iter().find(|clause| clause.tests.iter().all(|test| self.holds(test, &call.args)));
        clause.map_or(rule.otherwise, |clause| clause.verdict)
    }

    fn holds(&self, test: &Test, args: &[u64; 6]) -> bool {
        match test {
            Test::Argument(test) => argument_holds(test, args),
            Test::Broker | Test::Unlabelled => true,
            Test::Secret => args[4] >> 32 == self.secret[0] >> 32 && args[5] == self.secret[1],
        }
    }
}

fn argument_holds(test: &Argument, args: &[u64; 6]) -> bool {
    let half = match test.half {
        Half::Low(index) => args[usize::from(index)] & 0xffff_ffff,
        Half::High(index) => args[usize::from(index)] >> 32,
    };
    let masked = half & u64::from(test.mask);
    test.values.iter().any(|value| u64::from(*value) == masked) != test.negated
}

/// The numbers worth trying: all that any kernel has, and the edges of the rest.
pub(super) fn numbers() -> impl Iterator<Item = u32> {
    let edges = [0x3fff_ffff, 0x4000_0000, 0x4000_0001, 0x4000_0200, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, NO_CALL];
    (0..=1024).chain([4096, 65_535]).chain(edges)
}
