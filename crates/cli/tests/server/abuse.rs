//! Clients that do not behave.

use futures_util::{StreamExt, stream::FuturesUnordered};
use reqwest::Method;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::stage::{PATIENCE, Server, client, good, until};

#[tokio::test]
async fn clients_that_never_finish_their_head_are_let_go_and_hold_up_nobody() {
    let server = Server::start();
    let at = server.url.strip_prefix("http://").unwrap();
    let mut slow = Vec::new();
    for n in 0..200 {
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(format!("GET /livez HTTP/1.1\r\nX-Slow: {n}").as_bytes()).await.unwrap();
        slow.push(stream);
    }
    assert_eq!(server.stdout("one", "echo served").await, "served\n");
    for mut stream in slow {
        let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await;
        assert!(end.is_ok(), "the server lets go of it");
    }
}

#[tokio::test]
async fn clients_that_ask_for_nothing_are_let_go_and_their_seats_are_others() {
    let server = Server::start_with(&["--max-connections", "20"]);
    let at = server.url.strip_prefix("http://").unwrap();
    let mut silent = Vec::new();
    for said in ["", "P", "PRI * HTTP/2.0\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"].repeat(20) {
        let mut stream = TcpStream::connect(at).await.unwrap();
        let _ = stream.write_all(said.as_bytes()).await; // where there is no room, it may be closed by then
        silent.push(stream);
    }
    until(|| async {
        let answer = server.request(Method::GET, "/livez").send().await.ok()?;
        answer.status().is_success().then_some(())
    })
    .await;
    for mut stream in silent {
        let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await;
        assert!(end.is_ok(), "the server lets go of it");
    }
}

#[tokio::test]
async fn clients_that_never_finish_their_body_are_told_and_hold_up_nobody() {
    let server = Server::start();
    let at = server.url.strip_prefix("http://").unwrap();
    let mut slow = Vec::new();
    for number in 0..200 {
        let mut stream = TcpStream::connect(at).await.unwrap();
        let path = ["/v1/exec", "/sandboxes/any/snapshots"][number % 2];
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: x\r\nX-API-KEY: {}\r\nContent-Length: 100\r\n\r\n", server.key);
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(b"{\"command\":").await.unwrap();
        slow.push(stream);
    }
    assert_eq!(server.stdout("one", "echo served").await, "served\n");
    for mut stream in slow {
        let mut answer = Vec::new();
        let _ =
            tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("the server lets go of it");
        assert!(answer.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer));
    }
}

#[tokio::test]
async fn large_bodies_that_do_not_end_have_a_bound_and_take_no_other_tenants_room() {
    let server = Server::start();
    let at = server.url.strip_prefix("http://").unwrap();
    let sends = async || {
        let mut stream = TcpStream::connect(at).await.unwrap();
        let key = &server.key;
        let head = format!("POST /v1/exec HTTP/1.1\r\nHost: x\r\nX-API-KEY: {key}\r\nContent-Length: 4000000\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&vec![b' '; 3_900_000]).await.unwrap();
        let mut answer = [0; 4096];
        let length = stream.read(&mut answer).await.unwrap();
        (stream, String::from_utf8_lossy(&answer[..length]).into_owned())
    };
    let mut sent: FuturesUnordered<_> = (0..24).map(|_| sends()).collect();
    let (_stream, answer) = tokio::time::timeout(PATIENCE, sent.next()).await.expect("one is refused").unwrap();
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("server_busy"), "{answer}");
    let other = server.key_for("other", "use").await;
    let body = json!({ "scope": { "scheme": "fixed", "name": "theirs" }, "command": "echo theirs" });
    let body = format!("{body}{}", " ".repeat(1 << 20));
    let theirs = client().post(format!("{}/v1/exec", server.url)).bearer_auth(other).body(body);
    assert_eq!(good(theirs.send().await.unwrap()).await["stdout"], "theirs\n");
}

#[tokio::test]
async fn what_is_no_request_is_refused() {
    let server = Server::start();
    let at = server.url.strip_prefix("http://").unwrap();
    let long = format!("GET /livez HTTP/1.1\r\nHost: x\r\nX-Long: {}\r\n\r\n", "a".repeat(1 << 20));
    for bytes in [
        "\0\0\0\0",
        "GET\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "POST /v1/exec HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
        &long,
    ] {
        let mut stream = TcpStream::connect(at).await.unwrap();
        let _ = stream.write_all(bytes.as_bytes()).await; // it may be refused before it is all said
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("it is answered or ended");
        let text = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
    }
    assert_eq!(server.stdout("one", "echo served").await, "served\n");
}
