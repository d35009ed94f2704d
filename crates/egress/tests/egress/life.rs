//! Policies that change, and the end of it all.

use std::time::Duration;

use cabana_egress::{Limits, Outside, Reason};
use cabana_sandbox::NetworkPolicy;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::stage::{EXAMPLE, Stage, allow, client_hello, echo, is_reset, limits, policy};

async fn echoes(stream: &mut TcpStream, bytes: &[u8]) -> bool {
    let mut echoed = vec![0; bytes.len()];
    stream.write_all(bytes).await.is_ok() && stream.read_exact(&mut echoed).await.is_ok() && echoed == bytes
}

#[tokio::test]
async fn a_new_policy_ends_what_it_refuses_and_leaves_the_rest() {
    let stage = Stage::new(&allow(&["example.com", "other.com"]));
    stage.example(7, echo());
    stage.name("other.com", &[&["1.2.3.4"]]);
    stage.server("1.2.3.4:7", echo());
    let (mut example, _) = stage.tunnel("example.com:7").await;
    let mut other = stage.redirected_to_name("other.com", 7).await;
    assert!(echoes(&mut example, b"one\n").await && echoes(&mut other, b"one\n").await);
    stage.egress.set_policy(policy(&allow(&["example.com"])));
    assert!(is_reset(&mut other).await);
    assert!(echoes(&mut example, b"two\n").await);
    let event = stage.last_refusal();
    assert_eq!((&*event.host, event.reason), ("other.com", Reason::NotListed));
    assert!(stage.tunnel("other.com:7").await.1.starts_with("HTTP/1.1 403 "));
    stage.egress.set_policy(policy(&NetworkPolicy::Off));
    assert!(is_reset(&mut example).await);
    assert!(stage.tunnel("example.com:7").await.1.starts_with("HTTP/1.1 403 "));
    stage.egress.set_policy(policy(&NetworkPolicy::Public));
    assert!(stage.tunnel("other.com:7").await.1.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn a_new_policy_ends_a_connection_that_speaks_for_a_name_no_longer_allowed() {
    let stage = Stage::new(&allow(&["example.com", "also.com"]));
    stage.example(443, echo());
    let (mut stream, _) = stage.tunnel("example.com:443").await;
    assert!(echoes(&mut stream, &client_hello(Some("also.com"), 9999)).await);
    stage.egress.set_policy(policy(&allow(&["example.com"])));
    assert!(is_reset(&mut stream).await);
}

#[tokio::test]
async fn a_new_policy_judges_the_connected_address_too() {
    let stage = Stage::new(&allow(&["inner.com", "10.0.0.1"]));
    stage.name("inner.com", &[&["10.0.0.1"]]);
    stage.server("10.0.0.1:7", echo());
    let (mut stream, head) = stage.tunnel("inner.com:7").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(echoes(&mut stream, b"one\n").await);
    stage.egress.set_policy(policy(&allow(&["inner.com"])));
    assert!(is_reset(&mut stream).await);
}

#[tokio::test]
async fn an_address_in_the_list_needs_no_server_name() {
    let stage = Stage::new(&allow(&[EXAMPLE]));
    stage.example(443, echo());
    let mut stream = stage.redirected(&format!("{EXAMPLE}:443")).await;
    assert!(echoes(&mut stream, &client_hello(Some("whatever.com"), 9999)).await);
}

#[tokio::test]
async fn closing_ends_every_connection_and_frees_the_listeners() {
    let stage = Stage::new(&NetworkPolicy::Public);
    stage.example(7, echo());
    let (mut tunnel, _) = stage.tunnel("example.com:7").await;
    let mut waiting = TcpStream::connect(stage.socks).await.unwrap();
    assert!(echoes(&mut tunnel, b"one").await);
    stage.egress.close().await;
    assert!(matches!(tunnel.read(&mut [0; 9]).await, Ok(0) | Err(_)));
    assert!(matches!(waiting.read(&mut [0; 9]).await, Ok(0) | Err(_)));
    assert!(TcpStream::connect(stage.http).await.is_err());
}

#[tokio::test]
async fn dropping_is_closing() {
    let stage = Stage::new(&NetworkPolicy::Public);
    stage.example(7, echo());
    let (mut tunnel, _) = stage.tunnel("example.com:7").await;
    assert!(echoes(&mut tunnel, b"one").await);
    drop(stage);
    assert!(matches!(tunnel.read(&mut [0; 9]).await, Ok(0) | Err(_)));
}

#[tokio::test]
async fn a_connection_without_a_byte_for_too_long_is_reset() {
    let short = Limits { idle: Duration::from_millis(50), ..limits() };
    let stage = Stage::with(&NetworkPolicy::Public, short, |world| Outside { resolve: world.clone(), connect: world });
    stage.example(7, echo());
    let (mut tunnel, _) = stage.tunnel("example.com:7").await;
    assert!(is_reset(&mut tunnel).await);
}
