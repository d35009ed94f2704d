//! The output of one command: one who writes, any number who read.

use std::{
    any::Any,
    io,
    ops::Range,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use sha2::Digest;
use tokio::sync::{OwnedMutexGuard, watch};

use super::{
    Chunk, Room, Stream, blocking,
    files::{self, Files},
    follow,
    now::{Held, Keeping, Now},
    runs::{self, Kind, Run},
};
use crate::{
    Durability, Error, Inline, Result,
    fault::{self, Point},
};

/// How much stays in memory.
const SMALL: u64 = 32 << 10;
/// How many turns do: they take as much room.
const SMALL_TURNS: u64 = SMALL / runs::SIZE as u64;

/// Whoever follows it hears no more when it is dropped.
pub struct Log(Arc<Shared>);

pub(super) struct Shared {
    base: PathBuf,
    cap: u64,
    durability: Durability,
    room: Room,
    now: Mutex<Now>,
    /// Held by the push that is at it, also on its way to the disk.
    turn: Arc<tokio::sync::Mutex<()>>,
    changed: watch::Sender<()>,
    /// What whoever opened it holds as long as somebody reads it.
    _held: Option<Box<dyn Any + Send + Sync>>,
}

/// What there is to say of an output that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// When no file was made.
    pub inline: Option<Inline>,
    /// How much the command said.
    pub stdout: u64,
    pub stderr: u64,
    /// How much of it is not kept, with what was lost before it came here.
    pub left_out: u64,
    /// SHA-256 of the SHA-256 of stdout and that of stderr, each as far as it is kept.
    pub digest: [u8; 32],
}

impl Log {
    pub(super) fn new(base: PathBuf, cap: u64, durability: Durability, room: Room) -> Self {
        Self::holding(base, cap, durability, room, None)
    }

    fn holding(
        base: PathBuf,
        cap: u64,
        durability: Durability,
        room: Room,
        held: Option<Box<dyn Any + Send + Sync>>,
    ) -> Self {
        Self(Arc::new(Shared {
            base,
            cap,
            durability,
            room,
            now: Mutex::default(),
            turn: Arc::default(),
            changed: watch::Sender::new(()),
            _held: held,
        }))
    }

    pub(super) fn resume(base: PathBuf, cap: u64, durability: Durability, room: Room) -> io::Result<Self> {
        let log = Self::new(base, cap, durability, room);
        if let Some(files) = Files::open(&log.0.base)? {
            log.0.now().restore(files)?;
        }
        Ok(log)
    }

    pub(super) fn ended(base: PathBuf, held: Box<dyn Any + Send + Sync>) -> io::Result<Option<Self>> {
        let Some(files) = Files::open_to_read(&base)? else { return Ok(None) };
        let log = Self::holding(base, 0, Durability::Kill, Room::default(), Some(held));
        let mut now = log.0.now();
        now.open(files)?;
        now.ended = true;
        drop(now);
        Ok(Some(log))
    }

    /// In the order in which the command said it. An error means that nothing more is kept, unless it is pushed again: the
    /// first one says why, and so does each follower; later pushes are counted. Whoever drops the future drops nothing of the
    /// bytes.
    pub async fn push(&self, stream: Stream, bytes: Bytes) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let turn = self.0.turn.clone().lock_owned().await;
        if self.0.hold(stream, &bytes)? {
            return Ok(());
        }
        let shared = self.0.clone();
        match tokio::task::spawn_blocking(move || shared.write(turn, stream, &bytes)).await {
            Ok(written) => written,
            Err(_) => Err(Error::Unavailable("the writing of an output broke off".into())),
        }
    }

    /// Once more what the last push could not keep.
    pub async fn push_again(&self, stream: Stream, bytes: Bytes) -> Result<()> {
        {
            let mut now = self.0.now();
            if let Keeping::Failed(_) = now.keeping {
                now.keeping = Keeping::All;
                now.said[stream as usize] -= bytes.len() as u64;
            }
        }
        self.push(stream, bytes).await
    }

    /// So many bytes of the command are gone before they came here: the position goes on behind them.
    pub fn lost(&self, bytes: u64) {
        self.0.now().lost += bytes;
    }

    /// Of stdout and stderr, as the command said it: also what is not kept.
    pub fn lengths(&self) -> (u64, u64) {
        self.0.now().said.into()
    }

    /// Where to go on after a kill -9: so much is safe from it. Zero while it is only in memory.
    pub fn position(&self) -> u64 {
        let now = self.0.now();
        let safe = match (&now.held, &now.keeping) {
            (Held::Memory(_), _) => return 0,
            (Held::Files(_), Keeping::Counting) => now.said,
            (Held::Files(_), _) => now.whole.kept,
        };
        safe[0] + safe[1] + now.lost
    }

    /// After the last push. Followers end when they have everything. Of one that was taken up as ended the digest is in its
    /// record alone: here it is that of nothing.
    pub fn end(&self) -> Ended {
        let mut now = self.0.now();
        now.ended = true;
        let ended = now.result();
        drop(now);
        self.0.changed.send_replace(());
        ended
    }

    /// Before its record is written: what is kept is as safe then as the record will be.
    pub async fn settle(&self) -> Result<()> {
        let files = match (&self.0.now().held, self.0.durability) {
            (Held::Files(files), Durability::Full) => files.clone(),
            // In memory it goes into the record itself, and what was given to the kernel survives us.
            (Held::Memory(_), _) | (_, Durability::Kill) => return Ok(()),
        };
        let base = self.0.base.clone();
        blocking(move || files.sync(&base)).await
    }

    /// Everything at and behind these offsets, in the order in which it was said; ends when the log has ended. Holds no
    /// more than one piece, and holds nobody up.
    pub fn follow(
        self: &Arc<Self>,
        stdout: u64,
        stderr: u64,
    ) -> impl futures_util::Stream<Item = Result<Chunk>> + Send + use<> {
        follow::follow(self.0.clone(), [stdout, stderr])
    }

    /// What is kept of this range, as one piece.
    pub async fn read(&self, stream: Stream, range: Range<u64>) -> Result<Bytes> {
        self.part(stream, |_| range).await
    }

    /// The first bytes.
    pub async fn head(&self, stream: Stream, bytes: u64) -> Result<Bytes> {
        self.part(stream, |_| 0..bytes).await
    }

    /// The last bytes that are kept.
    pub async fn tail(&self, stream: Stream, bytes: u64) -> Result<Bytes> {
        self.part(stream, |kept| kept.saturating_sub(bytes)..kept).await
    }

    async fn part(&self, stream: Stream, range: impl FnOnce(u64) -> Range<u64>) -> Result<Bytes> {
        let (files, range) = {
            let now = self.0.now();
            let kept = now.whole.kept[stream as usize];
            let range = range(kept);
            let range = range.start.min(kept)..range.end.min(kept);
            match &now.held {
                Held::Memory(memory) => return Ok(memory.read(stream, range)),
                Held::Files(files) => (files.clone(), range),
            }
        };
        blocking(move || files.read(stream, range)).await
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.0.now().ended = true;
        self.0.changed.send_replace(());
    }
}

impl Shared {
    pub(super) fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Takes it into memory, if it fits there, or only counts it, if the disk failed. `false`: it is for the disk.
    fn hold(&self, stream: Stream, bytes: &[u8]) -> Result<bool> {
        let mut now = self.now();
        if now.ended {
            return Err(Error::Refused("the output has ended".into()));
        }
        if let Keeping::Failed(_) = now.keeping {
            now.said[stream as usize] += bytes.len() as u64;
            return Ok(true);
        }
        let (turn, kept) = (now.turn(stream), now.whole.kept);
        let small = kept[0] + kept[1] + bytes.len() as u64 <= SMALL.min(self.cap);
        let Held::Memory(memory) = &mut now.held else { return Ok(false) };
        if !small || memory.runs.len() as u64 >= SMALL_TURNS {
            return Ok(false);
        }
        memory.runs.extend(turn);
        memory.streams[stream as usize].extend_from_slice(bytes);
        now.digests[stream as usize].update(bytes);
        now.keep(stream, turn, bytes.len() as u64);
        now.said[stream as usize] += bytes.len() as u64;
        drop(now);
        self.changed.send_replace(());
        Ok(true)
    }

    fn write(&self, turn: OwnedMutexGuard<()>, stream: Stream, bytes: &[u8]) -> Result<()> {
        let written = self.store(stream, bytes).map_err(Error::from);
        let mut now = self.now();
        if let Err(error) = &written {
            now.said[stream as usize] += bytes.len() as u64;
            now.keeping = Keeping::Failed(error.clone());
        }
        drop(now);
        self.changed.send_replace(());
        drop(turn);
        written
    }

    /// As much of it as the cap allows, and nothing while the disk is nearly full. The run of a turn first, then its bytes, then readers may know.
    fn store(&self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let files = self.files()?;
        let of = stream as usize;
        let (turn, whole, counting, mut digest) = {
            let now = self.now();
            (now.turn(stream), now.whole, now.keeping == Keeping::Counting, now.digests[of].clone())
        };
        let room = match turn {
            _ if counting || !self.room.is_left() => 0,
            // Streams that take turns at every byte would fill the disk with runs.
            Some(_) if whole.turns >= (self.cap / runs::SIZE as u64).max(SMALL_TURNS) => 0,
            _ => self.cap.saturating_sub(whole.kept[0] + whole.kept[1]),
        };
        let keep = &bytes[..bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
        if !keep.is_empty() {
            if let Some(turn) = turn {
                files.set_run(whole.turns, turn)?;
            }
            fault::at(Point::LogTurned);
            files.append(stream, whole.kept[of], keep)?;
            fault::at(Point::LogWritten);
            digest.update(keep);
            let mut now = self.now();
            now.digests[of] = digest;
            now.keep(stream, turn, keep.len() as u64);
        }
        let (all, mut said, lost, turns) = {
            let now = self.now();
            (keep.len() == bytes.len(), now.said, now.lost, now.whole.turns)
        };
        said[of] += bytes.len() as u64;
        if !all {
            // What is kept is kept: without the note, the next server counts once more.
            let _ = files.set_run(turns, Run { kind: Kind::Counted, lengths: said, lost });
        }
        let mut now = self.now();
        now.said = said;
        if !all {
            now.keeping = Keeping::Counting;
        }
        Ok(())
    }

    /// Where it is written to; what is in memory goes there first.
    fn files(&self) -> io::Result<Arc<Files>> {
        let memory = match &self.now().held {
            Held::Files(files) => return Ok(files.clone()),
            Held::Memory(memory) => memory.clone(),
        };
        let made = Files::create(&self.base, &memory).map(Arc::new);
        match &made {
            Ok(files) => self.now().held = Held::Files(files.clone()),
            // What fits in memory is kept there, and half a file tells nobody anything.
            Err(_) => drop(files::remove(&self.base)),
        }
        made
    }
}
