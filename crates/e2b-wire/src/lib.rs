//! E2B's protocol on the wire: types, envelope, signature.

pub mod connect;
pub mod envelope;
pub mod filesystem;
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzzing;
mod permissions;
pub mod process;
mod proto;

pub use permissions::permissions;
