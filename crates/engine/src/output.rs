//! The output of one command: read from its pipes by whoever pulls, kept for a while for whoever comes later.
//!
//! There is one source and any number of readers. A reader that needs more than is kept becomes the one who takes from the
//! pipes; nothing is taken that nobody asked for, and that is the back-pressure. When the last reader goes away, the command
//! must neither be killed nor stand still, so a task of ours reads on.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use cabana_sandbox::{Error, Event, Exit, Output, Position, Result, Stream};
use futures_util::stream;
use tokio::{io::unix::AsyncFd, sync::watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    feed::Feed,
    lane::{self, Lane, SharedFd},
    left_behind::LeftBehind,
    live::Live,
    output_memory::{Counted, OutputMemory},
    output_rate::OutputRate,
    spool::{self, Spool},
};

/// How long a terminal that is still open is listened to after the end of its command.
const TERMINAL_GRACE: std::time::Duration = std::time::Duration::from_millis(100);

pub(crate) struct Log {
    kept: Mutex<Kept>,
    source: tokio::sync::Mutex<Source>,
    exited: watch::Receiver<Option<Exit>>,
    readers: AtomicUsize,
    tasks: TaskTracker,
    /// The sandbox lives on without us: what its commands say is not ours to take any more.
    left: CancellationToken,
    lane: Lane,
    rate: Arc<OutputRate>,
    left_behind: Arc<LeftBehind>,
    memory: Arc<OutputMemory>,
}

struct Kept {
    spool: Spool,
    counted: Counted,
    /// Set when all output before it was taken.
    exit: Option<Exit>,
}

pub(crate) type Source = Feed<AsyncFd<SharedFd>, Arc<AsyncFd<SharedFd>>>;

impl Log {
    pub(crate) fn new(source: Source, spool: Spool, exited: watch::Receiver<Option<Exit>>, live: &Live) -> Arc<Self> {
        // Of a command that ended before: then all of it is there.
        let exit = (*exited.borrow()).filter(|_| spool.is_sealed());
        let log = Arc::new(Self {
            kept: Mutex::new(Kept { spool, counted: Counted::default(), exit }),
            source: tokio::sync::Mutex::new(source),
            exited,
            readers: AtomicUsize::new(0),
            tasks: live.tasks.clone(),
            left: CancellationToken::new(),
            lane: live.lane.clone(),
            rate: live.output_rate.clone(),
            left_behind: live.left_behind.clone(),
            memory: live.output_memory.clone(),
        });
        log.count(&mut log.kept());
        if exit.is_some()
            && let Ok(mut source) = log.source.try_lock()
        {
            log.discard_the_rest(&mut source);
        }
        log
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, kept: &mut Kept) {
        self.memory.set(&mut kept.counted, kept.spool.size());
        kept.spool.set_short_of_memory(self.memory.is_short(kept.spool.kept()));
    }

    /// How the command ended, once all its output was taken.
    pub(crate) fn exit(&self) -> Option<Exit> {
        self.kept().exit
    }

    /// How much memory it takes.
    pub(crate) fn size(&self) -> u64 {
        self.kept().spool.size()
    }

    pub(crate) fn read(self: &Arc<Self>, from: Position) -> Reader {
        self.readers.fetch_add(1, Ordering::AcqRel);
        Reader { log: self.clone(), at: from, ended: false }
    }

    /// Reads on while nobody else does: a full pipe would hold the command up.
    pub(crate) fn keep_going(self: &Arc<Self>) {
        if self.readers.load(Ordering::Acquire) > 0 || self.exit().is_some() {
            return;
        }
        let log = self.clone();
        self.tasks.spawn(async move {
            // Until it ends, or until somebody listens again.
            while log.exit().is_none() && log.readers.load(Ordering::Acquire) == 0 && !log.left.is_cancelled() {
                let end = log.kept().spool.end();
                log.pull(end).await;
            }
        });
    }

    /// When it comes back, nothing more is taken.
    pub(crate) async fn leave(&self) {
        self.left.cancel();
        let mut source = self.source.lock().await;
        source.pipes.clear();
        source.terminal = None;
    }

    /// Takes one chunk, or learns that there will be none.
    async fn pull(&self, at: Position) {
        let mut source = self.source.lock().await;
        {
            let kept = self.kept();
            if kept.spool.end() > at || kept.exit.is_some() || self.left.is_cancelled() {
                return; // another reader was faster
            }
        }
        let taken = self.left.run_until_cancelled(self.next(&mut source)).await;
        if let Some(Some(exit)) = taken {
            let mut kept = self.kept();
            let _ = kept.spool.seal();
            kept.exit = Some(exit);
            drop(kept);
            self.discard_the_rest(&mut source);
        }
    }

    /// What comes from now on is not the command's.
    fn discard_the_rest(&self, source: &mut Source) {
        if source.terminal.take().is_some() {
            source.pipes.clear();
        }
        for (_, pipe) in source.pipes.drain(..) {
            let discard = self.left_behind.clone().discard(pipe, self.lane.clone(), self.rate.clone());
            let left = self.left.clone();
            self.tasks.spawn(async move { left.run_until_cancelled(discard).await });
        }
    }

    /// Waits for a chunk and takes it, or gives the exit when all was taken. Safe to drop at any await.
    async fn next(&self, source: &mut Source) -> Option<Exit> {
        let mut exited = self.exited.clone();
        loop {
            // Before the pipes are looked at: what they hold after the exit is all that there will be.
            let exit = *exited.borrow_and_update();
            if self.take(source).await {
                return None;
            }
            if let Some(exit) = exit {
                // A terminal hands over later what was written to it before.
                let late = source.terminal.is_some();
                if late && tokio::time::timeout(TERMINAL_GRACE, readable(source)).await.is_ok() {
                    continue;
                }
                return Some(exit);
            }
            tokio::select! {
                () = readable(source) => {}
                changed = exited.changed() => {
                    if changed.is_err() && exited.borrow().is_none() {
                        return Some(crate::exec::killed());
                    }
                }
            }
        }
    }

    /// The guest can hold the pipe's lock: so nobody else waits for ours meanwhile.
    async fn take(&self, source: &mut Source) -> bool {
        self.rate.wait().await;
        let _turn = self.lane.turn().await;
        lane::held_up(|| {
            source.take_by(|pipe, channel| {
                let into = self.kept().spool.before(pipe, channel)?;
                let Some(into) = into else { return Ok(0) };
                let taken = into.splice(pipe)?;
                self.rate.spend(taken);
                let mut kept = self.kept();
                let taken = kept.spool.after_taking(taken);
                self.count(&mut kept);
                taken
            })
        })
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.memory.set(&mut self.kept.get_mut().unwrap_or_else(PoisonError::into_inner).counted, 0);
    }
}

pub(crate) struct Reader {
    log: Arc<Log>,
    at: Position,
    ended: bool,
}

impl Reader {
    async fn next(&mut self) -> Option<Result<Event>> {
        loop {
            if self.ended {
                return None;
            }
            match self.look() {
                Some(Event::Exit(exit)) => {
                    self.ended = true;
                    return Some(Ok(Event::Exit(exit)));
                }
                Some(Event::Output(output)) => {
                    self.at = output.at + output.bytes.len() as u64;
                    return Some(Ok(Event::Output(output)));
                }
                None if self.log.left.is_cancelled() => {
                    self.ended = true;
                    return Some(Err(Error::Offline("the engine was closed, and the command goes on".into())));
                }
                None => self.log.pull(self.at).await,
            }
        }
    }

    /// What is there without waiting.
    fn look(&self) -> Option<Event> {
        let kept = self.log.kept();
        let Some(piece) = kept.spool.after(self.at) else { return kept.exit.map(Event::Exit) };
        // Under the lock: nothing is cut off while it is read.
        let bytes = spool::read(kept.spool.memory(), &piece).ok().filter(|bytes| !bytes.is_empty());
        match bytes {
            Some(bytes) => Some(Event::Output(Output { at: piece.at, channel: piece.channel, bytes: bytes.into() })),
            None => kept.exit.map(Event::Exit), // somebody who should not have got at it has cut it short
        }
    }

    pub(crate) fn events(self) -> Stream<Event> {
        Box::pin(stream::unfold(self, |mut reader| async { reader.next().await.map(|event| (event, reader)) }))
    }

    /// Of a command that has ended.
    pub(crate) fn outputs(self) -> Stream<Output> {
        Box::pin(stream::unfold(self, |mut reader| async {
            match reader.next().await? {
                Ok(Event::Output(output)) => Some((Ok(output), reader)),
                Ok(Event::Exit(_)) => None,
                Err(error) => Some((Err(error), reader)),
            }
        }))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.log.readers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.log.keep_going();
        }
    }
}

async fn readable(source: &Source) {
    match (&source.terminal, source.pipes.as_slice()) {
        (Some((master, _)), _) => until_readable(master).await,
        (None, [(_, one), (_, other)]) => {
            tokio::select! {
                () = until_readable(one) => {}
                () = until_readable(other) => {}
            }
        }
        (None, [(_, pipe)]) => until_readable(pipe).await,
        _ => std::future::pending().await,
    }
}

/// tokio knows that something was readable once; only the kernel knows whether it still is.
pub(crate) async fn until_readable(fd: &AsyncFd<SharedFd>) {
    if let Ok(mut ready) = fd.readable().await {
        let mut probe = [rustix::event::PollFd::new(fd.get_ref(), rustix::event::PollFlags::IN)];
        if rustix::event::poll(&mut probe, Some(&rustix::event::Timespec::default())) == Ok(0) {
            ready.clear_ready();
        }
    }
}

/// The pipes of a command: our ends, and those that go in.
pub(crate) fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|errno| Error::failed("making a pipe", io::Error::from(errno)))
}
