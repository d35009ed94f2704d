//! What the operator says about the network of all sandboxes: a proxy on the way, and an authority of their own.

use std::{fmt, fs, net::IpAddr, path::PathBuf, sync::Arc};

use cabana_egress::{Authorities, EncryptedHello, Outside, Upstream};

use crate::{OpenError, layers::Trust};

/// A bundle of all public authorities has a quarter of this.
const MOST: u64 = 1 << 20;

/// How sandboxes get out, beside what their policies say.
#[derive(Clone, Default)]
pub struct NetworkSettings {
    /// A proxy that everything goes through: `http://`, `https://` or `socks5://`, then `user:password@` if it wants one,
    /// its host and port. Policies are judged before it.
    pub upstream: Option<String>,
    /// A file of certificates (PEM). They are trusted in sandboxes, by whoever follows the usual variables of the
    /// environment, and for an `https://` proxy.
    pub ca: Option<PathBuf>,
    /// Addresses of this machine that none of its interfaces has: those that a provider translates to one.
    pub own: Vec<IpAddr>,
    /// Under an allow-list.
    pub encrypted_hello: EncryptedHello,
}

impl fmt::Debug for NetworkSettings {
    /// Without the proxy, whose URL may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let upstream = self.upstream.as_ref().map(|_| "…");
        f.debug_struct("NetworkSettings")
            .field("upstream", &upstream)
            .field("ca", &self.ca)
            .field("own", &self.own)
            .field("encrypted_hello", &self.encrypted_hello)
            .finish()
    }
}

/// The settings, checked.
pub(crate) struct Ways {
    pub(super) outside: Outside,
    pub(crate) trust: Option<Trust>,
    pub(super) own: Vec<IpAddr>,
    pub(super) encrypted_hello: EncryptedHello,
}

impl Ways {
    pub(crate) fn open(settings: &NetworkSettings) -> Result<Self, OpenError> {
        let own = settings.ca.as_ref().map(read).transpose()?;
        let mut outside = Outside::system();
        if let Some(url) = &settings.upstream {
            let bad = |why: &dyn fmt::Display| OpenError::Setting { name: "upstream proxy", why: why.to_string() };
            let trusted = match &own {
                Some(own) => Authorities::parse(own).map_err(|why| bad(&why))?,
                None => Authorities::none(),
            };
            let trusted = trusted.and_those_of(&Authorities::of_system());
            outside.connect =
                Arc::new(Upstream::parse(url, &trusted, outside.connect.clone()).map_err(|why| bad(&why))?);
        }
        let encrypted_hello = settings.encrypted_hello;
        Ok(Self { outside, trust: own.map(Trust::new), own: settings.own.clone(), encrypted_hello })
    }
}

fn read(path: &PathBuf) -> Result<Vec<u8>, OpenError> {
    let bad = |why: String| OpenError::Setting { name: "CA", why: format!("{}: {why}", path.display()) };
    let there = fs::metadata(path).map_err(|error| bad(error.to_string()))?;
    if !there.is_file() {
        return Err(bad("it is no file".into())); // nor is a pipe opened, which would wait
    }
    if there.len() > MOST {
        return Err(bad(format!("it is larger than {MOST} bytes; give only the certificates")));
    }
    let pem = fs::read(path).map_err(|error| bad(error.to_string()))?;
    Authorities::parse(&pem).map_err(|why| bad(why.to_string()))?;
    Ok(pem)
}
