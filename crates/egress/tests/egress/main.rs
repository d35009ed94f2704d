//! Egress over real sockets: every way out against servers that the tests start, and the attacks that must fail.
#![allow(clippy::unwrap_used, reason = "a test fails by it, at the line that says what was expected")]

mod attacks;
mod dns;
mod encrypted_hello;
mod hello_retry;
mod kernel;
mod late_hello;
mod life;
mod resolver;
mod stage;
mod upstream;
mod ways;
