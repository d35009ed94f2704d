//! What calls can do. One file a verb.

pub mod exec;
pub mod files;
pub mod sandbox;
pub mod start;
pub mod terminal;

pub use crate::exec::Asked;
