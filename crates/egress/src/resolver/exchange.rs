//! One question to one server: over UDP, and over TCP where the answer has no room in a datagram.
//!
//! Who guesses a question's port and id can answer in the place of the server. So each question has a socket of its own, to
//! which the kernel gives a random port, and a random id. What comes from elsewhere or answers something else is passed over;
//! where there is much of that somebody is guessing, and the question ends.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
    time::timeout,
};

use super::{
    NotFound,
    query::{Answer, Query, Reply, WireName},
};

/// More than a server sends to who asked for no more than 512.
const DATAGRAM: usize = 1232;
/// Datagrams that answer something else.
const MAX_STRAYS: usize = 64;
/// Of an answer over TCP. It has some thousand addresses, of which few are used.
const MAX_MESSAGE: usize = 16 * 1024;

pub(super) async fn ask(
    server: SocketAddr,
    name: &WireName,
    kind: u16,
    patience: Duration,
) -> Result<Answer, NotFound> {
    let query = Query::new(name, kind).map_err(|_| NotFound::Failed)?;
    let over_udp = timeout(patience, over_udp(server, &query)).await;
    if let Reply::Whole(answer) = over_udp.map_err(|_| NotFound::Silent)?.map_err(|_| NotFound::Silent)? {
        return answer;
    }
    match timeout(patience, over_tcp(server, &query)).await {
        Ok(Ok(Reply::Whole(answer))) => answer,
        _ => Err(NotFound::Failed),
    }
}

async fn over_udp(server: SocketAddr, query: &Query) -> io::Result<Reply> {
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    // So a server that is not there is known at once.
    socket.connect(server).await?;
    socket.send(&query.message()).await?;
    let mut datagram = [0; DATAGRAM];
    for _ in 0..MAX_STRAYS {
        // What came before it was connected may be from anywhere.
        let (len, from) = socket.recv_from(&mut datagram).await?;
        if (from.ip(), from.port()) != (server.ip(), server.port()) {
            continue;
        }
        if let Some(reply) = query.read(&datagram[..len]) {
            return Ok(reply);
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

async fn over_tcp(server: SocketAddr, query: &Query) -> io::Result<Reply> {
    let mut stream = TcpStream::connect(server).await?;
    let message = query.message();
    let len = u16::try_from(message.len()).map_err(io::Error::other)?;
    stream.write_all(&[&len.to_be_bytes()[..], &message].concat()).await?;
    let len = usize::from(stream.read_u16().await?);
    if len > MAX_MESSAGE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = vec![0; len];
    stream.read_exact(&mut message).await?;
    query.read(&message).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
