//! `cabana serve`, over HTTP.

#![allow(clippy::unwrap_used)] // a case that cannot go on says so by a panic

mod calls;
mod document;
mod events;
mod inside;
mod kills;
mod metrics;
mod port_attacks;
mod port_links;
mod ports;
mod scopes;
mod soak;
mod stage;
mod streams;
mod tasks;
mod tenants;
mod terminal_attacks;
mod terminals;
