//! Files with holes: where the data of a sparse entry belongs. GNU's old form and the three of PAX.

use cabana_sandbox::{Error, Result};

use super::pax::decimal;

/// Enough for any real file, and no more memory than that.
pub(crate) const MAX_PIECES: usize = 256 * 1024;

/// Stretches of data: where, and how long. What lies between them is zeros.
#[derive(Clone, Debug, Default)]
pub(crate) struct Map {
    pub(crate) pieces: Vec<(u64, u64)>,
    /// The file's length, holes included.
    pub(crate) size: u64,
}

impl Map {
    pub(super) fn push(&mut self, at: u64, length: u64) -> Result<()> {
        if self.pieces.len() == MAX_PIECES {
            return Err(bad("has too many pieces"));
        }
        self.pieces.push((at, length));
        Ok(())
    }

    /// In order, inside the file, and with as much data as the archive holds.
    pub(super) fn check(&self, data: u64) -> Result<()> {
        let (mut end, mut sum) = (0, 0u64);
        for (at, length) in &self.pieces {
            let next = at.checked_add(*length).ok_or_else(|| bad("runs beyond all sizes"))?;
            if *at < end || next > self.size {
                return Err(bad("has pieces out of order"));
            }
            end = next;
            sum += length;
        }
        if sum == data { Ok(()) } else { Err(bad("has another amount of data than it says")) }
    }

    /// Bytes of the file that are not in the archive.
    pub(super) fn holes(&self) -> u64 {
        self.pieces.iter().fold(self.size, |left, (_, length)| left.saturating_sub(*length))
    }
}

/// PAX 0.1: all in one record, `at,length,at,length,…`.
pub(super) fn from_list(text: &[u8]) -> Result<Map> {
    let mut map = Map::default();
    let numbers: Vec<&[u8]> = text.split(|b| *b == b',').filter(|n| !n.is_empty()).collect();
    for pair in numbers.chunks(2) {
        let [at, length] = pair else { return Err(bad("has a damaged map")) };
        map.push(number(at)?, number(length)?)?;
    }
    Ok(map)
}

/// PAX 1.0: the map stands before the data, a number to a line. `line` gives the next one.
pub(super) fn from_lines(mut line: impl FnMut() -> Result<Vec<u8>>) -> Result<Map> {
    let mut map = Map::default();
    let count = number(&line()?)?;
    for _ in 0..count {
        let at = number(&line()?)?;
        map.push(at, number(&line()?)?)?;
    }
    Ok(map)
}

pub(super) fn number(text: &[u8]) -> Result<u64> {
    decimal(text).ok_or_else(|| bad("has a damaged map"))
}

pub(super) fn bad(why: &str) -> Error {
    Error::Archive(format!("a sparse file {why}"))
}
