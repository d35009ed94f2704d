//! Many at once, slow ones among them: nobody else notices, and whoever finds no room is told so.

use std::net::SocketAddr;

use futures_util::future::join_all;
use reqwest::{Method, StatusCode};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::timeout,
};

use crate::stage::{PATIENCE, Server, client, good, refused, until};

/// A stream that is begun. Whoever holds it reads when it likes.
async fn opened(server: &Server, path: &str) -> TcpStream {
    let mut stream = asking(server, path).await;
    reads_until(&mut stream, "event: start").await;
    stream
}

async fn asking(server: &Server, path: &str) -> TcpStream {
    asking_with(server, &server.key, path).await
}

async fn asking_with(server: &Server, key: &str, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).await.unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

async fn reads_until(stream: &mut TcpStream, word: &str) {
    let (mut all, mut part) = (Vec::new(), [0; 4096]);
    while !all.windows(word.len()).any(|window| window == word.as_bytes()) {
        let read = timeout(PATIENCE, stream.read(&mut part)).await.expect("it comes in time").unwrap();
        assert!(read > 0, "it ended after {}", String::from_utf8_lossy(&all));
        all.extend(&part[..read]);
    }
}

fn resident_mib(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

#[tokio::test]
async fn a_thousand_idle_streams_and_readers_that_stand_still_slow_nobody() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let server = Server::start();
    let quiet = server.begin("one", "sleep 600").await;
    let loud = server.begin("two", "head -c 64M /dev/zero | tr '\\0' x; echo; sleep 600").await;
    let said = format!("/v1/tasks/{loud}/output?from={}&to={}", 64 << 20, (64 << 20) + 1);
    let all_said = || async {
        let answer = server.request(Method::GET, &said).send().await.unwrap();
        (answer.text().await.unwrap() == "\n").then_some(())
    };
    until(all_said).await;
    let (mut idle, mut slow) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let path = format!("/v1/tasks/{quiet}/stream");
        idle.extend(join_all((0..50).map(|_| opened(&server, &path))).await);
    }
    for _ in 0..50 {
        slow.push(opened(&server, &format!("/v1/tasks/{loud}/stream")).await);
    }
    // All that others do goes on, and ends as it should.
    let work = (0..40).map(|n| {
        let server = &server;
        async move {
            let scope = format!("other{}", n % 4);
            assert_eq!(server.stdout(&scope, &format!("echo {n} > {n}; cat {n}")).await, format!("{n}\n"));
            let task = server.begin(&scope, &format!("cat {n}")).await;
            assert_eq!(server.ended(&task).await["state"], "succeeded");
        }
    });
    join_all(work).await;
    let mib = resident_mib(&server);
    assert!(mib < 512, "{mib} MiB for 1050 streams, of which 50 have 64 MiB to read each");
    // Those who wait hear of the end, each of them; those who stood still read on.
    good(server.post(&format!("/v1/tasks/{quiet}/cancel"), &json!({})).send().await.unwrap()).await;
    join_all(idle.iter_mut().map(|stream| reads_until(stream, "event: exit"))).await;
    let mut one = slow.pop().unwrap();
    let (mut read, mut part) = (0, vec![0; 1 << 20]);
    while read < 64 << 20 {
        read += timeout(PATIENCE, one.read(&mut part)).await.expect("there is more").unwrap();
    }
}

#[tokio::test]
async fn a_tenant_has_so_many_streams_and_takes_nobody_elses() {
    let server = Server::start_with(&["--max-streams", "5"]);
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let task = server.begin("one", "sleep 600").await;
    let path = format!("/v1/tasks/{task}/stream");
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(opened(&server, &path).await);
    }
    let full = (429, "too_many_streams".to_owned());
    let watch = format!("/v1/sandboxes/{sandbox}/files/watch");
    for path in [path.as_str(), "/v1/events", &watch] {
        let answer = server.request(Method::GET, path).send().await.unwrap();
        assert!(answer.headers().contains_key("retry-after"));
        assert_eq!(refused(answer).await, full, "{path}");
    }
    // What could not be streamed was not run.
    let exec = json!({ "scope": { "scheme": "fixed", "name": "one" }, "command": "touch ran" });
    let streamed = || server.post("/v1/exec", &exec).header("Accept", "text/event-stream").send();
    assert_eq!(refused(streamed().await.unwrap()).await, full);
    assert_eq!(server.stdout("one", "ls").await, "");
    let terminal = server.request(Method::GET, &format!("/v1/sandboxes/{sandbox}/terminal"));
    let terminal = terminal.header("Connection", "upgrade").header("Upgrade", "websocket");
    let terminal =
        terminal.header("Sec-WebSocket-Version", "13").header("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==");
    assert_eq!(refused(terminal.send().await.unwrap()).await, full);
    let other = server.key_for("other", "use").await;
    let theirs = client().get(format!("{}/v1/events", server.url)).bearer_auth(&other).send().await.unwrap();
    assert_eq!(theirs.status(), StatusCode::OK);
    // A place that is left is free.
    held.pop();
    let again = || async { Some(streamed().await.unwrap()).filter(|answer| answer.status().is_success()) };
    let answer = until(again).await;
    assert!(answer.text().await.unwrap().contains("event: exit"));
}

/// The operator hears how it is, and can do something about it.
#[tokio::test]
async fn a_server_without_room_says_so_and_has_room_again() {
    let server = Server::start_with(&["--max-connections", "8"]);
    let user = server.key_for("default", "use").await;
    let task = server.begin("one", "sleep 600").await;
    let at = server.url.strip_prefix("http://").unwrap();
    let asked = async |path: &str, key: &str| {
        let mut stream = TcpStream::connect(at).await.unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\nX-API-KEY: {key}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("it is answered").unwrap();
        answer
    };
    assert!(asked("/v1/quotas", &user).await.starts_with("HTTP/1.1 200"));
    let (mut held, mut told) = (Vec::new(), 0);
    while told < 100 {
        let answer = asked("/v1/quotas", &user).await.to_ascii_lowercase();
        if answer.starts_with("http/1.1 200") {
            // One that was just left may have its seat still: whoever is refused now tries again.
            let mut stream = asking_with(&server, &user, &format!("/v1/tasks/{task}/stream")).await;
            let mut status = [0; 12];
            timeout(PATIENCE, stream.read_exact(&mut status)).await.expect("it is answered").unwrap();
            held.extend((&status == b"HTTP/1.1 200").then_some(stream));
            assert!(held.len() <= 8, "there is a limit");
            continue;
        }
        assert!(answer.starts_with("http/1.1 503") && answer.contains("\"code\":\"too_many_connections\""), "{answer}");
        assert!(answer.contains("\r\nretry-after: 1\r\n") && answer.contains("\r\nconnection: close\r\n"), "{answer}");
        told += 1;
    }
    for (path, key) in [("/livez", ""), ("/readyz", ""), ("/v1/keys", &server.key), ("/metrics", &server.key)] {
        assert!(asked(path, key).await.starts_with("HTTP/1.1 200"), "{path}");
    }
    for key in ["", "e2b_0000000000000000000000000000000000000000", &user] {
        assert!(asked("/v1/quotas", key).await.starts_with("HTTP/1.1 503"), "{key}");
    }
    drop(held);
    until(async || asked("/v1/quotas", &user).await.starts_with("HTTP/1.1 200").then_some(())).await;
}

/// As long as they say nothing they keep their places, and need no key for them.
#[tokio::test]
async fn strangers_leave_room_to_those_who_have_shown_a_key() {
    let server = Server::start_with(&["--max-connections", "40"]);
    server.ensure("one").await;
    let at: SocketAddr = server.url.strip_prefix("http://").unwrap().parse().unwrap();
    let stranger = || async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.7:0".parse().unwrap()).unwrap();
        socket.connect(at).await.unwrap()
    };
    let mut held = Vec::new();
    let refused_stranger = || async {
        let mut stream = stranger().await;
        stream.write_all(b"GET /v1/quotas HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("it is answered").unwrap();
        answer.starts_with("HTTP/1.1 503") && answer.contains("too_many_connections")
    };
    while !refused_stranger().await {
        held.push(stranger().await);
    }
    // Each by a connection of its own.
    for _ in 0..3 {
        let mut stream = asking(&server, "/v1/sandboxes").await;
        let mut status = [0; 12];
        timeout(PATIENCE, stream.read_exact(&mut status)).await.expect("it is answered").unwrap();
        assert_eq!(&status, b"HTTP/1.1 200", "beside {} strangers", held.len());
    }
}
