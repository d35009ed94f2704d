//! Clients of terminals that speak badly, too much, or not at all.

use futures_util::SinkExt;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_tungstenite::tungstenite::{Message, protocol::frame::coding::CloseCode};

use crate::{
    stage::{PATIENCE, Server, until},
    terminals::Terminal,
};

/// A WebSocket by hand, past its handshake.
async fn by_hand(server: &Server, sandbox: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.url.trim_start_matches("http://")).await.unwrap();
    let head = format!(
        "GET /v1/sandboxes/{sandbox}/terminal?command=sleep+1000 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\
         Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        server.key
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut said = Vec::new();
    while !said.windows(4).any(|four| four == b"\r\n\r\n") {
        said.push(stream.read_u8().await.unwrap());
    }
    assert!(said.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&said));
    stream
}

async fn no_sleep(server: &Server) {
    until(|| async { (server.exec("one", "pgrep -x sleep").await["exit_code"] == 1).then_some(()) }).await;
}

#[tokio::test]
async fn broken_frames_end_their_connection_and_nothing_else() {
    let server = Server::start();
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let mut other = Terminal::open(&server, &sandbox, "").await;
    let mask = [0_u8; 4];
    let frames: [(&str, Vec<u8>); 9] = [
        ("without a mask", vec![0x82, 1, b'x']),
        ("of a kind that there is not", [&[0x83, 0x81][..], &mask, b"x"].concat()),
        ("with bits that nobody agreed on", [&[0xf2, 0x81][..], &mask, b"x"].concat()),
        ("a ping in parts", [&[0x09, 0x81][..], &mask, b"x"].concat()),
        ("a ping that is too long", [&[0x89, 0xfe, 0x01, 0x00][..], &mask, &[b'x'; 256]].concat()),
        ("that goes on where nothing began", [&[0x80, 0x81][..], &mask, b"x"].concat()),
        ("longer than anything", [&[0x82, 0xff][..], &(1_u64 << 62).to_be_bytes(), &mask, b"x"].concat()),
        ("text that is none", [&[0x81, 0x82][..], &mask, &[0xff, 0xfe]].concat()),
        ("no frame at all", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
    ];
    for (what, frame) in frames {
        let mut stream = by_hand(&server, &sandbox).await;
        stream.write_all(&frame).await.unwrap();
        let mut rest = Vec::new();
        let ended = timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "a frame {what} leaves the connection open");
    }
    no_sleep(&server).await;
    other.types("echo still $((6*7))\n").await;
    other.says("still 42").await;
}

#[tokio::test]
async fn what_is_too_large_or_makes_no_sense_ends_the_connection() {
    let server = Server::start();
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let nonsense =
        ["", "{", "[]", "{\"resize\":{}}", "{\"signal\":0}", "{\"signal\":99}", "{\"resize\":{\"cols\":0,\"rows\":1}}"];
    for text in nonsense {
        let mut terminal = Terminal::open(&server, &sandbox, "command=sleep+1000").await;
        terminal.socket.send(Message::text(text)).await.unwrap();
        assert_eq!(terminal.end().await.1, CloseCode::Policy, "{text:?}");
    }
    let mut terminal = Terminal::open(&server, &sandbox, "command=sleep+1000").await;
    let call = format!("/v1/calls/{}", terminal.call);
    let _ = terminal.socket.send(Message::binary(vec![b'x'; (64 << 10) + 1])).await; // it may be refused before it is all sent
    until(|| async { (server.get(&call).await["state"] != "running").then_some(()) }).await;
    no_sleep(&server).await;
}

#[tokio::test]
async fn a_reader_that_stands_still_holds_up_its_own_command_alone() {
    let server = Server::start();
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let mut still = Terminal::open(&server, &sandbox, "command=yes").await;
    still.says("y").await;
    // Its output comes to a halt once the ways are full; nobody else's does.
    let length = || async {
        let output =
            server.request(reqwest::Method::GET, &format!("/v1/calls/{}/output?to=0", still.call)).send().await;
        output.unwrap().headers()["cabana-total"].to_str().unwrap().parse::<u64>().unwrap()
    };
    let last = until(|| async {
        let before = length().await;
        assert_eq!(server.stdout("two", "echo fine").await, "fine\n");
        (before == length().await).then_some(before)
    })
    .await;
    assert!(last < 64 << 20, "{last} bytes are waiting for a reader that reads nothing");
    still.tells(&json!({ "signal": 9 })).await;
    assert_eq!(still.end().await.0["exit"]["signal"], 9);
}
