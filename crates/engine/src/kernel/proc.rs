//! What the kernel says about processes. All of it may be old by the time it is read.

use std::os::fd::AsRawFd;

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

/// Who traces any thread of it. Nobody else hears that one has ended before its tracer has waited for it, and one that the tracer
/// holds still at its exit is killed by nobody.
pub(crate) fn tracers(pid: i32) -> Vec<i32> {
    threads(pid).into_iter().filter_map(|thread| Traced::read(pid, thread)?.tracer).collect()
}

/// The same where a thread waits in the kernel for one of the others to be gone, which its tracer does not let go.
pub(crate) fn tracers_that_hold(pid: i32) -> Vec<i32> {
    let threads: Vec<Traced> = threads(pid).into_iter().filter_map(|thread| Traced::read(pid, thread)).collect();
    match threads.iter().any(|thread| thread.state == 'D') {
        true => {
            threads.iter().filter(|thread| "ZXt".contains(thread.state)).filter_map(|thread| thread.tracer).collect()
        }
        false => Vec::new(),
    }
}

struct Traced {
    /// As ps shows it.
    state: char,
    tracer: Option<i32>,
}

impl Traced {
    fn read(pid: i32, thread: i32) -> Option<Self> {
        let status = read(&format!("/proc/{pid}/task/{thread}/status"));
        let field = |name: &str| status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim()));
        let tracer = field("TracerPid:")?.parse().ok().filter(|tracer| *tracer > 0);
        Some(Self { state: field("State:")?.chars().next()?, tracer })
    }
}

fn threads(pid: i32) -> Vec<i32> {
    let Ok(tasks) = mounts::open_proc(format!("/proc/{pid}/task"), OFlags::RDONLY | OFlags::DIRECTORY) else {
        return Vec::new();
    };
    let Ok(entries) = Dir::new(tasks) else { return Vec::new() };
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
