//! What the kernel says about processes. All of it may be old by the time it is read.

use std::{collections::BTreeSet, os::fd::AsRawFd};

use rustix::fs::{Dir, OFlags};

use super::{mounts, sys};

/// The process itself, and all that are below it, children of all their threads included.
pub(crate) fn tree(root: i32) -> Vec<i32> {
    let (mut found, mut next) = (vec![root], 0);
    while next < found.len() {
        found.extend(children(found[next]));
        next += 1;
    }
    found
}

pub(crate) fn children(pid: i32) -> Vec<i32> {
    let of_thread = |thread| read(&format!("/proc/{pid}/task/{thread}/children"));
    let all = threads(pid)
        .into_iter()
        .flat_map(|thread| of_thread(thread).split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>());
    all.collect()
}

/// Who traces any of them, who traces those, and so on: nobody else hears that one has ended before its tracer has waited for it, and
/// one that a tracer holds still at its exit is killed by nobody.
pub(crate) fn tracers(pids: impl IntoIterator<Item = i32>) -> BTreeSet<i32> {
    follow(pids.into_iter().flat_map(|pid| all_traced(pid).into_iter().filter_map(|thread| thread.tracer)).collect())
}

/// The same where a thread waits in the kernel for another one of its process to be gone, which a tracer does not let go.
pub(crate) fn tracers_that_hold(pids: impl IntoIterator<Item = i32>) -> BTreeSet<i32> {
    let of_process = |pid| {
        let threads = all_traced(pid);
        let waits = threads.iter().any(|thread| thread.state == 'D');
        threads
            .into_iter()
            .filter(move |thread| waits && "ZXt".contains(thread.state))
            .filter_map(|thread| thread.tracer)
    };
    follow(pids.into_iter().flat_map(of_process).collect())
}

fn follow(mut tracers: BTreeSet<i32>) -> BTreeSet<i32> {
    let mut next: Vec<i32> = tracers.iter().copied().collect();
    while let Some(tracer) = next.pop() {
        let above = all_traced(tracer).into_iter().filter_map(|thread| thread.tracer);
        next.extend(above.filter(|above| tracers.insert(*above)).collect::<Vec<_>>());
    }
    tracers
}

fn all_traced(pid: i32) -> Vec<Traced> {
    threads(pid).into_iter().filter_map(|thread| Traced::read(pid, thread)).collect()
}

struct Traced {
    /// As ps shows it.
    state: char,
    /// The process, of whose threads one is the tracer.
    tracer: Option<i32>,
}

impl Traced {
    fn read(pid: i32, thread: i32) -> Option<Self> {
        let status = read(&format!("/proc/{pid}/task/{thread}/status"));
        let tracer = field(&status, "TracerPid:")?.parse().ok().filter(|tracer| *tracer > 0).and_then(process_of);
        Some(Self { state: field(&status, "State:")?.chars().next()?, tracer })
    }
}

/// What a thread has of filters for its system calls.
pub(crate) struct Filtered {
    pub(crate) filters: usize,
    /// Those of its process, itself among them.
    pub(crate) threads: usize,
    pub(crate) has_ended: bool,
}

impl Filtered {
    pub(crate) fn of(thread: i32) -> Option<Self> {
        let status = read(&format!("/proc/{thread}/status"));
        let number = |name| field(&status, name)?.parse().ok();
        let has_ended = field(&status, "State:")?.starts_with(['Z', 'X']);
        Some(Self { filters: number("Seccomp_filters:")?, threads: number("Threads:")?, has_ended })
    }
}

/// All processes that can be seen.
pub(crate) fn all() -> Vec<i32> {
    numbers_in("/proc")
}

/// The process that a thread belongs to.
pub(crate) fn process_of(thread: i32) -> Option<i32> {
    field(&read(&format!("/proc/{thread}/status")), "Tgid:")?.parse().ok()
}

/// When it began: with its number, that is who it is.
pub(crate) fn began(pid: i32) -> Option<u64> {
    stat_field(pid, 19)?.parse().ok()
}

/// Its process group.
pub(crate) fn group(pid: i32) -> Option<i32> {
    stat_field(pid, 2)?.parse().ok()
}

/// The name may hold anything, so it is counted from its end on.
fn stat_field(pid: i32, fields_behind: usize) -> Option<String> {
    let stat = read(&format!("/proc/{pid}/stat"));
    stat.rsplit(") ").next()?.split(' ').nth(fields_behind).map(str::to_owned)
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim()))
}

pub(crate) fn threads(pid: i32) -> Vec<i32> {
    numbers_in(&format!("/proc/{pid}/task"))
}

fn numbers_in(dir: &str) -> Vec<i32> {
    let Ok(dir) = mounts::open_proc(dir, OFlags::RDONLY | OFlags::DIRECTORY) else { return Vec::new() };
    let Ok(entries) = Dir::new(dir) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str().ok()?.parse().ok()).collect()
}

fn read(path: &str) -> String {
    let Ok(file) = mounts::open_proc(path, OFlags::RDONLY) else { return String::new() };
    let (mut text, mut part) = (Vec::new(), [0; 4096]);
    while let Ok(count) = sys::read(file.as_raw_fd(), &mut part)
        && count > 0
    {
        text.extend_from_slice(&part[..count]);
    }
    String::from_utf8_lossy(&text).into_owned()
}
