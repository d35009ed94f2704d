//! A connection into the world: plain, or through an upstream proxy that is spoken to over TLS.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;

use crate::relay::reset;

pub enum Outer {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Outer {
    /// The peer sees a reset when it is dropped.
    pub(crate) fn reset(&self) {
        match self {
            Outer::Plain(stream) => reset(stream),
            Outer::Tls(stream) => reset(stream.get_ref().0),
        }
    }
}

impl From<TcpStream> for Outer {
    fn from(stream: TcpStream) -> Outer {
        Outer::Plain(stream)
    }
}

impl AsyncRead for Outer {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Outer::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Outer::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Outer {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Outer::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Outer::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Outer::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Outer::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Outer::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Outer::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
