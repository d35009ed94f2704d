//! From where a good key came lately.
//!
//! Connections are open to all, and one that has none to lose can have very many. So the last quarter of them is for addresses that have
//! shown a key: clients that work here already can go on.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use cabana_runtime::Tenant;

const LATELY: Duration = Duration::from_mins(10);
/// So many are remembered. Where there are more, the tenant that has most of them loses its oldest: one client can have very many.
const MOST: usize = 4096;

#[derive(Default)]
pub(super) struct KnownAddresses(Mutex<HashMap<IpAddr, Seen>>);

struct Seen {
    at: Instant,
    by: Tenant,
}

impl KnownAddresses {
    pub(super) fn note(&self, address: IpAddr, tenant: &Tenant) {
        let (now, mut known) = (Instant::now(), self.0.lock().unwrap_or_else(PoisonError::into_inner));
        if known.len() >= MOST && !known.contains_key(&network(address)) {
            let dispensable = dispensable(&known);
            dispensable.map(|dispensable| known.remove(&dispensable));
        }
        known.insert(network(address), Seen { at: now, by: tenant.clone() });
    }

    pub(super) fn has(&self, address: IpAddr) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&network(address)).is_some_and(|seen| seen.at.elapsed() < LATELY)
    }
}

/// The oldest of the tenant that has most.
fn dispensable(known: &HashMap<IpAddr, Seen>) -> Option<IpAddr> {
    let mut counts = HashMap::<_, usize>::new();
    for seen in known.values() {
        *counts.entry(&seen.by).or_default() += 1;
    }
    let (most, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    let of_it = known.iter().filter(|(_, seen)| seen.by == *most);
    of_it.min_by_key(|(_, seen)| seen.at).map(|(address, _)| *address)
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
