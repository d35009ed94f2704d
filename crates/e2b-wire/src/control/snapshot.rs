//! Snapshots, which can be given wherever a template can.

use serde::{Deserialize, Serialize};

/// `POST /sandboxes/{id}/snapshots`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewSnapshot {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotInfo {
    #[serde(rename = "snapshotID")]
    pub snapshot_id: String,
    pub names: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_may_have_a_name() {
        for body in ["{}", r#"{"name":null,"memory":null}"#] {
            assert_eq!(serde_json::from_str::<NewSnapshot>(body).unwrap(), NewSnapshot::default());
        }
        let named: NewSnapshot = serde_json::from_str(r#"{"name":"x"}"#).unwrap();
        assert_eq!(named.name.as_deref(), Some("x"));
    }

    #[test]
    fn what_it_is_called_is_always_a_list() {
        let info = SnapshotInfo { snapshot_id: "x:default".into(), names: vec![] };
        let body = r#"{"snapshotID":"x:default","names":[]}"#;
        assert_eq!(serde_json::to_string(&info).unwrap(), body);
        assert_eq!(serde_json::from_str::<SnapshotInfo>(body).unwrap(), info);
    }
}
