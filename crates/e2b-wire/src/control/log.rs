//! What a sandbox said, for those who look at it from outside.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::json::or_default;

/// `GET /v2/sandboxes/{id}/logs`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxLogsV2 {
    #[serde(default, deserialize_with = "or_default")]
    pub logs: Vec<LogEntry>,
}

/// `GET /sandboxes/{id}/logs`: the same twice, since older clients read the lines alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxLogs {
    #[serde(default, deserialize_with = "or_default")]
    pub logs: Vec<LogLine>,
    #[serde(default, deserialize_with = "or_default")]
    pub log_entries: Vec<LogEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    pub timestamp: Timestamp,
    pub line: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    pub timestamp: Timestamp,
    pub message: String,
    pub level: LogLevel,
    #[serde(default, deserialize_with = "or_default")]
    pub fields: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Debug,
    Info,
    Warn,
    Error,
}

impl From<Vec<LogEntry>> for SandboxLogs {
    fn from(log_entries: Vec<LogEntry>) -> Self {
        let line = |entry: &LogEntry| LogLine { timestamp: entry.timestamp, line: entry.message.clone() };
        Self { logs: log_entries.iter().map(line).collect(), log_entries }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_kinds_of_logs_say_the_same() {
        let entry = json!({
            "timestamp": "2026-11-17T02:00:00Z", "message": "started", "level": "info", "fields": {"pid": "7"},
        });
        let logs: SandboxLogsV2 = serde_json::from_value(json!({"logs": [entry]})).unwrap();
        assert_eq!(serde_json::to_value(&logs).unwrap(), json!({"logs": [entry]}));
        let older = json!({
            "logs": [{"timestamp": "2026-11-17T02:00:00Z", "line": "started"}], "logEntries": [entry],
        });
        assert_eq!(serde_json::to_value(SandboxLogs::from(logs.logs)).unwrap(), older);
    }

    #[test]
    fn no_logs_are_an_empty_list() {
        assert_eq!(serde_json::to_value(SandboxLogsV2::default()).unwrap(), json!({"logs": []}));
        assert_eq!(serde_json::from_value::<SandboxLogsV2>(json!({"logs": null})).unwrap(), SandboxLogsV2::default());
    }

    #[test]
    fn levels_have_an_order() {
        assert!(LogLevel::Debug < LogLevel::Info && LogLevel::Warn < LogLevel::Error);
    }
}
