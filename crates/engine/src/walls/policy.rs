//! The policy as data: `policy.txt` read into rules. The file itself explains its grammar.

use std::collections::BTreeMap;
use std::fmt;

/// What the kernel does with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allow,
    Errno(u16),
    /// Init is asked, and has a broker make the call.
    Notify,
    /// The whole process, at once: nobody reaches this by accident.
    Kill,
}

/// What stands in the file: a rule for each name, and a verdict for every number without one.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(super) default: Verdict,
    pub(super) rules: BTreeMap<String, Rule>,
}

/// The verdict on one system call: the first clause whose tests all hold, else `otherwise`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) clauses: Vec<Clause>,
    pub(super) otherwise: Verdict,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Clause {
    pub(super) tests: Vec<Test>,
    pub(super) verdict: Verdict,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Test {
    Argument(Argument),
    /// Holds for who has the sandbox's secret in the upper half of the fifth argument and in the sixth.
    Secret,
    /// Holds where init can be asked.
    Broker,
    /// Holds where no security module of the host keeps labels in attributes.
    Unlabelled,
}

/// Holds when `half & mask` is one of `values`, or, with `negated`, none of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Argument {
    pub(super) half: Half,
    pub(super) mask: u32,
    pub(super) negated: bool,
    pub(super) values: Vec<u32>,
}

/// A filter sees arguments as halves of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    Low(u8),
    High(u8),
}

impl Rule {
    pub(super) fn plain(verdict: Verdict) -> Rule {
        Rule { clauses: Vec::new(), otherwise: verdict }
    }
}

impl Clause {
    /// What whoever comes to the next clause has just looked at, and still has as it was.
    pub(super) fn leaves_loaded(&self) -> Option<Half> {
        match self.tests.as_slice() {
            [Test::Argument(Argument { half, mask: u32::MAX, .. })] => Some(*half),
            _ => None,
        }
    }
}

impl Policy {
    /// The policy of every sandbox. That the embedded file is well formed is shown by a test, so no run can meet the
    /// panic; and without its policy a spawner must not go on.
    pub(crate) fn embedded() -> Policy {
        Policy::parse(include_str!("policy.txt")).unwrap_or_else(|error| panic!("walls/policy.txt: {error}"))
    }

    /// The same where init cannot be asked.
    pub(crate) fn without_broker(self) -> Policy {
        self.without(&Test::Broker)
    }

    /// The same where a security module keeps labels in attributes.
    pub(crate) fn with_labels(self) -> Policy {
        self.without(&Test::Unlabelled)
    }

    fn without(mut self, test: &Test) -> Policy {
        for rule in self.rules.values_mut() {
            rule.clauses.retain(|clause| !clause.tests.contains(test));
        }
        self
    }

    pub(crate) fn parse(text: &str) -> Result<Policy, ParseError> {
        let mut default = None;
        let mut open: BTreeMap<String, Vec<Clause>> = BTreeMap::new();
        let mut rules = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let fail = |problem| ParseError { line: index + 1, problem };
            let line = line.split('#').next().unwrap_or_default();
            let Some((verdict, rest)) = line.trim().split_once(' ') else {
                if line.trim().is_empty() {
                    continue;
                }
                return Err(fail(Problem::NoName));
            };
            if verdict == "default" {
                default = Some(verdict_of(rest.trim()).map_err(fail)?);
                continue;
            }
            let verdict = verdict_of(verdict).map_err(fail)?;
            let (names, tests) = match rest.split_once(" if ") {
                Some((names, tests)) => (names, Some(parse_tests(tests).map_err(fail)?)),
                None => (rest, None),
            };
            for name in names.split_whitespace() {
                if rules.contains_key(name) {
                    return Err(fail(Problem::Settled(name.to_owned())));
                }
                match &tests {
                    Some(tests) => {
                        open.entry(name.to_owned()).or_default().push(Clause { tests: tests.clone(), verdict });
                    }
                    None => {
                        let clauses = open.remove(name).unwrap_or_default();
                        rules.insert(name.to_owned(), Rule { clauses, otherwise: verdict });
                    }
                }
            }
        }
        let end = text.lines().count();
        if let Some(name) = open.into_keys().next() {
            return Err(ParseError { line: end, problem: Problem::Unsettled(name) });
        }
        let default = default.ok_or(ParseError { line: end, problem: Problem::NoDefault })?;
        Ok(Policy { default, rules })
    }
}

/// The calls that may be left to a broker, on this architecture.
#[cfg(any(fuzzing, test))]
pub(crate) fn notified() -> Vec<(u32, &'static str)> {
    let policy = Policy::embedded();
    let asks = |rule: &Rule| {
        let clauses = rule.clauses.iter().map(|clause| clause.verdict);
        clauses.chain([rule.otherwise]).any(|verdict| verdict == Verdict::Notify)
    };
    super::arch::Arch::NATIVE.syscalls().filter(|(_, name)| policy.rules.get(*name).is_some_and(asks)).collect()
}

fn verdict_of(word: &str) -> Result<Verdict, Problem> {
    Ok(match word {
        "allow" => Verdict::Allow,
        "done" => Verdict::Errno(0),
        "notify" => Verdict::Notify,
        "eperm" => Verdict::Errno(libc::EPERM as u16),
        "einval" => Verdict::Errno(libc::EINVAL as u16),
        "enosys" => Verdict::Errno(libc::ENOSYS as u16),
        "enotty" => Verdict::Errno(libc::ENOTTY as u16),
        "eafnosupport" => Verdict::Errno(libc::EAFNOSUPPORT as u16),
        "eprotonosupport" => Verdict::Errno(libc::EPROTONOSUPPORT as u16),
        _ => return Err(Problem::Verdict(word.to_owned())),
    })
}

fn parse_tests(text: &str) -> Result<Vec<Test>, Problem> {
    text.split(" and ").map(|test| parse_test(test).ok_or_else(|| Problem::Test(test.trim().to_owned()))).collect()
}

fn parse_test(text: &str) -> Option<Test> {
    match text.trim() {
        "secret" => Some(Test::Secret),
        "broker" => Some(Test::Broker),
        "unlabelled" => Some(Test::Unlabelled),
        text => parse_argument(text).map(Test::Argument),
    }
}

/// `HALF [& [~]MASK] (=|!=) VALUE[,VALUE]...`
fn parse_argument(text: &str) -> Option<Argument> {
    let (half, mask, sign, values) = match *text.split_whitespace().collect::<Vec<_>>() {
        [half, sign, values] => (half, u32::MAX, sign, values),
        [half, "&", mask, sign, values] => (half, parse_mask(mask)?, sign, values),
        _ => return None,
    };
    let negated = match sign {
        "=" => false,
        "!=" => true,
        _ => return None,
    };
    let values = values.split(',').map(parse_value).collect::<Option<Vec<_>>>()?;
    // A value with a bit outside the mask never matches: a rule that looks like a wall and is none.
    let reachable = values.iter().all(|value| value & !mask == 0);
    reachable.then_some(Argument { half: parse_half(half)?, mask, negated, values })
}

fn parse_half(text: &str) -> Option<Half> {
    let (half, index): (fn(u8) -> Half, _) = match text.strip_prefix("arg") {
        Some(index) => (Half::Low, index),
        None => (Half::High, text.strip_prefix("high")?),
    };
    index.parse().ok().filter(|index| *index < 6).map(half)
}

fn parse_mask(text: &str) -> Option<u32> {
    match text.strip_prefix('~') {
        Some(inverted) => parse_value(inverted).map(|mask| !mask),
        None => parse_value(text),
    }
}

fn parse_value(text: &str) -> Option<u32> {
    text.split('+').try_fold(0, |sum, part| Some(sum | parse_part(part)?))
}

fn parse_part(text: &str) -> Option<u32> {
    if let Some(hex) = text.strip_prefix("0x") {
        return u32::from_str_radix(hex, 16).ok();
    }
    text.parse().ok().or_else(|| CONSTANTS.iter().find(|(name, _)| *name == text).map(|(_, value)| *value))
}

/// The kernel's names that the file uses. The same on both architectures.
const CONSTANTS: &[(&str, u32)] = &[
    ("ADDR_NO_RANDOMIZE", libc::ADDR_NO_RANDOMIZE as u32),
    ("AF_INET", libc::AF_INET as u32),
    ("AF_INET6", libc::AF_INET6 as u32),
    ("AF_NETLINK", libc::AF_NETLINK as u32),
    ("AF_UNIX", libc::AF_UNIX as u32),
    ("CLONE_FILES", libc::CLONE_FILES as u32),
    ("CLONE_FS", libc::CLONE_FS as u32),
    ("CLONE_NEWCGROUP", libc::CLONE_NEWCGROUP as u32),
    ("CLONE_NEWIPC", libc::CLONE_NEWIPC as u32),
    ("CLONE_NEWNET", libc::CLONE_NEWNET as u32),
    ("CLONE_NEWNS", libc::CLONE_NEWNS as u32),
    ("CLONE_NEWPID", libc::CLONE_NEWPID as u32),
    ("CLONE_NEWTIME", libc::CLONE_NEWTIME as u32),
    ("CLONE_NEWUSER", libc::CLONE_NEWUSER as u32),
    ("CLONE_NEWUTS", libc::CLONE_NEWUTS as u32),
    ("CLONE_SIGHAND", libc::CLONE_SIGHAND as u32),
    ("CLONE_SYSVSEM", libc::CLONE_SYSVSEM as u32),
    ("CLONE_THREAD", libc::CLONE_THREAD as u32),
    ("CLONE_VM", libc::CLONE_VM as u32),
    ("FICLONE", 0x4004_9409),
    ("FICLONERANGE", 0x4020_940d),
    ("FIDEDUPERANGE", 0xc018_9436),
    ("FS_IOC_FIEMAP", 0xc020_660b),
    ("FS_IOC_FSGETXATTR", 0x801c_581f),
    ("FS_IOC_GETFLAGS", 0x8008_6601),
    ("F_OFD_SETLK", libc::F_OFD_SETLK as u32),
    ("F_OFD_SETLKW", libc::F_OFD_SETLKW as u32),
    ("F_SETDELEG", 1040),
    ("F_SETLEASE", libc::F_SETLEASE as u32),
    ("IOPRIO_WHO_USER", 3),
    ("IPPROTO_ICMP", libc::IPPROTO_ICMP as u32),
    ("IPPROTO_ICMPV6", libc::IPPROTO_ICMPV6 as u32),
    ("IPPROTO_IP", libc::IPPROTO_IP as u32),
    ("IPPROTO_IPV6", libc::IPPROTO_IPV6 as u32),
    ("IPPROTO_TCP", libc::IPPROTO_TCP as u32),
    ("IPPROTO_UDP", libc::IPPROTO_UDP as u32),
    ("IPV6_ADD_MEMBERSHIP", libc::IPV6_ADD_MEMBERSHIP as u32),
    ("IPV6_FLOWLABEL_MGR", 32),
    ("IPV6_JOIN_ANYCAST", 27),
    ("IPV6_RECVERR", libc::IPV6_RECVERR as u32),
    ("IPT_SO_SET_ADD_COUNTERS", 65), // IPT_SO_GET_ENTRIES, where one asks
    ("IPT_SO_SET_REPLACE", 64),      // IPT_SO_GET_INFO
    ("IP_RECVERR", libc::IP_RECVERR as u32),
    ("MADV_COLD", libc::MADV_COLD as u32),
    ("MADV_MERGEABLE", libc::MADV_MERGEABLE as u32),
    ("MADV_PAGEOUT", libc::MADV_PAGEOUT as u32),
    ("MAP_HUGETLB", libc::MAP_HUGETLB as u32),
    ("MCAST_JOIN_GROUP", 42),
    ("MCAST_JOIN_SOURCE_GROUP", 46),
    ("MFD_HUGETLB", libc::MFD_HUGETLB),
    ("MSG_OOB", libc::MSG_OOB as u32),
    ("NETLINK_ROUTE", libc::NETLINK_ROUTE as u32),
    ("O_CREAT", libc::O_CREAT as u32),
    ("O_EXCL", libc::O_EXCL as u32),
    // Without O_DIRECTORY, which is another bit on each architecture.
    ("O_TMPFILE", (libc::O_TMPFILE & !libc::O_DIRECTORY) as u32),
    ("PER_LINUX32", 8),
    ("POSIX_FADV_DONTNEED", libc::POSIX_FADV_DONTNEED as u32),
    ("PRIO_USER", libc::PRIO_USER),
    ("PR_SCHED_CORE", libc::PR_SCHED_CORE as u32),
    ("PR_SET_MEMORY_MERGE", libc::PR_SET_MEMORY_MERGE as u32),
    ("PR_SET_SECCOMP", libc::PR_SET_SECCOMP as u32),
    ("PTRACE_O_TRACEEXIT", libc::PTRACE_O_TRACEEXIT as u32),
    ("PTRACE_OLDSETOPTIONS", 21),
    ("PTRACE_SEIZE", libc::PTRACE_SEIZE),
    ("PTRACE_SETOPTIONS", libc::PTRACE_SETOPTIONS),
    ("RLIMIT_CORE", libc::RLIMIT_CORE),
    ("SCHED_BATCH", libc::SCHED_BATCH as u32),
    ("SCHED_IDLE", libc::SCHED_IDLE as u32),
    ("SCHED_RESET_ON_FORK", libc::SCHED_RESET_ON_FORK as u32),
    ("SECCOMP_MODE_FILTER", libc::SECCOMP_MODE_FILTER),
    ("SECCOMP_SET_MODE_FILTER", libc::SECCOMP_SET_MODE_FILTER),
    ("SIOCADDDLCI", 0x8980),
    ("SIOCBRADDBR", 0x89a0),
    ("SIOCGIFBR", 0x8940),
    ("SIOCGIFVLAN", 0x8982),
    ("SOCK_DGRAM", libc::SOCK_DGRAM as u32),
    ("SOCK_RAW", libc::SOCK_RAW as u32),
    ("SOCK_STREAM", libc::SOCK_STREAM as u32),
    ("SOL_SOCKET", libc::SOL_SOCKET as u32),
    ("SO_ATTACH_BPF", libc::SO_ATTACH_BPF as u32),
    ("SO_ATTACH_FILTER", libc::SO_ATTACH_FILTER as u32),
    ("SO_ATTACH_REUSEPORT_CBPF", libc::SO_ATTACH_REUSEPORT_CBPF as u32),
    ("SO_ATTACH_REUSEPORT_EBPF", libc::SO_ATTACH_REUSEPORT_EBPF as u32),
    ("SO_LINGER", libc::SO_LINGER as u32),
    ("SO_RCVBUF", libc::SO_RCVBUF as u32),
    ("SO_TIMESTAMPING", libc::SO_TIMESTAMPING as u32),
    ("SO_TIMESTAMPING_NEW", 65),
    ("SO_ZEROCOPY", libc::SO_ZEROCOPY as u32),
    ("S_ISGID", libc::S_ISGID),
    ("S_ISUID", libc::S_ISUID),
    ("TCP_AO_ADD_KEY", 38),
    ("TCP_AO_DEL_KEY", 39),
    ("TCP_AO_INFO", 40),
    ("TCP_AO_REPAIR", 42),
    ("TCP_ULP", libc::TCP_ULP as u32),
    ("TIOCLINUX", libc::TIOCLINUX as u32),
    ("TIOCSETD", 0x5423),
    ("TIOCSTI", libc::TIOCSTI as u32),
    ("UNAME26", libc::UNAME26 as u32),
];

/// Where the text stops making sense, and how.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ParseError {
    line: usize,
    problem: Problem,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Problem {
    NoDefault,
    NoName,
    Settled(String),
    Test(String),
    Unsettled(String),
    Verdict(String),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: ", self.line)?;
        match &self.problem {
            Problem::NoDefault => write!(f, "no `default` in the whole file: say what unknown calls get"),
            Problem::NoName => write!(f, "a verdict without a name: name the calls it is for"),
            Problem::Settled(name) => write!(f, "`{name}` already has its last word: put this line before it"),
            Problem::Test(test) => write!(f, "`{test}` is not a test that can hold: write `argN [& MASK] = VALUE`"),
            Problem::Unsettled(name) => write!(f, "`{name}` has only conditions: end it with a line without `if`"),
            Problem::Verdict(word) => write!(f, "`{word}` is not a verdict"),
        }
    }
}
