//! Servers inside that answer badly, and clients that ask badly.

use reqwest::StatusCode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    inside::{at_path, host_of, listening, seen},
    stage::{PATIENCE, Server, good, refused, until},
};

#[tokio::test]
async fn a_server_inside_that_answers_badly_harms_nobody() {
    let server = Server::start();
    let sandbox = listening(&server, "one").await;
    for path in ["garbage", "huge", "switch"] {
        let answer = at_path(&server, &sandbox, path).send().await.unwrap();
        assert_eq!(refused(answer).await, (502, "port_failed".into()), "{path}");
    }
    let short = at_path(&server, &sandbox, "short").send().await.unwrap();
    assert_eq!(short.status(), StatusCode::OK);
    assert!(short.bytes().await.is_err(), "an answer that is cut off is not taken for a whole one");
    good(at_path(&server, &sandbox, "echo").send().await.unwrap()).await;
}

/// A client of HTTP/2 ends its stream where the length is not the body's.
#[tokio::test]
async fn a_length_that_is_not_true_does_not_go_on() {
    let server = Server::start();
    let sandbox = listening(&server, "one").await;
    let http2 = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    for (path, status, length, body) in
        [("once", 200, Some("5"), "hello"), ("twice", 200, None, "hello"), ("none", 204, None, "")]
    {
        let url = format!("{}/p/{sandbox}/8000/length/{path}", server.url);
        let answer = http2.get(url).bearer_auth(&server.key).send().await.unwrap();
        let told = answer.headers().get("content-length").map(|length| length.to_str().unwrap());
        assert_eq!((answer.status().as_u16(), told), (status, length), "{path}");
        assert_eq!(answer.text().await.unwrap(), body, "{path}");
    }
}

/// The lengths of the chunks of an answer.
fn chunks(answer: &str) -> Vec<usize> {
    let (head, mut rest) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.to_ascii_lowercase().contains("transfer-encoding: chunked"), "{head}");
    let mut lengths = Vec::new();
    loop {
        let (length, behind) = rest.split_once("\r\n").unwrap();
        let length = usize::from_str_radix(length, 16).unwrap();
        if length == 0 {
            assert_eq!(behind, "\r\n", "nothing comes after the end");
            return lengths;
        }
        lengths.push(length);
        rest = behind[length..].strip_prefix("\r\n").unwrap();
    }
}

#[tokio::test]
async fn chunks_of_one_byte_go_on_together_and_trailers_do_not_go_on() {
    let server = Server::start();
    let sandbox = listening(&server, "one").await;
    let key = &server.key;
    let crumbs =
        format!("GET /p/{sandbox}/8000/crumbs HTTP/1.1\r\nHost: x\r\nX-API-KEY: {key}\r\nConnection: close\r\n\r\n");
    let lengths = chunks(&raw(&server, &crumbs).await);
    assert_eq!(lengths.iter().sum::<usize>(), 20_000, "nothing is lost");
    assert!(lengths.len() < 2000, "{} chunks", lengths.len());
}

#[tokio::test]
async fn an_answer_has_few_informational_ones_before_it() {
    let server = Server::start();
    let sandbox = listening(&server, "one").await;
    let few = at_path(&server, &sandbox, "hints/16").send().await.unwrap();
    assert_eq!((few.status(), few.text().await.unwrap().as_str()), (StatusCode::OK, "at last"));
    for many in ["hints/17", "hints/100000"] {
        let answer = at_path(&server, &sandbox, many).send().await.unwrap();
        assert_eq!(refused(answer).await, (502, "port_failed".into()), "{many}");
    }
}

/// Sends bytes as they are, and reads until the other side has no more to say.
pub(crate) async fn raw(server: &Server, bytes: &str) -> String {
    let mut stream = TcpStream::connect(server.url.trim_start_matches("http://")).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("the server ends the connection");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn no_request_hides_in_another() {
    let server = Server::start();
    let sandbox = listening(&server, "one").await;
    let (path, key) = (format!("/p/{sandbox}/8000/echo"), format!("Authorization: Bearer {}", server.key));
    let hidden = "GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n";
    let close = "Connection: close\r\n";
    let tried = [
        format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\n{key}\r\n{close}Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"
        ),
        format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\n{key}\r\n{close}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{hidden}"
        ),
        format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\n{key}\r\n{close}Content-Length: 0\r\nContent-Length: 40\r\n\r\n{hidden}"
        ),
        format!("POST {path} HTTP/1.1\r\nHost: x\r\n{key}\r\n{close}Content-Length: +0\r\n\r\n{hidden}"),
        format!("GET {path} HTTP/1.1\r\nHost: x\r\n{key}\r\n{close}X: a\rGET /hidden HTTP/1.1\r\n\r\n"),
        format!("GET {path}%20HTTP/1.1%0d%0aGET%20/hidden HTTP/1.1\r\nHost: x\r\n{key}\r\n{close}\r\n"),
        format!("GET {path} HTTP/1.1\r\nHost: x\r\n{key}\r\nConnection: close, host, content-length\r\n\r\n"),
        format!(
            "GET http://evil.example{path} HTTP/1.1\r\nHost: {}\r\n{key}\r\n{close}\r\n",
            host_of(&server, &sandbox)
        ),
        format!("CONNECT localhost:8000 HTTP/1.1\r\nHost: {}\r\n{key}\r\n{close}\r\n", host_of(&server, &sandbox)),
        format!("TRACE {path} HTTP/1.1\r\nHost: x\r\n{key}\r\n{close}\r\n"),
    ];
    for request in &tried {
        raw(&server, request).await;
    }
    let long = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{key}\r\n{close}X: {}\r\n\r\n", "x".repeat(1 << 20));
    raw(&server, &long).await;
    let seen = server.stdout("one", "cat seen").await;
    for line in seen.lines() {
        let (method, target) = line.split_once(' ').unwrap();
        assert!(matches!(method, "GET" | "POST") && target.starts_with("/echo"), "{line:?} came in");
    }
    // A neighbour's port is not below one's own.
    let other = listening(&server, "two").await;
    let beyond = format!("GET /p/{sandbox}/8000/../../{other}/8000/mine HTTP/1.1\r\nHost: x\r\n{key}\r\n{close}\r\n");
    raw(&server, &beyond).await;
    assert!(!server.stdout("two", "cat seen").await.contains("mine"));
}

#[tokio::test]
async fn no_key_comes_in_wherever_a_client_has_put_it() {
    let server = Server::start();
    let sandbox = listening(&server, "one").await;
    let protocols = format!("chat, cabana.key.{}, v2", server.key);
    let request = at_path(&server, &sandbox, "echo").header("X-API-KEY", "theirs").header("X-API-KEY", &server.key);
    let request = request.header("Authorization", "Basic dTpw").header("Sec-WebSocket-Protocol", protocols);
    let request = request.header("Authorization", format!("Bearer {}", server.key));
    let inside = good(request.send().await.unwrap()).await;
    assert!(!inside.to_string().contains(&server.key), "{inside}");
    assert_eq!(seen(&inside, "x-api-key"), ["theirs"]);
    assert_eq!(seen(&inside, "authorization"), ["Basic dTpw"]);
    let protocols = seen(&inside, "sec-websocket-protocol").concat();
    assert_eq!(protocols.split(',').map(str::trim).collect::<Vec<_>>(), ["chat", "v2"]);
}

/// Asks for something by path, and reads nothing.
async fn asks(server: &Server, sandbox: &str, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.url.trim_start_matches("http://")).await.unwrap();
    let head = format!("GET /p/{sandbox}/8000/{path} HTTP/1.1\r\nHost: x\r\nX-API-KEY: {}\r\n\r\n", server.key);
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn clients_that_never_read_slow_nobody() {
    let server = Server::start();
    let sandbox = listening(&server, "one").await;
    let mut held = Vec::new();
    for _ in 0..50 {
        let stream = asks(&server, &sandbox, "endless").await;
        stream.readable().await.unwrap();
        held.push(stream);
    }
    good(at_path(&server, &sandbox, "echo").send().await.unwrap()).await;
    assert_eq!(server.stdout("two", "echo fine").await, "fine\n");
    drop(held);
}

#[tokio::test]
async fn a_thousand_idle_requests_to_ports_slow_nobody() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let server = Server::start();
    let sandbox = listening(&server, "one").await;
    let mut held = Vec::new();
    for _ in 0..1000 {
        held.push(asks(&server, &sandbox, "silent").await);
    }
    let waiting = || async { server.stdout("one", "grep -c silent seen || true").await.trim() == "1000" };
    until(|| async { waiting().await.then_some(()) }).await;
    good(at_path(&server, &sandbox, "echo").send().await.unwrap()).await;
    assert_eq!(server.stdout("two", "echo fine").await, "fine\n");
    drop(held);
    // Each of them is felt inside, and nothing is left of it.
    let threads = "awk '/^Threads/ { print $2 }' /proc/$(pgrep -o python3)/status";
    until(|| async { (server.stdout("one", threads).await.trim().parse::<u32>().unwrap() < 10).then_some(()) }).await;
}

#[tokio::test]
async fn a_sandbox_has_so_many_connections_to_its_ports_and_takes_nobody_elses() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let server = Server::start();
    let (sandbox, other) = (listening(&server, "one").await, listening(&server, "two").await);
    let mut held = Vec::new();
    for _ in 0..1100 {
        held.push(asks(&server, &sandbox, "silent").await);
    }
    let full = until(|| async {
        let answer = at_path(&server, &sandbox, "echo").send().await.unwrap();
        (!answer.status().is_success()).then_some(answer)
    });
    let full = full.await;
    assert!(full.headers().contains_key("retry-after"));
    assert_eq!(refused(full).await, (503, "too_many_connections".into()));
    good(at_path(&server, &other, "echo").send().await.unwrap()).await;
    assert_eq!(server.stdout("one", "echo commands go on").await, "commands go on\n");
    drop(held);
    until(|| async { at_path(&server, &sandbox, "echo").send().await.unwrap().status().is_success().then_some(()) })
        .await;
}
