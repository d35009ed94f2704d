//! A sandbox's way out: what is inside its network namespace, and who serves it from outside.
//!
//! Whoever asks for a network gets it set up from here: a thread enters the namespace, makes the listeners and the rules,
//! and ends. So init needs no right over its network, and a sandbox that was made without one can be given one later.
#![allow(unsafe_code)]

mod netlink;
mod nftables;
mod parsed;
mod redirect;
mod rules;
mod settings;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

pub use cabana_egress::EncryptedHello;
use cabana_egress::{Config, Egress, Event, Listeners, LongQueues, Policy};
use cabana_sandbox::{Error, Holder, NetworkPolicy, Result, SandboxEvent, SandboxId};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::{net::TcpStream, sync::mpsc, task::spawn_blocking};

use self::rules::Way;
pub use self::settings::NetworkSettings;
pub(crate) use self::settings::Ways;
use crate::places;

/// The network of one live sandbox. It ends with it.
pub(crate) struct Network(Egress);

impl Network {
    pub(crate) async fn open(
        ways: &Ways,
        outlet: Outlet,
        wanted: &NetworkPolicy,
        id: SandboxId,
        holder: Holder,
        happened: mpsc::Sender<(SandboxId, SandboxEvent)>,
    ) -> Result<Self> {
        let policy = with_own(ways, read(wanted).await?);
        let Equipped(listeners) = match outlet {
            Outlet::Equipped(equipped) => equipped,
            Outlet::Bare(namespace) => namespace.equip().await?,
        };
        let tell = move |event: Event| {
            let Event { host, port, allowed, rule, reason, .. } = event;
            let told = SandboxEvent::Network { host, port, allowed, rule, reason: reason.to_string() };
            let _ = happened.try_send((id.clone(), told));
        };
        let (places, lookups) = (places::CONNECTIONS.clone(), places::LOOKUPS.clone());
        let queues = places::QUEUES.clone();
        let long_queues = LongQueues { places: places::LONG_QUEUES.clone(), widen };
        let outside = ways.outside.clone();
        let config =
            Config { outside, holder, places, queues, long_queues, lookups, ..Config::new(policy, Arc::new(tell)) };
        Ok(Self(cabana_egress::serve(listeners, config).map_err(failed)?))
    }

    /// Connections that the new one refuses are ended.
    pub(crate) async fn set_policy(&self, ways: &Ways, wanted: &NetworkPolicy) -> Result<()> {
        self.0.set_policy(with_own(ways, read(wanted).await?));
        Ok(())
    }

    /// Who comes in there would go out as the sandbox.
    pub(crate) fn is_way_out(&self, address: SocketAddr) -> bool {
        self.0.listens_at(address)
    }
}

/// Whether a network can be set up: in the namespace of the calling thread, which is good for nothing else then.
pub(crate) fn try_out() -> std::result::Result<(), (&'static str, io::Error)> {
    let (_listeners, ports) = redirect::ways().map_err(|error| ("making routes and listeners", error))?;
    rules::redirect(&ports, Way::Tproxy).map_err(|error| ("redirecting connections by nf_tables", error))
}

/// Refuses what makes no sense, before anything is made.
pub(crate) async fn check(wanted: &NetworkPolicy) -> Result<()> {
    read(wanted).await.map(drop)
}

/// A long list is read off the workers, each time: those of other tenants may have taken its place among the known ones.
async fn read(wanted: &NetworkPolicy) -> Result<Policy> {
    if let Some(known) = parsed::known(wanted) {
        return Ok(known);
    }
    if !wanted.is_long() {
        return parsed(wanted);
    }
    let wanted = wanted.clone();
    let read = spawn_blocking(move || parsed(&wanted)).await;
    read.map_err(|error| failed(io::Error::other(error)))?
}

/// On a thread that may block.
pub(crate) fn reaches_inside(ways: &Ways, wanted: &NetworkPolicy) -> Result<bool> {
    parsed(wanted).map(|policy| with_own(ways, policy).reaches_inside())
}

fn with_own(ways: &Ways, policy: Policy) -> Policy {
    let own = own_addresses().into_iter().chain(ways.own.iter().copied());
    policy.with_own(own).with_encrypted_hello(ways.encrypted_hello)
}

fn parsed(wanted: &NetworkPolicy) -> Result<Policy> {
    parsed::parsed(wanted).map_err(|error| Error::invalid("network", error.to_string()))
}

fn failed(error: io::Error) -> Error {
    Error::failed("setting the network up", error)
}

/// Where the network of a sandbox is made.
pub(crate) enum Outlet {
    Bare(Namespace),
    Equipped(Equipped),
}

/// What is made inside, for whatever policy there will be.
pub(crate) struct Equipped(Listeners);

/// Of a sandbox.
pub(crate) struct Namespace(OwnedFd);

impl Namespace {
    /// That of a process that lives, and not of one that has its number now.
    pub(crate) fn of(pidfd: BorrowedFd<'_>) -> Result<Self> {
        Self::find(pidfd).map_err(|error| Error::failed("finding the sandbox's network", error))
    }

    fn find(pidfd: BorrowedFd<'_>) -> io::Result<Self> {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
        let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")).map(str::trim);
        let pid: u32 = pid.and_then(|pid| pid.parse().ok()).ok_or(io::ErrorKind::NotFound)?;
        let namespace = std::fs::File::open(format!("/proc/{pid}/ns/net"))?;
        let mut ended = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
        match rustix::event::poll(&mut ended, Some(&rustix::event::Timespec::default()))? {
            0 => Ok(Self(namespace.into())),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Routes, rules and listeners.
    pub(crate) async fn equip(self) -> Result<Equipped> {
        let made = spawn_blocking(move || self.inside(|| redirect::set_up(Way::Tproxy))).await;
        made.map_err(io::Error::other).flatten().map(Equipped).map_err(failed)
    }

    /// On a thread that is in it, and ends there: one that came back half-way would be a danger to what runs next.
    fn inside<T: Send + 'static>(self, act: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
        let thread = std::thread::Builder::new().name("network".into()).spawn(move || {
            move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?;
            act()
        })?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread ended early")))
    }
}

/// What is not done is slower, and no worse.
fn widen(stream: &TcpStream, bytes: usize) {
    let most = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    let (level, name, length) = (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, size_of::<libc::c_int>() as u32);
    // SAFETY: a local of the size that is given.
    unsafe { libc::setsockopt(stream.as_raw_fd(), level, name, (&raw const most).cast(), length) };
}

/// Every address of this machine: none of them is the public network.
fn own_addresses() -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    let mut first = std::ptr::null_mut();
    // SAFETY: fills the pointer with a list that is ours until it is freed.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return addresses;
    }
    let mut next = first;
    while !next.is_null() {
        // SAFETY: an element of the list, which lives until the end of this function.
        let interface = unsafe { &*next };
        next = interface.ifa_next;
        if interface.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: what kind of address it is, is in its first field, and says how long it is.
        let family = i32::from(unsafe { (*interface.ifa_addr).sa_family });
        match family {
            libc::AF_INET => {
                // SAFETY: the family says so.
                let address = unsafe { &*interface.ifa_addr.cast::<libc::sockaddr_in>() };
                addresses.push(IpAddr::from(address.sin_addr.s_addr.to_ne_bytes()));
            }
            libc::AF_INET6 => {
                // SAFETY: the family says so.
                let address = unsafe { &*interface.ifa_addr.cast::<libc::sockaddr_in6>() };
                addresses.push(IpAddr::from(address.sin6_addr.s6_addr));
            }
            _ => {}
        }
    }
    // SAFETY: the list that getifaddrs made, freed once.
    unsafe { libc::freeifaddrs(first) };
    addresses
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn window_clamp(stream: &TcpStream) -> usize {
        let (mut most, mut length) = (0 as libc::c_int, size_of::<libc::c_int>() as u32);
        let value = (&raw mut most).cast();
        // SAFETY: locals, of the size that is given.
        let got = unsafe {
            libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, value, &raw mut length)
        };
        assert_eq!(got, 0);
        most as usize
    }

    #[tokio::test]
    async fn a_window_may_become_as_wide_as_a_queue_that_was_made_long() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let wanted = 2 * window_clamp(&stream);
        widen(&stream, wanted);
        assert_eq!(window_clamp(&stream), wanted);
    }
}
