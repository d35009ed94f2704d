//! What calls can do. One file a verb.

pub mod exec;
pub mod files;
pub mod sandbox;
pub mod snapshot;
pub mod start;
pub mod template;
pub mod terminal;
pub mod volume;

pub use crate::exec::Asked;
