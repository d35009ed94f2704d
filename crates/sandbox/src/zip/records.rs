//! The records of a ZIP file (APPNOTE 6.3.10). Numbers are little-endian; one that does not fit is all ones, and stands in a
//! zip64 field.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::{FileInfo, Kind};

/// A file that is as large when it is opened has wide numbers: packed, it may come out a little larger than it is.
const WIDE: u64 = 0xf000_0000;
const FULL: u64 = 0xffff_ffff;
const FULL_COUNT: u64 = 0xffff;

const STORED: u16 = 0;
const DEFLATED: u16 = 8;
const SUMS_FOLLOW: u16 = 1 << 3;
const UTF8: u16 = 1 << 11;
/// Without wide numbers, and with them.
const VERSIONS: (u16, u16) = (20, 45);
const UNIX: u16 = 3 << 8;

const ZIP64: u16 = 0x0001;
const TIMES: u16 = 0x5455;

/// What the header of an entry says of it, but for its sums.
pub(super) struct Entry {
    name: Vec<u8>,
    kind: Kind,
    mode: u32,
    modified: SystemTime,
    wide: bool,
    /// Where its header begins.
    offset: u64,
}

pub(super) struct Sums {
    pub(super) crc: u32,
    pub(super) packed: u64,
    pub(super) plain: u64,
}

impl Entry {
    pub(super) fn new(name: Vec<u8>, info: &FileInfo, offset: u64) -> Self {
        let wide = info.kind == Kind::File && info.size > WIDE;
        Self { name, kind: info.kind, mode: info.mode, modified: info.modified, wide, offset }
    }

    /// Goes before the content. A file's sums come behind it.
    pub(super) fn local(&self, sums: Option<&Sums>) -> Vec<u8> {
        let mut record = Record::new(b"PK\x03\x04");
        record.u16(self.version(self.wide));
        self.common(&mut record, sums);
        let mut extra = Record::default();
        if self.wide {
            extra.field(ZIP64, |field| field.u64(0).u64(0));
        }
        self.times(&mut extra);
        record.u16(self.name.len() as u16).u16(extra.0.len() as u16);
        record.bytes(&self.name).bytes(&extra.0);
        record.0
    }

    /// Goes behind the content of a file.
    pub(super) fn descriptor(&self, sums: &Sums) -> Vec<u8> {
        let mut record = Record::new(b"PK\x07\x08");
        record.u32(sums.crc);
        match self.wide {
            true => record.u64(sums.packed).u64(sums.plain),
            false => record.u32(sums.packed as u32).u32(sums.plain as u32),
        };
        record.0
    }

    /// Goes into the table of contents.
    pub(super) fn central(&self, sums: &Sums) -> Vec<u8> {
        let beyond: Vec<u64> = [sums.plain, sums.packed, self.offset].into_iter().filter(|n| *n >= FULL).collect();
        let wide = self.wide || !beyond.is_empty();
        let mut record = Record::new(b"PK\x01\x02");
        record.u16(UNIX | self.version(true)).u16(self.version(wide));
        self.common(&mut record, Some(sums));
        let mut extra = Record::default();
        if !beyond.is_empty() {
            extra.field(ZIP64, |field| beyond.iter().fold(field, |field, number| field.u64(*number)));
        }
        self.times(&mut extra);
        record.u16(self.name.len() as u16).u16(extra.0.len() as u16);
        record.u16(0).u16(0).u16(0); // no comment, the first disk, no text
        record.u32(self.attributes()).u32(self.offset.min(FULL) as u32);
        record.bytes(&self.name).bytes(&extra.0);
        record.0
    }

    fn version(&self, wide: bool) -> u16 {
        if wide { VERSIONS.1 } else { VERSIONS.0 }
    }

    /// The middle, which both headers have.
    fn common(&self, record: &mut Record, sums: Option<&Sums>) {
        let is_file = self.kind == Kind::File;
        // Bytes that are no UTF-8 stay what they are.
        let text = if std::str::from_utf8(&self.name).is_ok() { UTF8 } else { 0 };
        let (time, date) = dos_time(self.modified);
        record.u16(text | if is_file { SUMS_FOLLOW } else { 0 });
        record.u16(if is_file { DEFLATED } else { STORED }).u16(time).u16(date);
        match sums {
            Some(sums) => record.u32(sums.crc).u32(sums.packed.min(FULL) as u32).u32(sums.plain.min(FULL) as u32),
            None if self.wide => record.u32(0).u32(FULL as u32).u32(FULL as u32),
            None => record.u32(0).u32(0).u32(0),
        };
    }

    /// The time to the second and in no zone, where it fits.
    fn times(&self, extra: &mut Record) {
        let seconds = self.modified.duration_since(UNIX_EPOCH).ok().and_then(|age| i32::try_from(age.as_secs()).ok());
        if let Some(seconds) = seconds {
            extra.field(TIMES, |field| field.bytes(&[1]).u32(seconds.cast_unsigned()));
        }
    }

    fn attributes(&self) -> u32 {
        let (kind, dos) = match self.kind {
            Kind::Directory => (0o040_000, 0x10),
            Kind::Symlink => (0o120_000, 0),
            Kind::File | Kind::Other => (0o100_000, 0),
        };
        (kind | self.mode & 0o7777) << 16 | dos
    }
}

/// The table of contents, as its end describes it.
#[derive(Default)]
pub(super) struct Table {
    entries: u64,
    size: u64,
    pub(super) offset: u64,
}

impl Table {
    pub(super) fn add(&mut self, length: usize) {
        self.entries += 1;
        self.size += length as u64;
    }

    pub(super) fn end(&self) -> Vec<u8> {
        let mut record = Record::default();
        if self.entries >= FULL_COUNT || self.size >= FULL || self.offset >= FULL {
            record.bytes(b"PK\x06\x06").u64(44).u16(UNIX | VERSIONS.1).u16(VERSIONS.1).u32(0).u32(0);
            record.u64(self.entries).u64(self.entries).u64(self.size).u64(self.offset);
            record.bytes(b"PK\x06\x07").u32(0).u64(self.offset + self.size).u32(1);
        }
        let entries = self.entries.min(FULL_COUNT) as u16;
        record.bytes(b"PK\x05\x06").u16(0).u16(0).u16(entries).u16(entries);
        record.u32(self.size.min(FULL) as u32).u32(self.offset.min(FULL) as u32).u16(0);
        record.0
    }
}

#[derive(Default)]
struct Record(Vec<u8>);

impl Record {
    fn new(signature: &[u8; 4]) -> Self {
        Self(signature.to_vec())
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u16(&mut self, number: u16) -> &mut Self {
        self.bytes(&number.to_le_bytes())
    }

    fn u32(&mut self, number: u32) -> &mut Self {
        self.bytes(&number.to_le_bytes())
    }

    fn u64(&mut self, number: u64) -> &mut Self {
        self.bytes(&number.to_le_bytes())
    }

    fn field(&mut self, tag: u16, fill: impl FnOnce(&mut Record) -> &mut Record) {
        let mut content = Self::default();
        fill(&mut content);
        self.u16(tag).u16(content.0.len() as u16).bytes(&content.0);
    }
}

/// Time and date to two seconds, from 1980 to 2107, in UTC.
fn dos_time(at: SystemTime) -> (u16, u16) {
    const FIRST: u64 = 315_532_800;
    const LAST: u64 = 4_354_819_198;
    let seconds = at.duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs()).clamp(FIRST, LAST);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let date = (year - 1980) << 9 | month << 5 | day;
    let time = (second / 3600) << 11 | (second / 60 % 60) << 5 | (second % 60 / 2);
    (time as u16, date as u16)
}

/// Year, month and day of a day since 1970. Years are counted from March here: so the leap day is the last of its year.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use super::*;
    use crate::SandboxPath;

    fn file(size: u64) -> FileInfo {
        FileInfo {
            path: SandboxPath::new("/big").unwrap(),
            kind: Kind::File,
            size,
            mode: 0o644,
            owner: "root".into(),
            group: "root".into(),
            modified: UNIX_EPOCH + Duration::from_secs(1_709_210_096), // 2024-02-29 12:34:56
            link: None,
            tags: BTreeMap::new(),
        }
    }

    fn u16_at(bytes: &[u8], at: usize) -> u16 {
        u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
    }

    fn u32_at(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    fn u64_at(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    #[test]
    fn a_file_that_may_come_out_beyond_four_gib_has_wide_numbers_everywhere() {
        let entry = Entry::new(b"big".to_vec(), &file(5 << 30), 6 << 30);
        let local = entry.local(None);
        assert_eq!(u16_at(&local, 4), 45);
        assert_eq!((u32_at(&local, 18), u32_at(&local, 22)), (u32::MAX, u32::MAX));
        assert_eq!((u16_at(&local, 33), u16_at(&local, 35)), (ZIP64, 16));

        let sums = Sums { crc: 7, packed: (5 << 30) + 9, plain: 5 << 30 };
        let descriptor = entry.descriptor(&sums);
        assert_eq!((descriptor.len(), u32_at(&descriptor, 4)), (24, 7));
        assert_eq!((u64_at(&descriptor, 8), u64_at(&descriptor, 16)), (sums.packed, sums.plain));

        let central = entry.central(&sums);
        assert_eq!((u32_at(&central, 20), u32_at(&central, 24), u32_at(&central, 42)), (u32::MAX, u32::MAX, u32::MAX));
        assert_eq!((u16_at(&central, 49), u16_at(&central, 51)), (ZIP64, 24));
        assert_eq!([53, 61, 69].map(|at| u64_at(&central, at)), [sums.plain, sums.packed, 6 << 30]);
    }

    #[test]
    fn a_small_file_behind_four_gib_has_a_wide_offset_alone() {
        let central = Entry::new(b"big".to_vec(), &file(3), 1 << 32).central(&Sums { crc: 0, packed: 5, plain: 3 });
        assert_eq!((u32_at(&central, 20), u32_at(&central, 24), u32_at(&central, 42)), (5, 3, u32::MAX));
        assert_eq!((u16_at(&central, 49), u16_at(&central, 51), u64_at(&central, 53)), (ZIP64, 8, 1 << 32));
    }

    #[test]
    fn what_is_small_has_no_wide_number() {
        let entry = Entry::new(b"big".to_vec(), &file(WIDE), 9);
        assert_eq!(u16_at(&entry.local(None), 4), 20);
        let sums = Sums { crc: 0, packed: FULL - 1, plain: WIDE };
        assert_eq!(entry.descriptor(&sums).len(), 16);
        assert_eq!(u16_at(&entry.central(&sums), 49), TIMES);
        assert_eq!(Table { entries: 65_534, size: 5, offset: 9 }.end().len(), 22);
    }

    #[test]
    fn a_long_table_and_one_far_behind_have_a_wide_end() {
        for table in [
            Table { entries: 65_535, size: 5, offset: 9 },
            Table { entries: 3, size: 1 << 32, offset: 9 },
            Table { entries: 3, size: 5, offset: 1 << 33 },
        ] {
            let end = table.end();
            assert_eq!((end.len(), &end[..4]), (56 + 20 + 22, &b"PK\x06\x06"[..]));
            assert_eq!((u64_at(&end, 24), u64_at(&end, 32)), (table.entries, table.entries));
            assert_eq!((u64_at(&end, 40), u64_at(&end, 48)), (table.size, table.offset));
            assert_eq!(u64_at(&end, 56 + 8), table.offset + table.size, "where the wide end begins");
        }
    }

    #[test]
    fn times_are_days_and_two_seconds_of_utc() {
        let told = |seconds| dos_time(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(told(1_709_210_096), (12 << 11 | 34 << 5 | 28, 44 << 9 | 2 << 5 | 29));
        assert_eq!(told(0), (0, 1 << 5 | 1), "before 1980 is its first day");
        assert_eq!(told(u64::from(u32::MAX) * 2), (23 << 11 | 59 << 5 | 29, 127 << 9 | 12 << 5 | 31));
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
    }
}
