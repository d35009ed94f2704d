//! The kernel by hand: the few calls that neither std nor rustix has, or that must work where neither may be used.

pub(crate) mod fdpass;
pub(crate) mod locks;
pub(crate) mod mounts;
pub(crate) mod notify;
pub(crate) mod pidfd;
pub(crate) mod proc;
pub(crate) mod queue;
pub(crate) mod readiness;
pub(crate) mod shortage;
pub(crate) mod sys;
pub(crate) mod thread_identity;
