//! SOCKS5 (RFC 1928): CONNECT to a name or an address, without authentication. A refusal is reply 2.

use std::net::{Ipv4Addr, Ipv6Addr};

use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};

use crate::{
    decision::Reason,
    event::How,
    gateway::{Gateway, NotDialed},
    host::{Host, HostError},
    relay::{Opening, carry, linger},
    serve::read_until,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Success = 0,
    Failure = 1,
    Refused = 2,
    HostUnreachable = 4,
    NoSuchCommand = 7,
    NoSuchAddressType = 8,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Bad {
    Reply(Reply),
    Host {
        text: String,
        why: HostError,
    },
    /// Not SOCKS5 at all: there is no way to say so.
    Version,
}

/// A host and a port.
pub(crate) type Asked = (Host, u16);

pub(crate) async fn serve(gateway: &Gateway, mut guest: TcpStream) {
    let mut bytes = Vec::new();
    let asking = ask(&mut guest, &mut bytes);
    let (host, port) = match timeout(gateway.limits.handshake, asking).await {
        Ok(Some(Ok(asked))) => asked,
        Ok(Some(Err(Bad::Reply(reply)))) => return end(guest, reply).await,
        Ok(Some(Err(Bad::Host { text, why }))) => {
            gateway.refuse(How::Socks, &text, 0, Reason::BadHost(why));
            return end(guest, Reply::Refused).await;
        }
        Ok(Some(Err(Bad::Version)) | None) | Err(_) => return,
    };
    match gateway.dial(How::Socks, host, port).await {
        Ok((flow, outer)) => {
            if guest.write_all(&reply(Reply::Success)).await.is_ok() {
                carry(gateway, &flow, guest, outer, Opening::Tunnel(bytes)).await;
            }
        }
        Err(NotDialed::Refused(_)) => end(guest, Reply::Refused).await,
        Err(NotDialed::Missing | NotDialed::Unreachable) => end(guest, Reply::HostUnreachable).await,
        Err(NotDialed::TimedOut) => end(guest, Reply::Failure).await,
    }
}

/// The greeting, its answer, the request. `None` is a connection that ended.
async fn ask(guest: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<Result<Asked, Bad>> {
    let no_auth = match read_until(guest, bytes, |bytes, _| greeting(bytes)).await.ok()? {
        Ok(no_auth) => no_auth,
        Err(bad) => return Some(Err(bad)),
    };
    guest.write_all(&[5, if no_auth { 0 } else { 0xff }]).await.ok()?;
    if !no_auth {
        return None;
    }
    read_until(guest, bytes, |bytes, _| request(bytes)).await.ok()
}

/// Whether "no authentication" is among the methods.
pub(crate) fn greeting(bytes: &[u8]) -> Result<Option<(bool, usize)>, Bad> {
    match bytes {
        [] | [5] => Ok(None),
        [5, count, methods @ ..] => {
            let methods = methods.get(..usize::from(*count));
            Ok(methods.map(|methods| (methods.contains(&0), 2 + methods.len())))
        }
        _ => Err(Bad::Version),
    }
}

pub(crate) fn request(bytes: &[u8]) -> Result<Option<(Asked, usize)>, Bad> {
    if bytes.first().is_some_and(|version| *version != 5) {
        return Err(Bad::Version);
    }
    let [_, command, _, kind, rest @ ..] = bytes else { return Ok(None) };
    if *command != 1 {
        return Err(Bad::Reply(Reply::NoSuchCommand));
    }
    let (host, after) = match (kind, rest) {
        (1, [a, b, c, d, after @ ..]) => (Host::Address(Ipv4Addr::new(*a, *b, *c, *d).into()), after),
        (4, rest) => match rest.split_first_chunk::<16>() {
            Some((address, after)) => (Host::Address(Ipv6Addr::from(*address).into()), after),
            None => return Ok(None),
        },
        (3, [len, rest @ ..]) => match rest.split_at_checked(usize::from(*len)) {
            Some((name, after)) => (domain(name)?, after),
            None => return Ok(None),
        },
        (1 | 3, _) => return Ok(None),
        _ => return Err(Bad::Reply(Reply::NoSuchAddressType)),
    };
    let [high, low, end @ ..] = after else { return Ok(None) };
    Ok(Some(((host, u16::from_be_bytes([*high, *low])), bytes.len() - end.len())))
}

fn domain(bytes: &[u8]) -> Result<Host, Bad> {
    let text = String::from_utf8_lossy(bytes);
    Host::parse(&text).map_err(|why| Bad::Host { text: text.into_owned(), why })
}

fn reply(reply: Reply) -> [u8; 10] {
    [5, reply as u8, 0, 1, 0, 0, 0, 0, 0, 0]
}

async fn end(mut guest: TcpStream, why: Reply) {
    if guest.write_all(&reply(why)).await.is_ok() {
        linger(guest).await;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn host(text: &str) -> Host {
        Host::parse(text).unwrap()
    }

    #[test]
    fn each_kind_of_address_is_read() {
        assert_eq!(request(&[5, 1, 0, 1, 1, 2, 3, 4, 1, 0]), Ok(Some(((host("1.2.3.4"), 256), 10))));
        assert_eq!(request(b"\x05\x01\0\x03\x05a.com\0\x50rest"), Ok(Some(((host("a.com"), 80), 12))));
        let v6 = [&[5, 1, 0, 4][..], &Ipv6Addr::LOCALHOST.octets(), &[0, 80]].concat();
        assert_eq!(request(&v6), Ok(Some(((host("::1"), 80), 22))));
        // A number as a name is an address.
        assert_eq!(request(b"\x05\x01\0\x03\x060x7f.1\0\x50"), Ok(Some(((host("127.0.0.1"), 80), 13))));
    }

    #[test]
    fn what_is_not_spoken_has_its_reply() {
        assert_eq!(greeting(&[4, 1]), Err(Bad::Version));
        assert_eq!(greeting(&[5, 2, 1, 0]), Ok(Some((true, 4))));
        assert_eq!(greeting(&[5, 1, 2]), Ok(Some((false, 3))));
        assert_eq!(request(&[5, 2, 0, 1]), Err(Bad::Reply(Reply::NoSuchCommand)));
        assert_eq!(request(&[5, 3, 0, 1]), Err(Bad::Reply(Reply::NoSuchCommand)));
        assert_eq!(request(&[5, 1, 0, 9]), Err(Bad::Reply(Reply::NoSuchAddressType)));
        assert!(matches!(request(b"\x05\x01\0\x03\0\0\x50"), Err(Bad::Host { why: HostError::Empty, .. })));
        assert!(matches!(request(b"\x05\x01\0\x03\x04a\0.b\0\x50"), Err(Bad::Host { .. })));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = greeting(&bytes);
            let _ = request(&bytes);
            let _ = request(&[&[5, 1, 0][..], &bytes].concat());
        }

        #[test]
        fn a_prefix_of_a_good_request_wants_more(cut in 0_usize..17) {
            let bytes = b"\x05\x01\0\x03\x0bexample.com\x01\xbb";
            prop_assert_eq!(request(&bytes[..cut]), Ok(None));
        }
    }
}
