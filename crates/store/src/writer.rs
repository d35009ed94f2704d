//! The one thread that writes. Whatever waits becomes one transaction, and is answered after its commit.

use std::{ops::Deref, path::Path, thread};

use rusqlite::Connection;
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::{
    Entry, Error, Result,
    checkpoints::Checkpoints,
    fault::{self, Point},
    ledger::Tips,
};

/// How many may wait. Who comes then waits for a place.
const QUEUE: usize = 1024;
/// How many become one transaction.
const BATCH: usize = 256;

pub(crate) struct Writer {
    queue: mpsc::Sender<Job>,
    ended: Mutex<Option<oneshot::Receiver<()>>>,
}

/// Inside a transaction.
pub(crate) struct Tx<'a> {
    db: &'a Connection,
    tips: &'a mut Tips,
}

impl Deref for Tx<'_> {
    type Target = Connection;
    fn deref(&self) -> &Connection {
        self.db
    }
}

impl Tx<'_> {
    pub(crate) fn append(&mut self, entry: Entry) -> Result<()> {
        self.tips.append(self.db, entry)
    }
}

enum Job {
    Run(Box<dyn Op>),
    Close,
}

/// What one caller wants written, and the caller.
trait Op: Send {
    /// Inside the transaction. The result is kept for the answer.
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<()>;
    /// When it is known what became of the transaction.
    fn answer(self: Box<Self>, fate: Result<()>);
}

struct Asked<F, T> {
    work: Option<F>,
    result: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

impl<F, T> Op for Asked<F, T>
where
    F: FnOnce(&mut Tx<'_>) -> Result<T> + Send,
    T: Send,
{
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(work) = self.work.take() else { return Ok(()) };
        let result = work(tx);
        let told = result.as_ref().map(drop).map_err(Error::clone);
        self.result = Some(result);
        told
    }

    fn answer(self: Box<Self>, fate: Result<()>) {
        let result = match fate {
            Ok(()) => self.result.unwrap_or_else(|| Err(closed())),
            Err(error) => Err(error),
        };
        // Nobody may listen any more; it is written all the same.
        let _ = self.reply.send(result);
    }
}

impl Writer {
    pub(crate) fn start(db: Connection, path: &Path) -> Result<Self> {
        let (queue, jobs) = mpsc::channel(QUEUE);
        let (end, ended) = oneshot::channel();
        let desk = Desk { db, tips: Tips::default(), checkpoints: Checkpoints::start(path)? };
        thread::Builder::new().name("store-writer".into()).spawn(move || {
            desk.work(jobs);
            let _ = end.send(());
        })?;
        Ok(Self { queue, ended: Mutex::new(Some(ended)) })
    }

    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Tx<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let asked = Asked { work: Some(work), result: None, reply };
        self.queue.send(Job::Run(Box::new(asked))).await.map_err(|_| closed())?;
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// What was asked before is written; what is asked later is refused.
    pub(crate) async fn close(&self) {
        let _ = self.queue.send(Job::Close).await;
        if let Some(ended) = self.ended.lock().await.take() {
            let _ = ended.await;
        }
    }
}

fn closed() -> Error {
    Error::Unavailable("the store is closed".into())
}

/// What the thread has.
struct Desk {
    db: Connection,
    tips: Tips,
    checkpoints: Checkpoints,
}

impl Desk {
    fn work(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut batch = Vec::with_capacity(BATCH);
        // Nobody waits for others to come: one alone is committed at once, and who comes meanwhile is the next batch.
        while let Some(first) = jobs.blocking_recv() {
            let mut next = Some(first);
            loop {
                match next {
                    Some(Job::Run(op)) => batch.push(op),
                    Some(Job::Close) => jobs.close(),
                    None => break,
                }
                next = if batch.len() < BATCH { jobs.try_recv().ok() } else { None };
            }
            if !batch.is_empty() {
                self.commit(&mut batch);
            }
        }
    }

    fn commit(&mut self, batch: &mut Vec<Box<dyn Op>>) {
        let mut failures = vec![None; batch.len()];
        let committed = self.transaction(batch, &mut failures);
        match committed {
            Ok(()) => self.tips.keep(),
            Err(_) => {
                // Some errors have rolled it back already.
                if !self.db.is_autocommit() {
                    let _ = self.db.execute_batch("ROLLBACK");
                }
                self.tips.undo_to(0);
            }
        }
        for (op, failure) in batch.drain(..).zip(failures) {
            op.answer(failure.map_or_else(|| committed.clone(), Err));
        }
        self.checkpoints.after_commit(&self.db);
    }

    /// Ok: committed, but for the ops that failed by themselves.
    fn transaction(&mut self, batch: &mut [Box<dyn Op>], failures: &mut [Option<Error>]) -> Result<()> {
        self.statement("BEGIN IMMEDIATE")?;
        if let [op] = batch {
            // Alone it needs no savepoint: what it did is all there is to undo.
            return match op.run(&mut Tx { db: &self.db, tips: &mut self.tips }) {
                Ok(()) => self.end(),
                Err(error) => Err(error),
            };
        }
        for (op, failure) in batch.iter_mut().zip(failures) {
            *failure = self.attempt(op.as_mut())?.err();
        }
        self.end()
    }

    fn end(&self) -> Result<()> {
        fault::at(Point::CommitReady);
        self.statement("COMMIT")?;
        fault::at(Point::CommitDone);
        Ok(())
    }

    /// The inner error takes this op alone, the outer one the whole transaction.
    fn attempt(&mut self, op: &mut dyn Op) -> Result<Result<()>> {
        self.statement("SAVEPOINT op")?;
        let mark = self.tips.mark();
        let result = op.run(&mut Tx { db: &self.db, tips: &mut self.tips });
        if let Err(error) = &result {
            self.tips.undo_to(mark);
            if self.db.is_autocommit() {
                // A full disk or a failed read ends the transaction, and with it what others wrote in it.
                return Err(error.clone());
            }
            self.statement("ROLLBACK TO op")?;
        }
        self.statement("RELEASE op")?;
        Ok(result)
    }

    fn statement(&self, sql: &str) -> Result<()> {
        self.db.prepare_cached(sql)?.execute([])?;
        Ok(())
    }
}
