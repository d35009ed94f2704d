//! What happens between a front and a sandbox.
//!
//! A front makes an [`Ask`] (who, which sandbox, which Idempotency-Key) and an act, gives both to [`Runtime::call`], and
//! translates what comes back. It never sees a provider. An [`Act`] changes something: it is reserved before it starts and
//! recorded before anybody hears of it. A [`Look`] changes nothing, and leaves one row in the ledger.
//!
//! The work of a call is a task of the runtime, and a [`Call`] is a handle on it. So a client that goes away, a second reader,
//! a repeated request and a follower after a crash are one path.

pub mod acts;
pub mod backup;

mod access;
mod call;
mod clock;
mod error;
mod events;
mod exec;
mod fault;
mod hashing;
mod hooks;
mod leases;
mod links;
mod metrics;
mod mounts;
mod output;
mod ports;
mod reads;
mod reaper;
mod recover;
mod retention;
mod runtime;
mod said;
mod sandboxes;
mod search;
mod settings;
mod snapshots;
mod space;
mod tasks;
mod templates;
mod text;
mod told;
mod volumes;
mod watches;

pub use access::{Access, Caller, Credential, Issued};
pub use cabana_model::{
    Action, CallId, Code, Hook, KeyId, Lifecycle, Mount, MountMode, MountRules, MountSource, Outcome, Retention, Role,
    SandboxId, SandboxState, Scheme, Scope, ScopeTemplate, SnapshotId, TaskId, TaskState, Tenant, Time, VolumeName,
};
pub use cabana_store::{
    CallRow, Chunk, Dropped, Error as StoreError, Head, Key, Lease, LedgerRow, Log, Page, Record, Snapshot,
    Stream as Channel, Task, Token, Volume, Which,
};
pub use call::{Act, Ask, Call, Cx, IdempotencyKey, Look, Needs, Place};
pub use clock::Clock;
pub use error::{Error, Result};
pub use events::{Event, Happened, Heard, Listener};
pub use fault::ALL as FAULT_POINTS;
pub use links::{Grant, Link, Signed, Unlink};
pub use metrics::{BUCKETS, Metrics, Verb};
pub use mounts::Mounts;
pub use ports::{Connection, Visitor};
pub use reaper::Reaped;
pub use retention::{Collected, Counted};
pub use runtime::Runtime;
pub use sandboxes::{Kind, Wanted};
pub use search::{Found, Line, search};
pub use settings::Settings;
pub use space::Room;
pub use text::Text;
pub use told::Told;
