//! A sandbox's id as E2B's clients know it, and the host names that carry one: `8080-i1a2b3.example.com`.
//!
//! The first label is the port, a dash and the id, so that an id has no dash and fits into a label of the DNS.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxId(String);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a sandbox id must match [a-z0-9]{{1,57}}")]
pub struct SandboxIdError;

impl SandboxId {
    /// What `65535-` leaves of a label.
    const LONGEST: usize = 63 - 6;

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SandboxId {
    type Err = SandboxIdError;
    fn from_str(id: &str) -> Result<Self, SandboxIdError> {
        let fits = (1..=Self::LONGEST).contains(&id.len())
            && id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        if fits { Ok(Self(id.to_owned())) } else { Err(SandboxIdError) }
    }
}

impl TryFrom<String> for SandboxId {
    type Error = SandboxIdError;
    fn try_from(id: String) -> Result<Self, SandboxIdError> {
        id.parse()
    }
}

impl From<SandboxId> for String {
    fn from(id: SandboxId) -> String {
        id.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A port of a sandbox, as a host name says it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SandboxHost {
    pub port: u16,
    pub id: SandboxId,
}

impl SandboxHost {
    /// From a Host header. Both it and the domain may end in the port that the server listens on, which decides nothing here.
    pub fn parse(host: &str, domain: &str) -> Option<Self> {
        let (label, rest) = without_port(host).split_once('.')?;
        if !without_port(domain).eq_ignore_ascii_case(rest.strip_suffix('.').unwrap_or(rest)) {
            return None;
        }
        let (port, id) = label.split_once('-')?;
        // One spelling for one port: not `+80`, not `080`.
        let port: u16 = port.parse().ok().filter(|number: &u16| *number != 0 && number.to_string() == port)?;
        Some(Self { port, id: id.to_ascii_lowercase().parse().ok()? })
    }

    /// The host name under this domain.
    pub fn under(&self, domain: &str) -> String {
        format!("{}-{}.{domain}", self.port, self.id)
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn host(port: u16, id: &str) -> SandboxHost {
        SandboxHost { port, id: id.parse().unwrap() }
    }

    #[test]
    fn an_id_is_plain() {
        for bad in ["", "with-dash", "UPPER", "a.b", "a_b", "é", "a b", &"a".repeat(58)] {
            assert_eq!(bad.parse::<SandboxId>(), Err(SandboxIdError), "{bad:?}");
        }
        assert_eq!("i1a2b3c4d5e6f7g8h9j0k".parse::<SandboxId>().unwrap().as_str(), "i1a2b3c4d5e6f7g8h9j0k");
        assert!(serde_json::from_str::<SandboxId>(r#""a-b""#).is_err());
        assert_eq!(serde_json::to_string(&"ab1".parse::<SandboxId>().unwrap()).unwrap(), r#""ab1""#);
    }

    #[test]
    fn a_host_name_says_port_and_sandbox() {
        for name in ["49983-iabc.sbx.test", "49983-iabc.sbx.test:39443", "49983-iabc.sbx.test.", "49983-IABC.Sbx.Test"]
        {
            assert_eq!(SandboxHost::parse(name, "sbx.test"), Some(host(49983, "iabc")), "{name}");
            assert_eq!(SandboxHost::parse(name, "sbx.test:39443"), Some(host(49983, "iabc")), "{name}");
        }
        assert_eq!(host(3000, "iabc").under("sbx.test:39443"), "3000-iabc.sbx.test:39443");
    }

    #[test]
    fn what_names_no_sandbox_is_none() {
        for name in [
            "",
            "sbx.test",
            "api.sbx.test",
            "49983-iabc",
            "49983-iabc.other.test",
            "49983-iabc.deep.sbx.test",
            "49983-iabcsbx.test",
            "-iabc.sbx.test",
            "49983-.sbx.test",
            "0-iabc.sbx.test",
            "080-iabc.sbx.test",
            "+80-iabc.sbx.test",
            "65536-iabc.sbx.test",
            "80-a-b.sbx.test",
            "iabc-80.sbx.test",
            "127.0.0.1:80",
            "[::1]:80",
        ] {
            assert_eq!(SandboxHost::parse(name, "sbx.test"), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn a_host_name_reads_back(port in 1..=u16::MAX, id in "[a-z0-9]{1,57}") {
            let host = host(port, &id);
            let name = host.under("sbx.test");
            prop_assert!(name.split('.').all(|label| label.len() <= 63));
            prop_assert_eq!(SandboxHost::parse(&name, "sbx.test"), Some(host));
        }

        #[test]
        fn no_host_name_is_a_panic(name in ".*", domain in ".*") {
            let _ = SandboxHost::parse(&name, &domain);
        }
    }
}
