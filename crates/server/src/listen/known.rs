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

const LATELY: Duration = Duration::from_mins(10);
/// So many are remembered. Where there are more, those are kept that came last.
const MOST: usize = 4096;

#[derive(Default)]
pub(super) struct KnownAddresses(Mutex<HashMap<IpAddr, Instant>>);

impl KnownAddresses {
    pub(super) fn note(&self, address: IpAddr) {
        let (now, mut known) = (Instant::now(), self.0.lock().unwrap_or_else(PoisonError::into_inner));
        if known.len() >= MOST && !known.contains_key(&network(address)) {
            let oldest = known.iter().min_by_key(|(_, at)| **at).map(|(address, _)| *address);
            oldest.map(|oldest| known.remove(&oldest));
        }
        known.insert(network(address), now);
    }

    pub(super) fn has(&self, address: IpAddr) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&network(address)).is_some_and(|at| at.elapsed() < LATELY)
    }
}

/// Of IPv6 one has many addresses, and a network of them is one client.
fn network(address: IpAddr) -> IpAddr {
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
        known.note(at("192.0.2.1"));
        known.note(at("2001:db8::1"));
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
            known.note(IpAddr::V4(u32::try_from(number).unwrap().into()));
        }
        assert!(!known.has(at("192.0.2.1")) && !known.has(at("2001:db8::1")));
        assert!((0..MOST).all(|number| known.has(IpAddr::V4(u32::try_from(number).unwrap().into()))));
    }
}
