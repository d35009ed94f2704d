//! What a sandbox is asked to be.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::{LayerId, SandboxPath, User};

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
    pub lifetime: Lifetime,
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
            lifetime: Lifetime::Persistent,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Base {
    /// The machine's own programs, read-only.
    Host,
    /// The lowest first.
    Layers(Vec<LayerId>),
    /// A template, an image, a snapshot over there.
    Named(String),
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
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    pub memory: Option<u64>,
    pub cpu_milli: Option<u32>,
    pub pids: Option<u32>,
    pub disk: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkPolicy {
    Off,
    Allow(Vec<String>),
    Public,
    Host,
}

/// What a template gives to every command of its sandboxes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Defaults {
    pub user: User,
    pub workdir: SandboxPath,
    pub env: BTreeMap<String, String>,
}
