//! From the policy to a filter program: a search tree over the system call numbers, with the argument tests as leaves.
//!
//! The kernel walks a filter once for each system call number when it is installed, to learn which are always allowed.
//! A chain of comparisons makes that walk, which every new sandbox pays, ten times as long as a tree does.
//!
//! The program is written from its end: a jump only goes forward, so when it is written its targets already stand.

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_MISC, BPF_OR, BPF_RET, BPF_SUB,
    BPF_TAX, BPF_W, BPF_X, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_USER_NOTIF,
    sock_filter,
};

use super::arch::{Arch, NO_CALL};
use super::policy::{Argument, Clause, Half, Policy, Rule, Test, Verdict};

/// Where the fields of `struct seccomp_data` lie.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGS: u32 = 16;

/// A program that still lacks the secret, which each sandbox has of its own.
pub(crate) struct Filter {
    code: Vec<sock_filter>,
    /// Which instructions take which word of the secret.
    keyholes: Vec<(usize, usize)>,
}

impl Filter {
    /// What the kernel takes.
    pub(crate) fn program(&self, secret: [u64; 2]) -> Vec<sock_filter> {
        let [fifth, sixth] = secret;
        let words = [fifth as u32, (fifth >> 32) as u32, sixth as u32, (sixth >> 32) as u32];
        let mut program = self.code.clone();
        for (at, word) in &self.keyholes {
            program[*at].k = words[*word];
        }
        program
    }
}

/// The filter for `arch` that decides as `policy` says, and kills what comes by another architecture's door.
pub(crate) fn compile(arch: Arch, policy: &Policy) -> Filter {
    let ranges = ranges(arch, policy);
    let mut program = Reversed::default();
    let tree = program.tree(&ranges);
    let load_number = program.load(NUMBER, tree);
    let kill = program.ret(Verdict::Kill);
    let arch_is_ours = program.branch(BPF_JEQ, arch.audit, load_number, kill);
    program.load(ARCH, arch_is_ours);
    program.finish()
}

/// The numbers from `first` up to the next range.
struct Range {
    first: u32,
    rule: Rule,
}

/// All numbers there are, as few ranges as possible, rising.
fn ranges(arch: Arch, policy: &Policy) -> Vec<Range> {
    let default = Rule::plain(policy.default);
    let mut ranges = Ranges::default();
    let mut next = 0;
    for (number, name) in arch.syscalls() {
        if next < number {
            ranges.push(next, default.clone());
        }
        ranges.push(number, policy.rules.get(name).unwrap_or(&default).clone());
        next = number + 1;
    }
    ranges.push(next, default.clone());
    if let Some(foreign) = arch.foreign() {
        ranges.push(*foreign.start(), Rule::plain(Verdict::Kill));
        ranges.push(NO_CALL, default);
    }
    ranges.0
}

#[derive(Default)]
struct Ranges(Vec<Range>);

impl Ranges {
    fn push(&mut self, first: u32, rule: Rule) {
        if self.0.last().is_none_or(|last| last.rule != rule) {
            self.0.push(Range { first, rule });
        }
    }
}

/// How many instructions there are from a place to the end: it stays true while more are written before it.
type Label = usize;

/// Conditional jumps have eight bits for each side. One less, since the long jump that bridges one side pushes the
/// other away.
const REACH: usize = 254;

/// The program, last instruction first.
#[derive(Default)]
struct Reversed {
    code: Vec<sock_filter>,
    rets: Vec<(Verdict, Label)>,
    keyholes: Vec<(Label, usize)>,
}

impl Reversed {
    fn tree(&mut self, ranges: &[Range]) -> Label {
        if let [range] = ranges {
            return self.rule(&range.rule);
        }
        let (low, high) = ranges.split_at(ranges.len() / 2);
        let pivot = high[0].first;
        let high = self.tree(high);
        let low = self.tree(low);
        self.branch(BPF_JGE, pivot, high, low)
    }

    fn rule(&mut self, rule: &Rule) -> Label {
        let otherwise = self.ret(rule.otherwise);
        let before = |index: usize| index.checked_sub(1).and_then(|before| rule.clauses[before].leaves_loaded());
        let clauses = rule.clauses.iter().enumerate().rev();
        clauses.fold(otherwise, |otherwise, (index, clause)| self.clause(clause, otherwise, before(index)))
    }

    /// `loaded` is what the clause before it has looked at: nothing else leads here.
    fn clause(&mut self, clause: &Clause, otherwise: Label, loaded: Option<Half>) -> Label {
        let holds = self.ret(clause.verdict);
        clause.tests.iter().enumerate().rev().fold(holds, |holds, (index, test)| match test {
            Test::Argument(test) => self.argument(test, holds, otherwise, index == 0 && loaded == Some(test.half)),
            Test::Secret => self.secret(holds, otherwise),
            Test::Broker | Test::Unlabelled => holds,
        })
    }

    /// The upper half of the fifth argument, and the sixth: some of the calls that ask for it have a fifth of 32 bits.
    ///
    /// The words' differences are gathered and looked at once, at the end: with a jump after each word the time it
    /// takes would tell which words were right, and a word alone can be guessed.
    fn secret(&mut self, holds: Label, fails: Label) -> Label {
        let mut start = self.branch(BPF_JEQ, 0, holds, fails);
        for word in (1..4).rev() {
            let first = word == 1;
            if !first {
                self.push(BPF_ALU | BPF_OR | BPF_X, 0, 0, 0);
            }
            let keyhole = self.push(BPF_ALU | BPF_SUB | BPF_K, 0, 0, 0);
            self.keyholes.push((keyhole, word));
            start = self.push(BPF_LD | BPF_W | BPF_ABS, ARGS + 4 * 8 + 4 * word as u32, 0, 0);
            if !first {
                start = self.push(BPF_MISC | BPF_TAX, 0, 0, 0);
            }
        }
        start
    }

    fn argument(&mut self, test: &Argument, holds: Label, fails: Label, is_loaded: bool) -> Label {
        let (found, absent) = if test.negated { (fails, holds) } else { (holds, fails) };
        let compare =
            test.values.iter().rev().fold(absent, |absent, value| self.branch(BPF_JEQ, *value, found, absent));
        let masked = match test.mask {
            u32::MAX => compare,
            mask => {
                self.goto(compare);
                self.push(BPF_ALU | BPF_AND | BPF_K, mask, 0, 0)
            }
        };
        if is_loaded {
            return masked;
        }
        // Little endian, as both architectures are.
        let offset = match test.half {
            Half::Low(index) => ARGS + 8 * u32::from(index),
            Half::High(index) => ARGS + 8 * u32::from(index) + 4,
        };
        self.load(offset, masked)
    }

    fn load(&mut self, offset: u32, then: Label) -> Label {
        self.goto(then);
        self.push(BPF_LD | BPF_W | BPF_ABS, offset, 0, 0)
    }

    fn branch(&mut self, comparison: u32, value: u32, holds: Label, fails: Label) -> Label {
        let holds = self.near(holds);
        let fails = self.near(fails);
        // A jump cut short would be a hole in the wall: rather no filter at all.
        let skip = |label| u8::try_from(self.distance(label)).expect("`near` keeps it within reach");
        let (jt, jf) = (skip(holds), skip(fails));
        self.push(BPF_JMP | comparison | BPF_K, value, jt, jf)
    }

    /// The end of every path. One serves all that can reach it.
    fn ret(&mut self, verdict: Verdict) -> Label {
        let known = self.rets.iter().rev().find(|(of, _)| *of == verdict).map(|(_, label)| *label);
        if let Some(label) = known.filter(|label| self.distance(*label) <= REACH) {
            return label;
        }
        let value = match verdict {
            Verdict::Allow => SECCOMP_RET_ALLOW,
            Verdict::Errno(errno) => SECCOMP_RET_ERRNO | u32::from(errno),
            Verdict::Kill => SECCOMP_RET_KILL_PROCESS,
            Verdict::Notify => SECCOMP_RET_USER_NOTIF,
        };
        let label = self.push(BPF_RET | BPF_K, value, 0, 0);
        self.rets.push((verdict, label));
        label
    }

    /// The same place, or a long jump to it.
    fn near(&mut self, label: Label) -> Label {
        if self.distance(label) <= REACH { label } else { self.jump(label) }
    }

    /// Makes the next instruction written flow into `label`.
    fn goto(&mut self, label: Label) {
        if self.distance(label) > 0 {
            self.jump(label);
        }
    }

    fn jump(&mut self, label: Label) -> Label {
        self.push(BPF_JMP | BPF_JA, self.distance(label) as u32, 0, 0)
    }

    /// What a jump written now has to skip.
    fn distance(&self, label: Label) -> usize {
        self.code.len() - label
    }

    fn push(&mut self, code: u32, k: u32, jt: u8, jf: u8) -> Label {
        self.code.push(sock_filter { code: code as u16, jt, jf, k });
        self.code.len()
    }

    fn finish(mut self) -> Filter {
        self.code.reverse();
        let keyholes = self.keyholes.iter().map(|(label, word)| (self.code.len() - label, *word)).collect();
        Filter { code: self.code, keyholes }
    }
}
