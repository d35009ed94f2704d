//! `cabana serve`, over HTTP.

mod calls;
mod kills;
mod scopes;
mod stage;
mod streams;
mod tasks;
mod tenants;
