//! A proxy of the operator's between this host and the world: everything that was allowed goes through it.
//!
//! It is a way to connect, so names are still resolved and checked here, and the proxy is asked for the very address. Its
//! own address is the operator's business and is not judged: `http://10.0.0.3:3128` is what such a proxy looks like. What
//! is the host's own loopback does not go through it: no proxy elsewhere could reach that.

mod http;
mod socks;

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use async_trait::async_trait;
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;

use crate::{
    authorities::Authorities,
    host::Host,
    outer::Outer,
    outside::{Connect, Outside, Resolve},
};

pub struct Upstream {
    speaks: Speaks,
    host: Host,
    port: u16,
    user: Option<User>,
    /// Of a proxy that is spoken to over TLS.
    tls: Option<(TlsConnector, ServerName<'static>)>,
    resolve: Arc<dyn Resolve>,
    connect: Arc<dyn Connect>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Speaks {
    Http,
    Https,
    Socks,
}

/// A name and a password. Never shown.
struct User {
    name: Vec<u8>,
    password: Vec<u8>,
}

/// None of them shows the URL: it may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamError {
    #[error("it must begin with http://, https:// or socks5://, as in http://user:password@proxy.example:3128")]
    Scheme,
    #[error("after the scheme and the user there must be a host, and nothing after its port")]
    Host,
    #[error("its user or password is not understood: write `user:password@`, with %XX for what an URL cannot hold")]
    User,
    #[error("over socks5, a user and a password have 1 to 255 bytes each")]
    SocksUser,
    #[error("TLS to it could not be set up")]
    Tls,
}

impl Upstream {
    /// `trusted` certify a proxy that is spoken to over TLS.
    pub fn parse(url: &str, trusted: &Authorities, connect: Arc<dyn Connect>) -> Result<Upstream, UpstreamError> {
        let (scheme, rest) = url.split_once("://").ok_or(UpstreamError::Scheme)?;
        let (speaks, usual) = match scheme.to_ascii_lowercase().as_str() {
            "http" => (Speaks::Http, 80),
            "https" => (Speaks::Https, 443),
            "socks5" => (Speaks::Socks, 1080),
            _ => return Err(UpstreamError::Scheme),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (user, authority) = match rest.rsplit_once('@') {
            Some((user, authority)) => (Some(User::parse(user)?), authority),
            None => (None, rest),
        };
        let fits = |part: &Vec<u8>| (1..=255).contains(&part.len());
        if speaks == Speaks::Socks && user.as_ref().is_some_and(|user| !fits(&user.name) || !fits(&user.password)) {
            return Err(UpstreamError::SocksUser);
        }
        let (host, port) = Host::parse_authority(authority).map_err(|_| UpstreamError::Host)?;
        let tls = match speaks {
            Speaks::Https => {
                let name = ServerName::try_from(host.to_string()).map_err(|_| UpstreamError::Host)?;
                Some((trusted.client().map_err(|_| UpstreamError::Tls)?.into(), name))
            }
            _ => None,
        };
        let (port, resolve) = (port.unwrap_or(usual), Outside::system().resolve);
        Ok(Upstream { speaks, host, port, user, tls, resolve, connect })
    }

    async fn reach(&self) -> io::Result<Outer> {
        let addresses = match &self.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => self.resolve.resolve(name).await.map_err(io::Error::other)?,
        };
        let mut last = io::Error::other("the upstream proxy has no address");
        for address in addresses {
            match self.connect.connect((address, self.port).into()).await {
                Ok(stream) => return self.secure(stream).await,
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn secure(&self, stream: Outer) -> io::Result<Outer> {
        match &self.tls {
            Some((connector, name)) => stream.secured(connector, name.clone()).await,
            None => Ok(stream),
        }
    }
}

#[async_trait]
impl Connect for Upstream {
    async fn connect(&self, address: SocketAddr) -> io::Result<Outer> {
        if address.ip().to_canonical().is_loopback() {
            return self.connect.connect(address).await;
        }
        let mut stream = self.reach().await?;
        match self.speaks {
            Speaks::Http | Speaks::Https => http::ask(&mut stream, address, self.user.as_ref()).await?,
            Speaks::Socks => socks::ask(&mut stream, address, self.user.as_ref()).await?,
        }
        Ok(stream)
    }
}

impl User {
    fn parse(text: &str) -> Result<User, UpstreamError> {
        let (name, password) = text.split_once(':').unwrap_or((text, ""));
        let decoded = |part| percent_decoded(part).ok_or(UpstreamError::User);
        let (name, password) = (decoded(name)?, decoded(password)?);
        // HTTP has no way to say a colon in a name.
        if name.contains(&b':') { Err(UpstreamError::User) } else { Ok(User { name, password }) }
    }
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
        let scheme = match self.speaks {
            Speaks::Http => "http",
            Speaks::Https => "https",
            Speaks::Socks => "socks5",
        };
        write!(f, "{scheme}://{}:{}", bracketed(&self.host), self.port)
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

    fn parse(url: &str) -> Result<Upstream, UpstreamError> {
        Upstream::parse(url, &Authorities::none(), Outside::system().connect)
    }

    #[test]
    fn each_form_is_read_and_no_password_is_shown() {
        for (url, shown) in [
            ("http://me:p%40ss@proxy.corp:3128/", "http://proxy.corp:3128"),
            ("http://[fd00::1]", "http://[fd00::1]:80"),
            ("HTTPS://proxy.corp", "https://proxy.corp:443"),
            ("https://10.0.0.1:8443", "https://10.0.0.1:8443"),
            ("socks5://me:secret@127.0.0.1", "socks5://127.0.0.1:1080"),
        ] {
            assert_eq!(format!("{:?}", parse(url).unwrap()), shown, "{url}");
        }
        assert_eq!(parse("http://me:p%40s:s@proxy").unwrap().user.unwrap().password, b"p@s:s");
    }

    #[test]
    fn other_urls_are_refused_with_what_is_wrong() {
        for (url, why) in [
            ("", UpstreamError::Scheme),
            ("proxy:3128", UpstreamError::Scheme),
            ("socks4://proxy:3128", UpstreamError::Scheme),
            ("socks5h://proxy:3128", UpstreamError::Scheme),
            ("http://", UpstreamError::Host),
            ("http://proxy:0", UpstreamError::Host),
            ("http://proxy:3128/path", UpstreamError::Host),
            ("http://a b", UpstreamError::Host),
            ("http://u%zz@proxy", UpstreamError::User),
            ("http://u%3a:p@proxy", UpstreamError::User),
            ("socks5://user@proxy", UpstreamError::SocksUser),
        ] {
            assert_eq!(parse(url).unwrap_err(), why, "{url}");
            assert!(!why.to_string().contains("proxy:3128") || why == UpstreamError::Scheme);
        }
    }
}
