//! Reading a tar, one entry after the other, without believing it.
//!
//! Lengths are never allocated before their bytes came, names and records have a limit, and an archive that stops before
//! its end mark was cut off. Understood are ustar, GNU (long names, base-256 numbers, old sparse files) and PAX.

use std::io::{BufRead, BufReader, Read};

use cabana_sandbox::{Error, Result};

use super::{
    BLOCK, pax,
    sparse::{self, Map},
};

const BUFFER: usize = 256 * 1024;
/// Of a long name or a set of records: the longest path twice, and `xattr::MAX_ATTRIBUTES` with what their keys take.
pub(super) const MAX_EXTENSION: u64 = 1024 * 1024;
pub(crate) const MAX_ENTRIES: u64 = 1_000_000;
/// After the end mark: what writers fill their last record with.
const MAX_TAIL: u64 = 1024 * 1024;

pub(crate) struct Archive<'a> {
    input: BufReader<&'a mut dyn Read>,
    /// Of the current entry: data not yet taken, and the zeros after it.
    left: u64,
    padding: u64,
    entries: u64,
    most_entries: u64,
    taken: u64,
    ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    /// A further name of a file that came before.
    Hard,
    /// What hides a name of the layers below.
    Whiteout,
    Pipe,
    /// A device.
    Special,
}

pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) name: Vec<u8>,
    pub(crate) link: Vec<u8>,
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) mtime: (i64, u32),
    pub(crate) sparse: Option<Map>,
    /// Extended attributes, by their whole names.
    pub(crate) attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What came in entries before the one that it describes.
#[derive(Default)]
struct Before {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    records: Vec<u8>,
}

impl<'a> Archive<'a> {
    pub(crate) fn new(input: &'a mut dyn Read) -> Self {
        Self::of_entries(input, MAX_ENTRIES)
    }

    /// A layer of a sandbox may have as many as its disk took.
    pub(crate) fn of_layer(input: &'a mut dyn Read) -> Self {
        Self::of_entries(input, u64::MAX)
    }

    pub(crate) fn of_entries(input: &'a mut dyn Read, most_entries: u64) -> Self {
        let input = BufReader::with_capacity(BUFFER, input);
        Self { input, left: 0, padding: 0, entries: 0, most_entries, taken: 0, ended: false }
    }

    /// Bytes of the archive that were read so far.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// How many entries were read so far.
    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    /// The next entry; what was not taken of the last one's data is passed over. `None` after a proper end.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>> {
        if self.ended {
            return Ok(None);
        }
        let mut before = Before::default();
        loop {
            // One after the other: together they may be more than any number.
            self.skip(self.left)?;
            self.skip(self.padding)?;
            (self.left, self.padding) = (0, 0);
            let block = self.block()?;
            if block.iter().all(|b| *b == 0) {
                self.ended = true;
                self.drain();
                return Ok(None);
            }
            self.entries += 1;
            if self.entries > self.most_entries {
                return Err(Error::Archive(format!("it has more than {} entries", self.most_entries)));
            }
            check_sum(&block)?;
            let size = number(&block[124..136])?;
            match block[156] {
                b'L' => before.name = Some(until_nul(&self.extension(size)?).to_vec()),
                b'K' => before.link = Some(until_nul(&self.extension(size)?).to_vec()),
                b'x' | b'X' => before.records = self.extension(size)?,
                // Records for all that follows: a comment or a version, nothing that makes a file.
                b'g' => drop(self.extension(size)?),
                b'V' => self.expect(size),
                kind => return self.entry(&block, kind, size, before).map(Some),
            }
        }
    }

    /// Some of the current entry's data; empty at its end. Say with `consume` how much was used.
    pub(crate) fn data(&mut self) -> Result<&[u8]> {
        if self.left == 0 {
            return Ok(&[]);
        }
        let left = self.left;
        let bytes = fill(&mut self.input)?;
        if bytes.is_empty() {
            return Err(cut_off());
        }
        Ok(&bytes[..bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX))])
    }

    /// How much of the current entry's data was not yet taken.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// All of it; the caller knows that it is little.
    pub(crate) fn rest(&mut self) -> Result<Vec<u8>> {
        let mut rest = Vec::with_capacity(usize::try_from(self.left).unwrap_or(0));
        loop {
            let bytes = self.data()?;
            if bytes.is_empty() {
                return Ok(rest);
            }
            rest.extend_from_slice(bytes);
            let n = bytes.len();
            self.consume(n);
        }
    }

    pub(crate) fn consume(&mut self, n: usize) {
        self.input.consume(n);
        self.left -= n as u64;
        self.taken += n as u64;
    }

    fn entry(&mut self, block: &[u8; BLOCK], flag: u8, size: u64, before: Before) -> Result<Entry> {
        let records = pax::parse(&before.records)?;
        let record = |key: &[u8]| records.iter().rev().find(|(k, _)| *k == key).map(|(_, value)| *value);
        let numeric = |key: &[u8], or: Result<u64>| match record(key) {
            Some(text) => pax::decimal(text).ok_or_else(|| Error::Archive("a number in a record is damaged".into())),
            None => or,
        };
        let name = record(b"GNU.sparse.name").or(record(b"path")).map(<[u8]>::to_vec);
        let name = name.or(before.name).unwrap_or_else(|| header_name(block));
        let link = record(b"linkpath").map(<[u8]>::to_vec).or(before.link);
        let kind = match flag {
            b'0' | 0 | b'7' | b'S' if flag != b'S' && name.ends_with(b"/") => Kind::Directory,
            b'0' | 0 | b'7' | b'S' => Kind::File,
            b'1' => Kind::Hard,
            b'2' => Kind::Symlink,
            b'3' if is_whiteout(block) => Kind::Whiteout,
            b'3' | b'4' => Kind::Special,
            b'6' => Kind::Pipe,
            b'5' | b'D' => Kind::Directory,
            other => return Err(Error::Archive(format!("an entry is of the unknown kind {:?}", char::from(other)))),
        };
        // Only these have data, whatever their size says.
        if kind == Kind::File || flag == b'D' {
            self.expect(numeric(b"size", Ok(size))?);
        }
        let sparse = self.sparse(block, flag, &records)?;
        Ok(Entry {
            kind,
            name,
            link: link.unwrap_or_else(|| until_nul(&block[157..257]).to_vec()),
            mode: (number(&block[100..108])? & 0o7777) as u32,
            uid: numeric(b"uid", number(&block[108..116]))?,
            gid: numeric(b"gid", number(&block[116..124]))?,
            mtime: record(b"mtime").and_then(pax::time).unwrap_or_else(|| (signed(&block[136..148]), 0)),
            sparse,
            attributes: attributes(&records),
        })
    }

    fn sparse(&mut self, block: &[u8; BLOCK], flag: u8, records: &pax::Records<'_>) -> Result<Option<Map>> {
        let record = |key: &[u8]| records.iter().rev().find(|(k, _)| *k == key).map(|(_, value)| *value);
        let mut map = if flag == b'S' {
            self.old_gnu(block)?
        } else if let Some(b"1") = record(b"GNU.sparse.major") {
            self.pax_1(record(b"GNU.sparse.realsize"))?
        } else if let Some(list) = record(b"GNU.sparse.map") {
            let map = sparse::from_list(list)?;
            Map { size: sparse::number(record(b"GNU.sparse.size").unwrap_or_default())?, ..map }
        } else if record(b"GNU.sparse.numblocks").is_some() {
            let map = pieces_of_records(records)?;
            Map { size: sparse::number(record(b"GNU.sparse.size").unwrap_or_default())?, ..map }
        } else {
            return Ok(None);
        };
        // GNU tar ends a file that ends in a hole with an empty piece there.
        map.pieces.retain(|(_, length)| *length > 0);
        map.check(self.left)?;
        Ok(Some(map))
    }

    fn old_gnu(&mut self, block: &[u8; BLOCK]) -> Result<Map> {
        let mut map = Map { size: number(&block[483..495])?, ..Map::default() };
        pieces(&mut map, &block[386..482])?;
        let mut more = block[482] != 0;
        while more {
            // These stand between the header and the data, and no size counts them.
            let block = self.block()?;
            pieces(&mut map, &block[..504])?;
            more = block[504] != 0;
        }
        Ok(map)
    }

    fn pax_1(&mut self, size: Option<&[u8]>) -> Result<Map> {
        let start = self.left;
        let map = sparse::from_lines(|| self.line())?;
        let used = start - self.left;
        let rest = (used.next_multiple_of(BLOCK as u64) - used).min(self.left);
        self.left -= rest;
        self.skip(rest)?;
        Ok(Map { size: sparse::number(size.unwrap_or_default())?, ..map })
    }

    fn line(&mut self) -> Result<Vec<u8>> {
        let mut line = Vec::new();
        loop {
            let byte = *self.data()?.first().ok_or_else(|| sparse::bad("has a damaged map"))?;
            self.consume(1);
            match byte {
                b'\n' => return Ok(line),
                _ if line.len() == 20 => return Err(sparse::bad("has a damaged map")),
                byte => line.push(byte),
            }
        }
    }

    fn expect(&mut self, size: u64) {
        self.left = size;
        self.padding = size.wrapping_neg() % BLOCK as u64;
    }

    /// A name or records, as an entry's data.
    fn extension(&mut self, size: u64) -> Result<Vec<u8>> {
        if size > MAX_EXTENSION {
            return Err(Error::Archive("a name or an extended header is too long".into()));
        }
        self.expect(size);
        let mut text = Vec::new();
        while self.left > 0 {
            let bytes = self.data()?;
            text.extend_from_slice(bytes);
            let n = bytes.len();
            self.consume(n);
        }
        Ok(text)
    }

    fn block(&mut self) -> Result<[u8; BLOCK]> {
        let mut block = [0; BLOCK];
        self.input.read_exact(&mut block).map_err(broken)?;
        self.taken += BLOCK as u64;
        Ok(block)
    }

    fn skip(&mut self, mut n: u64) -> Result<()> {
        while n > 0 {
            let here = fill(&mut self.input)?.len();
            if here == 0 {
                return Err(cut_off());
            }
            let step = usize::try_from(n).unwrap_or(here).min(here);
            self.input.consume(step);
            self.taken += step as u64;
            n -= step as u64;
        }
        Ok(())
    }

    /// A writer that still fills its last record must not find the reader gone.
    fn drain(&mut self) {
        let mut seen = 0;
        while let Ok(n @ 1..) = self.input.fill_buf().map(<[u8]>::len) {
            self.input.consume(n);
            self.taken += n as u64;
            seen += n as u64;
            if seen > MAX_TAIL {
                break;
            }
        }
    }
}

fn fill<'b>(input: &'b mut BufReader<&mut dyn Read>) -> Result<&'b [u8]> {
    // Twice, because a loop cannot lend what it fills: the second call answers from the buffer.
    while let Err(error) = input.fill_buf() {
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(broken(error));
        }
    }
    input.fill_buf().map_err(broken)
}

fn broken(error: std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => cut_off(),
        _ => Error::failed("read the archive", error),
    }
}

fn cut_off() -> Error {
    Error::Archive("it ends before its end mark: it was cut off".into())
}

fn check_sum(block: &[u8; BLOCK]) -> Result<()> {
    // The sum's own field counts as eight spaces. Some old writers added up signed bytes.
    let (mut sum, mut signed) = (8 * i64::from(b' '), 8 * i64::from(b' '));
    for byte in block[..148].iter().chain(&block[156..]) {
        sum += i64::from(*byte);
        signed += i64::from(byte.cast_signed());
    }
    match i64::try_from(number(&block[148..156])?) {
        Ok(told) if told == sum || told == signed => Ok(()),
        _ => Err(Error::Archive("a header's checksum is wrong".into())),
    }
}

/// Octal text, or GNU's base 256 with the high bit set.
fn number(field: &[u8]) -> Result<u64> {
    let bad = || Error::Archive("a number in a header is damaged".into());
    if field[0] & 0x80 != 0 {
        let bytes = std::iter::once(field[0] & 0x7f).chain(field[1..].iter().copied());
        // Below zero there is only time.
        if field[0] & 0x40 != 0 {
            return Err(bad());
        }
        return bytes.into_iter().try_fold(0u64, |n, b| n.checked_mul(256)?.checked_add(u64::from(b))).ok_or_else(bad);
    }
    let text = until_nul(field).trim_ascii();
    text.iter()
        .try_fold(0u64, |n, b| match b {
            b'0'..=b'7' => n.checked_mul(8)?.checked_add(u64::from(b - b'0')),
            _ => None,
        })
        .ok_or_else(bad)
}

/// A time may lie before 1970; one that cannot be read is 1970.
fn signed(field: &[u8]) -> i64 {
    if field[0] == 0xff {
        return field[1..].iter().fold(-1i64, |n, b| n.wrapping_shl(8) | i64::from(*b));
    }
    number(field).ok().and_then(|n| i64::try_from(n).ok()).unwrap_or(0)
}

/// Both numbers of the device are zero, and not merely left out.
fn is_whiteout(block: &[u8; BLOCK]) -> bool {
    [&block[329..337], &block[337..345]].into_iter().all(|field| field[0] == b'0' && matches!(number(field), Ok(0)))
}

fn header_name(block: &[u8; BLOCK]) -> Vec<u8> {
    let name = until_nul(&block[..100]);
    let prefix = until_nul(&block[345..500]);
    // GNU uses the place of the prefix for other things.
    match &block[257..263] == b"ustar\0" && !prefix.is_empty() {
        true => [prefix, b"/", name].concat(),
        false => name.to_vec(),
    }
}

fn until_nul(field: &[u8]) -> &[u8] {
    field.split(|b| *b == 0).next().unwrap_or_default()
}

fn pieces(map: &mut Map, fields: &[u8]) -> Result<()> {
    for piece in fields.chunks_exact(24).take_while(|piece| piece[0] != 0) {
        map.push(number(&piece[..12])?, number(&piece[12..])?)?;
    }
    Ok(())
}

/// PAX 0.0: the same two keys again and again, in order.
fn pieces_of_records(records: &pax::Records<'_>) -> Result<Map> {
    let mut map = Map::default();
    let mut at = None;
    for (key, value) in records {
        match *key {
            b"GNU.sparse.offset" => at = Some(sparse::number(value)?),
            b"GNU.sparse.numbytes" => {
                let at = at.take().ok_or_else(|| sparse::bad("has a damaged map"))?;
                map.push(at, sparse::number(value)?)?;
            }
            _ => {}
        }
    }
    Ok(map)
}

fn attributes(records: &pax::Records<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    records.iter().filter_map(|(key, value)| Some((pax::attribute_name(key)?, value.to_vec()))).collect()
}
