//! What calls can do. One file a verb.

pub mod exec;
pub mod files;
pub mod sandbox;
pub mod start;

pub use crate::exec::Asked;
