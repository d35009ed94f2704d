use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn asked(network: Value, internet: Option<bool>) -> Result<Option<NetworkPolicy>, Refused> {
    policy_of(Some(&serde_json::from_value(network).unwrap()), internet, &NetworkPolicy::Public)
}

fn list(rules: &[&str]) -> Vec<String> {
    rules.iter().map(|rule| (*rule).to_owned()).collect()
}

fn but(deny: &[&str], allow: &[&str]) -> Option<NetworkPolicy> {
    Some(NetworkPolicy::PublicBut { deny: list(deny), allow: list(allow) })
}

#[test]
fn what_is_said_becomes_a_policy() {
    let allow = |rules: &[&str]| Some(NetworkPolicy::Allow(list(rules)));
    for (network, internet, policy) in [
        (json!({}), None, None),
        (json!({}), Some(true), Some(NetworkPolicy::Public)),
        (json!({}), Some(false), Some(NetworkPolicy::Off)),
        (json!({"allowOut": ["1.1.1.1"]}), None, None),
        (json!({"allowOut": ["1.1.1.1"]}), Some(false), allow(&["1.1.1.1"])),
        (json!({"denyOut": ["0.0.0.0/0"]}), None, Some(NetworkPolicy::Off)),
        (json!({"denyOut": ["0.0.0.0/0"]}), Some(true), Some(NetworkPolicy::Off)),
        (json!({"denyOut": ["0.0.0.0/0", "8.8.8.8"], "allowOut": ["8.8.8.8"]}), None, allow(&["8.8.8.8"])),
        (
            json!({"denyOut": ["0.0.0.0/0"], "allowOut": ["*.a.com", "b.com", "1.2.3.4/8"]}),
            None,
            allow(&["1.0.0.0/8", "*.a.com", "b.com"]),
        ),
        (json!({"denyOut": ["0.0.0.0/0"], "allowOut": ["b.com", "0.0.0.0/0"]}), None, Some(NetworkPolicy::Public)),
        (json!({"denyOut": ["8.8.8.8"]}), None, but(&["8.8.8.8"], &[])),
        (
            json!({"denyOut": ["8.0.0.1/8", "2606::/16"], "allowOut": ["::ffff:8.8.8.8"]}),
            Some(true),
            but(&["8.0.0.0/8", "2606::/16"], &["8.8.8.8"]),
        ),
        (json!({"rules": {"a.com": [{}]}, "maskRequestHost": "a.com:${PORT}"}), None, None),
    ] {
        assert_eq!(asked(network.clone(), internet).unwrap(), policy, "{network} {internet:?}");
    }
}

#[test]
fn what_cannot_be_done_or_understood_is_refused() {
    for network in [
        json!({"denyOut": ["example.com"]}),
        json!({"denyOut": ["0.0.0.0"]}),
        json!({"denyOut": ["8.8.8.8/33"]}),
        json!({"denyOut": ["8.8.8.8/+8"]}),
        json!({"denyOut": [""]}),
        json!({"allowOut": ["example.com"]}),
        json!({"allowOut": ["example.com"], "denyOut": ["8.8.8.8"]}),
        json!({"allowOut": ["::/0"], "denyOut": ["0.0.0.0/0"]}),
        json!({"allowOut": ["https://example.com"], "denyOut": ["0.0.0.0/0"]}),
        json!({"allowOut": ["*"], "denyOut": ["0.0.0.0/0"]}),
        json!({"egressProxy": {"address": "proxy.example.com:1080"}}),
        json!({"rules": {"a.com": [{"transform": {"headers": {"X": "y"}}}]}}),
        json!({"dnsServers": ["9.9.9.9"]}),
        json!({"httpsPorts": [8443]}),
        json!({"maskRequestHost": "a b"}),
        json!({"maskRequestHost": "user@a.com"}),
        json!({"maskRequestHost": "a.com\r\nX: y"}),
        json!({"maskRequestHost": ""}),
        json!({"maskRequestHost": "a".repeat(301)}),
    ] {
        assert!(asked(network.clone(), None).is_err(), "{network}");
    }
}

#[test]
fn who_denies_something_never_gets_more_than_is_usual() {
    let deny = NetworkConfig { deny_out: list(&["8.8.8.8"]), ..NetworkConfig::default() };
    assert_eq!(policy_of(Some(&deny), None, &NetworkPolicy::Off).unwrap(), None);
    policy_of(Some(&deny), None, &NetworkPolicy::Allow(list(&["a.com"]))).unwrap_err();
}

proptest! {
    #[test]
    fn a_network_has_nothing_beyond_its_bits(bits: u32, len in 0..=32_u32) {
        let address = Ipv4Addr::from_bits(bits);
        prop_assume!(!address.is_unspecified());
        let written = net(&format!("{address}/{len}")).unwrap();
        let (base, written_len) = written.split_once('/').unwrap();
        let base: Ipv4Addr = base.parse().unwrap();
        prop_assert_eq!(written_len.parse::<u32>().unwrap(), len);
        let mask = u32::MAX.checked_shl(32 - len).unwrap_or(0);
        prop_assert_eq!(base.to_bits(), bits & mask);
    }

    #[test]
    fn no_rule_is_a_panic(allow in ".*", deny in ".*", mask in ".*") {
        let network = NetworkConfig {
            allow_out: vec![allow],
            deny_out: vec![deny],
            mask_request_host: Some(mask),
            ..NetworkConfig::default()
        };
        let _ = policy_of(Some(&network), None, &NetworkPolicy::Public);
    }
}
