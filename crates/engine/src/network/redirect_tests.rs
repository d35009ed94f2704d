//! The rules in a real namespace, which a server may have left, by either way.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    process::Command,
};

use cabana_egress::original_destination;
use socket2::{Domain, Protocol, Socket, Type};

use super::*;

const INSIDE: &str = "CABANA_ENGINE_TEST_INSIDE";
const SITE: &str = "93.184.216.34:80";
const SITE_V6: &str = "[2606:2800::1]:443";
const SITE_DNS: &str = "93.184.216.34:53";

/// Runs the test again for each way, in a user and a network namespace of its own; there it is told which.
pub(in super::super) fn in_a_namespace(name: &str) -> Option<Way> {
    if let Some(way) = std::env::var_os(INSIDE) {
        return Some(if way == "Nat" { Way::Nat } else { Way::Tproxy });
    }
    for way in [Way::Tproxy, Way::Nat] {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net"]).arg(std::env::current_exe().unwrap());
        command.args(["--exact", &format!("network::{name}"), "--nocapture"]);
        let output = command.env(INSIDE, format!("{way:?}")).output().unwrap();
        let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && told.contains("1 passed"), "{way:?}: {told}");
    }
    None
}

fn at(address: &str) -> SocketAddr {
    address.parse().unwrap()
}

/// A socket of a guest, with the address that it wants: there is a right to have any.
fn bound(own: &str) -> Socket {
    made(own, Type::STREAM)
}

fn made(own: &str, kind: Type) -> Socket {
    let socket = Socket::new(Domain::for_address(at(own)), kind, None).unwrap();
    let free = if at(own).is_ipv4() { socket.set_freebind_v4(true) } else { socket.set_freebind_v6(true) };
    free.and_then(|()| socket.set_reuse_address(true)).and_then(|()| socket.bind(&at(own).into())).expect(own);
    socket
}

fn listening(own: &str) -> TcpListener {
    let socket = bound(own);
    socket.listen(8).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.into()
}

/// Arrives at one of the listeners and nowhere else, which talks with the guest and knows where it was going.
fn is_caught(by: &[TcpListener], mut guest: TcpStream, to: SocketAddr) {
    guest.write_all(b"word").unwrap();
    let family = |listener: &&TcpListener| listener.local_addr().unwrap().is_ipv4() == to.is_ipv4();
    let (mut caught, _) = by.iter().find(family).unwrap().accept().unwrap();
    let mut word = [0; 4];
    caught.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"word", "{to}");
    caught.write_all(b"back").unwrap();
    guest.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"back", "{to}");
    assert_eq!(destination(caught), to);
}

fn destination(of: TcpStream) -> SocketAddr {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let _inside = runtime.enter();
    of.set_nonblocking(true).unwrap();
    original_destination(&tokio::net::TcpStream::from_std(of).unwrap()).unwrap()
}

fn all_are_caught(listeners: &Listeners) {
    for to in [SITE, SITE_V6].map(at) {
        is_caught(&listeners.transparent, TcpStream::connect(to).unwrap(), to);
    }
    for to in ["93.184.216.34:53", "[2606:2800::1]:53", "127.0.0.1:53"].map(at) {
        is_caught(&listeners.dns_tcp, TcpStream::connect(to).unwrap(), to);
    }
    for (own, to) in [
        ("127.0.0.1:0", "127.0.0.1:53"),
        ("127.0.0.1:0", "93.184.216.34:53"),
        ("[::1]:0", "[::1]:53"),
        ("[::1]:0", "[2606:2800::1]:53"),
    ] {
        is_answered(listeners, own, to);
    }
}

/// As by the one who was asked.
fn is_answered(listeners: &Listeners, own: &str, to: &str) {
    let asker = UdpSocket::bind(own).unwrap();
    asker.connect(to).unwrap();
    asker.send(b"word").unwrap();
    answer_one(listeners);
    assert_eq!(asker.recv(&mut [0; 9]).unwrap(), 6, "{own} {to}");
}

/// The question that has come, to whichever socket.
fn answer_one(listeners: &Listeners) {
    let came = listeners.dns_udp.iter().find_map(|socket| {
        socket.set_nonblocking(true).unwrap();
        Some((socket, socket.recv_from(&mut [0; 9]).ok()?.1))
    });
    let (socket, from) = came.expect("a question");
    socket.send_to(b"answer", from).unwrap();
}

/// What the kernel remembers of connections in this namespace.
fn tracked() -> usize {
    std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count").unwrap().trim().parse().unwrap()
}

/// Nobody came to it.
fn caught_nothing(listeners: &[TcpListener]) {
    for listener in listeners {
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "{listener:?}");
    }
}

fn rules() -> String {
    let listed = Command::new("nft").args(["list", "ruleset"]).output().unwrap();
    String::from_utf8(listed.stdout).unwrap()
}

#[test]
fn what_a_killed_server_left_is_set_up_again_with_the_same_rules() {
    let Some(way) = in_a_namespace("redirect::tests::what_a_killed_server_left_is_set_up_again_with_the_same_rules")
    else {
        return;
    };
    let first = set_up(way).unwrap();
    all_are_caught(&first);
    let before = rules();
    assert_eq!(before.contains("tproxy ip to 127.0.0.1:65501 accept"), way == Way::Tproxy, "{before}");
    let all_redirected = before.lines().any(|rule| rule.trim() == "meta l4proto tcp redirect to :65501");
    assert_eq!(all_redirected, way == Way::Nat, "{before}");
    drop(first);
    let again = set_up(way).unwrap();
    assert_eq!(rules(), before);
    all_are_caught(&again);
    drop(again);
    let other = if way == Way::Nat { Way::Tproxy } else { Way::Nat };
    all_are_caught(&set_up(other).unwrap());
    assert_ne!(rules(), before);
}

#[test]
fn a_guest_that_took_the_ports_of_a_killed_server_catches_nothing_with_them() {
    let Some(way) =
        in_a_namespace("redirect::tests::a_guest_that_took_the_ports_of_a_killed_server_catches_nothing_with_them")
    else {
        return;
    };
    drop(set_up(way).unwrap());
    let taken =
        [DNS, TRANSPARENT, HTTP_PROXY, CAUGHT_DNS, SPARE.start].map(|port| listening(&format!("0.0.0.0:{port}")));
    let datagrams = UdpSocket::bind(("0.0.0.0", DNS)).unwrap();
    let again = set_up(way).unwrap();
    all_are_caught(&again);
    datagrams.set_nonblocking(true).unwrap();
    assert!(datagrams.recv(&mut [0; 9]).is_err());
    caught_nothing(&taken);
}

#[test]
fn nobody_of_the_sandbox_shares_the_port_of_a_listener() {
    let Some(way) = in_a_namespace("redirect::tests::nobody_of_the_sandbox_shares_the_port_of_a_listener") else {
        return;
    };
    let _listeners = set_up(way).unwrap();
    for own in ["0.0.0.0:65501", "127.0.0.1:65501", "[::]:65501", "[::1]:65501"] {
        let socket = Socket::new(Domain::for_address(at(own)), Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.set_reuse_port(true).unwrap();
        socket.bind_device(Some(b"lo")).unwrap();
        let shared = socket.bind(&at(own).into()).and_then(|()| socket.listen(8));
        assert_eq!(shared.unwrap_err().kind(), ErrorKind::AddrInUse, "{own}");
    }
}

#[test]
fn who_connects_to_the_listener_itself_was_going_nowhere_else() {
    let Some(way) = in_a_namespace("redirect::tests::who_connects_to_the_listener_itself_was_going_nowhere_else")
    else {
        return;
    };
    let listeners = set_up(way).unwrap();
    // From the port of the DNS the connection is tracked.
    for (from, to) in [
        ("127.0.0.1:0", "127.0.0.1:65501"),
        ("127.0.0.3:53", "127.0.0.1:65501"),
        ("[::1]:0", "[::1]:65501"),
        ("[fdca:ba2a:6e63::1]:0", "[::1]:65501"),
    ] {
        let (guest, to) = (bound(from), at(to));
        guest.connect(&to.into()).unwrap();
        is_caught(&listeners.transparent, guest.into(), to);
    }
}

#[test]
fn a_port_of_the_dns_to_come_from_changes_nothing() {
    let Some(way) = in_a_namespace("redirect::tests::a_port_of_the_dns_to_come_from_changes_nothing") else { return };
    // Also where the guest has taken the port from which answers come.
    for (taken, mine) in [(None, "127.0.0.5"), (Some("127.0.0.1:65504"), "127.0.0.6")] {
        let taken = taken.map(listening);
        let listeners = set_up(way).unwrap();
        for (from, to) in [(53, SITE), (65400, SITE), (65504, SITE), (65501, "93.184.216.34:65400")] {
            let guest = bound(&format!("{mine}:{from}"));
            guest.connect(&at(to).into()).unwrap();
            is_caught(&listeners.transparent, guest.into(), at(to));
        }
        for from in [53, 65400, 65504] {
            let (guest, to) = (bound(&format!("{mine}:{from}")), at("93.184.216.34:53"));
            guest.connect(&to.into()).unwrap();
            is_caught(&listeners.dns_tcp, guest.into(), to);
            for to in ["127.0.0.1:53", "93.184.216.34:53"] {
                is_answered(&listeners, &format!("{mine}:{from}"), to);
            }
        }
        // Nor between two of the guest's own.
        let (one, other) = (UdpSocket::bind((mine, DNS)).unwrap(), UdpSocket::bind((mine, 0)).unwrap());
        one.send_to(b"word", other.local_addr().unwrap()).unwrap();
        other.send_to(b"back", other.recv_from(&mut [0; 9]).unwrap().1).unwrap();
        assert_eq!(one.recv(&mut [0; 9]).unwrap(), 4);
        caught_nothing(&Vec::from_iter(taken));
    }
}

#[test]
fn while_no_server_is_there_all_is_refused_and_no_guest_answers() {
    let Some(way) = in_a_namespace("redirect::tests::while_no_server_is_there_all_is_refused_and_no_guest_answers")
    else {
        return;
    };
    drop(set_up(way).unwrap());
    let mut guests = Vec::from([SITE, SITE_V6, "0.0.0.0:81", "[::]:82"].map(listening));
    if way == Way::Tproxy {
        guests.extend(["127.0.0.1:65501", "[::1]:65501"].map(listening));
    }
    let (v4, v6, mapped) = ("93.184.216.34", "[2606:2800::1]", "[::ffff:93.184.216.34]");
    for to in [(v4, 80), (v4, 81), (v4, 82), (v4, 1), (v6, 443), (v6, 82), (v6, 1), (mapped, 80), (mapped, 82)] {
        let refused = TcpStream::connect(at(&format!("{}:{}", to.0, to.1))).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{to:?}");
    }
    caught_nothing(&guests);
}

#[test]
fn a_guest_with_the_address_of_somebody_else_answers_for_nobody() {
    let Some(way) = in_a_namespace("redirect::tests::a_guest_with_the_address_of_somebody_else_answers_for_nobody")
    else {
        return;
    };
    let listeners = set_up(way).unwrap();
    let guests = [SITE, SITE_V6, "0.0.0.0:81", "[::]:82", "198.18.7.7:80"].map(listening);
    for to in [SITE, SITE_V6, "93.184.216.34:81", "[2606:2800::1]:82", "198.18.7.7:80"].map(at) {
        is_caught(&listeners.transparent, TcpStream::connect(to).unwrap(), to);
    }
    let mapped = TcpStream::connect(at("[::ffff:93.184.216.34]:80")).unwrap();
    is_caught(&listeners.transparent, mapped, at(SITE));
    caught_nothing(&guests);
    // Nor does it get an answer there, from us or from a guest: it has no such address.
    for (from, to) in [
        ("93.184.216.35:7777", SITE),
        ("198.18.7.8:7777", SITE),
        ("[2606:2800::7]:7777", SITE_V6),
        ("[fdca:ba2a:6e63::7]:7777", SITE_V6),
    ] {
        let guest = bound(from);
        guest.set_nonblocking(true).unwrap();
        assert_eq!(guest.connect(&at(to).into()).unwrap_err().raw_os_error(), Some(libc::EINPROGRESS));
        all_are_caught(&listeners);
        assert_eq!(guest.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected, "{from}");
    }
    caught_nothing(&guests);
}

/// Two that call each other at once need nobody who listens.
#[test]
fn two_that_call_each_other_do_not_meet_at_an_address_of_somebody_else() {
    let Some(way) =
        in_a_namespace("redirect::tests::two_that_call_each_other_do_not_meet_at_an_address_of_somebody_else")
    else {
        return;
    };
    let listeners = set_up(way).unwrap();
    for listener in &listeners.transparent {
        listener.set_nonblocking(true).unwrap();
    }
    let call = |socket: &Socket, to: &str| {
        socket.set_nonblocking(true).unwrap();
        let _ = socket.connect(&at(to).into());
        socket.send(b"met").is_ok()
    };
    for round in 0..400 {
        let (ours, site) = if round % 2 == 0 { ("127.0.0.1", SITE) } else { ("[::1]", SITE_V6) };
        let inner = &format!("{ours}:{}", 7000 + round);
        let (one, other) = (bound(inner), bound(site));
        let spoke = std::thread::scope(|scope| {
            let other = scope.spawn(|| call(&other, inner));
            (call(&one, site), other.join().unwrap())
        });
        let heard = |socket: &Socket| socket.recv(&mut [std::mem::MaybeUninit::uninit(); 9]).unwrap_or(0) > 0;
        assert!(!spoke.1 && !heard(&one) && !heard(&other), "they met in round {round}");
        while listeners.transparent.iter().any(|listener| listener.accept().is_ok()) {}
    }
}

/// Of this namespace.
fn neighbours() -> usize {
    let listed = Command::new("ip").args(["-6", "neighbour", "show", "nud", "all"]).output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    String::from_utf8(listed.stdout).unwrap().lines().count()
}

/// The kernel keeps a neighbour of loopback for each that something was sent to, until the namespace ends.
#[test]
fn however_many_addresses_of_ipv6_are_called_the_kernel_remembers_none_of_them() {
    let Some(way) =
        in_a_namespace("redirect::tests::however_many_addresses_of_ipv6_are_called_the_kernel_remembers_none_of_them")
    else {
        return;
    };
    let listeners = set_up(way).unwrap();
    is_caught(&listeners.transparent, TcpStream::connect(at(SITE_V6)).unwrap(), at(SITE_V6));
    let before = neighbours();
    // Guests have no such sockets, unless the host lets them.
    const PING: [u8; 8] = [128, 0, 0, 0, 0, 0, 0, 1];
    std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0").unwrap();
    let mut pinged = 0;
    for number in 0..200 {
        let called = format!("[2001:db8::{number:x}]");
        let ping = || Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::ICMPV6)).unwrap();
        let _ = ping().send_to(&PING, &at(&format!("{called}:0")).into());
        let from = ping();
        from.set_freebind_v6(true).and_then(|()| from.bind(&at(&format!("{called}:0")).into())).unwrap();
        pinged += usize::from(from.send_to(&PING, &at("[::1]:0").into()).is_ok());
        for scoped in [format!("[fe80::{number:x}%1]:9"), format!("[ff02::{number:x}%1]:9")] {
            let _ = UdpSocket::from(made("[::]:0", Type::DGRAM)).send_to(b"word", at(&scoped));
            let guest = bound("[::]:0");
            guest.set_nonblocking(true).unwrap();
            let _ = guest.connect(&at(&scoped).into());
        }
        let guest = bound("[::]:0");
        guest.set_nonblocking(true).unwrap();
        let _ = guest.connect(&at(&format!("{called}:443")).into());
        // An address to come from gets answers: of a port that is closed, and of one of ours.
        for to in ["[::1]:1", "[::1]:65501", "[::1]:53", SITE_V6] {
            let guest = bound(&format!("{called}:0"));
            guest.set_nonblocking(true).unwrap();
            let _ = guest.connect(&at(to).into());
        }
        for kind in [SITE_V6, "[::1]:53", "[::1]:1"] {
            let _ = UdpSocket::from(made(&format!("{called}:0"), Type::DGRAM)).send_to(b"word", at(kind));
            let _ = UdpSocket::from(made("[::]:0", Type::DGRAM)).send_to(b"word", at(&format!("{called}:9")));
        }
    }
    assert_eq!((neighbours(), pinged), (before, 200));
    drop(listeners);
    for number in 0..200 {
        TcpStream::connect(at(&format!("[2001:db8:1::{number:x}]:443"))).unwrap_err();
    }
    assert_eq!(neighbours(), before);
}

/// Each port, and each address, is one more that is tracked.
#[test]
fn however_much_a_guest_begins_the_kernel_remembers_little_of_it() {
    let Some(way) = in_a_namespace("redirect::tests::however_much_a_guest_begins_the_kernel_remembers_little_of_it")
    else {
        return;
    };
    const FLOOD: u32 = 20_000;
    const MAX_TRACKED: usize = 15_000;
    let listeners = set_up(way).unwrap();
    // What needs no tracking: questions where they are usually asked, and what a sandbox says to itself.
    let inner = UdpSocket::bind("127.0.0.1:0").unwrap();
    let usual = [at("127.0.0.1:53"), inner.local_addr().unwrap()];
    for number in 0..FLOOD {
        let asker = UdpSocket::bind("127.0.0.1:0").unwrap();
        asker.send_to(b"word", usual[number as usize % 2]).unwrap();
    }
    assert_eq!(tracked(), 0);
    // What is redirected.
    let asker = UdpSocket::bind("127.0.0.1:0").unwrap();
    let asked = |number: &u32| asker.send_to(b"word", (Ipv4Addr::from(0x5db8_0000 | number), DNS)).is_ok();
    let asked = (0..FLOOD).filter(asked).count();
    for number in 0..FLOOD {
        let guest = bound("[::1]:0");
        guest.set_nonblocking(true).unwrap();
        let _ = guest.connect(&at(&format!("[2001:db8::{number:x}]:443")).into());
    }
    let tracked = tracked();
    assert!(asked >= 1000 && (1000..MAX_TRACKED).contains(&tracked), "{tracked} of {FLOOD} and {FLOOD}, {asked} went");
    // Its own network is as before, at once where nothing is tracked, and soon where it is.
    for socket in &listeners.dns_udp {
        socket.set_nonblocking(true).unwrap();
        while socket.recv(&mut [0; 9]).is_ok() {}
    }
    for listener in &listeners.transparent {
        listener.set_nonblocking(true).unwrap();
        while listener.accept().is_ok() {}
        listener.set_nonblocking(false).unwrap();
    }
    is_answered(&listeners, "127.0.0.1:0", "127.0.0.1:53");
    let asker = UdpSocket::bind("127.0.0.1:0").unwrap();
    let goes_out = (0..1000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        asker.send_to(b"word", SITE_DNS).is_ok()
    });
    assert!(goes_out);
    answer_one(&listeners);
    assert_eq!(asker.recv(&mut [0; 9]).unwrap(), 6);
    is_caught(&listeners.transparent, TcpStream::connect(SITE_V6).unwrap(), at(SITE_V6));
}

/// Since the port of the listener is one that many connections have in common.
#[test]
fn connections_from_one_port_to_several_addresses_of_ipv6_are_kept_apart() {
    let Some(way) =
        in_a_namespace("redirect::tests::connections_from_one_port_to_several_addresses_of_ipv6_are_kept_apart")
    else {
        return;
    };
    let listeners = set_up(way).unwrap();
    let mut open = Vec::new();
    for to in ["[2606:2800::1]:443", "[2606:2800::2]:443", "[2606:2800::2]:80"] {
        let guest = bound("[::1]:7777");
        guest.connect(&at(to).into()).unwrap();
        open.push(guest.try_clone().unwrap());
        is_caught(&listeners.transparent, guest.into(), at(to));
    }
}

#[test]
fn what_is_not_tcp_is_refused_though_a_guest_has_the_address() {
    let Some(way) = in_a_namespace("redirect::tests::what_is_not_tcp_is_refused_though_a_guest_has_the_address") else {
        return;
    };
    let _listeners = set_up(way).unwrap();
    for (own, to) in [("0.0.0.0:0", "93.184.216.34:123"), ("[::]:0", "[2606:2800::1]:123")] {
        let (guest, asker) = (UdpSocket::from(made(to, Type::DGRAM)), UdpSocket::bind(own).unwrap());
        asker.connect(to).unwrap();
        let refused = asker.send(b"word").and_then(|_| asker.recv(&mut [0; 9]));
        assert!(matches!(refused.unwrap_err().raw_os_error(), Some(libc::EACCES | libc::EHOSTUNREACH | libc::EPERM)));
        guest.set_nonblocking(true).unwrap();
        assert_eq!(guest.recv(&mut [0; 9]).unwrap_err().kind(), ErrorKind::WouldBlock);
    }
}

#[test]
fn a_sandbox_reaches_itself_at_all_its_addresses() {
    let Some(way) = in_a_namespace("redirect::tests::a_sandbox_reaches_itself_at_all_its_addresses") else { return };
    let _listeners = set_up(way).unwrap();
    let guest = TcpListener::bind("[::]:8080").unwrap();
    for to in ["127.0.0.1", "127.9.9.9", "198.18.0.1", "[::1]", "[fdca:ba2a:6e63::1]"] {
        let mut came = TcpStream::connect(at(&format!("{to}:8080"))).unwrap();
        let (mut there, _) = guest.accept().unwrap();
        there.write_all(b"self").unwrap();
        let mut word = [0; 4];
        came.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"self", "{to}");
    }
}

/// The connection's other end has that very port.
#[test]
fn a_guest_serves_a_port_to_which_it_is_connected_elsewhere() {
    let Some(way) = in_a_namespace("redirect::tests::a_guest_serves_a_port_to_which_it_is_connected_elsewhere") else {
        return;
    };
    let listeners = set_up(way).unwrap();
    let _open = TcpStream::connect(at(SITE)).unwrap();
    let _caught = listeners.transparent[0].accept().unwrap();
    let guest = TcpListener::bind("0.0.0.0:80").unwrap();
    let _came = TcpStream::connect("127.0.0.1:80").unwrap();
    guest.accept().unwrap();
    is_caught(&listeners.transparent, TcpStream::connect(SITE).unwrap(), at(SITE));
    caught_nothing(&[guest]);
}
