//! E2B's protocol on the wire: types, envelope, signature.

pub mod connect;
pub mod envelope;
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzzing;
