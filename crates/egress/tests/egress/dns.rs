//! The inner DNS, asked as a stub resolver asks.

use std::net::IpAddr;

use cabana_egress::{How, Reason};
use cabana_sandbox::NetworkPolicy;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
};

use crate::stage::{Stage, allow};

const A: u16 = 1;
const PTR: u16 = 12;
const AAAA: u16 = 28;

fn question(name: &str, kind: u16) -> Vec<u8> {
    let mut out = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        out.push(u8::try_from(label.len()).unwrap());
        out.extend(label.as_bytes());
    }
    out.push(0);
    out.extend(kind.to_be_bytes());
    out.extend([0, 1]);
    out
}

async fn ask(stage: &Stage, question: &[u8]) -> Vec<u8> {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.send_to(question, stage.dns_udp).await.unwrap();
    let mut answer = [0; 600];
    let len = socket.recv(&mut answer).await.unwrap();
    answer[..len].to_vec()
}

/// The response code, and the data of the one record if there is one.
async fn answer(stage: &Stage, name: &str, kind: u16) -> (u8, Vec<u8>) {
    let asked = question(name, kind);
    let answer = ask(stage, &asked).await;
    assert_eq!(answer[..2], asked[..2]);
    let data = if answer[7] == 1 { answer[asked.len() + 12..].to_vec() } else { Vec::new() };
    (answer[3] & 15, data)
}

pub(crate) async fn look_up(stage: &Stage, name: &str) -> Option<IpAddr> {
    let (_, data) = answer(stage, name, A).await;
    <[u8; 4]>::try_from(data).ok().map(IpAddr::from)
}

#[tokio::test]
async fn an_allowed_name_has_synthetic_addresses_of_both_kinds_and_its_way_back() {
    let stage = Stage::new(&allow(&["example.com:443"]));
    stage.name("example.com", &[&["93.184.216.34"]]);
    let (code, v4) = answer(&stage, "eXample.com", A).await;
    assert_eq!((code, v4[0], v4[1] & !1), (0, 198, 18));
    let (code, v6) = answer(&stage, "example.com", AAAA).await;
    assert_eq!((code, &v6[..6]), (0, &[0xfd, 0xca, 0xba, 0x2a, 0x6e, 0x63][..]));
    let back = format!("{}.{}.{}.198.in-addr.arpa", v4[3], v4[2], v4[1]);
    assert_eq!(answer(&stage, &back, PTR).await, (0, b"\x07example\x03com\0".to_vec()));
    assert_eq!(answer(&stage, "9.0.18.198.in-addr.arpa", PTR).await.0, 3);
}

#[tokio::test]
async fn other_types_are_empty_and_refused_names_do_not_exist() {
    let stage = Stage::new(&allow(&["example.com"]));
    stage.name("example.com", &[&["93.184.216.34"]]);
    for kind in [2, 5, 6, 15, 16, 33, 64, 65, 255] {
        assert_eq!(answer(&stage, "example.com", kind).await, (0, vec![]), "type {kind}");
    }
    assert_eq!(answer(&stage, "other.com", A).await, (3, vec![]));
    let event = stage.last_refusal();
    assert_eq!((&*event.host, event.port, event.how, event.reason), ("other.com", 0, How::Dns, Reason::NotListed));
    assert_eq!(*stage.world.looked_up.lock().unwrap(), ["example.com"; 9], "a refused name is not looked up outside");
}

#[tokio::test]
async fn a_name_that_points_inside_does_not_exist_inside() {
    let stage = Stage::new(&NetworkPolicy::Public);
    stage.name("rebind.com", &[&["127.0.0.1", "10.0.0.1"]]);
    assert_eq!(answer(&stage, "rebind.com", A).await, (3, vec![]));
    assert_eq!(answer(&stage, "no.such", A).await, (3, vec![]));
    assert_eq!(stage.events(), [], "one that does not exist is no event either");
    assert_eq!(answer(&stage, "2130706433", A).await, (3, vec![]));
    assert_eq!(answer(&stage, "127.0.0.1", A).await, (3, vec![]));
}

#[tokio::test]
async fn questions_over_tcp_are_answered_one_after_the_other() {
    let stage = Stage::new(&NetworkPolicy::Public);
    stage.name("a.com", &[&["1.2.3.4"]]);
    let mut stream = TcpStream::connect(stage.dns_tcp).await.unwrap();
    for (name, code) in [("a.com", 0), ("b.com", 3), ("a.com", 0)] {
        let asked = question(name, A);
        let framed = [&u16::try_from(asked.len()).unwrap().to_be_bytes()[..], &asked].concat();
        stream.write_all(&framed).await.unwrap();
        let len = stream.read_u16().await.unwrap();
        let mut answer = vec![0; usize::from(len)];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer[3] & 15, code, "{name}");
    }
    // A length that no question has ends the connection.
    stream.write_all(&[0xff, 0xff]).await.unwrap();
    assert_eq!(stream.read(&mut [0; 9]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn malformed_questions_do_not_stop_the_service() {
    let stage = Stage::new(&NetworkPolicy::Public);
    stage.name("a.com", &[&["1.2.3.4"]]);
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for length in 0..40 {
        socket.send_to(&vec![0xc0; length], stage.dns_udp).await.unwrap();
        socket.send_to(&vec![0x00; length], stage.dns_udp).await.unwrap();
    }
    let mut pointer = question("a.com", A);
    pointer[12] = 0xc0;
    assert_eq!(ask(&stage, &pointer).await[3] & 15, 1);
    assert_eq!(answer(&stage, "a.com", A).await.0, 0);
}
