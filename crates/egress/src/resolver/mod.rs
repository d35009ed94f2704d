//! A stub resolver: names are looked up as the C library does, but as tasks.
//!
//! A name is looked for in `/etc/hosts`. Else the name servers of `/etc/resolv.conf` are asked, one after the other, for its
//! IPv4 and its IPv6 addresses at once; and so for each name that the search list makes of it. The C library holds a thread
//! for as long as a server is silent: names that are never answered would take the threads of all. Here a lookup is a future
//! with at most two sockets, and dropping it ends it.
//!
//! Nothing is remembered but the two files, which are read again when they have changed: `lookup` remembers addresses.
//!
//! What an answer says is decided by whoever owns the name, and a server may be hostile, too. So every answer is read
//! strictly and with bounds (`query`), and what answers no question of ours is passed over (`exchange`).

mod exchange;
mod hosts;
mod query;
mod resolv_conf;
mod watched_file;

use std::{
    future::Future,
    iter,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio::time::timeout;

use self::{
    hosts::Hosts,
    query::{Answer, WireName},
    resolv_conf::ResolvConf,
    watched_file::WatchedFile,
};
use crate::{
    dns::message::{A, AAAA},
    host::{Host, Name},
    outside::{Resolve, ResolveError},
};

/// For all servers, attempts and names of the search list together.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(30);
/// Of one family, of one name. More are left out.
const MAX_ADDRESSES: usize = 32;
/// Answers that lead to a name whose addresses they do not have.
const MAX_FOLLOWED: usize = 8;

/// Where names come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameSources {
    pub hosts: PathBuf,
    pub resolv_conf: PathBuf,
    /// Of the name servers.
    pub port: u16,
}

impl Default for NameSources {
    fn default() -> Self {
        Self { hosts: "/etc/hosts".into(), resolv_conf: "/etc/resolv.conf".into(), port: 53 }
    }
}

pub(crate) struct StubResolver {
    hosts: Arc<WatchedFile<Hosts>>,
    conf: Arc<WatchedFile<ResolvConf>>,
    port: u16,
    /// Lookups so far: with the option `rotate` each begins at another server.
    lookups: AtomicUsize,
}

/// Why there are no addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotFound {
    NoName,
    /// The name is there, and has no addresses of this family.
    NoData,
    /// Some server answered, and none could say.
    Failed,
    /// No server answered.
    Silent,
}

type Addresses = Result<Vec<IpAddr>, NotFound>;

impl StubResolver {
    pub(crate) fn open(sources: NameSources) -> Self {
        Self {
            hosts: WatchedFile::open(sources.hosts, Hosts::parse),
            conf: WatchedFile::open(sources.resolv_conf, resolv_conf::of_this_machine),
            port: sources.port,
            lookups: AtomicUsize::new(0),
        }
    }

    async fn look_up(&self, name: &Name) -> Result<Vec<IpAddr>, ResolveError> {
        if is_localhost(name) {
            return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        }
        if let Some(addresses) = self.hosts.current().await.addresses(name) {
            return Ok(addresses.to_vec());
        }
        let conf = self.conf.current().await;
        let lookup = self.lookups.fetch_add(1, Ordering::Relaxed);
        let mut error = ResolveError::Missing;
        for candidate in candidates(name, &conf) {
            match self.ask_both(&conf, lookup, &candidate).await {
                Ok(addresses) => return Ok(addresses),
                Err(NotFound::NoName | NotFound::NoData) => {}
                // A search list may have a domain whose servers are out of order.
                Err(NotFound::Failed) => error = ResolveError::Failed,
                // Nor would they say anything of the next.
                Err(NotFound::Silent) => return Err(ResolveError::Failed),
            }
        }
        Err(error)
    }

    /// Asks for both families at once. What one of them answers counts also where the other is never answered: some servers
    /// drop what they do not know.
    async fn ask_both(&self, conf: &ResolvConf, lookup: usize, name: &Name) -> Addresses {
        let mut v4 = pin!(self.ask(conf, lookup, name, A));
        let mut v6 = pin!(self.ask(conf, lookup, name, AAAA));
        let (v4, v6) = tokio::select! {
            v4 = &mut v4 => {
                let v6 = second(&v4, v6, conf.timeout).await;
                (v4, v6)
            }
            v6 = &mut v6 => {
                let v4 = second(&v6, v4, conf.timeout).await;
                (v4, v6)
            }
        };
        match (v4, v6) {
            (Ok(v4), Ok(v6)) => Ok(alternating(v4, v6)),
            (Ok(found), Err(_)) | (Err(_), Ok(found)) => Ok(found),
            (Err(v4), Err(v6)) => Err(of_both(v4, v6)),
        }
    }

    async fn ask(&self, conf: &ResolvConf, lookup: usize, name: &Name, kind: u16) -> Addresses {
        let mut name = WireName::of(name);
        for _ in 0..=MAX_FOLLOWED {
            match self.ask_servers(conf, lookup, &name, kind).await? {
                Answer::Addresses(addresses) => return Ok(addresses),
                Answer::Alias(of) => name = of,
            }
        }
        Err(NotFound::Failed)
    }

    /// What the first server says that can say something.
    async fn ask_servers(
        &self,
        conf: &ResolvConf,
        lookup: usize,
        name: &WireName,
        kind: u16,
    ) -> Result<Answer, NotFound> {
        let first = if conf.rotate { lookup % conf.servers.len() } else { 0 };
        let servers = conf.servers.iter().cycle().skip(first).take(conf.servers.len() * conf.attempts);
        let mut error = NotFound::Silent;
        for server in servers {
            match exchange::ask(server.at(self.port), name, kind, conf.timeout).await {
                Err(NotFound::Silent) => {}
                Err(NotFound::Failed) => error = NotFound::Failed,
                decided => return decided,
            }
        }
        Err(error)
    }
}

#[async_trait]
impl Resolve for StubResolver {
    async fn resolve(&self, name: &Name) -> Result<Vec<IpAddr>, ResolveError> {
        timeout(LOOKUP_TIMEOUT, self.look_up(name)).await.unwrap_or(Err(ResolveError::Failed))
    }
}

/// Always the loopback (RFC 6761): no server is asked, and no file can lead it elsewhere.
fn is_localhost(name: &Name) -> bool {
    name.as_str() == "localhost" || name.as_str().ends_with(".localhost")
}

/// The names that a name may stand for, in the order of the C library: as it is first, where it has enough dots for that.
/// Wherever the search leads is judged.
fn candidates(name: &Name, conf: &ResolvConf) -> Vec<Name> {
    let searched = conf.search.iter().filter_map(|domain| match Host::parse(&format!("{name}.{domain}")) {
        Ok(Host::Name(name)) => Some(name),
        _ => None, // it is too long
    });
    let as_it_is = iter::once(name.clone());
    match name.as_str().matches('.').count() >= conf.ndots {
        true => as_it_is.chain(searched).collect(),
        false => searched.chain(as_it_is).collect(),
    }
}

/// Waits for the second of two. Where the first has decided, only for as long as a server may take for one answer.
async fn second(first: &Addresses, second: impl Future<Output = Addresses>, patience: Duration) -> Addresses {
    match first {
        Ok(_) | Err(NotFound::NoName) => timeout(patience, second).await.unwrap_or(Err(NotFound::Silent)),
        Err(_) => second.await,
    }
}

/// By turns, IPv4 first. Only some addresses of a name are tried, and whichever family this machine has no route to, some of
/// these are of the other.
fn alternating(v4: Vec<IpAddr>, v6: Vec<IpAddr>) -> Vec<IpAddr> {
    let (mut v4, mut v6) = (v4.into_iter(), v6.into_iter());
    iter::from_fn(|| Some([v4.next(), v6.next()]).filter(|pair| pair.iter().any(Option::is_some)))
        .flatten()
        .flatten()
        .collect()
}

fn of_both(v4: NotFound, v6: NotFound) -> NotFound {
    match (v4, v6) {
        (NotFound::NoName, _) | (_, NotFound::NoName) => NotFound::NoName,
        (NotFound::NoData, NotFound::NoData) => NotFound::NoData,
        (NotFound::Silent, NotFound::Silent) => NotFound::Silent,
        _ => NotFound::Failed,
    }
}
