//! Nouns and pure decisions, without I/O.
//!
//! Everything here is a value: an id that cannot be malformed, a path that cannot leave its root by spelling, a public
//! error code that has a page. What a value promises is checked once, where it is made.

mod code;
mod id;
mod path;

pub use code::Code;
pub use id::{ExecId, LayerId, ParseIdError, SandboxId, User};
pub use path::{PathError, SandboxPath};
