//! The program decides as the policy does, and stays short.

use proptest::array::uniform6;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;

use super::machine::{Call, Direct, longest_path, numbers, run};
use crate::walls::arch::Arch;
use crate::walls::bpf::compile;
use crate::walls::policy::{Argument, Clause, Half, Policy, Rule, Test, Verdict};

const ARCHES: [Arch; 2] = [Arch::X86_64, Arch::AARCH64];

const SECRET: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];

/// The longest program that the kernel takes.
const KERNEL_MAX: usize = 4096;

/// Argument lists that make each test of `rule` hold and fail, alone and with the others.
fn telling_args(rule: Option<&Rule>) -> Vec<[u64; 6]> {
    let mut lists = vec![[0; 6], [u64::MAX; 6]];
    let tests = rule.into_iter().flat_map(|rule| rule.clauses.iter().flat_map(|clause| &clause.tests));
    for test in tests {
        let test = match test {
            Test::Argument(test) => test,
            Test::Secret => {
                lists.extend(near_secrets());
                continue;
            }
            Test::Broker | Test::Unlabelled => continue,
        };
        let (index, shift) = match test.half {
            Half::Low(index) => (usize::from(index), 0),
            Half::High(index) => (usize::from(index), 32),
        };
        let near = test.values.iter().flat_map(|value| [*value, value ^ 1, value | !test.mask, value.wrapping_add(1)]);
        let bits = (0..32).map(|bit| 1 << bit);
        let mut more = Vec::new();
        for value in near.chain(bits) {
            more.extend(lists.iter().take(512).map(|list| {
                let mut list = *list;
                list[index] = list[index] & !(0xffff_ffff << shift) | u64::from(value) << shift;
                list
            }));
        }
        lists.extend(more);
        lists.sort_unstable();
        lists.dedup();
    }
    lists
}

/// The secret, and the secret with each one of its bits wrong.
fn near_secrets() -> impl Iterator<Item = [u64; 6]> {
    let [a, b] = SECRET;
    let wrong = (0..64).flat_map(move |bit| [[a ^ 1 << bit, b], [a, b ^ 1 << bit]]);
    wrong.chain([[a, b], [b, a], [a, 0], [0, b]]).map(|[a, b]| [0, 0, 0, 0, a, b])
}

#[test]
fn the_program_decides_every_call_as_the_policy_does() {
    let policy = Policy::embedded();
    for arch in ARCHES {
        let (program, direct) = (compile(arch, &policy).program(SECRET), Direct::new(arch, &policy, SECRET));
        for number in numbers() {
            for args in telling_args(direct.rule(number)) {
                let call = Call { arch: arch.audit, number, args };
                assert_eq!(run(&program, &call).verdict, direct.decide(&call), "{call:x?}");
            }
        }
    }
}

#[test]
fn another_architecture_is_killed_whatever_it_asks() {
    let [x86, arm] = ARCHES.map(|arch| arch.audit);
    let (i386, arm32) = (0x4000_0003, 0x4000_0028);
    for arch in ARCHES {
        let program = compile(arch, &Policy::embedded()).program(SECRET);
        for audit in [x86, arm, i386, arm32, 0, u32::MAX].into_iter().filter(|audit| *audit != arch.audit) {
            for number in numbers() {
                let call = Call { arch: audit, number, args: [0; 6] };
                assert_eq!(run(&program, &call).verdict, Verdict::Kill, "{call:x?}");
            }
        }
    }
}

#[test]
fn x32_is_killed_and_a_call_that_a_tracer_took_back_is_not() {
    let program = compile(Arch::X86_64, &Policy::embedded()).program(SECRET);
    let verdict = |number| run(&program, &Call { arch: Arch::X86_64.audit, number, args: [0; 6] }).verdict;
    for (number, _) in Arch::X86_64.syscalls() {
        assert_eq!(verdict(0x4000_0000 | number), Verdict::Kill, "{number}");
    }
    assert_eq!(verdict(u32::MAX - 1), Verdict::Kill);
    assert_eq!(verdict(u32::MAX), Verdict::Errno(libc::ENOSYS as u16));
}

#[test]
fn the_program_is_a_short_tree() {
    let policy = Policy::embedded();
    for arch in ARCHES {
        let (program, direct) = (compile(arch, &policy).program(SECRET), Direct::new(arch, &policy, SECRET));
        let (mut longest, mut plain) = (0, Vec::new());
        for number in numbers() {
            for args in telling_args(direct.rule(number)) {
                let run = run(&program, &Call { arch: arch.audit, number, args });
                longest = longest.max(run.steps);
                if args == [0; 6] && direct.rule(number).is_some_and(|rule| rule.clauses.is_empty()) {
                    plain.push(run.steps);
                }
            }
        }
        let average = plain.iter().sum::<usize>() as f64 / plain.len() as f64;
        println!("{:x}: {} instructions, at most {longest} run, {average:.1} on average", arch.audit, program.len());
        assert!(program.len() < 600, "{} instructions", program.len());
        let (any, allowed) = (longest_path(&program), most_steps(arch, &policy));
        assert!(longest <= any, "{longest} steps were taken, and no path has more than {any}");
        // A comparison leads at most 255 instructions further: beyond that there is a jump on the way.
        let allowed = allowed + 1;
        assert!(any <= allowed && allowed <= 66, "{any} steps on the longest path, and {allowed} for a balanced tree");
        assert!(average < 15.0, "{average} steps on average");
    }
}

/// What a balanced tree costs at most: one comparison a level, and the longest rule at its end.
fn most_steps(arch: Arch, policy: &Policy) -> usize {
    let to_the_number = 3; // load the architecture, compare it, load the number
    let levels = ranges(arch, policy).next_power_of_two().ilog2() as usize;
    let rule = policy.rules.values().map(rule_steps).max().unwrap_or_default();
    let answer = 1;
    to_the_number + levels + rule + answer
}

/// How often the rule changes from one number to the next.
fn ranges(arch: Arch, policy: &Policy) -> usize {
    let direct = Direct::new(arch, policy, SECRET);
    let default = Rule::plain(policy.default);
    let rules: Vec<_> = (0..=1024).map(|number| direct.rule(number).unwrap_or(&default)).collect();
    let changes = rules.windows(2).filter(|pair| pair[0] != pair[1]).count();
    let beyond = if arch.foreign().is_some() { 2 } else { 0 };
    changes + 1 + beyond
}

/// Every test of a rule looked at: its load, its mask, each of its values. What the clause before has loaded is not loaded again.
fn rule_steps(rule: &Rule) -> usize {
    let tests = rule.clauses.iter().flat_map(|clause| &clause.tests);
    let again = |pair: &&[Clause]| {
        let first = |clause: &Clause| match clause.tests.first() {
            Some(Test::Argument(test)) => Some(test.half),
            _ => None,
        };
        pair[0].leaves_loaded().is_some_and(|half| first(&pair[1]) == Some(half))
    };
    let loaded = rule.clauses.windows(2).filter(again).count();
    let steps: usize = tests
        .map(|test| match test {
            Test::Argument(test) => 1 + usize::from(test.mask != u32::MAX) + test.values.len(),
            // Each word is loaded and compared, all but the first are joined to it, and one jump decides.
            Test::Secret => 3 * 2 + 2 * 2 + 1,
            Test::Broker | Test::Unlabelled => 0,
        })
        .sum();
    steps - loaded
}

fn any_verdict() -> impl Strategy<Value = Verdict> {
    prop_oneof![Just(Verdict::Allow), Just(Verdict::Notify), Just(Verdict::Kill), (1_u16..4).prop_map(Verdict::Errno)]
}

/// Few values, so that tests hold about as often as they fail.
fn any_word() -> impl Strategy<Value = u32> {
    select(vec![0, 1, 2, 3, 0x8000_0000, u32::MAX])
}

fn any_argument() -> impl Strategy<Value = Argument> {
    let half = (0_u8..6, any::<bool>()).prop_map(|(index, low)| if low { Half::Low(index) } else { Half::High(index) });
    (half, select(vec![1, 3, 0xff, 0x8000_0000, u32::MAX]), any::<bool>(), vec(any_word(), 1..5))
        .prop_map(|(half, mask, negated, values)| Argument { half, mask, negated, values })
}

fn any_test() -> impl Strategy<Value = Test> {
    prop_oneof![4 => any_argument().prop_map(Test::Argument), 1 => Just(Test::Secret)]
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let clause = (vec(any_test(), 1..4), any_verdict()).prop_map(|(tests, verdict)| Clause { tests, verdict });
    let with_clauses = (vec(clause, 1..4), any_verdict()).prop_map(|(clauses, otherwise)| Rule { clauses, otherwise });
    prop_oneof![3 => any_verdict().prop_map(Rule::plain), 1 => with_clauses]
}

fn any_policy(arch: Arch) -> impl Strategy<Value = Policy> {
    let name = select(arch.syscalls().map(|(_, name)| name.to_owned()).collect::<Vec<_>>());
    (any_verdict(), btree_map(name, any_rule(), 0..300)).prop_map(|(default, rules)| Policy { default, rules })
}

fn any_args() -> impl Strategy<Value = Vec<[u64; 6]>> {
    let arg = (any_word(), any_word()).prop_map(|(low, high)| u64::from(high) << 32 | u64::from(low));
    vec(uniform6(arg), 8)
}

/// The last of the lists has the secret in it.
fn check_policy(arch: Arch, policy: &Policy, arguments: &[[u64; 6]]) -> Result<(), TestCaseError> {
    let secret = arguments.last().map_or(SECRET, |args| [args[4], args[5]]);
    let (program, direct) = (compile(arch, policy).program(secret), Direct::new(arch, policy, secret));
    prop_assert!(program.len() <= KERNEL_MAX, "{} instructions", program.len());
    for number in numbers() {
        for args in arguments {
            let call = Call { arch: arch.audit, number, args: *args };
            prop_assert_eq!(run(&program, &call).verdict, direct.decide(&call), "{:x?}", call);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_policy_of_x86_is_compiled_to_what_it_says(policy in any_policy(Arch::X86_64), args in any_args()) {
        check_policy(Arch::X86_64, &policy, &args)?;
    }

    #[test]
    fn any_policy_of_arm_is_compiled_to_what_it_says(policy in any_policy(Arch::AARCH64), args in any_args()) {
        check_policy(Arch::AARCH64, &policy, &args)?;
    }
}
