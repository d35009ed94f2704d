//! What a guest may call a destination: a name or an address, and nothing that two readers would read differently.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

/// A host name in lower case without its last dot. It is never an address in disguise.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<str>);

/// So that a part of a name can be looked up as the name that it is.
impl std::borrow::Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    Name(Name),
    Address(IpAddr),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum HostError {
    #[error("it is empty")]
    Empty,
    #[error("it holds characters outside of ASCII; write the name in punycode (xn--…)")]
    NotAscii,
    #[error("it is longer than 253 characters")]
    TooLong,
    #[error("each part of a name has 1 to 63 letters, digits, hyphens or underscores, and no hyphen at its ends")]
    BadLabel,
    #[error("it ends in a number and is no IPv4 address")]
    BadNumber,
    #[error("it is no IPv6 address")]
    BadV6,
    #[error("its port is no number from 1 to 65535")]
    BadPort,
}

impl Name {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Any depth below `apex`, but not `apex` itself.
    #[cfg(test)]
    pub(crate) fn is_below(&self, apex: &Name) -> bool {
        self.0.strip_suffix(&*apex.0).is_some_and(|front| front.ends_with('.'))
    }

    /// Each name that this one is below, the nearest first.
    pub(crate) fn above(&self) -> impl Iterator<Item = &str> {
        self.0.match_indices('.').map(|(dot, _)| &self.0[dot + 1..])
    }
}

impl Host {
    /// A name, an IPv4 address in any notation that some resolver accepts, or an IPv6 address with or without brackets.
    pub fn parse(text: &str) -> Result<Host, HostError> {
        if let Some(inner) = text.strip_prefix('[') {
            return v6(inner.strip_suffix(']').ok_or(HostError::BadV6)?);
        }
        if text.contains(':') {
            return v6(text);
        }
        let text = text.strip_suffix('.').unwrap_or(text);
        match text.rsplit('.').next() {
            Some(last) if is_number(last) => {
                let address = numeric_v4(text).ok_or(HostError::BadNumber)?;
                Ok(Host::Address(address.into()))
            }
            _ => name(text).map(Host::Name),
        }
    }

    /// As it stands in an URL, a `Host` header or a CONNECT line: `name`, `name:80`, `[v6]`, `[v6]:80`.
    pub fn parse_authority(text: &str) -> Result<(Host, Option<u16>), HostError> {
        let after_bracket = text.rfind(']').map_or(0, |at| at + 1);
        match text[after_bracket..].find(':') {
            None => Ok((Host::parse(text)?, None)),
            Some(at) => {
                let (host, port) = text.split_at(after_bracket + at);
                Ok((Host::parse(host)?, Some(parse_port(&port[1..])?)))
            }
        }
    }

    pub(crate) fn name(&self) -> Option<&Name> {
        match self {
            Host::Name(name) => Some(name),
            Host::Address(_) => None,
        }
    }
}

pub(crate) fn parse_port(text: &str) -> Result<u16, HostError> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let port = if digits { text.parse().ok() } else { None };
    port.filter(|port| *port != 0).ok_or(HostError::BadPort)
}

fn name(text: &str) -> Result<Name, HostError> {
    if text.is_empty() {
        return Err(HostError::Empty);
    }
    if !text.is_ascii() {
        return Err(HostError::NotAscii);
    }
    if text.len() > 253 {
        return Err(HostError::TooLong);
    }
    if !text.split('.').all(is_label) {
        return Err(HostError::BadLabel);
    }
    Ok(Name(text.to_ascii_lowercase().into()))
}

fn is_label(label: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=63).contains(&label.len()) && label.bytes().all(known) && !label.starts_with('-') && !label.ends_with('-')
}

fn v6(text: &str) -> Result<Host, HostError> {
    text.parse::<Ipv6Addr>().map(|address| Host::Address(address.into())).map_err(|_| HostError::BadV6)
}

/// What ends in a number is an address or nothing: no top-level domain is one, and `inet_aton` of the C library would
/// read it as an address after the policy took it for a name.
fn is_number(label: &str) -> bool {
    let digits = !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_digit());
    digits || hex_digits(label).is_some()
}

fn hex_digits(label: &str) -> Option<&str> {
    let digits = label.strip_prefix("0x").or_else(|| label.strip_prefix("0X"))?;
    digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(digits)
}

/// `127.0.0.1`, `127.1`, `0x7f.1`, `0177.0.0.1`, `2130706433`: one to four parts, the last fills what is left.
fn numeric_v4(text: &str) -> Option<Ipv4Addr> {
    let parts: Vec<u64> = text.splitn(5, '.').map(number).collect::<Option<_>>()?;
    let (last, first) = parts.split_last()?;
    let bits_left = 8 * 4_usize.checked_sub(first.len())?;
    if bits_left == 0 || first.iter().any(|part| *part > 255) || *last >> bits_left != 0 {
        return None;
    }
    let front = first.iter().fold(0, |value, part| (value << 8) | part);
    let value = (front << bits_left) | last;
    Some(Ipv4Addr::from_bits(u32::try_from(value).ok()?))
}

fn number(part: &str) -> Option<u64> {
    match hex_digits(part) {
        Some("") => Some(0),
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None if part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_digit()) => None,
        None if part.starts_with('0') => u64::from_str_radix(part, 8).ok(),
        None => part.parse().ok(),
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Name(name) => name.fmt(f),
            Host::Address(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(text: &str) -> Option<IpAddr> {
        match Host::parse(text) {
            Ok(Host::Address(address)) => Some(address),
            _ => None,
        }
    }

    #[test]
    fn every_notation_of_a_v4_address_is_that_address() {
        let notations = [
            "127.0.0.1",
            "127.0.0.1.",
            "127.1",
            "127.0.1",
            "0x7f.1",
            "0X7F.0.0.1",
            "0x7f000001",
            "0177.0.0.1",
            "0177.1",
            "017700000001",
            "2130706433",
            "0x7f.0.0.01",
            "127.0x0.0.1",
            "00000177.0.0.1",
        ];
        for text in notations {
            assert_eq!(address(text), Some(Ipv4Addr::LOCALHOST.into()), "{text}");
        }
        assert_eq!(address("0"), Some(Ipv4Addr::UNSPECIFIED.into()));
        assert_eq!(address("0x"), Some(Ipv4Addr::UNSPECIFIED.into()));
        assert_eq!(address("4294967295"), Some(Ipv4Addr::BROADCAST.into()));
    }

    #[test]
    fn what_ends_in_a_number_and_is_no_address_is_nothing() {
        let texts = [
            "1.2.3.4.5",
            "256.1.1.1",
            "1.2.3.256",
            "4294967296",
            "example.1",
            "09",
            "0x1ffffffff",
            "1..2",
            "a.0x7f",
            "127.0.0.1.1",
            "18446744073709551617",
            "99999999999999999999999999",
        ];
        for text in texts {
            assert_eq!(Host::parse(text), Err(HostError::BadNumber), "{text}");
        }
    }

    #[test]
    fn names_lose_their_case_and_their_last_dot() {
        assert_eq!(Host::parse("ExAmple.COM.").unwrap().to_string(), "example.com");
        assert_eq!(Host::parse("_dmarc.example.com").unwrap().to_string(), "_dmarc.example.com");
        assert_eq!(Host::parse("1and1.com").unwrap().to_string(), "1and1.com");
    }

    #[test]
    fn what_is_no_name_is_refused_with_its_reason() {
        let long = format!("{}.com", "a.".repeat(130));
        let cases = [
            ("", HostError::Empty),
            (".", HostError::Empty),
            ("bücher.example", HostError::NotAscii),
            ("127。0。0。1", HostError::NotAscii),
            ("a..b", HostError::BadLabel),
            ("-a.com", HostError::BadLabel),
            ("a b.com", HostError::BadLabel),
            ("a\0.com", HostError::BadLabel),
            ("%31.com", HostError::BadLabel),
            ("a@b.com", HostError::BadLabel),
            ("example.com..", HostError::BadLabel),
            (&long, HostError::BadLabel),
            ("[::1", HostError::BadV6),
            ("::1%lo", HostError::BadV6),
            ("[127.0.0.1]", HostError::BadV6),
        ];
        for (text, error) in cases {
            let told = Host::parse(text).unwrap_err();
            assert!(told == error || text == long, "{text}: {told:?}");
        }
    }

    #[test]
    fn an_authority_is_a_host_and_perhaps_a_port() {
        let parsed = |text| Host::parse_authority(text).map(|(host, port)| (host.to_string(), port));
        assert_eq!(parsed("a.com:80"), Ok(("a.com".into(), Some(80))));
        assert_eq!(parsed("[::1]:443"), Ok(("::1".into(), Some(443))));
        assert_eq!(parsed("[::1]"), Ok(("::1".into(), None)));
        for text in ["a.com:", "a.com:0", "a.com:65536", "a.com:+1", "a.com:80:80", "::1", "[::1]x:1", ":80", ""] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_panic_and_a_result_is_stable(text in "\\PC{0,80}") {
            if let Ok(host) = Host::parse(&text) {
                prop_assert_eq!(Host::parse(&host.to_string()), Ok(host));
            }
            let _ = Host::parse_authority(&text);
        }

        #[test]
        fn names_of_digits_dots_and_hex_are_never_names(text in "[0-9]{1,4}(\\.(0x)?[0-9a-f]{1,4}){0,3}\\.[0-9]{1,9}") {
            prop_assert!(!matches!(Host::parse(&text), Ok(Host::Name(_))));
        }

        #[test]
        fn each_notation_agrees_with_the_plain_one(bits: u32) {
            let wanted = Some(IpAddr::V4(Ipv4Addr::from_bits(bits)));
            let [a, b, c, d] = bits.to_be_bytes();
            for text in [
                format!("{bits}"), format!("{bits:#x}"), format!("0{bits:o}"), format!("{a:#x}.{b}.0{c:o}.{d}"),
                format!("{a}.{}", bits & 0xff_ffff), format!("{a}.{b}.{}", bits & 0xffff),
            ] {
                prop_assert_eq!(address(&text), wanted, "{}", text);
            }
        }
    }
}
