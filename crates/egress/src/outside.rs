//! The world outside, behind two small traits: who has this name, and a connection to that address.
//!
//! They are two so that nothing can resolve and connect in one step: between the two stands the policy.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, LazyLock},
    time::Duration,
};

use async_trait::async_trait;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

use crate::{
    host::Name,
    outer::Outer,
    resolver::{NameSources, StubResolver},
};

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
    /// This host's own names and its own routes.
    pub fn system() -> Outside {
        // One for all, so that the files are looked at once.
        static NAMES: LazyLock<Arc<StubResolver>> =
            LazyLock::new(|| Arc::new(StubResolver::open(NameSources::default())));
        Outside { resolve: NAMES.clone(), connect: Arc::new(System) }
    }

    /// Its own routes, and names from elsewhere.
    pub fn with_names(sources: NameSources) -> Outside {
        Outside { resolve: Arc::new(StubResolver::open(sources)), ..Outside::system() }
    }
}

struct System;

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
