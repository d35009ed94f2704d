//! Nouns and pure decisions, without I/O.
//!
//! Everything here is a value: an id that cannot be malformed, a path that cannot leave its root by spelling, a public
//! error code that has a page. What a value promises is checked once, where it is made.

mod code;
mod dialect;
mod event;
mod id;
mod life;
mod lifecycle;
mod mount;
mod path;
mod profile;
mod quota;
mod record;
pub mod retention;
mod scope;

pub use code::Code;
pub use dialect::{Dialect, DialectError, Reaper, Texts};
pub use event::{EVENTS, EventFilter, EventFilterError, event_id};
pub use id::{
    BuildId, CallId, ExecId, KeyId, LayerId, ParseIdError, SandboxId, SnapshotId, TaskId, TemplateId, Tenant, User,
    VolumeId, VolumeName, WebhookId,
};
pub use life::{Hooked, Life, Operation, Phase, Reality, SandboxState, Then};
pub use lifecycle::{Action, Due, Facts, Hook, Lifecycle, LifecycleError, Sentence, Verdict, Work};
pub use mount::{Mount, MountMode, MountRefused, MountRules, MountSource};
pub use path::{PathError, SandboxPath};
pub use profile::{Clamped, Field, Most, NetworkMode, Profile, ProfileError, Traits};
pub use quota::{Amounts, BOUNDLESS, Bucket, Exceeded, Quota, Resource, admit, amount};
pub use record::{BuildState, Outcome, Role, SnapshotState, TaskState, Time, VolumeState};
pub use retention::Retention;
pub use scope::{Scheme, Scope, ScopeError, ScopeTemplate};
