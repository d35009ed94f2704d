//! Where clients come in: addresses, TLS, and what bounds a connection.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Router, extract::FromRequestParts, http::request::Parts};
use hyper::{Request, body::Incoming};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;

use crate::Bounds;

/// A certificate and its key.
#[derive(Clone)]
pub struct Tls(TlsAcceptor);

/// Of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// When the kernel has no more descriptors to give: it is asked again, not all the time.
const BREATH: Duration = Duration::from_millis(50);
/// Of what is under way when the server is told to end.
const LAST_WORDS: Duration = Duration::from_secs(15);

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("cannot listen on {address}: {error}")]
    Bind { address: SocketAddr, error: io::Error },
    #[error(
        "{0} can be reached from other machines, and there keys would travel in the clear: give --tls-cert and --tls-key, or \
         say --insecure-http if something in front of it does TLS"
    )]
    Insecure(SocketAddr),
    #[error("{what} {path}: {why}")]
    Tls { what: &'static str, path: String, why: String },
}

impl Tls {
    /// From two PEM files: the chain, its own certificate first, and the key.
    pub fn read(chain: &Path, key: &Path) -> Result<Self, ListenError> {
        let bad = |what, path: &Path, why: &dyn std::fmt::Display| ListenError::Tls {
            what,
            path: path.display().to_string(),
            why: why.to_string(),
        };
        let certificates = CertificateDer::pem_file_iter(chain)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| bad("the certificate", chain, &error))?;
        if certificates.is_empty() {
            return Err(bad("the certificate", chain, &"there is none in it"));
        }
        let private = PrivateKeyDer::from_pem_file(key).map_err(|error| bad("the key", key, &error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| bad("the certificate", chain, &error))?
            .with_no_client_auth()
            .with_single_cert(certificates, private)
            .map_err(|error| bad("the certificate", chain, &error))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }
}

/// Who is at the other end. A connection that has become something else than HTTP keeps its seat by holding this.
#[derive(Clone)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) leaving: CancellationToken,
    _seat: Arc<Seat>,
}

/// Set when the server is told to end: what has no end of its own ends then.
pub(crate) struct Leaving(pub(crate) CancellationToken);

impl<S: Sync> FromRequestParts<S> for Leaving {
    type Rejection = Infallible;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(parts.extensions.get::<Peer>().map(|peer| peer.leaving.clone()).unwrap_or_default()))
    }
}

struct Seat(#[expect(dead_code, reason = "held, and let go by dropping it")] OwnedSemaphorePermit);

impl Drop for Seat {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Of this process, as its memory is.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// How many connections there are.
pub(crate) fn open_connections() -> usize {
    OPEN.load(Ordering::Relaxed)
}

/// A socket that is listened on, and not yet served.
pub struct Listener {
    socket: TcpListener,
    tls: Option<Tls>,
}

impl Listener {
    /// An address that others can reach needs TLS, or somebody who says that it does not.
    pub async fn bind(address: SocketAddr, tls: Option<Tls>, insecure: bool) -> Result<Self, ListenError> {
        if tls.is_none() && !insecure && !address.ip().to_canonical().is_loopback() {
            return Err(ListenError::Insecure(address));
        }
        let socket = TcpListener::bind(address).await.map_err(|error| ListenError::Bind { address, error })?;
        Ok(Self { socket, tls })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Until it is told to end; then what is under way has a while to come to its end.
    pub async fn serve(self, router: Router, bounds: &Bounds, end: CancellationToken) {
        let room = Arc::new(Semaphore::new(bounds.connections));
        let (tasks, graceful) = (TaskTracker::new(), GracefulShutdown::new());
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(bounds.head).max_buf_size(64 << 10);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(256)
            .keep_alive_interval(Duration::from_secs(20));
        let builder = Arc::new(builder);
        while let Some(accepted) = end.run_until_cancelled(self.accept(&room, &end)).await {
            let Some((stream, peer)) = accepted else {
                tokio::time::sleep(BREATH).await;
                continue;
            };
            let (tls, builder, watcher) = (self.tls.clone(), builder.clone(), graceful.watcher());
            let (of_peer, leaving) = (peer.clone(), end.clone());
            let service =
                TowerToHyperService::new(router.clone().map_request(move |mut request: Request<Incoming>| {
                    request.extensions_mut().insert(of_peer.clone());
                    request
                }));
            tasks.spawn(async move {
                let _peer = peer;
                // Who breaks off has said all that there is to say.
                let _ = match tls {
                    None => {
                        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
                        watcher.watch(connection.into_owned()).await
                    }
                    Some(Tls(acceptor)) => match leaving.run_until_cancelled(shake_hands(&acceptor, stream)).await {
                        Some(Some(stream)) => {
                            let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
                            watcher.watch(connection.into_owned()).await
                        }
                        _ => Ok(()),
                    },
                };
            });
        }
        drop(self.socket);
        // One that has become something else than HTTP is seated as long as it goes on.
        let all = u32::try_from(bounds.connections).unwrap_or(u32::MAX);
        let gone = async {
            graceful.shutdown().await;
            drop(room.acquire_many(all).await);
        };
        let _ = tokio::time::timeout(LAST_WORDS, gone).await;
    }

    /// `None` when there is nothing to be had now.
    async fn accept(&self, room: &Arc<Semaphore>, end: &CancellationToken) -> Option<(TcpStream, Peer)> {
        let permit = room.clone().acquire_owned().await.ok()?;
        let (stream, address) = self.socket.accept().await.ok()?;
        let _ = stream.set_nodelay(true);
        OPEN.fetch_add(1, Ordering::Relaxed);
        Some((stream, Peer { address, leaving: end.clone(), _seat: Arc::new(Seat(permit)) }))
    }
}

async fn shake_hands(acceptor: &TlsAcceptor, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
    tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await.ok()?.ok()
}
