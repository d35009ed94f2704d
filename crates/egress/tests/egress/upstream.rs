//! Through a proxy of the operator's.

use std::{
    io::{Read, Write},
    sync::{Arc, Mutex},
};

use cabana_egress::{Outside, Upstream};
use cabana_sandbox::NetworkPolicy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::stage::{EXAMPLE, Stage, limits, server};

/// A proxy that keeps the request, answers, greets (as a server that speaks first does) and echoes.
fn proxy(answer: &'static [u8]) -> (std::net::SocketAddr, Arc<Mutex<String>>) {
    let seen = Arc::new(Mutex::new(String::new()));
    let kept = seen.clone();
    let address = server(move |mut stream| {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
            head.push(byte[0]);
        }
        *kept.lock().unwrap() = String::from_utf8(head).unwrap();
        stream.write_all(answer).unwrap();
        while stream.read_exact(&mut byte).is_ok() {
            stream.write_all(&byte).unwrap();
        }
    });
    (address, seen)
}

fn stage(upstream: std::net::SocketAddr) -> Stage {
    let url = format!("http://me:secret@{upstream}");
    let stage = Stage::with(&NetworkPolicy::Public, limits(), |world| {
        let direct = Outside::system().connect;
        Outside { resolve: world, connect: Arc::new(Upstream::parse(&url, direct).unwrap()) }
    });
    stage.name("example.com", &[&[EXAMPLE]]);
    stage.name("inner.com", &[&["10.0.0.1"]]);
    stage
}

#[tokio::test]
async fn an_allowed_connection_goes_through_the_upstream_proxy_by_its_checked_address() {
    let (address, seen) = proxy(b"HTTP/1.1 200 OK\r\nX: y\r\n\r\nwelcome");
    let stage = stage(address);
    let (mut stream, head) = stage.tunnel("example.com:7").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let mut greeting = [0; 7];
    stream.read_exact(&mut greeting).await.unwrap();
    assert_eq!(&greeting, b"welcome");
    stream.write_all(b"ping").await.unwrap();
    stream.read_exact(&mut greeting[..4]).await.unwrap();
    assert_eq!(&greeting[..4], b"ping");
    let wanted =
        format!("CONNECT {EXAMPLE}:7 HTTP/1.1\r\nHost: {EXAMPLE}:7\r\nProxy-Authorization: Basic bWU6c2VjcmV0\r\n\r\n");
    assert_eq!(*seen.lock().unwrap(), wanted);
}

#[tokio::test]
async fn the_upstream_proxy_is_not_asked_for_what_is_refused() {
    let (address, seen) = proxy(b"HTTP/1.1 200 OK\r\n\r\n");
    let stage = stage(address);
    for target in ["inner.com:80", "127.0.0.1:80"] {
        assert!(stage.tunnel(target).await.1.starts_with("HTTP/1.1 403 "), "{target}");
    }
    assert!(seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_upstream_proxy_that_refuses_or_speaks_something_else_is_an_unreachable_server() {
    for answer in [&b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"[..], b"SSH-2.0-x\r\n\r\n"] {
        let (address, _) = proxy(answer);
        assert!(stage(address).tunnel("example.com:7").await.1.starts_with("HTTP/1.1 502 "));
    }
}
