//! May a sandbox reach this host on this port? Pure decisions: what is asked is resolved and connected elsewhere.
//!
//! A destination by name is judged twice: the name before it is resolved, and each of its addresses before it is connected.
//! So a listed name that points into the private network (by mistake, or because its owner changed the answer) opens
//! nothing, unless the list also names that address or a network that lies wholly in its block.

use std::{collections::HashSet, net::IpAddr, sync::Arc};

use cabana_sandbox::NetworkPolicy;

use crate::{
    address::{Block, Class, Net, block, embedded},
    decision::{Decision, Reason},
    host::{Host, Name},
    rule::{Rule, RuleError},
    rules::Rules,
};

const MAX_RULES: usize = 4096;

#[derive(Clone, Debug)]
pub struct Policy {
    mode: Mode,
    encrypted_hello: EncryptedHello,
    /// The addresses of this host, public ones too: its services are not the guest's.
    own: Arc<HashSet<IpAddr>>,
}

/// What happens to a TLS hello with another one in it, encrypted (ECH), where names are listed. A server that can read it goes by
/// the name inside, so a list that has one of its names opens all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EncryptedHello {
    /// Browsers send some to every server, mostly with nothing in it.
    #[default]
    Pass,
    Refuse,
}

#[derive(Clone, Debug)]
enum Mode {
    Off,
    Allow(Arc<Rules>),
    Public,
    PublicBut {
        deny: Arc<Rules>,
        /// Stronger than what is denied. It opens nothing that is not public.
        allow: Arc<Rules>,
        /// No address is left. So no name is looked up: its servers would hear of it, and whatever they answer is refused.
        denies_all: bool,
    },
    /// All that the host itself can reach, its own loopback by [`crate::HOST_NAME`] included.
    Host,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error("the list has {0} rules; {MAX_RULES} is the most")]
    TooManyRules(usize),
    #[error("the rule {rule:?} of the allow-list is not understood: {why}")]
    Rule { rule: String, why: RuleError },
    #[error("the rule {rule:?} of what is denied, or allowed after all, is not understood: {why}")]
    Net { rule: String, why: RuleError },
}

impl Policy {
    pub fn new(wanted: &NetworkPolicy, own: impl IntoIterator<Item = IpAddr>) -> Result<Policy, PolicyError> {
        let mode = match wanted {
            NetworkPolicy::Off => Mode::Off,
            NetworkPolicy::Public => Mode::Public,
            NetworkPolicy::Host => Mode::Host,
            NetworkPolicy::Allow(rules) if rules.len() > MAX_RULES => {
                return Err(PolicyError::TooManyRules(rules.len()));
            }
            NetworkPolicy::Allow(rules) => Mode::Allow(rules_of(rules, parse)?),
            NetworkPolicy::PublicBut { deny, allow } if deny.len() + allow.len() > MAX_RULES => {
                return Err(PolicyError::TooManyRules(deny.len() + allow.len()));
            }
            NetworkPolicy::PublicBut { deny, allow } => {
                let (deny, allow) = (rules_of(deny, parse_net)?, rules_of(allow, parse_net)?);
                let denies_all = deny.cover_every_address() && allow.nets().next().is_none();
                Mode::PublicBut { deny, allow, denies_all }
            }
        };
        Ok(Policy { mode, encrypted_hello: EncryptedHello::default(), own: Arc::new(own.into_iter().collect()) })
    }

    pub fn with_encrypted_hello(self, encrypted_hello: EncryptedHello) -> Policy {
        Policy { encrypted_hello, ..self }
    }

    /// The same on a host with other addresses.
    pub fn with_own(self, own: impl IntoIterator<Item = IpAddr>) -> Policy {
        Policy { own: Arc::new(own.into_iter().collect()), ..self }
    }

    /// Whether it opens anything that is not public: this host, or a network that others do not see.
    pub fn reaches_inside(&self) -> bool {
        let Mode::Allow(rules) = &self.mode else { return matches!(self.mode, Mode::Host) };
        rules.nets().any(|net| {
            let carried = embedded(net.base).into_iter().map(IpAddr::from);
            std::iter::once(net.base).chain(carried).any(|address| self.block(address).is_some())
        })
    }

    /// What the guest asked for, before anything is resolved.
    pub fn decide(&self, host: &Host, port: u16) -> Decision {
        match host {
            Host::Name(name) => self.decide_name(name, Some(port)),
            Host::Address(address) => self.decide_address(*address, port),
        }
    }

    /// May the name be asked for at all, on whatever port?
    pub fn decide_lookup(&self, name: &Name) -> Decision {
        self.decide_name(name, None)
    }

    /// One of the addresses of a name that [`Policy::decide`] allowed.
    pub fn decide_resolved(&self, name: &Name, address: IpAddr, port: u16) -> Decision {
        let by_name = self.decide(&Host::Name(name.clone()), port);
        if !by_name.allowed {
            return by_name;
        }
        self.refused(address, Some(port)).unwrap_or(by_name)
    }

    /// The same for a question of the DNS, which has no port.
    pub(crate) fn decide_lookup_resolved(&self, name: &Name, address: IpAddr) -> Decision {
        let by_name = self.decide_lookup(name);
        if !by_name.allowed {
            return by_name;
        }
        self.refused(address, None).unwrap_or(by_name)
    }

    /// Only an allow-list tells one name from another, so only there is fronting worth looking for.
    pub(crate) fn tells_names_apart(&self) -> bool {
        matches!(self.mode, Mode::Allow(_))
    }

    pub(crate) fn refuses_encrypted_hello(&self) -> bool {
        self.tells_names_apart() && self.encrypted_hello == EncryptedHello::Refuse
    }

    pub(crate) fn mode(&self) -> &'static str {
        match self.mode {
            Mode::Off => "off",
            Mode::Allow(_) => "allowlist",
            Mode::Public | Mode::PublicBut { .. } => "public",
            Mode::Host => "host",
        }
    }

    /// On whatever port, where none is given.
    fn decide_name(&self, name: &Name, port: Option<u16>) -> Decision {
        match &self.mode {
            Mode::Off => self.deny(Reason::Off),
            Mode::PublicBut { denies_all: true, .. } => self.deny(Reason::Denied),
            Mode::Public | Mode::PublicBut { .. } => Decision::allow(self.mode(), Reason::Public),
            Mode::Host => Decision::allow(self.mode(), Reason::Host),
            Mode::Allow(rules) => match rules.of_name(name, port) {
                Some(rule) => Decision::allow(&rule.text, Reason::Listed),
                None => self.deny(Reason::NotListed),
            },
        }
    }

    fn decide_address(&self, address: IpAddr, port: u16) -> Decision {
        let decision = match &self.mode {
            Mode::Off => return self.deny(Reason::Off),
            Mode::Public | Mode::PublicBut { .. } => Decision::allow(self.mode(), Reason::Public),
            Mode::Host => return Decision::allow(self.mode(), Reason::Host),
            Mode::Allow(rules) => match rules.of_address(address, Some(port)) {
                Some(rule) => Decision::allow(&rule.text, Reason::Listed),
                None => return self.deny(Reason::NotListed),
            },
        };
        self.refused(address, Some(port)).unwrap_or(decision)
    }

    /// Why this address may not be reached, whatever else speaks for it.
    fn refused(&self, address: IpAddr, port: Option<u16>) -> Option<Decision> {
        self.inner(address, port).or_else(|| self.denied(address))
    }

    fn denied(&self, address: IpAddr) -> Option<Decision> {
        let Mode::PublicBut { deny, allow, .. } = &self.mode else { return None };
        let rule = deny.of_address(address, None)?;
        match allow.of_address(address, None) {
            Some(_) => None,
            None => Some(Decision::deny(&rule.text, Reason::Denied)),
        }
    }

    /// The refusal of an address that is not public, or that carries one that is not, and that no rule opens.
    fn inner(&self, address: IpAddr, port: Option<u16>) -> Option<Decision> {
        if matches!(self.mode, Mode::Host) {
            return None;
        }
        let carried = embedded(address).into_iter().map(IpAddr::from);
        let closed = std::iter::once(address).chain(carried).find_map(|address| {
            let block = self.block(address)?;
            (!self.opened(address, block, port)).then_some((address, block.class))
        });
        closed.map(|(address, class)| self.deny(Reason::Inner { address, class }))
    }

    fn block(&self, address: IpAddr) -> Option<Block> {
        let inner = block(address);
        let whole = Net::one(address).len;
        match self.own.contains(&address) {
            true if inner.is_none_or(|block| block.class.can_be_allowed()) => {
                Some(Block { class: Class::Own, len: whole })
            }
            _ => inner,
        }
    }

    fn opened(&self, address: IpAddr, block: Block, port: Option<u16>) -> bool {
        let Mode::Allow(rules) = &self.mode else { return false };
        rules.opens(address, block.len, port)
    }

    fn deny(&self, reason: Reason) -> Decision {
        Decision::deny(self.mode(), reason)
    }
}

fn rules_of(texts: &[String], parse: fn(&str) -> Result<Rule, PolicyError>) -> Result<Arc<Rules>, PolicyError> {
    let rules = texts.iter().map(|text| parse(text)).collect::<Result<_, _>>()?;
    Ok(Arc::new(Rules::new(rules)))
}

fn parse_net(rule: &str) -> Result<Rule, PolicyError> {
    Rule::parse_net(rule).map_err(|why| PolicyError::Net { rule: rule.chars().take(300).collect(), why })
}

fn parse(rule: &str) -> Result<Rule, PolicyError> {
    Rule::parse(rule).map_err(|why| PolicyError::Rule { rule: rule.chars().take(300).collect(), why })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    fn policy(rules: &[&str]) -> Policy {
        let rules = rules.iter().map(|rule| (*rule).to_owned()).collect();
        Policy::new(&NetworkPolicy::Allow(rules), own()).unwrap()
    }

    fn public() -> Policy {
        Policy::new(&NetworkPolicy::Public, own()).unwrap()
    }

    fn own() -> [IpAddr; 2] {
        ["10.0.0.5".parse().unwrap(), "93.184.216.1".parse().unwrap()]
    }

    fn decide(policy: &Policy, host: &str) -> Decision {
        policy.decide(&Host::parse(host).unwrap(), 443)
    }

    fn resolved(policy: &Policy, name: &str, address: &str) -> bool {
        let Host::Name(name) = Host::parse(name).unwrap() else { panic!("{name} is no name") };
        policy.decide_resolved(&name, address.parse().unwrap(), 443).allowed
    }

    #[test]
    fn off_refuses_everything() {
        let off = Policy::new(&NetworkPolicy::Off, []).unwrap();
        assert_eq!(decide(&off, "example.com").reason, Reason::Off);
        assert_eq!(decide(&off, "8.8.8.8").reason, Reason::Off);
    }

    #[test]
    fn a_list_that_opens_something_inside_is_told_from_one_that_does_not() {
        let inside =
            ["127.0.0.1:5432", "10.0.0.0/8", "10.1.2.3", "169.254.169.254", "[::1]:80", "fd00::/8", "93.184.216.1"];
        for rule in inside {
            assert!(policy(&["example.com", rule]).reaches_inside(), "{rule}");
        }
        let outside = ["example.com", "*.example.org:443", "8.8.8.8", "9.9.9.0/24", "93.184.216.2", crate::HOST_NAME];
        assert!(!policy(&outside).reaches_inside());
        assert!(!policy(&[]).reaches_inside() && !public().reaches_inside());
        assert!(Policy::new(&NetworkPolicy::Host, own()).unwrap().reaches_inside());
    }

    #[test]
    fn public_refuses_every_inner_address_in_every_notation() {
        let inner = [
            "127.0.0.1",
            "127.1",
            "2130706433",
            "0x7f.1",
            "0177.0.0.1",
            "0",
            "0.0.0.0",
            "10.0.0.1",
            "167772161",
            "012.1",
            "172.16.0.1",
            "192.168.0.1",
            "3232235521",
            "100.64.0.1",
            "169.254.169.254",
            "0xa9fea9fe",
            "2852039166",
            "168.63.129.16",
            "192.80.8.124",
            "100.100.100.200",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "192.0.2.1",
            "::",
            "::1",
            "[::1]",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "::127.0.0.1",
            "::8.8.8.8",
            "64:ff9b::127.0.0.1",
            "64:ff9b::8.8.8.8",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:808:808::",
            "2001::1",
            "fd00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "2001:db8::1",
            "10.0.0.5",
            "93.184.216.1",
        ];
        for host in inner {
            let decision = decide(&public(), host);
            assert!(!decision.allowed, "{host} is allowed");
            assert!(matches!(decision.reason, Reason::Inner { .. }), "{host}: {:?}", decision.reason);
        }
        for host in ["8.8.8.8", "134744072", "93.184.216.2", "2606:4700::1111", "example.com"] {
            assert!(decide(&public(), host).allowed, "{host} is refused");
        }
    }

    #[test]
    fn host_refuses_nothing() {
        let host = Policy::new(&NetworkPolicy::Host, own()).unwrap();
        for to in ["example.com", "8.8.8.8", "127.0.0.1", "10.0.0.5", "169.254.169.254", "::ffff:10.0.0.1"] {
            assert_eq!(decide(&host, to).reason, Reason::Host, "{to}");
        }
        assert!(resolved(&host, "example.com", "127.0.0.1"));
    }

    #[test]
    fn a_listed_name_opens_no_inner_address() {
        let named = policy(&["example.com"]);
        assert!(resolved(&named, "example.com", "93.184.216.34"));
        for address in ["127.0.0.1", "10.0.0.1", "10.0.0.5", "93.184.216.1", "::1", "fd00::1", "::ffff:10.0.0.1"] {
            assert!(!resolved(&named, "example.com", address), "{address}");
        }
        let both = policy(&["example.com", "10.0.0.1:443"]);
        assert!(resolved(&both, "example.com", "10.0.0.1"));
        assert!(!resolved(&both, "example.com", "10.0.0.2"));
        assert!(!resolved(&both, "other.com", "10.0.0.1"));
        assert!(!resolved(&policy(&["example.com", "10.0.0.1:80"]), "example.com", "10.0.0.1"));
    }

    #[test]
    fn a_wide_rule_opens_only_what_it_speaks_of() {
        let all = policy(&["0.0.0.0/0", "::/0"]);
        assert!(decide(&all, "8.8.8.8").allowed && decide(&all, "2606::1").allowed);
        for host in ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fd00::1", "::ffff:8.8.8.8", "93.184.216.1"] {
            assert!(!decide(&all, host).allowed, "{host}");
        }
        let private = policy(&["10.0.0.0/8", "169.254.0.0/16", "fd00::/8"]);
        assert!(decide(&private, "10.0.0.1").allowed && decide(&private, "fd00::1").allowed);
        for host in ["10.0.0.5", "169.254.169.254", "fd00:ec2::254"] {
            assert!(!decide(&private, host).allowed, "{host}");
        }
        assert!(decide(&policy(&["10.0.0.5"]), "10.0.0.5").allowed);
    }

    #[test]
    fn what_ipv6_carries_must_be_open_too() {
        assert!(!decide(&policy(&["64:ff9b::/96"]), "64:ff9b::127.0.0.1").allowed);
        assert!(decide(&policy(&["64:ff9b::/96"]), "64:ff9b::8.8.8.8").allowed);
        assert!(decide(&policy(&["64:ff9b::/96", "10.0.0.1"]), "64:ff9b::10.0.0.1").allowed);
    }

    #[test]
    fn a_listed_address_allows_no_name_and_a_listed_name_no_address() {
        assert_eq!(decide(&policy(&["93.184.216.34"]), "example.com").reason, Reason::NotListed);
        assert_eq!(decide(&policy(&["example.com"]), "93.184.216.34").reason, Reason::NotListed);
    }

    fn public_but(deny: &[&str], allow: &[&str]) -> Policy {
        let owned = |rules: &[&str]| rules.iter().map(|rule| (*rule).to_owned()).collect();
        Policy::new(&NetworkPolicy::PublicBut { deny: owned(deny), allow: owned(allow) }, own()).unwrap()
    }

    #[test]
    fn what_is_denied_is_refused_by_address_and_by_every_name_that_leads_there() {
        let but = public_but(&["8.8.8.0/24", "2606:4700::/32"], &["8.8.8.8"]);
        for host in ["8.8.8.9", "134744073", "2606:4700::1111"] {
            assert_eq!(decide(&but, host).reason, Reason::Denied, "{host}");
        }
        for host in ["8.8.8.8", "8.8.4.4", "2620:fe::fe", "example.com"] {
            assert!(decide(&but, host).allowed, "{host}");
        }
        assert!(!resolved(&but, "example.com", "8.8.8.9") && resolved(&but, "example.com", "8.8.8.8"));
        assert_eq!(decide(&but, "8.8.8.9").rule, "8.8.8.0/24");
    }

    #[test]
    fn what_is_allowed_after_all_opens_nothing_that_is_not_public() {
        let but = public_but(&["0.0.0.0/0"], &["10.0.0.1", "127.0.0.0/8", "93.184.216.1", "9.9.9.9"]);
        for host in ["10.0.0.1", "127.0.0.1", "93.184.216.1", "169.254.169.254", "::1"] {
            assert!(matches!(decide(&but, host).reason, Reason::Inner { .. }), "{host}");
        }
        assert!(decide(&but, "9.9.9.9").allowed && !decide(&but, "1.1.1.1").allowed);
        assert!(!but.reaches_inside());
    }

    #[test]
    fn a_name_is_refused_where_every_address_is_denied_and_nowhere_else() {
        let (v4, v6) = (["0.0.0.0/1", "128.0.0.0/1"], ["::/2", "4000::/2", "8000::/1"]);
        for (deny, allow, looked_up) in [
            (&["0.0.0.0/0", "::/0"][..], &[][..], false),
            (&["::/0", "0.0.0.0/0", "8.8.8.8"], &[], false),
            (&[v4[1], v6[2], v6[0], v4[0], v6[1]], &[], false),
            (&["0.0.0.0/0", "::/0"], &["8.8.8.8"], true),
            (&["0.0.0.0/0"], &[], true),
            (&["::/0"], &[], true),
            (&["0.0.0.0/0", v6[0], v6[2]], &[], true),
            (&[v4[0], "::/0"], &[], true),
            (&[v4[0], "129.0.0.0/8", "::/0"], &[], true),
            (&[], &[], true),
        ] {
            let decision = decide(&public_but(deny, allow), "example.com");
            assert_eq!(decision.allowed, looked_up, "{deny:?} but {allow:?}");
            assert!(looked_up || (decision.reason == Reason::Denied && decision.rule == "public"));
        }
    }

    #[test]
    fn a_name_cannot_be_denied_since_it_has_addresses() {
        for rule in ["example.com", "*.example.com", "8.8.8.8:53", "", "8.8.8.8/33", "https://8.8.8.8"] {
            let deny = NetworkPolicy::PublicBut { deny: vec![rule.into()], allow: Vec::new() };
            assert!(matches!(Policy::new(&deny, []), Err(PolicyError::Net { .. })), "{rule}");
        }
    }

    #[test]
    fn a_decision_names_its_rule() {
        assert_eq!(decide(&policy(&["a.com", "*.Example.com:443"]), "x.example.com").rule, "*.Example.com:443");
        assert_eq!(decide(&public(), "example.com").rule, "public");
    }

    #[test]
    fn a_rule_that_is_not_understood_is_named() {
        let told = Policy::new(&NetworkPolicy::Allow(vec!["a.com".into(), "https://b.com".into()]), []).unwrap_err();
        assert!(
            told.to_string()
                .starts_with("the rule \"https://b.com\" of the allow-list is not understood: it is an URL")
        );
        let many = NetworkPolicy::Allow(vec!["a.com".into(); 5000]);
        assert_eq!(Policy::new(&many, []).unwrap_err(), PolicyError::TooManyRules(5000));
    }

    proptest! {
        #[test]
        fn what_the_standard_library_calls_inner_is_refused_and_so_is_every_v4_within_v6(bits: u32, high: u32) {
            let v4 = Ipv4Addr::from_bits(bits);
            let inner = v4.is_private() || v4.is_loopback() || v4.is_link_local() || v4.is_multicast()
                || v4.is_broadcast() || v4.is_documentation() || v4.is_unspecified();
            let allowed = |address: IpAddr| public().decide(&Host::Address(address), 80).allowed;
            prop_assert!(!(inner && allowed(v4.into())));
            let carriers = [
                v4.to_ipv6_mapped(),
                Ipv6Addr::from_bits(u128::from(bits)),
                Ipv6Addr::from_bits((0x64_ff9b_u128 << 96) | u128::from(bits)),
                Ipv6Addr::from_bits((0x2002_u128 << 112) | (u128::from(bits) << 80) | u128::from(high)),
                Ipv6Addr::from_bits((0x2001_0000_u128 << 96) | (u128::from(high) << 64) | u128::from(bits)),
            ];
            for carrier in carriers {
                prop_assert!(!allowed(carrier.into()), "{}", carrier);
            }
        }

        #[test]
        fn allowed_beats_denied_beats_public(bits: u32, deny in 0..=32_u8, allow in 0..=32_u8, other: u32) {
            let net = |bits: u32, len: u8| {
                let base = Net::around(Ipv4Addr::from_bits(bits).into(), len).base;
                format!("{base}/{len}")
            };
            let but = public_but(&[&net(bits, deny)], &[&net(other, allow)]);
            for address in [bits, other, bits ^ 1, other ^ 1] {
                let address = IpAddr::from(Ipv4Addr::from_bits(address));
                let within = |base: u32, len| Net::around(Ipv4Addr::from_bits(base).into(), len).contains(address);
                let open = public().decide(&Host::Address(address), 443).allowed;
                let expected = open && (!within(bits, deny) || within(other, allow));
                prop_assert_eq!(but.decide(&Host::Address(address), 443).allowed, expected);
                let Host::Name(name) = Host::parse("example.com").unwrap() else { unreachable!() };
                prop_assert_eq!(but.decide_resolved(&name, address, 443).allowed, expected);
            }
        }

        #[test]
        fn only_global_unicast_is_public(bits: u128) {
            let v6 = Ipv6Addr::from_bits(bits);
            let allowed = public().decide(&Host::Address(v6.into()), 80).allowed;
            prop_assert!(!allowed || (bits >> 125) == 1);
        }
    }
}
