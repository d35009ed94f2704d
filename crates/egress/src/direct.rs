//! The server's own way into the world, as to the address of a webhook: resolve, judge, dial, as for a sandbox.
//!
//! Who names the address is hostile here too. So a name is resolved once, each of its addresses is judged, and one of these
//! very addresses is connected. A dialer looks one name up at a time, and all of a tenant have a part of the lookups that there are.

use std::{fmt, io, net::IpAddr, sync::Arc, time::Duration};

use cabana_sandbox::{Duplex, Holder};
use rustls::pki_types::ServerName;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::{
    authorities::{Authorities, AuthoritiesError},
    host::Host,
    lookup::{self, Lookup, Lookups},
    outside::{Connect, Outside, Resolve, ResolveError},
    upstream::{Upstream, UpstreamError},
};

/// Of all dialers together, shared out by tenant.
const LOOKUPS: usize = 128;
const PATIENCE: Duration = Duration::from_secs(5);
/// Addresses of one name that are tried before giving up.
const TRIED: usize = 2;

/// What all dialers share.
pub struct Dialers {
    resolve: Arc<dyn Resolve>,
    connect: Arc<dyn Connect>,
    tls: TlsConnector,
    lookups: Lookups,
}

/// Dials for one who is not trusted.
pub struct Dialer {
    lookup: Lookup,
    connect: Arc<dyn Connect>,
    tls: TlsConnector,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DialersError {
    #[error("the certificates: {0}")]
    Authorities(#[from] AuthoritiesError),
    #[error("the upstream proxy: {0}")]
    Upstream(#[from] UpstreamError),
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
}

/// Why there is no connection. What it says may be told to whoever named the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotReached {
    Missing,
    LookupFailed,
    /// By the judge, of the first address.
    Refused(String),
    Unreachable(io::ErrorKind),
    TimedOut,
    Tls(String),
}

impl fmt::Display for NotReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("there is no such host name"),
            Self::LookupFailed => f.write_str("the host name could not be looked up"),
            Self::Refused(why) => f.write_str(why),
            Self::Unreachable(kind) => write!(f, "it could not be connected: {kind}"),
            Self::TimedOut => f.write_str("it could not be connected in time"),
            Self::Tls(why) => write!(f, "TLS: {why}"),
        }
    }
}

impl Dialers {
    /// By way of a proxy, if there is one; `ca` are authorities beside the usual ones, in PEM.
    pub fn new(upstream: Option<&str>, ca: Option<&[u8]>) -> Result<Self, DialersError> {
        let trusted = ca.map_or(Ok(Authorities::none()), Authorities::parse)?.and_those_of(&Authorities::of_system());
        let Outside { resolve, mut connect } = Outside::system();
        if let Some(url) = upstream {
            connect = Arc::new(Upstream::parse(url, &trusted, connect)?);
        }
        let tls = trusted.client().map_err(|error| DialersError::Tls(error.to_string()))?.into();
        Ok(Self { resolve, connect, tls, lookups: Lookups::new(LOOKUPS) })
    }

    /// `holder`: whose lookups are counted together, however many dialers there were.
    pub fn dialer(&self, holder: Holder) -> Dialer {
        let of_all = self.lookups.clone();
        let bounds = lookup::Bounds { at_once: 1, holder, of_all, patience: PATIENCE, fresh: Duration::ZERO };
        Dialer {
            lookup: Lookup::new(self.resolve.clone(), bounds),
            connect: self.connect.clone(),
            tls: self.tls.clone(),
        }
    }
}

impl Dialer {
    /// Those addresses of the host that may be dialled; where there are none, why the first may not.
    pub async fn judged(
        &self,
        host: &Host,
        judge: impl Fn(IpAddr) -> Result<(), String>,
    ) -> Result<Vec<IpAddr>, NotReached> {
        let found = match host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => self.lookup.addresses(name).await.map_err(|error| match error {
                ResolveError::Missing => NotReached::Missing,
                ResolveError::Failed => NotReached::LookupFailed,
            })?,
        };
        let (mut good, mut why) = (Vec::new(), None);
        for address in found {
            match judge(address) {
                Ok(()) => good.push(address),
                Err(refusal) => why = why.or(Some(refusal)),
            }
        }
        match why {
            Some(why) if good.is_empty() => Err(NotReached::Refused(why)),
            _ => Ok(good),
        }
    }

    /// A connection to one of them, over TLS if it is to be.
    pub async fn dial(
        &self,
        host: &Host,
        port: u16,
        secure: bool,
        judge: impl Fn(IpAddr) -> Result<(), String>,
    ) -> Result<Box<dyn Duplex>, NotReached> {
        let mut last = NotReached::Missing;
        for address in self.judged(host, judge).await?.into_iter().take(TRIED) {
            match timeout(PATIENCE, self.connect.connect((address, port).into())).await {
                Ok(Ok(stream)) if secure => return self.secured(host, stream).await,
                Ok(Ok(stream)) => return Ok(Box::new(stream)),
                Ok(Err(error)) => last = NotReached::Unreachable(error.kind()),
                Err(_) => last = NotReached::TimedOut,
            }
        }
        Err(last)
    }

    async fn secured(&self, host: &Host, stream: crate::Outer) -> Result<Box<dyn Duplex>, NotReached> {
        let name = ServerName::try_from(host.to_string()).map_err(|error| NotReached::Tls(error.to_string()))?;
        match timeout(PATIENCE, self.tls.connect(name, stream)).await {
            Ok(Ok(stream)) => Ok(Box::new(stream)),
            Ok(Err(error)) => Err(NotReached::Tls(error.to_string())),
            Err(_) => Err(NotReached::TimedOut),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::VecDeque,
        net::SocketAddr,
        sync::{Mutex, atomic::AtomicUsize, atomic::Ordering},
    };

    use async_trait::async_trait;

    use super::*;
    use crate::{host::Name, outer::Outer};

    /// Another answer each time, as a name that is made to change its mind.
    struct Fickle {
        answers: Mutex<VecDeque<Vec<IpAddr>>>,
        dialled: Mutex<Vec<SocketAddr>>,
        asked: AtomicUsize,
    }

    #[async_trait]
    impl Resolve for Fickle {
        async fn resolve(&self, _: &Name) -> Result<Vec<IpAddr>, ResolveError> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            self.answers.lock().unwrap().pop_front().ok_or(ResolveError::Missing)
        }
    }

    #[async_trait]
    impl Connect for Fickle {
        async fn connect(&self, address: SocketAddr) -> io::Result<Outer> {
            self.dialled.lock().unwrap().push(address);
            Err(io::ErrorKind::ConnectionRefused.into())
        }
    }

    fn dialer(answers: &[&[&str]]) -> (Arc<Fickle>, Dialer) {
        let answers = answers.iter().map(|some| some.iter().map(|text| text.parse().unwrap()).collect()).collect();
        let fickle =
            Arc::new(Fickle { answers: Mutex::new(answers), dialled: Mutex::default(), asked: AtomicUsize::new(0) });
        let dialers = Dialers { resolve: fickle.clone(), connect: fickle.clone(), ..Dialers::new(None, None).unwrap() };
        (fickle, dialers.dialer(Holder::tenant("one")))
    }

    fn no_loopback(address: IpAddr) -> Result<(), String> {
        if address.is_loopback() { Err(format!("{address} is ours")) } else { Ok(()) }
    }

    async fn dial(dialer: &Dialer) -> NotReached {
        dialer.dial(&Host::parse("a.com").unwrap(), 443, true, no_loopback).await.err().unwrap()
    }

    #[tokio::test]
    async fn what_was_judged_is_what_is_dialled_and_nothing_is_asked_twice() {
        let (fickle, dialer) = dialer(&[&["9.9.9.9"], &["127.0.0.1"]]);
        assert_eq!(dial(&dialer).await, NotReached::Unreachable(io::ErrorKind::ConnectionRefused));
        assert_eq!(*fickle.dialled.lock().unwrap(), ["9.9.9.9:443".parse().unwrap()]);
        assert_eq!(fickle.asked.load(Ordering::SeqCst), 1);
        // The next time it is asked anew, and judged anew.
        assert_eq!(dial(&dialer).await, NotReached::Refused("127.0.0.1 is ours".into()));
        assert_eq!(fickle.dialled.lock().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn of_several_addresses_only_those_are_dialled_that_may_be() {
        let (fickle, dialer) = dialer(&[&["127.0.0.1", "9.9.9.9", "::1"]]);
        assert_eq!(dial(&dialer).await, NotReached::Unreachable(io::ErrorKind::ConnectionRefused));
        assert_eq!(*fickle.dialled.lock().unwrap(), ["9.9.9.9:443".parse().unwrap()]);
        assert_eq!(dial(&dialer).await, NotReached::Missing);
    }

    /// Of some names no answer ever comes.
    struct HalfSilent;

    #[async_trait]
    impl Resolve for HalfSilent {
        async fn resolve(&self, name: &Name) -> Result<Vec<IpAddr>, ResolveError> {
            if name.as_str().starts_with("silent.") { std::future::pending().await } else { Ok(vec![[9; 4].into()]) }
        }
    }

    #[tokio::test]
    async fn lookups_of_all_dialers_of_a_tenant_count_together_and_leave_some_to_another() {
        let dialers = Dialers { resolve: Arc::new(HalfSilent), ..Dialers::new(None, None).unwrap() };
        let judged = |tenant: &str, host: &'static str| {
            let dialer = dialers.dialer(Holder::tenant(tenant));
            async move { dialer.judged(&Host::parse(host).unwrap(), no_loopback).await }
        };
        let mut silent: Vec<_> = (0..2 * LOOKUPS).map(|_| Box::pin(judged("one", "silent.com"))).collect();
        for lookup in &mut silent {
            timeout(Duration::ZERO, lookup).await.ok();
        }
        assert_eq!(judged("one", "a.com").await, Err(NotReached::LookupFailed), "the control: its part is used up");
        assert_eq!(judged("two", "a.com").await, Ok(vec![[9; 4].into()]));
        // As of webhooks that are removed while their addresses are looked up.
        drop(silent);
        assert_eq!(judged("one", "a.com").await, Ok(vec![[9; 4].into()]));
    }

    #[test]
    fn settings_that_cannot_be_are_refused() {
        let bad = |upstream, ca| Dialers::new(upstream, ca).err().unwrap();
        assert_eq!(bad(Some("ftp://x"), None), DialersError::Upstream(UpstreamError::Scheme));
        assert_eq!(bad(None, Some(b"nothing".as_slice())), DialersError::Authorities(AuthoritiesError::None));
    }
}
