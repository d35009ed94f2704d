//! `POST /sandboxes` and `POST /v2/sandboxes`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::NetworkConfig;
use crate::json::{number, or_default, or_number, or_yes, yes};

/// Of the first two generations, in which a client says whether the sandbox has a token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewSandbox {
    /// In seconds.
    #[serde(default = "number::<15>", deserialize_with = "or_number::<15, _>")]
    pub timeout: u32,
    /// Whether its agent asks for a token.
    #[serde(default, deserialize_with = "or_default")]
    pub secure: bool,
    #[serde(flatten)]
    pub wanted: Wanted,
}

/// Of the third generation, in which every sandbox has a token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewSandboxV2 {
    /// In seconds.
    #[serde(default = "number::<300>", deserialize_with = "or_number::<300, _>")]
    pub timeout: u32,
    #[serde(flatten)]
    pub wanted: Wanted,
}

/// What all generations say alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wanted {
    /// A template's id or name, or a snapshot.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Pause when the time is over, and do not kill.
    #[serde(default, deserialize_with = "or_default")]
    pub auto_pause: bool,
    /// Whether such a pause keeps the memory, or the files alone.
    #[serde(default = "yes", deserialize_with = "or_yes")]
    pub auto_pause_memory: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_resume: Option<AutoResume>,
    #[serde(default, rename = "allow_internet_access", skip_serializing_if = "Option::is_none")]
    pub allow_internet_access: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkConfig>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub env_vars: BTreeMap<String, String>,
    /// What E2B's gateway for MCP servers is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iam: Option<Iam>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub volume_mounts: Vec<VolumeMount>,
}

impl Wanted {
    /// A sandbox of this template, with nothing else said.
    pub fn of_template(template_id: impl Into<String>) -> Self {
        Self {
            template_id: template_id.into(),
            auto_pause: false,
            auto_pause_memory: true,
            auto_resume: None,
            allow_internet_access: None,
            network: None,
            metadata: BTreeMap::new(),
            env_vars: BTreeMap::new(),
            mcp: None,
            iam: None,
            volume_mounts: Vec::new(),
        }
    }

    /// Whether traffic wakes it.
    pub fn resumes_by_itself(&self) -> bool {
        self.auto_resume.is_some_and(|resume| resume.enabled)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutoResume {
    pub enabled: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Iam {
    #[serde(default, deserialize_with = "or_default")]
    pub tokens: BTreeMap<String, IamToken>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IamToken {
    pub audience: String,
    pub token_type: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    pub name: String,
    pub path: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_python_sdk_creates_a_sandbox() {
        let sent = json!({
            "templateID": "base", "timeout": 300, "autoPause": false, "secure": true, "allow_internet_access": true,
            "metadata": {"k": "v"}, "envVars": {"A": "1"}, "autoResume": {"enabled": false},
        });
        let new: NewSandbox = serde_json::from_value(sent).unwrap();
        assert_eq!((new.timeout, new.secure, &*new.wanted.template_id), (300, true, "base"));
        assert_eq!(new.wanted.allow_internet_access, Some(true));
        assert_eq!(new.wanted.metadata["k"], "v");
        assert_eq!(new.wanted.env_vars["A"], "1");
        assert!(!new.wanted.auto_pause && new.wanted.auto_pause_memory && !new.wanted.resumes_by_itself());
    }

    #[test]
    fn the_javascript_sdk_creates_a_sandbox() {
        let new: NewSandboxV2 = serde_json::from_value(json!({"templateID": "base"})).unwrap();
        assert_eq!(new, NewSandboxV2 { timeout: 300, wanted: Wanted::of_template("base") });
    }

    #[test]
    fn the_defaults_differ_by_generation() {
        for sent in [json!({"templateID": "base"}), json!({"templateID": "base", "timeout": null, "secure": null})] {
            let first: NewSandbox = serde_json::from_value(sent.clone()).unwrap();
            assert_eq!((first.timeout, first.secure), (15, false));
            assert_eq!(serde_json::from_value::<NewSandboxV2>(sent).unwrap().timeout, 300);
        }
    }

    #[test]
    fn null_is_nothing_and_the_unknown_is_ignored() {
        let sent = json!({
            "templateID": "base", "autoPause": null, "autoPauseMemory": null, "autoResume": null, "network": null,
            "allow_internet_access": null, "metadata": null, "envVars": null, "mcp": null, "iam": null,
            "volumeMounts": null, "of_tomorrow": {"x": [1]},
        });
        let new: NewSandboxV2 = serde_json::from_value(sent).unwrap();
        assert_eq!(new.wanted, Wanted::of_template("base"));
    }

    #[test]
    fn all_that_can_be_said_is_read_and_written() {
        let sent = json!({
            "templateID": "base", "timeout": 60, "autoPause": true, "autoPauseMemory": false, "secure": true,
            "autoResume": {"enabled": true}, "allow_internet_access": false,
            "network": {"allowPublicTraffic": false, "allowOut": ["1.1.1.1"], "denyOut": ["0.0.0.0/0"]},
            "metadata": {"k": "v"}, "envVars": {"A": "1"}, "mcp": {"exa": {"apiKey": "x"}},
            "iam": {"tokens": {"aws": {"audience": "sts", "tokenType": "jwt"}}},
            "volumeMounts": [{"name": "data", "path": "/data"}],
        });
        let new: NewSandbox = serde_json::from_value(sent.clone()).unwrap();
        assert!(new.wanted.resumes_by_itself());
        assert_eq!(new.wanted.volume_mounts, [VolumeMount { name: "data".into(), path: "/data".into() }]);
        assert_eq!(serde_json::to_value(new).unwrap(), sent);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let refused = |json| serde_json::from_value::<NewSandbox>(json).unwrap_err().to_string();
        assert!(refused(json!({"timeout": 5})).contains("templateID"));
        assert!(refused(json!({"templateID": 5})).contains("string"));
        serde_json::from_value::<NewSandbox>(json!({"templateID": "base", "timeout": -1})).unwrap_err();
        serde_json::from_value::<NewSandbox>(json!({"templateID": "base", "autoResume": {}})).unwrap_err();
        serde_json::from_value::<NewSandbox>(json!({"templateID": "base", "metadata": {"k": 1}})).unwrap_err();
    }
}
