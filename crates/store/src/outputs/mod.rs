//! What commands said, by the id of their call or task.
//!
//! Up to 32 KiB stay in memory and go into the row when the command ends. What says more gets three files: the raw bytes
//! of each stream, and `runs`, the order in which the streams took turns. A turn is noted before its first byte is
//! written, so whatever a kill -9 leaves can be read: the bytes that are there, in the order in which they were said.

mod files;
mod follow;
mod log;
mod now;
mod runs;
mod stored;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use uuid::Uuid;

pub use log::{Ended, Log};
pub use stored::{OutputFile, Stored};

use crate::{Durability, Error, Result};

/// Where a command says something. A terminal has the first only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// A piece of one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub stream: Stream,
    /// Of its first byte in its stream.
    pub offset: u64,
    pub bytes: Bytes,
}

pub struct Outputs {
    dir: PathBuf,
    durability: Durability,
    room: Room,
}

/// Whether the disk has room for what is said. It has, until a watcher says otherwise.
#[derive(Clone, Default)]
pub(crate) struct Room(Arc<OnceLock<Box<dyn Fn() -> bool + Send + Sync>>>);

impl Room {
    fn is_left(&self) -> bool {
        self.0.get().is_none_or(|is_left| is_left())
    }
}

impl Outputs {
    /// In a directory that is there.
    pub fn at(dir: &Path, durability: Durability) -> Self {
        Self { dir: dir.into(), durability, room: Room::default() }
    }

    /// What is said while there is no room is counted and not kept. The first who watches it decides.
    pub fn keep_while(&self, is_left: impl Fn() -> bool + Send + Sync + 'static) {
        let _ = self.room.0.set(Box::new(is_left));
    }

    /// Of a command that begins now. Nothing is on disk yet.
    pub fn begin(&self, id: Uuid, cap: u64) -> Arc<Log> {
        Arc::new(Log::new(self.base(id), cap, self.durability, self.room.clone()))
    }

    /// What a killed server left of it, cut to a whole state; an empty one where nothing is. Blocks.
    pub fn resume(&self, id: Uuid, cap: u64) -> io::Result<Arc<Log>> {
        Ok(Arc::new(Log::resume(self.base(id), cap, self.durability, self.room.clone())?))
    }

    /// A command that has ended, to be read and followed like one that runs. Nothing of it is changed, nor read ahead.
    /// `None`: it has no files. They are open as long as somebody reads, and so long it keeps what is held for them.
    pub async fn ended(&self, id: Uuid, held: impl Send + Sync + 'static) -> Result<Option<Arc<Log>>> {
        let base = self.base(id);
        blocking(move || Ok(Log::ended(base, Box::new(held))?.map(Arc::new))).await
    }

    /// What the files of these take together.
    pub async fn sizes(&self, ids: Vec<Uuid>) -> Result<u64> {
        let bases: Vec<PathBuf> = ids.into_iter().map(|id| self.base(id)).collect();
        blocking(move || bases.iter().try_fold(0, |sum, base| Ok(sum + files::size(base)?))).await
    }

    pub async fn remove(&self, id: Uuid) -> Result<()> {
        let base = self.base(id);
        blocking(move || files::remove(&base)).await
    }

    /// Without its ending. The last byte of an id is chance, so the folders fill evenly; the first ones are the time.
    fn base(&self, id: Uuid) -> PathBuf {
        self.dir.join(format!("{:02x}", id.as_bytes()[15])).join(id.simple().to_string())
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(Error::from),
        Err(_) => Err(Error::Unavailable("the work on an output broke off".into())),
    }
}
