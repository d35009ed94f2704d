//! What is known of a sandbox, a call and a task.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Code;

/// When something happened.
pub type Time = jiff::Timestamp;

/// What a key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Looks, and changes nothing.
    Read,
    /// Everything with the sandboxes of its tenant.
    Use,
    /// The operator: keys of all tenants and templates too.
    Admin,
}

macro_rules! states {
    ($($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $text)] $variant,)* }

        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|state| state.as_str() == text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    )*};
}

states! {
    /// Where a sandbox is in its life, as its record says.
    ///
    /// ```text
    ///  provisioning ──▶ running ◀──▶ stopped
    ///       │            │  ▲          │
    ///       ▼            ▼  │          │
    ///     failed       paused          │
    ///       │            │             │
    ///       └────────────┴──▶ deleting ◀┘ ──▶ no record
    /// ```
    ///
    /// Who finds `provisioning` or `failed` makes the sandbox, as if it were new; who finds `deleting` ends it.
    SandboxState {
        Provisioning = "provisioning",
        Running = "running",
        Paused = "paused",
        Stopped = "stopped",
        Deleting = "deleting",
        Failed = "failed",
    }
    /// What became of a task. All but the first are for ever.
    TaskState {
        Running = "running",
        Succeeded = "succeeded",
        Failed = "failed",
        Cancelled = "cancelled",
        /// A crash took it, and nobody can say how far it came.
        Unknown = "unknown",
    }
    /// Where a snapshot is in its life. Nobody but the server sees one that is not ready; whoever finds one whose call has
    /// ended, removes it.
    SnapshotState {
        Making = "making",
        Ready = "ready",
        Deleting = "deleting",
    }
    /// Where a volume is in its life. Nobody but the server sees one that is not ready; whoever finds one that nobody makes or
    /// deletes any more, removes it.
    VolumeState {
        Making = "making",
        Ready = "ready",
        Deleting = "deleting",
    }
}

impl SandboxState {
    pub fn may_become(self, next: Self) -> bool {
        use SandboxState::{Deleting, Failed, Paused, Provisioning, Running, Stopped};
        match (self, next) {
            (Deleting, _) | (_, Provisioning) => false,
            (_, Deleting) => true,
            (Provisioning | Failed, Running | Failed) => true,
            (Running, Paused | Stopped | Failed) => true,
            (Paused | Stopped, Running | Failed) => true,
            (Paused, Stopped) => true,
            _ => false,
        }
    }
}

/// How a call ended, as everybody who asks for it hears it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As JSON.
    Answered(bytes::Bytes),
    Failed {
        code: Code,
        message: String,
    },
    Cancelled,
    /// A crash took it; it is never run again by itself.
    Unknown,
}

impl Outcome {
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Answered(_) => "answered",
            Self::Failed { .. } => "failed",
            Self::Cancelled => "cancelled",
            Self::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_but_the_last_has_a_way_out_and_what_is_deleted_stays_so() {
        for &state in SandboxState::ALL {
            let ways = SandboxState::ALL.iter().filter(|next| state.may_become(**next)).count();
            assert_eq!(ways == 0, state == SandboxState::Deleting, "{state}");
            assert_eq!(state.may_become(SandboxState::Deleting), state != SandboxState::Deleting);
        }
    }

    #[test]
    fn names_of_states_read_back() {
        assert!(SandboxState::ALL.iter().all(|state| SandboxState::parse(state.as_str()) == Some(*state)));
        assert!(TaskState::ALL.iter().all(|state| TaskState::parse(state.as_str()) == Some(*state)));
        assert_eq!(SandboxState::parse("Running"), None);
    }
}
