//! Who may read or write a file by its URL alone.
//!
//! Such a URL carries a digest over the path, what may be done, the user and the sandbox's token. Whoever has the token can make
//! one, hand it to somebody who has not, and say until when it holds. With the token itself in a header no digest is needed.

use std::hint::black_box;

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
}

impl Operation {
    fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// What a URL allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant<'a> {
    /// As it stands in the URL, neither resolved nor cleaned.
    pub path: &'a str,
    pub operation: Operation,
    /// Without one, the sandbox's default user.
    pub user: Option<&'a str>,
    /// In seconds since 1970. Without one it holds as long as the token.
    pub expiration: Option<i64>,
}

/// The texts are part of the protocol: clients compare them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    #[error("missing signature query parameter")]
    Missing,
    #[error("invalid signature")]
    Invalid,
    #[error("signature is already expired")]
    Expired,
    #[error("access token present in header but does not match")]
    WrongToken,
}

/// Signs one grant with any number of tokens. What stands before the token is digested once, however long its path is.
#[derive(Clone)]
pub struct Signer {
    before: Sha256,
    after: String,
}

impl Signer {
    /// The query parameter `signature`.
    pub fn sign(&self, token: &str) -> String {
        let digest = self.before.clone().chain_update(token).chain_update(&self.after);
        format!("v1_{}", STANDARD_NO_PAD.encode(digest.finalize()))
    }
}

impl Grant<'_> {
    pub fn signer(&self) -> Signer {
        let user = self.user.unwrap_or_default();
        let before = Sha256::new().chain_update(self.path);
        let before = before.chain_update(format!(":{}:{user}:", self.operation.as_str()));
        Signer { before, after: self.expiration.map(|expiration| format!(":{expiration}")).unwrap_or_default() }
    }

    /// The query parameter `signature`.
    pub fn sign(&self, token: &str) -> String {
        self.signer().sign(token)
    }

    pub fn verify(&self, token: &str, signature: Option<&str>, now: Timestamp) -> Result<(), AccessError> {
        let signature = signature.ok_or(AccessError::Missing)?;
        if !is_same(&self.sign(token), signature) {
            return Err(AccessError::Invalid);
        }
        // Only now: that it is too late is told to nobody who could not have made it.
        match self.expiration {
            Some(expiration) if expiration < now.as_second() => Err(AccessError::Expired),
            _ => Ok(()),
        }
    }
}

/// Whether a request for a file may be served. `token` is the sandbox's own, if it has one; `shown` the one that the request's
/// header shows.
pub fn authorize(
    token: Option<&str>,
    shown: Option<&str>,
    grant: &Grant<'_>,
    signature: Option<&str>,
    now: Timestamp,
) -> Result<(), AccessError> {
    match (token, shown) {
        (None, _) => Ok(()),
        (Some(token), Some(shown)) if is_same(token, shown) => Ok(()),
        (Some(_), Some(_)) => Err(AccessError::WrongToken),
        (Some(token), None) => grant.verify(token, signature, now),
    }
}

/// Compares secrets in a time that says nothing about where they differ.
pub fn is_same(ours: &str, theirs: &str) -> bool {
    let (ours, theirs) = (ours.as_bytes(), theirs.as_bytes());
    let differing = ours.iter().zip(theirs).fold(0, |differing, (a, b)| black_box(differing | (a ^ b)));
    // How long ours is, is no secret.
    ours.len() == theirs.len() && black_box(differing) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "ea_0123456789abcdef";
    const PLAIN: Grant<'_> =
        Grant { path: "/home/user/a b.txt", operation: Operation::Read, user: None, expiration: None };
    const UNTIL_2030: Grant<'_> =
        Grant {
            path: "notes/é.txt", operation: Operation::Write, user: Some("root"), expiration: Some(1_893_456_000)
        };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn signatures_are_those_that_the_sdks_compute() {
        // Computed with Python's hashlib and, the first, with openssl.
        assert_eq!(PLAIN.sign(TOKEN), "v1_paqdgoumDE1QSJ1BMnJwuWlB8RCcnqtrL5XubyIi52Q");
        assert_eq!(UNTIL_2030.sign(TOKEN), "v1_6A1KdJjvQQV4JROwjc5jy3O1drhnPulwBMl/mApXhyE");
        let empty = Grant { path: "", operation: Operation::Read, user: Some("user"), expiration: Some(0) };
        assert_eq!(empty.sign("t"), "v1_4sfEyYe3wDueRb3/+iM4TKPdIa97WJr3NlpBGyygatU");
    }

    #[test]
    fn one_signer_signs_with_any_number_of_tokens() {
        let signer = UNTIL_2030.signer();
        for token in [TOKEN, "", "ea_another", TOKEN] {
            assert_eq!(signer.sign(token), UNTIL_2030.sign(token));
        }
    }

    #[test]
    fn a_signature_holds_for_what_it_was_made_for() {
        let signature = PLAIN.sign(TOKEN);
        let verify = |grant: Grant<'_>, token| grant.verify(token, Some(&signature), at(0));
        assert_eq!(verify(PLAIN, TOKEN), Ok(()));
        for other in [
            Grant { path: "/home/user/a", ..PLAIN },
            Grant { operation: Operation::Write, ..PLAIN },
            Grant { user: Some("root"), ..PLAIN },
            Grant { expiration: Some(1_893_456_000), ..PLAIN },
        ] {
            assert_eq!(verify(other, TOKEN), Err(AccessError::Invalid), "{other:?}");
        }
        assert_eq!(verify(PLAIN, "ea_another"), Err(AccessError::Invalid));
    }

    #[test]
    fn missing_invalid_and_expired_are_told_apart() {
        let signature = UNTIL_2030.sign(TOKEN);
        let verify = |signature: Option<&str>, second| UNTIL_2030.verify(TOKEN, signature, at(second));
        assert_eq!(verify(None, 0), Err(AccessError::Missing));
        for wrong in ["", "v1_", "nonsense", &signature[..20], &format!("{signature}="), &signature.to_uppercase()] {
            assert_eq!(verify(Some(wrong), 0), Err(AccessError::Invalid), "{wrong}");
        }
        assert_eq!(verify(Some("nonsense"), i64::from(i32::MAX)), Err(AccessError::Invalid));
        assert_eq!(verify(Some(&signature), 1_893_455_999), Ok(()));
        assert_eq!(verify(Some(&signature), 1_893_456_000), Ok(()));
        assert_eq!(verify(Some(&signature), 1_893_456_001), Err(AccessError::Expired));
    }

    #[test]
    fn the_texts_are_those_that_tests_of_the_sdks_compare() {
        assert_eq!(AccessError::Missing.to_string(), "missing signature query parameter");
        assert_eq!(AccessError::Invalid.to_string(), "invalid signature");
        assert_eq!(AccessError::Expired.to_string(), "signature is already expired");
        assert_eq!(AccessError::WrongToken.to_string(), "access token present in header but does not match");
    }

    #[test]
    fn the_token_in_the_header_needs_no_signature_and_a_wrong_one_gets_no_second_chance() {
        let signature = PLAIN.sign(TOKEN);
        let authorize = |token, shown, signature| authorize(token, shown, &PLAIN, signature, at(0));
        assert_eq!(authorize(None, None, None), Ok(()));
        assert_eq!(authorize(None, Some("any"), Some("any")), Ok(()));
        assert_eq!(authorize(Some(TOKEN), Some(TOKEN), None), Ok(()));
        assert_eq!(authorize(Some(TOKEN), Some("wrong"), Some(&signature)), Err(AccessError::WrongToken));
        assert_eq!(authorize(Some(TOKEN), Some(""), None), Err(AccessError::WrongToken));
        assert_eq!(authorize(Some(TOKEN), None, Some(&signature)), Ok(()));
        assert_eq!(authorize(Some(TOKEN), None, None), Err(AccessError::Missing));
    }

    #[test]
    fn only_the_same_is_the_same() {
        assert!(is_same("", "") && is_same("abc", "abc"));
        for (a, b) in [("abc", "abd"), ("abc", "ab"), ("ab", "abc"), ("", "a"), ("a", "")] {
            assert!(!is_same(a, b), "{a} {b}");
        }
    }
}
