//! The order in which the streams took turns.

use std::{io, ops::Range};

use super::Stream;

/// How a run lies in its file. A page holds a whole number of them, so no write of one is ever torn.
pub(super) const SIZE: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Turn(Stream),
    /// The last one: from here on the output is counted and not kept, and this is how much was said so far.
    Counted,
}

/// The lengths of both streams when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) kind: Kind,
    pub(super) lengths: [u64; 2],
    /// How much had been lost before it came to us.
    pub(super) lost: u64,
}

impl Run {
    pub(super) fn to_bytes(self) -> [u8; SIZE] {
        let kind: u64 = match self.kind {
            Kind::Turn(Stream::Stdout) => 1,
            Kind::Turn(Stream::Stderr) => 2,
            Kind::Counted => 3,
        };
        let mut bytes = [0; SIZE];
        let words = [kind, self.lengths[0], self.lengths[1], self.lost];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; SIZE]) -> io::Result<Self> {
        let mut words = [0; 4];
        for (word, place) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(place.try_into().unwrap_or_default());
        }
        let kind = match words[0] {
            1 => Kind::Turn(Stream::Stdout),
            2 => Kind::Turn(Stream::Stderr),
            3 => Kind::Counted,
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "a run of an output has no known kind")),
        };
        Ok(Self { kind, lengths: [words[1], words[2]], lost: words[3] })
    }
}

/// What is there to be read: so many turns, and how long the streams are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Whole {
    pub(super) turns: u64,
    pub(super) kept: [u64; 2],
}

/// What comes first of the bytes at and behind `at` in either stream. Lengths only grow from turn to turn, so the turn is
/// found by halving, wherever a reader stands.
pub(super) fn next(
    run: impl Fn(u64) -> io::Result<Run>,
    whole: Whole,
    at: [u64; 2],
) -> io::Result<Option<(Stream, Range<u64>)>> {
    let end = |turn: u64| if turn + 1 < whole.turns { run(turn + 1).map(|run| run.lengths) } else { Ok(whole.kept) };
    let turn = first(whole.turns, |turn| end(turn).map(|end| end[0] > at[0] || end[1] > at[1]))?;
    if turn == whole.turns {
        return Ok(None);
    }
    let (begin, end) = (run(turn)?, end(turn)?);
    let Kind::Turn(stream) = begin.kind else { return Ok(None) };
    let of = stream as usize;
    Ok(Some((stream, begin.lengths[of].max(at[of])..end[of])))
}

/// The first for which it holds, where it holds for all behind it too; `count` where for none.
pub(super) fn first(count: u64, holds: impl Fn(u64) -> io::Result<bool>) -> io::Result<u64> {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle)? { high = middle } else { low = middle + 1 }
    }
    Ok(low)
}
