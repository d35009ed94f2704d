//! What calls can do. One file a verb.

pub mod backup;
pub mod build;
pub mod exec;
pub mod files;
pub mod gc;
pub mod lease {
    pub use crate::leases::{LONGEST, MOST_PATIENCE, Release, Renew, Take, Taken, USUAL};
}
pub mod measure;
pub mod purge;
pub mod sandbox;
pub mod snapshot;
pub mod start;
pub mod task;
pub mod template;
pub mod terminal;
pub mod volume;
pub mod webhook;

pub use crate::exec::Asked;
