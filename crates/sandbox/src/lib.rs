//! The one interface: a provider is where sandboxes live; a sandbox runs commands and holds files.
//!
//! [`Provider`] makes, starts, stops and deletes; [`Sandbox`] is one live environment; [`Files`] is its files as one user
//! sees them; [`Process`] is a running command in parts. What every provider would have to write again stands on top of
//! it, once: [`run`] a command to its end, [`walk`], [`copy`] and [`zip`] trees, and the fallbacks of search, walk, pack and
//! unpack.
//!
//! The contract of every method: idempotent by the id that the caller chose. Dropping a future ends the waiting, not the
//! thing: what did start is found again by its id. Pulling is the back-pressure. No method retries, logs to the caller or
//! falls back to something weaker. Time, idleness, quotas, cwd, ledger and dialects are the runtime's.
//!
//! [`Places`] is for those who make sandboxes and those who use them: what all sandboxes share, and who has how much of it.
//!
//! The conformance suite in `testkit` is the definition; the words here explain it.

mod capabilities;
mod copy;
mod error;
mod exec;
mod fallback;
mod files;
mod patterns;
mod places;
mod provider;
mod run;
mod spec;
mod template;
mod transfer;
mod walk;
mod zip;

pub use cabana_model::{Code, ExecId, LayerId, PathError, SandboxId, SandboxPath, SnapshotId, User, VolumeId};
pub use capabilities::{Capabilities, Enforced, Identities};
pub use copy::copy;
pub use error::{Cause, Error, NotRun, Result};
pub use exec::{
    Channel, Command, Control, Event, ExecSpec, Exit, Output, Position, Process, Reattached, Status, Stdin, Stdio,
    Target, TermSize, check_env,
};
pub use fallback::{pack, search, unpack, walk_tree};
pub use files::{
    Alter, Change, DEFAULT_FILE_CAP, Depth, FileInfo, Files, Hit, Kind, Link, Read, Search, TreeItem, Walk,
    WatchBudget, WatchEvent, Write, WriteMode,
};
pub use patterns::{IgnoreRules, IgnoreRulesBuilder, MAX_IGNORE_FILE};
pub use places::{Holder, Place, Places};
pub use provider::{
    Duplex, Found, Provider, Sandbox, SandboxEvent, State, Stored, StoredParts, Stream, Tell, Usage, Wanted,
};
pub use run::{ExecOutcome, Kept, run};
pub use spec::{Base, Defaults, Lifetime, Limits, NetworkPolicy, SandboxSpec, Source, View, check_views};
pub use template::{Overrides, Service, Template};
pub use transfer::{make_dirs, read_all, write_all};
pub use walk::walk;
pub use zip::zip;
