//! Clients that do not behave.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::stage::{PATIENCE, Server};

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
