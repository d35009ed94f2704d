//! Published escapes of other sandboxes and runtimes, tried here. `cves.toml` says which test stands for which advisory.

mod archives;
mod credentials;
mod deputy;
mod exec;
mod exhaustion;
mod images;
mod injection;
mod mounts;
mod network;
mod page_cache;
mod procfs;
mod sockets;
mod stage;
mod templates;
mod tenants;
mod terminals;
