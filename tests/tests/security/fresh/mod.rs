//! Attempts that were thought of later, by somebody who had not built the walls.

mod deputy;
mod disk;
mod inherited;
mod kernel;
mod memory;
mod persistence;
mod snapshots;
mod uncharged;
mod uncounted;
