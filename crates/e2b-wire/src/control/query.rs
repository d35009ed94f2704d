//! The query parameters of what is looked up.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{LogLevel, SandboxState};

/// `GET /v2/sandboxes`, and with the metadata alone `GET /sandboxes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListSandboxes {
    /// For [`crate::metadata::read_filter`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<String>,
    #[serde(default)]
    pub state: States,
    #[serde(default)]
    pub order: Order,
    /// This moment counts too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_after: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
    /// 1 to 100, which is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// Written with commas: `running,paused`. Whoever names none means all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct States(BTreeSet<SandboxState>);

impl States {
    pub fn contain(&self, state: SandboxState) -> bool {
        self.0.contains(&state)
    }
}

impl Default for States {
    fn default() -> Self {
        Self([SandboxState::Running, SandboxState::Paused].into())
    }
}

impl FromIterator<SandboxState> for States {
    fn from_iter<I: IntoIterator<Item = SandboxState>>(states: I) -> Self {
        let states = states.into_iter().collect::<BTreeSet<_>>();
        if states.is_empty() { Self::default() } else { Self(states) }
    }
}

impl<'de> Deserialize<'de> for States {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let names = text.split(',').filter(|name| !name.is_empty());
        names
            .map(|name| match name {
                "running" => Ok(SandboxState::Running),
                "paused" => Ok(SandboxState::Paused),
                other => Err(de::Error::unknown_variant(other, &["running", "paused"])),
            })
            .collect()
    }
}

impl Serialize for States {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let name = |state: &SandboxState| match state {
            SandboxState::Running => "running",
            SandboxState::Paused => "paused",
        };
        serializer.serialize_str(&self.0.iter().map(name).collect::<Vec<_>>().join(","))
    }
}

/// By when they were started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    Asc,
    #[default]
    Desc,
}

/// `GET /sandboxes/{id}/metrics`, in seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricsQuery {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<i64>,
}

/// `GET /sandboxes/{id}/logs` and `GET /v2/sandboxes/{id}/logs`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogsQuery {
    /// In milliseconds since 1970; the older route says `start`.
    #[serde(default, alias = "start", skip_serializing_if = "Option::is_none")]
    pub cursor: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    #[serde(default)]
    pub direction: Direction,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<LogLevel>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    #[default]
    Forward,
    Backward,
}

/// `GET /snapshots`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListSnapshots {
    #[serde(default, rename = "sandboxID", skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

/// `GET /templates/{id}/builds/{build}/status`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BuildStatusQuery {
    /// How many entries the client has already.
    #[serde(default)]
    pub logs_offset: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<LogLevel>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn list(query: serde_json::Value) -> ListSandboxes {
        serde_json::from_value(query).unwrap()
    }

    #[test]
    fn whoever_asks_for_nothing_gets_all_of_both_states_newest_first() {
        let query = list(json!({}));
        assert!(query.state.contain(SandboxState::Running) && query.state.contain(SandboxState::Paused));
        assert_eq!((query.order, query.limit), (Order::Desc, None));
        assert_eq!(list(json!({"state": ""})).state, States::default());
    }

    #[test]
    fn states_are_joined_by_commas() {
        let paused = list(json!({"state": "paused"})).state;
        assert!(paused.contain(SandboxState::Paused) && !paused.contain(SandboxState::Running));
        assert_eq!(list(json!({"state": "paused,running"})).state, States::default());
        assert_eq!(serde_json::to_value(States::default()).unwrap(), "running,paused");
        assert!(serde_json::from_value::<ListSandboxes>(json!({"state": "running,gone"})).is_err());
    }

    #[test]
    fn all_that_can_be_asked_is_read() {
        let query = list(json!({
            "metadata": "k=v", "state": "running", "order": "asc", "startedAfter": "2026-11-17T02:00:00Z",
            "template": "base", "nextToken": "abc", "limit": 100,
        }));
        assert_eq!(query.started_after, Some("2026-11-17T02:00:00Z".parse().unwrap()));
        assert_eq!((query.order, query.limit, query.next_token.as_deref()), (Order::Asc, Some(100), Some("abc")));
    }

    #[test]
    fn the_other_lists_are_asked_for() {
        let query: LogsQuery =
            serde_json::from_value(json!({"start": 5, "direction": "backward", "level": "warn"})).unwrap();
        assert_eq!((query.cursor, query.direction, query.level), (Some(5), Direction::Backward, Some(LogLevel::Warn)));
        let query: ListSnapshots = serde_json::from_value(json!({"sandboxID": "iabc", "nextToken": "t"})).unwrap();
        assert_eq!((query.sandbox_id.as_deref(), query.next_token.as_deref()), (Some("iabc"), Some("t")));
        let query: BuildStatusQuery = serde_json::from_value(json!({"logsOffset": 3})).unwrap();
        assert_eq!(query.logs_offset, 3);
        let query: MetricsQuery = serde_json::from_value(json!({"start": 1})).unwrap();
        assert_eq!((query.start, query.end), (Some(1), None));
    }
}
