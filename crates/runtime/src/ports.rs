//! A way to what listens inside.

use std::{
    collections::HashMap,
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use cabana_model::{KeyId, SandboxId};
use cabana_sandbox::Duplex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use crate::{
    Ask, Caller, Cx, Error, Look, Needs, Place, Result, Runtime,
    sandboxes::{Kind, Slot},
};

/// Bytes to a port inside and back. While they flow the sandbox is in use; a connection alone keeps none awake.
pub struct Connection {
    stream: Box<dyn Duplex>,
    slot: Arc<Slot>,
}

pub(crate) fn check(port: u16) -> Result<()> {
    if port == 0 { Err(Error::invalid("port", "must be from 1 to 65535")) } else { Ok(()) }
}

/// Who comes to a port.
#[derive(Clone)]
pub enum Visitor {
    ByKey(Caller),
    /// For whoever made the link.
    ByLink(Caller),
    /// Of the sandbox itself, for whoever made that.
    ByToken(Caller),
    /// Whoever knows its number, where it was made for that.
    InPublic(Caller),
}

impl Visitor {
    fn parts(self) -> (Caller, &'static str) {
        match self {
            Self::ByKey(caller) => (caller, "by key"),
            Self::ByLink(caller) => (caller, "by link"),
            Self::ByToken(caller) => (caller, "by token"),
            Self::InPublic(caller) => (caller, "in public"),
        }
    }
}

impl Runtime {
    /// Starts the sandbox if it has to be. A port on which nothing listens is `PortClosed`.
    ///
    /// A page is many requests: only the first of each minute leaves a row, for each key, port and way.
    pub async fn connect(&self, visitor: Visitor, sandbox: &SandboxId, port: u16) -> Result<Connection> {
        check(port)?;
        let (caller, way) = visitor.parts();
        let slot = self.0.sandboxes.of_id(&caller.tenant, sandbox).await?;
        let visit = Visited { key: caller.key, physical: slot.record().physical.clone(), port, way };
        if self.0.visits.is_news(&visit, Instant::now()) {
            let ask = Ask { caller, place: Place::Sandbox(sandbox.clone()), key: None, lease: None, front: "port" };
            let looked = self.look(ask, Visit { port, way }).await;
            if matches!(looked, Err(Error::Store(_))) {
                self.0.visits.forget(&visit); // it has no row
            }
            return looked.map(|(_, connection)| connection);
        }
        let _awake = slot.awake(Kind::Call);
        let live = self.0.sandboxes.running(&slot, Visit::VERB).await?;
        self.0.sandboxes.touch(&slot).await;
        Ok(Connection { stream: live.connect(port).await?, slot })
    }
}

struct Visit {
    port: u16,
    way: &'static str,
}

impl Look for Visit {
    const VERB: &'static str = "visit";
    type Answer = Connection;

    fn needs(&self) -> Needs {
        Needs::Running
    }

    fn argv(&self) -> Vec<String> {
        vec![self.port.to_string(), self.way.to_owned()]
    }

    async fn run(self, cx: Cx) -> Result<Connection> {
        Ok(Connection { stream: cx.sandbox()?.connect(self.port).await?, slot: cx.slot().await? })
    }
}

/// When each was last written to the ledger.
#[derive(Default)]
pub(crate) struct Visits(Mutex<HashMap<Visited, Instant>>);

#[derive(Clone, PartialEq, Eq, Hash)]
struct Visited {
    key: KeyId,
    physical: SandboxId,
    port: u16,
    way: &'static str,
}

/// How long one row stands for all that follow.
const STANDS: Duration = Duration::from_secs(60);
/// As many as are known at a time. Beyond it there are more rows, and never fewer.
const KNOWN: usize = 4096;

impl Visits {
    fn all<T>(&self, act: impl FnOnce(&mut HashMap<Visited, Instant>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_news(&self, visit: &Visited, now: Instant) -> bool {
        let stands = |at: Instant| now.saturating_duration_since(at) < STANDS;
        self.all(|known| {
            if known.get(visit).is_some_and(|at| stands(*at)) {
                return false;
            }
            if known.len() >= KNOWN {
                known.retain(|_, at| stands(*at));
            }
            if known.len() >= KNOWN {
                known.clear();
            }
            known.insert(visit.clone(), now);
            true
        })
    }

    fn forget(&self, visit: &Visited) {
        self.all(|known| known.remove(visit));
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.slot.used();
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if let Poll::Ready(Ok(1..)) = written {
            self.slot.used();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_visit_is_news_once_a_minute_and_however_many_there_are_little_is_kept() {
        let (visits, mut now) = (Visits::default(), Instant::now());
        let (key, physical) = (KeyId::now(), SandboxId::random());
        let visit = |port, way| Visited { key, physical: physical.clone(), port, way };
        assert!(visits.is_news(&visit(1, "by key"), now) && !visits.is_news(&visit(1, "by key"), now));
        assert!(visits.is_news(&visit(1, "by link"), now) && visits.is_news(&visit(2, "by key"), now));
        visits.forget(&visit(1, "by key"));
        assert!(visits.is_news(&visit(1, "by key"), now));
        now += STANDS;
        assert!(visits.is_news(&visit(1, "by key"), now));
        for port in 0..u16::MAX {
            visits.is_news(&visit(port, "by key"), now);
        }
        assert!(visits.all(|known| known.len()) <= KNOWN);
    }
}
