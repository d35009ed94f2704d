//! `/etc/resolv.conf`: the name servers, the search list and the options, as resolv.conf(5) has them.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6},
    time::Duration,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

use crate::host::{Host, Name};

/// As many as the C library asks.
const MAX_SERVERS: usize = 3;
/// Each is asked of the servers.
const MAX_DOMAINS: usize = 32;
const MAX_TIMEOUT: u64 = 30;
const MAX_ATTEMPTS: usize = 5;
const MAX_NDOTS: usize = 15;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ResolvConf {
    /// There is at least one.
    pub servers: Vec<Server>,
    pub search: Vec<Name>,
    /// A name with as many dots is asked for as it is before it is searched for.
    pub ndots: usize,
    /// For one answer of one server.
    pub timeout: Duration,
    /// Rounds through all servers.
    pub attempts: usize,
    /// Lookups begin at different servers.
    pub rotate: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Server {
    address: IpAddr,
    /// The interface of a link-local address, and otherwise 0.
    scope: u32,
}

impl Server {
    pub(super) fn at(self, port: u16) -> SocketAddr {
        match self.address {
            IpAddr::V4(v4) => (v4, port).into(),
            IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, self.scope).into(),
        }
    }
}

pub(super) fn of_this_machine(text: &str) -> ResolvConf {
    let uname = rustix::system::uname();
    parse(text, &uname.nodename().to_string_lossy(), interface)
}

/// Its number.
fn interface(name: &str) -> Option<u32> {
    let any = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
    netdevice::name_to_index(any, name).ok()
}

/// What is not understood is passed over. Without a search list, the domain of this machine is searched.
fn parse(text: &str, machine: &str, interface: impl Fn(&str) -> Option<u32>) -> ResolvConf {
    let mut conf = ResolvConf {
        servers: Vec::new(),
        search: machine.split_once('.').and_then(|(_, domain)| domain_of(domain)).into_iter().collect(),
        ndots: 1,
        timeout: Duration::from_secs(5),
        attempts: 2,
        rotate: false,
    };
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("nameserver") if conf.servers.len() < MAX_SERVERS => {
                conf.servers.extend(words.next().and_then(|word| server(word, &interface)));
            }
            // The last one of either counts.
            Some("search") => conf.search = words.filter_map(domain_of).take(MAX_DOMAINS).collect(),
            Some("domain") => conf.search = words.take(1).filter_map(domain_of).collect(),
            Some("options") => words.for_each(|word| conf.set(word)),
            _ => {}
        }
    }
    if conf.servers.is_empty() {
        conf.servers.push(Server { address: Ipv4Addr::LOCALHOST.into(), scope: 0 });
    }
    conf
}

fn server(word: &str, interface: impl Fn(&str) -> Option<u32>) -> Option<Server> {
    let (address, scope) = match word.split_once('%') {
        Some((address, scope)) => (address, scope.parse().ok().or_else(|| interface(scope))?),
        None => (word, 0),
    };
    match Host::parse(address) {
        Ok(Host::Address(address)) => Some(Server { address, scope }),
        _ => None,
    }
}

/// The root (`.`) is no domain to search in: each name is asked for as it is anyway.
fn domain_of(word: &str) -> Option<Name> {
    match Host::parse(word) {
        Ok(Host::Name(name)) => Some(name),
        _ => None,
    }
}

impl ResolvConf {
    fn set(&mut self, option: &str) {
        let (option, value) = option.split_once(':').unwrap_or((option, ""));
        match (option, value.parse::<usize>()) {
            ("rotate", _) => self.rotate = true,
            ("ndots", Ok(dots)) => self.ndots = dots.min(MAX_NDOTS),
            ("attempts", Ok(attempts)) => self.attempts = attempts.clamp(1, MAX_ATTEMPTS),
            ("timeout", Ok(seconds)) => self.timeout = Duration::from_secs((seconds as u64).clamp(1, MAX_TIMEOUT)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn conf(text: &str) -> ResolvConf {
        parse(text, "machine", |name| (name == "eth0").then_some(7))
    }

    fn servers(text: &str) -> Vec<String> {
        conf(text).servers.iter().map(|server| server.at(53).to_string()).collect()
    }

    fn search(text: &str, machine: &str) -> String {
        parse(text, machine, |_| None).search.iter().map(Name::as_str).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_first_three_servers_count_in_whatever_notation() {
        assert_eq!(servers("nameserver 10.0.0.1\nnameserver\tfd00::1 \r\n"), ["10.0.0.1:53", "[fd00::1]:53"]);
        assert_eq!(servers("nameserver fe80::1%eth0\nnameserver fe80::2%3"), ["[fe80::1%7]:53", "[fe80::2%3]:53"]);
        assert_eq!(servers("nameserver 1.1.1.1 # one\n#nameserver 2.2.2.2\n;nameserver 3.3.3.3"), ["1.1.1.1:53"]);
        let four = "nameserver 1.1.1.1\nnameserver 1.1.1.2\nnameserver 1.1.1.3\nnameserver 1.1.1.4";
        assert_eq!(servers(four).len(), 3);
    }

    #[test]
    fn without_a_server_it_is_this_machine() {
        for text in ["", "nameserver", "nameserver dns.example", "nameserver fe80::1%wlan9", "nameservers 1.1.1.1"] {
            assert_eq!(servers(text), ["127.0.0.1:53"], "{text}");
        }
    }

    #[test]
    fn the_last_search_list_counts_and_stands_for_the_domain_of_the_machine() {
        assert_eq!(search("", "host.corp.example"), "corp.example");
        assert_eq!(search("", "host"), "");
        assert_eq!(search("search .", "host.corp.example"), "");
        assert_eq!(search("domain a.example b.example", "host.corp.example"), "a.example");
        assert_eq!(search("domain a.example\nsearch B.example. c", "host"), "b.example c");
        assert_eq!(search("search a\ndomain b", "host"), "b");
        assert_eq!(search(&format!("search {}", "a ".repeat(100)), "host").split(' ').count(), MAX_DOMAINS);
    }

    #[test]
    fn options_have_bounds() {
        let seconds = |text: &str| conf(text).timeout.as_secs();
        assert_eq!((seconds(""), conf("").attempts, conf("").ndots, conf("").rotate), (5, 2, 1, false));
        let all = conf("options timeout:3 attempts:1\noptions ndots:5 edns0 rotate trust-ad");
        assert_eq!((all.timeout.as_secs(), all.attempts, all.ndots, all.rotate), (3, 1, 5, true));
        let wide = conf("options timeout:999999 attempts:99 ndots:99");
        assert_eq!((wide.timeout.as_secs(), wide.attempts, wide.ndots), (30, 5, 15));
        let narrow = conf("options timeout:0 attempts:0 ndots:0");
        assert_eq!((narrow.timeout.as_secs(), narrow.attempts, narrow.ndots), (1, 1, 0));
        assert_eq!(conf("options timeout:-1 attempts: ndots:x timeout"), conf(""));
    }

    proptest! {
        #[test]
        fn any_text_is_a_configuration_with_bounds(
            text in "((nameserver|search|domain|options|timeout:|ndots:|rotate|[0-9.:%a-f]|[ \t\n])|\\PC){0,120}",
        ) {
            let conf = conf(&text);
            prop_assert!((1..=MAX_SERVERS).contains(&conf.servers.len()) && conf.search.len() <= MAX_DOMAINS);
            prop_assert!((1..=MAX_ATTEMPTS).contains(&conf.attempts) && conf.ndots <= MAX_NDOTS);
            prop_assert!((1..=MAX_TIMEOUT).contains(&conf.timeout.as_secs()));
        }
    }
}
