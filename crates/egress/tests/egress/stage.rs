//! A sandbox's network without the sandbox: listeners on the loopback, and a world outside that exists only on paper.
//!
//! Names and public addresses are mapped to servers of the test. The rules see the public addresses, so nothing about them
//! is weakened for the tests.

use std::{
    collections::{HashMap, VecDeque},
    io::{Read, Write},
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use async_trait::async_trait;
use cabana_egress::{
    Config, Connect, Egress, Event, Limits, Listeners, Name, Outer, Outside, Policy, Resolve, ResolveError, serve,
};
use cabana_sandbox::{Holder, NetworkPolicy, Places};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// The address of example.com, and of nobody's server in the tests.
pub(crate) const EXAMPLE: &str = "93.184.216.34";

#[derive(Default)]
pub(crate) struct World {
    /// Each answer is given once, the last one for ever.
    names: Mutex<HashMap<String, VecDeque<Vec<IpAddr>>>>,
    servers: Mutex<HashMap<SocketAddr, SocketAddr>>,
    pub(crate) looked_up: Mutex<Vec<String>>,
    pub(crate) dialled: Mutex<Vec<SocketAddr>>,
}

impl World {
    pub(crate) fn name(&self, name: &str, answers: &[&[&str]]) {
        let answers = answers.iter().map(|answer| answer.iter().map(|address| address.parse().unwrap()).collect());
        self.names.lock().unwrap().insert(name.into(), answers.collect());
    }

    pub(crate) fn server(&self, public: &str, real: SocketAddr) {
        self.servers.lock().unwrap().insert(public.parse().unwrap(), real);
    }
}

#[async_trait]
impl Resolve for World {
    async fn resolve(&self, name: &Name) -> Result<Vec<IpAddr>, ResolveError> {
        self.looked_up.lock().unwrap().push(name.to_string());
        let mut names = self.names.lock().unwrap();
        let answers = names.get_mut(name.as_str()).ok_or(ResolveError::Missing)?;
        if answers.len() > 1 { Ok(answers.pop_front().unwrap()) } else { Ok(answers[0].clone()) }
    }
}

#[async_trait]
impl Connect for World {
    async fn connect(&self, address: SocketAddr) -> std::io::Result<Outer> {
        self.dialled.lock().unwrap().push(address);
        let server = self.servers.lock().unwrap().get(&address).copied();
        TcpStream::connect(server.ok_or(std::io::ErrorKind::HostUnreachable)?).await.map(Outer::from)
    }
}

pub(crate) struct Stage {
    pub(crate) world: Arc<World>,
    pub(crate) egress: Egress,
    pub(crate) transparent: SocketAddr,
    pub(crate) dns_udp: SocketAddr,
    pub(crate) dns_tcp: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) socks: SocketAddr,
    events: Arc<Mutex<Vec<Event>>>,
    going_to: Arc<Mutex<SocketAddr>>,
}

pub(crate) fn allow(rules: &[&str]) -> NetworkPolicy {
    NetworkPolicy::Allow(rules.iter().map(|rule| (*rule).to_owned()).collect())
}

pub(crate) fn policy(wanted: &NetworkPolicy) -> Policy {
    Policy::new(wanted, []).unwrap()
}

/// Tests that change an answer must not get an old one.
pub(crate) fn limits() -> Limits {
    Limits { fresh: Duration::ZERO, ..Limits::default() }
}

impl Stage {
    pub(crate) fn new(wanted: &NetworkPolicy) -> Stage {
        Stage::with(wanted, limits(), |world| Outside { resolve: world.clone(), connect: world })
    }

    pub(crate) fn with(wanted: &NetworkPolicy, limits: Limits, outside: impl FnOnce(Arc<World>) -> Outside) -> Stage {
        Stage::among((Places::default(), Holder::tenant("alone")), wanted, limits, outside)
    }

    /// One of several sandboxes that share these places.
    pub(crate) fn among(
        shared: (Places, Holder),
        wanted: &NetworkPolicy,
        limits: Limits,
        outside: impl FnOnce(Arc<World>) -> Outside,
    ) -> Stage {
        Stage::built(shared, Places::default(), wanted, limits, outside)
    }

    /// Alone, with these places for what waits in its connections.
    pub(crate) fn with_queues(queues: Places, limits: Limits) -> Stage {
        let alone = (Places::default(), Holder::tenant("alone"));
        Stage::built(alone, queues, &NetworkPolicy::Public, limits, |world| Outside {
            resolve: world.clone(),
            connect: world,
        })
    }

    fn built(
        (places, holder): (Places, Holder),
        queues: Places,
        wanted: &NetworkPolicy,
        limits: Limits,
        outside: impl FnOnce(Arc<World>) -> Outside,
    ) -> Stage {
        let listen = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = |listener: &std::net::TcpListener| listener.local_addr().unwrap();
        let (transparent, dns_tcp, http, socks) = (listen(), listen(), listen(), listen());
        let dns_udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let (world, events) = (Arc::new(World::default()), Arc::new(Mutex::new(Vec::new())));
        let going_to = Arc::new(Mutex::new(at(&transparent)));
        let (kept, goal) = (events.clone(), going_to.clone());
        let mut config = Config::new(policy(wanted), Arc::new(move |event| kept.lock().unwrap().push(event)));
        config.limits = limits;
        (config.places, config.queues, config.holder) = (places, queues, holder);
        config.outside = outside(world.clone());
        config.original = Arc::new(move |_| Ok(*goal.lock().unwrap()));
        let addresses = (at(&transparent), dns_udp.local_addr().unwrap(), at(&dns_tcp), at(&http), at(&socks));
        let listeners = Listeners {
            transparent: vec![transparent],
            dns_udp: vec![dns_udp],
            dns_tcp: vec![dns_tcp],
            http: vec![http],
            socks: vec![socks],
        };
        let egress = serve(listeners, config).unwrap();
        let (transparent, dns_udp, dns_tcp, http, socks) = addresses;
        Stage { world, egress, transparent, dns_udp, dns_tcp, http, socks, events, going_to }
    }

    pub(crate) fn name(&self, name: &str, answers: &[&[&str]]) {
        self.world.name(name, answers);
    }

    pub(crate) fn server(&self, public: &str, real: SocketAddr) {
        self.world.server(public, real);
    }

    /// `example.com` has this server on the port.
    pub(crate) fn example(&self, port: u16, real: SocketAddr) {
        self.name("example.com", &[&[EXAMPLE]]);
        self.server(&format!("{EXAMPLE}:{port}"), real);
    }

    /// A connection that the redirect caught on its way to the address.
    pub(crate) async fn redirected(&self, to: &str) -> TcpStream {
        *self.going_to.lock().unwrap() = to.parse().unwrap();
        TcpStream::connect(self.transparent).await.unwrap()
    }

    /// The same by name: asked of the inner DNS first.
    pub(crate) async fn redirected_to_name(&self, name: &str, port: u16) -> TcpStream {
        let address = crate::dns::look_up(self, name).await.expect("the name has an address");
        self.redirected(&SocketAddr::new(address, port).to_string()).await
    }

    pub(crate) async fn tunnel(&self, target: &str) -> (TcpStream, String) {
        let mut stream = TcpStream::connect(self.http).await.unwrap();
        stream.write_all(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").as_bytes()).await.unwrap();
        let head = read_head(&mut stream).await;
        (stream, head)
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    pub(crate) fn last_refusal(&self) -> Event {
        self.events().into_iter().rfind(|event| !event.allowed).expect("something was refused")
    }

    pub(crate) fn dialled(&self) -> Vec<String> {
        self.world.dialled.lock().unwrap().iter().map(ToString::to_string).collect()
    }
}

pub(crate) async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}

/// Sends a raw request to the HTTP proxy and reads all of the answer.
pub(crate) async fn ask(at: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(at).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

/// Whether the connection ends by reset, without a byte.
pub(crate) async fn is_reset(stream: &mut TcpStream) -> bool {
    matches!(stream.read_u8().await, Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset)
}

/// A connection there is reset, by the time that its client knows of it or after.
pub(crate) async fn is_refused_at(at: SocketAddr) -> bool {
    match TcpStream::connect(at).await {
        Ok(mut stream) => is_reset(&mut stream).await,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("in a minute it did not become true that {what}");
}

/// A server of the test's own: each connection is handled on a thread.
pub(crate) fn server(handle: impl Fn(std::net::TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let handle = Arc::new(handle);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let handle = handle.clone();
            thread::spawn(move || handle(stream));
        }
    });
    address
}

pub(crate) fn echo() -> SocketAddr {
    server(|mut stream| {
        let mut buffer = [0; 65536];
        while let Ok(len @ 1..) = stream.read(&mut buffer) {
            if stream.write_all(&buffer[..len]).is_err() {
                return;
            }
        }
    })
}

/// A web server that keeps what it was sent: all bytes of a connection until one request is whole.
#[derive(Clone, Default)]
pub(crate) struct Web {
    pub(crate) seen: Arc<Mutex<Vec<String>>>,
}

impl Web {
    pub(crate) fn start(answer: &'static str) -> (Web, SocketAddr) {
        let web = Web::default();
        let seen = web.seen.clone();
        let address = server(move |mut stream| {
            let mut request = Vec::new();
            let mut buffer = [0; 65536];
            while !is_whole(&request) {
                match stream.read(&mut buffer) {
                    Ok(len @ 1..) => request.extend_from_slice(&buffer[..len]),
                    _ => break,
                }
            }
            seen.lock().unwrap().push(String::from_utf8_lossy(&request).into_owned());
            let _ = stream.write_all(answer.as_bytes());
        });
        (web, address)
    }

    pub(crate) fn hello() -> (Web, SocketAddr) {
        Web::start("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    if head.contains("transfer-encoding: chunked") {
        return body.ends_with("0\r\n\r\n");
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
    body.len() >= length.parse().unwrap_or(0)
}

/// A TLS ClientHello with or without a server name, in records of at most `size` bytes.
pub(crate) fn client_hello(name: Option<&str>, size: usize) -> Vec<u8> {
    hello(name, None, size)
}

/// With these bytes where others have zeros.
pub(crate) fn client_hello_with_padding(name: &str, padding: &[u8]) -> Vec<u8> {
    hello(Some(name), Some((21, padding)), 9999)
}

/// With another one in it that only its server can read (ECH), or with what browsers send in its place.
pub(crate) fn client_hello_with_encrypted(name: Option<&str>, size: usize) -> Vec<u8> {
    hello(name, Some((0xfe0d, &[9; 200])), size)
}

/// With one more extension: its kind and what is in it.
fn hello(name: Option<&str>, extension: Option<(u16, &[u8])>, size: usize) -> Vec<u8> {
    let number16 = |number: usize| u16::try_from(number).unwrap().to_be_bytes();
    let mut extensions = vec![0, 43, 0, 3, 2, 3, 4];
    if let Some(name) = name {
        extensions.extend([0, 0]);
        extensions.extend(number16(name.len() + 5));
        extensions.extend(number16(name.len() + 3));
        extensions.push(0);
        extensions.extend(number16(name.len()));
        extensions.extend(name.as_bytes());
    }
    if let Some((kind, inside)) = extension {
        extensions.extend(kind.to_be_bytes());
        extensions.extend(number16(inside.len()));
        extensions.extend(inside);
    }
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 1, 1, 0]);
    body.extend(number16(extensions.len()));
    body.extend(extensions);
    let mut message = vec![1, 0];
    message.extend(number16(body.len()));
    message.extend(body);
    let record = |part: &[u8]| [&[22, 3, 1][..], &number16(part.len()), part].concat();
    message.chunks(size).flat_map(record).collect()
}
