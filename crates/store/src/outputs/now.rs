//! The state of one output.

use std::{io, ops::Range, sync::Arc};

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::{
    Ended, Stream,
    files::Files,
    runs::{Kind, Run, Whole},
};
use crate::{Error, Inline};

/// Never locked while the disk is waited for.
#[derive(Default)]
pub(super) struct Now {
    pub(super) held: Held,
    pub(super) whole: Whole,
    pub(super) said: [u64; 2],
    pub(super) lost: u64,
    /// The stream whose turn it is, and what was lost when it began.
    pub(super) last: Option<(Stream, u64)>,
    pub(super) digests: [Sha256; 2],
    pub(super) keeping: Keeping,
    pub(super) ended: bool,
}

pub(super) enum Held {
    Memory(Memory),
    Files(Arc<Files>),
}

#[derive(Clone, Default)]
pub(super) struct Memory {
    pub(super) streams: [Vec<u8>; 2],
    pub(super) runs: Vec<Run>,
}

#[derive(Clone, Default, PartialEq)]
pub(super) enum Keeping {
    #[default]
    All,
    /// The cap is reached: what comes is counted.
    Counting,
    /// The disk failed: what comes is counted. A hole in the middle would be worse than an end.
    Failed(Error),
}

impl Now {
    /// The run to note before these bytes, if another turn begins.
    pub(super) fn turn(&self, stream: Stream) -> Option<Run> {
        let goes_on = self.last == Some((stream, self.lost));
        (!goes_on).then_some(Run { kind: Kind::Turn(stream), lengths: self.whole.kept, lost: self.lost })
    }

    pub(super) fn keep(&mut self, stream: Stream, turn: Option<Run>, bytes: u64) {
        if let Some(turn) = turn {
            self.whole.turns += 1;
            self.last = Some((stream, turn.lost));
        }
        self.whole.kept[stream as usize] += bytes;
    }

    /// What is in the files.
    pub(super) fn open(&mut self, files: Files) -> io::Result<()> {
        let whole = files.whole()?;
        if let Some(last) = whole.turns.checked_sub(1) {
            let run = files.run(last)?;
            self.lost = run.lost;
            self.last = if let Kind::Turn(stream) = run.kind { Some((stream, run.lost)) } else { None };
        }
        self.said = whole.kept;
        if let Some(counted) = files.counted()? {
            (self.said, self.lost, self.keeping) = (counted.lengths, counted.lost, Keeping::Counting);
        }
        self.whole = whole;
        self.held = Held::Files(Arc::new(files));
        Ok(())
    }

    /// And so that it can be written further.
    pub(super) fn restore(&mut self, files: Files) -> io::Result<()> {
        const PIECE: u64 = 256 << 10;
        let (whole, counted) = (files.whole()?, files.counted()?);
        files.cut(whole, counted)?;
        for (stream, digest) in [Stream::Stdout, Stream::Stderr].into_iter().zip(&mut self.digests) {
            let (mut at, end) = (0, whole.kept[stream as usize]);
            while at < end {
                let piece = at..end.min(at + PIECE);
                at = piece.end;
                digest.update(files.read(stream, piece)?);
            }
        }
        self.open(files)
    }

    pub(super) fn result(&self) -> Ended {
        let inline = match &self.held {
            Held::Memory(Memory { streams: [stdout, stderr], .. }) => {
                Some(Inline { stdout: Bytes::copy_from_slice(stdout), stderr: Bytes::copy_from_slice(stderr) })
            }
            Held::Files(_) => None,
        };
        let mut digest = Sha256::new();
        for stream in &self.digests {
            digest.update(stream.clone().finalize());
        }
        let [stdout, stderr] = self.said;
        let kept = self.whole.kept[0] + self.whole.kept[1];
        Ended { inline, stdout, stderr, left_out: stdout + stderr - kept + self.lost, digest: digest.finalize().into() }
    }
}

impl Default for Held {
    fn default() -> Self {
        Self::Memory(Memory::default())
    }
}

impl Memory {
    pub(super) fn read(&self, stream: Stream, range: Range<u64>) -> Bytes {
        // In memory are at most a few KiB, so each offset is a usize.
        let range = range.start as usize..range.end as usize;
        self.streams[stream as usize].get(range).map(Bytes::copy_from_slice).unwrap_or_default()
    }

    pub(super) fn run(&self, at: u64) -> io::Result<Run> {
        self.runs.get(at as usize).copied().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}
