//! A SOCK_SEQPACKET socket in the async world: whole messages with descriptors.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use tokio::{io::Interest, net::UnixDatagram};

use crate::kernel::fdpass;

/// tokio's datagram socket carries it: readiness is the same, and the calls are our own.
pub(crate) struct Channel(UnixDatagram);

impl Channel {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        UnixDatagram::from_std(socket.into()).map(Self)
    }

    pub(crate) async fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        // Usually there is room: no need to ask first.
        match fdpass::send(self.0.as_fd(), bytes, fds) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
        self.0.async_io(Interest::WRITABLE, || fdpass::send(self.0.as_fd(), bytes, fds)).await
    }

    /// `None` is the end.
    pub(crate) async fn receive(&self) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
        let mut buffer = [0; 1024]; // whatever comes from below is small; longer is cut off, which is an error
        let (length, fds) =
            self.0.async_io(Interest::READABLE, || fdpass::receive(self.0.as_fd(), &mut buffer)).await?;
        Ok((length > 0).then(|| (buffer[..length].to_vec(), fds)))
    }

    pub(crate) fn close(&self) {
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}
