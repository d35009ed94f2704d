//! The rules of the firewall in a sandbox: what leaves a process comes to our listeners, or nowhere.
//!
//! Since every address is local, what leaves for anywhere comes back in on loopback, where a socket of the guest's own would
//! answer for any of them. So nothing gets there but what is for the sandbox itself, or for a listener of ours.

use std::{
    ffi::CStr,
    io,
    net::{Ipv4Addr, Ipv6Addr},
};

use super::{
    netlink::Batch,
    nftables::{COMES, LEAVES, Rule, Table, begin, chain, end, rule},
};

pub(super) const DNS: u16 = 53;

/// In the blocks from which names get their addresses, among those that no name gets.
pub(super) const OWN_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
pub(super) const OWN_V6: Ipv6Addr = Ipv6Addr::new(0xfdca, 0xba2a, 0x6e63, 0, 0, 0, 0, 1);

/// Where what is caught is led to.
pub(super) struct Ports {
    pub(super) transparent: u16,
    pub(super) dns: u16,
    /// Whether one of ours is where most questions are asked, too: on the port of the DNS itself, for datagrams.
    pub(super) is_dns_there: bool,
}

/// What the kernel remembers of connections is memory that no limit counts, and lies in one table with what it remembers for the whole
/// machine. A guest could begin very many and keep none, and a namespace has no bound of its own there (`nf_conntrack_max` is the host's).
/// So what needs no tracking has none, and what is tracked begins at a pace, at which the kernel forgets others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tracking {
    Paced,
    /// For a kernel that cannot count.
    Unbounded,
}

/// Of each protocol: so many a second, after so many at once.
const TRACKED_PER_SEC: u64 = 100;
const TRACKED_AT_ONCE: u32 = 1024;

/// How a connection comes to the listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// As it is, when it comes back in: the kernel need not remember it, which is a fifth of what a connection costs. Of IPv6
    /// with another destination: it has a neighbour for each address that something leaves for by loopback, which no limit
    /// counts and no garbage collection takes. (Of IPv4 there is one for all.)
    Tproxy,
    /// With another destination, when it leaves: for a kernel that has nothing else.
    Nat,
}

const UNTRACKED: &CStr = c"untracked";
const OUT: &CStr = c"out";
const REST: &CStr = c"rest";
const BACK: &CStr = c"back";
const TCP: u8 = libc::IPPROTO_TCP as u8;
const UDP: u8 = libc::IPPROTO_UDP as u8;

/// All rules, in place of whichever a killed server left; by the other way where the kernel lacks the one that is wanted.
pub(super) fn redirect(ports: &Ports, way: Way) -> io::Result<()> {
    use Tracking::{Paced, Unbounded};
    let mut last = Ok(());
    for (way, tracking) in [(way, Paced), (way, Unbounded), (Way::Nat, Paced), (Way::Nat, Unbounded)] {
        match put(ports, way, tracking) {
            Err(error) if is_lacking(&error) => last = Err(error),
            put => return put,
        }
    }
    last
}

/// An expression that the kernel does not have, or not there.
fn is_lacking(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EOPNOTSUPP))
}

/// Whoever deletes rules waits for every processor when the socket is closed: so it is tried without first.
fn put(ports: &Ports, way: Way, tracking: Tracking) -> io::Result<()> {
    match rules(ports, way, tracking, Table::New).send(Some(rustix::net::netlink::NETFILTER)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            rules(ports, way, tracking, Table::InPlace).send(Some(rustix::net::netlink::NETFILTER))
        }
        made => made,
    }
}

fn rules(ports: &Ports, way: Way, tracking: Tracking, table: Table) -> Batch {
    let &Ports { transparent, dns, .. } = ports;
    let mut batch = Batch::default();
    begin(&mut batch, table);
    if way == Way::Tproxy || tracking == Tracking::Paced {
        untrack(&mut batch, ports, way);
    }
    // Only what begins and is tracked comes here.
    chain(&mut batch, OUT, c"nat", LEAVES, -100);
    if tracking == Tracking::Paced {
        for protocol in [TCP, UDP] {
            rule(&mut batch, OUT, |rule| rule.protocol(protocol).over_rate(TRACKED_PER_SEC, TRACKED_AT_ONCE).discard());
        }
    }
    rule(&mut batch, OUT, |rule| rule.protocol(UDP).for_port(DNS).redirect(dns));
    rule(&mut batch, OUT, |rule| rule.protocol(TCP).for_port(DNS).redirect(dns));
    match way {
        Way::Tproxy => {
            own_v6(&mut batch, OUT);
            rule(&mut batch, OUT, |rule| rule.v6().protocol(TCP).redirect(transparent));
            chain(&mut batch, BACK, c"filter", COMES, -150);
            // To the listener of ours alone, or to none: while there is no server, a guest may have its port.
            rule(&mut batch, BACK, |rule| redirected_v6(rule, transparent).tproxy_v6(transparent).accept());
            rule(&mut batch, BACK, |rule| redirected_v6(rule, transparent).reset());
            for_own(&mut batch, BACK);
            rule(&mut batch, BACK, |rule| rule.protocol(TCP).tproxy_v4(transparent).accept());
            // Nobody of ours listens, or it is for a socket of the guest's own that has an address of somebody else.
            rule(&mut batch, BACK, |rule| rule.reset());
        }
        Way::Nat => {
            for_own(&mut batch, OUT);
            rule(&mut batch, OUT, |rule| rule.protocol(TCP).redirect(transparent));
        }
    }
    // Nothing else is for anybody but the sandbox itself.
    chain(&mut batch, REST, c"filter", LEAVES, 0);
    if way == Way::Tproxy {
        rule(&mut batch, REST, |rule| rule.v4().protocol(TCP).accept());
    }
    for_own(&mut batch, REST);
    rule(&mut batch, REST, |rule| rule.reject());
    end(&mut batch);
    batch
}

/// What is redirected is tracked, and what comes back from where we listen instead, or else it would lead nowhere; and who
/// asks from the port of the DNS, lest what comes back to it be taken for a question.
fn untrack(batch: &mut Batch, &Ports { transparent, dns, is_dns_there }: &Ports, way: Way) {
    chain(batch, UNTRACKED, c"filter", LEAVES, -300);
    if is_dns_there {
        let (v4, v6) = (Ipv4Addr::LOCALHOST.octets(), Ipv6Addr::LOCALHOST.octets());
        rule(batch, UNTRACKED, |rule| rule.for_v4(&v4).protocol(UDP).for_port(DNS).untrack());
        rule(batch, UNTRACKED, |rule| rule.source_v4(&v4).protocol(UDP).source_port(DNS).untrack());
        rule(batch, UNTRACKED, |rule| rule.for_v6(&v6).protocol(UDP).for_port(DNS).untrack());
        rule(batch, UNTRACKED, |rule| rule.source_v6(&v6).protocol(UDP).source_port(DNS).untrack());
    }
    rule(batch, UNTRACKED, |rule| no_question(rule.protocol(UDP), dns).untrack());
    if way == Way::Tproxy {
        rule(batch, UNTRACKED, |rule| no_question(rule.v4().protocol(TCP), dns).untrack());
    } else {
        for own in [&[127_u8][..], &OWN_V4.octets()] {
            rule(batch, UNTRACKED, |rule| of_own(rule.for_v4(own), dns, transparent).untrack());
        }
    }
    for own in [Ipv6Addr::LOCALHOST, OWN_V6] {
        rule(batch, UNTRACKED, |rule| of_own(rule.for_v6(&own.octets()), dns, transparent).untrack());
    }
}

/// Nor an answer to one.
fn no_question<'a, 'r, 'm>(rule: &'a mut Rule<'r, 'm>, dns: u16) -> &'a mut Rule<'r, 'm> {
    rule.not_for_port(DNS).not_source_port(DNS).not_source_port(dns)
}

/// A connection within the sandbox, where others of that protocol are redirected.
fn of_own<'a, 'r, 'm>(rule: &'a mut Rule<'r, 'm>, dns: u16, transparent: u16) -> &'a mut Rule<'r, 'm> {
    no_question(rule.protocol(TCP), dns).not_for_port(transparent).not_source_port(transparent)
}

/// What was for another address when it left, or for the listener itself.
fn redirected_v6<'a, 'r, 'm>(rule: &'a mut Rule<'r, 'm>, transparent: u16) -> &'a mut Rule<'r, 'm> {
    rule.for_v6(&Ipv6Addr::LOCALHOST.octets()).protocol(TCP).for_port(transparent)
}

/// What is for the sandbox itself stays as it is. Many a program calls itself by the address of its machine.
fn for_own(batch: &mut Batch, chain: &CStr) {
    rule(batch, chain, |rule| rule.for_v4(&[127]).accept());
    rule(batch, chain, |rule| rule.for_v4(&OWN_V4.octets()).accept());
    own_v6(batch, chain);
}

fn own_v6(batch: &mut Batch, chain: &CStr) {
    rule(batch, chain, |rule| rule.for_v6(&Ipv6Addr::LOCALHOST.octets()).accept());
    rule(batch, chain, |rule| rule.for_v6(&OWN_V6.octets()).accept());
}

#[cfg(test)]
mod tests {
    use super::{super::redirect::tests::in_a_namespace, *};

    /// As the kernel says it of a rule with this in it.
    fn refused(say: impl FnOnce(&mut Rule<'_, '_>)) -> io::Error {
        let mut batch = Batch::default();
        begin(&mut batch, Table::New);
        chain(&mut batch, REST, c"filter", LEAVES, 0);
        rule(&mut batch, REST, say);
        end(&mut batch);
        batch.send(Some(rustix::net::netlink::NETFILTER)).unwrap_err()
    }

    #[test]
    fn a_kernel_that_cannot_count_has_rules_too() {
        let Some(way) = in_a_namespace("rules::tests::a_kernel_that_cannot_count_has_rules_too") else { return };
        for is_dns_there in [true, false] {
            let ports = Ports { transparent: 65_501, dns: 65_504, is_dns_there };
            put(&ports, way, Tracking::Unbounded).unwrap();
            put(&ports, way, Tracking::Paced).unwrap();
        }
    }

    #[test]
    fn a_kernel_that_lacks_an_expression_is_told_from_other_failures() {
        if in_a_namespace("rules::tests::a_kernel_that_lacks_an_expression_is_told_from_other_failures").is_none() {
            return;
        }
        let unknown = refused(|rule| {
            rule.expression(c"unheard", |_| ());
        });
        assert!(is_lacking(&unknown), "{unknown}");
        let elsewhere = refused(|rule| rule.redirect(DNS));
        assert!(is_lacking(&elsewhere), "{elsewhere}");
        let absurd = refused(|rule| {
            rule.load(u32::MAX, &[0]);
        });
        assert!(!is_lacking(&absurd), "{absurd}");
    }
}
