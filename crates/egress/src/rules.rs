//! A list of rules, and the first of them that speaks of a host: found by what it is, and not by going through all of them.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
};

use crate::{
    address::Net,
    host::Name,
    rule::{Rule, What},
};

#[derive(Debug)]
pub(crate) struct Rules {
    list: Vec<Rule>,
    exact: HashMap<Name, Positions>,
    below: HashMap<Name, Positions>,
    nets: HashMap<Net, Positions>,
    /// How long the networks are that there are, so that only these are looked for.
    lengths: BTreeSet<(Family, u8)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Family {
    V4,
    V6,
}

impl Family {
    fn last(self) -> u128 {
        match self {
            Family::V4 => u32::MAX.into(),
            Family::V6 => u128::MAX,
        }
    }
}

/// Where in the list the rules stand that speak of one host, by their ports.
#[derive(Debug)]
struct Positions {
    first: usize,
    of_any_port: Option<usize>,
    of_port: HashMap<u16, usize>,
}

impl Positions {
    /// On whatever port, where none is asked for.
    fn first(&self, port: Option<u16>) -> Option<usize> {
        let Some(port) = port else { return Some(self.first) };
        self.of_any_port.into_iter().chain(self.of_port.get(&port).copied()).min()
    }
}

fn note<K: Eq + std::hash::Hash>(positions: &mut HashMap<K, Positions>, key: K, at: usize, port: Option<u16>) {
    let new = || Positions { first: at, of_any_port: None, of_port: HashMap::new() };
    let positions = positions.entry(key).or_insert_with(new);
    // They come in the order of the list: what is there already is the first.
    match port {
        None => drop(positions.of_any_port.get_or_insert(at)),
        Some(port) => drop(positions.of_port.entry(port).or_insert(at)),
    }
}

impl Rules {
    pub(crate) fn new(list: Vec<Rule>) -> Self {
        let (mut exact, mut below, mut nets) = (HashMap::new(), HashMap::new(), HashMap::new());
        for (at, rule) in list.iter().enumerate() {
            match &rule.what {
                What::Exact(name) => note(&mut exact, name.clone(), at, rule.port),
                What::Below(apex) => note(&mut below, apex.clone(), at, rule.port),
                What::Net(net) => note(&mut nets, *net, at, rule.port),
            }
        }
        let lengths = nets.keys().map(|net: &Net| (family(net.base), net.len)).collect();
        Self { list, exact, below, nets, lengths }
    }

    pub(crate) fn nets(&self) -> impl Iterator<Item = Net> {
        self.nets.keys().copied()
    }

    /// Whether no address of either family is outside of the networks, be it that many of them together cover all.
    pub(crate) fn cover_every_address(&self) -> bool {
        [Family::V4, Family::V6].into_iter().all(|family| self.cover_family(family))
    }

    fn cover_family(&self, of: Family) -> bool {
        let mut ranges: Vec<_> = self.nets().filter(|net| family(net.base) == of).map(Net::range).collect();
        ranges.sort_unstable();
        // The first address that none of them has so far; `None`: they have all.
        let mut open = Some(0);
        for (first, last) in ranges {
            match open {
                Some(at) if first <= at => open = if last == of.last() { None } else { Some(at.max(last + 1)) },
                _ => break,
            }
        }
        open.is_none()
    }

    /// `port`: `None` for whatever port.
    pub(crate) fn of_name(&self, name: &Name, port: Option<u16>) -> Option<&Rule> {
        let above = name.above().filter_map(|apex| self.below.get(apex));
        self.first(self.exact.get(name).into_iter().chain(above), port)
    }

    pub(crate) fn of_address(&self, address: IpAddr, port: Option<u16>) -> Option<&Rule> {
        self.first(self.around(address, 0), port)
    }

    /// Whether one of them speaks of this address or of a part of its block, and is not merely so wide that it touches it:
    /// `0.0.0.0/0` does not open 127.0.0.1, and `10.0.0.0/8` does not open the host's own 10.0.0.5.
    pub(crate) fn opens(&self, address: IpAddr, block_len: u8, port: Option<u16>) -> bool {
        self.first(self.around(address, block_len), port).is_some()
    }

    /// Of networks that are no wider than that.
    fn around(&self, address: IpAddr, widest: u8) -> impl Iterator<Item = &Positions> {
        let family = family(address);
        let lengths = self.lengths.range((family, widest)..=(family, u8::MAX));
        lengths.filter_map(move |(_, len)| self.nets.get(&Net::around(address, *len)))
    }

    fn first<'a>(&'a self, found: impl Iterator<Item = &'a Positions>, port: Option<u16>) -> Option<&'a Rule> {
        found.filter_map(|positions| positions.first(port)).min().map(|at| &self.list[at])
    }
}

fn family(address: IpAddr) -> Family {
    if address.is_ipv4() { Family::V4 } else { Family::V6 }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{Ipv4Addr, Ipv6Addr},
        ptr,
    };

    use proptest::{collection::vec, option, prelude::*, sample::select};

    use super::*;
    use crate::host::Host;

    /// What the list means: the first that fits, by going through all of them.
    fn first(list: &[Rule], fits: impl Fn(&Rule) -> bool, port: Option<u16>) -> Option<&Rule> {
        list.iter().find(|rule| fits(rule) && port.is_none_or(|port| rule.covers_port(port)))
    }

    fn name() -> impl Strategy<Value = String> {
        vec(select(vec!["a", "b", "ab"]), 1..4).prop_map(|labels| labels.join("."))
    }

    fn address() -> impl Strategy<Value = IpAddr> {
        let v4 = (select(vec![8_u8, 9, 10]), 0..2_u8).prop_map(|(a, d)| IpAddr::from(Ipv4Addr::new(a, 0, 0, d)));
        let v6 = (select(vec![0x2606_u16, 0xfd00]), 0..2_u16)
            .prop_map(|(a, h)| IpAddr::from(Ipv6Addr::new(a, 0, 0, 0, 0, 0, 0, h)));
        prop_oneof![v4, v6]
    }

    fn port() -> impl Strategy<Value = Option<u16>> {
        option::of(select(vec![53_u16, 80, 443]))
    }

    fn rule() -> impl Strategy<Value = String> {
        let with_port = |text: String, port: Option<u16>| port.map_or(text.clone(), |port| format!("{text}:{port}"));
        let bits = select(vec![0_u8, 7, 8, 30, 31, 32, 64, 126, 128]);
        prop_oneof![
            (name(), port()).prop_map(move |(name, port)| with_port(name, port)),
            (name(), port()).prop_map(move |(name, port)| with_port(format!("*.{name}"), port)),
            (address(), port()).prop_map(move |(address, port)| match address {
                IpAddr::V4(_) => with_port(address.to_string(), port),
                IpAddr::V6(_) => with_port(format!("[{address}]"), port),
            }),
            (address(), bits).prop_map(|(address, bits)| {
                let len = bits.min(Net::one(address).len);
                format!("{}/{len}", Net::around(address, len).base)
            }),
        ]
    }

    #[test]
    fn of_rules_for_one_host_the_first_counts_whatever_their_ports() {
        let name = Host::parse("a.com").unwrap().name().unwrap().clone();
        for texts in [["a.com:80", "a.com"], ["a.com", "a.com:80"], ["*.com:80", "a.com"], ["a.com:80", "*.com"]] {
            let rules = Rules::new(texts.iter().map(|text| Rule::parse(text).unwrap()).collect());
            assert_eq!(rules.of_name(&name, Some(80)).unwrap().text, texts[0]);
        }
    }

    fn cover_every_address(texts: &[String]) -> bool {
        Rules::new(texts.iter().map(|text| Rule::parse_net(text).unwrap()).collect()).cover_every_address()
    }

    proptest! {
        #[test]
        fn a_space_in_any_pieces_is_covered_and_without_one_of_them_is_not(
            cuts in vec(0..64_usize, 0..20), left_out in any::<prop::sample::Index>(), again in any::<prop::sample::Index>(),
        ) {
            let mut pieces = vec![Net::around(Ipv4Addr::UNSPECIFIED.into(), 0)];
            pieces.push(Net::around(Ipv6Addr::UNSPECIFIED.into(), 0));
            for cut in cuts {
                let net = pieces.swap_remove(cut % pieces.len());
                let (first, last) = net.range();
                let middle = first + (last - first) / 2 + 1;
                let middle = match net.base {
                    IpAddr::V4(_) => IpAddr::from(Ipv4Addr::from_bits(u32::try_from(middle).unwrap())),
                    IpAddr::V6(_) => IpAddr::from(Ipv6Addr::from_bits(middle)),
                };
                pieces.extend([Net { len: net.len + 1, ..net }, Net { base: middle, len: net.len + 1 }]);
            }
            let mut texts: Vec<String> = pieces.iter().map(|net| format!("{}/{}", net.base, net.len)).collect();
            prop_assert!(cover_every_address(&texts));
            texts.push(texts[again.index(texts.len())].clone());
            prop_assert!(cover_every_address(&texts), "twice is as good as once");
            let left_out = texts[left_out.index(texts.len())].clone();
            texts.retain(|text| *text != left_out);
            prop_assert!(!cover_every_address(&texts), "without {}", left_out);
        }

        #[test]
        fn the_rule_that_is_found_is_the_first_of_the_list(
            texts in vec(rule(), 0..40), name in name(), address in address(), port in port(), block in 0..=128_u8,
        ) {
            let list: Vec<Rule> = texts.iter().filter_map(|text| Rule::parse(text).ok()).collect();
            let rules = Rules::new(list);
            let same = |found: Option<&Rule>, wanted: Option<&Rule>| match (found, wanted) {
                (Some(found), Some(wanted)) => ptr::eq(found, wanted),
                (found, wanted) => found.is_none() && wanted.is_none(),
            };
            if let Ok(Host::Name(name)) = Host::parse(&name) {
                let wanted = first(&rules.list, |rule| rule.covers_name(&name), port);
                prop_assert!(same(rules.of_name(&name, port), wanted), "{} in {:?}", name, texts);
            }
            let wanted = first(&rules.list, |rule| rule.covers_address(address), port);
            prop_assert!(same(rules.of_address(address, port), wanted), "{} in {:?}", address, texts);
            let wanted = first(&rules.list, |rule| rule.opens(address, block), port);
            prop_assert_eq!(rules.opens(address, block, port), wanted.is_some(), "{} in {:?}", address, texts);
        }
    }
}
