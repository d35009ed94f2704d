//! Processes that are held on to, so that their number cannot become another's meanwhile.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::OnceLock,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    process::{Pid, PidfdFlags},
};

/// The number of a process as this one sees it.
pub(crate) fn number(pidfd: BorrowedFd<'_>) -> io::Result<u32> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")).map(str::trim);
    pid.and_then(|pid| pid.parse().ok()).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The process of that number that was started then; none if it has ended.
pub(crate) fn find(pid: u32, started: u64) -> Option<OwnedFd> {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
    let pidfd = rustix::process::pidfd_open(number, PidfdFlags::empty()).ok()?;
    // Asked after it was opened: from then on the number is its own.
    (self::started(pid).ok()? == started && is_alive(pidfd.as_fd())).then_some(pidfd)
}

pub(crate) fn is_alive(pidfd: BorrowedFd<'_>) -> bool {
    let mut ended = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    rustix::event::poll(&mut ended, Some(&Timespec::default())) == Ok(0)
}

/// When a process was started, in the kernel's ticks since the machine was. Its name may hold anything, spaces and brackets
/// too; it ends with the last bracket.
pub(crate) fn started(pid: u32) -> io::Result<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat"))?;
    let stat = String::from_utf8_lossy(&stat);
    let after_name = stat.rsplit_once(')').map(|(_, rest)| rest);
    let ticks = after_name.and_then(|rest| rest.split_ascii_whitespace().nth(19)?.parse().ok());
    ticks.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Another one for each start of the machine.
pub(crate) fn boot() -> io::Result<&'static str> {
    static BOOT: OnceLock<String> = OnceLock::new();
    if let Some(known) = BOOT.get() {
        return Ok(known);
    }
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(BOOT.get_or_init(|| id.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_as_long_as_it_lives_and_by_its_own_start_alone() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let (pid, started) = (child.id(), started(child.id()).unwrap());
        let found = find(pid, started).unwrap();
        assert_eq!(number(found.as_fd()).unwrap(), pid);
        assert!(find(pid, started + 1).is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_alive(found.as_fd()));
        assert!(find(pid, started).is_none());
        assert!(find(0, 0).is_none() && find(u32::MAX, 0).is_none());
    }

    #[test]
    fn a_boot_has_a_name() {
        assert_eq!(boot().unwrap().len(), 36);
    }
}
