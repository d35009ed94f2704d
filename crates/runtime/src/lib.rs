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
mod builds;
mod call;
mod clock;
mod disk_pressure;
mod error;
mod events;
mod exec;
mod fault;
pub mod fault_lines;
mod finishing;
mod hashing;
mod hooks;
mod incoming;
mod kernel_watches;
mod key_life;
mod leases;
mod limits;
mod links;
mod live;
mod memory;
mod metrics;
mod mounts;
mod output;
mod ports;
mod profiles;
mod quotas;
mod read_rows;
mod reads;
mod ready;
mod reaper;
mod recover;
mod retention;
mod runtime;
mod said;
mod sandboxes;
mod search;
mod series;
mod settings;
mod shares;
mod snapshots;
mod space;
mod store_health;
mod tasks;
mod templates;
mod text;
mod tokens;
mod told;
mod turns;
mod uploads;
mod url_calls;
mod volumes;
mod watches;
mod webhooks;
mod words;

pub use access::{Access, Caller, Credential, Issued, Subject, WantedKey};
pub use builds::BUILDING;
pub use cabana_model::{
    Action, Amounts, BOUNDLESS, BuildId, BuildState, CallId, Clamped, Code, EventFilter, Exceeded, Hook, KeyId,
    Lifecycle, Mount, MountMode, MountRules, MountSource, Outcome, Quota, Resource, Retention, Role, SandboxId,
    SandboxState, Scheme, Scope, ScopeTemplate, SnapshotId, TaskId, TaskState, TemplateId, Tenant, Time, VolumeName,
    WebhookId,
};
pub use cabana_store::{
    AboutSnapshot, Begun, BegunPage, Build, Built, CallRow, Chunk, Delivery, Dropped, Error as StoreError, Head, Key,
    KnownSpec, Layer, Lease, LedgerRow, ListedBuild, ListedTemplate, Log, OwnTemplate, Owner, Page, Record, RowSize,
    Snapshot, Stream as Channel, Tag, Task, TenantPermits, Token, Usage, Volume, Webhook, Which,
};
pub use call::{Act, Ask, Call, Cx, IdempotencyKey, Look, Needs, Place};
pub use clock::Clock;
pub use error::{Error, Result};
pub use events::{Announcement, Event, EventBody, Happened, Heard, Listener};
pub use fault::ALL as FAULT_POINTS;
pub use incoming::IncomingSeat;
pub use key_life::KeyLife;
pub use limits::Standing;
pub use links::{Grant, Link, Signed, Unlink};
pub use live::Live;
pub use memory::{MemoryCharge, MemoryLedger};
pub use metrics::{BUCKETS, Metrics, Verb};
pub use mounts::Mounts;
pub use ports::{Connection, Visitor};
pub use profiles::Wish;
pub use reads::AnswerTurn;
pub use ready::BringUp;
pub use reaper::Reaped;
pub use recover::Recovery;
pub use retention::{Collected, Counted};
pub use runtime::Runtime;
pub use sandboxes::{Kind, Wanted};
pub use search::{Found, Line};
pub use series::Sample;
pub use settings::Settings;
pub use space::{Room, Supply};
pub use tasks::{Seen, Typed};
pub use text::Text;
pub use tokens::{ExpectedToken, Opens};
pub use told::Told;
pub use turns::{TenantTurn, Turn, Turns};
pub use uploads::{Hash, MOST_BYTES as MOST_UPLOADED};
pub use webhooks::{Tried, check_rules};
pub use words::{MAX_KEPT_ENV, check_kept_env};
