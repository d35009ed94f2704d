//! A dialect: what makes Cabana behave as another system expects. Data, and never a branch in the code.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Lifecycle, LifecycleError, Profile, ProfileError};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Dialect {
    /// Of a sandbox that names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// When its sandboxes rest and go, as far as they do not say so themselves.
    pub lifecycle: Lifecycle,
    pub reaper: Reaper,
    pub texts: Texts,
    pub profiles: BTreeMap<String, Profile>,
}

/// How often sandboxes are looked after, where it is the dialect of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reaper {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval_sec: Option<u64>,
    /// So many at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<u32>,
}

/// What clients of that system know as the words for something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Texts {
    /// Somebody else has a lease on the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy: Option<String>,
    /// No sandbox could be had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DialectError {
    #[error("its usual profile {0:?} is none of its profiles")]
    NoProfile(String),
    #[error("the profile {name}: {why}")]
    Profile { name: String, why: ProfileError },
    #[error("its lifecycle: {0}")]
    Lifecycle(#[from] LifecycleError),
    #[error("reaper.{0} is 0")]
    Reaper(&'static str),
}

impl Dialect {
    pub fn check(&self) -> Result<(), DialectError> {
        if let Some(name) = self.profile.as_ref().filter(|name| !self.profiles.contains_key(*name)) {
            return Err(DialectError::NoProfile(name.clone()));
        }
        for (name, profile) in &self.profiles {
            profile.check().map_err(|why| DialectError::Profile { name: name.clone(), why })?;
        }
        self.lifecycle.check()?;
        match self.reaper {
            Reaper { interval_sec: Some(0), .. } => Err(DialectError::Reaper("interval_sec")),
            Reaper { batch: Some(0), .. } => Err(DialectError::Reaper("batch")),
            _ => Ok(()),
        }
    }
}
