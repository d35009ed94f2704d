//! The connections that read. Each serves one reader at a time, on a thread that may block.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use cabana_model::Tenant;
use rusqlite::Connection;
use tokio::sync::Semaphore;

use crate::{Error, Result, TenantPermits, schema};

/// More would only compete for the cores.
const MOST: usize = 8;
/// So that long lists of one tenant leave turns to the others.
const OF_TENANT: usize = 3;

pub(crate) struct Reads {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    turns: Arc<Semaphore>,
    turns_of_tenants: TenantPermits,
    glancing: Mutex<()>,
}

impl Reads {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let first = schema::open_reader(path)?;
        let (idle, turns) = (Mutex::new(vec![first]), Arc::new(Semaphore::new(MOST)));
        let turns_of_tenants = TenantPermits::new(OF_TENANT);
        Ok(Self { path: path.into(), idle, turns, turns_of_tenants, glancing: Mutex::default() })
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

    /// Of what is one tenant's: only so many of its reads are under way, and what else it asks for waits behind them.
    pub(crate) async fn run_for<T: Send + 'static>(
        self: Arc<Self>,
        tenant: Tenant,
        read: impl FnOnce(&Connection, &Tenant) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let turn = self.turns_of_tenants.acquire(&tenant).await;
        let read = move |db: &Connection| {
            let _turn = turn;
            read(db, &tenant)
        };
        self.run(read).await
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

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use tokio::{
        task::{JoinSet, yield_now},
        time::timeout,
    };

    use super::*;
    use crate::Durability;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn reads_of_one_tenant_leave_turns_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        drop(schema::open_writer(&path, Durability::Kill).unwrap());
        let reads = Arc::new(Reads::open(&path).unwrap());
        let [one, two] = ["one", "two"].map(|name| Tenant::new(name).unwrap());
        let (begun, began) = mpsc::channel();
        let mut ends = Vec::new();
        let mut slow = JoinSet::new();
        for _ in 0..3 * MOST {
            let (end, ended) = mpsc::channel::<()>();
            let begun = begun.clone();
            ends.push(end);
            slow.spawn(reads.clone().run_for(one.clone(), move |_, _| {
                begun.send(()).unwrap();
                let _ = ended.recv(); // until the test lets go
                Ok(())
            }));
        }
        for _ in 0..OF_TENANT {
            yield_now().await; // all of them have asked for a turn
            began.recv().unwrap();
        }
        let other = timeout(PATIENCE, reads.run_for(two, |_, tenant| Ok(tenant.to_string())));
        assert_eq!(other.await.expect("it need not wait for those of another tenant").unwrap(), "two");
        drop(ends);
        while let Some(read) = slow.join_next().await {
            read.unwrap().unwrap();
        }
        assert_eq!(began.try_iter().count(), 3 * MOST - OF_TENANT, "all of them had their turn");
    }
}
