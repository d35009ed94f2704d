//! What a crawler printed, as the lists say it: with the names of system calls, and compared with this process, which is the
//! server, where a number alone would say something of the machine or of how the tests were started.

use std::{collections::BTreeSet, fs};

use rustix::process::{Resource, getpriority_process, getrlimit};

pub(crate) fn things(text: &str) -> BTreeSet<String> {
    text.lines().map(|line| normalise(line.trim())).collect()
}

fn normalise(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    match words.as_slice() {
        ["call", answer, number] => format!("call {answer} {}", name_of_call(number)),
        ["namespace", name, which] => format!("namespace {name} {}", whose(name, which)),
        ["rlimit", name, hard] => format!("rlimit {name} {}", compare_limit(name, hard)),
        ["identity", "nice", nice] => format!("identity nice {}", compare(nice, &nice_of_server())),
        _ => line.to_owned(),
    }
}

#[cfg(target_arch = "x86_64")]
const CALLS: &str = include_str!("../../../../crates/engine/src/walls/syscalls_x86_64.txt");
#[cfg(target_arch = "aarch64")]
const CALLS: &str = include_str!("../../../../crates/engine/src/walls/syscalls_aarch64.txt");

fn name_of_call(number: &str) -> String {
    let known = CALLS.lines().find_map(|line| line.split_once(' ').filter(|(known, _)| *known == number));
    known.map_or_else(|| format!("number-{number}"), |(_, name)| name.to_owned())
}

/// A namespace is the host's if this very process is in it.
pub(crate) fn whose(name: &str, which: &str) -> &'static str {
    match fs::read_link(format!("/proc/self/ns/{name}")) {
        Ok(ours) if ours.as_os_str() == which => "host",
        _ => "own",
    }
}

fn compare(inside: &str, of_server: &str) -> String {
    if inside == of_server { "server's".to_owned() } else { inside.to_owned() }
}

/// A better one than usual is not handed down.
fn nice_of_server() -> String {
    getpriority_process(None).map_or_else(|_| String::new(), |nice| nice.max(0).to_string())
}

/// What is as low as a limit can be was set, whatever the server's own is.
fn compare_limit(name: &str, hard: &str) -> String {
    if matches!(hard, "0" | "1") {
        return hard.to_owned();
    }
    let of_server = LIMITS.iter().find(|(known, _)| *known == name).map(|(_, limit)| getrlimit(*limit).maximum);
    let half = |of_server: u64| name == "nofile" && hard == (of_server / 2).to_string();
    if of_server.flatten().is_some_and(half) {
        return "half".to_owned();
    }
    let of_server = of_server.map(|hard| hard.map_or_else(|| "unlimited".to_owned(), |hard| hard.to_string()));
    compare(hard, &of_server.unwrap_or_default())
}

const LIMITS: &[(&str, Resource)] = &[
    ("as", Resource::As),
    ("core", Resource::Core),
    ("cpu", Resource::Cpu),
    ("data", Resource::Data),
    ("fsize", Resource::Fsize),
    ("locks", Resource::Locks),
    ("memlock", Resource::Memlock),
    ("msgqueue", Resource::Msgqueue),
    ("nice", Resource::Nice),
    ("nofile", Resource::Nofile),
    ("nproc", Resource::Nproc),
    ("rss", Resource::Rss),
    ("rtprio", Resource::Rtprio),
    ("rttime", Resource::Rttime),
    ("sigpending", Resource::Sigpending),
    ("stack", Resource::Stack),
];
