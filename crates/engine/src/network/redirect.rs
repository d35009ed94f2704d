//! The inside of a sandbox's network: every address leads to our listeners.
//!
//! A namespace has nothing but its loopback. A route says that all addresses are local, and the firewall sends every TCP
//! connection that is not for the sandbox itself to one listener, which can tell where it was going; questions of the DNS go to
//! another, but for those that are asked where one of ours listens anyway. What is left, other UDP above all, is refused by the kernel itself.
//!
//! A server that was killed leaves its routes and rules behind, without listeners. So everything here can be done again: what
//! is there already is done, and the rules are replaced as a whole, without a moment in which there are none.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket},
};

use cabana_egress::Listeners;
use socket2::SockRef;

use super::{
    netlink::Batch,
    rules::{DNS, OWN_V4, OWN_V6, Ports, Way, redirect},
};

/// Where nothing else listens, unless it wants to be in the way: above the ports that the kernel hands out by itself.
const TRANSPARENT: u16 = 65_501;
const HTTP_PROXY: u16 = 65_502;
const SOCKS_PROXY: u16 = 65_503;
const CAUGHT_DNS: u16 = 65_504;
/// Before all others, instead of the first port and of the last: the rules lead to wherever these listen.
const SPARE: std::ops::Range<u16> = 65_400..65_500;

/// In the network namespace of the calling thread.
pub(super) fn set_up(way: Way) -> io::Result<Listeners> {
    let (listeners, ports) = ways()?;
    redirect(&ports, way)?;
    Ok(listeners)
}

/// Routes that lead everything here, and who listens.
pub(super) fn ways() -> io::Result<(Listeners, Ports)> {
    let (v4, v6) = (libc::AF_INET as u8, libc::AF_INET6 as u8);
    raise_loopback()?;
    add_route(v4, &Ipv4Addr::LOCALHOST.octets())?;
    add_address(v4, &OWN_V4.octets())?;
    let mut at: Vec<IpAddr> = vec![Ipv4Addr::LOCALHOST.into()];
    // A host may have no IPv6 at all: then there is nothing to redirect.
    if add_route(v6, &Ipv6Addr::LOCALHOST.octets()).is_ok() {
        add_address(v6, &OWN_V6.octets())?;
        at.push(Ipv6Addr::LOCALHOST.into());
    }
    let (transparent, caught) = listen_all(TRANSPARENT, &at, listen_transparently)?;
    let (dns, both) = listen_all(CAUGHT_DNS, &at, |at| Ok((TcpListener::bind(at)?, UdpSocket::bind(at)?)))?;
    let (dns_tcp, mut dns_udp): (Vec<_>, Vec<_>) = both.into_iter().unzip();
    // Where a guest has the port, questions are led away from it.
    let there: io::Result<Vec<_>> = at.iter().map(|at| UdpSocket::bind((*at, DNS))).collect();
    let is_dns_there = there.is_ok();
    dns_udp.extend(there.into_iter().flatten());
    // Who takes the ports of the proxies goes without them: nothing leads there but a setting of the guest's own.
    let there = |port| at.iter().filter_map(|at| TcpListener::bind((*at, port)).ok()).collect();
    let (http, socks) = (there(HTTP_PROXY), there(SOCKS_PROXY));
    Ok((Listeners { transparent: caught, dns_udp, dns_tcp, http, socks }, Ports { transparent, dns, is_dns_there }))
}

/// Answers for whichever address a connection was for, once the rules lead it here.
fn listen_transparently(at: (IpAddr, u16)) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(at)?;
    let socket = SockRef::from(&listener);
    match at.0 {
        IpAddr::V4(_) => socket.set_ip_transparent_v4(true)?,
        IpAddr::V6(_) => socket.set_ip_transparent_v6(true)?,
    }
    Ok(listener)
}

/// On the same port of all addresses. A guest may listen where a killed server did: then it is another one.
fn listen_all<T>(
    first: u16,
    at: &[IpAddr],
    listen: impl Fn((IpAddr, u16)) -> io::Result<T>,
) -> io::Result<(u16, Vec<T>)> {
    // Any port at all, at last: who wants to keep a sandbox from its owner has to hold every one of them.
    for port in std::iter::once(first).chain(SPARE).chain((1..SPARE.start).rev()) {
        match at.iter().map(|at| listen((*at, port))).collect() {
            Ok(listeners) => return Ok((port, listeners)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, "processes of the sandbox hold all ports that could be used"))
}

const LOOPBACK: u32 = 1; // of every namespace
const CREATE_EXCLUSIVELY: u16 = 0x600;

/// `ip link set lo up`: init may not have come to it yet.
fn raise_loopback() -> io::Result<()> {
    const NEW_LINK: u16 = 16;
    let (index, up) = (LOOPBACK.to_ne_bytes(), (libc::IFF_UP as u32).to_ne_bytes());
    let mut batch = Batch::default();
    batch.message(NEW_LINK, 0, true, &[[0; 4], index, up, up].concat(), |_| ());
    batch.send(None)
}

/// `ip route add local default dev lo src …`
fn add_route(family: u8, source: &[u8]) -> io::Result<()> {
    const NEW_ROUTE: u16 = 24;
    const OIF: u16 = 4;
    const PREFSRC: u16 = 7;
    let head =
        [family, 0, 0, 0, libc::RT_TABLE_LOCAL, libc::RTPROT_STATIC, libc::RT_SCOPE_HOST, libc::RTN_LOCAL, 0, 0, 0, 0];
    let mut batch = Batch::default();
    batch.message(NEW_ROUTE, CREATE_EXCLUSIVELY, true, &head, |message| {
        message.attribute(OIF, &LOOPBACK.to_ne_bytes()).attribute(PREFSRC, source);
    });
    unless_there(batch.send(None))
}

/// `ip address add … dev lo`: to the resolver of many a library, a machine that has only loopback addresses has no network,
/// and it looks nothing up. These are never handed out for names.
fn add_address(family: u8, address: &[u8]) -> io::Result<()> {
    const NEW_ADDRESS: u16 = 20;
    const ADDRESS: u16 = 1;
    const LOCAL: u16 = 2;
    let [a, b, c, d] = LOOPBACK.to_ne_bytes();
    let head = [family, (address.len() * 8) as u8, 0, 0, a, b, c, d];
    let mut batch = Batch::default();
    batch.message(NEW_ADDRESS, CREATE_EXCLUSIVELY, true, &head, |message| {
        message.attribute(LOCAL, address).attribute(ADDRESS, address);
    });
    unless_there(batch.send(None))
}

fn unless_there(added: io::Result<()>) -> io::Result<()> {
    match added {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        added => added,
    }
}

#[cfg(test)]
#[path = "redirect_tests.rs"]
pub(super) mod tests;
