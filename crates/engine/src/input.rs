//! What is typed: into the pipe of a command, or into its terminal.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
};

use cabana_sandbox::Stdin;
use tokio::io::{AsyncWrite, unix::AsyncFd};
use tokio_util::sync::PollSemaphore;

use crate::{
    lane::{self, Lane, SharedFd},
    live::Live,
    wire::ToInit,
};

/// Into a pipe. Its end is the end of the file; init has a second descriptor of it, and is told to close that.
pub(crate) fn pipe(pipe: AsyncFd<SharedFd>, live: &Arc<Live>, exec: u64) -> Stdin {
    Box::pin(PipeInput { pipe: Some(pipe), turns: turns(&live.lane), live: Arc::downgrade(live), exec })
}

/// The end of the file is what a person types for it.
pub(crate) fn terminal(master: Arc<AsyncFd<SharedFd>>, lane: &Lane) -> Stdin {
    Box::pin(TerminalInput { master, turns: turns(lane) })
}

fn turns(lane: &Lane) -> PollSemaphore {
    PollSemaphore::new(lane.semaphore())
}

struct PipeInput {
    pipe: Option<AsyncFd<SharedFd>>,
    turns: PollSemaphore,
    live: Weak<Live>,
    exec: u64,
}

impl PipeInput {
    fn close(&mut self) {
        if self.pipe.take().is_none() {
            return;
        }
        let Some(live) = self.live.upgrade().filter(|live| live.is_kept()) else { return };
        let (tasks, message) = (live.tasks.clone(), ToInit::close_input(self.exec));
        tasks.spawn(async move {
            let _ = live.send(&message, &[]).await;
        });
    }
}

impl Drop for PipeInput {
    fn drop(&mut self) {
        self.close();
    }
}

impl AsyncWrite for PipeInput {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        match &this.pipe {
            Some(pipe) => write(pipe, &mut this.turns, context, bytes),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.close();
        Poll::Ready(Ok(()))
    }
}

struct TerminalInput {
    master: Arc<AsyncFd<SharedFd>>,
    turns: PollSemaphore,
}

impl AsyncWrite for TerminalInput {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        write(&this.master, &mut this.turns, context, bytes)
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        const END_OF_TRANSMISSION: &[u8] = &[4];
        self.poll_write(context, END_OF_TRANSMISSION).map_ok(drop)
    }
}

/// The guest can hold the lock of what it reads from.
fn write(
    fd: &AsyncFd<SharedFd>,
    turns: &mut PollSemaphore,
    context: &mut Context<'_>,
    bytes: &[u8],
) -> Poll<io::Result<usize>> {
    loop {
        let mut guard = ready!(fd.poll_write_ready(context))?;
        let _turn = ready!(turns.poll_acquire(context));
        if let Ok(done) = guard.try_io(|fd| lane::held_up(|| Ok(rustix::io::write(fd.get_ref(), bytes)?))) {
            return Poll::Ready(done);
        }
    }
}
