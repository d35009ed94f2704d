//! `cabana serve`, over HTTP.

mod calls;
mod events;
mod inside;
mod kills;
mod metrics;
mod port_attacks;
mod port_links;
mod ports;
mod scopes;
mod stage;
mod streams;
mod tasks;
mod tenants;
mod terminal_attacks;
mod terminals;
