//! PAX records: `LENGTH KEY=VALUE\n`, where the length counts itself.

use cabana_sandbox::{Error, Result};

pub(super) type Records<'a> = Vec<(&'a [u8], &'a [u8])>;

pub(super) fn parse(mut text: &[u8]) -> Result<Records<'_>> {
    let bad = || Error::Archive("an extended header is damaged".into());
    let mut records = Vec::new();
    while !text.is_empty() {
        // Some writers fill the rest with zeros.
        if text.iter().all(|b| *b == 0) {
            break;
        }
        let space = text.iter().take(20).position(|b| *b == b' ').ok_or_else(bad)?;
        let length = usize::try_from(decimal(&text[..space]).ok_or_else(bad)?).map_err(|_| bad())?;
        let record = text.get(space + 1..length).ok_or_else(bad)?;
        let (b'\n', record) = record.split_last().ok_or_else(bad)? else { return Err(bad()) };
        let equals = record.iter().position(|b| *b == b'=').ok_or_else(bad)?;
        records.push((&record[..equals], &record[equals + 1..]));
        text = &text[length..];
    }
    Ok(records)
}

pub(super) fn record(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    out.extend_from_slice(format!("{length} ").as_bytes());
    for part in [key, b"=", value, b"\n"] {
        out.extend_from_slice(part);
    }
}

const XATTR: &[u8] = b"SCHILY.xattr.";

/// The key of an attribute: a key ends at its first `=`, so GNU tar writes `%3D` for one in a name, and `%25` for `%`.
pub(super) fn attribute_key(name: &[u8]) -> Vec<u8> {
    let mut key = XATTR.to_vec();
    for byte in name {
        match byte {
            b'=' => key.extend_from_slice(b"%3D"),
            b'%' => key.extend_from_slice(b"%25"),
            byte => key.push(*byte),
        }
    }
    key
}

/// The name in such a key.
pub(super) fn attribute_name(key: &[u8]) -> Option<Vec<u8>> {
    let mut rest = key.strip_prefix(XATTR)?;
    let mut name = Vec::with_capacity(rest.len());
    while let Some(byte) = rest.first() {
        let (byte, length) = match rest {
            [b'%', b'3', b'D', ..] => (b'=', 3),
            [b'%', b'2', b'5', ..] => (b'%', 3),
            _ => (*byte, 1),
        };
        name.push(byte);
        rest = &rest[length..];
    }
    Some(name)
}

pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    if digits { std::str::from_utf8(text).ok()?.parse().ok() } else { None }
}

/// Seconds, with or without a fraction, with or without a sign.
pub(super) fn time(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    if !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanos: u32 = digits.parse().ok()?;
    // A fraction counts away from zero; the kernel's counts upwards.
    match whole.starts_with('-') && nanos > 0 {
        true => Some((seconds.checked_sub(1)?, 1_000_000_000 - nanos)),
        false => Some((seconds, nanos)),
    }
}

/// What [`time`] reads.
pub(super) fn time_text(seconds: i64, nanos: u32) -> String {
    match (seconds < 0, nanos) {
        (_, 0) => seconds.to_string(),
        (false, nanos) => format!("{seconds}.{nanos:09}"),
        (true, nanos) => format!("-{}.{:09}", (seconds + 1).unsigned_abs(), 1_000_000_000 - nanos),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_keep_their_names() {
        for name in [&b"user.a=b"[..], b"user.=", b"user.100%", b"user.%3D=%25", b"user.\n \xff"] {
            let mut text = Vec::new();
            record(&mut text, &attribute_key(name), b"=\n");
            let [(key, value)] = parse(&text).unwrap()[..] else { panic!("one record") };
            assert_eq!((attribute_name(key).as_deref(), value), (Some(name), &b"=\n"[..]));
        }
    }

    #[test]
    fn times_read_back() {
        for at in [(0, 0), (0, 1), (5, 999_999_999), (-1, 0), (-1, 500_000_000), (-2, 1), (i64::MIN, 7), (i64::MAX, 0)]
        {
            assert_eq!(time(time_text(at.0, at.1).as_bytes()), Some(at), "{at:?}");
        }
    }
}
