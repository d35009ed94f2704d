//! The plain HTTP of a sandbox's agent: files, usage, environment; and what is said in its place when it is not there.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{SandboxId, control::ApiError, header::TRAFFIC_ACCESS_TOKEN, json::or_default};

/// One of what `POST /files` answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenFile {
    pub path: String,
    pub name: String,
    pub r#type: WrittenType,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WrittenType {
    #[default]
    File,
}

/// `POST /files/compose`: several files become one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compose {
    pub source_paths: Vec<String>,
    pub destination: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
}

/// The query of `/files`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesQuery {
    /// Without one, each part of an upload names its file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature_expiration: Option<i64>,
}

/// Why a file was not served or taken. The texts are those that E2B's agent has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilesError {
    #[error("path '{0}' is a directory")]
    IsDirectory(String),
    #[error("path '{0}' does not exist")]
    NotFound(String),
    #[error("error looking up user '{0}': user: unknown user {0}")]
    UnknownUser(String),
    #[error(transparent)]
    Access(#[from] crate::signature::AccessError),
    #[error("no acceptable encoding found, supported: [identity, gzip]")]
    NotAcceptable,
    #[error("not enough disk space available")]
    NoSpace,
}

impl FilesError {
    pub fn http_status(&self) -> u16 {
        match self {
            Self::IsDirectory(_) => 400,
            Self::UnknownUser(_) | Self::Access(_) => 401,
            Self::NotFound(_) => 404,
            Self::NotAcceptable => 406,
            Self::NoSpace => 507,
        }
    }
}

impl From<FilesError> for ApiError {
    fn from(error: FilesError) -> Self {
        Self::new(error.http_status(), error.to_string())
    }
}

/// `GET /metrics`: what the sandbox uses now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// In seconds since 1970.
    pub ts: i64,
    pub cpu_count: u32,
    pub cpu_used_pct: f64,
    pub mem_total: u64,
    pub mem_used: u64,
    #[serde(default)]
    pub mem_cache: u64,
    pub mem_total_mib: u64,
    pub mem_used_mib: u64,
    pub disk_used: u64,
    pub disk_total: u64,
}

/// `GET /envs`
pub type Envs = BTreeMap<String, String>;

/// What the proxy says in place of a sandbox that cannot answer. Clients look for words of its message to tell a sandbox that
/// ended from a port on which nobody listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unreachable {
    pub sandbox_id: SandboxId,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    pub code: u16,
}

impl Unreachable {
    pub const STATUS: u16 = 502;

    /// It ended, is paused, or never was.
    pub fn gone(sandbox_id: SandboxId) -> Self {
        Self { sandbox_id, message: "The sandbox was not found".into(), port: None, code: Self::STATUS }
    }

    /// It runs, and nothing in it listens there.
    pub fn closed(sandbox_id: SandboxId, port: u16) -> Self {
        let message = "The sandbox is running but port is not open".into();
        Self { sandbox_id, message, port: Some(port), code: Self::STATUS }
    }

    /// Its ports are not open to everybody, and no token was shown.
    pub fn no_token(sandbox_id: SandboxId) -> Self {
        let message = format!("This sandbox asks for a traffic token: the header '{TRAFFIC_ACCESS_TOKEN}' is missing");
        Self { sandbox_id, message, port: None, code: 403 }
    }

    /// Not the one that was shown.
    pub fn wrong_token(sandbox_id: SandboxId) -> Self {
        let message = format!(
            "This sandbox asks for a traffic token: the one in the header '{TRAFFIC_ACCESS_TOKEN}' is not valid"
        );
        Self { sandbox_id, message, port: None, code: 403 }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::signature::AccessError;

    #[test]
    fn an_upload_says_what_it_wrote() {
        let mut file = WrittenFile {
            path: "/home/user/a.txt".into(),
            name: "a.txt".into(),
            r#type: WrittenType::File,
            metadata: BTreeMap::new(),
        };
        let body = r#"[{"path":"/home/user/a.txt","name":"a.txt","type":"file"}]"#;
        assert_eq!(serde_json::to_string(&[&file]).unwrap(), body);
        assert_eq!(serde_json::from_str::<[WrittenFile; 1]>(body).unwrap(), [file.clone()]);
        file.metadata.insert("author".into(), "me".into());
        assert_eq!(serde_json::to_value(file).unwrap()["metadata"], json!({"author": "me"}));
    }

    #[test]
    fn errors_are_those_that_clients_know() {
        for (error, status, message) in [
            (FilesError::IsDirectory("/d".into()), 400, "path '/d' is a directory"),
            (FilesError::NotFound("/x".into()), 404, "path '/x' does not exist"),
            (FilesError::UnknownUser("eve".into()), 401, "error looking up user 'eve': user: unknown user eve"),
            (AccessError::Missing.into(), 401, "missing signature query parameter"),
            (FilesError::NotAcceptable, 406, "no acceptable encoding found, supported: [identity, gzip]"),
            (FilesError::NoSpace, 507, "not enough disk space available"),
        ] {
            assert_eq!(ApiError::from(error), ApiError::new(status, message));
        }
    }

    #[test]
    fn a_query_and_a_composition_are_read() {
        let query = json!({"path": "a b", "username": "user", "signature": "v1_x", "signature_expiration": 5});
        let query: FilesQuery = serde_json::from_value(query).unwrap();
        assert_eq!((query.path.as_deref(), query.signature_expiration), (Some("a b"), Some(5)));
        let compose: Compose = serde_json::from_value(json!({"source_paths": ["a", "b"], "destination": "c"})).unwrap();
        assert_eq!((compose.source_paths.len(), compose.username), (2, None));
    }

    #[test]
    fn usage_reads_back() {
        let json = json!({
            "ts": 1_794_880_800, "cpu_count": 2, "cpu_used_pct": 1.5, "mem_total": 2_097_152, "mem_used": 1_048_576,
            "mem_cache": 5, "mem_total_mib": 2, "mem_used_mib": 1, "disk_used": 6, "disk_total": 7,
        });
        let metrics: Metrics = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(serde_json::to_value(metrics).unwrap(), json);
    }

    #[test]
    fn clients_find_the_words_that_they_look_for() {
        let id = || "iabc".parse::<SandboxId>().unwrap();
        let gone = serde_json::to_value(Unreachable::gone(id())).unwrap();
        assert_eq!(gone, json!({"sandboxId": "iabc", "message": "The sandbox was not found", "code": 502}));
        let closed = serde_json::to_value(Unreachable::closed(id(), 8080)).unwrap();
        let message = "The sandbox is running but port is not open";
        assert_eq!(closed, json!({"sandboxId": "iabc", "message": message, "port": 8080, "code": 502}));
        for refused in [Unreachable::no_token(id()), Unreachable::wrong_token(id())] {
            assert!(refused.code == 403 && refused.message.contains("'e2b-traffic-access-token'"), "{refused:?}");
        }
    }
}
