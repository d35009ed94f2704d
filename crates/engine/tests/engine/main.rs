//! The engine through its public interface: the conformance suite, and what only an engine promises.
#![allow(clippy::unwrap_used, reason = "a test fails by it, at the line that says what was expected")]

mod asleep;
mod bad_input;
mod clients;
mod disk;
mod disk_rate;
mod host_base;
mod identity;
mod inside;
mod late_views;
mod leftovers;
mod limits;
mod network;
mod outputs;
mod pause;
mod persistence;
mod read_only;
mod saved;
mod saved_all;
mod snapshots;
mod stage;
mod tools;
mod views;
mod walls;

mod conformance {
    cabana_testkit::conformance!(crate::stage::OnHost::open(true).await);
}

mod conformance_without_cgroups {
    cabana_testkit::conformance!(crate::stage::OnHost::open(false).await);
}
