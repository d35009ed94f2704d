//! Readers of an output. Where one stands is two offsets, and nothing else: whatever it stood on before, it goes on.

use std::{collections::VecDeque, io, sync::Arc};

use futures_util::stream;
use tokio::sync::watch;

use super::{
    Chunk, blocking,
    files::Files,
    log::Shared,
    now::{Held, Keeping, Memory},
    runs::{self, Run, Whole},
};
use crate::{Error, Result};

/// How much is read at once, and in how many turns. Each of very many readers has as much in memory while its client takes nothing, and
/// what is made of it for that.
const PIECE: u64 = 8 << 10;
const TURNS: usize = 256;

struct Reader {
    log: Arc<Shared>,
    changes: watch::Receiver<()>,
    at: [u64; 2],
    ready: VecDeque<Chunk>,
    over: bool,
}

pub(super) fn follow(log: Arc<Shared>, at: [u64; 2]) -> impl futures_util::Stream<Item = Result<Chunk>> + Send + use<> {
    let changes = log.changes();
    let reader = Reader { log, changes, at, ready: VecDeque::new(), over: false };
    stream::unfold(reader, |mut reader| async move { Some((reader.next().await.transpose()?, reader)) })
}

/// What a reader finds when it looks.
enum Found {
    Chunks(VecDeque<Chunk>),
    Files(Arc<Files>, Whole),
    Failed(Error),
    Ended,
    /// Not yet.
    Nothing,
}

impl Reader {
    async fn next(&mut self) -> Result<Option<Chunk>> {
        while self.ready.is_empty() {
            if self.over {
                return Ok(None);
            }
            // Before it looks, so that what comes while it looks wakes it.
            self.changes.borrow_and_update();
            match self.look().inspect_err(|_| self.over = true)? {
                Found::Chunks(chunks) => self.ready = chunks,
                Found::Files(files, whole) => {
                    self.ready = from_files(files, whole, self.at).await.inspect_err(|_| self.over = true)?;
                }
                Found::Failed(error) => {
                    self.over = true;
                    return Err(error);
                }
                Found::Ended => self.over = true,
                Found::Nothing => self.over = self.changes.changed().await.is_err(),
            }
            forward(&mut self.at, &self.ready);
        }
        Ok(self.ready.pop_front())
    }

    fn look(&self) -> Result<Found> {
        let now = self.log.now();
        let more = now.whole.kept[0] > self.at[0] || now.whole.kept[1] > self.at[1];
        Ok(match (&now.held, &now.keeping) {
            (Held::Memory(memory), _) if more => Found::Chunks(from_memory(memory, now.whole, self.at)?),
            (Held::Files(files), _) if more => Found::Files(files.clone(), now.whole),
            (_, Keeping::Failed(error)) => Found::Failed(error.clone()),
            _ if now.ended => Found::Ended,
            _ => Found::Nothing,
        })
    }
}

fn from_memory(memory: &Memory, whole: Whole, at: [u64; 2]) -> io::Result<VecDeque<Chunk>> {
    pieces(|at| memory.run(at), |stream, range| Ok(memory.read(stream, range)), whole, at)
}

async fn from_files(files: Arc<Files>, whole: Whole, at: [u64; 2]) -> Result<VecDeque<Chunk>> {
    blocking(move || pieces(|at| files.run(at), |stream, range| files.read(stream, range), whole, at)).await
}

/// The next piece, turn by turn.
fn pieces(
    run: impl Fn(u64) -> io::Result<Run>,
    read: impl Fn(super::Stream, std::ops::Range<u64>) -> io::Result<bytes::Bytes>,
    whole: Whole,
    mut at: [u64; 2],
) -> io::Result<VecDeque<Chunk>> {
    let (mut chunks, mut left) = (VecDeque::new(), PIECE);
    while left > 0 && chunks.len() < TURNS {
        let Some((stream, range)) = runs::next(&run, whole, at)? else { break };
        let range = range.start..range.end.min(range.start + left);
        left -= range.end - range.start;
        at[stream as usize] = range.end;
        chunks.push_back(Chunk { stream, offset: range.start, bytes: read(stream, range)? });
    }
    Ok(chunks)
}

fn forward(at: &mut [u64; 2], chunks: &VecDeque<Chunk>) {
    for chunk in chunks {
        at[chunk.stream as usize] = chunk.offset + chunk.bytes.len() as u64;
    }
}
