//! What a provider really enforces, and by what. Shown to users, and tested.

use serde::{Deserialize, Serialize};

use crate::{Error, Limits, NetworkPolicy, Result, SandboxSpec};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Enforced {
    ByKernel,
    ByWatching,
    No,
}

/// Whose ids the processes of a sandbox have outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Identities {
    /// 65,536 of its own, shared with no other live sandbox.
    Own,
    /// 65,536, shared by all sandboxes of one ordinary user.
    Shared,
    /// One: no second user, no chown.
    Single,
    /// There is no such thing outside: everything is in memory.
    None,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    pub provider: &'static str,
    pub identities: Identities,
    pub memory: Enforced,
    pub cpu: Enforced,
    pub pids: Enforced,
    pub disk: Enforced,
    pub inodes: Enforced,
    pub open_files: Enforced,
    pub io: Enforced,
    pub network_off: Enforced,
    pub network_allow: Enforced,
    pub network_public: Enforced,
    pub network_host: Enforced,
    /// Whether the end of a command's tree takes setsid and double forks along.
    pub kill_tree: Enforced,
    pub exec: bool,
    pub connect: bool,
    pub pause: bool,
    /// With forks, saving and restoring: of a stopped sandbox, and of a running one where it can be paused.
    pub snapshot: bool,
    /// Made from archives, listed and removed.
    pub templates: bool,
    pub search: bool,
    /// Views of a running sandbox can be added, changed and removed.
    pub late_views: bool,
    pub read_only_root: bool,
    /// Directories of the provider's own that outlive sandboxes.
    pub volumes: bool,
    pub host_base: bool,
    pub outlives_server: bool,
    pub replays_output: bool,
}

impl Capabilities {
    /// The one place that refuses, by name, what cannot be kept; each `create` begins with it.
    pub fn check(&self, spec: &SandboxSpec) -> Result<()> {
        self.check_limits(&spec.limits)?;
        self.check_network(&spec.network)?;
        self.require(self.read_only_root || !spec.read_only_root, "a read-only root")?;
        self.require(self.host_base || spec.base != crate::Base::Host, "the host base")
    }

    pub fn check_network(&self, network: &NetworkPolicy) -> Result<()> {
        let (kept, what) = match network {
            NetworkPolicy::Off => (self.network_off, "the network mode off"),
            NetworkPolicy::Allow(_) => (self.network_allow, "the network mode allowlist"),
            NetworkPolicy::Public | NetworkPolicy::PublicBut { .. } => (self.network_public, "the network mode public"),
            NetworkPolicy::Host => (self.network_host, "the network mode host"),
        };
        self.require(kept != Enforced::No, what)
    }

    pub fn check_limits(&self, limits: &Limits) -> Result<()> {
        limits.check()?;
        let can = |enforced| enforced != Enforced::No;
        self.require(limits.memory.is_none() || can(self.memory), "a memory limit")?;
        self.require(limits.cpu_milli.is_none() || can(self.cpu), "a cpu limit")?;
        self.require(limits.pids.is_none() || can(self.pids), "a limit of processes")?;
        self.require(limits.disk.is_none() || can(self.disk), "a disk limit")?;
        self.require(limits.inodes.is_none() || can(self.inodes), "a limit of files on the disk")?;
        self.require(limits.open_files.is_none() || can(self.open_files), "a limit of open files")?;
        self.require(limits.io.is_none() || can(self.io), "a limit of disk traffic")
    }

    fn require(&self, holds: bool, what: &'static str) -> Result<()> {
        if holds { Ok(()) } else { Err(Error::Unsupported { provider: self.provider, what }) }
    }
}
