//! Sandboxes outlive the process that made them: what is running goes on, and whoever comes next finds it.
#![allow(clippy::unwrap_used, reason = "a test fails by it, at the line that says what was expected")]

mod abuse;
mod handover;
mod kills;
mod owner;
mod stage;
mod taken_mounts;
