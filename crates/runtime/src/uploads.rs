//! Files on their way into a build: kept under the hash that the client gave them, for a while.
//!
//! They are the tenant's own, so a hash that does not fit its files harms nobody else. Whoever may put one somewhere shows a
//! token that says so, and that ends.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
    time::{Duration, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use cabana_model::{Role, Tenant, Time};
use cabana_sandbox::{Error as SandboxError, Stream};
use futures_util::{StreamExt, TryStreamExt, stream};
use hmac::Mac as _;
use jiff::SignedDuration;
use tokio::{
    fs::{self, File},
    io::{AsyncReadExt, AsyncWriteExt},
};
use uuid::Uuid;

use crate::{Caller, Error, Result, Runtime};

/// Of one upload, and of all of a tenant's.
pub const MOST_BYTES: u64 = 1 << 30;
const MOST_OF_TENANT: u64 = 8 << 30;
const MOST_FILES: usize = 256;
const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// How long an upload may begin after it was asked for.
const LASTS: SignedDuration = SignedDuration::from_hours(1);
const CHUNK: usize = 256 << 10;

/// What a client calls the files of a step: 64 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hash(String);

impl FromStr for Hash {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let is_one = text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        match is_one {
            true => Ok(Self(text.to_owned())),
            false => Err(Error::invalid("hash", "is none: 64 digits from 0 to 9 and a to f are meant")),
        }
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn failed(what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |error| SandboxError::failed(what, error).into()
}

impl Runtime {
    /// For whoever puts files under this hash.
    pub async fn upload_token(&self, caller: &Caller, hash: &Hash) -> Result<String> {
        let until = self.0.clock.now().saturating_add(LASTS).unwrap_or(Time::MAX);
        let said = URL_SAFE_NO_PAD.encode(format!("{} {} {hash} {}", caller.tenant, caller.key, until.as_second()));
        let proof = self.0.links.mac(&format!("upload.{said}")).await?.finalize().into_bytes();
        Ok(format!("{said}.{}", URL_SAFE_NO_PAD.encode(proof)))
    }

    /// Who comes with it, and what it is for. Nothing of the text is believed before its proof is.
    pub async fn open_upload(&self, token: &str) -> Result<(Caller, Hash)> {
        let (said, proof) = token.split_once('.').ok_or(Error::NoLink)?;
        let proof = URL_SAFE_NO_PAD.decode(proof).map_err(|_| Error::NoLink)?;
        self.0.links.mac(&format!("upload.{said}")).await?.verify_slice(&proof).map_err(|_| Error::NoLink)?;
        let said = URL_SAFE_NO_PAD.decode(said).ok().and_then(|said| String::from_utf8(said).ok());
        let (tenant, key, hash, until) = said.as_deref().and_then(read).ok_or(Error::NoLink)?;
        if until <= self.0.clock.now() || !self.0.access.stands(key).await? {
            return Err(Error::NoLink);
        }
        Ok((Caller { key, tenant, role: Role::Use, subject: None }, hash))
    }

    fn uploads(&self, tenant: &Tenant) -> Result<PathBuf> {
        let data =
            self.0.settings.data.as_ref().ok_or(SandboxError::Unsupported {
                provider: "this server",
                what: "uploads without a data directory",
            })?;
        Ok(data.join("uploads").join(tenant.as_str()))
    }

    pub async fn has_upload(&self, tenant: &Tenant, hash: &Hash) -> Result<bool> {
        Ok(fs::try_exists(self.uploads(tenant)?.join(&hash.0)).await.unwrap_or(false))
    }

    /// All of it or nothing. How long it is.
    pub(crate) async fn keep_upload(&self, tenant: &Tenant, hash: &Hash, mut body: Stream<Bytes>) -> Result<u64> {
        let dir = self.uploads(tenant)?;
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(&dir).await.map_err(failed("making the place of uploads"))?;
        let draft = dir.join(format!("{}.{}", hash.0, Uuid::new_v4().simple()));
        let written = async {
            let mut file = File::create(&draft).await.map_err(failed("keeping an upload"))?;
            let mut length = 0;
            while let Some(bytes) = body.try_next().await? {
                length += bytes.len() as u64;
                if length > MOST_BYTES {
                    return Err(SandboxError::TooLarge { cap: MOST_BYTES }.into());
                }
                file.write_all(&bytes).await.map_err(failed("keeping an upload"))?;
            }
            file.flush().await.map_err(failed("keeping an upload"))?;
            fs::rename(&draft, dir.join(&hash.0)).await.map_err(failed("keeping an upload"))?;
            Ok(length)
        };
        let written = written.await;
        if written.is_err() {
            let _ = fs::remove_file(&draft).await;
        }
        make_room(&dir, &hash.0).await;
        written
    }

    /// `None`: there is none.
    pub async fn upload(&self, tenant: &Tenant, hash: &Hash) -> Result<Option<Stream<Bytes>>> {
        let file = match File::open(self.uploads(tenant)?.join(&hash.0)).await {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("reading an upload")(error)),
        };
        let pieces = stream::try_unfold(file, |mut file| async move {
            let mut piece = vec![0; CHUNK];
            let length =
                file.read(&mut piece).await.map_err(|error| SandboxError::failed("reading an upload", error))?;
            piece.truncate(length);
            Ok((length > 0).then(|| (Bytes::from(piece), file)))
        });
        Ok(Some(pieces.boxed()))
    }
}

fn read(said: &str) -> Option<(Tenant, cabana_model::KeyId, Hash, Time)> {
    let mut parts = said.split(' ');
    let (tenant, key) = (Tenant::new(parts.next()?).ok()?, parts.next()?.parse().ok()?);
    let (hash, until) = (parts.next()?.parse().ok()?, Time::from_second(parts.next()?.parse().ok()?).ok()?);
    Some((tenant, key, hash, until))
}

/// The oldest go first: what is old, what is too much, and what a kill left half written.
async fn make_room(dir: &Path, but: &str) {
    let Ok(mut entries) = fs::read_dir(dir).await else { return };
    let mut all = Vec::new();
    while let Ok(Some(entry)) = entries.next_entry().await {
        let Ok(about) = entry.metadata().await else { continue };
        let made = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        all.push((made, about.len(), entry.path()));
    }
    all.sort_by_key(|(made, ..)| std::cmp::Reverse(*made));
    let (now, mut bytes, mut count) = (SystemTime::now(), 0, 0);
    for (made, length, path) in all {
        (bytes, count) = (bytes + length, count + 1);
        let age = now.duration_since(made).unwrap_or_default();
        if path.file_name().is_some_and(|name| name == but) {
            continue;
        }
        // One that is still written is younger than that.
        let is_left = path.extension().is_some() && age > Duration::from_secs(2 * 60 * 60);
        if age > KEPT || bytes > MOST_OF_TENANT || count > MOST_FILES || is_left {
            let _ = fs::remove_file(path).await;
        }
    }
}
