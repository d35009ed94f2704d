//! The world outside, behind two small traits: who has this name, and a connection to that address.
//!
//! They are two so that nothing can resolve and connect in one step: between the two stands the policy.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, lookup_host};

use crate::{host::Name, outer::Outer};

#[async_trait]
pub trait Resolve: Send + Sync {
    async fn resolve(&self, name: &Name) -> Result<Vec<IpAddr>, ResolveError>;
}

#[async_trait]
pub trait Connect: Send + Sync {
    async fn connect(&self, address: SocketAddr) -> io::Result<Outer>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    #[error("there is no such name")]
    Missing,
    #[error("the name could not be looked up now")]
    Failed,
}

#[derive(Clone)]
pub struct Outside {
    pub resolve: Arc<dyn Resolve>,
    pub connect: Arc<dyn Connect>,
}

impl Outside {
    /// This host's own resolver and its own routes.
    pub fn system() -> Outside {
        Outside { resolve: Arc::new(System), connect: Arc::new(System) }
    }
}

struct System;

#[async_trait]
impl Resolve for System {
    async fn resolve(&self, name: &Name) -> Result<Vec<IpAddr>, ResolveError> {
        // Without a last dot, which would keep search domains out but /etc/hosts too. Where a search leads is judged.
        match lookup_host((name.as_str(), 0)).await {
            Ok(addresses) => Ok(addresses.map(|address| address.ip()).collect()),
            // The only difference that the C library's text makes and that std keeps.
            Err(error) if error.to_string().contains("Temporary failure") => Err(ResolveError::Failed),
            Err(_) => Err(ResolveError::Missing),
        }
    }
}

#[async_trait]
impl Connect for System {
    async fn connect(&self, address: SocketAddr) -> io::Result<Outer> {
        let stream = TcpStream::connect(address).await?;
        tune(&SockRef::from(&stream))?;
        Ok(stream.into())
    }
}

/// Small answers must not wait for an acknowledgement. And a peer that vanished without a word would hold one of the
/// sandbox's connections until it is idle too long; so would a guest that ended while its server goes on.
pub(crate) fn tune(socket: &SockRef<'_>) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15));
    socket.set_tcp_keepalive(&keepalive)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Host;

    #[tokio::test]
    async fn the_system_knows_its_own_loopback_and_no_name_that_cannot_exist() {
        let resolve = async |text| match Host::parse(text).unwrap() {
            Host::Name(name) => System.resolve(&name).await,
            Host::Address(_) => panic!("no name"),
        };
        let found = resolve("localhost").await.unwrap();
        assert!(!found.is_empty() && found.iter().all(IpAddr::is_loopback), "{found:?}");
        assert!(resolve("no-such-name.invalid").await.is_err());
    }
}
