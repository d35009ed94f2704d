//! The inside of a sandbox's network: every address leads to our listeners.
//!
//! A namespace has nothing but its loopback. A route says that all addresses are local, and the firewall sends every TCP
//! connection that is not for loopback to one listener, where its original destination can be asked for; questions of the
//! DNS go to another. What is left, other UDP above all, finds no listener and is refused by the kernel itself.
//!
//! A server that was killed leaves its routes and rules behind, without listeners. So everything here can be done again: what
//! is there already is done, and the rules are replaced as a whole, without a moment in which there are none.

use std::{
    ffi::CStr,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket},
};

use cabana_egress::Listeners;

use super::netlink::{Batch, Message};

/// Where nothing else listens, unless it wants to be in the way: above the ports that the kernel hands out by itself.
const TRANSPARENT: u16 = 65_501;
const HTTP_PROXY: u16 = 65_502;
const SOCKS_PROXY: u16 = 65_503;
const DNS: u16 = 53;
/// Before all others, instead of the first port and of the last: the rules lead to wherever these listen.
const SPARE: std::ops::Range<u16> = 65_400..65_500;

/// In the blocks from which names get their addresses, among those that no name gets.
const OWN_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const OWN_V6: Ipv6Addr = Ipv6Addr::new(0xfdca, 0xba2a, 0x6e63, 0, 0, 0, 0, 1);

/// In the network namespace of the calling thread.
pub(super) fn set_up() -> io::Result<Listeners> {
    let (listeners, ports) = ways()?;
    redirect(&ports)?;
    Ok(listeners)
}

/// Where what is caught is led to.
pub(super) struct Ports {
    transparent: u16,
    dns: u16,
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
    let (transparent, caught) = listen_all(TRANSPARENT, &at, TcpListener::bind)?;
    let (dns, (dns_tcp, dns_udp)) = listen_all(DNS, &at, |at| Ok((TcpListener::bind(at)?, UdpSocket::bind(at)?)))
        .map(|(port, both)| (port, both.into_iter().unzip()))?;
    // Who takes the ports of the proxies goes without them: nothing leads there but a setting of the guest's own.
    let there = |port| at.iter().filter_map(|at| TcpListener::bind((*at, port)).ok()).collect();
    let (http, socks) = (there(HTTP_PROXY), there(SOCKS_PROXY));
    Ok((Listeners { transparent: caught, dns_udp, dns_tcp, http, socks }, Ports { transparent, dns }))
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

const TABLE: &CStr = c"cabana";
const OUT: &CStr = c"out";
const REST: &CStr = c"rest";
const TCP: u8 = libc::IPPROTO_TCP as u8;
const UDP: u8 = libc::IPPROTO_UDP as u8;

/// All rules, in place of whichever a killed server left. Whoever deletes rules waits for every processor when the socket is
/// closed: so it is tried without first.
pub(super) fn redirect(ports: &Ports) -> io::Result<()> {
    match rules(ports, Table::New).send(Some(rustix::net::netlink::NETFILTER)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            rules(ports, Table::InPlace).send(Some(rustix::net::netlink::NETFILTER))
        }
        made => made,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Table {
    New,
    InPlace,
}

fn rules(&Ports { transparent, dns }: &Ports, table: Table) -> Batch {
    const NEW_TABLE: u16 = 0;
    const DELETE_TABLE: u16 = 2;
    const EXCLUSIVELY: u16 = 0x200;
    let mut batch = Batch::default();
    edge(&mut batch, 0x10);
    if table == Table::InPlace {
        nftables(&mut batch, DELETE_TABLE, 0, |table| {
            table.text(1, TABLE);
        });
    }
    nftables(&mut batch, NEW_TABLE, EXCLUSIVELY, |table| {
        table.text(1, TABLE);
    });
    chain(&mut batch, OUT, c"nat", -100);
    rule(&mut batch, OUT, |rule| rule.protocol(UDP).port(DNS).redirect(dns));
    rule(&mut batch, OUT, |rule| rule.protocol(TCP).port(DNS).redirect(dns));
    for_own(&mut batch, OUT);
    rule(&mut batch, OUT, |rule| rule.protocol(TCP).redirect(transparent));
    // Since every address is local, a socket of the guest's own would answer for any of them.
    chain(&mut batch, REST, c"filter", 0);
    for_own(&mut batch, REST);
    rule(&mut batch, REST, |rule| rule.reject());
    edge(&mut batch, 0x11);
    batch
}

/// What is for the sandbox itself stays as it is. Many a program calls itself by the address of its machine.
fn for_own(batch: &mut Batch, chain: &CStr) {
    rule(batch, chain, |rule| rule.for_v4(&[127]).accept());
    rule(batch, chain, |rule| rule.for_v6(&Ipv6Addr::LOCALHOST.octets()).accept());
    rule(batch, chain, |rule| rule.for_v4(&OWN_V4.octets()).accept());
    rule(batch, chain, |rule| rule.for_v6(&OWN_V6.octets()).accept());
}

/// Of what leaves a process of the sandbox.
fn chain(batch: &mut Batch, name: &CStr, kind: &CStr, priority: i32) {
    const NEW_CHAIN: u16 = 3;
    const LOCAL_OUT: u32 = 3;
    nftables(batch, NEW_CHAIN, 0, |chain| {
        chain.text(1, TABLE).text(3, name).text(7, kind);
        chain.nested(4, |hook| {
            hook.number(1, LOCAL_OUT).number(2, priority as u32);
        });
    });
}

/// The begin or end of what takes effect together.
fn edge(batch: &mut Batch, kind: u16) {
    const NFTABLES: u8 = 10;
    batch.message(kind, 0, false, &[0, 0, 0, NFTABLES], |_| ());
}

fn nftables(batch: &mut Batch, kind: u16, flags: u16, fill: impl FnOnce(&mut Message<'_>)) {
    const INET: u8 = 1;
    const CREATE_AND_APPEND: u16 = 0xc00;
    batch.message(10 << 8 | kind, CREATE_AND_APPEND | flags, true, &[INET, 0, 0, 0], fill);
}

fn rule(batch: &mut Batch, chain: &CStr, say: impl FnOnce(&mut Rule<'_, '_>)) {
    const NEW_RULE: u16 = 6;
    nftables(batch, NEW_RULE, 0, |message| {
        message.text(1, TABLE).text(2, chain);
        message.nested(4, |expressions| say(&mut Rule(expressions)));
    });
}

/// A rule: tests from left to right, and what is done where all hold. One register is enough.
struct Rule<'r, 'm>(&'r mut Message<'m>);

const REGISTER: u32 = 1;

impl Rule<'_, '_> {
    fn expression(&mut self, name: &CStr, fill: impl FnOnce(&mut Message<'_>)) -> &mut Self {
        self.0.nested(1, |element| {
            element.text(1, name).nested(2, fill);
        });
        self
    }

    fn equals(&mut self, value: &[u8]) -> &mut Self {
        self.expression(c"cmp", |cmp| {
            const EQUAL: u32 = 0;
            cmp.number(1, REGISTER).number(2, EQUAL).nested(3, |data| {
                data.attribute(1, value);
            });
        })
    }

    fn meta(&mut self, key: u32) -> &mut Self {
        self.expression(c"meta", |meta| {
            meta.number(1, REGISTER).number(2, key);
        })
    }

    fn family(&mut self, family: u8) -> &mut Self {
        const NFPROTO: u32 = 15;
        self.meta(NFPROTO).equals(&[family])
    }

    fn protocol(&mut self, protocol: u8) -> &mut Self {
        const L4PROTO: u32 = 16;
        self.meta(L4PROTO).equals(&[protocol])
    }

    fn payload(&mut self, base: u32, offset: u32, length: u32) -> &mut Self {
        self.expression(c"payload", |payload| {
            payload.number(1, REGISTER).number(2, base).number(3, offset).number(4, length);
        })
    }

    fn port(&mut self, port: u16) -> &mut Self {
        const TRANSPORT: u32 = 2;
        self.payload(TRANSPORT, 2, 2).equals(&port.to_be_bytes())
    }

    /// The beginning of an address.
    fn for_v4(&mut self, bytes: &[u8]) -> &mut Self {
        const NETWORK: u32 = 1;
        self.family(libc::NFPROTO_IPV4 as u8).payload(NETWORK, 16, bytes.len() as u32).equals(bytes)
    }

    fn for_v6(&mut self, bytes: &[u8]) -> &mut Self {
        const NETWORK: u32 = 1;
        self.family(libc::NFPROTO_IPV6 as u8).payload(NETWORK, 24, bytes.len() as u32).equals(bytes)
    }

    fn accept(&mut self) {
        const VERDICT: u32 = 0;
        const ACCEPT: u32 = 1;
        self.expression(c"immediate", |immediate| {
            immediate.number(1, VERDICT).nested(2, |data| {
                data.nested(2, |verdict| {
                    verdict.number(1, ACCEPT);
                });
            });
        });
    }

    fn reject(&mut self) {
        const ICMPX: u32 = 2;
        const ADMIN_PROHIBITED: u8 = 3;
        self.expression(c"reject", |reject| {
            reject.number(1, ICMPX).attribute(2, &[ADMIN_PROHIBITED]);
        });
    }

    fn redirect(&mut self, port: u16) {
        self.expression(c"immediate", |immediate| {
            immediate.number(1, REGISTER).nested(2, |data| {
                data.attribute(1, &port.to_be_bytes());
            });
        });
        self.expression(c"redir", |redir| {
            redir.number(1, REGISTER);
        });
    }
}

#[cfg(test)]
#[path = "redirect_tests.rs"]
mod tests;
