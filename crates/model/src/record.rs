//! What is known of a sandbox, a call and a task.

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

/// States by their names.
macro_rules! states {
    ($($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
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

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    )*};
}
pub(crate) use states;

states! {
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
    /// What became of a try to make a template. The last two are for ever.
    BuildState {
        /// It was asked for, and its files may be on their way.
        Waiting = "waiting",
        Building = "building",
        Ready = "ready",
        Failed = "failed",
    }
    /// Where a volume is in its life. Nobody but the server sees one that is not ready; whoever finds one that nobody makes or
    /// deletes any more, removes it.
    VolumeState {
        Making = "making",
        Ready = "ready",
        Deleting = "deleting",
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
    fn names_of_states_read_back() {
        assert!(TaskState::ALL.iter().all(|state| TaskState::parse(state.as_str()) == Some(*state)));
        assert_eq!(TaskState::parse("Running"), None);
    }
}
