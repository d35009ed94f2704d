//! Putting the filter in place.
#![allow(unsafe_code)] // two system calls that the standard library does not have

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use libc::c_ulong;

use super::arch::Arch;
use super::bpf::{Filter, compile};
use super::policy::Policy;

/// The filters of every sandbox on this machine, once made.
static FILTERS: OnceLock<Filters> = OnceLock::new();

struct Filters {
    brokered: Filter,
    alone: Filter,
}

/// The filter of one sandbox, as it is where init can be asked, and where it cannot.
pub(crate) struct Programs {
    brokered: Vec<libc::sock_filter>,
    alone: Vec<libc::sock_filter>,
}

#[cfg(test)]
impl Programs {
    /// For a test in which nobody answers.
    pub(super) fn without_broker(self) -> Self {
        Self { brokered: self.alone.clone(), alone: self.alone }
    }

    /// Those of a host that has a listener and asks it about nothing.
    pub(super) fn of_a_host() -> Self {
        let all = (libc::BPF_RET | libc::BPF_K) as u16;
        let program = vec![libc::sock_filter { code: all, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW }];
        Self { brokered: program.clone(), alone: program }
    }
}

/// Makes the filters, a millisecond's work, once and in the spawner: its children have them from there.
pub(crate) fn prepare() {
    filters();
}

/// The filter of one sandbox, whose init alone knows `secret`. Nobody inside can read a filter, or init's memory.
pub(crate) fn programs(secret: [u64; 2]) -> Programs {
    let Filters { brokered, alone } = filters();
    Programs { brokered: brokered.program(secret), alone: alone.program(secret) }
}

fn filters() -> &'static Filters {
    FILTERS.get_or_init(|| {
        let policy = if keeps_labels() { Policy::embedded().with_labels() } else { Policy::embedded() };
        Filters { brokered: compile(Arch::NATIVE, &policy), alone: compile(Arch::NATIVE, &policy.without_broker()) }
    })
}

/// Whether the kernel lets owners of files relabel them: SELinux does, where the domain may, and its file system is there while it is on.
fn keeps_labels() -> bool {
    std::fs::read_to_string("/proc/filesystems").is_ok_and(|list| list.contains("selinuxfs"))
}

/// Puts the calling thread and all its future children behind one of the programs, for good. It allocates nothing. Gives where
/// the calls arrive whose verdict is `notify`, which are ENOSYS once that is closed.
///
/// There is one such place at most for a thread. Where the host has one around us already, there is none of ours.
pub(crate) fn install_seccomp(programs: &Programs) -> io::Result<Option<OwnedFd>> {
    // Once a call was received, only a kill takes its caller away: it is not made twice.
    let listening = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    match install(&programs.brokered, listening) {
        // SAFETY: the kernel made it for us just now.
        Ok(listener) => Ok(Some(unsafe { OwnedFd::from_raw_fd(listener) })),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => install(&programs.alone, 0).map(|_| None),
        Err(error) => Err(error),
    }
}

fn install(program: &[libc::sock_filter], flags: c_ulong) -> io::Result<RawFd> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel reads `len` instructions behind `filter`, which `program` borrows for the whole call, writes
    // nothing there, and checks the program before it takes it.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    if result >= 0 { Ok(result as RawFd) } else { Err(io::Error::last_os_error()) }
}

/// No exec from here on gains rights: set-uid programs and file capabilities lose their power, for good.
pub(crate) fn no_new_privs() -> io::Result<()> {
    // The kernel reads whole words and refuses stray bits.
    const ZERO: c_ulong = 0;
    // SAFETY: this option takes plain numbers and touches no memory of ours.
    let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1 as c_ulong, ZERO, ZERO, ZERO) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
