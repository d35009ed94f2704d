//! A sandbox's files from outside: `guest` does the work, on threads that have become the user.
//!
//! Each operation is one step on a thread that may block; what is small is opened, moved and closed in that one. What is
//! longer moves in chunks, a step each, so that a slow client holds no thread.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::{Buf, Bytes};
use cabana_guest::{Listing, Reader, Rooted, Walker, Watch, Writer};
use cabana_sandbox::{
    Alter, Depth, Error, FileInfo, Files, Hit, Read, Result, SandboxPath, Search, Stream, TreeItem, User, WatchBudget,
    WatchEvent, Write, WriteMode,
};
use futures_util::{StreamExt, TryStreamExt, stream};
use rustix::fs::OFlags;
use tokio::{
    io::unix::AsyncFd,
    sync::{Semaphore, mpsc},
    task::{JoinHandle, spawn_blocking},
};
use tokio_util::task::TaskTracker;

use crate::{
    disk,
    kernel::{mounts, readiness, thread_identity::ActingAs},
    lane::Lane,
    live::Live,
    open_files::{Closed, OpenFile, Walk},
    snapshot::{Entered, Gate},
};

const CHUNK: usize = 256 * 1024;

/// How much of a long body is written at once: what a step costs beside the writing must not show.
const WRITTEN_AT_ONCE: usize = 1024 * 1024;

/// Searches at once, of all sandboxes: each is a thread, and has patterns and lines in memory.
static SEARCHES: Semaphore = Semaphore::const_new(32);

pub(crate) struct EngineFiles {
    live: Arc<Live>,
    /// Entered for every change, so that none happens while a snapshot is taken.
    gate: Gate,
    user: Option<User>,
    /// Whether modes and owners are overridden, as root inside may, whoever the user is.
    by_root: bool,
}

/// Something open that ends with the sandbox, or with the mount that it is on, in whosever hands it is.
struct Held<T: Open> {
    thing: Mutex<Result<T, Closed>>,
    /// What it has not been told yet, since a guest may hold up the step that is under way on it.
    untold: Untold,
    path: SandboxPath,
    lane: Lane,
}

#[derive(Default)]
struct Untold {
    sandbox_ended: AtomicBool,
    mounts_changed: AtomicBool,
}

/// What a client may have open.
trait Open: Send + 'static {
    /// All that it has open inside.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    fn mounts_changed(&mut self) {}
}

impl Open for Reader {
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.as_fd()]
    }
}

impl Open for Writer {
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.as_fd()]
    }
}

impl Open for Listing {
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.as_fd()]
    }
}

impl Open for Walker {
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.descriptors().collect()
    }
}

impl Open for Watch {
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.as_fd()]
    }

    fn mounts_changed(&mut self) {
        Self::mounts_changed(self);
    }
}

impl<T: Open> OpenFile for Held<T> {
    fn close(&self) {
        self.untold.sandbox_ended.store(true, Ordering::Release);
        drop(self.try_lock());
    }

    fn close_on(&self, mount: u64, writing: bool) -> bool {
        let Some(mut thing) = self.try_lock() else { return false };
        let is_on_it = thing.as_ref().is_ok_and(|open| is_open_on(open, mount, writing));
        if is_on_it {
            self.close_as(&mut thing, Closed::MountChanged);
        }
        is_on_it
    }

    fn mounts_changed(&self) {
        self.untold.mounts_changed.store(true, Ordering::Release);
        drop(self.try_lock());
    }
}

fn is_open_on(open: &impl Open, mount: u64, writing: bool) -> bool {
    let may_write = |fd: &_| rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags & OFlags::RWMODE != OFlags::RDONLY);
    let is_there = |fd: &BorrowedFd<'_>| mounts::id(*fd).is_ok_and(|id| id == mount);
    open.descriptors().iter().any(|fd| is_there(fd) && (!writing || may_write(fd)))
}

impl<T: Open> Drop for Held<T> {
    fn drop(&mut self) {
        let thing = self.thing.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Ok(open) = std::mem::replace(thing, Err(Closed::SandboxEnded)) {
            self.lane.close(open);
        }
    }
}

impl<T: Open> Held<T> {
    fn new(live: &Live, path: &SandboxPath, thing: T) -> Arc<Self> {
        let (thing, untold) = (Mutex::new(Ok(thing)), Untold::default());
        let held = Arc::new(Self { thing, untold, path: path.clone(), lane: live.lane.clone() });
        let all: Arc<dyn OpenFile> = held.clone();
        live.hold(&all);
        held
    }

    fn lock(&self) -> MutexGuard<'_, Result<T, Closed>> {
        let mut thing = self.thing.lock().unwrap_or_else(PoisonError::into_inner);
        self.tell(&mut thing);
        thing
    }

    /// None while a step is under way.
    fn try_lock(&self) -> Option<MutexGuard<'_, Result<T, Closed>>> {
        let mut thing = match self.thing.try_lock() {
            Ok(thing) => thing,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.tell(&mut thing);
        Some(thing)
    }

    fn tell(&self, thing: &mut Result<T, Closed>) {
        let Ok(open) = thing else { return };
        if self.untold.mounts_changed.swap(false, Ordering::AcqRel) {
            open.mounts_changed();
        }
        if self.untold.sandbox_ended.load(Ordering::Acquire) {
            self.close_as(thing, Closed::SandboxEnded);
        }
    }

    fn close_as(&self, thing: &mut Result<T, Closed>, why: Closed) {
        self.lane.close(std::mem::replace(thing, Err(why)));
    }

    fn closed(&self, why: Closed) -> Error {
        match why {
            Closed::SandboxEnded => Error::Gone,
            Closed::MountChanged => Error::MountChanged(self.path.clone()),
        }
    }

    fn with<R>(&self, act: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        let done = act(self.lock().as_mut().map_err(|why| self.closed(*why))?);
        // Who could not have it meanwhile has left word.
        drop(self.try_lock());
        done
    }

    fn take(&self) -> Result<T> {
        std::mem::replace(&mut *self.lock(), Err(Closed::SandboxEnded)).map_err(|why| self.closed(why))
    }
}

async fn joined<T>(hop: JoinHandle<Result<T>>) -> Result<T> {
    hop.await.map_err(|error| Error::failed("a file operation", error)).flatten()
}

impl EngineFiles {
    pub(crate) fn new(live: Arc<Live>, gate: Gate, user: Option<User>) -> Self {
        Self { live, gate, user, by_root: false }
    }

    pub(crate) fn by_root(self) -> Self {
        Self { by_root: true, ..self }
    }

    /// On this thread, which may block.
    fn act_here<T>(&self, act: impl FnOnce(&Rooted) -> Result<T>) -> Result<T> {
        let root = self.live.root()?;
        let mut identity = self.live.identity(self.user.as_ref())?;
        identity.root |= self.by_root;
        let _acting = ActingAs::new(&identity);
        act(&root)
    }

    async fn act<T: Send + 'static>(&self, act: impl FnOnce(&Rooted) -> Result<T> + Send + 'static) -> Result<T> {
        let files = self.again();
        self.live.lane.step(move || files.act_here(act)).await
    }

    /// Before something is written: whether the sandbox may take so much more of the disk.
    async fn ask(&self, bytes: usize, entries: u64) -> Result<()> {
        self.live.disk.ask(bytes as u64, entries, disk::measured(&self.live)).await
    }

    /// The same for what changes something. The thread leaves the gate when it is done, also if nobody waits for it.
    async fn change<T: Send + 'static>(&self, act: impl FnOnce(&Rooted) -> Result<T> + Send + 'static) -> Result<T> {
        let entered: Entered = self.gate.enter().await;
        self.act(move |root| {
            let _entered = entered;
            act(root)
        })
        .await
    }

    /// What is given batch after batch, a step each. The first comes with the call, so that a refusal is one of the call.
    async fn batches<W: Open, T: Send + 'static>(
        &self,
        dir: &SandboxPath,
        begin: impl FnOnce(&Rooted, &SandboxPath) -> Result<W> + Send + 'static,
        next: fn(&mut W) -> Result<Option<T>>,
    ) -> Result<Stream<T>> {
        let (dir, live) = (dir.clone(), self.live.clone());
        let (first, source) = self
            .act(move |root| {
                let mut source = begin(root, &dir)?;
                let first = next(&mut source)?;
                Ok((first, Held::new(&live, &dir, source)))
            })
            .await?;
        let rest = stream::try_unfold((self.again(), source), move |(files, source)| async move {
            let held = source.clone();
            let batch = files.act(move |_| held.with(next)).await?;
            Ok(batch.map(|batch| (batch, (files, source))))
        });
        match first {
            Some(first) => Ok(stream::iter([Ok(first)]).chain(rest).boxed()),
            None => Ok(stream::empty().boxed()),
        }
    }

    async fn watch_for(
        &self,
        dir: &SandboxPath,
        depth: Depth,
        budget: Option<Arc<dyn WatchBudget>>,
    ) -> Result<Stream<WatchEvent>> {
        let (dir, live) = (dir.clone(), self.live.clone());
        let (watch, ready) = self
            .act(move |root| {
                let watch: Watch = root.watch_within(&dir, depth, budget)?;
                let ready = watch.as_fd().try_clone_to_owned().map_err(|error| Error::failed("watching", error))?;
                Ok((Held::new(&live, &dir, watch), ready))
            })
            .await?;
        let ready = readiness::watch(ready).map_err(|error| Error::failed("watching", error))?;
        let watching = Watching { files: self.again(), watch, ready, told: VecDeque::new() };
        Ok(stream::try_unfold(watching, |mut watching| async { Ok(Some((watching.next().await?, watching))) }).boxed())
    }

    fn again(&self) -> Self {
        Self { live: self.live.clone(), gate: self.gate.clone(), user: self.user.clone(), by_root: self.by_root }
    }
}

#[async_trait]
impl Files for EngineFiles {
    async fn stat(&self, path: &SandboxPath) -> Result<FileInfo> {
        let path = path.clone();
        self.act(move |root| root.stat(&path)).await
    }

    async fn list(&self, dir: &SandboxPath) -> Result<Stream<Vec<FileInfo>>> {
        self.batches(dir, |root, dir| root.list(dir), Listing::next_batch).await
    }

    async fn read(&self, path: &SandboxPath, what: Read) -> Result<(FileInfo, Stream<Bytes>)> {
        let opened = path.clone();
        let (info, chunks, reader) = self
            .act(move |root| {
                let (info, mut reader) = root.read(&opened, what)?;
                let first = reader.next_chunk()?;
                // A short one is most likely the last, which only another read tells.
                let second =
                    if first.as_ref().is_some_and(|first| first.len() < CHUNK) { reader.next_chunk()? } else { None };
                let more = first.as_ref().is_some_and(|first| first.len() >= CHUNK) || second.is_some();
                let chunks: Vec<Bytes> = first.into_iter().chain(second).collect();
                Ok((info, chunks, more.then_some(reader)))
            })
            .await?;
        let start = stream::iter(chunks.into_iter().map(Ok));
        match reader {
            None => Ok((info, start.boxed())),
            Some(reader) => {
                let reader = Held::new(&self.live, path, reader);
                Ok((info, start.chain(read_on(self.live.lane.clone(), reader)).boxed()))
            }
        }
    }

    async fn write(&self, path: &SandboxPath, how: Write, mut body: Stream<Bytes>) -> Result<FileInfo> {
        if how.len.is_some_and(|len| len > how.cap) {
            return Err(Error::TooLarge { cap: how.cap }); // before the body, which may be long in coming
        }
        let path = path.clone();
        let (first, ended) = gather(&mut body).await?;
        self.ask(length(&first), 1).await?;
        if ended {
            let whole = move |root: &Rooted| {
                let mut writer: Writer = root.write(&path, how)?;
                first.iter().try_for_each(|bytes| writer.put(bytes))?;
                writer.finish()
            };
            return self.change(whole).await;
        }
        let hides = matches!(how.mode, WriteMode::Replace | WriteMode::CreateNew);
        let mut hidden = Hiding { live: self.live.clone(), bytes: 0, hides };
        hidden.more(length(&first));
        let live = self.live.clone();
        let begin = move |root: &Rooted| {
            let mut writer = root.write(&path, how)?;
            first.iter().try_for_each(|bytes| writer.put(bytes))?;
            Ok(Held::new(&live, &path, writer))
        };
        let writer = self.change(begin).await?;
        loop {
            let (next, ended) = gather(&mut body).await?;
            self.ask(length(&next), 0).await?;
            hidden.more(length(&next));
            let held = writer.clone();
            self.change(move |_| held.with(|writer| next.iter().try_for_each(|bytes| writer.put(bytes)))).await?;
            if ended {
                return self.change(move |_| writer.take()?.finish()).await;
            }
        }
    }

    async fn alter(&self, step: Alter) -> Result<()> {
        match step {
            Alter::MakeDir(..) | Alter::Symlink { .. } => self.ask(0, 1).await?,
            _ => self.live.disk.touch(), // a change of what lies below copies it
        }
        self.change(move |root| root.alter(&step)).await
    }

    async fn watch(&self, dir: &SandboxPath, depth: Depth) -> Result<Stream<WatchEvent>> {
        self.watch_for(dir, depth, None).await
    }

    async fn watch_within(
        &self,
        dir: &SandboxPath,
        depth: Depth,
        budget: Arc<dyn WatchBudget>,
    ) -> Result<Stream<WatchEvent>> {
        self.watch_for(dir, depth, Some(budget)).await
    }

    async fn search(&self, what: Search) -> Result<Stream<Vec<Hit>>> {
        // First its own: who holds its own up takes no place from others.
        let turn = self.live.walk_lane.turn_in_time().await?;
        let Ok(permit) = tokio::time::timeout(what.budget, SEARCHES.acquire()).await else {
            return Err(Error::TimedOut("as many searches were under way all the time as there may be"));
        };
        let (send, receive) = mpsc::channel(2);
        let (failed, files, walk) = (send.clone(), self.again(), self.live.open_files.begin_walk());
        let search = spawn_blocking(move || {
            let _held = (turn, permit); // also when nobody reads any more
            let mut cut = false;
            let searched = files.act_here(|root| {
                root.search(&what, &mut |hits| {
                    if hits.is_empty() {
                        cut |= walk.is_cancelled();
                        return !cut && !send.is_closed();
                    }
                    let sent = walk.wait_for(send.send(Ok(hits)));
                    cut |= sent.is_none();
                    matches!(sent, Some(Ok(())))
                })
            });
            if cut { Err(Error::MountChanged(what.root)) } else { searched }
        });
        told(receive, failed, search, &self.live.tasks).await
    }

    async fn walk(&self, dir: &SandboxPath, what: cabana_sandbox::Walk) -> Result<Stream<Vec<TreeItem>>> {
        self.batches(dir, move |root, dir| root.walk(dir, what), Walker::next_batch).await
    }

    async fn pack(&self, dir: &SandboxPath) -> Result<Stream<Bytes>> {
        let (dir, files) = (dir.clone(), self.again());
        let (turn, walk) = (self.live.walk_lane.turn_in_time().await?, self.live.open_files.begin_walk());
        let cut = walk.clone();
        let pack = move |out: &mut dyn io::Write| {
            let _turn = turn;
            let packed = files.act_here(|root| root.pack(&dir, out));
            packed.map_err(|error| if cut.is_cancelled() { Error::MountChanged(dir) } else { error })
        };
        from_thread(&self.live.tasks, Some(walk), pack).await
    }

    async fn unpack(&self, dir: &SandboxPath, tar: Stream<Bytes>) -> Result<()> {
        let (dir, files, asking) = (dir.clone(), self.again(), self.again());
        let (turn, entered) = (self.live.walk_lane.turn_in_time().await?, self.gate.enter().await);
        // The archive is not looked into here, but what comes out of it is hardly more than what it is.
        let tar = tar.and_then(move |part| {
            let asking = asking.again();
            async move { asking.ask(part.len(), 0).await.map(|()| part) }
        });
        let unpack = move |tar: &mut dyn io::Read| {
            let (_turn, _entered) = (turn, entered);
            files.act_here(|root| root.unpack(&dir, tar))
        };
        fed(tar.boxed(), unpack).await
    }
}

/// Gives a stream to something that reads and blocks, on a thread of its own.
pub(crate) async fn fed<T: Send + 'static>(
    mut body: Stream<Bytes>,
    eat: impl FnOnce(&mut dyn io::Read) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (send, receive) = mpsc::channel(2);
    let eating = spawn_blocking(move || eat(&mut FromStream { receive, rest: Bytes::new() }));
    let mut broken = None;
    while let Some(next) = body.next().await {
        // The reader is told of an error too: a body that breaks off must not look like one that ends.
        let end = next.is_err();
        let part = next.map_err(|error| broken = Some(error)).ok();
        if send.send(part).await.is_err() || end {
            break;
        }
    }
    drop(send);
    let done = joined(eating).await;
    broken.map_or(done, Err)
}

/// The bytes that something writes that blocks, on a thread of its own. If it is a walk, it can be ended.
pub(crate) async fn from_thread(
    tasks: &TaskTracker,
    walk: Option<Walk>,
    write: impl FnOnce(&mut dyn io::Write) -> Result<()> + Send + 'static,
) -> Result<Stream<Bytes>> {
    let (send, receive) = mpsc::channel(2);
    let failed = send.clone();
    let writing = spawn_blocking(move || {
        let mut out = io::BufWriter::with_capacity(CHUNK, ToStream { send, walk });
        write(&mut out)?;
        io::Write::flush(&mut out).map_err(|error| Error::failed("writing a stream", error))
    });
    told(receive, failed, writing, tasks).await
}

/// Hands over what comes through the channel, and at its end what became of the hop that filled it. A refusal at its
/// beginning is one of the call.
async fn told<T: Send + 'static>(
    mut receive: mpsc::Receiver<Result<T>>,
    failed: mpsc::Sender<Result<T>>,
    hop: JoinHandle<Result<()>>,
    tasks: &TaskTracker,
) -> Result<Stream<T>> {
    tasks.spawn(async move {
        if let Err(error) = joined(hop).await {
            let _ = failed.send(Err(error)).await;
        }
    });
    let Some(first) = receive.recv().await.transpose()? else { return Ok(stream::empty().boxed()) };
    let rest = stream::unfold(receive, |mut receive| async { receive.recv().await.map(|next| (next, receive)) });
    Ok(stream::iter([Ok(first)]).chain(rest).boxed())
}

/// Chunk after chunk.
fn read_on(lane: Lane, reader: Arc<Held<Reader>>) -> Stream<Bytes> {
    let chunks = stream::try_unfold((lane, reader), |(lane, reader)| async move {
        let next = reader.clone();
        let chunk = lane.step(move || next.with(Reader::next_chunk)).await?;
        Ok(chunk.map(|chunk| (chunk, (lane, reader))))
    });
    chunks.boxed()
}

fn length(parts: &[Bytes]) -> usize {
    parts.iter().map(Bytes::len).sum()
}

/// What a write has put into a file that has no name yet.
struct Hiding {
    live: Arc<Live>,
    bytes: u64,
    hides: bool,
}

impl Hiding {
    fn more(&mut self, bytes: usize) {
        if self.hides {
            self.live.disk.hide(bytes as u64);
            self.bytes += bytes as u64;
        }
    }
}

impl Drop for Hiding {
    fn drop(&mut self) {
        self.live.disk.show(self.bytes);
    }
}

/// As much of the body as is written at once, and whether that was all of it.
async fn gather(body: &mut Stream<Bytes>) -> Result<(Vec<Bytes>, bool)> {
    let (mut parts, mut length) = (Vec::new(), 0);
    while length < WRITTEN_AT_ONCE {
        match body.next().await {
            Some(part) => {
                let part = part?;
                length += part.len();
                parts.push(part);
            }
            None => return Ok((parts, true)),
        }
    }
    Ok((parts, false))
}

struct Watching {
    files: EngineFiles,
    watch: Arc<Held<Watch>>,
    ready: AsyncFd<OwnedFd>,
    told: VecDeque<WatchEvent>,
}

impl Watching {
    async fn next(&mut self) -> Result<WatchEvent> {
        loop {
            if let Some(event) = self.told.pop_front() {
                return Ok(event);
            }
            self.look().await?;
            if self.told.is_empty() {
                let mut guard = self.ready.readable().await.map_err(|error| Error::failed("watching", error))?;
                // Before the events are taken: one that comes in between makes it ready again.
                guard.clear_ready();
                drop(guard);
                self.look().await?;
            }
        }
    }

    async fn look(&mut self) -> Result<()> {
        let (files, watch) = (&self.files, self.watch.clone());
        let look = async {
            let looked = files.act(move |_| {
                let begun = Instant::now();
                let seen = watch.with(Watch::take)?;
                Ok((seen, begun.elapsed()))
            });
            match looked.await {
                Ok((seen, took)) => (Ok(seen), took),
                Err(error) => (Err(error), Duration::ZERO),
            }
        };
        self.told.extend(files.live.watch_time.spend(look).await?);
        Ok(())
    }
}

struct ToStream {
    send: mpsc::Sender<Result<Bytes>>,
    walk: Option<Walk>,
}

impl io::Write for ToStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let chunk = Ok(Bytes::copy_from_slice(bytes));
        let sent = match &self.walk {
            Some(walk) => walk.wait_for(self.send.send(chunk)).ok_or(io::ErrorKind::BrokenPipe)?,
            None => self.send.blocking_send(chunk),
        };
        sent.map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct FromStream {
    /// `None` in it: the body broke off.
    receive: mpsc::Receiver<Option<Bytes>>,
    rest: Bytes,
}

impl io::Read for FromStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.receive.blocking_recv() {
                Some(Some(next)) => self.rest = next,
                Some(None) => return Err(io::Error::other("the body broke off")),
                None => return Ok(0),
            }
        }
        let count = buffer.len().min(self.rest.len());
        self.rest.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}
