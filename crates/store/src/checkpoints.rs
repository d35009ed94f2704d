//! Moves what was committed from the write-ahead log into the database, beside the writer.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::mpsc::{SyncSender, sync_channel},
    thread::{self, JoinHandle},
    time::Duration,
};

use rusqlite::Connection;

use crate::{Result, schema};

/// Commits between two checkpoints: one writes from a few pages of 4 KiB to some hundred.
const EVERY: u32 = 32;

/// A log that is always written to never comes to its end and so never begins anew. At this size the writer stops for the
/// little that is left to move.
const LONG: u64 = 64 << 20;

pub(crate) struct Checkpoints {
    wal: PathBuf,
    commits: u32,
    /// Until it is dropped.
    thread: Option<(SyncSender<()>, JoinHandle<()>)>,
}

impl Checkpoints {
    pub(crate) fn start(database: &Path) -> Result<Self> {
        let db = schema::open_checkpointer(database)?;
        let (poke, poked) = sync_channel(1);
        let thread = thread::Builder::new().name("store-checkpoint".into()).spawn(move || {
            while poked.recv().is_ok() {
                // What it could not move, the next one moves.
                let _ = checkpoint(&db, "PASSIVE");
            }
        })?;
        let mut wal = database.as_os_str().to_owned();
        wal.push("-wal");
        Ok(Self { wal: wal.into(), commits: 0, thread: Some((poke, thread)) })
    }

    /// `db` is the writer's.
    pub(crate) fn after_commit(&mut self, db: &Connection) {
        self.commits += 1;
        if !self.commits.is_multiple_of(EVERY) {
            return;
        }
        if fs::metadata(&self.wal).is_ok_and(|wal| wal.len() > LONG) {
            // Without patience: a long read would hold up every commit. Then it is tried again later.
            let _ = db.busy_timeout(Duration::ZERO);
            let _ = checkpoint(db, "TRUNCATE");
            let _ = db.busy_timeout(schema::PATIENCE);
        } else if let Some((poke, _)) = &self.thread {
            // One that waits already will see this commit too.
            let _ = poke.try_send(());
        }
    }
}

/// A closed store holds no file open.
impl Drop for Checkpoints {
    fn drop(&mut self) {
        if let Some((poke, thread)) = self.thread.take() {
            drop(poke);
            let _ = thread.join();
        }
    }
}

fn checkpoint(db: &Connection, mode: &str) -> rusqlite::Result<()> {
    db.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |_| Ok(()))
}
