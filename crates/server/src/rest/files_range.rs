//! Parts of a file, and whether a client has it already (RFC 9110, 13 and 14).

use std::time::UNIX_EPOCH;

use axum::http::{HeaderMap, HeaderValue, header};
use cabana_runtime::acts::files::Part;
use cabana_sandbox::FileInfo;

/// Of what was last written, and how much: another file of the same name has another.
pub(super) fn etag(info: &FileInfo) -> String {
    let age = info.modified.duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("\"{:x}-{:x}\"", age.as_nanos(), info.size)
}

/// What is no single range of bytes is not understood, and then the whole is sent.
pub(crate) fn asked(headers: &HeaderMap) -> Part {
    let range = headers.get(header::RANGE).and_then(|range| range.to_str().ok());
    range.and_then(parsed).unwrap_or(Part::Whole)
}

fn parsed(range: &str) -> Option<Part> {
    let number = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok())?;
    let (first, last) = range.strip_prefix("bytes=")?.trim().split_once('-')?;
    match (first, last) {
        ("", last) => Some(Part::Last(number(last)?)),
        (first, "") => Some(Part::From { from: number(first)?, len: None }),
        (first, last) => {
            let (first, last): (u64, u64) = (number(first)?, number(last)?);
            Some(Part::From { from: first, len: Some(last.checked_sub(first)?.checked_add(1)?) })
        }
    }
}

/// What there is to send of what was asked for.
pub(super) enum Sent {
    Whole,
    Part { length: u64, range: HeaderValue },
    Nothing { range: HeaderValue },
}

pub(super) fn sent(part: Part, from: u64, size: u64) -> Sent {
    let there = size.saturating_sub(from);
    let length = match part {
        Part::Whole => return Sent::Whole,
        Part::From { len, .. } => len.unwrap_or(there).min(there),
        Part::Last(last) => last.min(there),
    };
    let range = match length {
        0 => format!("bytes */{size}"),
        _ => format!("bytes {from}-{}/{size}", from + length - 1),
    };
    // Digits and a few signs are always a header.
    let range = HeaderValue::try_from(range).unwrap_or_else(|_| HeaderValue::from_static("bytes */*"));
    if length == 0 { Sent::Nothing { range } } else { Sent::Part { length, range } }
}

/// Whether the client has a part of another file, and wants the rest only of that.
pub(super) fn is_of_another(headers: &HeaderMap, info: &FileInfo) -> bool {
    headers.get(header::IF_RANGE).is_some_and(|known| known.as_bytes() != etag(info).as_bytes())
}

pub(super) fn is_known(headers: &HeaderMap, info: &FileInfo) -> bool {
    let (etag, known) = (etag(info), headers.get_all(header::IF_NONE_MATCH));
    let mut known = known.iter().filter_map(|known| known.to_str().ok()).flat_map(|known| known.split(','));
    known.any(|known| matches!(known.trim(), "*") || known.trim().trim_start_matches("W/") == etag)
}
