//! Descriptors of this process, which all sandboxes share: what a guest can have many of is counted.
//!
//! Half of them are for commands that run, and a quarter for connections out of sandboxes. The rest is for what comes from outside, for
//! files, and for the sandboxes themselves.

use std::sync::LazyLock;

use cabana_egress::Lookups;
use cabana_sandbox::{Holder, Places, SandboxId, SandboxSpec};
use rustix::process::{Resource, getrlimit};

use crate::identity;

/// Output, errors, input or a terminal, and what is kept of them.
const OF_COMMAND: usize = 6;
/// Its init, root, terminals and locks.
const OF_SANDBOX: usize = 8;
/// To the guest, and to where it is connected to.
const OF_CONNECTION: usize = 2;

pub(crate) static COMMANDS: LazyLock<Places> = LazyLock::new(|| Places::new(most_commands()));
pub(crate) static CONNECTIONS: LazyLock<Places> = LazyLock::new(|| Places::new(descriptors() / 4 / OF_CONNECTION));

/// What can wait in connections out of sandboxes: half of what all TCP of the machine may hold before the kernel shortens its queues.
pub(crate) static QUEUES: LazyLock<Places> = LazyLock::new(|| {
    tcp_memory().map_or_else(Places::default, |bytes| Places::new(bytes / 2 / cabana_egress::SHORTEST_QUEUES_BYTES))
});

/// Those that carry much: an eighth.
pub(crate) static LONG_QUEUES: LazyLock<Places> =
    LazyLock::new(|| Places::new(tcp_memory().unwrap_or(0) / 8 / cabana_egress::LONG_QUEUES_BYTES));

/// Names that are looked up for sandboxes: each has two sockets at most.
pub(crate) static LOOKUPS: LazyLock<Lookups> = LazyLock::new(|| Lookups::new(1024));

/// Sandboxes that live: each has ids of this machine, namespaces and a cgroup, beside its descriptors. No more than could have them if
/// nothing else did.
pub(crate) static SANDBOXES: LazyLock<Places> =
    LazyLock::new(|| Places::new((descriptors() / 2 / OF_SANDBOX).min(identity::RANGES as usize)));

/// As which the sandbox has places.
pub(crate) fn holder(id: &SandboxId, spec: &SandboxSpec) -> Holder {
    Holder::sandbox(spec.tenant.as_deref(), id)
}

/// What may wait before the kernel takes it for too much.
pub(crate) fn tcp_memory() -> Option<usize> {
    let pages = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_mem").ok()?;
    let pressure: usize = pages.split_whitespace().nth(1)?.parse().ok()?;
    Some(pressure.saturating_mul(rustix::param::page_size()))
}

pub(crate) fn most_commands() -> usize {
    descriptors() / 2 / OF_COMMAND
}

fn descriptors() -> usize {
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(most).unwrap_or(usize::MAX)
}
