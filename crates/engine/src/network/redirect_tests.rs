//! The rules in a real namespace, which a server may have left.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    process::Command,
};

use super::*;

const INSIDE: &str = "CABANA_ENGINE_TEST_INSIDE";

/// Runs the test again in a user and a network namespace of its own; true there.
fn in_a_namespace(name: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net"]);
    command.arg(std::env::current_exe().unwrap()).args(["--exact", name, "--nocapture"]).env(INSIDE, "1");
    let output = command.output().unwrap();
    let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
    false
}

/// A connection to anywhere arrives at one of the listeners, and nowhere else.
fn is_caught(by: &[TcpListener], to: SocketAddr) -> bool {
    let mut guest = TcpStream::connect(to).unwrap();
    guest.write_all(b"word").unwrap();
    let family = |listener: &&TcpListener| listener.local_addr().unwrap().is_ipv4() == to.is_ipv4();
    let (mut caught, _) = by.iter().find(family).unwrap().accept().unwrap();
    let mut word = [0; 4];
    caught.read_exact(&mut word).unwrap();
    &word == b"word"
}

fn all_are_caught(listeners: &Listeners) {
    for to in ["93.184.216.34:80", "[2606:2800::1]:443"] {
        assert!(is_caught(&listeners.transparent, to.parse().unwrap()), "{to}");
    }
    for to in ["93.184.216.34:53", "[2606:2800::1]:53", "127.0.0.1:53"] {
        assert!(is_caught(&listeners.dns_tcp, to.parse().unwrap()), "{to}");
    }
    let asker = UdpSocket::bind("127.0.0.1:0").unwrap();
    asker.send_to(b"word", "127.0.0.1:53").unwrap();
    assert_eq!(listeners.dns_udp[0].recv(&mut [0; 9]).unwrap(), 4);
}

fn rules() -> String {
    let listed = Command::new("nft").args(["list", "ruleset"]).output().unwrap();
    String::from_utf8(listed.stdout).unwrap()
}

#[test]
fn what_a_killed_server_left_is_set_up_again_with_the_same_rules() {
    if !in_a_namespace("network::redirect::tests::what_a_killed_server_left_is_set_up_again_with_the_same_rules") {
        return;
    }
    let first = set_up().unwrap();
    all_are_caught(&first);
    let before = rules();
    assert!(before.contains("redirect to :65501"), "{before}");
    drop(first);
    let again = set_up().unwrap();
    assert_eq!(rules(), before);
    all_are_caught(&again);
}

#[test]
fn a_guest_that_took_the_ports_of_a_killed_server_catches_nothing_with_them() {
    if !in_a_namespace(
        "network::redirect::tests::a_guest_that_took_the_ports_of_a_killed_server_catches_nothing_with_them",
    ) {
        return;
    }
    drop(set_up().unwrap());
    let taken: Vec<_> = [DNS, TRANSPARENT, HTTP_PROXY, SPARE.start, SPARE.start + 1]
        .map(|port| TcpListener::bind(("0.0.0.0", port)).unwrap())
        .into();
    let datagrams = UdpSocket::bind(("0.0.0.0", DNS)).unwrap();
    let again = set_up().unwrap();
    all_are_caught(&again);
    datagrams.set_nonblocking(true).unwrap();
    assert!(datagrams.recv(&mut [0; 9]).is_err());
    for listener in taken {
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err());
    }
}
