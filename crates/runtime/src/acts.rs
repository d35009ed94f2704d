//! What calls can do. One file a verb.

pub mod backup;
pub mod exec;
pub mod files;
pub mod gc;
pub mod sandbox;
pub mod snapshot;
pub mod start;
pub mod template;
pub mod terminal;

pub use crate::exec::Asked;
