//! The digests that images name their parts by.

use super::manifest::{Why, shown};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Digest(pub(super) [u8; 32]);

impl Digest {
    pub(super) fn parse(text: &str) -> Result<Self, Why> {
        let Some((algorithm, hex)) = text.split_once(':') else {
            return Err(format!("{} is no digest", shown(text)));
        };
        if algorithm != "sha256" {
            return Err(format!(
                "a digest of it is {}, and only sha256 is read: make it anew with sha256",
                shown(text)
            ));
        }
        Self::of_hex(hex).ok_or_else(|| format!("{} is no digest", shown(text)))
    }

    /// 64 small hexadecimal digits, the one spelling there is.
    pub(super) fn of_hex(hex: &str) -> Option<Self> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let mut bytes = [0; 32];
        if hex.len() != 2 * bytes.len() {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(bytes))
    }

    pub(super) fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
