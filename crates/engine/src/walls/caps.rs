//! The capabilities that root of a sandbox has: enough to install packages and to run services, nothing that reaches
//! the kernel's configuration. All of them count within the sandbox's user namespace alone.
#![allow(unsafe_code)] // one system call that the standard library does not have

use std::io;

use libc::c_ulong;

/// The capabilities that are kept, by the kernel's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Cap {
    /// Package managers give files to their users.
    Chown = 0,
    /// Root reads and writes what belongs to the sandbox's other users.
    DacOverride = 1,
    /// Root changes modes and times of their files.
    Fowner = 3,
    /// A set-group-id bit survives a write, as installers expect.
    Fsetid = 4,
    /// Root ends the processes of the sandbox's other users.
    Kill = 5,
    /// su, sudo and services change to their own group.
    Setgid = 6,
    /// su, sudo and services change to their own user.
    Setuid = 7,
    /// Servers listen on ports below 1024 of the sandbox's own network.
    NetBindService = 10,
    /// Builders and daemons chroot; mounts, which would make that a way out, are refused.
    SysChroot = 18,
    /// Login programs write to the audit log, and some stop when they may not.
    AuditWrite = 29,
    /// Packages put capabilities on files; they hold within this user namespace only.
    Setfcap = 31,
}

pub(crate) const KEPT: &[Cap] = &[
    Cap::Chown,
    Cap::DacOverride,
    Cap::Fowner,
    Cap::Fsetid,
    Cap::Kill,
    Cap::Setgid,
    Cap::Setuid,
    Cap::NetBindService,
    Cap::SysChroot,
    Cap::AuditWrite,
    Cap::Setfcap,
];

/// The kept set as capset(2) and /proc/PID/status write it.
pub(crate) const fn kept_mask() -> u64 {
    let mut mask = 0;
    let mut index = 0;
    while index < KEPT.len() {
        mask |= 1 << KEPT[index] as u32;
        index += 1;
    }
    mask
}

/// Takes everything that is not kept from the bounding set: no exec, as root or of a set-uid file, has it again.
///
/// The kernel says where its capabilities end: /proc need not be mounted, and what a later kernel adds goes too.
pub(crate) fn drop_bounding() -> io::Result<()> {
    for cap in (0..u64::BITS).filter(|cap| kept_mask() >> cap & 1 == 0) {
        // SAFETY: this option takes a plain number and touches no memory of ours.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, c_ulong::from(cap)) } == 0 {
            continue;
        }
        let error = io::Error::last_os_error();
        let past_the_last = error.raw_os_error() == Some(libc::EINVAL);
        return if past_the_last { Ok(()) } else { Err(error) };
    }
    Ok(())
}
