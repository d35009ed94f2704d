//! `/etc/hosts`: lines of an address and its names.

use std::{collections::HashMap, net::IpAddr};

use super::MAX_ADDRESSES;
use crate::host::{Host, Name};

pub(super) struct Hosts {
    addresses: HashMap<Name, Vec<IpAddr>>,
}

impl Hosts {
    /// What is no address, and what is no name, is passed over: the file is written by hand.
    pub(super) fn parse(text: &str) -> Self {
        let mut addresses: HashMap<Name, Vec<IpAddr>> = HashMap::new();
        for line in text.lines() {
            let mut words = line.split('#').next().unwrap_or_default().split_ascii_whitespace();
            let Some(Ok(address)) = words.next().map(str::parse::<IpAddr>) else { continue };
            for word in words {
                let Ok(Host::Name(name)) = Host::parse(word) else { continue };
                let known = addresses.entry(name).or_default();
                if known.len() < MAX_ADDRESSES && !known.contains(&address) {
                    known.push(address);
                }
            }
        }
        Self { addresses }
    }

    /// All of them, from whatever lines.
    pub(super) fn addresses(&self, name: &Name) -> Option<&[IpAddr]> {
        self.addresses.get(name).map(Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn addresses(text: &str, name: &str) -> Vec<String> {
        let Ok(Host::Name(name)) = Host::parse(name) else { panic!("{name} is no name") };
        let found = Hosts::parse(text).addresses(&name).unwrap_or_default().to_vec();
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_name_has_the_addresses_of_all_its_lines() {
        let text =
            "# hosts\n10.0.0.1\tDB db.corp. # the first\r\n  fd00::1 web  db \n10.0.0.1 db\n10.0.0.2 #db\n\n10.0.0.3";
        assert_eq!(addresses(text, "db"), ["10.0.0.1", "fd00::1"]);
        assert_eq!(addresses(text, "Db.Corp"), ["10.0.0.1"]);
        assert_eq!(addresses(text, "web"), ["fd00::1"]);
        assert_eq!(addresses(text, "the"), [""; 0]);
    }

    #[test]
    fn lines_that_are_not_understood_are_passed_over() {
        for line in ["db 10.0.0.1", "10.0.0 db", "fe80::1%eth0 db", "10.0.0.1 10.0.0.2", "10.0.0.1 b\u{fc}cher", "\0"] {
            assert_eq!(addresses(&format!("{line}\n10.9.9.9 db"), "db"), ["10.9.9.9"], "{line:?}");
        }
    }

    #[test]
    fn very_many_addresses_of_one_name_are_some() {
        let text: String = (0..1000).map(|n| format!("10.0.{}.{} db\n", n / 256, n % 256)).collect();
        assert_eq!(addresses(&text, "db").len(), MAX_ADDRESSES);
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "([0-9a-f.:%# \t\n]|\\PC){0,200}") {
            Hosts::parse(&text);
        }

        #[test]
        fn a_line_among_any_others_is_found(before in "\\PC{0,60}", bits: u32, after in "\\PC{0,60}") {
            let address = std::net::Ipv4Addr::from_bits(bits).to_string();
            let found = addresses(&format!("{before}\n{address} a.example\n{after}"), "a.example");
            prop_assert!(found.contains(&address));
        }
    }
}
