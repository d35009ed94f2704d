//! What a sandbox is asked to be.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{Error, LayerId, Result, SandboxPath, SnapshotId, User, VolumeId};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxSpec {
    pub base: Base,
    pub limits: Limits,
    pub network: NetworkPolicy,
    pub views: Vec<View>,
    /// `None` is the template's.
    pub user: Option<User>,
    /// Whether setuid programs gain anything inside.
    pub sudo: bool,
    /// Whether its root can only be read. What can be written is its working directory, `/workspace`, what is there for
    /// a while (`/tmp`, `/var/tmp`, `/dev/shm`), and its views as they say.
    #[serde(default)]
    pub read_only_root: bool,
    pub lifetime: Lifetime,
    /// Whose it is, by any name: what all sandboxes share is divided among tenants first. `None`: its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
}

impl SandboxSpec {
    /// As little as can be: no network, no limits, nothing of the host but the base.
    pub fn new(base: Base) -> Self {
        Self {
            base,
            limits: Limits::default(),
            network: NetworkPolicy::Off,
            views: Vec::new(),
            user: None,
            sudo: false,
            read_only_root: false,
            lifetime: Lifetime::Persistent,
            tenant: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Base {
    /// The machine's own programs, read-only.
    Host,
    /// The lowest first.
    Layers(Vec<LayerId>),
    /// A template.
    Named(String),
    Snapshot(SnapshotId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lifetime {
    /// Ends with the process that made it, also by kill -9, and takes its files along.
    Ephemeral,
    /// Lives until it is destroyed.
    Persistent,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    pub source: Source,
    pub at: SandboxPath,
    pub writable: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    Layer(LayerId),
    /// Checked against the allow-list before.
    Host(PathBuf),
    /// Made before.
    Volume(VolumeId),
}

/// What every sandbox has of its own, with all that is below.
const OWN: [&str; 3] = ["/proc", "/sys", "/dev"];
/// What nothing runs without; places below may be taken.
const NEEDED: [&str; 11] = [
    "/",
    "/etc",
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/etc/passwd",
    "/etc/group",
    "/etc/shadow",
    "/etc/gshadow",
];

/// Refuses places that no view can be at, and two views at one.
pub fn check_views(views: &[View]) -> Result<()> {
    for (number, View { at, .. }) in views.iter().enumerate() {
        let invalid = |why: String| Err(Error::invalid("views", why));
        if OWN.iter().any(|own| at.as_path().starts_with(own)) {
            return invalid(format!("a view at {at} would hide what every sandbox has of its own (/proc, /sys, /dev)"));
        }
        if NEEDED.iter().any(|needed| at.as_path() == Path::new(needed)) {
            return invalid(format!("a view at {at} would hide what nothing runs without: choose a place of its own"));
        }
        if views[..number].iter().any(|other| other.at == *at) {
            return invalid(format!("{at} is the place of two views"));
        }
    }
    Ok(())
}

/// What a sandbox may use; `None` is as much as there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// In bytes, swap included.
    pub memory: Option<u64>,
    /// In thousandths of one processor.
    pub cpu_milli: Option<u32>,
    /// Processes and threads.
    pub pids: Option<u32>,
    /// In bytes, of its own layer.
    pub disk: Option<u64>,
    /// Names of files and directories, in its own layer.
    pub inodes: Option<u64>,
    /// Of one process, for commands that begin from then on.
    pub open_files: Option<u32>,
    /// In bytes a second, on average: so many read from the disk that its files lie on, and so many written.
    pub io: Option<u64>,
    /// In bytes, of each command: how much of its output can be read again. The oldest goes first.
    pub output: Option<u64>,
}

impl Limits {
    const LEAST_MEMORY: u64 = 4 << 20;
    const LEAST_CPU_MILLI: u32 = 10;
    const MOST_CPU_MILLI: u32 = 10_000_000;
    const LEAST_PIDS: u32 = 8;
    const MOST_PIDS: u32 = 4 << 20;
    const LEAST_DISK: u64 = 1 << 20;
    const LEAST_OUTPUT: u64 = 4 << 10;
    const MOST_OUTPUT: u64 = 1 << 30;
    const LEAST_INODES: u64 = 64;
    const LEAST_OPEN_FILES: u32 = 16;
    const MOST_OPEN_FILES: u32 = 1 << 20;
    /// One request of ordinary size is more than that: at less a sandbox would stand still for minutes after each.
    const LEAST_IO: u64 = 1 << 20;

    /// As much as there is.
    pub const NONE: Self = Self {
        memory: None,
        cpu_milli: None,
        pids: None,
        disk: None,
        inodes: None,
        open_files: None,
        io: None,
        output: None,
    };

    /// Refuses numbers with which no sandbox could do anything, or that no kernel takes.
    pub fn check(&self) -> Result<()> {
        let most_bytes = i64::MAX as u64;
        within("limits.memory", self.memory, Self::LEAST_MEMORY, most_bytes)?;
        within(
            "limits.cpu_milli",
            self.cpu_milli.map(u64::from),
            Self::LEAST_CPU_MILLI.into(),
            Self::MOST_CPU_MILLI.into(),
        )?;
        within("limits.pids", self.pids.map(u64::from), Self::LEAST_PIDS.into(), Self::MOST_PIDS.into())?;
        within("limits.disk", self.disk, Self::LEAST_DISK, most_bytes)?;
        within("limits.inodes", self.inodes, Self::LEAST_INODES, most_bytes)?;
        within(
            "limits.open_files",
            self.open_files.map(u64::from),
            Self::LEAST_OPEN_FILES.into(),
            Self::MOST_OPEN_FILES.into(),
        )?;
        within("limits.io", self.io, Self::LEAST_IO, most_bytes)?;
        within("limits.output", self.output, Self::LEAST_OUTPUT, Self::MOST_OUTPUT)
    }
}

fn within(field: &'static str, given: Option<u64>, least: u64, most: u64) -> Result<()> {
    match given {
        Some(given) if given < least => Err(Error::invalid(field, format!("{given} is too little: at least {least}"))),
        Some(given) if given > most => Err(Error::invalid(field, format!("{given} is too much: at most {most}"))),
        _ => Ok(()),
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NetworkPolicy {
    Off,
    Allow(Vec<String>),
    Public,
    /// What is public, but for these addresses and networks; and of those, what is allowed after all.
    PublicBut {
        deny: Vec<String>,
        allow: Vec<String>,
    },
    Host,
}

impl NetworkPolicy {
    /// Whether it has so many rules that reading them is work.
    pub fn is_long(&self) -> bool {
        const SHORT: usize = 64;
        match self {
            Self::Off | Self::Public | Self::Host => false,
            Self::Allow(rules) => rules.len() > SHORT,
            Self::PublicBut { deny, allow } => deny.len() + allow.len() > SHORT,
        }
    }
}

/// What a template gives to every command of its sandboxes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Defaults {
    pub user: User,
    pub workdir: SandboxPath,
    pub env: BTreeMap<String, String>,
}
