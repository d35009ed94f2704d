//! Serving one sandbox: its listeners, its limits, its tasks.
//!
//! The listeners were made inside the sandbox's network namespace and are accepted on here, outside of it. All tasks belong
//! to the [`Egress`] and end with it.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use cabana_sandbox::{Holder, Place, Places};
use socket2::SockRef;
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream, UdpSocket},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::sleep,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    decision::Reason,
    dns,
    event::{How, Reporter, Sink},
    gateway::Gateway,
    http,
    lookup::{self, Lookup, Lookups},
    outside::{Outside, tune},
    pace::Pace,
    policy::Policy,
    queues::{self, LongQueues},
    relay::reset,
    socks,
    synthetic::Pool,
    transparent::{self, original_destination},
};

/// Of names, by one sandbox at once.
const LOOKUPS: usize = 16;

/// What init made inside. Any of them may be missing or doubled (one for IPv4, one for IPv6).
#[derive(Debug, Default)]
pub struct Listeners {
    /// Where the namespace's redirect sends every outgoing TCP connection.
    pub transparent: Vec<std::net::TcpListener>,
    pub dns_udp: Vec<std::net::UdpSocket>,
    pub dns_tcp: Vec<std::net::TcpListener>,
    pub http: Vec<std::net::TcpListener>,
    pub socks: Vec<std::net::TcpListener>,
}

/// Where a redirected connection was going.
pub type Original = Arc<dyn Fn(&TcpStream) -> io::Result<SocketAddr> + Send + Sync>;

pub struct Config {
    pub policy: Policy,
    pub limits: Limits,
    pub outside: Outside,
    pub events: Arc<dyn Sink>,
    pub original: Original,
    /// Whose connections and lookups these are, among those of all sandboxes.
    pub holder: Holder,
    /// For the connections of all sandboxes together. One that finds none is reset.
    pub places: Places,
    /// For what waits in them: two for a connection, one where few are left. One that finds none is reset.
    pub queues: Places,
    pub long_queues: LongQueues,
    /// For their lookups of names. One that finds none fails.
    pub lookups: Lookups,
}

impl Config {
    /// With the kernel's word for original destinations, this host's resolver and routes, and the usual limits.
    pub fn new(policy: Policy, events: Arc<dyn Sink>) -> Config {
        let original: Original = Arc::new(original_destination);
        Config {
            policy,
            limits: Limits::default(),
            outside: Outside::system(),
            events,
            original,
            holder: Holder::tenant(""),
            places: Places::default(),
            queues: Places::default(),
            long_queues: LongQueues::default(),
            lookups: Lookups::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Open connections of the sandbox, in whatever state. One more is reset.
    pub connections: usize,
    /// Questions of the DNS over UDP that are worked on. More wait in the socket.
    pub questions: usize,
    /// Of the DNS, whatever way they come; as many more at once after a quiet second. More wait.
    pub questions_per_sec: u32,
    /// Names that have a synthetic address.
    pub names: u32,
    /// For what a client says before it is connected, and for a TLS hello or HTTP head once it began.
    pub handshake: Duration,
    /// For a lookup, and for the connection after it.
    pub connect: Duration,
    /// Without a byte in either direction.
    pub idle: Duration,
    /// How long the addresses of a name are used before it is looked up again. They are judged each time.
    pub fresh: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 512,
            questions: 64,
            questions_per_sec: 500,
            names: 16_384,
            handshake: Duration::from_secs(10),
            connect: Duration::from_secs(10),
            idle: Duration::from_secs(3600),
            fresh: Duration::from_secs(5),
        }
    }
}

/// The network of one sandbox, being served. Dropping it ends every connection.
pub struct Egress {
    policy: watch::Sender<Arc<Policy>>,
    tasks: Tasks,
    /// Where it takes connections.
    addresses: Vec<SocketAddr>,
}

/// Takes the listeners and serves them. Must be called within a tokio runtime.
pub fn serve(listeners: Listeners, config: Config) -> io::Result<Egress> {
    let Config { policy, limits, outside, events, original, holder, places, queues, long_queues, lookups } = config;
    let (policy, watched) = watch::channel(Arc::new(policy));
    let tasks = Tasks::new(&limits, holder.clone(), places, queues);
    let Limits { connect: patience, fresh, .. } = limits;
    let long_queues = (long_queues, holder.clone());
    let lookup_bounds = lookup::Bounds { at_once: LOOKUPS, holder, of_all: lookups, patience, fresh };
    let gateway = Arc::new(Gateway {
        limits,
        policy: watched,
        reporter: Reporter::new(events),
        lookup: Lookup::new(outside.resolve, lookup_bounds),
        connect: outside.connect,
        long_queues,
        pool: Mutex::new(Pool::new(limits.names)),
        questions: Pace::new(limits.questions_per_sec, limits.questions_per_sec),
    });
    // All or none: a descriptor that cannot be served must not leave the others half served.
    let transparent = tcp(listeners.transparent)?;
    // Reset is what happens unless somebody decides otherwise, also to a connection that nobody came to look at.
    transparent.iter().try_for_each(|listener| SockRef::from(listener).set_linger(Some(Duration::ZERO)))?;
    let ways = [
        (Way::Transparent(original), transparent),
        (Way::DnsTcp, tcp(listeners.dns_tcp)?),
        (Way::Http, tcp(listeners.http)?),
        (Way::Socks, tcp(listeners.socks)?),
    ];
    let of_all = ways.iter().flat_map(|(_, listeners)| listeners).map(TcpListener::local_addr);
    let addresses = of_all.collect::<io::Result<Vec<_>>>()?;
    let datagrams = listeners.dns_udp.into_iter().map(udp).collect::<io::Result<Vec<_>>>()?;
    for (way, listeners) in ways {
        for listener in listeners {
            tasks.spawn(accept(gateway.clone(), tasks.clone(), way.clone(), listener));
        }
    }
    for socket in datagrams {
        tasks.spawn(dns::serve_udp(gateway.clone(), tasks.clone(), socket));
    }
    Ok(Egress { policy, tasks, addresses })
}

impl Egress {
    /// New connections see it at once; those that it refuses are reset.
    pub fn set_policy(&self, policy: Policy) {
        self.policy.send_replace(Arc::new(policy));
    }

    /// Whether a connection to this address would be one of the way out.
    pub fn listens_at(&self, address: SocketAddr) -> bool {
        self.addresses.contains(&address)
    }

    /// Connections that are open now.
    pub fn connections(&self) -> usize {
        self.tasks.connections()
    }

    /// Ends everything and waits until it has ended.
    pub async fn close(self) {
        self.tasks.stop.cancel();
        self.tasks.tracker.close();
        self.tasks.tracker.wait().await;
    }
}

impl Drop for Egress {
    fn drop(&mut self) {
        self.tasks.stop.cancel();
    }
}

#[derive(Clone)]
enum Way {
    Transparent(Original),
    DnsTcp,
    Http,
    Socks,
}

async fn accept(gateway: Arc<Gateway>, tasks: Tasks, way: Way, listener: TcpListener) {
    loop {
        let Ok((guest, _)) = listener.accept().await else {
            tasks.breathe().await;
            continue;
        };
        let Ok(place) = tasks.connections.clone().try_acquire_owned() else {
            gateway.refuse(way.how(), "", 0, Reason::TooManyConnections);
            reset(&guest);
            continue;
        };
        let shared = tasks.places.take(&tasks.holder);
        let Some(shared) = shared.zip(queues::bound(&guest, &tasks.queues, &tasks.holder)) else {
            gateway.refuse(way.how(), "", 0, Reason::NoPlace);
            reset(&guest);
            continue;
        };
        tasks.spawn(connection(gateway.clone(), way.clone(), guest, (place, shared)));
    }
}

type Taken = (OwnedSemaphorePermit, (Place, Place));

async fn connection(gateway: Arc<Gateway>, way: Way, guest: TcpStream, _taken: Taken) {
    match way {
        Way::Transparent(original) => transparent::serve(&gateway, &original, guest).await,
        Way::DnsTcp => dns::serve_tcp(&gateway, guest).await,
        Way::Http => http::proxy::serve(&gateway, guest).await,
        Way::Socks => socks::serve(&gateway, guest).await,
    }
}

impl Way {
    fn how(&self) -> How {
        match self {
            Way::Transparent(_) => How::Transparent,
            Way::DnsTcp => How::Dns,
            Way::Http => How::Http,
            Way::Socks => How::Socks,
        }
    }
}

/// Whatever runs for the sandbox, counted and tracked.
#[derive(Clone)]
pub(crate) struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
    /// Of this sandbox, and of all.
    connections: Arc<Semaphore>,
    most: usize,
    holder: Holder,
    places: Places,
    queues: Places,
    pub(crate) questions: Arc<Semaphore>,
}

impl Tasks {
    fn new(limits: &Limits, holder: Holder, places: Places, queues: Places) -> Tasks {
        Tasks {
            tracker: TaskTracker::new(),
            stop: CancellationToken::new(),
            connections: Arc::new(Semaphore::new(limits.connections)),
            most: limits.connections,
            holder,
            places,
            queues,
            questions: Arc::new(Semaphore::new(limits.questions)),
        }
    }

    fn connections(&self) -> usize {
        self.most - self.connections.available_permits()
    }

    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tracker.spawn(self.stop.clone().run_until_cancelled_owned(work));
    }

    /// An accept that fails (no descriptors left) fails again at once: without a pause this would be a busy loop.
    pub(crate) async fn breathe(&self) {
        sleep(Duration::from_millis(50)).await;
    }
}

fn tcp(listeners: Vec<std::net::TcpListener>) -> io::Result<Vec<TcpListener>> {
    let listen = |listener: std::net::TcpListener| {
        listener.set_nonblocking(true)?;
        // What is accepted inherits it: small answers must not wait for an acknowledgement.
        tune(&SockRef::from(&listener))?;
        TcpListener::from_std(listener)
    };
    listeners.into_iter().map(listen).collect()
}

fn udp(socket: std::net::UdpSocket) -> io::Result<UdpSocket> {
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

/// Reads until the parser has a whole; what was read beyond it stays in `bytes`. The parser bounds the length, and is told
/// where the new bytes begin, so that a guest that sends them one by one does not have all of them read again each time.
pub(crate) async fn read_until<T, E>(
    stream: &mut TcpStream,
    bytes: &mut Vec<u8>,
    parse: impl Fn(&[u8], usize) -> Result<Option<(T, usize)>, E>,
) -> io::Result<Result<T, E>> {
    let mut seen = 0;
    loop {
        match parse(bytes, seen) {
            Ok(Some((whole, len))) => {
                bytes.drain(..len);
                return Ok(Ok(whole));
            }
            Ok(None) => {}
            Err(error) => return Ok(Err(error)),
        }
        seen = bytes.len();
        if stream.read_buf(bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}
