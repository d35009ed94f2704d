//! A connection that can be reset instead of closed, and that says whether it is full.
//!
//! A client that reads a stream takes a connection that was closed for an end that came too soon, and one that was reset for
//! a server that is gone. Which of the two it is, whoever answers may say before the answer breaks off.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use super::progress::Progress;

pub(super) struct Line {
    stream: TcpStream,
    resets: Arc<AtomicBool>,
    progress: Progress,
}

impl Line {
    pub(super) fn new(stream: TcpStream, resets: Arc<AtomicBool>, progress: Progress) -> Self {
        Self { stream, resets, progress }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.resets.load(Ordering::Relaxed) {
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Line {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Line {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.progress.set_blocked(written.is_pending());
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.progress.set_blocked(written.is_pending());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.resets.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(())); // that would close it first
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
