//! A connection that the guest thinks it made to the destination itself. A refusal is a reset, never an answer.

use std::{io, net::SocketAddr};

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

/// Where a redirected connection was going: its address here is the destination's, or else the kernel's connection tracking
/// remembers it. Of one that was made to the listener itself nothing is remembered.
pub fn original_destination(stream: &TcpStream) -> io::Result<SocketAddr> {
    let mut own = stream.local_addr()?;
    own.set_ip(own.ip().to_canonical());
    if !own.ip().is_loopback() {
        return Ok(own);
    }
    let socket = SockRef::from(stream);
    let remembered = if own.is_ipv4() { socket.original_dst_v4() } else { socket.original_dst_v6() };
    Ok(remembered.ok().and_then(|address| address.as_socket()).unwrap_or(own))
}
