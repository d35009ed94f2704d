//! What was acknowledged and is not in the database yet.
//!
//! A commit of the database writes every page that it touched: tens of KiB for a call of some hundred bytes. So the
//! statements of a call go here first, in one write, and their transaction stays open for others; one commit a little later
//! takes them all. Who is killed in between finds them here, and runs them again.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use sha2::{Digest, Sha256};

use crate::{Durability, Error, Result};

/// Before each record: its number, the length of what follows, and a digest of all that.
const HEAD: usize = 8 + 4 + 8;

pub(crate) struct Journal {
    file: File,
    durability: Durability,
    /// Where the next record goes. What lies behind was not acknowledged.
    end: u64,
    /// The number of the last record.
    last: u64,
}

/// A place in it.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    end: u64,
    last: u64,
}

impl Journal {
    /// Beside a database that has everything up to record `folded`.
    pub(crate) fn open(path: &Path, folded: u64, durability: Durability) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let mut journal = Self { file, durability, end: 0, last: folded };
        let read = journal.read()?;
        for (number, record) in records(&read) {
            journal.end += (HEAD + record.len()) as u64;
            journal.last = number.max(folded);
        }
        Ok(journal)
    }

    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    pub(crate) fn length(&self) -> u64 {
        self.end
    }

    /// One record, whole or not at all: of one that was cut short the digest is wrong, and the next is written over it.
    pub(crate) fn append(&mut self, statements: &Statements) -> io::Result<()> {
        if statements.is_empty() {
            return Ok(());
        }
        let number = self.last + 1;
        let length = u32::try_from(statements.0.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mut record = Vec::with_capacity(HEAD + statements.0.len());
        record.extend_from_slice(&number.to_le_bytes());
        record.extend_from_slice(&length.to_le_bytes());
        record.extend_from_slice(&digest(number, &statements.0));
        record.extend_from_slice(&statements.0);
        self.file.write_all_at(&record, self.end)?;
        self.end += record.len() as u64;
        self.last = number;
        Ok(())
    }

    /// What was appended is as safe then as is wanted.
    pub(crate) fn settle(&self) -> io::Result<()> {
        match self.durability {
            Durability::Kill => Ok(()),
            Durability::Full => self.file.sync_data(),
        }
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark { end: self.end, last: self.last }
    }

    /// Forgets what was appended since.
    pub(crate) fn back_to(&mut self, mark: Mark) {
        Mark { end: self.end, last: self.last } = mark;
        let _ = self.file.set_len(self.end);
    }

    /// Gives each statement after record `folded`, in the order in which they ran.
    pub(crate) fn replay(&self, folded: u64, mut run: impl FnMut(&str, &[Value]) -> Result<()>) -> Result<()> {
        for (number, record) in records(&self.read()?) {
            if number > folded {
                each(record, &mut run)?;
            }
        }
        Ok(())
    }

    /// After the database has it all. If it cannot be emptied it grows, and the numbers say what is old.
    pub(crate) fn clear(&mut self) {
        if self.file.set_len(0).is_ok() {
            self.end = 0;
        }
    }

    fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(self.file.metadata()?.len()).unwrap_or(usize::MAX)];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }
}

fn digest(number: u64, statements: &[u8]) -> [u8; 8] {
    let whole: [u8; 32] = Sha256::new().chain_update(number.to_le_bytes()).chain_update(statements).finalize().into();
    let mut digest = [0; 8];
    digest.copy_from_slice(&whole[..8]);
    digest
}

/// Each whole record with its number, up to the first that is none, or that does not follow the one before: it was left by
/// an older, longer journal.
fn records(mut bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let mut last = None;
    std::iter::from_fn(move || {
        let (number, rest) = bytes.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (told, rest) = rest.split_first_chunk::<8>()?;
        let (record, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let number = u64::from_le_bytes(*number);
        if digest(number, record) != *told || last.is_some_and(|last| number != last + 1) {
            return None;
        }
        (last, bytes) = (Some(number), rest);
        Some((number, record))
    })
}

/// What a batch writes: each statement's text and its values.
#[derive(Default)]
pub(crate) struct Statements(Vec<u8>);

const NULL: u8 = 0;
const INTEGER: u8 = 1;
const REAL: u8 = 2;
const TEXT: u8 = 3;
const BLOB: u8 = 4;

impl Statements {
    pub(crate) fn add(&mut self, sql: &str, values: &[ToSqlOutput<'_>]) -> Result<()> {
        self.bytes(sql.as_bytes())?;
        self.0.push(u8::try_from(values.len()).map_err(|_| Error::Refused("a statement has too many values".into()))?);
        for value in values {
            match value {
                ToSqlOutput::Borrowed(value) => self.value(*value)?,
                ToSqlOutput::Owned(value) => self.value(value.into())?,
                _ => return Err(Error::Refused("a value of a kind that the journal does not know".into())),
            }
        }
        Ok(())
    }

    fn value(&mut self, value: ValueRef<'_>) -> Result<()> {
        let kind = |to: &mut Self, kind| to.0.push(kind);
        match value {
            ValueRef::Null => kind(self, NULL),
            ValueRef::Integer(number) => {
                kind(self, INTEGER);
                self.0.extend_from_slice(&number.to_le_bytes());
            }
            ValueRef::Real(number) => {
                kind(self, REAL);
                self.0.extend_from_slice(&number.to_le_bytes());
            }
            ValueRef::Text(text) => {
                kind(self, TEXT);
                self.bytes(text)?;
            }
            ValueRef::Blob(blob) => {
                kind(self, BLOB);
                self.bytes(blob)?;
            }
        }
        Ok(())
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        let length = u32::try_from(bytes.len()).map_err(|_| Error::Refused("a value is too long".into()))?;
        self.0.extend_from_slice(&length.to_le_bytes());
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Its digest was right, so what cannot be read was never written by us.
fn each(mut record: &[u8], run: &mut impl FnMut(&str, &[Value]) -> Result<()>) -> Result<()> {
    let foreign = || Error::Corrupt("a record of the journal".into());
    while !record.is_empty() {
        let sql = bytes(&mut record).and_then(|sql| std::str::from_utf8(sql).ok()).ok_or_else(foreign)?;
        let [count] = *take(&mut record).ok_or_else(foreign)?;
        let values: Option<Vec<Value>> = (0..count).map(|_| value(&mut record)).collect();
        run(sql, &values.ok_or_else(foreign)?)?;
    }
    Ok(())
}

fn value(from: &mut &[u8]) -> Option<Value> {
    Some(match *take(from)? {
        [NULL] => Value::Null,
        [INTEGER] => Value::Integer(i64::from_le_bytes(*take(from)?)),
        [REAL] => Value::Real(f64::from_le_bytes(*take(from)?)),
        [TEXT] => Value::Text(String::from_utf8(bytes(from)?.to_vec()).ok()?),
        [BLOB] => Value::Blob(bytes(from)?.to_vec()),
        _ => return None,
    })
}

fn bytes<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = u32::from_le_bytes(*take(from)?) as usize;
    let (bytes, rest) = from.split_at_checked(length)?;
    *from = rest;
    Some(bytes)
}

fn take<'a, const N: usize>(from: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (taken, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_value() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::Integer),
            "\\PC{0,20}".prop_map(Value::Text),
            prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::Blob),
        ]
    }

    type Said = Vec<(String, Vec<Value>)>;

    fn statements(said: &Said) -> Statements {
        let mut statements = Statements::default();
        for (sql, values) in said {
            let values: Vec<_> = values.iter().map(|value| ToSqlOutput::Borrowed(value.into())).collect();
            statements.add(sql, &values).unwrap();
        }
        statements
    }

    fn replayed(journal: &Journal, folded: u64) -> Said {
        let mut said = Said::new();
        journal
            .replay(folded, |sql, values| {
                said.push((sql.into(), values.into()));
                Ok(())
            })
            .unwrap();
        said
    }

    proptest! {
        #[test]
        fn what_was_written_is_what_is_read_wherever_the_file_was_cut(
            batches in prop::collection::vec(prop::collection::vec(("\\PC{0,30}", prop::collection::vec(any_value(), 0..6)), 1..4), 1..6),
            folded in 0u64..6,
            cut in any::<prop::sample::Index>(),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("journal");
            let mut journal = Journal::open(&path, 0, Durability::Kill).unwrap();
            let mut ends = Vec::new();
            for batch in &batches {
                journal.append(&statements(batch)).unwrap();
                ends.push(journal.length());
            }
            let later: Said = batches.iter().skip(folded as usize).flatten().cloned().collect();
            prop_assert_eq!(replayed(&Journal::open(&path, 0, Durability::Kill).unwrap(), folded), later);

            let length = cut.index(journal.length() as usize + 1) as u64;
            journal.file.set_len(length).unwrap();
            let whole = ends.iter().filter(|end| **end <= length).count();
            let mut journal = Journal::open(&path, 0, Durability::Kill).unwrap();
            let expected: Said = batches[..whole].iter().flatten().cloned().collect();
            prop_assert_eq!(replayed(&journal, 0), expected.clone());
            prop_assert_eq!(journal.last(), whole as u64);

            // The next record lies over what was left of one.
            journal.append(&statements(&batches[0])).unwrap();
            let more: Said = expected.into_iter().chain(batches[0].clone()).collect();
            prop_assert_eq!(replayed(&Journal::open(&path, 0, Durability::Kill).unwrap(), 0), more);
        }

        #[test]
        fn whatever_is_in_the_file_nothing_breaks(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("journal");
            std::fs::write(&path, &bytes).unwrap();
            let journal = Journal::open(&path, 7, Durability::Kill).unwrap();
            prop_assert_eq!(journal.last(), 7);
            prop_assert_eq!(replayed(&journal, 0), Said::new());
            let _ = each(&bytes, &mut |_, _| Ok(()));
        }
    }

    #[test]
    fn what_an_older_and_longer_journal_left_behind_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let mut journal = Journal::open(&path, 0, Durability::Kill).unwrap();
        let one = |name: &str| statements(&vec![(name.into(), vec![])]);
        for name in ["a", "b", "c"] {
            journal.append(&one(name)).unwrap();
        }
        journal.end = 0; // as if it had been emptied, but for the bytes
        journal.append(&one("d")).unwrap();
        let journal = Journal::open(&path, 3, Durability::Kill).unwrap();
        assert_eq!(replayed(&journal, 3), vec![("d".to_owned(), vec![])]);
        assert_eq!(journal.last(), 4);
    }
}
