//! CONNECT, as a client.

use std::{io, net::SocketAddr};

use base64::{Engine, prelude::BASE64_STANDARD};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::User;
use crate::outer::Outer;

const ANSWER: usize = 8192;

pub(super) async fn ask(stream: &mut Outer, address: SocketAddr, user: Option<&User>) -> io::Result<()> {
    let authorization = match user {
        Some(user) => format!("Proxy-Authorization: {}\r\n", basic(user)),
        None => String::new(),
    };
    let request = format!("CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n{authorization}\r\n");
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let answer = read_answer(stream).await?;
    match status(&answer) {
        Some(200..=299) => Ok(()),
        Some(status) => Err(io::Error::other(format!("the upstream proxy answered {status}"))),
        None => Err(io::Error::other("the upstream proxy does not speak HTTP")),
    }
}

/// Byte by byte: what follows the answer is the destination's first word and belongs to the guest.
async fn read_answer(stream: &mut Outer) -> io::Result<Vec<u8>> {
    let mut answer = Vec::with_capacity(128);
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() >= ANSWER {
            return Err(io::Error::other("the upstream proxy's answer is too long"));
        }
        answer.push(stream.read_u8().await?);
    }
    Ok(answer)
}

fn status(answer: &[u8]) -> Option<u16> {
    let line = answer.split(|byte| *byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    words.next()?.strip_prefix("HTTP/1.")?;
    words.next()?.parse().ok()
}

fn basic(user: &User) -> String {
    format!("Basic {}", BASE64_STANDARD.encode([&user.name[..], b":", &user.password].concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_becomes_a_basic_authorization() {
        let user = User { name: b"me".to_vec(), password: b"p@ss".to_vec() };
        assert_eq!(basic(&user), "Basic bWU6cEBzcw==");
    }

    #[test]
    fn only_a_status_line_has_a_status() {
        assert_eq!(status(b"HTTP/1.1 200 OK\r\n\r\n"), Some(200));
        assert_eq!(status(b"HTTP/1.0 407 x\r\n\r\n"), Some(407));
        for other in [&b"SSH-2.0-x\r\n\r\n"[..], b"HTTP/1.1\r\n\r\n", b"\r\n\r\n", b"HTTP/1.1 \xff\r\n\r\n"] {
            assert_eq!(status(other), None);
        }
    }
}
