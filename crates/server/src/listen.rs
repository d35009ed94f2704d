//! Where clients come in: addresses, TLS, and what bounds a connection.

mod known;
mod line;
mod progress;
mod room;
#[cfg(test)]
mod tests;

use std::{
    convert::Infallible,
    io,
    net::{IpAddr, SocketAddr},
    ops::ControlFlow,
    path::Path,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::FromRequestParts,
    http::{Extensions, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use cabana_runtime::{Code, Live, Role, Tenant};
use cabana_sandbox::{Holder, Place, Places};
use hyper::{Request, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use rustix::process::{Resource, getrlimit};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;

use self::{
    known::KnownAddresses,
    line::Line,
    progress::{AnswerBody, Progress},
    room::{Permit, Room},
};
use crate::{App, Bounds, auth, error::Refused};

/// A certificate and its key. All clones are one: who is replaced is replaced for all.
#[derive(Clone)]
pub struct Tls(Arc<Live<Certified>>);

struct Certified {
    acceptor: TlsAcceptor,
    /// What it was read from.
    pem: [Vec<u8>; 2],
}

/// Of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// When the kernel has no more descriptors to give: it is asked again, not all the time.
const BREATH: Duration = Duration::from_millis(50);
/// As many are told that there is no room, at a time.
const DOORSTEP: usize = 64;
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
        Ok(Self(Arc::new(Live::new(Certified::read(chain, key)?))))
    }

    /// For connections from now on. Those that cannot be read change nothing. True: they are others than before.
    pub fn read_again(&self, chain: &Path, key: &Path) -> Result<bool, ListenError> {
        let read = Certified::read(chain, key)?;
        let is_new = read.pem != self.0.pem;
        if is_new {
            self.0.replace(read);
        }
        Ok(is_new)
    }
}

impl Certified {
    fn read(chain: &Path, key: &Path) -> Result<Self, ListenError> {
        let bad = |what, path: &Path, why: &dyn std::fmt::Display| ListenError::Tls {
            what,
            path: path.display().to_string(),
            why: why.to_string(),
        };
        let pem = [
            std::fs::read(chain).map_err(|error| bad("the certificate", chain, &error))?,
            std::fs::read(key).map_err(|error| bad("the key", key, &error))?,
        ];
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem[0]).collect();
        let certificates = certificates.map_err(|error| bad("the certificate", chain, &error))?;
        if certificates.is_empty() {
            return Err(bad("the certificate", chain, &"there is none in it"));
        }
        let private = PrivateKeyDer::from_pem_slice(&pem[1]).map_err(|error| bad("the key", key, &error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| bad("the certificate", chain, &error))?
            .with_no_client_auth()
            .with_single_cert(certificates, private)
            .map_err(|error| bad("the certificate", chain, &error))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), pem })
    }
}

/// Who is at the other end. A connection that has become something else than HTTP keeps its seat by holding this.
#[derive(Clone)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) leaving: CancellationToken,
    /// There was no room: it is here for a moment, for its health or as the operator.
    pub(crate) is_at_door: bool,
    resets: Arc<AtomicBool>,
    known: Arc<KnownAddresses>,
    progress: Progress,
    seat: Arc<Seat>,
}

impl Peer {
    /// It has shown a good key. `Err`: its tenant has as many connections as it may; the operator is never refused for that.
    pub(crate) fn note_key(&self, tenant: &Tenant, role: Role) -> Result<(), Refused> {
        let is_own = self.address.ip().to_canonical().is_loopback(); // a proxy, it may be, and all are behind it
        let counts = !is_own && !self.is_at_door && role < Role::Admin;
        if counts && !self.seat.is_for(tenant) {
            let why = "the tenant has as many connections as it may while others have some";
            return Err(Refused::new(Code::TooManyConnections, why));
        }
        self.known.note(self.address.ip(), tenant);
        self.stay();
        Ok(())
    }

    fn stay(&self) {
        self.progress.let_in();
        self.seat.let_in();
    }

    /// Something else than a key has let it in: a token, a link, a signature.
    pub(crate) fn let_in(extensions: &Extensions) {
        if let Some(peer) = extensions.get::<Self>() {
            peer.stay();
        }
    }

    /// What it asks for is open to everybody who knows where it is.
    pub(crate) fn visit(extensions: &Extensions) {
        if let Some(peer) = extensions.get::<Self>() {
            peer.progress.visit();
        }
    }

    /// Of IPv6 the network that one client has.
    pub(crate) fn network(&self) -> IpAddr {
        known::network(self.address.ip())
    }

    /// When the connection ends, it is reset and not closed.
    pub(crate) fn reset(&self) {
        self.resets.store(true, Ordering::Relaxed);
    }
}

/// Set when the server is told to end: what has no end of its own ends then.
pub(crate) struct Leaving(pub(crate) CancellationToken);

impl<S: Sync> FromRequestParts<S> for Leaving {
    type Rejection = Infallible;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(parts.extensions.get::<Peer>().map(|peer| peer.leaving.clone()).unwrap_or_default()))
    }
}

struct Seat {
    permit: Mutex<Permit>,
    of_tenants: Places,
    /// By the tenant whose key was shown first. Others may come by the same connection, as through a proxy.
    of_tenant: Mutex<Option<Place>>,
}

impl Seat {
    fn new(permit: Permit, of_tenants: Places) -> Self {
        OPEN.fetch_add(1, Ordering::Relaxed);
        Self { permit: Mutex::new(permit), of_tenants, of_tenant: Mutex::default() }
    }

    fn is_for(&self, tenant: &Tenant) -> bool {
        let mut of_tenant = self.of_tenant.lock().unwrap_or_else(PoisonError::into_inner);
        if of_tenant.is_none() {
            *of_tenant = self.of_tenants.take(&Holder::tenant(tenant.as_str()));
        }
        of_tenant.is_some()
    }

    fn let_in(&self) {
        self.permit.lock().unwrap_or_else(PoisonError::into_inner).let_in();
    }
}

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

    /// Until it is told to end. Then what is under way has a while to come to its end, unless there is a hurry; whoever comes
    /// meanwhile hears that nothing new is taken.
    pub async fn serve(self, router: Router, bounds: &Bounds, end: CancellationToken, hurry: CancellationToken) {
        let known = Arc::<KnownAddresses>::default();
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let room = Room::new(seats(bounds.connections, descriptors), known.clone());
        let doorstep = Room::new(DOORSTEP, known.clone());
        let leaving = is_leaving();
        let hall = Hall {
            tls: self.tls,
            bounds: bounds.clone(),
            builder: builder(bounds),
            tasks: TaskTracker::new(),
            end: end.clone(),
            known,
            of_tenants: Places::new(seats(bounds.connections, descriptors)),
        };
        while let Some(accepted) = end.run_until_cancelled(self.socket.accept()).await {
            let Ok((stream, address)) = accepted else {
                tokio::time::sleep(BREATH).await;
                continue;
            };
            if let Some(permit) = room.take(address.ip()) {
                hall.seat(stream, address, permit, &router, Stay::AsLongAsItAsks);
            } else if let Some(permit) = doorstep.take(address.ip()) {
                hall.seat(stream, address, permit, &router, Stay::Shortly); // not even that there is no room can be said to all
            }
        }
        // All that are seated hear that, too. One that has become something else than HTTP is seated as long as it goes on.
        let gone = room.empty();
        let turn_away = async {
            loop {
                match self.socket.accept().await {
                    Ok((stream, address)) => {
                        if let Some(permit) = doorstep.take(address.ip()) {
                            hall.seat(stream, address, permit, &leaving, Stay::Shortly);
                        }
                    }
                    Err(_) => tokio::time::sleep(BREATH).await,
                }
            }
        };
        tokio::select! {
            _ = tokio::time::timeout(LAST_WORDS, gone) => {}
            () = hurry.cancelled() => {}
            () = turn_away => {}
        }
    }
}

/// Of HTTP/2: of a stream, and of all streams of a connection together.
const WINDOW: u32 = 256 << 10;

fn builder(bounds: &Bounds) -> Arc<auto::Builder<TokioExecutor>> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(bounds.head).max_buf_size(64 << 10);
    let mut http2 = builder.http2();
    http2.timer(TokioTimer::new()).max_concurrent_streams(256).keep_alive_interval(Duration::from_secs(20));
    http2.max_send_buf_size(64 << 10); // of each stream
    // What a client may send before anybody reads it, or knows whose it is.
    http2.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
    Arc::new(builder)
}

/// How long a client may stay.
enum Stay {
    AsLongAsItAsks,
    /// It is only told something.
    Shortly,
}

/// Where clients are served.
struct Hall {
    tls: Option<Tls>,
    bounds: Bounds,
    builder: Arc<auto::Builder<TokioExecutor>>,
    tasks: TaskTracker,
    end: CancellationToken,
    known: Arc<KnownAddresses>,
    of_tenants: Places,
}

impl Hall {
    fn seat(&self, stream: TcpStream, address: SocketAddr, permit: Permit, router: &Router, stay: Stay) {
        let _ = stream.set_nodelay(true);
        let quiet = u32::try_from(self.bounds.quiet.as_millis()).unwrap_or(u32::MAX);
        // A client that does not read for so long is let go. Nothing else ends its connection while it answers the kernel's probes.
        let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, quiet);
        let (resets, progress) = (Arc::<AtomicBool>::default(), Progress::new(&self.bounds));
        let stream = Line::new(stream, resets.clone(), progress.clone());
        let (leaving, known) = (self.end.clone(), self.known.clone());
        let (is_at_door, seat) = (matches!(stay, Stay::Shortly), Seat::new(permit, self.of_tenants.clone()));
        let progress_of_peer = progress.clone();
        let peer =
            Peer { address, leaving, is_at_door, resets, known, progress: progress_of_peer, seat: Arc::new(seat) };
        let client = Client {
            builder: self.builder.clone(),
            router: router.clone(),
            stay,
            progress,
            leaving: self.end.clone(),
            age: self.bounds.age,
            peer,
        };
        let tls = self.tls.clone();
        self.tasks.spawn(async move {
            // Who breaks off has said all that there is to say.
            match tls {
                None => client.serve(stream).await,
                Some(tls) => {
                    if let Some(stream) = client.handshake(&tls, stream).await {
                        client.serve(stream).await;
                    }
                }
            }
        });
    }
}

/// One that is served.
struct Client {
    builder: Arc<auto::Builder<TokioExecutor>>,
    router: Router,
    stay: Stay,
    progress: Progress,
    leaving: CancellationToken,
    age: Duration,
    peer: Peer,
}

impl Client {
    async fn handshake(&self, tls: &Tls, stream: Line) -> Option<TlsStream<Line>> {
        let shaken = tokio::time::timeout(HANDSHAKE, tls.0.acceptor.accept(stream));
        let shaken = match self.stay {
            Stay::AsLongAsItAsks => self.leaving.run_until_cancelled(shaken).await?,
            Stay::Shortly => shaken.await,
        };
        let stream = shaken.ok()?.ok()?;
        self.progress.restart();
        Some(stream)
    }

    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let Self { builder, router, stay, progress, leaving, age, peer } = self;
        // Not all that came together have to come again together.
        let age = age + age / 8 * u32::from(peer.address.port() % 8) / 8;
        let of_connection = progress.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            let open = of_connection.begin();
            request.extensions_mut().insert(peer.clone());
            let answer = router.clone().oneshot(request);
            async move {
                let mut answer = answer.await?;
                if answer.status() == StatusCode::NO_CONTENT {
                    answer.headers_mut().remove(header::CONTENT_LENGTH); // the framework says 0, and there must be none
                }
                Ok::<_, Infallible>(answer.map(|body| AnswerBody::new(body, open)))
            }
        });
        let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
        if matches!(stay, Stay::Shortly) {
            let _ = tokio::time::timeout(HANDSHAKE, connection).await;
            return;
        }
        let (mut is_leaving, mut is_idle, mut is_old) = (false, false, false);
        let mut old = pin!(tokio::time::sleep(age));
        loop {
            tokio::select! {
                _ = connection.as_mut() => return,
                () = leaving.cancelled(), if !is_leaving => is_leaving = true,
                () = &mut old, if !is_old => is_old = true,
                () = progress.idle() => {
                    if is_idle {
                        return; // it was told, and still takes nothing
                    }
                    is_idle = true;
                    progress.last_chance(HANDSHAKE);
                }
            }
            connection.as_mut().graceful_shutdown();
        }
    }
}

/// What a server says that was told to end, to whoever comes then.
fn is_leaving() -> Router {
    let refuse = async |request: axum::extract::Request| {
        turned_away(&request, Refused::new(Code::Draining, "the server was told to end, and takes nothing new"))
    };
    Router::new().route("/livez", axum::routing::get(crate::health::livez)).fallback(refuse)
}

/// No more than a quarter of the descriptors that this process may have: strangers take them, and all else needs some.
fn seats(most: usize, descriptors: u64) -> usize {
    let may_be = usize::try_from(descriptors / 4).unwrap_or(usize::MAX);
    if may_be < most {
        tracing::warn!(
            connections = may_be,
            nofile = descriptors,
            "fewer connections than server.max_connections says: raise the limit of open files (LimitNOFILE)"
        );
    }
    most.min(may_be)
}

/// To whoever comes when there is no room, but for its health and the operator.
pub(crate) async fn refused_at_door(
    app: &App,
    request: axum::extract::Request,
) -> ControlFlow<Response, axum::extract::Request> {
    let is_at_door = request.extensions().get::<Peer>().is_some_and(|peer| peer.is_at_door);
    if !is_at_door || matches!(request.uri().path(), "/livez" | "/readyz") {
        return ControlFlow::Continue(request);
    }
    let (parts, body) = request.into_parts();
    let is_operator = auth::is_operator(&parts, app).await;
    let request = axum::extract::Request::from_parts(parts, body);
    if is_operator {
        return ControlFlow::Continue(request);
    }
    let refused = Refused::new(Code::TooManyConnections, "the server has as many connections as it takes");
    ControlFlow::Break(turned_away(&request, refused))
}

/// In the words of the front that was meant: at the door nothing else is known of it.
fn turned_away(request: &axum::extract::Request, refused: Refused) -> Response {
    let refused = crate::e2b::worded(request, refused.into_response());
    ([(header::CONNECTION, "close")], refused).into_response()
}
