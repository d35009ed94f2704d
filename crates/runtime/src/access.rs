//! Who may do what: keys, and what they open.

use std::{
    collections::HashMap,
    fmt::Write as _,
    sync::{Arc, Mutex, PoisonError},
};

use cabana_model::{KeyId, Role, Tenant, Time};
use cabana_store::{Key, NewKey, Store};
use sha2::{Digest, Sha256};

use crate::{
    Clock, Error, Result,
    fault::{self, Point},
};

/// What a client sent as its key.
pub struct Credential<'a>(pub &'a str);

impl Credential<'_> {
    /// Whether it can be a key of ours at all.
    pub fn has_form(&self) -> bool {
        digest_of(self.0).is_some()
    }
}

/// Who asks, once that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub key: KeyId,
    pub tenant: Tenant,
    pub role: Role,
    /// Whom the key stands for, where it was made for somebody.
    pub subject: Option<String>,
}

impl Caller {
    pub fn require(&self, role: Role) -> Result<()> {
        if self.role >= role { Ok(()) } else { Err(Error::Forbidden { needs: role, has: self.role }) }
    }

    /// The operator, in another tenant.
    pub fn acting_for(self, tenant: Tenant) -> Result<Self> {
        if tenant != self.tenant {
            self.require(Role::Admin)?;
        }
        Ok(Self { tenant, ..self })
    }
}

/// A key that was just made. Nobody can show its text a second time.
pub struct Issued {
    pub key: Key,
    pub text: String,
}

/// The keys. What was looked up stays known, so that no call waits for a query; a key that is revoked is forgotten at once.
pub struct Access {
    store: Store,
    clock: Clock,
    known: Mutex<HashMap<[u8; 32], Arc<Key>>>,
}

/// As many as are known at a time: who tries texts at random fills nothing.
const KNOWN: usize = 4096;
const PREFIX: &str = "e2b_";
const DIGITS: usize = 40;

impl Access {
    pub(crate) fn new(store: Store, clock: Clock) -> Self {
        Self { store, clock, known: Mutex::default() }
    }

    pub async fn admit(&self, credential: Credential<'_>) -> Result<Caller> {
        let digest = digest_of(credential.0).ok_or(Error::Unauthorized)?;
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&digest).cloned();
        let key = match known {
            Some(key) => key,
            None => {
                let key = Arc::new(self.store.key(&digest).await?.ok_or(Error::Unauthorized)?);
                let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
                if known.len() >= KNOWN {
                    known.clear();
                }
                known.insert(digest, key.clone());
                key
            }
        };
        let now = self.clock.now();
        if key.revoked.is_some() || key.expires.is_some_and(|end| end <= now) {
            return Err(Error::Unauthorized);
        }
        Ok(Caller { key: key.id, tenant: key.tenant.clone(), role: key.role, subject: key.subject.clone() })
    }

    /// A text that can become a key.
    pub fn draw() -> Result<String> {
        let mut bits = [0; DIGITS / 2];
        rustix::rand::getrandom(&mut bits, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| cabana_sandbox::Error::failed("drawing a key", std::io::Error::from(errno)))?;
        Ok(bits.iter().fold(PREFIX.to_owned(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        }))
    }

    pub async fn issue(
        &self,
        tenant: Tenant,
        role: Role,
        name: String,
        subject: Option<String>,
        expires: Option<Time>,
    ) -> Result<Issued> {
        let text = Self::draw()?;
        let key = self.adopt(&text, tenant, role, name, subject, expires).await?;
        fault::at(Point::KeyMade);
        Ok(Issued { key, text })
    }

    /// Makes a key of a text that is there already, as the first one's file.
    pub async fn adopt(
        &self,
        text: &str,
        tenant: Tenant,
        role: Role,
        name: String,
        subject: Option<String>,
        expires: Option<Time>,
    ) -> Result<Key> {
        let digest = digest_of(text)
            .ok_or_else(|| Error::invalid("key", format!("must be {PREFIX} and {DIGITS} hexadecimal digits")))?;
        let created = self.clock.now();
        if expires.is_some_and(|end| end <= created) {
            return Err(Error::invalid("expires", "has passed already"));
        }
        let new = NewKey { id: KeyId::now(), tenant, role, name, subject, digest, created, expires };
        Ok(self.store.add_key(new).await?)
    }

    pub async fn list(&self, tenant: Option<&Tenant>) -> Result<Vec<Key>> {
        Ok(self.store.keys(tenant).await?)
    }

    pub async fn revoke(&self, id: KeyId) -> Result<Key> {
        let key = self.store.revoke_key(id, self.clock.now()).await?.ok_or(Error::NoKey(id))?;
        self.known.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, known| known.id != id);
        Ok(key)
    }
}

/// `None` for what cannot be a key. Who compares digests tells nothing by the time it takes.
fn digest_of(text: &str) -> Option<[u8; 32]> {
    let digits = text.strip_prefix(PREFIX)?;
    let plain = digits.len() == DIGITS && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    plain.then(|| Sha256::digest(text).into())
}
