//! What clients attach: to a sandbox, to find it again in a list; to a file, as headers of its upload.
//!
//! The list's filter is encoded again and again on its way. A client escapes each key and value, joins them as a query, and
//! escapes that as the value of a query parameter; whether it escapes a `/` the first time depends on the client. Undone in the
//! same order, all of them mean the same.

use std::collections::BTreeMap;

/// What every name of a header that carries metadata of a file begins with.
pub const HEADER_PREFIX: &str = "x-metadata-";
/// Under which such metadata lies on the file, as an extended attribute.
pub const XATTR_PREFIX: &str = "user.e2b.";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    #[error("{0:?} in the metadata filter is not escaped as a query is")]
    Escape(String),
    #[error("{0:?} in the metadata filter is not `key=value`")]
    Pair(String),
}

/// Reads the query parameter `metadata`, from which the URL's own escapes were already taken, as every reader of queries does.
pub fn read_filter(parameter: &str) -> Result<BTreeMap<String, String>, FilterError> {
    let query = unescape(parameter)?;
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| match pair.split_once('=') {
        Some((key, value)) if !value.contains('=') => Ok((unescape(key)?, unescape(value)?)),
        _ => Err(FilterError::Pair(pair.to_owned())),
    });
    pairs.collect()
}

/// The query parameter `metadata`, without the URL's own escapes.
pub fn write_filter(metadata: &BTreeMap<String, String>) -> String {
    let twice = |text: &str| escape(&escape(text));
    metadata.iter().map(|(key, value)| format!("{}={}", twice(key), twice(value))).collect::<Vec<_>>().join("&")
}

fn unescape(text: &str) -> Result<String, FilterError> {
    let refused = || FilterError::Escape(text.to_owned());
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    loop {
        rest = match rest {
            [] => return String::from_utf8(plain).map_err(|_| refused()),
            [b'%', high, low, rest @ ..] => {
                plain.push(digit(*high).ok_or_else(refused)? << 4 | digit(*low).ok_or_else(refused)?);
                rest
            }
            [b'%', ..] => return Err(refused()),
            [b'+', rest @ ..] => {
                plain.push(b' ');
                rest
            }
            [byte, rest @ ..] => {
                plain.push(*byte);
                rest
            }
        };
    }
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

/// The key that a header of an upload carries, or nothing if it carries none. Names of headers know no case, so that keys are
/// in lower case.
pub fn key_of_header(name: &str) -> Option<String> {
    let (prefix, key) = name.split_at_checked(HEADER_PREFIX.len())?;
    (prefix.eq_ignore_ascii_case(HEADER_PREFIX) && is_key(key)).then(|| key.to_ascii_lowercase())
}

/// Whether it can be part of a header's name, and lie on a file.
pub fn is_key(key: &str) -> bool {
    // The kernel's limit on the name of an extended attribute.
    let fits = (1..=255 - XATTR_PREFIX.len()).contains(&key.len());
    fits && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

/// Whether it can be a header's value.
pub fn is_value(value: &str) -> bool {
    value.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn both_sdks_mean_the_same() {
        // As they stand in the URL.
        let javascript = "a%252520b%3Dc%25252Fd%26k%3Dv";
        let python = "a%252520b%3Dc%252Fd%26k%3Dv";
        for sent in [javascript, python] {
            let parameter = unescape(sent).unwrap();
            assert_eq!(read_filter(&parameter).unwrap(), map(&[("a b", "c/d"), ("k", "v")]), "{sent}");
        }
    }

    #[test]
    fn what_joins_pairs_can_be_part_of_them() {
        let metadata = map(&[("a&b", "c=d"), ("%", "+"), ("é", ""), ("", "x")]);
        assert_eq!(read_filter(&write_filter(&metadata)).unwrap(), metadata);
    }

    #[test]
    fn an_empty_filter_asks_for_nothing() {
        assert_eq!(read_filter("").unwrap(), BTreeMap::new());
        assert_eq!(read_filter("&").unwrap(), BTreeMap::new());
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        for bad in ["k", "a=b&c", "a=b=c"] {
            assert!(matches!(read_filter(bad), Err(FilterError::Pair(_))), "{bad}");
        }
        for bad in ["%", "a=%2", "a=%zz", "a=%25ff", "a=%FF", "%+1=a"] {
            assert!(matches!(read_filter(bad), Err(FilterError::Escape(_))), "{bad}");
        }
    }

    #[test]
    fn headers_carry_keys() {
        assert_eq!(key_of_header("X-Metadata-Author").as_deref(), Some("author"));
        assert_eq!(key_of_header("x-metadata-a.b_c").as_deref(), Some("a.b_c"));
        for other in
            ["X-Metadata-", "X-Metadata", "X-Metadatas-a", "Content-Type", "", "x-metadata-a b", "x-metadata-é"]
        {
            assert_eq!(key_of_header(other), None, "{other}");
        }
        assert_eq!(key_of_header(&format!("x-metadata-{}", "a".repeat(247))), None);
    }

    #[test]
    fn values_are_plain_text() {
        assert!(is_value("") && is_value("a b~") && !is_value("é") && !is_value("a\nb") && !is_value("\x7f"));
    }

    proptest! {
        #[test]
        fn a_filter_reads_back(metadata: BTreeMap<String, String>) {
            let parameter = write_filter(&metadata);
            prop_assert_eq!(read_filter(&parameter).unwrap(), metadata.clone());
            // And once more through a URL.
            prop_assert_eq!(read_filter(&unescape(&escape(&parameter)).unwrap()).unwrap(), metadata);
        }

        #[test]
        fn no_filter_is_a_panic(parameter in ".*") {
            let _ = read_filter(&parameter);
        }
    }
}
