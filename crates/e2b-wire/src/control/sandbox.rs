//! A sandbox as the control plane tells of it: when it was made, in a list, and in full.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{NetworkConfig, VolumeMount};
use crate::{SandboxId, Secret, json::or_default};

/// What create, connect, resume and fork answer: all that a client needs to talk to the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    #[serde(rename = "templateID")]
    pub template_id: String,
    #[serde(rename = "sandboxID")]
    pub sandbox_id: SandboxId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// Once a part of host names. It says nothing any more, but clients insist on it.
    #[serde(rename = "clientID")]
    pub client_id: String,
    /// Clients decide by it what they may ask for.
    pub envd_version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envd_access_token: Option<Secret>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic_access_token: Option<Secret>,
    /// Where its ports are. Without one, clients use the domain that they were told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
}

/// What we say where clients insist on a `clientID`.
pub(crate) const CLIENT_ID: &str = "cabana";

impl Sandbox {
    /// One without tokens.
    pub fn new(template_id: String, sandbox_id: SandboxId, envd_version: String) -> Self {
        Self {
            template_id,
            sandbox_id,
            alias: None,
            client_id: CLIENT_ID.into(),
            envd_version,
            envd_access_token: None,
            traffic_access_token: None,
            domain: None,
        }
    }
}

/// One of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedSandbox {
    #[serde(rename = "templateID")]
    pub template_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    #[serde(rename = "sandboxID")]
    pub sandbox_id: SandboxId,
    #[serde(rename = "clientID")]
    pub client_id: String,
    pub started_at: Timestamp,
    pub end_at: Timestamp,
    pub cpu_count: u32,
    #[serde(rename = "memoryMB")]
    pub memory_mb: u32,
    #[serde(rename = "diskSizeMB")]
    pub disk_size_mb: u32,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    pub state: SandboxState,
    pub envd_version: String,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub volume_mounts: Vec<VolumeMount>,
}

/// `GET /sandboxes/{id}`: what a list says, and more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxDetail {
    #[serde(flatten)]
    pub listed: ListedSandbox,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envd_access_token: Option<Secret>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_internet_access: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkConfig>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
    /// Of a paused one: what was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_mode: Option<PauseMode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envd_unresponsive_at_pause: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxState {
    Running,
    Paused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lifecycle {
    pub auto_resume: bool,
    pub on_timeout: OnTimeout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnTimeout {
    Kill,
    Pause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PauseMode {
    Full,
    Filesystem,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn listed() -> Value {
        json!({
            "templateID": "base", "alias": "base", "sandboxID": "iabc", "clientID": "cabana",
            "startedAt": "2026-11-17T02:00:00Z", "endAt": "2026-11-17T02:05:00.25Z", "cpuCount": 2, "memoryMB": 512,
            "diskSizeMB": 1024, "metadata": {"k": "v"}, "state": "running", "envdVersion": "0.6.13",
            "volumeMounts": [{"name": "data", "path": "/data"}],
        })
    }

    #[test]
    fn a_made_sandbox_says_how_to_reach_it() {
        let sandbox = Sandbox {
            envd_access_token: Some("ea_hush".into()),
            traffic_access_token: Some("ta_hush".into()),
            domain: Some("sbx.test".into()),
            ..Sandbox::new("base".into(), "iabc".parse().unwrap(), "0.6.13".into())
        };
        let json = json!({
            "templateID": "base", "sandboxID": "iabc", "clientID": "cabana", "envdVersion": "0.6.13",
            "envdAccessToken": "ea_hush", "trafficAccessToken": "ta_hush", "domain": "sbx.test",
        });
        assert_eq!(serde_json::to_value(&sandbox).unwrap(), json);
        assert_eq!(serde_json::from_value::<Sandbox>(json).unwrap(), sandbox);
        assert!(!format!("{sandbox:?}").contains("hush"));
    }

    #[test]
    fn null_is_the_same_as_nothing() {
        let json = json!({
            "templateID": "base", "sandboxID": "iabc", "clientID": "c", "envdVersion": "0.6.13", "alias": null,
            "envdAccessToken": null, "trafficAccessToken": null, "domain": null, "of_tomorrow": 1,
        });
        let sandbox: Sandbox = serde_json::from_value(json).unwrap();
        assert_eq!((sandbox.domain, sandbox.envd_access_token), (None, None));
    }

    #[test]
    fn a_listed_sandbox_reads_back() {
        let sandbox: ListedSandbox = serde_json::from_value(listed()).unwrap();
        assert_eq!((sandbox.state, sandbox.memory_mb), (SandboxState::Running, 512));
        assert_eq!(serde_json::to_value(sandbox).unwrap(), listed());
    }

    #[test]
    fn the_details_hold_all_that_a_list_says_and_more() {
        let mut json = listed();
        let more = json!({
            "envdAccessToken": "ea_hush", "allowInternetAccess": true, "domain": "sbx.test",
            "network": {"allowPublicTraffic": true}, "lifecycle": {"autoResume": false, "onTimeout": "kill"},
            "pauseMode": "filesystem", "envdUnresponsiveAtPause": false,
        });
        json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let detail: SandboxDetail = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(detail.lifecycle, Some(Lifecycle { auto_resume: false, on_timeout: OnTimeout::Kill }));
        assert_eq!(detail.pause_mode, Some(PauseMode::Filesystem));
        assert_eq!(serde_json::to_value(detail).unwrap(), json);
        let plain: SandboxDetail = serde_json::from_value(listed()).unwrap();
        assert_eq!(serde_json::to_value(plain).unwrap(), listed());
    }
}
