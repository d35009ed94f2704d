//! `cabana serve`, over HTTP.

mod calls;
mod chat_files;
mod files;
mod files_watch;
mod kills;
mod scopes;
mod stage;
mod streams;
mod tasks;
mod tenants;
