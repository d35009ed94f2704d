//! The connections that read. Each serves one reader at a time, on a thread that may block.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rusqlite::Connection;
use tokio::sync::Semaphore;

use crate::{Error, Result, schema};

/// More would only compete for the cores.
const MOST: usize = 8;

pub(crate) struct Reads {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    turns: Arc<Semaphore>,
    glancing: Mutex<()>,
}

impl Reads {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let first = schema::open_reader(path)?;
        let (idle, turns) = (Mutex::new(vec![first]), Arc::new(Semaphore::new(MOST)));
        Ok(Self { path: path.into(), idle, turns, glancing: Mutex::default() })
    }

    /// Those that rest; one that is at work is closed with the store.
    pub(crate) fn close(&self) {
        self.idle().clear();
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// At once, on whatever thread this is: of a few rows that an index finds, going elsewhere takes longer than the read. One at
    /// a time, so that a slow disk holds up one thread and no more. `Err`: nothing was done, since others are at it.
    pub(crate) fn glance<T, F: FnOnce(&Connection) -> Result<T>>(&self, read: F) -> std::result::Result<Result<T>, F> {
        let Ok(_alone) = self.glancing.try_lock() else { return Err(read) };
        let Some(db) = self.idle().pop() else { return Err(read) };
        let seen = read(&db);
        self.idle().push(db);
        Ok(seen)
    }

    pub(crate) async fn run<T: Send + 'static>(
        self: Arc<Self>,
        read: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let turn = self.turns.clone().acquire_owned().await;
        let work = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let idle = self.idle().pop();
            let db = idle.map_or_else(|| schema::open_reader(&self.path), Ok)?;
            let answer = read(&db);
            self.idle().push(db);
            answer
        });
        work.await.unwrap_or_else(|_| Err(Error::Unavailable("a read of the store broke off".into())))
    }
}
