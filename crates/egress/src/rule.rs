//! One line of an allow-list: `name`, `*.name`, an address, a network; names and addresses also with a port.

use std::net::IpAddr;

use crate::{
    address::{Class, Net, block},
    host::{Host, HostError, Name, parse_port},
};

#[derive(Clone, Debug)]
pub(crate) struct Rule {
    /// As it was written: what events and refusals quote.
    pub text: String,
    pub(crate) what: What,
    pub(crate) port: Option<u16>,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    Exact(Name),
    Below(Name),
    Net(Net),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error("it is an URL; give only the host, as in `example.com` or `example.com:443`")]
    Url,
    #[error("it allows every name; use the network mode public instead")]
    Everything,
    #[error("a star may only stand for all subdomains, as in `*.example.com`")]
    Star,
    #[error("{0}")]
    Host(#[from] HostError),
    #[error("the number of bits after the slash must be 0 to {0}")]
    Bits(u8),
    #[error("only an address may stand before a slash, and a network takes no port")]
    Slash,
    #[error("its address has bits beyond the network; write it as `{0}`")]
    HostBits(String),
    #[error("write the address as `{0}`")]
    Notation(String),
    #[error("only an address or a network may stand here, without a port")]
    NoNet,
    #[error("{0} can never be reached from a sandbox")]
    Never(Class),
}

impl Rule {
    pub(crate) fn parse(text: &str) -> Result<Rule, RuleError> {
        let (what, port) = parse(text.trim())?;
        Ok(Rule { text: text.trim().to_owned(), what, port })
    }

    /// Of a list that speaks of addresses alone: a name there would promise what its addresses do not keep.
    pub(crate) fn parse_net(text: &str) -> Result<Rule, RuleError> {
        let text = text.trim();
        let net = match text.split_once('/') {
            Some((address, bits)) => read_net(address, bits)?,
            None => match Host::parse(text) {
                Ok(Host::Address(address)) => {
                    plain_notation(text.trim_start_matches('[').trim_end_matches(']'), address)?;
                    Net::one(address)
                }
                _ => return Err(RuleError::NoNet),
            },
        };
        Ok(Rule { text: text.to_owned(), what: What::Net(net), port: None })
    }
}

/// What one rule means by itself: a look-up in a list of them is held to it.
#[cfg(test)]
impl Rule {
    pub(crate) fn covers_name(&self, name: &Name) -> bool {
        match &self.what {
            What::Exact(exact) => exact == name,
            What::Below(apex) => name.is_below(apex),
            What::Net(_) => false,
        }
    }

    pub(crate) fn covers_address(&self, address: IpAddr) -> bool {
        self.net().is_some_and(|net| net.contains(address))
    }

    /// The rule speaks of this address or of a part of its block, and is not merely so wide that it touches it:
    /// `0.0.0.0/0` does not open 127.0.0.1, and `10.0.0.0/8` does not open the host's own 10.0.0.5.
    pub(crate) fn opens(&self, address: IpAddr, block_len: u8) -> bool {
        self.net().is_some_and(|net| net.contains(address) && net.len >= block_len)
    }

    pub(crate) fn covers_port(&self, port: u16) -> bool {
        self.port.is_none_or(|own| own == port)
    }

    fn net(&self) -> Option<Net> {
        match self.what {
            What::Net(net) => Some(net),
            _ => None,
        }
    }
}

fn parse(text: &str) -> Result<(What, Option<u16>), RuleError> {
    if text.contains("://") {
        return Err(RuleError::Url);
    }
    if text == "*" || text == "*." {
        return Err(RuleError::Everything);
    }
    if let Some((address, bits)) = text.split_once('/') {
        return Ok((What::Net(parse_net(address, bits)?), None));
    }
    let bare_v6 = !text.starts_with('[') && text.matches(':').count() > 1;
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !bare_v6 && !text.ends_with(']') => (host, Some(parse_port(port)?)),
        _ => (text, None),
    };
    Ok((parse_host(host)?, port))
}

fn parse_host(text: &str) -> Result<What, RuleError> {
    if let Some(apex) = text.strip_prefix("*.") {
        return match Host::parse(apex) {
            _ if apex.contains('*') => Err(RuleError::Star),
            Ok(Host::Name(apex)) => Ok(What::Below(apex)),
            Ok(Host::Address(_)) => Err(RuleError::Star),
            Err(error) => Err(error.into()),
        };
    }
    if text.contains('*') {
        return Err(RuleError::Star);
    }
    match Host::parse(text)? {
        Host::Name(name) => Ok(What::Exact(name)),
        Host::Address(address) => {
            plain_notation(text, address)?;
            allowable(Net::one(address)).map(What::Net)
        }
    }
}

fn parse_net(address: &str, bits: &str) -> Result<Net, RuleError> {
    allowable(read_net(address, bits)?)
}

fn read_net(address: &str, bits: &str) -> Result<Net, RuleError> {
    let Ok(Host::Address(address_read)) = Host::parse(address) else { return Err(RuleError::Slash) };
    if bits.contains(':') {
        return Err(RuleError::Slash);
    }
    plain_notation(address, address_read)?;
    let most = Net::one(address_read).len;
    let digits = bits.bytes().all(|byte| byte.is_ascii_digit());
    let len = bits.parse::<u8>().ok().filter(|len| digits && *len <= most).ok_or(RuleError::Bits(most))?;
    let net = Net::around(address_read, len);
    if net.base != address_read {
        return Err(RuleError::HostBits(format!("{}/{len}", net.base)));
    }
    Ok(net)
}

/// A rule is read by people: `010.0.0.1` is 8.0.0.1 to some, so it is written plainly or not at all.
fn plain_notation(text: &str, address: IpAddr) -> Result<(), RuleError> {
    match address {
        IpAddr::V4(v4) if v4.to_string() != text => Err(RuleError::Notation(v4.to_string())),
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => Err(RuleError::Notation(v4.to_string())),
            None => Ok(()),
        },
        IpAddr::V4(_) => Ok(()),
    }
}

fn allowable(net: Net) -> Result<Net, RuleError> {
    match block(net.base) {
        Some(block) if block.len <= net.len && !block.class.can_be_allowed() => Err(RuleError::Never(block.class)),
        _ => Ok(net),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn covers(rule: &str, host: &str, port: u16) -> bool {
        let rule = Rule::parse(rule).unwrap();
        rule.covers_port(port)
            && match Host::parse(host).unwrap() {
                Host::Name(name) => rule.covers_name(&name),
                Host::Address(address) => rule.covers_address(address),
            }
    }

    #[test]
    fn each_form_covers_what_it_says() {
        for (rule, host, port, wanted) in [
            ("Example.COM.", "example.com", 1, true),
            ("example.com", "a.example.com", 1, false),
            ("example.com", "example.com.evil.org", 1, false),
            ("*.example.com", "a.example.com", 1, true),
            ("*.example.com", "b.a.example.com", 1, true),
            ("*.example.com", "example.com", 1, false),
            ("*.example.com", "badexample.com", 1, false),
            ("*.example.com:443", "a.example.com", 443, true),
            ("*.example.com:443", "a.example.com", 80, false),
            ("example.com:443", "example.com", 443, true),
            ("example.com:443", "example.com", 80, false),
            ("1.2.3.4", "1.2.3.4", 9, true),
            ("1.2.3.4:80", "1.2.3.4", 81, false),
            ("1.2.3.0/24", "1.2.3.255", 1, true),
            ("1.2.3.0/24", "1.2.4.0", 1, false),
            ("[2606::1]:443", "2606::1", 443, true),
            ("[2606::1]:443", "2606::1", 80, false),
            ("[2606::1]", "2606::1", 80, true),
            ("2606::1", "2606::1", 80, true),
            ("2606::/16", "2606:4700::1", 1, true),
            ("0.0.0.0/0", "1.2.3.4", 1, true),
            ("::/0", "1.2.3.4", 1, false),
            ("1.2.3.4", "0x1.2.772", 1, true),
        ] {
            assert_eq!(covers(rule, host, port), wanted, "{rule} over {host}:{port}");
        }
    }

    #[test]
    fn each_wrong_form_says_what_to_do() {
        for (text, wanted) in [
            ("", "it is empty"),
            ("*", "public"),
            ("https://example.com", "give only the host"),
            ("a*.com", "star"),
            ("*.*.com", "star"),
            ("*.1.2.3.4", "star"),
            ("*foo.com", "star"),
            ("bücher.example", "punycode"),
            ("example.com/path", "before a slash"),
            ("10.0.0.0/8:443", "takes no port"),
            ("10.0.0.0/33", "0 to 32"),
            ("10.0.0.0/+8", "0 to 32"),
            ("10.0.0.0/", "0 to 32"),
            ("fd00::/129", "0 to 128"),
            ("10.1.2.3/8", "`10.0.0.0/8`"),
            ("0x7f.1", "`127.0.0.1`"),
            ("2130706433", "`127.0.0.1`"),
            ("010.0.0.1", "`8.0.0.1`"),
            ("::ffff:10.0.0.1", "`10.0.0.1`"),
            ("example.com:0", "port"),
            ("example.com:99999", "port"),
            ("example.com:", "port"),
            ("0.0.0.0", "never"),
            ("224.0.0.0/4", "never"),
            ("255.255.255.255:80", "never"),
            ("ff02::1", "never"),
            ("a b", "letters"),
            ("[::1", "IPv6"),
            ("1.2.3.4.5", "number"),
        ] {
            let told = Rule::parse(text).unwrap_err().to_string();
            assert!(told.contains(wanted), "{text:?}: {told}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_rule_or_an_error(text in "\\PC{0,60}") {
            let _ = Rule::parse(&text);
        }

        #[test]
        fn a_rule_that_parses_covers_its_own_host(name in "[a-z]{1,9}(\\.[a-z]{2,9}){1,3}", port in 1_u16..) {
            let own = covers(&format!("{name}:{port}"), &name, port);
            prop_assert!(own);
            let below = covers(&format!("*.{name}"), &format!("x.{name}"), port);
            prop_assert!(below);
        }
    }
}
