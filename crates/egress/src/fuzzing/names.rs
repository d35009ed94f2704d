//! Names, addresses in every notation, and the rules of an allow-list.

use std::net::{IpAddr, Ipv4Addr};

use cabana_sandbox::NetworkPolicy;

use crate::{Host, Policy, address::embedded, gate::authority};

pub fn hosts(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(host) = Host::parse(text) {
        check_host(text, &host);
    }
    if let Ok((host, port)) = Host::parse_authority(text) {
        let written = authority(&host, port);
        assert_eq!(Host::parse_authority(&written), Ok((host, port)), "{text:?} is {written:?}");
    }
}

fn check_host(text: &str, host: &Host) {
    assert_eq!(Host::parse(&host.to_string()).as_ref(), Ok(host), "{text:?} is read as {host}");
    let bare = text.strip_suffix('.').unwrap_or(text);
    match host {
        Host::Name(name) => {
            assert_eq!(name.as_str(), bare.to_ascii_lowercase());
            assert!(
                name.as_str().parse::<IpAddr>().is_err() && inet_aton(name.as_str()).is_none(),
                "{name} is an address"
            );
        }
        Host::Address(IpAddr::V4(v4)) => assert_eq!(inet_aton(bare), Some(*v4), "{text:?}"),
        Host::Address(IpAddr::V6(v6)) => {
            assert_eq!(text.trim_start_matches('[').trim_end_matches(']').parse(), Ok(*v6));
        }
    }
    let Ok(public) = Policy::new(&NetworkPolicy::Public, []) else { panic!("public is a policy") };
    if let Host::Address(address) = host
        && public.decide(host, 443).allowed
    {
        assert!(is_public(*address), "{text:?} is {address}, and is let out");
    }
}

/// As the C library reads a number.
fn inet_aton(text: &str) -> Option<Ipv4Addr> {
    let parts: Vec<u64> = text.split('.').map(c_number).collect::<Option<_>>()?;
    let (last, front) = parts.split_last().filter(|(_, front)| front.len() < 4)?;
    let room = [u64::from(u32::MAX), 0xff_ffff, 0xffff, 0xff][front.len()];
    if *last > room || front.iter().any(|part| *part > 255) {
        return None;
    }
    let mut octets = u32::try_from(*last).ok()?.to_be_bytes();
    for (octet, part) in octets.iter_mut().zip(front) {
        *octet = u8::try_from(*part).ok()?;
    }
    Some(octets.into())
}

fn c_number(text: &str) -> Option<u64> {
    let (digits, base) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (text, 10),
    };
    // The C library takes a bare `0x` for a zero.
    if digits.is_empty() && base == 16 {
        return Some(0);
    }
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if plain { u64::from_str_radix(digits, base).ok() } else { None }
}

/// By what the standard library knows of addresses, and by what they carry.
fn is_public(address: IpAddr) -> bool {
    let v4 = |v4: Ipv4Addr| {
        let [a, b, ..] = v4.octets();
        let special = v4.is_private() || v4.is_loopback() || v4.is_link_local() || v4.is_broadcast();
        let other = v4.is_multicast() || v4.is_unspecified() || v4.is_documentation();
        !(special || other || a == 0 || a >= 240 || (a == 100 && b & 0xc0 == 64) || (a == 198 && b & 0xfe == 18))
    };
    match address {
        IpAddr::V4(address) => v4(address),
        IpAddr::V6(v6) => {
            let special = v6.is_loopback() || v6.is_unspecified() || v6.is_multicast() || v6.to_ipv4().is_some();
            let local = v6.is_unique_local() || v6.is_unicast_link_local();
            !special && !local && embedded(address).into_iter().all(v4)
        }
    }
}

/// A rule, a line end, and what a guest asks for: it is allowed only if a second reading of the rule says so.
pub fn rules(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (rule, asked) = text.split_once('\n').unwrap_or((text, "example.com"));
    let Ok(policy) = Policy::new(&NetworkPolicy::Allow(vec![rule.to_owned()]), []) else { return };
    let never = ["0.0.0.0", "255.255.255.255", "224.0.0.1", "::", "ff02::1"];
    let inner = ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fd00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"];
    let asked = never.iter().chain(&inner).chain(&["8.8.8.8", "example.com", "a.example.com"]).copied().chain([asked]);
    for asked in asked {
        let Ok(host) = Host::parse(asked) else { continue };
        for port in [80, 443] {
            let allowed = policy.decide(&host, port).allowed;
            assert!(!allowed || covers(rule.trim(), &host, port), "{rule:?} opens {host}:{port}");
            assert!(!allowed || !never.contains(&asked), "{rule:?} opens {asked}");
            if let Host::Name(name) = &host {
                // A name that points inside opens nothing that no rule names.
                let led_inside = policy.decide_resolved(name, Ipv4Addr::LOCALHOST.into(), port).allowed;
                assert!(!led_inside, "{rule:?} leads {name} inside");
            }
        }
    }
}

fn covers(rule: &str, host: &Host, port: u16) -> bool {
    let (what, rule_port) = match rule.rsplit_once(':') {
        Some((what, digits)) if rule.matches(':').count() == 1 || what.ends_with(']') => (what, digits.parse().ok()),
        _ => (rule, None),
    };
    if rule_port.is_some_and(|own: u16| own != port) {
        return false;
    }
    let what = what.trim_end_matches('.').trim_matches(['[', ']']).to_ascii_lowercase();
    match host {
        Host::Name(name) => match what.strip_prefix("*.") {
            Some(apex) => name.as_str().ends_with(&format!(".{apex}")),
            None => name.as_str() == what,
        },
        Host::Address(address) => {
            let (base, bits) = what.split_once('/').unwrap_or((&what, if address.is_ipv4() { "32" } else { "128" }));
            let base = base.trim_matches(['[', ']']);
            let (Ok(base), Ok(bits)) = (base.parse::<IpAddr>(), bits.parse::<usize>()) else { return false };
            let digits = |address: IpAddr| match address {
                IpAddr::V4(v4) => format!("{:032b}", v4.to_bits()),
                IpAddr::V6(v6) => format!("{:0128b}", v6.to_bits()),
            };
            // An inner address is opened by a rule that speaks of inner addresses only.
            let narrow = is_public(*address) || bits >= 7;
            base.is_ipv4() == address.is_ipv4() && digits(base)[..bits] == digits(*address)[..bits] && narrow
        }
    }
}
