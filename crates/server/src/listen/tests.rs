//! Who is let go, and who is not, with times that are shorter than a server's own.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Extension, Router,
    body::{Body, Bytes},
    http::{Request, StatusCode},
    response::{IntoResponse, Response},
    routing::get,
};
use cabana_runtime::{MemoryLedger, Role, Tenant};
use futures_util::{StreamExt, stream};
use http_body_util::BodyExt;
use hyper::{
    body::Incoming,
    client::conn::http2::{Builder, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use super::{Listener, Peer, Places, Room, Seat, seats};
use crate::{Bounds, answers};

/// For what has to come, on a loaded machine too.
const PATIENCE: Duration = Duration::from_secs(60);
const LONG: usize = 2 << 20;
/// Of a head, and of all that are charged.
const HEAD: usize = 60 << 10;
const HEADS: usize = 2 << 20;

fn tenant() -> Tenant {
    Tenant::new("one").unwrap()
}

struct Server {
    at: SocketAddr,
    /// Answers without an end that somebody takes.
    open: Arc<AtomicUsize>,
    heads: MemoryLedger,
    tasks: TaskTracker,
    _end: DropGuard,
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Server {
    async fn start(head: Duration, quiet: Duration) -> Self {
        Self::with(Bounds { head, quiet, stranger: HOURS, ..Bounds::default() }).await
    }

    /// `/endless` has no end, `/waiting` says nothing besides, `/long` is of one piece, `/head` has a long head that is charged, and
    /// `/key` is as if a key was shown.
    async fn with(bounds: Bounds) -> Self {
        let (open, of_answers) = (Arc::<AtomicUsize>::default(), CancellationToken::new());
        let counter = open.clone();
        let endless = async move || {
            counter.fetch_add(1, Ordering::SeqCst);
            let counted = Counted(counter.clone());
            Body::from_stream(stream::repeat(Bytes::from(vec![7; 64 << 10])).map(move |bytes| {
                let _open = &counted;
                Ok::<_, Infallible>(bytes)
            }))
        };
        let heads = MemoryLedger::new(HEADS, 2 * HEADS);
        let of_heads = heads.clone();
        let long_head = async move || {
            let mut memory = of_heads.open(&tenant());
            if !memory.grow(HEAD) {
                return StatusCode::TOO_MANY_REQUESTS.into_response();
            }
            let mut answer = [("long", "x".repeat(HEAD))].into_response();
            answers::keep_head(answer.headers_mut(), memory);
            answer
        };
        let waiting = async || Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
        let router = Router::new()
            .route("/", get(async || "hello"))
            .route("/endless", get(endless))
            .route("/waiting", get(waiting))
            .route(
                "/public",
                get(async |request: axum::extract::Request| {
                    Peer::visit(request.extensions());
                    Body::from_stream(stream::pending::<Result<Bytes, Infallible>>())
                }),
            )
            .route("/closed", get(async |request: axum::extract::Request| Peer::visit(request.extensions())))
            .route(
                "/key",
                get(async |Extension(peer): Extension<Peer>| peer.note_key(&tenant(), Role::Use).is_ok().to_string()),
            )
            .route("/head", get(long_head))
            .route("/long", get(async || vec![7; LONG]));
        let listener = Listener::bind(([127, 0, 0, 1], 0).into(), None, false).await.unwrap();
        let (at, end, tasks) = (listener.address().unwrap(), of_answers, TaskTracker::new());
        let told = end.clone();
        tasks.spawn(async move { listener.serve(router, &bounds, told.clone(), told).await });
        Self { at, open, heads, tasks, _end: end.drop_guard() }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.at).await.unwrap()
    }

    /// One of HTTP/2, which replies to pings; and a token that is set once it has ended.
    async fn client(&self) -> (SendRequest<Body>, CancellationToken) {
        let mut builder = Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
        let (sender, connection) = builder.handshake(TokioIo::new(self.connect().await)).await.unwrap();
        let ended = CancellationToken::new();
        let guard = ended.clone().drop_guard();
        self.tasks.spawn(async move {
            let _guard = guard;
            let _ = connection.await;
        });
        (sender, ended)
    }

    /// Whether there is room for as many heads as ever.
    fn has_all_room(&self) -> bool {
        self.heads.open(&tenant()).grow(HEADS)
    }

    async fn all_are_given_up(&self) {
        let looking = async {
            while self.open.load(Ordering::SeqCst) > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, looking).await.expect("it is given up");
    }
}

async fn ask(sender: &mut SendRequest<Body>, path: &str) -> Response<Incoming> {
    let request = Request::get(format!("http://x{path}")).body(Body::empty()).unwrap();
    timeout(PATIENCE, sender.send_request(request)).await.expect("it is answered").unwrap()
}

async fn is_over(ended: &CancellationToken) {
    timeout(PATIENCE, ended.cancelled()).await.expect("it is let go");
}

const SHORT: Duration = Duration::from_millis(500);
const HOURS: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn a_connection_on_which_nothing_is_asked_is_let_go() {
    let server = Server::start(SHORT, HOURS).await;
    let settings = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    for said in [&b""[..], b"G", b"PRI * HTTP/2.0\r\n", settings] {
        let mut stream = server.connect().await;
        stream.write_all(said).await.unwrap();
        let end = timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await;
        assert!(end.is_ok(), "it is let go of {said:?}");
    }
    is_over(&server.client().await.1).await;
}

#[tokio::test]
async fn a_connection_of_http2_without_requests_is_let_go_and_one_that_waits_for_an_answer_is_not() {
    let server = Server::start(HOURS, SHORT).await;
    let (mut waits, still) = server.client().await;
    let waiting = ask(&mut waits, "/waiting").await;
    let (mut idle, ended) = server.client().await;
    let hello = ask(&mut idle, "/").await.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(&hello[..], b"hello");
    is_over(&ended).await;
    assert!(!still.is_cancelled());
    assert_eq!(ask(&mut waits, "/").await.status(), 200);
    drop(waiting);
    is_over(&still).await;
}

#[tokio::test]
async fn a_client_of_http2_that_takes_nothing_is_let_go() {
    let server = Server::start(HOURS, SHORT).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        let (mut sender, ended) = server.client().await;
        let answers = [ask(&mut sender, "/endless").await, ask(&mut sender, "/long").await];
        held.push((sender, ended, answers));
    }
    for (_, ended, _) in &held {
        is_over(ended).await;
    }
    server.all_are_given_up().await;
}

#[tokio::test]
async fn a_client_of_http1_that_does_not_read_is_let_go() {
    let server = Server::start(HOURS, SHORT).await;
    let mut silent = Vec::new();
    for path in ["/endless", "/waiting"] {
        let mut stream = server.connect().await;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
        let mut status = [0; 12];
        timeout(PATIENCE, stream.read_exact(&mut status)).await.expect("it is answered").unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
        silent.push(stream);
    }
    server.all_are_given_up().await;
    // Where there is nothing to read, nobody is held to have to.
    let mut rest = [0; 4096];
    let heard = silent[1].try_read(&mut rest).unwrap();
    assert!(
        heard > 0 && silent[1].try_read(&mut rest).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    );
}

#[tokio::test]
async fn a_client_that_takes_little_at_a_time_gets_all_of_a_long_answer() {
    let server = Server::start(HOURS, Duration::from_secs(2)).await;
    let (mut sender, _ended) = server.client().await;
    let mut body = ask(&mut sender, "/long").await.into_body();
    let (mut taken, begun) = (0, std::time::Instant::now());
    while let Some(frame) = timeout(PATIENCE, body.frame()).await.expect("there is more") {
        taken += frame.unwrap().into_data().unwrap().len();
        // For longer than a client may be idle.
        if begun.elapsed() < Duration::from_secs(5) {
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }
    assert_eq!(taken, LONG);
}

/// All that a client of HTTP/2 may send before somebody reads: of each stream, and of all of them.
#[tokio::test]
async fn a_connection_takes_little_that_nobody_reads() {
    const SETTINGS: u8 = 4;
    const ACK: u8 = 1;
    const WINDOW_UPDATE: u8 = 8;
    const INITIAL_WINDOW_SIZE: u16 = 4;
    let server = Server::start(PATIENCE, PATIENCE).await;
    let mut stream = server.connect().await;
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let (mut of_stream, mut of_connection) = (None, 65_535);
    let reading = async {
        while of_stream.is_none() || of_connection == 65_535 {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.unwrap();
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            stream.read_exact(&mut payload).await.unwrap();
            let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
            match head[3] {
                SETTINGS if head[4] & ACK == 0 => {
                    let mut settings = payload.chunks_exact(6);
                    let window = settings.find(|setting| setting[..2] == INITIAL_WINDOW_SIZE.to_be_bytes());
                    of_stream = Some(window.map_or(65_535, |setting| number(&setting[2..])));
                }
                WINDOW_UPDATE => of_connection += number(&payload),
                _ => {}
            }
        }
    };
    timeout(PATIENCE, reading).await.expect("it says so at once");
    assert_eq!((of_stream, of_connection), (Some(256 << 10), 256 << 10));
}

/// As many requests of HTTP/2 as a connection may have, whose answers nobody reads.
fn requests(path: &str) -> Vec<u8> {
    let mut said = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    let head = [&[0x82, 0x86, 0x04, path.len() as u8][..], path.as_bytes(), b"\x01\x01x"].concat();
    for number in 0..250_u32 {
        let whole_and_last = [0, 0, head.len() as u8, 1, 0x5];
        said.extend(whole_and_last.into_iter().chain((2 * number + 1).to_be_bytes()).chain(head.iter().copied()));
    }
    said
}

#[tokio::test]
async fn heads_that_a_client_does_not_take_are_charged_until_it_does() {
    let server = Server::start(HOURS, HOURS).await;
    let mut client = server.connect().await;
    client.write_all(&requests("/head")).await.unwrap();
    let is_full = async {
        while server.heads.open(&tenant()).grow(2 * HEAD) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, is_full).await.expect("they fill all the room that there is");
    let mut taken = vec![0; 64 << 10];
    while !server.has_all_room() {
        let read = timeout(PATIENCE, client.read(&mut taken)).await.expect("there is more to take").unwrap();
        assert!(read > 0, "the connection goes on");
    }
    // Over HTTP/1.1, too.
    let mut other = server.connect().await;
    other.write_all(b"GET /head HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut head = Vec::new();
    timeout(PATIENCE, other.read_to_end(&mut head)).await.expect("it is answered").unwrap();
    assert!(head.starts_with(b"HTTP/1.1 200") && server.has_all_room());
}

/// However often it asks for what is open to everybody, and whether or not something of that goes on.
#[tokio::test]
async fn a_client_that_nothing_has_let_in_is_let_go_and_one_that_showed_a_key_is_not() {
    let server = Server::with(Bounds { stranger: SHORT, ..Bounds::default() }).await;
    let (mut keyed, still) = server.client().await;
    ask(&mut keyed, "/key").await;
    let (mut asks, ended) = server.client().await;
    let asking = async {
        while !ended.is_cancelled() {
            let request = Request::get("http://x/").body(Body::empty()).unwrap();
            let _ = asks.send_request(request).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, asking).await.expect("it is let go");
    for path in ["/waiting", "/endless"] {
        let (mut waits, ended) = server.client().await;
        let _waiting = ask(&mut waits, path).await;
        is_over(&ended).await;
    }
    assert!(!still.is_cancelled());
    assert_eq!(ask(&mut keyed, "/").await.status(), 200);
}

/// What is open to everybody lets a client in as long as it goes on, and not for what it asks for then.
#[tokio::test]
async fn a_visitor_stays_as_long_as_its_visit() {
    let server = Server::with(Bounds { stranger: SHORT, ..Bounds::default() }).await;
    let (mut visits, still) = server.client().await;
    let visit = ask(&mut visits, "/public").await;
    let (mut asks, ended) = server.client().await;
    ask(&mut asks, "/closed").await.into_body().collect().await.unwrap();
    let asking = async {
        while !ended.is_cancelled() {
            let request = Request::get("http://x/").body(Body::empty()).unwrap();
            let _ = asks.send_request(request).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, asking).await.expect("it is let go");
    assert!(!still.is_cancelled());
    drop(visit);
    is_over(&still).await;
}

#[tokio::test]
async fn a_connection_has_an_age_and_what_goes_on_in_it_by_then_goes_on() {
    let server = Server::with(Bounds { age: SHORT, ..Bounds::default() }).await;
    let (mut sender, ended) = server.client().await;
    ask(&mut sender, "/key").await;
    let mut endless = ask(&mut sender, "/endless").await.into_body();
    let asking = async {
        loop {
            let request = Request::get("http://x/").body(Body::empty()).unwrap();
            if sender.send_request(request).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, asking).await.expect("it is told that it takes nothing new");
    for _ in 0..100 {
        timeout(PATIENCE, endless.frame()).await.expect("there is more").unwrap().unwrap();
    }
    drop(endless);
    is_over(&ended).await;
}

#[test]
fn a_tenant_leaves_connections_to_another() {
    let room = Room::new(100, Arc::default());
    let (of_tenants, two) = (Places::new(16), Tenant::new("two").unwrap());
    let seat = || Seat::new(room.take([127, 0, 0, 1].into()).unwrap(), of_tenants.clone());
    let others = seat();
    assert!(others.is_for(&two) && others.is_for(&two));
    let mut held = Vec::new();
    loop {
        let seat = seat();
        match seat.is_for(&tenant()) {
            true => held.push(seat),
            false => break,
        }
    }
    assert_eq!(held.len(), 8, "half of them, while another tenant has some");
    let more = seat();
    assert!(more.is_for(&two), "another one finds room");
    assert!(held[0].is_for(&two), "others may come by a connection that is one tenant's");
    drop(held.pop());
    assert!(seat().is_for(&tenant()));
}

#[test]
fn connections_leave_most_descriptors_to_others() {
    assert_eq!(seats(4096, u64::MAX), 4096);
    assert_eq!(seats(4096, 4 * 4096), 4096);
    assert_eq!(seats(4096, 1024), 256);
}
