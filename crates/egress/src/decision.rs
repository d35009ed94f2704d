//! What was decided about a destination, by which rule, and what to do when it was meant otherwise.

use std::{fmt, net::IpAddr};

use crate::{address::Class, host::HostError};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    /// The rule as it was written, or the network mode where no rule spoke.
    pub rule: String,
    pub reason: Reason,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    Listed,
    Public,
    Host,
    Off,
    NotListed,
    Denied,
    Inner {
        address: IpAddr,
        class: Class,
    },
    BadHost(HostError),
    /// A synthetic address whose name was forgotten, or was never asked for.
    NoName,
    /// A connection to an allowed name that speaks TLS or HTTP for another host.
    OtherHost(String),
    /// The first bytes are those of TLS or HTTP but cannot be read: another reader might find another host in them.
    Unreadable,
    /// A TLS hello with another one in it, encrypted (ECH), which may name another host.
    EncryptedHello,
    /// HTTP/2 without TLS names its hosts where they cannot be checked.
    ClearHttp2,
    TooManyConnections,
    /// All sandboxes together have as many connections as there may be, or as there is memory for.
    NoPlace,
}

impl Decision {
    pub(crate) fn allow(rule: impl Into<String>, reason: Reason) -> Decision {
        Decision { allowed: true, rule: rule.into(), reason }
    }

    pub(crate) fn deny(rule: impl Into<String>, reason: Reason) -> Decision {
        Decision { allowed: false, rule: rule.into(), reason }
    }
}

impl Reason {
    /// What to do when the refusal was not meant.
    pub fn advice(&self) -> String {
        match self {
            Reason::Listed | Reason::Public | Reason::Host => "Nothing: it is allowed.".into(),
            Reason::Off => "Give the sandbox the network mode public, or an allow-list that names this host.".into(),
            Reason::NotListed => "Add this host to the sandbox's allow-list.".into(),
            Reason::Denied => "Take it from what is denied to this sandbox, or allow it beside that.".into(),
            Reason::Inner { class, .. } if !class.can_be_allowed() => {
                "Use another address: no sandbox may reach it.".into()
            }
            Reason::Inner { address, .. } => {
                format!(
                    "If it is meant, use an allow-list with the rule {address}, and one for the name if there is one."
                )
            }
            Reason::BadHost(_) => "Use a host name or an IP address.".into(),
            Reason::NoName => "Look the name up again, and connect to the new address.".into(),
            Reason::OtherHost(_) => "Connect to the host that is meant, or add it to the sandbox's allow-list.".into(),
            Reason::Unreadable => "Send a TLS or HTTP handshake that follows the standards.".into(),
            Reason::EncryptedHello => {
                "Turn Encrypted Client Hello (ECH) off in the client, or have the policy let it pass.".into()
            }
            Reason::ClearHttp2 => "Use HTTP/1.1, or HTTP/2 over TLS.".into(),
            Reason::TooManyConnections => "Close connections that are no longer needed.".into(),
            Reason::NoPlace => {
                "Try again later, or have the operator raise the limit of open files of the server, or net.ipv4.tcp_mem."
                    .into()
            }
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Listed => f.write_str("the allow-list names it"),
            Reason::Public => f.write_str("it is public"),
            Reason::Host => f.write_str("the host can reach it, and so may this sandbox"),
            Reason::Off => f.write_str("the network of this sandbox is off"),
            Reason::NotListed => f.write_str("no rule of the allow-list covers it"),
            Reason::Denied => f.write_str("it is denied to this sandbox"),
            Reason::Inner { address, class } => write!(f, "{address} is {class}"),
            Reason::BadHost(error) => write!(f, "it is no host: {error}"),
            Reason::NoName => f.write_str("no name stands behind this address"),
            Reason::OtherHost(host) => write!(f, "the connection speaks for another host, {host}"),
            Reason::Unreadable => f.write_str("the host that the connection speaks for cannot be read"),
            Reason::EncryptedHello => f.write_str("the connection may speak for another host, encrypted (ECH)"),
            Reason::ClearHttp2 => f.write_str("HTTP/2 without TLS cannot be checked"),
            Reason::TooManyConnections => f.write_str("the sandbox has too many connections"),
            Reason::NoPlace => f.write_str("all sandboxes together have too many connections"),
        }
    }
}
