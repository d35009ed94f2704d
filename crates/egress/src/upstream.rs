//! A proxy of the operator's between this host and the world: everything that was allowed goes through it by CONNECT.
//!
//! It is a way to connect, so names are still resolved and checked here, and the proxy is asked for the very address. Its
//! own address is the operator's business and is not judged: `http://10.0.0.3:3128` is what such a proxy looks like.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use async_trait::async_trait;
use base64::{Engine, prelude::BASE64_STANDARD};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, lookup_host},
};

use crate::{host::Host, outside::Connect};

const ANSWER: usize = 8192;

pub struct Upstream {
    host: Host,
    port: u16,
    /// `Basic …`. Never shown.
    authorization: Option<String>,
    connect: Arc<dyn Connect>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the upstream proxy must be given as http://host:port or http://user:password@host:port")]
pub struct UpstreamError;

impl Upstream {
    pub fn parse(url: &str, connect: Arc<dyn Connect>) -> Result<Upstream, UpstreamError> {
        let rest = url.strip_prefix("http://").ok_or(UpstreamError)?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (user, authority) = match rest.rsplit_once('@') {
            Some((user, authority)) => (Some(user), authority),
            None => (None, rest),
        };
        let (host, port) = Host::parse_authority(authority).map_err(|_| UpstreamError)?;
        let authorization = user.map(basic).transpose()?;
        Ok(Upstream { host, port: port.unwrap_or(80), authorization, connect })
    }

    async fn reach(&self) -> io::Result<TcpStream> {
        let addresses: Vec<SocketAddr> = match &self.host {
            Host::Address(address) => vec![(*address, self.port).into()],
            Host::Name(name) => lookup_host((name.as_str(), self.port)).await?.collect(),
        };
        let mut last = io::Error::other("the upstream proxy has no address");
        for address in addresses {
            match self.connect.connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

#[async_trait]
impl Connect for Upstream {
    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let mut stream = self.reach().await?;
        let authorization = match &self.authorization {
            Some(value) => format!("Proxy-Authorization: {value}\r\n"),
            None => String::new(),
        };
        let request = format!("CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n{authorization}\r\n");
        stream.write_all(request.as_bytes()).await?;
        let answer = read_answer(&mut stream).await?;
        match status(&answer) {
            Some(200..=299) => Ok(stream),
            Some(status) => Err(io::Error::other(format!("the upstream proxy answered {status}"))),
            None => Err(io::Error::other("the upstream proxy does not speak HTTP")),
        }
    }
}

/// Byte by byte: what follows the answer is the destination's first word and belongs to the guest.
async fn read_answer(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
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

fn basic(user: &str) -> Result<String, UpstreamError> {
    let user = percent_decoded(user).ok_or(UpstreamError)?;
    Ok(format!("Basic {}", BASE64_STANDARD.encode(user)))
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let high = char::from(bytes.next()?).to_digit(16)?;
                let low = char::from(bytes.next()?).to_digit(16)?;
                u8::try_from(high * 16 + low).ok()?
            }
            byte => byte,
        });
    }
    Some(decoded)
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}", bracketed(&self.host), self.port)
    }
}

fn bracketed(host: &Host) -> String {
    match host {
        Host::Address(IpAddr::V6(v6)) => format!("[{v6}]"),
        host => host.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outside;

    fn parse(url: &str) -> Result<Upstream, UpstreamError> {
        Upstream::parse(url, Outside::system().connect)
    }

    #[test]
    fn an_url_with_a_password_becomes_a_basic_authorization_that_is_never_shown() {
        let upstream = parse("http://me:p%40ss@proxy.corp:3128/").unwrap();
        assert_eq!(upstream.authorization.as_deref(), Some("Basic bWU6cEBzcw=="));
        assert_eq!(format!("{upstream:?}"), "http://proxy.corp:3128");
        assert_eq!(format!("{:?}", parse("http://[fd00::1]").unwrap()), "http://[fd00::1]:80");
    }

    #[test]
    fn other_urls_are_refused() {
        for url in
            ["", "proxy:3128", "https://proxy:3128", "http://", "http://proxy:0", "http://u%zz@proxy", "http://a b"]
        {
            assert!(parse(url).is_err(), "{url}");
        }
    }
}
