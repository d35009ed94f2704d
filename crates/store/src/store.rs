//! The front page of the store: how it is opened and closed, and the two ways to the database.

use std::{
    collections::HashMap,
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use cabana_model::{SandboxId, Time};
use rusqlite::Connection;

use crate::{Outputs, Result, desk::Tx, reads::Reads, schema, writer::Writer};

/// What an acknowledged write survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// A kill -9 of every process of ours.
    Kill,
    /// A power cut too: each commit waits for the disk.
    Full,
}

/// Cheap to clone: all clones are one store.
#[derive(Clone)]
pub struct Store(Arc<Parts>);

struct Parts {
    writer: Writer,
    reads: Arc<Reads>,
    outputs: Outputs,
    touched: Touched,
}

impl Store {
    /// Blocks. Makes what is missing.
    pub fn open(db_dir: &Path, outputs_dir: &Path, durability: Durability) -> Result<Self> {
        // What was said and asked is nobody else's business.
        for dir in [db_dir, outputs_dir] {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        let path = db_dir.join("cabana.db");
        let db = schema::open_writer(&path, durability)?;
        Ok(Self(Arc::new(Parts {
            writer: Writer::start(db, &path, durability)?,
            reads: Arc::new(Reads::open(&path)?),
            outputs: Outputs::new(outputs_dir, durability),
            touched: Touched::default(),
        })))
    }

    /// Ends when everything that was asked before is written.
    pub async fn close(self) {
        self.0.reads.close();
        self.0.writer.close().await;
    }

    pub fn outputs(&self) -> &Outputs {
        &self.0.outputs
    }

    /// Answers when what was acknowledged cannot be lost any more.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        op: impl FnOnce(&mut Tx<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.0.writer.run(op).await
    }

    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        match self.0.writer.is_folded().await? {
            true => self.0.reads.clone().run(read).await,
            false => self.0.writer.look(read).await,
        }
    }

    pub(crate) fn touched(&self) -> &Touched {
        &self.0.touched
    }
}

/// When each sandbox was last written down as used.
#[derive(Default)]
pub(crate) struct Touched(Mutex<HashMap<SandboxId, Time>>);

impl Touched {
    pub(crate) fn is_news(&self, physical: &SandboxId, at: Time) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match last.get_mut(physical) {
            // A clock that was set back is news too: the next second must not wait until the old one comes again.
            Some(last) if (0..1000).contains(&(at.as_millisecond() - last.as_millisecond())) => false,
            Some(last) => {
                *last = at;
                true
            }
            None => last.insert(physical.clone(), at).is_none(),
        }
    }

    pub(crate) fn forget(&self, physical: &SandboxId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(physical);
    }
}
