//! What the server remembers, in one SQLite database and a folder of outputs beside it.
//!
//! [`Store`] offers named transactions, not queries: SQL is written only here. What is written goes into a journal, and is
//! answered then: it is there after a kill -9. The database takes it a little later, so that a hundred callers pay for one
//! commit. Reads have connections of their own, and see all that was answered.
//!
//! - keys, sandboxes, snapshots, volumes, calls, tasks and webhooks are rows that change; what a webhook is to be told is
//!   written with the change itself;
//! - the [`ledger`] only grows, and each row carries the hash of the one before;
//! - [`Outputs`] keeps what commands said: a little in memory and then in the call's row, more in files.

mod backup;
mod blobs;
mod build_layers;
mod build_tags;
mod builds;
mod calls;
mod checkpoints;
mod desk;
mod error;
mod fault;
mod journal;
mod keys;
mod leases;
pub mod ledger;
mod outputs;
mod page;
mod quotas;
mod reads;
mod reserve;
mod retention;
mod sandboxes;
mod schema;
mod secrets;
mod snapshots;
mod sql;
mod store;
mod tasks;
mod tenant_permits;
mod usage;
mod volumes;
mod webhooks;
mod writer;

pub use blobs::Blobs;
pub use build_layers::{Kept as KeptLayers, Layer};
pub use build_tags::Tag;
pub use builds::{Build, Built, LeftBuild, ListedBuild, ListedTemplate, NewBuild, OwnTemplate};
pub use calls::{CallRow, Done, Inline, NewCall, Reserved};
pub use error::{Error, Result};
pub use fault::ALL as FAULT_POINTS;
pub use keys::{Key, NewKey};
pub use leases::{Lease, Token};
pub use ledger::{Dropped, Entry, Head, LedgerRow, Older};
pub use outputs::{Chunk, Ended, Log, OutputFile, Outputs, Stored, Stream};
pub use page::{Page, RowSize};
pub use quotas::{Admitted, Held, Owner, Said};
pub use reserve::Reserve;
pub use retention::{Over, OverId, Used, UsedKind};
pub use sandboxes::{Begun, BegunPage, By, Claim, Claimed, DueSandbox, KnownSpec, Moved, Record, Transition, Which};
pub use snapshots::{AboutSnapshot, NewSnapshot, Snapshot, SnapshotStep};
pub use store::{Durability, Store};
pub use tasks::{NewTask, Task, TaskEnd};
pub use tenant_permits::TenantPermits;
pub use usage::Usage;
pub use volumes::Volume;
pub use webhooks::{Delivery, NewWebhook, Webhook};
