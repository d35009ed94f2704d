//! Which addresses are no part of the public internet, and why each must not be reached by a sandbox that was given the
//! internet.
//!
//! The tables are data: a block, its length, its class. An address may lie in several blocks; the longest one says what
//! it is. Some IPv6 addresses carry an IPv4 address that a router or this host's own kernel would unwrap: both are judged.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    Loopback,
    Unspecified,
    Own,
    Private,
    Cgnat,
    LinkLocal,
    SiteLocal,
    Metadata,
    Multicast,
    Broadcast,
    Reserved,
    Documentation,
    Benchmark,
    V4Mapped,
    V4Compatible,
    Nat64,
    SixToFour,
    Teredo,
}

/// A range of addresses: what a rule allows, or what a table forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Net {
    pub base: IpAddr,
    pub len: u8,
}

/// A block of the tables that an address lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub class: Class,
    pub len: u8,
}

use Class::{
    Benchmark, Broadcast, Cgnat, Documentation, LinkLocal, Loopback, Metadata, Multicast, Nat64, Own, Private,
    Reserved, SiteLocal, SixToFour, Teredo, Unspecified, V4Compatible, V4Mapped,
};

const V4: &[([u8; 4], u8, Class)] = &[
    ([0, 0, 0, 0], 8, Reserved),
    ([0, 0, 0, 0], 32, Unspecified), // Linux connects it to its own loopback
    ([10, 0, 0, 0], 8, Private),
    ([100, 64, 0, 0], 10, Cgnat),
    ([100, 100, 100, 200], 32, Metadata), // Alibaba
    ([127, 0, 0, 0], 8, Loopback),
    ([168, 63, 129, 16], 32, Metadata), // Azure, in the middle of public space
    ([169, 254, 0, 0], 16, LinkLocal),
    ([169, 254, 169, 254], 32, Metadata), // nearly everybody
    ([172, 16, 0, 0], 12, Private),
    ([192, 0, 0, 0], 24, Reserved),
    ([192, 0, 0, 192], 32, Metadata), // Oracle
    ([192, 0, 2, 0], 24, Documentation),
    ([192, 80, 8, 124], 32, Metadata), // Equinix, in public space too
    ([192, 88, 99, 0], 24, Reserved),  // 6to4 relays
    ([192, 168, 0, 0], 16, Private),
    ([198, 18, 0, 0], 15, Benchmark), // also what the inner DNS answers with
    ([198, 51, 100, 0], 24, Documentation),
    ([203, 0, 113, 0], 24, Documentation),
    ([224, 0, 0, 0], 4, Multicast),
    ([240, 0, 0, 0], 4, Reserved),
    ([255, 255, 255, 255], 32, Broadcast),
];

const V6: &[([u16; 8], u8, Class)] = &[
    // All but 2000::/3: only that is given out as global unicast.
    ([0, 0, 0, 0, 0, 0, 0, 0], 3, Reserved),
    ([0x4000, 0, 0, 0, 0, 0, 0, 0], 2, Reserved),
    ([0x8000, 0, 0, 0, 0, 0, 0, 0], 1, Reserved),
    ([0, 0, 0, 0, 0, 0, 0, 0], 96, V4Compatible),
    ([0, 0, 0, 0, 0, 0, 0, 0], 128, Unspecified),
    ([0, 0, 0, 0, 0, 0, 0, 1], 128, Loopback),
    ([0, 0, 0, 0, 0, 0xffff, 0, 0], 96, V4Mapped), // the kernel connects over IPv4
    ([0, 0, 0, 0, 0xffff, 0, 0, 0], 96, V4Mapped), // translated by SIIT
    ([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96, Nat64),
    ([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48, Nat64),
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23, Reserved),
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 32, Teredo),
    ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32, Documentation),
    ([0x2002, 0, 0, 0, 0, 0, 0, 0], 16, SixToFour),
    ([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20, Documentation),
    ([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7, Private),
    ([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128, Metadata), // AWS
    ([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128, Metadata),  // Google
    ([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10, LinkLocal),
    ([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10, SiteLocal),
    ([0xff00, 0, 0, 0, 0, 0, 0, 0], 8, Multicast),
];

/// The longest block that the address lies in; `None` is a public address.
pub(crate) fn block(address: IpAddr) -> Option<Block> {
    let v4 = V4.iter().map(|(base, len, class)| (IpAddr::from(*base), *len, *class));
    let v6 = V6.iter().map(|(base, len, class)| (IpAddr::from(*base), *len, *class));
    let around = v4.chain(v6).filter(|(base, len, _)| Net { base: *base, len: *len }.contains(address));
    around.max_by_key(|(_, len, _)| *len).map(|(_, len, class)| Block { class, len })
}

/// The IPv4 addresses that this address carries.
pub(crate) fn embedded(address: IpAddr) -> Vec<Ipv4Addr> {
    let IpAddr::V6(v6) = address else { return Vec::new() };
    let s = v6.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from_bits((u32::from(high) << 16) | u32::from(low));
    match block(address).map(|block| block.class) {
        Some(V4Mapped | V4Compatible | Nat64) => vec![v4(s[6], s[7])],
        Some(SixToFour) => vec![v4(s[1], s[2])],
        Some(Teredo) => vec![v4(s[2], s[3]), v4(!s[6], !s[7])], // its server, and its client turned over
        _ => Vec::new(),
    }
}

impl Net {
    pub(crate) fn one(base: IpAddr) -> Net {
        Net { base, len: if base.is_ipv4() { 32 } else { 128 } }
    }

    pub(crate) fn contains(self, address: IpAddr) -> bool {
        match (self.base, address) {
            (IpAddr::V4(base), IpAddr::V4(address)) => {
                base.to_bits().checked_shr(32 - u32::from(self.len))
                    == address.to_bits().checked_shr(32 - u32::from(self.len))
            }
            (IpAddr::V6(base), IpAddr::V6(address)) => {
                base.to_bits().checked_shr(128 - u32::from(self.len))
                    == address.to_bits().checked_shr(128 - u32::from(self.len))
            }
            _ => false,
        }
    }

    /// Its first address and its last one, as numbers.
    pub(crate) fn range(self) -> (u128, u128) {
        match self.base {
            IpAddr::V4(v4) => {
                let hosts = u32::MAX.checked_shr(self.len.into()).unwrap_or(0);
                (v4.to_bits().into(), (v4.to_bits() | hosts).into())
            }
            IpAddr::V6(v6) => {
                let hosts = u128::MAX.checked_shr(self.len.into()).unwrap_or(0);
                (v6.to_bits(), v6.to_bits() | hosts)
            }
        }
    }

    /// The network that the address lies in, without its host bits.
    pub(crate) fn around(address: IpAddr, len: u8) -> Net {
        let base = match address {
            IpAddr::V4(v4) => {
                Ipv4Addr::from_bits(v4.to_bits() & u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0)).into()
            }
            IpAddr::V6(v6) => {
                Ipv6Addr::from_bits(v6.to_bits() & u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)).into()
            }
        };
        Net { base, len }
    }
}

impl Class {
    /// Whether an allow-list may name such an address at all. Nothing good listens on the others.
    pub(crate) fn can_be_allowed(self) -> bool {
        !matches!(self, Unspecified | Multicast | Broadcast)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loopback => "a loopback address",
            Unspecified => "the unspecified address",
            Own => "an address of this host",
            Private => "a private address",
            Cgnat => "a shared address of a provider's NAT",
            LinkLocal => "a link-local address",
            SiteLocal => "a site-local address",
            Metadata => "the address of a cloud's metadata service",
            Multicast => "a multicast address",
            Broadcast => "the broadcast address",
            Reserved => "a reserved address",
            Documentation => "an address for documentation",
            Benchmark => "an address for benchmarks",
            V4Mapped => "an IPv4 address mapped into IPv6",
            V4Compatible => "an IPv4 address within IPv6",
            Nat64 => "a NAT64 address",
            SixToFour => "a 6to4 address",
            Teredo => "a Teredo address",
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn class(text: &str) -> Option<Class> {
        block(text.parse().unwrap()).map(|block| block.class)
    }

    #[test]
    fn every_class_is_told() {
        let table = [
            ("0.0.0.0", Unspecified),
            ("0.1.2.3", Reserved),
            ("10.0.0.1", Private),
            ("10.255.255.255", Private),
            ("100.64.0.1", Cgnat),
            ("100.127.255.255", Cgnat),
            ("100.100.100.200", Metadata),
            ("127.0.0.1", Loopback),
            ("127.255.255.254", Loopback),
            ("168.63.129.16", Metadata),
            ("169.254.1.1", LinkLocal),
            ("169.254.169.254", Metadata),
            ("169.254.170.2", LinkLocal),
            ("172.16.0.1", Private),
            ("172.31.255.255", Private),
            ("192.0.0.1", Reserved),
            ("192.0.0.192", Metadata),
            ("192.0.2.1", Documentation),
            ("192.88.99.1", Reserved),
            ("192.168.1.1", Private),
            ("198.18.0.1", Benchmark),
            ("198.19.255.255", Benchmark),
            ("198.51.100.1", Documentation),
            ("203.0.113.1", Documentation),
            ("224.0.0.1", Multicast),
            ("239.255.255.255", Multicast),
            ("240.0.0.1", Reserved),
            ("255.255.255.254", Reserved),
            ("255.255.255.255", Broadcast),
            ("::", Unspecified),
            ("::1", Loopback),
            ("::7f00:1", V4Compatible),
            ("::ffff:8.8.8.8", V4Mapped),
            ("::ffff:0:8.8.8.8", V4Mapped),
            ("64:ff9b::808:808", Nat64),
            ("64:ff9b:1::1", Nat64),
            ("100::1", Reserved),
            ("2001::1", Teredo),
            ("2001:20::1", Reserved),
            ("2001:db8::1", Documentation),
            ("2002::1", SixToFour),
            ("3fff::1", Documentation),
            ("4000::1", Reserved),
            ("5f00::1", Reserved),
            ("fc00::1", Private),
            ("fd12::1", Private),
            ("fd00:ec2::254", Metadata),
            ("fd20:ce::254", Metadata),
            ("fe80::1", LinkLocal),
            ("febf::1", LinkLocal),
            ("fec0::1", SiteLocal),
            ("ff02::1", Multicast),
        ];
        for (text, wanted) in table {
            assert_eq!(class(text), Some(wanted), "{text}");
        }
    }

    #[test]
    fn the_neighbours_of_each_block_are_public() {
        let public = [
            "1.0.0.0",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "168.63.129.15",
            "168.63.129.17",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.0.3.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "198.51.99.255",
            "198.51.101.0",
            "203.0.112.255",
            "203.0.114.0",
            "223.255.255.255",
            "2000::",
            "2001:200::1",
            "2001:db7::1",
            "2001:db9::1",
            "2003::1",
            "2606:4700::1111",
            "3ffe:ffff::1",
        ];
        for text in public {
            assert_eq!(class(text), None, "{text}");
        }
    }

    #[test]
    fn what_ipv6_carries_is_unwrapped() {
        let carried =
            |text: &str| embedded(text.parse().unwrap()).iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        assert_eq!(carried("::ffff:127.0.0.1"), "127.0.0.1");
        assert_eq!(carried("::127.0.0.1"), "127.0.0.1");
        assert_eq!(carried("64:ff9b::10.0.0.1"), "10.0.0.1");
        assert_eq!(carried("64:ff9b:1::10.0.0.1"), "10.0.0.1");
        assert_eq!(carried("2002:7f00:1::"), "127.0.0.1");
        assert_eq!(carried("2001:0:a00:1::80ff:fffe"), "10.0.0.1 127.0.0.1");
        assert_eq!(carried("::1"), "");
        assert_eq!(carried("2606:4700::1111"), "");
    }

    proptest! {
        #[test]
        fn a_network_contains_exactly_what_shares_its_first_bits(a: u32, b: u32, len in 0_u8..=32) {
            let net = Net::around(Ipv4Addr::from_bits(a).into(), len);
            let same = len == 0 || a >> (32 - len) == b >> (32 - len);
            prop_assert_eq!(net.contains(Ipv4Addr::from_bits(b).into()), same);
            prop_assert!(net.contains(net.base));
        }

        #[test]
        fn a_v6_network_contains_exactly_what_shares_its_first_bits(a: u128, b: u128, len in 0_u8..=128) {
            let net = Net::around(Ipv6Addr::from_bits(a).into(), len);
            let same = len == 0 || a >> (128 - len) == b >> (128 - len);
            prop_assert_eq!(net.contains(Ipv6Addr::from_bits(b).into()), same);
        }
    }
}
