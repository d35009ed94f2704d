//! Who may do what: keys, and what they open.

use std::{
    collections::HashMap,
    fmt::Write as _,
    sync::{Arc, Mutex, PoisonError},
};

use cabana_model::{KeyId, Role, Tenant, Time};
use cabana_store::{Entry, Key, NewKey, Store};
use sha2::{Digest, Sha256};

use crate::{
    Clock, Error, Result, error,
    fault::{self, Point},
    key_life::{KeyLife, KeyLives},
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
    pub subject: Subject,
}

/// Whom a key stands for. What belongs to no user is everybody's of the tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Nobody: it names whom it likes.
    Anybody,
    /// This user, and no other.
    Only(String),
    /// This user where it names none.
    Usually(String),
}

impl Subject {
    fn of(key: &Key) -> Self {
        match (&key.subject, key.any_subject) {
            (None, _) => Self::Anybody,
            (Some(user), false) => Self::Only(user.clone()),
            (Some(user), true) => Self::Usually(user.clone()),
        }
    }

    /// Who is meant where nobody is named.
    pub fn user(&self) -> Option<&str> {
        match self {
            Self::Anybody => None,
            Self::Only(user) | Self::Usually(user) => Some(user),
        }
    }

    /// Whose things alone it may see and use.
    pub fn only(&self) -> Option<&str> {
        match self {
            Self::Only(user) => Some(user),
            Self::Anybody | Self::Usually(_) => None,
        }
    }
}

impl Caller {
    fn of(key: &Key) -> Self {
        Self { key: key.id, tenant: key.tenant.clone(), role: key.role, subject: Subject::of(key) }
    }

    pub fn require(&self, role: Role) -> Result<()> {
        if self.role >= role { Ok(()) } else { Err(Error::Forbidden { needs: role, has: self.role }) }
    }

    /// Who comes without a key, by something that was made with this one and that opens one thing.
    pub(crate) fn keyless(key: KeyId, tenant: Tenant) -> Self {
        Self { key, tenant, role: Role::Use, subject: Subject::Anybody }
    }

    /// A row of the ledger about what it does that is no call.
    pub(crate) fn entry(&self, verb: &str, argv: Vec<String>, at: Time) -> Entry {
        Entry::of_no_call(self.tenant.clone(), self.key, verb, argv, at)
    }

    /// Whether it may see and use what belongs to this user, or to nobody in particular.
    pub(crate) fn reaches(&self, user: Option<&str>) -> bool {
        self.subject.only().zip(user).is_none_or(|(only, user)| only == user)
    }

    /// To name a user.
    pub(crate) fn check_user(&self, user: Option<&str>) -> Result<()> {
        match &self.subject {
            Subject::Only(subject) if !self.reaches(user) => Err(Error::OtherUser(subject.clone())),
            _ => Ok(()),
        }
    }

    /// For what tells of all users of the tenant.
    pub fn require_all_users(&self) -> Result<()> {
        match &self.subject {
            Subject::Only(subject) => Err(Error::AllUsers(subject.clone())),
            Subject::Anybody | Subject::Usually(_) => Ok(()),
        }
    }

    /// The operator, in another tenant.
    pub fn acting_for(self, tenant: Tenant) -> Result<Self> {
        if tenant != self.tenant {
            self.require(Role::Admin)?;
        }
        Ok(Self { tenant, ..self })
    }
}

/// What a key is to be.
pub struct WantedKey {
    pub tenant: Tenant,
    pub role: Role,
    pub name: String,
    pub subject: Option<String>,
    pub any_subject: bool,
    pub expires: Option<Time>,
    /// Who makes it, unless that is the server itself.
    pub by: Option<Caller>,
}

impl WantedKey {
    /// For nobody in particular, and for as long as it is not revoked.
    pub fn new(tenant: Tenant, role: Role, name: impl Into<String>) -> Self {
        Self { tenant, role, name: name.into(), subject: None, any_subject: false, expires: None, by: None }
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
    known: Mutex<Known>,
    lives: KeyLives,
}

#[derive(Default)]
struct Known {
    by_digest: HashMap<[u8; 32], Arc<Key>>,
    by_id: HashMap<KeyId, Arc<Key>>,
    /// How many were revoked: what was read before the last one may be older than it, and is not kept.
    revoked: u64,
}

/// As many as are known at a time: who tries texts at random fills nothing.
const KNOWN: usize = 4096;
const PREFIX: &str = "e2b_";
const DIGITS: usize = 40;

impl Access {
    pub(crate) fn new(store: Store, clock: Clock) -> Self {
        Self { store, clock, known: Mutex::default(), lives: KeyLives::default() }
    }

    fn known<T>(&self, act: impl FnOnce(&mut Known) -> T) -> T {
        act(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whose key it is, where that is known without a look into the store.
    pub fn known_caller(&self, credential: &Credential<'_>) -> Option<Caller> {
        let digest = digest_of(credential.0)?;
        let key = self.known(|known| known.by_digest.get(&digest).cloned())?;
        self.is_good(&key).then(|| Caller::of(&key))
    }

    pub async fn admit(&self, credential: Credential<'_>) -> Result<Caller> {
        let digest = digest_of(credential.0).ok_or(Error::Unauthorized)?;
        let (known, revoked) = self.known(|known| (known.by_digest.get(&digest).cloned(), known.revoked));
        let key = match known {
            Some(key) => key,
            None => {
                let key = Arc::new(self.store.key(&digest).await?.ok_or(Error::Unauthorized)?);
                self.learn(revoked, |known| remember(&mut known.by_digest, digest, &key));
                key
            }
        };
        if !self.is_good(&key) {
            return Err(Error::Unauthorized);
        }
        Ok(Caller::of(&key))
    }

    /// Whether the key of this id opens anything still.
    pub(crate) async fn stands(&self, id: KeyId) -> Result<bool> {
        Ok(self.good(id).await?.is_some())
    }

    /// For what goes on with the key of this id, until it is revoked or expires.
    pub async fn life(&self, id: KeyId) -> Result<KeyLife> {
        // In this order: a revocation is either heard of or seen.
        let watched = self.lives.watch(id);
        let key = self.good(id).await?.ok_or(Error::Unauthorized)?;
        Ok(watched.until(key.expires, self.clock.clone()))
    }

    /// The key of this id, if it opens anything.
    async fn good(&self, id: KeyId) -> Result<Option<Arc<Key>>> {
        let (known, revoked) = self.known(|known| (known.by_id.get(&id).cloned(), known.revoked));
        let key = match known {
            Some(key) => key,
            None => {
                let Some(key) = self.store.key_of(id).await? else { return Ok(None) };
                let key = Arc::new(key);
                self.learn(revoked, |known| remember(&mut known.by_id, id, &key));
                key
            }
        };
        Ok(self.is_good(&key).then_some(key))
    }

    fn is_good(&self, key: &Key) -> bool {
        key.revoked.is_none() && key.expires.is_none_or(|end| end > self.clock.now())
    }

    fn learn(&self, revoked: u64, learn: impl FnOnce(&mut Known)) {
        self.known(|known| {
            if known.revoked == revoked {
                learn(known);
            }
        });
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

    pub async fn issue(&self, wanted: WantedKey) -> Result<Issued> {
        let text = Self::draw()?;
        let key = self.adopt(&text, wanted).await?;
        fault::at(Point::KeyMade);
        Ok(Issued { key, text })
    }

    /// Makes a key of a text that is there already, as the first one's file.
    pub async fn adopt(&self, text: &str, wanted: WantedKey) -> Result<Key> {
        let digest = digest_of(text)
            .ok_or_else(|| Error::invalid("key", format!("must be {PREFIX} and {DIGITS} hexadecimal digits")))?;
        let created = self.clock.now();
        let WantedKey { tenant, role, name, subject, any_subject, expires, by } = wanted;
        if expires.is_some_and(|end| end <= created) {
            return Err(Error::invalid("expires", "has passed already"));
        }
        if subject.as_deref() == Some("") {
            return Err(Error::invalid("subject", "is empty"));
        }
        if role == Role::Admin && subject.is_some() && !any_subject {
            let why = "stands for one user alone, and a key with the role admin opens all: make it with any_subject";
            return Err(Error::invalid("subject", why));
        }
        if any_subject && subject.is_none() {
            return Err(Error::invalid("any_subject", "is for a key that has a subject"));
        }
        let id = KeyId::now();
        let entry = by.map(|by| {
            let subject = subject.iter().map(|subject| match any_subject {
                true => format!("usually for {subject}"),
                false => format!("for {subject}"),
            });
            let end = expires.map(|end| format!("until {end}"));
            let said = [id.to_string(), tenant.to_string(), error::name(role).to_owned()];
            by.entry("key.add", said.into_iter().chain(subject).chain(end).collect(), created)
        });
        let new = NewKey { id, tenant, role, name, subject, any_subject, digest, created, expires };
        Ok(self.store.add_key(new, entry).await?)
    }

    pub async fn list(&self, tenant: Option<&Tenant>) -> Result<Vec<Key>> {
        Ok(self.store.keys(tenant).await?)
    }

    pub async fn revoke(&self, by: &Caller, id: KeyId) -> Result<Key> {
        let entry = by.entry("key.revoke", vec![id.to_string()], self.clock.now());
        let key = self.store.revoke_key(id, entry).await?.ok_or(Error::NoKey(id))?;
        self.known(|known| {
            known.revoked += 1;
            known.by_digest.retain(|_, known| known.id != id);
            known.by_id.remove(&id);
        });
        self.lives.end(id);
        Ok(key)
    }
}

fn remember<K: Eq + std::hash::Hash>(known: &mut HashMap<K, Arc<Key>>, by: K, key: &Arc<Key>) {
    if known.len() >= KNOWN {
        known.clear();
    }
    known.insert(by, key.clone());
}

/// `None` for what cannot be a key. Who compares digests tells nothing by the time it takes.
fn digest_of(text: &str) -> Option<[u8; 32]> {
    let digits = text.strip_prefix(PREFIX)?;
    let plain = digits.len() == DIGITS && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    plain.then(|| Sha256::digest(text).into())
}
