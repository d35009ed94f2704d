//! The rules of the firewall in a sandbox: what leaves a process comes to our listeners, or nowhere.
//!
//! Since every address is local, what leaves for anywhere comes back in on loopback, where a socket of the guest's own would
//! answer for any of them. So the rules have the last word there: to the sandbox itself, to a listener of ours, or refused.

use std::{
    ffi::CStr,
    io,
    net::{Ipv4Addr, Ipv6Addr},
};

use super::netlink::{Batch, Message};

pub(super) const DNS: u16 = 53;

/// In the blocks from which names get their addresses, among those that no name gets.
pub(super) const OWN_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
pub(super) const OWN_V6: Ipv6Addr = Ipv6Addr::new(0xfdca, 0xba2a, 0x6e63, 0, 0, 0, 0, 1);

/// Where what is caught is led to.
pub(super) struct Ports {
    pub(super) transparent: u16,
    pub(super) dns: u16,
}

/// How a connection comes to the listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// As it is, when it comes back in: the kernel need not remember it, which is a quarter of what a connection costs.
    Tproxy,
    /// With another destination, when it leaves: for a kernel that has nothing else.
    Nat,
}

const TABLE: &CStr = c"cabana";
const UNTRACKED: &CStr = c"untracked";
const OUT: &CStr = c"out";
const REST: &CStr = c"rest";
const BACK: &CStr = c"back";
const TCP: u8 = libc::IPPROTO_TCP as u8;
const UDP: u8 = libc::IPPROTO_UDP as u8;

/// All rules, in place of whichever a killed server left; by the other way where the kernel lacks the one that is wanted.
pub(super) fn redirect(ports: &Ports, way: Way) -> io::Result<()> {
    match put(ports, way) {
        Err(error) if way == Way::Tproxy && is_lacking(&error) => put(ports, Way::Nat),
        put => put,
    }
}

/// An expression that the kernel does not have, or not there.
fn is_lacking(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EOPNOTSUPP))
}

/// Whoever deletes rules waits for every processor when the socket is closed: so it is tried without first.
fn put(ports: &Ports, way: Way) -> io::Result<()> {
    match rules(ports, way, Table::New).send(Some(rustix::net::netlink::NETFILTER)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            rules(ports, way, Table::InPlace).send(Some(rustix::net::netlink::NETFILTER))
        }
        made => made,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Table {
    New,
    InPlace,
}

fn rules(&Ports { transparent, dns }: &Ports, way: Way, table: Table) -> Batch {
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
    chain(&mut batch, OUT, c"nat", LEAVES, -100);
    rule(&mut batch, OUT, |rule| rule.protocol(UDP).for_port(DNS).redirect(dns));
    rule(&mut batch, OUT, |rule| rule.protocol(TCP).for_port(DNS).redirect(dns));
    match way {
        Way::Tproxy => {
            // Questions are tracked, and their answers, also from where we listen instead, or else they would lead nowhere;
            // and whoever asks from the port of the DNS, lest what comes back to it be taken for a question.
            chain(&mut batch, UNTRACKED, c"filter", LEAVES, -300);
            rule(&mut batch, UNTRACKED, |rule| {
                rule.protocol(TCP).not_for_port(DNS).not_from_port(DNS).not_from_port(dns).untrack();
            });
            chain(&mut batch, BACK, c"filter", COMES, -150);
            for_own(&mut batch, BACK);
            rule(&mut batch, BACK, |rule| rule.protocol(TCP).tproxy_v4(transparent).accept());
            rule(&mut batch, BACK, |rule| rule.protocol(TCP).tproxy_v6(transparent).accept());
            // Nobody of ours listens, or it is for a socket of the guest's own that has an address of somebody else.
            rule(&mut batch, BACK, |rule| rule.reset());
        }
        Way::Nat => {
            for_own(&mut batch, OUT);
            rule(&mut batch, OUT, |rule| rule.protocol(TCP).redirect(transparent));
        }
    }
    chain(&mut batch, REST, c"filter", LEAVES, 0);
    if way == Way::Tproxy {
        rule(&mut batch, REST, |rule| rule.protocol(TCP).accept());
    }
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

const COMES: u32 = 0;
const LEAVES: u32 = 3;

/// Of what leaves a process of the sandbox, or comes back in.
fn chain(batch: &mut Batch, name: &CStr, kind: &CStr, hook: u32, priority: i32) {
    const NEW_CHAIN: u16 = 3;
    nftables(batch, NEW_CHAIN, 0, |chain| {
        chain.text(1, TABLE).text(3, name).text(7, kind);
        chain.nested(4, |at| {
            at.number(1, hook).number(2, priority as u32);
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

/// A rule: tests from left to right, and what is done where all hold.
struct Rule<'r, 'm>(&'r mut Message<'m>);

const REGISTER: u32 = 1;
const OTHER_REGISTER: u32 = 2;
const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;
const V4: u8 = libc::NFPROTO_IPV4 as u8;
const V6: u8 = libc::NFPROTO_IPV6 as u8;

impl Rule<'_, '_> {
    fn expression(&mut self, name: &CStr, fill: impl FnOnce(&mut Message<'_>)) -> &mut Self {
        self.0.nested(1, |element| {
            element.text(1, name).nested(2, fill);
        });
        self
    }

    fn compare(&mut self, how: u32, value: &[u8]) -> &mut Self {
        self.expression(c"cmp", |cmp| {
            cmp.number(1, REGISTER).number(2, how).nested(3, |data| {
                data.attribute(1, value);
            });
        })
    }

    fn equals(&mut self, value: &[u8]) -> &mut Self {
        self.compare(0, value)
    }

    fn differs(&mut self, value: &[u8]) -> &mut Self {
        self.compare(1, value)
    }

    fn load(&mut self, register: u32, value: &[u8]) -> &mut Self {
        self.expression(c"immediate", |immediate| {
            immediate.number(1, register).nested(2, |data| {
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

    fn for_port(&mut self, port: u16) -> &mut Self {
        self.payload(TRANSPORT, 2, 2).equals(&port.to_be_bytes())
    }

    fn not_for_port(&mut self, port: u16) -> &mut Self {
        self.payload(TRANSPORT, 2, 2).differs(&port.to_be_bytes())
    }

    fn not_from_port(&mut self, port: u16) -> &mut Self {
        self.payload(TRANSPORT, 0, 2).differs(&port.to_be_bytes())
    }

    /// The beginning of an address.
    fn for_v4(&mut self, bytes: &[u8]) -> &mut Self {
        self.family(V4).payload(NETWORK, 16, bytes.len() as u32).equals(bytes)
    }

    fn for_v6(&mut self, bytes: &[u8]) -> &mut Self {
        self.family(V6).payload(NETWORK, 24, bytes.len() as u32).equals(bytes)
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

    /// As a port does where nobody listens. What is not TCP is dropped.
    fn reset(&mut self) {
        const TCP_RESET: u32 = 1;
        self.expression(c"reject", |reject| {
            reject.number(1, TCP_RESET);
        });
    }

    fn redirect(&mut self, port: u16) {
        self.load(REGISTER, &port.to_be_bytes()).expression(c"redir", |redir| {
            redir.number(1, REGISTER);
        });
    }

    fn untrack(&mut self) {
        self.expression(c"notrack", |_| ());
    }

    fn tproxy_v4(&mut self, port: u16) -> &mut Self {
        self.family(V4).tproxy(V4, &Ipv4Addr::LOCALHOST.octets(), port)
    }

    fn tproxy_v6(&mut self, port: u16) -> &mut Self {
        self.family(V6).tproxy(V6, &Ipv6Addr::LOCALHOST.octets(), port)
    }

    /// To the socket that has the connection already, or else to the one that listens there. It holds if that one says that it
    /// answers for others, which no socket of a guest may.
    fn tproxy(&mut self, family: u8, to: &[u8], port: u16) -> &mut Self {
        self.load(REGISTER, &port.to_be_bytes()).load(OTHER_REGISTER, to).expression(c"tproxy", |tproxy| {
            tproxy.number(1, family.into()).number(2, OTHER_REGISTER).number(3, REGISTER);
        })
    }
}
