//! The addresses that the inner DNS gives out in place of real ones, and the names that stand behind them.
//!
//! A slot is one IPv4 and one IPv6 address. There are only so many: the name that was not used for the longest time makes
//! room, so a guest that asks for endless names takes its own away and nothing else.
//!
//! A guest may hold an answer of a server that was replaced since. Slots are handed out in a row from a place that is
//! chosen at random: such an address has no name now, rather than another name's. Of IPv6 that is as good as certain; of
//! IPv4 there are so few that one in some thousand may be given out again, to a guest that asks for many names.

use std::{
    collections::{BTreeMap, HashMap, hash_map::RandomState},
    hash::{BuildHasher, Hasher},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::host::Name;

/// For benchmarks of closed networks: nobody's address, and not one that software takes for private. 198.18.0.0/15.
const V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
const V4_SIZE: u32 = 1 << 17;
/// A unique local /64 of our own.
const V6: Ipv6Addr = Ipv6Addr::new(0xfdca, 0xba2a, 0x6e63, 0, 0, 0, 0, 0);
const V6_BITS: u32 = 64;
/// The first addresses are left to whoever sets up the namespace, such as the DNS server's own.
const FIRST: u32 = 256;
const SIZE: u32 = V4_SIZE - FIRST;
/// Of an IPv6 address, above what it has in common with the IPv4 address of the same slot.
const V6_OWN: u32 = 20;

pub(crate) struct Pool {
    most: u32,
    /// Where the first slot lies among the addresses of IPv4.
    start: u32,
    /// What all addresses of IPv6 have in common.
    prefix: u128,
    slots: Vec<Slot>,
    by_name: HashMap<Name, u32>,
    /// Turn of last use → slot; the first is the next to go.
    by_use: BTreeMap<u64, u32>,
    turn: u64,
}

struct Slot {
    name: Name,
    used: u64,
}

/// What the pool says about an address.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    Name(Name),
    /// In the pool's range, without a name.
    Nothing,
    /// A real address.
    NotOurs,
}

impl Pool {
    pub(crate) fn new(names: u32) -> Pool {
        Pool::at(RandomState::new().build_hasher().finish(), names)
    }

    fn at(place: u64, names: u32) -> Pool {
        let start = u32::try_from(place % u64::from(SIZE)).unwrap_or(0);
        let prefix = u128::from(place >> V6_OWN << V6_OWN);
        let (by_name, by_use) = (HashMap::new(), BTreeMap::new());
        Pool { most: names.clamp(1, SIZE), start, prefix, slots: Vec::new(), by_name, by_use, turn: 0 }
    }

    pub(crate) fn assign(&mut self, name: &Name) -> (Ipv4Addr, Ipv6Addr) {
        let slot = match self.by_name.get(name) {
            Some(slot) => *slot,
            None => self.take(name),
        };
        self.touch(slot);
        let number = FIRST + (self.start + slot) % SIZE;
        let v6 = V6.to_bits() + self.prefix + u128::from(number);
        (Ipv4Addr::from_bits(V4.to_bits() + number), Ipv6Addr::from_bits(v6))
    }

    pub(crate) fn behind(&mut self, address: IpAddr) -> Behind {
        let Some(number) = number(address) else { return Behind::NotOurs };
        let number = if address.is_ipv6() { number.checked_sub(self.prefix) } else { Some(number) };
        let number = number.and_then(|number| u32::try_from(number).ok()).filter(|number| *number < V4_SIZE);
        let slot = number.and_then(|number| number.checked_sub(FIRST)).map(|at| (at + SIZE - self.start) % SIZE);
        let known = slot.and_then(|slot| Some((slot, self.slots.get(slot as usize)?.name.clone())));
        match known {
            Some((slot, name)) => {
                self.touch(slot);
                Behind::Name(name)
            }
            None => Behind::Nothing,
        }
    }

    fn take(&mut self, name: &Name) -> u32 {
        let slot = match self.by_use.first_key_value() {
            Some((_, oldest)) if self.slots.len() >= self.most as usize => *oldest,
            _ => u32::try_from(self.slots.len()).unwrap_or(u32::MAX),
        };
        match self.slots.get_mut(slot as usize) {
            Some(taken) => {
                self.by_name.remove(&taken.name);
                taken.name = name.clone();
            }
            None => self.slots.push(Slot { name: name.clone(), used: 0 }),
        }
        self.by_name.insert(name.clone(), slot);
        slot
    }

    fn touch(&mut self, slot: u32) {
        self.turn += 1;
        if let Some(touched) = self.slots.get_mut(slot as usize) {
            self.by_use.remove(&touched.used);
            touched.used = self.turn;
            self.by_use.insert(self.turn, slot);
        }
    }
}

fn number(address: IpAddr) -> Option<u128> {
    match address {
        IpAddr::V4(v4) => {
            let number = v4.to_bits().checked_sub(V4.to_bits())?;
            (number < V4_SIZE).then_some(u128::from(number))
        }
        IpAddr::V6(v6) => {
            let number = v6.to_bits().checked_sub(V6.to_bits())?;
            (number >> V6_BITS == 0).then_some(number)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::host::Host;

    fn name(text: &str) -> Name {
        Host::parse(text).unwrap().name().unwrap().clone()
    }

    #[test]
    fn a_name_keeps_its_addresses_and_is_found_behind_both() {
        let mut pool = Pool::at(0, 10);
        let (v4, v6) = pool.assign(&name("a.com"));
        assert_eq!(v4.to_string(), "198.18.1.0");
        assert_eq!(v6.to_string(), "fdca:ba2a:6e63::100");
        pool.assign(&name("b.com"));
        assert_eq!(pool.assign(&name("a.com")), (v4, v6));
        assert_eq!(pool.behind(v4.into()), Behind::Name(name("a.com")));
        assert_eq!(pool.behind(v6.into()), Behind::Name(name("a.com")));
    }

    #[test]
    fn the_name_that_was_not_used_for_the_longest_time_makes_room() {
        let mut pool = Pool::new(2);
        let (a, _) = pool.assign(&name("a.com"));
        let (b, _) = pool.assign(&name("b.com"));
        pool.behind(a.into());
        assert_eq!(pool.assign(&name("c.com")).0, b);
        assert_eq!(pool.behind(a.into()), Behind::Name(name("a.com")));
        assert_eq!(pool.behind(b.into()), Behind::Name(name("c.com")));
    }

    #[test]
    fn an_address_of_a_pool_that_was_replaced_has_no_name() {
        let (mut old, mut new) = (Pool::at(7 << 40, 1000), Pool::at(9 << 50, 1000));
        let names: Vec<Name> = (0..1000).map(|number| name(&format!("n{number}.com"))).collect();
        for known in &names {
            new.assign(known);
        }
        for asked in names.iter().rev() {
            let (v4, v6) = old.assign(asked);
            assert_eq!(new.behind(v4.into()), Behind::Nothing);
            assert_eq!(new.behind(v6.into()), Behind::Nothing);
        }
        let places: std::collections::HashSet<_> = (0..8).map(|_| Pool::new(1).assign(&names[0])).collect();
        assert_eq!(places.len(), 8, "a pool begins where no other did");
    }

    #[test]
    fn no_name_stands_behind_an_address_that_was_not_given_out() {
        let mut pool = Pool::new(10);
        for text in ["198.18.0.0", "198.18.0.1", "198.18.1.0", "198.19.255.255", "fdca:ba2a:6e63::ffff:ffff:ffff:ffff"]
        {
            assert_eq!(pool.behind(text.parse().unwrap()), Behind::Nothing, "{text}");
        }
        for text in ["198.17.255.255", "198.20.0.0", "fdca:ba2a:6e63:1::", "fdca:ba2a:6e62:ffff::", "8.8.8.8", "::1"] {
            assert_eq!(pool.behind(text.parse().unwrap()), Behind::NotOurs, "{text}");
        }
    }

    proptest! {
        #[test]
        fn the_pool_never_grows_past_its_bound_and_never_mixes_names_up(
            asked in prop::collection::vec(0_u16..200, 1..400),
            place: u64,
        ) {
            let mut pool = Pool::at(place, 16);
            for number in asked {
                let wanted = name(&format!("n{number}.com"));
                let (v4, v6) = pool.assign(&wanted);
                prop_assert_eq!(pool.behind(v4.into()), Behind::Name(wanted.clone()));
                prop_assert_eq!(pool.behind(v6.into()), Behind::Name(wanted));
                prop_assert!(pool.slots.len() <= 16);
                prop_assert_eq!(pool.by_name.len(), pool.slots.len());
                prop_assert_eq!(pool.by_use.len(), pool.slots.len());
            }
        }
    }
}
