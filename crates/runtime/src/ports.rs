//! A way to what listens inside.

use std::{
    collections::HashMap,
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use cabana_model::{KeyId, SandboxId, Tenant};
use cabana_sandbox::{Duplex, Holder};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use crate::{
    Ask, Caller, Cx, Error, Look, Needs, Place, Result, Runtime,
    read_rows::Keyless,
    sandboxes::{Kind, Slot},
    shares::{self, PORTS, PUBLIC_PORTS, Share},
};

/// Bytes to a port inside and back. While they flow the sandbox is in use; a connection alone keeps none awake.
pub struct Connection {
    stream: Box<dyn Duplex>,
    slot: Arc<Slot>,
    _shares: Shares,
}

/// Among all connections, and among those whose clients showed nothing where it is one.
type Shares = (Share, Option<Share>);

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
    /// The one that is theirs, or stands behind what they show.
    pub fn key(&self) -> KeyId {
        self.caller().key
    }

    pub fn tenant(&self) -> &Tenant {
        &self.caller().tenant
    }

    fn caller(&self) -> &Caller {
        let (Self::ByKey(caller) | Self::ByLink(caller) | Self::ByToken(caller) | Self::InPublic(caller)) = self;
        caller
    }

    fn take_shares(&self, holder: &Holder) -> Option<Shares> {
        let public = match self {
            Self::InPublic(_) => Some(PUBLIC_PORTS.take(holder)?),
            Self::ByKey(_) | Self::ByLink(_) | Self::ByToken(_) => None,
        };
        Some((PORTS.take(holder)?, public))
    }

    fn parts(self) -> (Caller, &'static str) {
        match self {
            Self::ByKey(caller) => (caller, BY_KEY),
            Self::ByLink(caller) => (caller, "by link"),
            Self::ByToken(caller) => (caller, "by token"),
            Self::InPublic(caller) => (caller, "in public"),
        }
    }
}

const BY_KEY: &str = "by key";

impl Runtime {
    /// Starts the sandbox if it has to be. A port on which nothing listens is `PortClosed`.
    ///
    /// A page is many requests: only the first of each minute leaves a row, for each key, port and way. Who comes without a key
    /// leaves one only where something listens, and only so many.
    pub async fn connect(&self, visitor: Visitor, sandbox: &SandboxId, port: u16) -> Result<Connection> {
        check(port)?;
        let slot = self.0.sandboxes.of_id(visitor.caller(), sandbox).await?;
        let record = slot.record();
        // Before it is started for nothing.
        let shares = visitor.take_shares(&shares::sandbox(&record)).ok_or(Error::TooManyPortConnections)?;
        let (caller, way) = visitor.parts();
        let visit = Visited { key: caller.key, physical: record.physical.clone(), port, way };
        let ask = Ask { caller, place: Place::Sandbox(sandbox.clone()), key: None, lease: None, front: "port" };
        if way == BY_KEY && self.0.visits.is_news(&visit, Instant::now()) {
            let looked = self.look(ask, Visit { port, shares }).await;
            if matches!(looked, Err(Error::Store(_))) {
                self.0.visits.forget(&visit); // it has no row
            }
            return looked.map(|(_, connection)| connection);
        }
        let _awake = slot.awake(Kind::Call);
        let live = self.0.sandboxes.running(&slot, Visit::VERB).await?;
        self.0.sandboxes.touch(&slot).await;
        let connection = Connection { stream: live.connect(port).await?, slot, _shares: shares };
        if way != BY_KEY
            && let Some(untold) = self.0.visits.is_news_of_stranger(&visit, Instant::now())
        {
            if self.may_leave_rows(&ask.caller).await {
                self.look_unmetered(ask, StrangersVisit { port, way }, untold).await?;
            } else {
                self.sum_up_keyless(&ask.caller, Keyless::Visits, sandbox, untold + 1);
            }
        }
        Ok(connection)
    }
}

struct Visit {
    port: u16,
    shares: Shares,
}

impl Look for Visit {
    const VERB: &'static str = "visit";
    type Answer = Connection;

    fn needs(&self) -> Needs {
        Needs::Running
    }

    fn argv(&self) -> Vec<String> {
        vec![self.port.to_string(), BY_KEY.to_owned()]
    }

    async fn run(self, cx: Cx) -> Result<Connection> {
        let Self { port, shares } = self;
        Ok(Connection { stream: cx.sandbox()?.connect(port).await?, slot: cx.slot().await?, _shares: shares })
    }
}

/// One that has come to something that listens.
struct StrangersVisit {
    port: u16,
    way: &'static str,
}

impl Look for StrangersVisit {
    const VERB: &'static str = Visit::VERB;
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::Record
    }

    fn argv(&self) -> Vec<String> {
        vec![self.port.to_string(), self.way.to_owned()]
    }

    async fn run(self, _: Cx) -> Result<()> {
        Ok(())
    }
}

/// When each was last written to the ledger.
#[derive(Default)]
pub(crate) struct Visits {
    by_key: Mutex<HashMap<Visited, Instant>>,
    /// By the sandbox that they came to.
    strangers: Mutex<HashMap<SandboxId, Strangers>>,
}

/// Who came to a sandbox without a key, in one minute.
struct Strangers {
    since: Instant,
    told: Vec<Visited>,
    untold: u64,
}

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
/// Rows that strangers leave in that time: they choose ports and links, and rows are kept for long.
const OF_STRANGERS: usize = 20;

fn stands(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < STANDS
}

impl Visits {
    fn all<T>(&self, act: impl FnOnce(&mut HashMap<Visited, Instant>) -> T) -> T {
        act(&mut self.by_key.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_news(&self, visit: &Visited, now: Instant) -> bool {
        self.all(|known| {
            if known.get(visit).is_some_and(|at| stands(*at, now)) {
                return false;
            }
            if known.len() >= KNOWN {
                known.retain(|_, at| stands(*at, now));
            }
            if known.len() >= KNOWN {
                known.clear();
            }
            known.insert(visit.clone(), now);
            true
        })
    }

    /// Whether it leaves a row, and how many left none before it.
    fn is_news_of_stranger(&self, visit: &Visited, now: Instant) -> Option<u64> {
        let mut all = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= KNOWN && !all.contains_key(&visit.physical) {
            all.retain(|_, of_one| stands(of_one.since, now));
            if all.len() >= KNOWN {
                all.clear();
            }
        }
        let fresh = || Strangers { since: now, told: Vec::new(), untold: 0 };
        let of_one = all.entry(visit.physical.clone()).or_insert_with(fresh);
        if !stands(of_one.since, now) {
            *of_one = Strangers { untold: of_one.untold, ..fresh() };
        }
        if of_one.told.contains(visit) {
            return None;
        }
        if of_one.told.len() >= OF_STRANGERS {
            of_one.untold += 1;
            return None;
        }
        of_one.told.push(visit.clone());
        Some(std::mem::take(&mut of_one.untold))
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
    #[test]
    fn strangers_leave_few_rows_and_those_who_left_none_are_counted() {
        let (visits, mut now) = (Visits::default(), Instant::now());
        let (key, physical) = (KeyId::now(), SandboxId::random());
        let news = |physical: &SandboxId, port, now| {
            let visit = Visited { key, physical: physical.clone(), port, way: "in public" };
            visits.is_news_of_stranger(&visit, now)
        };
        let rows = (1..=1000).filter_map(|port| news(&physical, port, now)).collect::<Vec<u64>>();
        assert_eq!(rows, [0; OF_STRANGERS]);
        assert_eq!(news(&physical, 1, now), None, "it has its row");
        assert_eq!(news(&SandboxId::random(), 1, now), Some(0), "others are not concerned");
        now += STANDS;
        assert_eq!(news(&physical, 7, now), Some(1000 - OF_STRANGERS as u64));
        assert_eq!(news(&physical, 8, now), Some(0));
        for _ in 0..2 * KNOWN {
            news(&SandboxId::random(), 1, now);
        }
        assert!(visits.strangers.lock().unwrap().len() <= KNOWN);
    }
}
