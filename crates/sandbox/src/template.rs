//! Templates: what sandboxes are made from, by name.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Defaults, LayerId, SandboxPath, User};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Template {
    pub name: String,
    /// The lowest first.
    pub layers: Vec<LayerId>,
    pub defaults: Defaults,
    /// Whether setuid programs gain something inside, also where a spec does not ask for it.
    pub sudo: bool,
    /// What runs in each sandbox from its start on, where somebody sees to that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
    /// When it was made, as RFC 3339.
    pub made: String,
    /// What it was made from, as it was said.
    pub source: String,
}

/// A command that goes on as long as its sandbox runs, as the template's user and where commands start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// For the shell.
    pub start: String,
    /// For the shell: tried until it succeeds, which says that the service is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
}

/// What the maker of a template wants instead of what its tree suggests.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    pub user: Option<User>,
    pub workdir: Option<SandboxPath>,
    /// Added to what every sandbox has.
    pub env: BTreeMap<String, String>,
    /// Setuid programs, sudo above all, gain rights inside.
    pub sudo: bool,
    pub service: Option<Service>,
}
