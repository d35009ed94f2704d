//! What this host can enforce. Three steps, none of which prints: `probe` tries one thing for real in a process of its
//! own, [`gather`] collects the facts, and [`findings`] judges them: what works, what is lost, what to do.

mod ceilings;
mod facts;
mod findings;
mod probe;

pub use ceilings::{CEILINGS, Ceiling, Ceilings, Raised, raise_ceilings};
pub use facts::{Cgroup, CgroupVersion, Container, Data, Facts, Hidden, Obstacle, Tried, gather};
pub(crate) use facts::{SUID_DUMPABLE, suid_dumpable};
pub use findings::{Finding, State, can_run, findings};
pub use probe::{PROBE, probe_main};
