//! What may go in and out of a sandbox.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Secret,
    json::{or_default, or_yes, yes},
};

/// What is allowed beats what is denied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkConfig {
    /// Whether ports are open to everybody, or to those alone who show the traffic token.
    #[serde(default = "yes", deserialize_with = "or_yes")]
    pub allow_public_traffic: bool,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub allow_out: Vec<String>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub deny_out: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress_proxy: Option<EgressProxy>,
    /// What services inside see as the host, such as `localhost:${PORT}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask_request_host: Option<String>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub rules: BTreeMap<String, Vec<NetworkRule>>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub dns_servers: Vec<String>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub https_ports: Vec<u16>,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            allow_public_traffic: true,
            allow_out: Vec::new(),
            deny_out: Vec::new(),
            egress_proxy: None,
            mask_request_host: None,
            rules: BTreeMap::new(),
            dns_servers: Vec::new(),
            https_ports: Vec::new(),
        }
    }
}

/// `PUT /sandboxes/{id}/network`. It replaces all: what is left out is cleared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkUpdate {
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub allow_out: Vec<String>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub deny_out: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress_proxy: Option<EgressProxy>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub rules: BTreeMap<String, Vec<NetworkRule>>,
    /// `false` is the same as to deny `0.0.0.0/0`.
    #[serde(default, rename = "allow_internet_access", skip_serializing_if = "Option::is_none")]
    pub allow_internet_access: Option<bool>,
}

/// A SOCKS5 proxy that all traffic leaves through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressProxy {
    /// `host:port`
    pub address: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
    /// Carried on as it is: only the newest clients say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkRule {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transform: Option<NetworkTransform>,
}

/// Headers that requests to the host get on their way. They are where clients put credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkTransform {
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, Secret>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ports_are_open_to_all_unless_that_is_denied() {
        for sent in [json!({}), json!({"allowPublicTraffic": null}), json!({"allowPublicTraffic": true})] {
            assert_eq!(serde_json::from_value::<NetworkConfig>(sent).unwrap(), NetworkConfig::default());
        }
        let closed: NetworkConfig = serde_json::from_value(json!({"allowPublicTraffic": false})).unwrap();
        assert!(!closed.allow_public_traffic);
    }

    #[test]
    fn all_that_can_be_said_is_read_and_written() {
        let sent = json!({
            "allowPublicTraffic": true, "allowOut": ["1.1.1.1", "*.example.com"], "denyOut": ["0.0.0.0/0"],
            "egressProxy": {"address": "proxy.test:1080", "username": "u", "password": "hush", "tls": true},
            "maskRequestHost": "localhost:${PORT}",
            "rules": {"api.test": [{"transform": {"headers": {"Authorization": "Bearer hush"}}}, {}]},
            "dnsServers": ["9.9.9.9"], "httpsPorts": [443, 8443],
        });
        let config: NetworkConfig = serde_json::from_value(sent.clone()).unwrap();
        assert!(!format!("{config:?}").contains("hush"));
        assert_eq!(serde_json::to_value(config).unwrap(), sent);
    }

    #[test]
    fn an_update_clears_what_it_leaves_out() {
        let nulls = json!({
            "allowOut": null, "denyOut": null, "egressProxy": null, "rules": null, "allow_internet_access": null,
        });
        for sent in [json!({}), nulls] {
            assert_eq!(serde_json::from_value::<NetworkUpdate>(sent).unwrap(), NetworkUpdate::default());
        }
        let sent = json!({"allowOut": ["8.8.8.8"], "denyOut": ["0.0.0.0/0"], "allow_internet_access": false});
        let update: NetworkUpdate = serde_json::from_value(sent.clone()).unwrap();
        assert_eq!(update.allow_internet_access, Some(false));
        assert_eq!(serde_json::to_value(update).unwrap(), sent);
    }

    #[test]
    fn a_proxy_needs_an_address() {
        serde_json::from_value::<NetworkUpdate>(json!({"egressProxy": {"username": "u"}})).unwrap_err();
    }
}
