//! Tables, chains and rules of the firewall, as the kernel wants them: the few kinds that are needed.

use std::{
    ffi::CStr,
    net::{Ipv4Addr, Ipv6Addr},
};

use super::netlink::{Batch, Message};

const TABLE: &CStr = c"cabana";

/// What there was before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Table {
    New,
    InPlace,
}

/// Of what takes effect together, in a table of its own.
pub(super) fn begin(batch: &mut Batch, table: Table) {
    const NEW_TABLE: u16 = 0;
    const DELETE_TABLE: u16 = 2;
    const EXCLUSIVELY: u16 = 0x200;
    edge(batch, 0x10);
    if table == Table::InPlace {
        nftables(batch, DELETE_TABLE, 0, |table| {
            table.text(1, TABLE);
        });
    }
    nftables(batch, NEW_TABLE, EXCLUSIVELY, |table| {
        table.text(1, TABLE);
    });
}

pub(super) fn end(batch: &mut Batch) {
    edge(batch, 0x11);
}

fn edge(batch: &mut Batch, kind: u16) {
    const NFTABLES: u8 = 10;
    batch.message(kind, 0, false, &[0, 0, 0, NFTABLES], |_| ());
}

pub(super) const COMES: u32 = 0;
pub(super) const LEAVES: u32 = 3;

/// Of what leaves a process of the sandbox, or comes back in.
pub(super) fn chain(batch: &mut Batch, name: &CStr, kind: &CStr, hook: u32, priority: i32) {
    const NEW_CHAIN: u16 = 3;
    nftables(batch, NEW_CHAIN, 0, |chain| {
        chain.text(1, TABLE).text(3, name).text(7, kind);
        chain.nested(4, |at| {
            at.number(1, hook).number(2, priority as u32);
        });
    });
}

fn nftables(batch: &mut Batch, kind: u16, flags: u16, fill: impl FnOnce(&mut Message<'_>)) {
    const INET: u8 = 1;
    const CREATE_AND_APPEND: u16 = 0xc00;
    batch.message(10 << 8 | kind, CREATE_AND_APPEND | flags, true, &[INET, 0, 0, 0], fill);
}

pub(super) fn rule(batch: &mut Batch, chain: &CStr, say: impl FnOnce(&mut Rule<'_, '_>)) {
    const NEW_RULE: u16 = 6;
    nftables(batch, NEW_RULE, 0, |message| {
        message.text(1, TABLE).text(2, chain);
        message.nested(4, |expressions| say(&mut Rule(expressions)));
    });
}

/// A rule: tests from left to right, and what is done where all hold.
pub(super) struct Rule<'r, 'm>(&'r mut Message<'m>);

const REGISTER: u32 = 1;
const OTHER_REGISTER: u32 = 2;
const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;
const V4: u8 = libc::NFPROTO_IPV4 as u8;
const V6: u8 = libc::NFPROTO_IPV6 as u8;

impl Rule<'_, '_> {
    pub(super) fn expression(&mut self, name: &CStr, fill: impl FnOnce(&mut Message<'_>)) -> &mut Self {
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

    pub(super) fn load(&mut self, register: u32, value: &[u8]) -> &mut Self {
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

    pub(super) fn v4(&mut self) -> &mut Self {
        self.family(V4)
    }

    pub(super) fn v6(&mut self) -> &mut Self {
        self.family(V6)
    }

    fn family(&mut self, family: u8) -> &mut Self {
        const NFPROTO: u32 = 15;
        self.meta(NFPROTO).equals(&[family])
    }

    pub(super) fn protocol(&mut self, protocol: u8) -> &mut Self {
        const L4PROTO: u32 = 16;
        self.meta(L4PROTO).equals(&[protocol])
    }

    fn payload(&mut self, base: u32, offset: u32, length: u32) -> &mut Self {
        self.expression(c"payload", |payload| {
            payload.number(1, REGISTER).number(2, base).number(3, offset).number(4, length);
        })
    }

    pub(super) fn for_port(&mut self, port: u16) -> &mut Self {
        self.payload(TRANSPORT, 2, 2).equals(&port.to_be_bytes())
    }

    pub(super) fn not_for_port(&mut self, port: u16) -> &mut Self {
        self.payload(TRANSPORT, 2, 2).differs(&port.to_be_bytes())
    }

    pub(super) fn source_port(&mut self, port: u16) -> &mut Self {
        self.payload(TRANSPORT, 0, 2).equals(&port.to_be_bytes())
    }

    pub(super) fn not_source_port(&mut self, port: u16) -> &mut Self {
        self.payload(TRANSPORT, 0, 2).differs(&port.to_be_bytes())
    }

    /// The beginning of an address.
    pub(super) fn for_v4(&mut self, bytes: &[u8]) -> &mut Self {
        self.v4().payload(NETWORK, 16, bytes.len() as u32).equals(bytes)
    }

    pub(super) fn for_v6(&mut self, bytes: &[u8]) -> &mut Self {
        self.v6().payload(NETWORK, 24, bytes.len() as u32).equals(bytes)
    }

    pub(super) fn source_v4(&mut self, bytes: &[u8]) -> &mut Self {
        self.v4().payload(NETWORK, 12, bytes.len() as u32).equals(bytes)
    }

    pub(super) fn source_v6(&mut self, bytes: &[u8]) -> &mut Self {
        self.v6().payload(NETWORK, 8, bytes.len() as u32).equals(bytes)
    }

    /// Holds for what comes faster than so many packets a second, once `burst` of them have come at any speed.
    pub(super) fn over_rate(&mut self, per_sec: u64, burst: u32) -> &mut Self {
        const SECOND: u64 = 1;
        const PACKETS: u32 = 0;
        const OVER: u32 = 1;
        self.expression(c"limit", |limit| {
            limit.attribute(1, &per_sec.to_be_bytes()).attribute(2, &SECOND.to_be_bytes());
            limit.number(3, burst).number(4, PACKETS).number(5, OVER);
        })
    }

    pub(super) fn accept(&mut self) {
        self.verdict(libc::NF_ACCEPT as u32);
    }

    pub(super) fn discard(&mut self) {
        self.verdict(libc::NF_DROP as u32);
    }

    fn verdict(&mut self, code: u32) {
        const VERDICT: u32 = 0;
        self.expression(c"immediate", |immediate| {
            immediate.number(1, VERDICT).nested(2, |data| {
                data.nested(2, |verdict| {
                    verdict.number(1, code);
                });
            });
        });
    }

    pub(super) fn reject(&mut self) {
        const ICMPX: u32 = 2;
        const ADMIN_PROHIBITED: u8 = 3;
        self.expression(c"reject", |reject| {
            reject.number(1, ICMPX).attribute(2, &[ADMIN_PROHIBITED]);
        });
    }

    /// As a port does where nobody listens. What is not TCP is dropped.
    pub(super) fn reset(&mut self) {
        const TCP_RESET: u32 = 1;
        self.expression(c"reject", |reject| {
            reject.number(1, TCP_RESET);
        });
    }

    pub(super) fn redirect(&mut self, port: u16) {
        self.load(REGISTER, &port.to_be_bytes()).expression(c"redir", |redir| {
            redir.number(1, REGISTER);
        });
    }

    pub(super) fn untrack(&mut self) {
        self.expression(c"notrack", |_| ());
    }

    pub(super) fn tproxy_v4(&mut self, port: u16) -> &mut Self {
        self.v4().tproxy(V4, &Ipv4Addr::LOCALHOST.octets(), port)
    }

    pub(super) fn tproxy_v6(&mut self, port: u16) -> &mut Self {
        self.v6().tproxy(V6, &Ipv6Addr::LOCALHOST.octets(), port)
    }

    /// To the socket that has the connection already, or else to the one that listens there. It holds if that one says that it
    /// answers for others, which no socket of a guest may.
    fn tproxy(&mut self, family: u8, to: &[u8], port: u16) -> &mut Self {
        self.load(REGISTER, &port.to_be_bytes()).load(OTHER_REGISTER, to).expression(c"tproxy", |tproxy| {
            tproxy.number(1, family.into()).number(2, OTHER_REGISTER).number(3, REGISTER);
        })
    }
}
