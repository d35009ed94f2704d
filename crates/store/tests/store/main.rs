//! The store through its public interface: what is promised, and what must hold when disk, process and database fail.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

mod builds;
mod calls;
mod faults;
mod keys;
mod kills;
mod ledger;
mod outputs;
mod quotas;
mod retention;
mod sandboxes;
mod snapshots;
mod stage;
mod tasks;
mod upgrade;
mod usage;
mod volumes;
mod webhooks;
