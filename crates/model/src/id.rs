//! Ids and names. Each checks itself when it is made.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} must match {rule}")]
pub struct ParseIdError {
    what: &'static str,
    rule: &'static str,
}

/// Chosen before `create`, so that a crash in between is found by `list`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxId(String);

impl SandboxId {
    const RULE: ParseIdError = ParseIdError { what: "a sandbox id", rule: "[a-z0-9]{8,32}" };
    /// How many hexadecimal digits a scope computes.
    pub(crate) const COMPUTED: usize = 16;

    pub fn new(id: impl Into<String>) -> Result<Self, ParseIdError> {
        let id = id.into();
        let fits = (8..=32).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        if fits { Ok(Self(id)) } else { Err(Self::RULE) }
    }

    /// 20 characters, a letter first, about 98 bits of chance: no id can be guessed from another.
    pub fn random() -> Self {
        const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
        let mut bits = Uuid::new_v4().as_u128() ^ Uuid::new_v4().as_u128().rotate_left(64);
        let mut id = String::with_capacity(20);
        id.push(char::from(LETTERS[(bits % 24) as usize]));
        for _ in 0..19 {
            bits >>= 5;
            id.push(char::from(LETTERS[(bits % 32) as usize]));
        }
        Self(id)
    }

    /// Whether it can be one that a scope computes of names, and not one that is drawn: two tenants with the same names have the same.
    pub fn is_computed(&self) -> bool {
        self.0.len() == Self::COMPUTED && self.0.bytes().all(|byte| byte.is_ascii_hexdigit())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for SandboxId {
    type Error = ParseIdError;
    fn try_from(id: String) -> Result<Self, ParseIdError> {
        Self::new(id)
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

/// The call's id: a restarted server asks by it what became of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ExecId(Uuid);

impl ExecId {
    /// A new one, ordered by time.
    pub fn now() -> Self {
        Self(Uuid::now_v7())
    }
    pub fn as_u128(&self) -> u128 {
        self.0.as_u128()
    }
}

impl From<Uuid> for ExecId {
    fn from(id: Uuid) -> Self {
        Self(id)
    }
}

impl fmt::Display for ExecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a restarted server asks for is the call's, or the task's, own command.
impl From<ExecId> for Uuid {
    fn from(id: ExecId) -> Uuid {
        id.0
    }
}

macro_rules! prefixed {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal, $what:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Uuid);

        impl $name {
            /// A new one, ordered by time.
            pub fn now() -> Self {
                Self(Uuid::now_v7())
            }

            pub fn uuid(self) -> Uuid {
                self.0
            }
        }

        impl From<Uuid> for $name {
            fn from(id: Uuid) -> Self {
                Self(id)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                const RULE: ParseIdError = ParseIdError { what: $what, rule: concat!($prefix, "[0-9a-f]{32}") };
                let digits = text.strip_prefix($prefix).ok_or(RULE)?;
                let plain = digits.len() == 32 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
                if plain { Uuid::try_parse(digits).map(Self).map_err(|_| RULE) } else { Err(RULE) }
            }
        }

        impl TryFrom<String> for $name {
            type Error = ParseIdError;
            fn try_from(text: String) -> Result<Self, ParseIdError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0.simple())
            }
        }
    )*};
}

prefixed! {
    /// One thing that somebody asked for.
    CallId = "call_", "a call's id";
    /// A command in the background.
    TaskId = "task_", "a task's id";
    /// What a key is called. The key itself is nowhere.
    KeyId = "key_", "a key's id";
    /// A sandbox's files at one moment.
    SnapshotId = "snap_", "a snapshot's id";
    /// What a tenant has built for itself.
    TemplateId = "tmpl_", "a template's id";
    /// One try to make a template.
    BuildId = "", "a build's id";
    /// Where changes are told to.
    WebhookId = "webhook_", "a webhook's id";
    /// What a provider calls a volume. Nobody else hears of it.
    VolumeId = "vol_", "a volume's id";
}

impl From<CallId> for ExecId {
    fn from(id: CallId) -> Self {
        Self(id.0)
    }
}

impl From<TaskId> for ExecId {
    fn from(id: TaskId) -> Self {
        Self(id.0)
    }
}

/// Whose a sandbox is. Tenants know nothing of each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Tenant(String);

impl Tenant {
    pub fn new(name: impl Into<String>) -> Result<Self, ParseIdError> {
        const RULE: ParseIdError = ParseIdError { what: "a tenant", rule: "[a-z0-9][a-z0-9_-]{0,62}" };
        let name = name.into();
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let fits = (1..=63).contains(&name.len())
            && name.bytes().all(|b| plain(b) || matches!(b, b'_' | b'-'))
            && name.bytes().next().is_some_and(plain);
        if fits { Ok(Self(name)) } else { Err(RULE) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Tenant {
    fn default() -> Self {
        Self("default".into())
    }
}

impl TryFrom<String> for Tenant {
    type Error = ParseIdError;
    fn try_from(name: String) -> Result<Self, ParseIdError> {
        Self::new(name)
    }
}

impl From<Tenant> for String {
    fn from(tenant: Tenant) -> String {
        tenant.0
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a tenant calls one of its volumes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VolumeName(String);

impl VolumeName {
    pub fn new(name: impl Into<String>) -> Result<Self, ParseIdError> {
        const RULE: ParseIdError = ParseIdError { what: "the name of a volume", rule: "[a-z0-9][a-z0-9_.-]{0,62}" };
        let name = name.into();
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let fits = (1..=63).contains(&name.len())
            && name.bytes().all(|b| plain(b) || matches!(b, b'_' | b'-' | b'.'))
            && name.bytes().next().is_some_and(plain);
        if fits { Ok(Self(name)) } else { Err(RULE) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for VolumeName {
    type Error = ParseIdError;
    fn try_from(name: String) -> Result<Self, ParseIdError> {
        Self::new(name)
    }
}

impl From<VolumeName> for String {
    fn from(name: VolumeName) -> String {
        name.0
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The content of an immutable tree (a template's layer, a version of a skill): its BLAKE3 digest, written as 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LayerId([u8; 32]);

impl LayerId {
    pub fn from_digest(digest: [u8; 32]) -> Self {
        Self(digest)
    }
}

impl FromStr for LayerId {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        const RULE: ParseIdError = ParseIdError { what: "a layer id", rule: "[0-9a-f]{64}" };
        let digits = text.as_bytes();
        if digits.len() != 64 || !digits.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(RULE);
        }
        let mut digest = [0; 32];
        for (byte, pair) in digest.iter_mut().zip(text.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| RULE)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| RULE)?;
        }
        Ok(Self(digest))
    }
}

impl TryFrom<String> for LayerId {
    type Error = ParseIdError;
    fn try_from(text: String) -> Result<Self, ParseIdError> {
        text.parse()
    }
}

impl From<LayerId> for String {
    fn from(id: LayerId) -> String {
        id.to_string()
    }
}

impl fmt::Display for LayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for LayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A user inside a sandbox, by name or by number: what its own `/etc/passwd` says decides.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct User(String);

impl User {
    pub fn new(name: impl Into<String>) -> Result<Self, ParseIdError> {
        let name = name.into();
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b'$');
        let fits = (1..=64).contains(&name.len()) && name.bytes().all(plain) && !name.starts_with('-');
        if fits { Ok(Self(name)) } else { Err(ParseIdError { what: "a user", rule: "[A-Za-z0-9_.$-]{1,64}" }) }
    }

    pub fn root() -> Self {
        Self("root".into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for User {
    type Error = ParseIdError;
    fn try_from(name: String) -> Result<Self, ParseIdError> {
        Self::new(name)
    }
}

impl From<User> for String {
    fn from(user: User) -> String {
        user.0
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_id_is_plain_and_short() {
        for bad in ["", "short", "UPPERCASE1", "with-dash1", "../../etc/passwd", &"a".repeat(33)] {
            assert!(SandboxId::new(bad).is_err(), "{bad:?}");
        }
        assert!(SandboxId::new("0123456789abcdef").is_ok());
    }

    #[test]
    fn random_ids_begin_with_a_letter_and_differ() {
        let ids: std::collections::BTreeSet<_> = (0..1000).map(|_| SandboxId::random()).collect();
        assert_eq!(ids.len(), 1000);
        assert!(
            ids.iter().all(|id| SandboxId::new(id.as_str()).is_ok() && id.as_str().as_bytes()[0].is_ascii_lowercase())
        );
        assert!(!ids.iter().any(SandboxId::is_computed));
    }

    #[test]
    fn a_layer_id_reads_back() {
        let id = LayerId::from_digest([0xa5; 32]);
        assert_eq!(id.to_string().parse::<LayerId>().unwrap(), id);
        for bad in ["", "a5", &"g".repeat(64), &"é".repeat(32), &"A5".repeat(32)] {
            assert!(bad.parse::<LayerId>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_id_with_a_prefix_reads_back_and_takes_no_other() {
        let id = CallId::now();
        assert_eq!(id.to_string().parse::<CallId>().unwrap(), id);
        let text = id.to_string();
        let spelled = [text.to_uppercase(), text.replace("call_", "task_"), text[5..].to_owned(), format!("{text}0")];
        for bad in spelled.iter().map(String::as_str).chain(["", "call_", "call_{00000000000000000000000000000}"]) {
            assert!(bad.parse::<CallId>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_tenant_is_a_plain_name() {
        for bad in ["", "-x", "_x", "A", "a b", "a/b", "a\n", &"a".repeat(64)] {
            assert!(Tenant::new(bad).is_err(), "{bad:?}");
        }
        assert!(Tenant::new("team-7_b").is_ok() && Tenant::new(Tenant::default().as_str()).is_ok());
    }

    #[test]
    fn a_user_is_no_path_and_no_flag() {
        for bad in ["", "-x", "a/b", "a:b", "a\n", "a b"] {
            assert!(User::new(bad).is_err(), "{bad:?}");
        }
        assert!(User::new("1000").is_ok());
    }
}
