//! The walls of a sandbox's init: what the kernel still does for a process inside, and with which rights.
//!
//! [`prepare`] makes the system call filter from `policy.txt`, once, in the spawner. A new sandbox's init installs its
//! [`programs`] with [`install_seccomp`], and every process inside inherits it; [`drop_bounding`] takes the capabilities
//! away that no exec inside may ever bring back.
//!
//! The order in init: mounts, namespaces, network and ids first, since the filter refuses them afterwards, to init too.
//! Then the bounding set, which needs `CAP_SETPCAP`. Then the filter, which needs `CAP_SYS_ADMIN` in the sandbox's user
//! namespace or [`no_new_privs`]. Then the capability sets of init itself.

mod arch;
mod bpf;
mod caps;
#[cfg(test)]
mod live;
mod policy;
mod seccomp;
#[cfg(test)]
mod tests;

#[cfg(fuzzing)]
pub(crate) use self::{arch::Arch, bpf::compile, policy::Policy};
pub(crate) use caps::{drop_bounding, kept_mask};
#[cfg(any(fuzzing, test))]
pub(crate) use policy::notified;
pub(crate) use seccomp::{install_seccomp, no_new_privs, prepare, programs};
