//! Signed links to a port: whoever has one needs no key, until it ends.
//!
//! A link says what it opens and until when, and carries a signature of that. Nothing is stored of it: what the server's
//! secret has signed is a link.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use cabana_model::{SandboxId, Tenant, Time};
use cabana_store::Store;
use hmac::{Hmac, Mac};
use jiff::SignedDuration;
use sha2::Sha256;
use tokio::sync::OnceCell;

use crate::{Clock, Cx, Error, Look, Needs, Result, ports::check};

/// What a link opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub tenant: Tenant,
    pub sandbox: SandboxId,
    pub port: u16,
    pub expires: Time,
}

/// A grant, and the text that proves it.
pub struct Signed {
    pub grant: Grant,
    pub token: String,
}

pub struct Links {
    store: Store,
    clock: Clock,
    secret: OnceCell<[u8; 32]>,
}

impl Links {
    pub(crate) fn new(store: Store, clock: Clock) -> Self {
        Self { store, clock, secret: OnceCell::new() }
    }

    async fn mac(&self, said: &str) -> Result<Hmac<Sha256>> {
        let secret = self.secret.get_or_try_init(|| async {
            let mut drawn = [0; 32];
            rustix::rand::getrandom(&mut drawn, rustix::rand::GetRandomFlags::empty())
                .map_err(|errno| cabana_sandbox::Error::failed("drawing a secret", std::io::Error::from(errno)))?;
            Ok::<_, Error>(self.store.secret("links", drawn).await?)
        });
        let mac = Hmac::<Sha256>::new_from_slice(secret.await?);
        let mac = mac.map_err(|error| cabana_sandbox::Error::failed("signing a link", error.to_string()))?;
        Ok(mac.chain_update(said))
    }

    async fn sign(&self, grant: &Grant) -> Result<String> {
        let Grant { tenant, sandbox, port, expires } = grant;
        let said = URL_SAFE_NO_PAD.encode(format!("{tenant} {sandbox} {port} {}", expires.as_second()));
        let proof = self.mac(&said).await?.finalize().into_bytes();
        Ok(format!("{said}.{}", URL_SAFE_NO_PAD.encode(proof)))
    }

    /// Nothing of the text is believed before its signature is.
    pub async fn open(&self, token: &str) -> Result<Grant> {
        let (said, proof) = token.split_once('.').ok_or(Error::NoLink)?;
        let proof = URL_SAFE_NO_PAD.decode(proof).map_err(|_| Error::NoLink)?;
        self.mac(said).await?.verify_slice(&proof).map_err(|_| Error::NoLink)?;
        let grant = URL_SAFE_NO_PAD.decode(said).ok().and_then(|said| read(&said)).ok_or(Error::NoLink)?;
        if grant.expires <= self.clock.now() { Err(Error::NoLink) } else { Ok(grant) }
    }
}

fn read(said: &[u8]) -> Option<Grant> {
    let mut parts = std::str::from_utf8(said).ok()?.split(' ');
    let (tenant, sandbox) = (Tenant::new(parts.next()?).ok()?, SandboxId::new(parts.next()?).ok()?);
    let (port, expires) = (parts.next()?.parse().ok()?, Time::from_second(parts.next()?.parse().ok()?).ok()?);
    Some(Grant { tenant, sandbox, port, expires })
}

/// A link to a port of a sandbox. Nothing is started for it.
pub struct Link {
    pub port: u16,
    pub lasts: Duration,
}

impl Link {
    pub const LONGEST: Duration = Duration::from_secs(30 * 24 * 60 * 60);
}

impl Look for Link {
    const VERB: &'static str = "link";
    type Answer = Signed;

    fn needs(&self) -> Needs {
        Needs::Record
    }

    fn argv(&self) -> Vec<String> {
        vec![self.port.to_string(), format!("{}s", self.lasts.as_secs())]
    }

    async fn run(self, cx: Cx) -> Result<Signed> {
        check(self.port)?;
        if self.lasts < Duration::from_secs(1) || self.lasts > Self::LONGEST {
            let why = format!("must be from 1 to {} seconds", Self::LONGEST.as_secs());
            return Err(Error::invalid("expires_sec", why));
        }
        let lasts = SignedDuration::try_from(self.lasts).unwrap_or(SignedDuration::MAX);
        let expires = cx.runtime.clock().now().saturating_add(lasts).unwrap_or(Time::MAX);
        let expires = Time::from_second(expires.as_second()).unwrap_or(Time::MAX); // as the link has it
        let (tenant, sandbox) = (cx.caller.tenant.clone(), cx.record()?.id.clone());
        let grant = Grant { tenant, sandbox, port: self.port, expires };
        let token = cx.runtime.links().sign(&grant).await?;
        Ok(Signed { grant, token })
    }
}
