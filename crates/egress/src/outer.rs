//! A connection into the world: plain, or through an upstream proxy that is spoken to over TLS.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use cabana_sandbox::Holder;
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    queues::{LongQueues, Queues, bound_as, shorten},
    relay::reset,
};

pub struct Outer {
    stream: Stream,
    queues: Queues,
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Outer {
    /// Over TLS, if it is not yet.
    pub(crate) async fn secured(self, connector: &TlsConnector, name: ServerName<'static>) -> io::Result<Outer> {
        let stream = match self.stream {
            Stream::Plain(stream) => Stream::Tls(Box::new(connector.connect(name, stream).await?)),
            secured => secured,
        };
        Ok(Outer { stream, queues: self.queues })
    }

    /// Once it carries much, and while there is a place.
    pub(crate) fn with_long_queues(self, long: &LongQueues, holder: &Holder) -> Outer {
        Outer { queues: Queues::lengthening(long, holder), ..self }
    }

    /// No longer than those of the guest, until it carries much.
    pub(crate) fn bound_as(&self, guest: &TcpStream) {
        bound_as(guest, self.stream.socket());
    }

    /// The peer sees a reset when it is dropped.
    pub(crate) fn reset(&self) {
        reset(self.stream.socket());
    }

    fn carry(&mut self, bytes: usize) {
        self.queues.carry(bytes, self.stream.socket());
    }
}

impl Stream {
    fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(stream) => stream,
            Stream::Tls(stream) => stream.get_ref().0,
        }
    }
}

impl From<TcpStream> for Outer {
    fn from(stream: TcpStream) -> Outer {
        shorten(&stream);
        Outer { stream: Stream::Plain(stream), queues: Queues::default() }
    }
}

impl AsyncRead for Outer {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (outer, before) = (self.get_mut(), buffer.filled().len());
        let read = match &mut outer.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        };
        outer.carry(buffer.filled().len() - before);
        read
    }
}

impl AsyncWrite for Outer {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outer = self.get_mut();
        let written = match &mut outer.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        };
        if let Poll::Ready(Ok(bytes)) = written {
            outer.carry(bytes);
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
