//! Whose sockets listen at an address of this machine, as the kernel's tables of TCP say.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

const LISTENS: &str = "0A";
const ESTABLISHED: &str = "01";

/// Do these accounts listen there, and does no other listen or have connections there? No account can change what the kernel says
/// of its sockets.
pub(super) fn is_served_only_by(at: SocketAddr, accounts: &[u32]) -> bool {
    // A table is read in pieces, and a row that moves meanwhile is in none of them.
    (0..5).any(|_| {
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| fs::read_to_string(table).unwrap_or_default());
        let sockets = |state| tables.iter().flat_map(move |table| sockets(table, at, state));
        // The nearest takes what is sent there. Of another one, which any account may have, nothing follows.
        let nearest = sockets(LISTENS).map(|(nearness, _)| nearness).min();
        let mut listeners = sockets(LISTENS).filter(|(nearness, _)| Some(*nearness) == nearest);
        let is_ours = |(_, owner): (Nearness, u32)| accounts.contains(&owner);
        // A connection that another account has taken here outlives that account's listener.
        nearest.is_some() && listeners.all(is_ours) && sockets(ESTABLISHED).all(is_ours)
    })
}

/// As the kernel chooses between sockets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Nearness {
    BoundToIt,
    BoundToNone,
    /// An IPv6 socket that is bound to no address takes IPv4, too.
    BoundToNoneOfIpv6,
}

/// Those sockets that could take what is sent to this address, and their accounts.
fn sockets<'a>(table: &'a str, at: SocketAddr, state: &'a str) -> impl Iterator<Item = (Nearness, u32)> + 'a {
    table.lines().filter_map(move |line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, local, _, its_state, _, _, _, owner, ..] = words[..] else { return None };
        if its_state != state {
            return None;
        }
        let (ip, port) = local.split_once(':')?;
        let nearness = nearness(address(ip)?, at.ip().to_canonical())?;
        let is_it = u16::from_str_radix(port, 16).ok()? == at.port();
        is_it.then(|| Some((nearness, owner.parse().ok()?))).flatten()
    })
}

fn nearness(bound: IpAddr, asked: IpAddr) -> Option<Nearness> {
    match bound {
        bound if bound == asked => Some(Nearness::BoundToIt),
        bound if bound.is_unspecified() && bound.is_ipv4() == asked.is_ipv4() => Some(Nearness::BoundToNone),
        bound if bound.is_unspecified() && bound.is_ipv6() => Some(Nearness::BoundToNoneOfIpv6),
        _ => None,
    }
}

/// Words of 32 bits, as this machine has them in its memory.
fn address(hex: &str) -> Option<IpAddr> {
    let words = hex.as_bytes().chunks(8).map(|word| u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok());
    let bytes: Vec<u8> = words.collect::<Option<Vec<u32>>>()?.into_iter().flat_map(u32::to_ne_bytes).collect();
    let v4 = <[u8; 4]>::try_from(&bytes[..]).map(|bytes| Ipv4Addr::from(bytes).into());
    v4.or_else(|_| <[u8; 16]>::try_from(&bytes[..]).map(|bytes| Ipv6Addr::from(bytes).to_canonical())).ok()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_listener_is_found_by_every_address_that_leads_to_it() {
        let us = [rustix::process::geteuid().as_raw()];
        for (bound, asked) in
            [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]"), ("[::]", "127.0.0.1")]
        {
            let Ok(listener) = TcpListener::bind(format!("{bound}:0")) else { continue }; // no IPv6 here
            let port = listener.local_addr().unwrap().port();
            let asked: SocketAddr = format!("{asked}:{port}").parse().unwrap();
            assert!(is_served_only_by(asked, &us), "{bound} for {asked}");
            assert!(!is_served_only_by(asked, &[us[0] + 1]), "{bound} for {asked}");
            drop(listener);
            assert!(!is_served_only_by(asked, &us), "{bound} for {asked}");
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = SocketAddr::new("127.0.0.2".parse().unwrap(), listener.local_addr().unwrap().port());
        assert!(!is_served_only_by(other, &us), "another address");
    }
}
