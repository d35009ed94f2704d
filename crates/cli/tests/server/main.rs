//! `cabana serve`, over HTTP.

#![allow(clippy::unwrap_used)] // a case that cannot go on says so by a panic

mod abuse;
mod backup;
mod bad_input;
mod calls;
mod chat_files;
mod containers;
mod crowds;
mod disks;
mod document;
mod e2b;
mod e2b_control;
mod e2b_files;
mod e2b_fork;
mod ends;
mod events;
mod faults;
mod files;
mod files_watch;
mod inside;
mod kills;
mod lifecycle;
mod lives;
mod load;
mod logs;
mod metrics;
mod mounts;
mod port_attacks;
mod port_links;
mod ports;
mod profiles;
mod quotas;
mod reload;
mod remote;
mod retention;
#[path = "../common/root.rs"]
mod root;
mod schema;
mod scopes;
mod sdk;
mod services;
mod settings;
mod snapshots;
mod soak;
mod stage;
mod streams;
mod tasks;
mod templates;
mod tenants;
mod terminal_attacks;
mod terminals;
mod traces;
mod uploads;
mod verdict;
mod webhooks;
