//! What all tenants share, and any client can have many of: how many there may be, and how many one holder may have.
//!
//! Descriptors of this process are counted by what they are for, and each kind has a part of those that the process may have. What
//! commands take, and connections out of sandboxes, the provider counts. How each kind is divided among tenants and their
//! sandboxes says [`Places`].

use std::sync::LazyLock;

use cabana_model::Tenant;
use cabana_sandbox::{Holder, Places};
use cabana_store::Record;
use rustix::process::{Resource, getrlimit};

/// One of a holder's, until it is dropped.
pub(crate) use cabana_sandbox::Place as Share;

/// An output is three files.
const OF_READER: usize = 3;

/// Connections to ports, by sandbox.
pub(crate) static PORTS: LazyLock<Places> = LazyLock::new(|| Places::with_each(ports(), 1024));
/// Those of them whose clients showed nothing: so that who has a key or a link always finds some.
pub(crate) static PUBLIC_PORTS: LazyLock<Places> = LazyLock::new(|| Places::new(ports() / 2));
/// Files and outputs that are read, by tenant.
pub(crate) static READERS: LazyLock<Places> = LazyLock::new(|| Places::with_each(descriptors() / 16 / OF_READER, 1024));

/// Bodies that are taken as they come, by tenant: each may have a file and a directory open.
pub(crate) static INCOMING: LazyLock<Places> = LazyLock::new(|| Places::with_each((descriptors() / 32).min(1024), 256));

/// The same by signed URLs. Who has one may hold very many bodies open, and needs no key for it: so none of these is one of the tenant's own.
pub(crate) static INCOMING_BY_URL: LazyLock<Places> =
    LazyLock::new(|| Places::with_each((descriptors() / 64).min(512), 128));
pub(crate) static READERS_BY_URL: LazyLock<Places> =
    LazyLock::new(|| Places::with_each(descriptors() / 32 / OF_READER, 512));

/// Calls that are under way, by tenant, whatever its quota is: each is a task and a log in memory.
pub(crate) static CALLS: LazyLock<Places> = LazyLock::new(|| Places::with_each(65_536, 16_384));
/// Requests that are not answered yet, by tenant: each has what it was asked in memory, and what it waits with.
pub(crate) static REQUESTS: LazyLock<Places> = LazyLock::new(|| Places::with_each(65_536, 4096));
/// Archives that are packed, by tenant: each takes a processor as long as its client reads.
pub(crate) static ARCHIVES: LazyLock<Places> = LazyLock::new(|| Places::with_each(32, 8));
/// Who waits for a lease, by its sandbox.
pub(crate) static LEASE_WAITERS: LazyLock<Places> = LazyLock::new(|| Places::with_each(1024, 16));

pub(crate) fn tenant(tenant: &Tenant) -> Holder {
    Holder::tenant(tenant.as_str())
}

pub(crate) fn sandbox(record: &Record) -> Holder {
    Holder::sandbox(Some(record.tenant.as_str()), &record.physical)
}

fn ports() -> usize {
    descriptors() / 8
}

fn descriptors() -> usize {
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(most).unwrap_or(usize::MAX)
}
