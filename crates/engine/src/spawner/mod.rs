//! The spawner: a small single-threaded process that makes sandboxes.
//!
//! The server has many threads, and a fork of such a process copies locks, keys and descriptors that nobody can account
//! for. So it starts one child at its beginning (by posix_spawn, from a sealed copy of the binary) and asks it for each
//! sandbox. A spawner that dies is replaced at the next request; the sandboxes that it made live on.

mod client;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod process;

pub(crate) use client::{LaunchError, Spawner};
pub(crate) use process::{MAX_LOWER, main};
