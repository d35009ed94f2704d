//! What a template brings along for whatever is made from it, beside its files.

use std::collections::BTreeMap;

use cabana_runtime::Settings;
use cabana_sandbox::{Limits, Service, User};
use serde::{Deserialize, Serialize};

/// What is not said is as the files below have it, or as the server's settings do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Brought {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) user: Option<User>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) workdir: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) env: BTreeMap<String, String>,
    /// What runs from the beginning on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) start: Option<String>,
    /// What succeeds once that is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ready: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpus: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory_mb: Option<u32>,
}

impl Brought {
    pub(super) fn of_service(service: Option<Service>) -> Self {
        let (start, ready) = service.map_or((None, None), |Service { start, ready }| (Some(start), ready));
        Self { start, ready, ..Self::default() }
    }

    /// As a snapshot keeps it. What another front took brings nothing.
    pub(super) fn of_note(note: Option<&str>) -> Self {
        note.and_then(|note| serde_json::from_str(note).ok()).unwrap_or_default()
    }

    pub(super) fn note(&self) -> Option<String> {
        serde_json::to_string(self).ok()
    }

    pub(super) fn service(&self) -> Option<Service> {
        Some(Service { start: self.start.clone()?, ready: self.ready.clone() })
    }

    /// What it wants of the machine, beside what is usual. `None`: nothing of its own.
    pub(super) fn limits(&self, settings: &Settings) -> Option<Limits> {
        if self.cpus.is_none() && self.memory_mb.is_none() {
            return None;
        }
        let usual = settings.sandbox.limits;
        Some(Limits {
            cpu_milli: self.cpus.map(|cpus| cpus.saturating_mul(1000)).or(usual.cpu_milli),
            memory: self.memory_mb.map(|mib| u64::from(mib) << 20).or(usual.memory),
            ..usual
        })
    }
}
