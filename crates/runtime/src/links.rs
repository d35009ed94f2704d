//! Signed links to a port: whoever has one needs no key, until it ends.
//!
//! A link says what it opens and until when, and carries a signature of that. It stands as long as the key does that made it, and
//! as the mark is the same that its sandbox has: who changes the mark takes back all links to the sandbox. A mark goes with its
//! sandbox, so that what is made anew under the same id is not open to those who had links to the old one.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use cabana_model::{KeyId, SandboxId, Tenant, Time};
use cabana_store::Store;
use hmac::{Hmac, Mac};
use jiff::SignedDuration;
use sha2::Sha256;
use tokio::sync::OnceCell;

use crate::{
    Act, Caller, Clock, Cx, Error, Look, Needs, Result, Runtime,
    ports::{Visitor, check},
    sandboxes::Slot,
};

/// Of the mark in a link: as many as none can guess, and as text.
const MARK_BYTES: usize = 12;
const MARK_LEN: usize = 16;

/// What a link opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub tenant: Tenant,
    pub sandbox: SandboxId,
    pub port: u16,
    pub expires: Time,
    /// Of whoever made it.
    key: KeyId,
    mark: String,
}

/// A grant, and the text that proves it.
pub struct Signed {
    pub grant: Grant,
    pub token: String,
}

pub(crate) struct Links {
    store: Store,
    clock: Clock,
    secret: OnceCell<[u8; 32]>,
}

impl Links {
    pub(crate) fn new(store: Store, clock: Clock) -> Self {
        Self { store, clock, secret: OnceCell::new() }
    }

    pub(crate) async fn mac(&self, said: &str) -> Result<Hmac<Sha256>> {
        let secret =
            self.secret.get_or_try_init(|| async { Ok::<_, Error>(self.store.secret("links", drawn()?).await?) });
        let mac = Hmac::<Sha256>::new_from_slice(secret.await?);
        let mac = mac.map_err(|error| cabana_sandbox::Error::failed("signing a link", error.to_string()))?;
        Ok(mac.chain_update(said))
    }

    async fn sign(&self, grant: &Grant) -> Result<String> {
        let Grant { tenant, sandbox, port, expires, key, mark } = grant;
        let said = format!("{tenant} {sandbox} {port} {} {key} {mark}", expires.as_second());
        let said = URL_SAFE_NO_PAD.encode(said);
        let proof = self.mac(&said).await?.finalize().into_bytes();
        Ok(format!("{said}.{}", URL_SAFE_NO_PAD.encode(proof)))
    }

    /// Nothing of the text is believed before its signature is. What has not the form of a link needs none computed: clients without a
    /// key send what they like.
    async fn open(&self, token: &str) -> Result<Grant> {
        let (said, proof) = token.split_once('.').ok_or(Error::NoLink)?;
        let (grant, proof) = parse(said).zip(parse_proof(proof)).ok_or(Error::NoLink)?;
        self.mac(said).await?.verify_slice(&proof).map_err(|_| Error::NoLink)?;
        if grant.expires <= self.clock.now() { Err(Error::NoLink) } else { Ok(grant) }
    }
}

fn drawn() -> Result<[u8; 32]> {
    let mut drawn = [0; 32];
    rustix::rand::getrandom(&mut drawn, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| cabana_sandbox::Error::failed("drawing a secret", std::io::Error::from(errno)))?;
    Ok(drawn)
}

fn parse_proof(proof: &str) -> Option<[u8; 32]> {
    URL_SAFE_NO_PAD.decode(proof).ok()?.try_into().ok()
}

/// All parts are bounded, so that no signature of a long text is computed for a client without a key.
fn parse(said: &str) -> Option<Grant> {
    let said = URL_SAFE_NO_PAD.decode(said).ok()?;
    let mut parts = std::str::from_utf8(&said).ok()?.split(' ');
    let (tenant, sandbox) = (Tenant::new(parts.next()?).ok()?, SandboxId::new(parts.next()?).ok()?);
    let (port, expires) = (parts.next()?.parse().ok()?, Time::from_second(parts.next()?.parse().ok()?).ok()?);
    let (key, mark) = (parts.next()?.parse().ok()?, parts.next()?.to_owned());
    let is_whole = mark.len() == MARK_LEN && parts.next().is_none();
    is_whole.then_some(Grant { tenant, sandbox, port, expires, key, mark })
}

impl Runtime {
    /// Who comes by a link to this port. One to something else opens nothing here, and says nothing of what is here.
    pub async fn open_link(&self, token: &str, sandbox: &SandboxId, port: u16) -> Result<(Grant, Visitor)> {
        let grant = self.0.links.open(token).await?;
        if grant.sandbox != *sandbox || grant.port != port {
            return Err(Error::NoSandbox(sandbox.clone()));
        }
        let caller = Caller::keyless(grant.key, grant.tenant.clone());
        let slot = self.0.sandboxes.of_id(&caller, sandbox).await?;
        if grant.mark != self.link_mark(&slot).await? || !self.0.access.stands(grant.key).await? {
            return Err(Error::NoLink);
        }
        Ok((grant, Visitor::ByLink(caller)))
    }

    async fn link_mark(&self, slot: &Arc<Slot>) -> Result<String> {
        let mut known = slot.link_mark.lock().await;
        let mark = match *known {
            Some(mark) => mark,
            None => *known.insert(self.0.store.link_mark(&slot.record().physical, drawn()?).await?),
        };
        Ok(URL_SAFE_NO_PAD.encode(&mark[..MARK_BYTES]))
    }
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
        let mark = cx.runtime.link_mark(&cx.slot().await?).await?;
        let grant = Grant { tenant, sandbox, port: self.port, expires, key: cx.caller.key, mark };
        let token = cx.runtime.0.links.sign(&grant).await?;
        Ok(Signed { grant, token })
    }
}

/// Takes back all links to a sandbox. What goes on by one of them comes to its own end.
pub struct Unlink;

impl Act for Unlink {
    const VERB: &'static str = "unlink";
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::Record
    }

    fn stores(&self) -> bool {
        false
    }

    fn removes(&self) -> bool {
        true
    }

    fn digest(&self) -> [u8; 32] {
        [0; 32]
    }

    fn argv(&self) -> Vec<String> {
        Vec::new()
    }

    async fn run(self, cx: Cx) -> Result<()> {
        let (slot, mark) = (cx.slot().await?, drawn()?);
        let mut known = slot.link_mark.lock().await;
        cx.runtime.store().change_link_mark(&slot.record().physical, mark).await?;
        *known = Some(mark);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use cabana_store::Durability;

    use super::*;

    fn grant() -> Grant {
        Grant {
            tenant: Tenant::default(),
            sandbox: SandboxId::random(),
            port: 8000,
            expires: Time::from_second(1_800_000_000).unwrap(),
            key: KeyId::now(),
            mark: "m".repeat(MARK_LEN),
        }
    }

    #[tokio::test]
    async fn what_has_not_the_form_of_a_link_is_refused_before_a_signature_is_computed() {
        let dir = tempfile::tempdir().unwrap();
        let links = || Links::new(Store::open(dir.path(), Durability::Kill).unwrap(), Clock::at(Time::UNIX_EPOCH));
        let signing = links();
        let (right, long) = (grant(), Grant { mark: "m".repeat(60_000), ..grant() });
        let (token, long) = (signing.sign(&right).await.unwrap(), signing.sign(&long).await.unwrap());
        signing.store.close().await;
        let opening = links();
        let (said, proof) = token.split_once('.').unwrap();
        let more =
            URL_SAFE_NO_PAD.encode(format!("{} more", String::from_utf8_lossy(&URL_SAFE_NO_PAD.decode(said).unwrap())));
        let [no_proof, no_grant, short] = [said.to_owned(), format!("a.{proof}"), format!("{said}.{}", &proof[1..])];
        for formless in ["", ".", "a.AA", &no_proof, &no_grant, &short, &format!("{more}.{proof}"), &long] {
            assert!(matches!(opening.open(formless).await, Err(Error::NoLink)), "{formless}");
            assert!(!opening.secret.initialized(), "a signature was computed for {formless}");
        }
        assert_eq!(opening.open(&token).await.unwrap(), right);
    }
}
