//! A way to what listens inside.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use cabana_model::{SandboxId, Tenant};
use cabana_sandbox::Duplex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{Error, Result, Runtime, sandboxes::Awake};

/// Bytes to a port inside and back. The sandbox is needed as long as this is held.
pub struct Connection {
    stream: Box<dyn Duplex>,
    _awake: Awake,
}

pub(crate) fn check(port: u16) -> Result<()> {
    if port == 0 { Err(Error::invalid("port", "must be from 1 to 65535")) } else { Ok(()) }
}

impl Runtime {
    /// Starts the sandbox if it has to be. A port on which nothing listens is `PortClosed`.
    pub async fn connect(&self, tenant: &Tenant, sandbox: &SandboxId, port: u16) -> Result<Connection> {
        check(port)?;
        let slot = self.0.sandboxes.of_id(tenant, sandbox).await?;
        let awake = slot.awake();
        let live = self.0.sandboxes.running(&slot, "a connection to a port").await?;
        self.0.sandboxes.touch(&slot).await;
        Ok(Connection { stream: live.connect(port).await?, _awake: awake })
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
