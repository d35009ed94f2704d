//! A connection that the guest thinks it made to the destination itself. A refusal is a reset, never an answer.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use socket2::SockRef;
use tokio::net::TcpStream;

use crate::{
    event::How,
    gateway::Gateway,
    host::Host,
    relay::{Opening, carry},
    serve::Original,
};

pub(crate) async fn serve(gateway: &Gateway, original: &Original, guest: TcpStream) {
    // Until it is carried it ends in a reset, also when this task is dropped half-way: so its listener was told.
    let Ok(destination) = original(&guest) else { return };
    // A guest that connects to the listener itself was not redirected: there is no destination.
    if destination.ip().is_loopback() && guest.local_addr().is_ok_and(|own| own == destination) {
        gateway.refuse(How::Transparent, &destination.ip().to_string(), destination.port(), crate::Reason::NoName);
        return;
    }
    let host = Host::Address(destination.ip());
    if let Ok((flow, outer)) = gateway.dial(How::Transparent, host, destination.port()).await {
        let _ = SockRef::from(&guest).set_linger(None);
        carry(gateway, &flow, guest, outer, Opening::Tunnel(Vec::new())).await;
    }
}

/// Where a redirected connection was going, as the kernel's connection tracking remembers it.
pub fn original_destination(stream: &TcpStream) -> io::Result<SocketAddr> {
    let socket = SockRef::from(stream);
    let is_v4 = match stream.local_addr()?.ip() {
        IpAddr::V4(_) => true,
        IpAddr::V6(v6) => v6.to_ipv4_mapped().is_some(),
    };
    let address = if is_v4 { socket.original_dst_v4()? } else { socket.original_dst_v6()? };
    address.as_socket().ok_or_else(|| io::Error::other("the kernel gave an address that is none of IP"))
}
