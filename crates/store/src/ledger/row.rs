//! One row, and what is hashed of it.

use cabana_model::{CallId, KeyId, SandboxId, Tenant, Time};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Error, Result, RowSize, page::size_of_words};

/// What is to be written: everything but the row's place in the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub tenant: Tenant,
    pub key: KeyId,
    pub sandbox: Option<SandboxId>,
    pub call: CallId,
    pub verb: String,
    /// Of env the names only.
    pub argv: Vec<String>,
    pub input_digest: Option<[u8; 32]>,
    pub output_digest: Option<[u8; 32]>,
    pub outcome: String,
    pub exit: Option<i64>,
    pub duration_ms: u64,
    pub policy: Option<String>,
    pub at: Time,
}

impl Entry {
    /// Of what was done and is no call: it has a number all the same.
    pub fn of_no_call(tenant: Tenant, key: KeyId, verb: &str, argv: Vec<String>, at: Time) -> Self {
        Self {
            tenant,
            key,
            sandbox: None,
            call: CallId::now(),
            verb: verb.to_owned(),
            argv,
            input_digest: None,
            output_digest: None,
            outcome: "answered".to_owned(),
            exit: None,
            duration_ms: 0,
            policy: None,
            at,
        }
    }
}

/// The tip of a chain. That of an empty one has number 0 and no hash.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    pub seq: u64,
    #[serde(with = "hex")]
    pub hash: [u8; 32],
}

/// Its JSON is its public form: the fields stand in the order of their names, since the hash is over that text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LedgerRow {
    pub argv: Vec<String>,
    pub call: CallId,
    pub duration_ms: u64,
    pub exit: Option<i64>,
    /// SHA-256 of the row's JSON without this field.
    #[serde(with = "hex", default, skip_serializing_if = "is_open")]
    pub hash: [u8; 32],
    #[serde(with = "maybe_hex")]
    pub input_digest: Option<[u8; 32]>,
    pub key: KeyId,
    pub outcome: String,
    #[serde(with = "maybe_hex")]
    pub output_digest: Option<[u8; 32]>,
    pub policy: Option<String>,
    #[serde(with = "hex")]
    pub prev: [u8; 32],
    pub sandbox: Option<SandboxId>,
    pub seq: u64,
    pub tenant: Tenant,
    pub time: Time,
    pub verb: String,
}

impl RowSize for LedgerRow {
    fn size(&self) -> usize {
        let words = self.outcome.len() + self.verb.len() + self.policy.as_ref().map_or(0, String::len);
        size_of::<Self>() + size_of_words(&self.argv) + words
    }
}

/// Not sealed yet.
fn is_open(hash: &[u8; 32]) -> bool {
    *hash == [0; 32]
}

impl Entry {
    /// The text of the row after `last`, and the new tip.
    pub(crate) fn seal(self, last: &Head) -> Result<(String, Head)> {
        let row = LedgerRow {
            argv: self.argv,
            call: self.call,
            duration_ms: self.duration_ms,
            exit: self.exit,
            hash: [0; 32],
            input_digest: self.input_digest,
            key: self.key,
            outcome: self.outcome,
            output_digest: self.output_digest,
            policy: self.policy,
            prev: last.hash,
            sandbox: self.sandbox,
            seq: last.seq + 1,
            tenant: self.tenant,
            time: self.at,
            verb: self.verb,
        };
        let text = row.text()?;
        let hash = Sha256::digest(&text).into();
        Ok((text, Head { seq: row.seq, hash }))
    }
}

impl LedgerRow {
    /// Canonical: sorted, no spaces. Without the hash while the row has none.
    pub(crate) fn text(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| Error::Refused(format!("a ledger row: {error}")))
    }
}

mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8; 32], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&super::to_hex(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<[u8; 32], D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(from)?;
        super::from_hex(&text).ok_or_else(|| D::Error::custom("a digest must match [0-9a-f]{64}"))
    }
}

mod maybe_hex {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(bytes: &Option<[u8; 32]>, to: S) -> Result<S::Ok, S::Error> {
        bytes.as_ref().map(super::to_hex).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<[u8; 32]>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| super::from_hex(&text).ok_or_else(|| D::Error::custom("a digest must match [0-9a-f]{64}")))
            .transpose()
    }
}

pub(super) fn to_hex(bytes: &[u8; 32]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    digits.map(char::from).collect()
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; 32];
    let pairs = text.as_bytes().chunks_exact(2);
    if text.len() != 64 {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(pairs) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}
