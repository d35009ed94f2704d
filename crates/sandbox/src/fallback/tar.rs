//! The tar format, as far as trees of files, directories and links need it.
//!
//! Written is GNU's: its long names are bytes, where PAX would want UTF-8. Read are ustar, GNU and PAX.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::{Error, Result};

pub(super) const BLOCK: usize = 512;
/// Two zero blocks say that nothing was cut off.
pub(super) const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];
/// Of a long name or a PAX record set: a hostile length must not fill the memory.
pub(super) const MAX_EXTENSION: u64 = 1024 * 1024;

const NAME: usize = 100;

pub(super) struct Entry<'a> {
    pub(super) kind: u8,
    pub(super) name: &'a [u8],
    pub(super) link: &'a [u8],
    pub(super) mode: u32,
    pub(super) size: u64,
    pub(super) modified: SystemTime,
    pub(super) owner: &'a str,
    pub(super) group: &'a str,
}

/// How many zeros fill the last block of a body.
pub(super) fn padding(size: u64) -> usize {
    (BLOCK - (size % BLOCK as u64) as usize) % BLOCK
}

impl Entry<'_> {
    /// The header, after extensions for what does not fit into it.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK);
        for (kind, text) in [(b'K', self.link), (b'L', self.name)] {
            if text.len() > NAME {
                let long = Entry { kind, name: b"././@LongLink", link: b"", size: text.len() as u64 + 1, ..*self };
                out.extend_from_slice(&long.header());
                out.extend_from_slice(text);
                out.resize(out.len() + 1 + padding(long.size), 0);
            }
        }
        out.extend_from_slice(&self.header());
        out
    }

    fn header(&self) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        let seconds = self.modified.duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs());
        text(&mut block[..NAME], self.name);
        number(&mut block[100..108], u64::from(self.mode));
        number(&mut block[108..116], self.owner.parse().unwrap_or(0));
        number(&mut block[116..124], self.group.parse().unwrap_or(0));
        number(&mut block[124..136], self.size);
        number(&mut block[136..148], seconds);
        block[156] = self.kind;
        text(&mut block[157..157 + NAME], self.link);
        block[257..265].copy_from_slice(b"ustar  \0");
        text(&mut block[265..296], self.owner.as_bytes());
        text(&mut block[297..328], self.group.as_bytes());
        let sum = checksum(&block);
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block
    }
}

fn text(field: &mut [u8], text: &[u8]) {
    let len = text.len().min(field.len());
    field[..len].copy_from_slice(&text[..len]);
}

/// Octal digits, or base 256 where they do not suffice.
fn number(field: &mut [u8], value: u64) {
    let digits = field.len() - 1;
    if value < 1 << (3 * digits) {
        field[..digits].copy_from_slice(format!("{value:0digits$o}").as_bytes());
    } else {
        let start = field.len() - 8;
        field[start..].copy_from_slice(&value.to_be_bytes());
        field[0] |= 0x80;
    }
}

/// The sum of all bytes, with the sum's own field counted as spaces.
fn checksum(block: &[u8; BLOCK]) -> u32 {
    let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
    let own: u32 = block[148..156].iter().map(|b| u32::from(*b)).sum();
    sum - own + 8 * u32::from(b' ')
}

/// A header as it was read.
pub(super) struct Header {
    pub(super) kind: u8,
    pub(super) name: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) mode: u32,
    pub(super) size: u64,
}

impl Header {
    pub(super) fn decode(block: &[u8; BLOCK]) -> Result<Self> {
        let wrong = |what: &str| Error::Archive(format!("a header's {what} is no number"));
        let sum = octal(&block[148..156]).ok_or_else(|| wrong("checksum"))?;
        if sum != u64::from(checksum(block)) {
            return Err(Error::Archive("a header does not match its checksum".into()));
        }
        let mut name = until_nul(&block[..NAME]);
        // Only ustar has a prefix: GNU keeps times in the same place.
        if &block[257..263] == b"ustar\0" && block[345] != 0 {
            name = [until_nul(&block[345..500]), name].join(&b'/');
        }
        Ok(Self {
            kind: block[156],
            name,
            link: until_nul(&block[157..157 + NAME]),
            mode: octal(&block[100..108]).ok_or_else(|| wrong("mode"))? as u32 & 0o7777,
            size: parse_number(&block[124..136]).ok_or_else(|| wrong("size"))?,
        })
    }
}

pub(super) fn until_nul(field: &[u8]) -> Vec<u8> {
    field.split(|b| *b == 0).next().unwrap_or_default().to_vec()
}

fn parse_number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 == 0 {
        return octal(field);
    }
    let (high, low) = field.split_at(field.len() - 8);
    let fits = high[0] == 0x80 && high[1..].iter().all(|b| *b == 0) && low[0] & 0x80 == 0;
    fits.then(|| low.iter().fold(0, |value, b| value << 8 | u64::from(*b)))
}

/// Digits with spaces around and a NUL behind; nothing at all is zero.
fn octal(field: &[u8]) -> Option<u64> {
    let text = field.split(|b| *b == 0).next().unwrap_or_default().trim_ascii();
    text.iter().try_fold(0u64, |value, b| match b {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(u64::from(b - b'0')),
        _ => None,
    })
}

/// The records of a PAX header that say where an entry goes and how long it is: `"27 path=some/name\n"`.
pub(super) fn pax(mut records: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let wrong = || Error::Archive("a PAX record is malformed".into());
    let mut found = Vec::new();
    while !records.is_empty() && records[0] != 0 {
        let digits = records.iter().position(|b| *b == b' ').ok_or_else(wrong)?;
        let len: usize = std::str::from_utf8(&records[..digits]).ok().and_then(|n| n.parse().ok()).ok_or_else(wrong)?;
        if len <= digits + 1 || len > records.len() || records[len - 1] != b'\n' {
            return Err(wrong());
        }
        let record = &records[digits + 1..len - 1];
        let equals = record.iter().position(|b| *b == b'=').ok_or_else(wrong)?;
        found.push((record[..equals].to_vec(), record[equals + 1..].to_vec()));
        records = &records[len..];
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(bytes: &[u8]) -> Header {
        Header::decode(bytes[..BLOCK].try_into().unwrap()).unwrap()
    }

    proptest! {
        #[test]
        fn a_header_reads_back(name in prop::collection::vec(1u8.., 1..100), mode in 0u32..0o10000, size in any::<u64>()) {
            let size = size >> 1;
            let entry = Entry { kind: b'0', name: &name, link: b"", mode, size, modified: UNIX_EPOCH, owner: "user", group: "7" };
            let back = header(&entry.encode());
            prop_assert_eq!((back.name, back.mode, back.size), (name, mode, size));
        }

        #[test]
        fn no_block_makes_it_panic(block in prop::collection::vec(any::<u8>(), BLOCK)) {
            let _ = Header::decode(block.as_slice().try_into().unwrap());
            let _ = pax(&block);
        }
    }

    #[test]
    fn a_pax_record_with_a_wrong_length_is_refused() {
        assert_eq!(pax(b"12 path=a/b\n").unwrap(), [(b"path".to_vec(), b"a/b".to_vec())]);
        for bad in [&b"99 path=a/b\n"[..], b"3 path=a/b\n", b"x path=a\n", b"0 path=a\n", b"12 path:a/b\n"] {
            assert!(pax(bad).is_err(), "{bad:?}");
        }
    }
}
