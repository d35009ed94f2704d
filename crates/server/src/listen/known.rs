//! From where a good key came lately.
//!
//! Connections are open to all, and one that has none to lose can have very many. So the last quarter of them is for addresses that have
//! shown a key: clients that work here already can go on.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv6Addr},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use cabana_runtime::Tenant;

const LATELY: Duration = Duration::from_mins(10);
/// So many are remembered. Where there are more, the tenant that has most of them loses its oldest: one client can have very many.
const MOST: usize = 4096;

#[derive(Default)]
pub(super) struct KnownAddresses(Mutex<Known>);

#[derive(Default)]
struct Known {
    seen: HashMap<IpAddr, Seen>,
    /// Of each tenant the oldest first. A key that is shown from ever new addresses must not have all be looked through each time.
    of: HashMap<Tenant, BTreeMap<u64, IpAddr>>,
    next: u64,
}

struct Seen {
    at: Instant,
    number: u64,
    by: Tenant,
}

impl KnownAddresses {
    pub(super) fn note(&self, address: IpAddr, tenant: &Tenant) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).note(network(address), tenant);
    }

    pub(super) fn has(&self, address: IpAddr) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.seen.get(&network(address)).is_some_and(|seen| seen.at.elapsed() < LATELY)
    }
}

impl Known {
    fn note(&mut self, address: IpAddr, tenant: &Tenant) {
        self.forget(address);
        if self.seen.len() >= MOST
            && let Some(dispensable) = self.dispensable()
        {
            self.forget(dispensable);
        }
        let number = self.next;
        self.next += 1;
        self.of.entry(tenant.clone()).or_default().insert(number, address);
        self.seen.insert(address, Seen { at: Instant::now(), number, by: tenant.clone() });
    }

    fn forget(&mut self, address: IpAddr) {
        let Some(Seen { number, by, .. }) = self.seen.remove(&address) else { return };
        let Some(of_tenant) = self.of.get_mut(&by) else { return };
        of_tenant.remove(&number);
        if of_tenant.is_empty() {
            self.of.remove(&by);
        }
    }

    /// The oldest of the tenant that has most.
    fn dispensable(&self) -> Option<IpAddr> {
        self.of.values().max_by_key(|of_tenant| of_tenant.len())?.values().next().copied()
    }
}

/// Of IPv6 one has many addresses, and a network of them is one client.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_known_with_its_network_and_the_oldest_is_forgotten() {
        let known = KnownAddresses::default();
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        let [one, two] = ["one", "two"].map(|name| Tenant::new(name).unwrap());
        known.note(at("192.0.2.1"), &one);
        known.note(at("2001:db8::1"), &one);
        for (address, expected) in [
            ("192.0.2.1", true),
            ("::ffff:192.0.2.1", true),
            ("192.0.2.2", false),
            ("2001:db8::ffff", true),
            ("2001:db8:0:1::1", false),
        ] {
            assert_eq!(known.has(at(address)), expected, "{address}");
        }
        for number in 0..MOST {
            known.note(IpAddr::V4(u32::try_from(number).unwrap().into()), &one);
        }
        assert!(!known.has(at("192.0.2.1")) && !known.has(at("2001:db8::1")));
        assert!((0..MOST).all(|number| known.has(IpAddr::V4(u32::try_from(number).unwrap().into()))));
        known.note(at("192.0.2.2"), &two);
        for number in 0..2 * MOST {
            known.note(IpAddr::V4((u32::try_from(number).unwrap() | 1 << 24).into()), &one);
        }
        assert!(known.has(at("192.0.2.2")), "however many addresses another tenant has");
    }
}
