//! The front page of the store: how it is opened and closed, and the two ways to the database.

use std::{
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use cabana_model::Tenant;
use rusqlite::Connection;

use crate::{Blobs, Error, Outputs, Reserve, Result, backup, desk::Tx, reads::Reads, schema, writer::Writer};

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
    blobs: Blobs,
    path: PathBuf,
}

impl Store {
    /// In folders of the data directory. Blocks. Makes what is missing; on a full disk with what was kept for that.
    pub fn open(data: &Path, durability: Durability) -> Result<Self> {
        loop {
            match Self::open_once(data, durability) {
                Err(Error::Unavailable(_)) if Reserve::of(data).give() => {}
                opened => return opened,
            }
        }
    }

    fn open_once(data: &Path, durability: Durability) -> Result<Self> {
        let [db, outputs, blobs, drafts] = ["db", "outputs", "blobs", "drafts"].map(|name| data.join(name));
        // What was said and asked is nobody else's business.
        for dir in [&db, &outputs, &blobs, &drafts] {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        backup::sweep(&db)?;
        let blobs = Blobs::at(&blobs, durability);
        blobs.sweep()?;
        let path = db.join("cabana.db");
        let writer = schema::open_writer(&path, durability)?;
        Ok(Self(Arc::new(Parts {
            writer: Writer::start(writer, &path, durability)?,
            reads: Arc::new(Reads::open(&path)?),
            outputs: Outputs::at(&outputs, durability),
            blobs,
            path,
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

    pub fn blobs(&self) -> &Blobs {
        &self.0.blobs
    }

    pub(crate) fn database(&self) -> &Path {
        &self.0.path
    }

    /// Whether the disk is full, and the store lives on what it keeps for that: what frees something can be recorded still.
    pub async fn is_short(&self) -> bool {
        self.0.writer.is_short().await
    }

    /// Whether it can be read and written to.
    pub async fn check(&self) -> Result<()> {
        self.glance(|db| Ok(db.query_row("SELECT EXISTS (SELECT 1 FROM ledger)", [], |_| Ok(()))?)).await?;
        self.check_writable().await
    }

    /// Tried only where a write has failed, and with as much as a call may take: a word may fit on a full
    /// disk.
    async fn check_writable(&self) -> Result<()> {
        const LENGTH: usize = 64 << 10;
        if !self.0.writer.is_away() {
            return Ok(());
        }
        let tried = self.write(|tx| {
            let sql = "INSERT INTO told (name, value) VALUES ('tried', ?1) ON CONFLICT (name) DO UPDATE SET value = ?1";
            tx.execute(sql, &[&".".repeat(LENGTH)])?;
            tx.execute("DELETE FROM told WHERE name = 'tried'", &[])
        });
        tried.await?;
        self.0.writer.clear_away();
        Ok(())
    }

    /// Whether the database has all that was acknowledged.
    pub(crate) async fn is_folded(&self) -> Result<bool> {
        self.0.writer.is_folded().await
    }

    /// Answers when what was acknowledged cannot be lost any more.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        op: impl FnOnce(&mut Tx<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.0.writer.run(None, op).await
    }

    /// The same, for one tenant.
    pub(crate) async fn write_for<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        op: impl FnOnce(&mut Tx<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.0.writer.run(Some(tenant), op).await
    }

    /// Of a few rows that an index finds: at once where that is possible, and beside a write that is still open nothing has to
    /// be committed for it.
    pub(crate) async fn glance<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        match self.at_once(read) {
            Ok(seen) => seen,
            Err(read) => self.read(read).await,
        }
    }

    /// The same, for one tenant.
    pub(crate) async fn glance_for<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        read: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        match self.at_once(read) {
            Ok(seen) => seen,
            Err(read) => self.read_for(tenant, |db, _| read(db)).await,
        }
    }

    /// `Err`: nothing was done.
    fn at_once<T: Send, F>(&self, read: F) -> std::result::Result<Result<T>, F>
    where
        F: FnOnce(&Connection) -> Result<T> + Send,
    {
        match self.0.writer.glance(read) {
            Err(read) if !self.0.writer.is_unfolded() => self.0.reads.glance(read),
            glanced => glanced,
        }
    }

    /// Of rows of one tenant, of which there may be many.
    pub(crate) async fn read_for<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        read: impl FnOnce(&Connection, &Tenant) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let tenant = tenant.clone();
        match self.is_folded().await? {
            true => self.0.reads.clone().run_for(tenant, read).await,
            false => self.0.writer.look(move |db| read(db, &tenant)).await,
        }
    }

    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        match self.is_folded().await? {
            true => self.0.reads.clone().run(read).await,
            false => self.0.writer.look(read).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use tokio::{task::JoinSet, time::timeout};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn the_store_is_checked_while_the_default_tenant_reads_all_that_it_may() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Durability::Kill).unwrap();
        let (begun, began) = mpsc::channel();
        let (mut ends, mut slow) = (Vec::new(), JoinSet::new());
        for _ in 0..10 {
            let (end, ended) = mpsc::channel::<()>();
            let (store, begun) = (store.clone(), begun.clone());
            ends.push(end);
            slow.spawn(async move {
                let tenant = Tenant::default();
                let read = move |_: &Connection, _: &Tenant| {
                    begun.send(()).unwrap();
                    let _ = ended.recv(); // until the test lets go
                    Ok(())
                };
                store.read_for(&tenant, read).await.unwrap();
            });
        }
        tokio::task::yield_now().await; // all of them have asked for a turn
        began.recv().unwrap();
        timeout(PATIENCE, store.check()).await.expect("it need not wait for reads of a tenant").unwrap();
        drop(ends);
        slow.join_all().await;
    }
}
