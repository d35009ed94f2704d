//! `cabana serve`, over HTTP.

#![allow(clippy::unwrap_used)] // a case that cannot go on says so by a panic

mod abuse;
mod bad_input;
mod calls;
mod chat_files;
mod crowds;
mod document;
mod events;
mod files;
mod files_watch;
mod inside;
mod kills;
mod logs;
mod metrics;
mod port_attacks;
mod port_links;
mod ports;
mod remote;
mod schema;
mod scopes;
mod settings;
mod soak;
mod stage;
mod streams;
mod tasks;
mod tenants;
mod terminal_attacks;
mod terminals;
mod traces;
