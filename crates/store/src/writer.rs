//! Who writes. What is asked is run in a transaction that stays open for a little while, put into the journal, and answered
//! then; the transaction is committed with all that came meanwhile.
//!
//! Whoever asks does the work on its own thread where that takes some microseconds: where the transaction is open already,
//! and no disk is waited for. All else is done by a thread that may block.

use std::{
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use cabana_model::Tenant;
use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::{
    Durability, Error, Result, TenantPermits,
    desk::{Desk, Op, Tx},
};

/// How many may wait. Who comes then waits for a place.
const QUEUE: usize = 1024;
/// How many become one record of the journal.
const BATCH: usize = 256;
/// So that very many of one tenant leave room to others.
const OF_TENANT: usize = BATCH / 2;
/// How long a transaction is open for others.
const OPEN: Duration = Duration::from_millis(50);
/// When to try again what the disk refused.
const AGAIN: Duration = Duration::from_millis(200);
/// When to look whether a full disk has room again.
const ROOM: Duration = Duration::from_secs(1);

pub(crate) struct Writer {
    shared: Arc<Shared>,
    queue: SyncSender<Job>,
    /// As many as the queue has room for, beside the one fold: nobody blocks on it.
    places: Arc<Semaphore>,
    turns_of_tenants: TenantPermits,
    /// Each write waits for the disk, so nobody does it in passing.
    waits: bool,
}

struct Shared {
    /// Gone when the store is closed.
    desk: Mutex<Option<Desk>>,
    /// The transaction is open, and the desk is not the thread's for longer.
    handy: AtomicBool,
    /// Who waits for the next fold. While there are some, one fold is in the queue.
    folds: Mutex<Vec<oneshot::Sender<bool>>>,
    /// Something acknowledged is not in the database.
    unfolded: AtomicBool,
    /// A write found no disk that takes it, and since then none was tried that is as long as most are.
    away: AtomicBool,
    /// The store lives on what it keeps for a full disk.
    short: AtomicBool,
}

struct Job {
    what: What,
    /// Both are its own and not the asker's, who may be gone before it is taken out of the queue.
    _turn: Option<OwnedSemaphorePermit>,
    _place: Option<OwnedSemaphorePermit>,
}

enum What {
    Run(Box<dyn Op>),
    Fold,
    Look(Box<dyn Op>),
    Close(oneshot::Sender<()>),
}

struct Asked<F, T> {
    work: Option<F>,
    result: Option<Result<T>>,
    reply: Option<oneshot::Sender<Result<T>>>,
}

impl<F, T> Asked<F, T> {
    fn outcome(&mut self, fate: Result<()>) -> Result<T> {
        fate.and_then(|()| self.result.take().unwrap_or_else(|| Err(closed())))
    }
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

    fn answer(mut self: Box<Self>, fate: Result<()>) {
        let outcome = self.outcome(fate);
        // Nobody may listen any more; it is written all the same.
        let _ = self.reply.take().map(|reply| reply.send(outcome));
    }
}

impl Writer {
    pub(crate) fn start(db: Connection, path: &Path, durability: Durability) -> Result<Self> {
        let desk = Desk::open(db, path, durability)?;
        let desk_is_short = desk.is_short();
        let shared = Arc::new(Shared {
            desk: Mutex::new(Some(desk)),
            handy: AtomicBool::new(false),
            folds: Mutex::default(),
            unfolded: AtomicBool::new(false),
            away: AtomicBool::new(false),
            short: AtomicBool::new(desk_is_short),
        });
        let (queue, jobs) = sync_channel(QUEUE + 1);
        let thread = Thread { shared: shared.clone(), jobs, due: None };
        thread::Builder::new().name("store-writer".into()).spawn(move || thread.work())?;
        let waits = durability == Durability::Full;
        let (places, turns_of_tenants) = (Arc::new(Semaphore::new(QUEUE)), TenantPermits::new(OF_TENANT));
        Ok(Self { shared, queue, places, turns_of_tenants, waits })
    }

    /// Answers when it is in the journal. Of one tenant only so many wait there, and what else it asks for waits behind them.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        tenant: Option<&Tenant>,
        work: impl FnOnce(&mut Tx<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let mut asked = Asked { work: Some(work), result: None, reply: None };
        if let Some(fate) = self.in_passing(&mut asked) {
            return asked.outcome(fate);
        }
        let turn = match tenant {
            Some(tenant) => self.turns_of_tenants.acquire(tenant).await,
            None => None,
        };
        let (reply, answer) = oneshot::channel();
        asked.reply = Some(reply);
        self.send(What::Run(Box::new(asked)), turn).await?;
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// `None`: nothing was done.
    fn in_passing(&self, op: &mut dyn Op) -> Option<Result<()>> {
        let mut at_hand = self.at_hand()?;
        let desk = at_hand.as_mut()?;
        let mut failure = [None];
        let fate = desk.run(&mut [op], &mut failure);
        self.shared.tell(Some(desk));
        let [failure] = failure;
        Some(failure.map_or(fate, Err))
    }

    /// For a reader of a few rows: what is open stays open, and has all that was acknowledged. `Err`: nothing was done.
    pub(crate) fn glance<T: Send, F>(&self, read: F) -> std::result::Result<Result<T>, F>
    where
        F: FnOnce(&Connection) -> Result<T> + Send,
    {
        let Some(mut at_hand) = self.at_hand() else { return Err(read) };
        let Some(desk) = at_hand.as_mut() else { return Err(read) };
        let work = |tx: &mut Tx<'_>| read(tx.reads());
        let mut asked = Asked { work: Some(work), result: None, reply: None };
        let fate = desk.look(&mut asked);
        self.shared.tell(Some(desk));
        Ok(asked.outcome(fate))
    }

    /// The desk, where it is there in microseconds.
    fn at_hand(&self) -> Option<MutexGuard<'_, Option<Desk>>> {
        if self.waits || !self.shared.handy.load(Ordering::Acquire) {
            return None;
        }
        let desk = self.shared.desk();
        desk.as_ref().is_some_and(Desk::is_handy).then_some(desk)
    }

    /// Whether the database has everything that was acknowledged. Brings it there, if the disk allows.
    pub(crate) async fn is_folded(&self) -> Result<bool> {
        if !self.is_unfolded() {
            return Ok(true);
        }
        self.fold().await
    }

    /// However many ask, it is done once for all of them.
    async fn fold(&self) -> Result<bool> {
        let (reply, folded) = oneshot::channel();
        self.ask_for_fold(reply);
        folded.await.map_err(|_| closed())
    }

    fn ask_for_fold(&self, reply: oneshot::Sender<bool>) {
        let mut folds = self.shared.folds();
        folds.push(reply);
        if folds.len() == 1 && self.queue.try_send(Job { what: What::Fold, _turn: None, _place: None }).is_err() {
            folds.clear();
        }
    }

    /// Whether something that was acknowledged is not in the database yet.
    pub(crate) fn is_unfolded(&self) -> bool {
        self.shared.unfolded.load(Ordering::Acquire)
    }

    pub(crate) fn is_away(&self) -> bool {
        self.shared.away.load(Ordering::Acquire)
    }

    pub(crate) fn clear_away(&self) {
        self.shared.away.store(false, Ordering::Release);
    }

    /// Whether the store lives on what it keeps for a full disk. The disk is looked at before that is said.
    pub(crate) async fn is_short(&self) -> bool {
        if self.shared.short.load(Ordering::Acquire) {
            let _ = self.fold().await;
        }
        self.shared.short.load(Ordering::Acquire)
    }

    /// For a reader, where the database lacks something.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let work = |tx: &mut Tx<'_>| read(tx.reads());
        self.send(What::Look(Box::new(Asked { work: Some(work), result: None, reply: Some(reply) })), None).await?;
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    async fn send(&self, what: What, turn: Option<OwnedSemaphorePermit>) -> Result<()> {
        let place = match self.places.clone().try_acquire_owned() {
            Ok(place) => place,
            Err(_) => self.places.clone().acquire_owned().await.map_err(|_| closed())?,
        };
        self.queue.try_send(Job { what, _turn: turn, _place: Some(place) }).map_err(|_| closed())
    }

    /// What was asked before is written; what is asked later is refused.
    pub(crate) async fn close(&self) {
        let (reply, ended) = oneshot::channel();
        if self.send(What::Close(reply), None).await.is_ok() {
            let _ = ended.await;
        }
    }
}

fn closed() -> Error {
    Error::Unavailable("the store is closed".into())
}

impl Shared {
    fn desk(&self) -> MutexGuard<'_, Option<Desk>> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn folds(&self) -> MutexGuard<'_, Vec<oneshot::Sender<bool>>> {
        self.folds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How things stand, before anybody hears an answer.
    fn tell(&self, desk: Option<&Desk>) {
        self.unfolded.store(desk.is_some_and(Desk::is_unfolded), Ordering::Release);
        self.handy.store(desk.is_some_and(Desk::is_handy), Ordering::Release);
        self.away.fetch_or(desk.is_some_and(Desk::is_away), Ordering::AcqRel);
        self.short.store(desk.is_some_and(Desk::is_short), Ordering::Release);
    }
}

/// The one that may block.
struct Thread {
    shared: Arc<Shared>,
    jobs: Receiver<Job>,
    /// When to fold, if there is something.
    due: Option<Instant>,
}

impl Thread {
    fn work(mut self) {
        loop {
            let first = match self.due {
                None => self.jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(due) => self.jobs.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            match first {
                Ok(job) => self.take(job),
                Err(RecvTimeoutError::Timeout) => self.fold(),
                Err(RecvTimeoutError::Disconnected) => return self.close(None),
            }
            // Those who come all the time must not keep it open.
            if self.due.is_some_and(|due| due <= Instant::now()) {
                self.fold();
            }
        }
    }

    /// Whatever waits is done at once. Nobody waits for others to come.
    fn take(&mut self, first: Job) {
        let (mut ops, mut next) = (Vec::new(), Some(first));
        while let Some(job) = next.take() {
            match job.what {
                What::Run(op) => ops.push(op),
                other => {
                    self.run(&mut ops);
                    self.other(other);
                }
            }
            if ops.len() < BATCH {
                next = self.jobs.try_recv().ok();
            }
        }
        self.run(&mut ops);
    }

    fn other(&mut self, what: What) {
        match what {
            What::Run(_) => {}
            What::Fold => {
                let waiting = std::mem::take(&mut *self.shared.folds());
                self.fold();
                let is_folded = !self.shared.unfolded.load(Ordering::Acquire);
                for reply in waiting {
                    let _ = reply.send(is_folded);
                }
            }
            What::Look(mut op) => {
                let fate = self.at_desk(|desk| desk.look(op.as_mut()));
                op.answer(fate.unwrap_or_else(|| Err(closed())));
            }
            What::Close(reply) => self.close(Some(reply)),
        }
    }

    fn run(&mut self, ops: &mut Vec<Box<dyn Op>>) {
        if ops.is_empty() {
            return;
        }
        let mut failures = vec![None; ops.len()];
        let fate = self.at_desk(|desk| {
            let mut ops: Vec<&mut dyn Op> = ops.iter_mut().map(|op| op.as_mut() as &mut dyn Op).collect();
            desk.run(&mut ops, &mut failures)
        });
        let fate = fate.unwrap_or_else(|| Err(closed()));
        for (op, failure) in ops.drain(..).zip(failures) {
            op.answer(failure.map_or_else(|| fate.clone(), Err));
        }
    }

    fn fold(&mut self) {
        self.due = None;
        self.at_desk(|desk| {
            let _ = desk.fold(); // what it cannot take now it takes later
            desk.renew_reserve();
        });
    }

    /// `None`: the store is closed.
    fn at_desk<T>(&mut self, work: impl FnOnce(&mut Desk) -> T) -> Option<T> {
        self.shared.handy.store(false, Ordering::Release);
        let mut desk = self.shared.desk();
        let done = desk.as_mut().map(work);
        self.shared.tell(desk.as_ref());
        let wait = match desk.as_ref() {
            Some(desk) if desk.is_open() => Some(OPEN),
            Some(desk) if desk.is_unfolded() => Some(AGAIN),
            Some(desk) if desk.is_short() => Some(ROOM),
            _ => None,
        };
        drop(desk);
        self.due = wait.map(|wait| self.due.unwrap_or_else(|| Instant::now() + wait));
        done
    }

    fn close(&mut self, reply: Option<oneshot::Sender<()>>) {
        // What cannot be folded now is in the journal for the next one who opens it.
        self.fold();
        self.shared.handy.store(false, Ordering::Release);
        drop(self.shared.desk().take());
        self.due = None;
        let _ = reply.map(|reply| reply.send(()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{atomic::AtomicUsize, mpsc};

    use tokio::{task::JoinSet, time::timeout};

    use super::*;
    use crate::schema;

    const PATIENCE: Duration = Duration::from_secs(60);

    struct Stage {
        writer: Arc<Writer>,
        held: JoinSet<()>,
        _dir: tempfile::TempDir,
    }

    impl Stage {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("db");
            let db = schema::open_writer(&path, Durability::Kill).unwrap();
            let writer = Arc::new(Writer::start(db, &path, Durability::Kill).unwrap());
            Self { writer, held: JoinSet::new(), _dir: dir }
        }

        /// The thread is at work until what this returns is dropped.
        async fn hold(&mut self) -> mpsc::Sender<()> {
            let (begun, began) = oneshot::channel();
            let (end, ended) = mpsc::channel::<()>();
            let writer = self.writer.clone();
            let write = move |_: &mut Tx<'_>| {
                let _ = begun.send(());
                let _ = ended.recv();
                Ok(())
            };
            self.held.spawn(async move { writer.run(None, write).await.unwrap() });
            timeout(PATIENCE, began).await.expect("it comes to its turn").unwrap();
            end
        }
    }

    /// In the order in which they were written.
    #[tokio::test]
    async fn very_many_writes_of_one_tenant_let_those_of_another_in() {
        let mut stage = Stage::new();
        let [one, two] = ["one", "two"].map(|name| Tenant::new(name).unwrap());
        let (done, order) = mpsc::channel();
        let held = stage.hold().await;
        let (mut writes, asked) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
        for tenant in std::iter::repeat_n(&one, 3 * QUEUE).chain([&two]) {
            let (writer, tenant, done, asked) = (stage.writer.clone(), tenant.clone(), done.clone(), asked.clone());
            writes.spawn(async move {
                asked.fetch_add(1, Ordering::Relaxed); // and it asks before anything else runs
                let told = tenant.to_string();
                let write = move |_: &mut Tx<'_>| {
                    done.send(told).unwrap();
                    Ok(())
                };
                writer.run(Some(&tenant), write).await.unwrap();
            });
        }
        while asked.load(Ordering::Relaxed) < writes.len() {
            tokio::task::yield_now().await;
        }
        drop(held);
        timeout(PATIENCE, writes.join_all()).await.expect("all of them have their turn");
        drop(done);
        let order: Vec<_> = order.iter().collect();
        assert_eq!(order.len(), 3 * QUEUE + 1);
        assert_eq!(order.iter().position(|tenant| tenant == "two"), Some(OF_TENANT));
    }

    #[tokio::test]
    async fn a_write_whose_asker_is_gone_has_its_turn_until_it_is_taken() {
        let mut stage = Stage::new();
        let tenant = Tenant::new("one").unwrap();
        let held = stage.hold().await;
        for _ in 0..3 * OF_TENANT {
            let write = stage.writer.run(Some(&tenant), |_| Ok(()));
            let _ = timeout(Duration::ZERO, write).await;
        }
        assert_eq!(stage.writer.places.available_permits(), QUEUE - OF_TENANT);
        drop(held);
        timeout(PATIENCE, stage.writer.run(Some(&tenant), |_| Ok(()))).await.expect("it has its turn").unwrap();
    }

    #[tokio::test]
    async fn one_fold_is_in_the_queue_however_many_wait_for_it() {
        let mut stage = Stage::new();
        let held = stage.hold().await;
        stage.writer.shared.unfolded.store(true, Ordering::Release);
        let mut folds = JoinSet::new();
        for _ in 0..2 * QUEUE {
            let writer = stage.writer.clone();
            folds.spawn(async move { writer.is_folded().await.unwrap() });
        }
        let waiting = || stage.writer.shared.folds().len();
        let all = async {
            while waiting() < 2 * QUEUE {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, all).await.expect("all of them wait");
        drop(held);
        let folded = timeout(PATIENCE, folds.join_all()).await.expect("all of them are answered");
        assert!(folded.into_iter().all(|folded| folded));
        assert!(stage.writer.shared.folds().is_empty());
        stage.writer.close().await;
        stage.writer.shared.unfolded.store(true, Ordering::Release);
        assert!(stage.writer.is_folded().await.is_ok(), "a closed store has nothing left");
    }
}
