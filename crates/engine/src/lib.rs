//! The engine: isolated, persistent Linux sandboxes from the kernel alone.
//!
//! [`Engine`] is a [`cabana_sandbox::Provider`]. It has no container runtime underneath and starts no helper for a call:
//!
//! - the **spawner** is one small process that clones sandboxes (`spawner`);
//! - **init** is process 1 of each, and starts commands in it (`init`);
//! - **layers** are what a sandbox stands on: templates, or the host's own programs (`layers`);
//! - **snapshots** are such layers too: what a sandbox wrote, kept (`snapshot`);
//! - **identity** says whose ids it has, on disk and alive (`identity`);
//! - **walls** are what it cannot pass (`walls`);
//! - its **files** are reached from outside, by threads that take on the user's identity (`files`).
//!
//! A program that uses the engine calls [`helper_main`] first thing in `main`: the spawner is that same program, started
//! again from a sealed copy.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use cabana_sandbox::{Base, ExecSpec, Provider, SandboxId, SandboxSpec};
//!
//! let engine = cabana_engine::Engine::open(cabana_engine::Config::new("/var/lib/cabana")).await?;
//! let sandbox = engine.create(&SandboxId::random(), &SandboxSpec::new(Base::Host)).await?;
//! let outcome = cabana_sandbox::run(&*sandbox, ExecSpec::shell("echo hello", "/".parse()?), 65536).await?;
//! # Ok(())
//! # }
//! ```

mod cgroup;
mod channel;
mod data_dir;
mod disk;
mod disk_rate;
mod dying;
mod engine;
mod exec;
mod fault;
mod feed;
mod files;
mod freezer;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod greeting;
pub mod heap;
mod home;
pub mod host;
mod identity;
mod init;
mod input;
mod kernel;
mod lane;
mod layers;
mod left_behind;
mod live;
mod network;
mod open_files;
mod output;
mod output_memory;
mod output_rate;
mod places;
mod plan;
mod presence;
pub mod rootless;
mod sandbox;
mod shelf;
mod snapshot;
mod spawner;
mod spool;
mod sweep;
mod uncharged;
mod views;
mod volumes;
mod walls;
mod warm;
mod watch_time;
mod wire;

pub use data_dir::{DataDir, OpenError};
pub use dying::{Guests, is_dying};
pub use engine::{Config, Engine};
pub use fault::ALL as FAULT_POINTS;
pub use home::remove_tree;
pub use layers::{
    HiddenTool, HostBase, HostTree, ImageForm, LayerName, NoLayerName, Progress, Store, TemplateSource, Templates,
    Unnamed, hidden_tools,
};
pub use network::{EncryptedHello, NetworkSettings};
pub use rootless::enter_user_namespace;
pub use snapshot::{Snapshot, Snapshots};
pub use views::check_view;

/// What the spawner is called: how a program knows that it was started as one.
pub(crate) const SPAWNER_NAME: &str = "cabana-spawner";

/// Takes over when the running program was started as a helper of the engine, and does not return then. Call it first
/// thing in `main`, before there is a second thread.
pub fn helper_main() {
    let mut arguments = std::env::args_os();
    match arguments.next().as_deref().and_then(std::ffi::OsStr::to_str) {
        Some(SPAWNER_NAME) => spawner::main(),
        Some(host::PROBE) => host::probe_main(),
        _ => {}
    }
}
