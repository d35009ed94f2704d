//! SOCKS5 (RFC 1928, and 1929 for a user), as a client. Only addresses are asked for.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::User;
use crate::outer::Outer;

const VERSION: u8 = 5;
const NO_USER: u8 = 0;
const WITH_USER: u8 = 2;

pub(super) async fn ask(stream: &mut Outer, address: SocketAddr, user: Option<&User>) -> io::Result<()> {
    let method = if user.is_some() { WITH_USER } else { NO_USER };
    stream.write_all(&[VERSION, 1, method]).await?;
    match (read::<2>(stream).await?, user) {
        ([VERSION, NO_USER], None) => {}
        ([VERSION, WITH_USER], Some(user)) => log_in(stream, user).await?,
        ([VERSION, _], _) => return Err(failed("wants another way to log in")),
        _ => return Err(failed("does not speak SOCKS5")),
    }
    stream.write_all(&request(address)).await?;
    let [version, reply, _, kind] = read::<4>(stream).await?;
    if version != VERSION {
        return Err(failed("does not speak SOCKS5"));
    }
    if reply != 0 {
        return Err(io::Error::other(format!("the upstream proxy refused with reply {reply}")));
    }
    // Where it is bound; nobody needs it, but what follows is the destination's first word.
    let length = match kind {
        1 => 4,
        4 => 16,
        3 => usize::from(stream.read_u8().await?),
        _ => return Err(failed("gave an address of no known kind")),
    };
    stream.read_exact(&mut vec![0; length + 2]).await?;
    Ok(())
}

async fn log_in(stream: &mut Outer, user: &User) -> io::Result<()> {
    let part = |part: &[u8]| [&[u8::try_from(part.len()).unwrap_or(u8::MAX)][..], part].concat();
    stream.write_all(&[&[1][..], &part(&user.name), &part(&user.password)].concat()).await?;
    match read::<2>(stream).await? {
        [1, 0] => Ok(()),
        _ => Err(failed("does not know this user and password")),
    }
}

fn request(address: SocketAddr) -> Vec<u8> {
    let (kind, bytes) = match address.ip() {
        IpAddr::V4(v4) => (1, v4.octets().to_vec()),
        IpAddr::V6(v6) => (4, v6.octets().to_vec()),
    };
    [&[VERSION, 1, 0, kind][..], &bytes, &address.port().to_be_bytes()].concat()
}

async fn read<const N: usize>(stream: &mut Outer) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

fn failed(why: &str) -> io::Error {
    io::Error::other(format!("the upstream proxy {why}"))
}
