//! The output of one command: read from its pipes by whoever pulls, kept for a while for whoever comes later.
//!
//! There is one source and any number of readers. A reader that needs more than is kept becomes the one who reads from the
//! pipes; nothing is read that nobody asked for, and that is the back-pressure. When the last reader goes away, the command
//! must neither be killed nor stand still, so a task of ours reads on.

use std::{
    collections::VecDeque,
    io,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::{Bytes, BytesMut};
use cabana_sandbox::{Channel, Error, Event, Exit, Output, Position, Result, Stream};
use futures_util::stream;
use tokio::{io::unix::AsyncFd, net::unix::pipe, sync::watch};
use tokio_util::task::TaskTracker;

/// How much of what was delivered can be read again.
const KEEP: usize = 256 * 1024;

/// As much as a pipe holds.
const CHUNK: usize = 64 * 1024;

/// How long a terminal that is still open is listened to after the end of its command.
const TERMINAL_GRACE: std::time::Duration = std::time::Duration::from_millis(100);

pub(crate) struct Log {
    kept: Mutex<Kept>,
    source: tokio::sync::Mutex<Source>,
    exited: watch::Receiver<Option<Exit>>,
    readers: AtomicUsize,
    tasks: TaskTracker,
}

#[derive(Default)]
struct Kept {
    chunks: VecDeque<Output>,
    bytes: usize,
    end: Position,
    /// Set when all output before it was read.
    exit: Option<Exit>,
}

/// Where the bytes come from.
pub(crate) enum Source {
    Pipes { stdout: Option<pipe::Receiver>, stderr: Option<pipe::Receiver> },
    Terminal(Option<Arc<AsyncFd<OwnedFd>>>),
}

impl Log {
    pub(crate) fn new(source: Source, exited: watch::Receiver<Option<Exit>>, tasks: TaskTracker) -> Arc<Self> {
        Arc::new(Self {
            kept: Mutex::default(),
            source: tokio::sync::Mutex::new(source),
            exited,
            readers: AtomicUsize::new(0),
            tasks,
        })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the command ended, once all its output was read.
    pub(crate) fn exit(&self) -> Option<Exit> {
        self.kept().exit
    }

    pub(crate) fn read(self: &Arc<Self>, from: Position) -> Reader {
        self.readers.fetch_add(1, Ordering::AcqRel);
        Reader { log: self.clone(), at: from, ended: false }
    }

    /// Pulls one chunk, or learns that there will be none.
    async fn pull(&self, at: Position) {
        let mut source = self.source.lock().await;
        {
            let kept = self.kept();
            if kept.end > at || kept.exit.is_some() {
                return; // another reader was faster
            }
        }
        let got = source.next(self.exited.clone()).await;
        let mut kept = self.kept();
        match got {
            Next::Bytes(channel, bytes) => kept.add(channel, bytes),
            Next::Exit(exit) => {
                kept.exit = Some(exit);
                drop(kept);
                self.discard_the_rest(&mut source);
            }
        }
    }

    /// A daemon that was left behind may write on; nobody listens, but a closed pipe would kill it.
    fn discard_the_rest(&self, source: &mut Source) {
        if let Source::Pipes { stdout, stderr } = source {
            for pipe in [stdout.take(), stderr.take()].into_iter().flatten() {
                self.tasks.spawn(discard(pipe));
            }
        }
    }
}

impl Kept {
    fn add(&mut self, channel: Channel, bytes: Bytes) {
        let output = Output { at: self.end, channel, bytes };
        self.end += output.bytes.len() as u64;
        self.bytes += output.bytes.len();
        self.chunks.push_back(output);
        while self.bytes > KEEP
            && self.chunks.len() > 1
            && let Some(oldest) = self.chunks.pop_front()
        {
            self.bytes -= oldest.bytes.len();
        }
    }

    /// What follows `at`, as far as it is kept. A later `at` in the answer is a gap.
    fn after(&self, at: Position) -> Option<Output> {
        let chunk = self.chunks.iter().find(|chunk| chunk.at + chunk.bytes.len() as u64 > at)?;
        let skip = at.saturating_sub(chunk.at) as usize;
        Some(Output { at: chunk.at + skip as u64, channel: chunk.channel, bytes: chunk.bytes.slice(skip..) })
    }
}

pub(crate) struct Reader {
    log: Arc<Log>,
    at: Position,
    ended: bool,
}

impl Reader {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if self.ended {
                return None;
            }
            let (output, exit) = {
                let kept = self.log.kept();
                (kept.after(self.at), kept.exit)
            };
            if let Some(output) = output {
                self.at = output.at + output.bytes.len() as u64;
                return Some(Event::Output(output));
            }
            if let Some(exit) = exit {
                self.ended = true;
                return Some(Event::Exit(exit));
            }
            self.log.pull(self.at).await;
        }
    }

    pub(crate) fn events(self) -> Stream<Event> {
        Box::pin(stream::unfold(self, |mut reader| async { reader.next().await.map(|event| (Ok(event), reader)) }))
    }

    /// Of a command that has ended.
    pub(crate) fn outputs(self) -> Stream<Output> {
        Box::pin(stream::unfold(self, |mut reader| async {
            match reader.next().await? {
                Event::Output(output) => Some((Ok::<_, Error>(output), reader)),
                Event::Exit(_) => None,
            }
        }))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.log.readers.fetch_sub(1, Ordering::AcqRel) == 1 && self.log.exit().is_none() {
            let (log, tasks) = (self.log.clone(), self.log.tasks.clone());
            tasks.spawn(async move {
                // Until it ends, or until somebody listens again.
                while log.exit().is_none() && log.readers.load(Ordering::Acquire) == 0 {
                    let end = log.kept().end;
                    log.pull(end).await;
                }
            });
        }
    }
}

enum Next {
    Bytes(Channel, Bytes),
    Exit(Exit),
}

impl Source {
    /// Safe to drop at any await: what was read is returned without another.
    async fn next(&mut self, mut exited: watch::Receiver<Option<Exit>>) -> Next {
        loop {
            // Before the pipes are looked at: what they hold after the exit is all that there will be.
            let exit = *exited.borrow_and_update();
            if let Some((channel, bytes)) = self.take() {
                return Next::Bytes(channel, bytes);
            }
            if let Some(exit) = exit {
                if let Some((channel, bytes)) = self.take_unseen() {
                    return Next::Bytes(channel, bytes);
                }
                // A terminal hands over later what was written to it before.
                let late = matches!(self, Self::Terminal(Some(_)));
                if late && tokio::time::timeout(TERMINAL_GRACE, self.readable()).await.is_ok() {
                    continue;
                }
                return Next::Exit(exit);
            }
            tokio::select! {
                () = self.readable() => {}
                changed = exited.changed() => {
                    if changed.is_err() && exited.borrow().is_none() {
                        return Next::Exit(crate::exec::killed());
                    }
                }
            }
        }
    }

    /// What is there now, without waiting.
    fn take(&mut self) -> Option<(Channel, Bytes)> {
        match self {
            Self::Pipes { stdout, stderr } => take_pipe(stdout)
                .map(|bytes| (Channel::Stdout, bytes))
                .or_else(|| take_pipe(stderr).map(|bytes| (Channel::Stderr, bytes))),
            Self::Terminal(master) => {
                let mut buffer = BytesMut::zeroed(CHUNK);
                match rustix::io::read(master.as_ref()?.get_ref(), &mut buffer[..]) {
                    Ok(0) | Err(rustix::io::Errno::IO) => *master = None, // nobody has the other side open any more
                    Ok(count) => {
                        buffer.truncate(count);
                        return Some((Channel::Terminal, buffer.freeze()));
                    }
                    Err(_) => {}
                }
                None
            }
        }
    }

    /// What a pipe holds though tokio was not told yet: the news of the exit came another way, and may have been faster.
    fn take_unseen(&mut self) -> Option<(Channel, Bytes)> {
        let Self::Pipes { stdout, stderr } = self else { return None };
        for (channel, pipe) in [(Channel::Stdout, stdout), (Channel::Stderr, stderr)] {
            let Some(open) = pipe else { continue };
            let mut buffer = BytesMut::zeroed(CHUNK);
            match rustix::io::read(&*open, &mut buffer[..]) {
                Ok(0) => *pipe = None,
                Ok(count) => {
                    buffer.truncate(count);
                    return Some((channel, shrunk(buffer)));
                }
                Err(_) => {}
            }
        }
        None
    }

    async fn readable(&mut self) {
        match self {
            Self::Pipes { stdout: Some(stdout), stderr: Some(stderr) } => {
                tokio::select! {
                    _ = stdout.readable() => {}
                    _ = stderr.readable() => {}
                }
            }
            Self::Pipes { stdout: Some(pipe), .. } | Self::Pipes { stderr: Some(pipe), .. } => {
                drop(pipe.readable().await);
            }
            Self::Terminal(Some(master)) => {
                if let Ok(mut guard) = master.readable().await {
                    // Only a read tells whether it is still so; `take` makes one, and readiness is asked for anew.
                    let mut probe = [rustix::event::PollFd::new(master.get_ref(), rustix::event::PollFlags::IN)];
                    if rustix::event::poll(&mut probe, Some(&rustix::event::Timespec::default())) == Ok(0) {
                        guard.clear_ready();
                    }
                }
            }
            _ => std::future::pending().await,
        }
    }
}

fn take_pipe(pipe: &mut Option<pipe::Receiver>) -> Option<Bytes> {
    let mut buffer = BytesMut::with_capacity(CHUNK);
    match pipe.as_ref()?.try_read_buf(&mut buffer) {
        Ok(0) => *pipe = None,
        Ok(_) => return Some(shrunk(buffer)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
        Err(_) => *pipe = None,
    }
    None
}

/// Many small chunks must not hold on to as many large buffers.
fn shrunk(buffer: BytesMut) -> Bytes {
    if buffer.len() * 4 < CHUNK { Bytes::copy_from_slice(&buffer) } else { buffer.freeze() }
}

async fn discard(pipe: pipe::Receiver) {
    let mut buffer = vec![0; 4096];
    while pipe.readable().await.is_ok() {
        match pipe.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// The pipes of a command: our ends, and those that go in.
pub(crate) fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|errno| Error::failed("making a pipe", io::Error::from(errno)))
}
