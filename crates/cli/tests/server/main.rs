//! `cabana serve`, over HTTP.

#![allow(clippy::unwrap_used)] // a case that cannot go on says so by a panic

mod calls;
mod chat_files;
mod document;
mod files;
mod files_watch;
mod kills;
mod scopes;
mod soak;
mod stage;
mod streams;
mod tasks;
mod tenants;
