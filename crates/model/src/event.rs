//! What events are called, and which of them somebody wants to hear of.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::{Life, SandboxState, Time};

/// Every type of event.
pub const EVENTS: &[&str] = &[
    "sandbox.created",
    "sandbox.running",
    "sandbox.stopped",
    "sandbox.paused",
    "sandbox.failed",
    "sandbox.deleted",
    "sandbox.archived",
    "sandbox.hook",
    "sandbox.out_of_memory",
    "sandbox.disk_full",
    "sandbox.base_changed",
    "task.started",
    "task.ended",
    "network.allowed",
    "network.denied",
    "webhook.disabled",
];

impl Life {
    /// The type of the event that tells that a sandbox has become this. `None`: nothing that anybody waits for.
    pub fn event(self) -> Option<&'static str> {
        Some(match self.state {
            SandboxState::Running => "sandbox.running",
            SandboxState::Paused => "sandbox.paused",
            SandboxState::Stopped => "sandbox.stopped",
            SandboxState::Archived => "sandbox.archived",
            SandboxState::Failed => "sandbox.failed",
            _ if self == Self::CLAIMED => "sandbox.created",
            _ if self == Self::DOOMED => "sandbox.deleted",
            _ => return None,
        })
    }
}

/// The id of an event that tells of a change which has a time and a name of its own. Whoever tells of it, and however often,
/// says the same; and what it was made of cannot be read from it.
pub fn event_id(at: Time, what: &str, version: u64) -> Uuid {
    let digest = Sha256::new().chain_update(what).chain_update([0]).chain_update(version.to_le_bytes()).finalize();
    let mut chance = [0; 10];
    chance.copy_from_slice(&digest[..10]);
    let millis = u64::try_from(at.as_millisecond()).unwrap_or(0);
    uuid::Builder::from_unix_timestamp_millis(millis, &chance).into_uuid()
}

/// Which types somebody wants to hear of: `sandbox.stopped`, or `sandbox.*` for all that begin so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct EventFilter(Vec<String>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventFilterError {
    #[error("names nothing: leave it out for all changes of sandboxes and ends of tasks")]
    Empty,
    #[error("has more than {0} entries")]
    TooMany(usize),
    #[error("there is no event {0:?}; there are {list}, and `sandbox.*` for all that begin so", list = EVENTS.join(", "))]
    Unknown(String),
}

impl EventFilter {
    const MOST: usize = 32;

    pub fn new(patterns: Vec<String>) -> Result<Self, EventFilterError> {
        if patterns.is_empty() {
            return Err(EventFilterError::Empty);
        }
        if patterns.len() > Self::MOST {
            return Err(EventFilterError::TooMany(Self::MOST));
        }
        match patterns.iter().find(|pattern| !EVENTS.iter().any(|event| matches(pattern, event))) {
            Some(unknown) => Err(EventFilterError::Unknown(unknown.chars().take(100).collect())),
            None => Ok(Self(patterns)),
        }
    }

    pub fn covers(&self, event: &str) -> bool {
        self.0.iter().any(|pattern| matches(pattern, event))
    }

    pub fn patterns(&self) -> &[String] {
        &self.0
    }
}

fn matches(pattern: &str, event: &str) -> bool {
    match pattern.strip_suffix(".*") {
        Some(family) => event.split_once('.').is_some_and(|(first, _)| first == family),
        None => pattern == event,
    }
}

impl Default for EventFilter {
    /// What becomes of sandboxes and tasks. Of the network there is so much that somebody has to want it.
    fn default() -> Self {
        Self(vec!["sandbox.*".to_owned(), "task.*".to_owned()])
    }
}

impl TryFrom<Vec<String>> for EventFilter {
    type Error = EventFilterError;
    fn try_from(patterns: Vec<String>) -> Result<Self, EventFilterError> {
        Self::new(patterns)
    }
}

impl From<EventFilter> for Vec<String> {
    fn from(filter: EventFilter) -> Vec<String> {
        filter.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(patterns: &[&str]) -> Result<EventFilter, EventFilterError> {
        EventFilter::new(patterns.iter().map(|pattern| (*pattern).to_owned()).collect())
    }

    #[test]
    fn a_filter_covers_what_it_names_and_a_family_all_that_begin_so() {
        let one = filter(&["sandbox.stopped"]).unwrap();
        assert!(one.covers("sandbox.stopped") && !one.covers("sandbox.running") && !one.covers("sandbox.stopped2"));
        let family = filter(&["task.*"]).unwrap();
        assert!(family.covers("task.ended") && !family.covers("sandbox.created"));
        let usual = EventFilter::default();
        let heard: Vec<_> = EVENTS.iter().filter(|event| usual.covers(event)).collect();
        assert_eq!(heard.len(), EVENTS.len() - 3, "all but those of the network and of webhooks");
        assert_eq!(EventFilter::new(usual.clone().into()), Ok(usual));
    }

    #[test]
    fn what_covers_nothing_is_refused() {
        assert_eq!(filter(&[]), Err(EventFilterError::Empty));
        for bad in ["", "*", "sandbox", "sandbox.", "sandbox.*.*", "sandbox.st*", "nothing.*", "SANDBOX.stopped", ".*"]
        {
            assert!(matches!(filter(&["task.*", bad]), Err(EventFilterError::Unknown(_))), "{bad}");
        }
        assert_eq!(filter(&["task.*"; 33]), Err(EventFilterError::TooMany(32)));
    }

    #[test]
    fn what_is_told_of_a_life_is_an_event_and_its_id_is_that_of_the_change() {
        for state in SandboxState::ALL {
            let settled = Life { state: *state, phase: None };
            assert!(settled.event().is_none_or(|event| EVENTS.contains(&event)));
            assert_eq!(settled.event().is_some(), state.is_settled(), "{state}");
        }
        assert_eq!((Life::CLAIMED.event(), Life::DOOMED.event()), (Some("sandbox.created"), Some("sandbox.deleted")));
        let at = Time::from_second(1_800_000_000).unwrap();
        let id = event_id(at, "k3vq7xw2m9pd5ru8thya", 3);
        assert_eq!(id, event_id(at, "k3vq7xw2m9pd5ru8thya", 3));
        assert_ne!(id, event_id(at, "k3vq7xw2m9pd5ru8thya", 4));
        assert!(id < event_id(Time::from_second(1_800_000_001).unwrap(), "k3vq7xw2m9pd5ru8thya", 4));
        assert_eq!(id.get_version_num(), 7);
    }
}
