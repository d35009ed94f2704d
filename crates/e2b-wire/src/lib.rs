//! E2B's protocol on the wire: types, envelope, signature.

pub mod connect;
pub mod envelope;
pub mod filesystem;
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzzing;
mod generation;
pub mod header;
pub mod metadata;
mod permissions;
pub mod process;
mod proto;
mod sandbox_id;
mod secret;
pub mod signature;

pub use generation::{Generation, Language, Sdk};
pub use permissions::permissions;
pub use sandbox_id::{SandboxHost, SandboxId, SandboxIdError};
pub use secret::Secret;
