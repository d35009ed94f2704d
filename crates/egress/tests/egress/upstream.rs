//! Through a proxy of the operator's.

use std::{
    io::{Read, Write},
    sync::{Arc, Mutex},
};

use cabana_egress::{Authorities, Outside, Upstream};
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

fn stage_behind(url: &str) -> Stage {
    let stage = Stage::with(&NetworkPolicy::Public, limits(), |world| {
        let upstream = Upstream::parse(url, &Authorities::none(), Outside::system().connect).unwrap();
        Outside { resolve: world, connect: Arc::new(upstream) }
    });
    stage.name("example.com", &[&[EXAMPLE]]);
    stage.name("six.com", &[&["2606::7"]]);
    stage
}

fn stage(upstream: std::net::SocketAddr) -> Stage {
    let stage = stage_behind(&format!("http://me:secret@{upstream}"));
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
    for (target, status) in [("inner.com:80", "502"), ("127.0.0.1:80", "403")] {
        let told = stage.tunnel(target).await.1;
        assert!(told.starts_with(&format!("HTTP/1.1 {status} ")), "{target}: {told}");
    }
    assert!(seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_upstream_proxy_is_found_by_its_name() {
    let (address, seen) = proxy(b"HTTP/1.1 200 OK\r\n\r\n");
    let stage = stage_behind(&format!("http://localhost:{}", address.port()));
    assert!(stage.tunnel("example.com:7").await.1.starts_with("HTTP/1.1 200 "));
    assert!(seen.lock().unwrap().starts_with(&format!("CONNECT {EXAMPLE}:7 ")));
}

#[tokio::test]
async fn an_upstream_proxy_that_refuses_or_speaks_something_else_is_an_unreachable_server() {
    for answer in [&b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"[..], b"SSH-2.0-x\r\n\r\n"] {
        let (address, _) = proxy(answer);
        assert!(stage(address).tunnel("example.com:7").await.1.starts_with("HTTP/1.1 502 "));
    }
}

/// A SOCKS5 proxy that wants `me` and `secret`, keeps what it is asked for, greets and echoes.
fn socks_proxy(reply: u8) -> (std::net::SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = seen.clone();
    let address = server(move |mut stream| {
        let read = |length: usize, stream: &mut std::net::TcpStream| {
            let mut bytes = vec![0; length];
            stream.read_exact(&mut bytes).unwrap();
            bytes
        };
        assert_eq!(read(3, &mut stream), [5, 1, 2]);
        stream.write_all(&[5, 2]).unwrap();
        if read(12, &mut stream) != b"\x01\x02me\x07secret!" {
            stream.write_all(&[1, 1]).unwrap();
            return;
        }
        stream.write_all(&[1, 0]).unwrap();
        let mut asked = read(4, &mut stream);
        let length = if asked[3] == 4 { 18 } else { 6 };
        asked.extend(read(length, &mut stream));
        kept.lock().unwrap().extend(asked);
        stream.write_all(&[5, reply, 0, 3, 2, b'a', b'b', 0, 80]).unwrap();
        stream.write_all(b"welcome").unwrap();
    });
    (address, seen)
}

#[tokio::test]
async fn an_allowed_connection_goes_through_a_socks_proxy_by_its_checked_address() {
    for (name, asked) in [
        ("example.com", vec![5, 1, 0, 1, 93, 184, 216, 34, 0, 7]),
        ("six.com", vec![5, 1, 0, 4, 0x26, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 7]),
    ] {
        let (address, seen) = socks_proxy(0);
        let stage = stage_behind(&format!("socks5://me:secret!@{address}"));
        let (mut stream, head) = stage.tunnel(&format!("{name}:7")).await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        let mut greeting = [0; 7];
        stream.read_exact(&mut greeting).await.unwrap();
        assert_eq!(&greeting, b"welcome");
        assert_eq!(*seen.lock().unwrap(), asked);
    }
}

#[tokio::test]
async fn a_socks_proxy_that_refuses_the_user_or_the_address_is_an_unreachable_server() {
    let (address, seen) = socks_proxy(0);
    let stage = stage_behind(&format!("socks5://me:public!@{address}"));
    assert!(stage.tunnel("example.com:7").await.1.starts_with("HTTP/1.1 502 "));
    assert!(seen.lock().unwrap().is_empty());
    let (address, _) = socks_proxy(2);
    let stage = stage_behind(&format!("socks5://me:secret!@{address}"));
    assert!(stage.tunnel("example.com:7").await.1.starts_with("HTTP/1.1 502 "));
}
