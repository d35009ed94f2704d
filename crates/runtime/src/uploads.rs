//! Files on their way into a build: kept under the hash that the client gave them, for a while.
//!
//! They are the tenant's own, so a hash that does not fit its files harms nobody else. Whoever may put one somewhere shows a
//! token that says so, and that ends.

use std::{
    cmp::Reverse,
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
    time::{Duration, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use cabana_model::{Tenant, Time};
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

/// Of one upload, and of all of a tenant's, with those that are under way.
pub const MOST_BYTES: u64 = 1 << 30;
const MOST_OF_TENANT: u64 = 8 << 30;
const MOST_FILES: usize = 256;
/// Of one tenant. The next one waits, and is not read meanwhile: so what is under way always fits into what a tenant may have.
pub(crate) const AT_ONCE: usize = 4;
const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// How long an upload may begin after it was asked for.
const LASTS: SignedDuration = SignedDuration::from_hours(1);
/// How long a build may be about to come for it: until then it does not go because of a quota.
const AWAITED: Duration = Duration::from_secs(60 * 60);
/// What is written between two looks at how much room there is.
const LOOK_EVERY: u64 = 16 << 20;
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
        Ok((Caller::keyless(key, tenant), hash))
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

    /// All of it or nothing, whoever drops this in the middle. How long it is.
    pub(crate) async fn keep_upload(&self, tenant: &Tenant, hash: &Hash, mut body: Stream<Bytes>) -> Result<u64> {
        let _permit = self.0.uploads.acquire(tenant).await;
        let dir = self.uploads(tenant)?;
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(&dir).await.map_err(failed("making the place of uploads"))?;
        let draft = Draft(dir.join(format!("{}.{}{}", hash.0, self.0.process.simple(), Uuid::new_v4().simple())));
        let mut file = File::create(&draft.0).await.map_err(failed("keeping an upload"))?;
        let (mut length, mut looked_at) = (0, 0);
        while let Some(bytes) = body.try_next().await? {
            length += bytes.len() as u64;
            if length > MOST_BYTES {
                return Err(SandboxError::TooLarge { cap: MOST_BYTES }.into());
            }
            if length - looked_at >= LOOK_EVERY {
                looked_at = length;
                self.0.keeper.space.check()?;
                self.make_room_for_uploads(tenant, MOST_OF_TENANT).await;
            }
            file.write_all(&bytes).await.map_err(failed("keeping an upload"))?;
        }
        file.flush().await.map_err(failed("keeping an upload"))?;
        fs::rename(&draft.0, dir.join(&hash.0)).await.map_err(failed("keeping an upload"))?;
        self.make_room_for_uploads(tenant, MOST_OF_TENANT).await;
        Ok(length)
    }

    /// Removes what a tenant's uploads may not take any more. What the rest of them takes.
    pub(crate) async fn make_room_for_uploads(&self, tenant: &Tenant, room: u64) -> u64 {
        let Ok(dir) = self.uploads(tenant) else { return 0 };
        let sweep = UploadSweep::sort(list(&dir).await, room, self.0.clock.now().into());
        for file in &sweep.due {
            let _ = fs::remove_file(&file.path).await;
        }
        sweep.staying.iter().map(|file| file.bytes).sum()
    }

    /// Of all tenants, also of those that upload nothing any more.
    pub(crate) async fn all_uploads(&self) -> UploadSweep {
        let (mut all, now) = (UploadSweep::default(), self.0.clock.now().into());
        for dir in self.upload_dirs().await {
            let sweep = UploadSweep::sort(list(&dir).await, MOST_OF_TENANT, now);
            all.due.extend(sweep.due);
            all.staying.extend(sweep.staying);
        }
        all
    }

    /// What a server that was killed left half written. What is written now bears the mark of this process.
    pub(crate) async fn remove_upload_drafts(&self) {
        let ours = format!(".{}", self.0.process.simple());
        for dir in self.upload_dirs().await {
            let is_left = |file: &UploadFile| file.is_draft && !file.path.to_string_lossy().contains(&ours);
            for file in list(&dir).await.into_iter().filter(is_left) {
                let _ = fs::remove_file(file.path).await;
            }
        }
    }

    async fn upload_dirs(&self) -> Vec<PathBuf> {
        let Some(data) = &self.0.settings.data else { return Vec::new() };
        let Ok(mut entries) = fs::read_dir(data.join("uploads")).await else { return Vec::new() };
        let mut dirs = Vec::new();
        while let Ok(Some(entry)) = entries.next_entry().await {
            dirs.push(entry.path());
        }
        dirs
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

/// A file that is being written. What is dropped before it has its name is gone: a call that is cancelled is dropped.
struct Draft(PathBuf);

impl Drop for Draft {
    fn drop(&mut self) {
        // Where it has its name, nothing has this one any more.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A file below the directory of a tenant's uploads.
pub(crate) struct UploadFile {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    written: SystemTime,
    is_draft: bool,
}

async fn list(dir: &Path) -> Vec<UploadFile> {
    let Ok(mut entries) = fs::read_dir(dir).await else { return Vec::new() };
    let mut all = Vec::new();
    while let Ok(Some(entry)) = entries.next_entry().await {
        let Ok(about) = entry.metadata().await else { continue };
        let (path, written) = (entry.path(), about.modified().unwrap_or(SystemTime::UNIX_EPOCH));
        all.push(UploadFile { is_draft: path.extension().is_some(), path, bytes: about.len(), written });
    }
    all
}

/// Which uploads of a tenant stay.
#[derive(Default)]
pub(crate) struct UploadSweep {
    pub(crate) due: Vec<UploadFile>,
    pub(crate) staying: Vec<UploadFile>,
}

impl UploadSweep {
    /// The oldest go first: what is old, and what is too much. Drafts count, and go with whoever writes them.
    fn sort(mut files: Vec<UploadFile>, room: u64, now: SystemTime) -> Self {
        files.sort_by_key(|file| (!file.is_draft, Reverse(file.written)));
        let (mut sweep, mut bytes) = (Self::default(), 0);
        for file in files {
            let age = now.duration_since(file.written).unwrap_or_default();
            let is_too_much = bytes + file.bytes > MOST_OF_TENANT || sweep.staying.len() >= MOST_FILES;
            let is_over_quota = bytes + file.bytes > room && age > AWAITED;
            if !file.is_draft && (age > KEPT || is_too_much || is_over_quota) {
                sweep.due.push(file);
            } else {
                bytes += file.bytes;
                sweep.staying.push(file);
            }
        }
        sweep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 60 * 60;

    /// The names of those that go.
    fn due(files: &[(&str, u64, u64)], room: u64) -> Vec<String> {
        let now = SystemTime::now();
        let files = files.iter().map(|(name, bytes, hours)| UploadFile {
            path: name.into(),
            bytes: *bytes,
            written: now - Duration::from_secs(hours * HOUR),
            is_draft: name.contains('.'),
        });
        let sweep = UploadSweep::sort(files.collect(), room, now);
        sweep.due.iter().map(|file| file.path.display().to_string()).collect()
    }

    #[test]
    fn the_oldest_uploads_make_room_for_those_that_are_under_way() {
        let files = [("old", 3 << 30, 3), ("young", 3 << 30, 2), ("draft.1", 1 << 30, 0), ("draft.2", 1 << 30, 0)];
        assert!(due(&files, MOST_OF_TENANT).is_empty());
        assert_eq!(due(&[&files[..], &[("draft.3", 1, 0)]].concat(), MOST_OF_TENANT), ["old"]);
        assert_eq!(due(&[("week", 1, 7 * 24 + 1), ("day", 1, 24)], MOST_OF_TENANT), ["week"]);
        let many: Vec<String> = (0..=MOST_FILES).map(|n| format!("{n}")).collect();
        let many: Vec<(&str, u64, u64)> = many.iter().map(|name| (name.as_str(), 1, 0)).collect();
        assert_eq!(due(&many, MOST_OF_TENANT).len(), 1);
    }

    #[test]
    fn a_quota_takes_no_upload_that_a_build_may_be_about_to_use() {
        let files = [("just", 100, 0), ("before", 100, 2), ("draft.1", 100, 0)];
        assert!(due(&files, 300).is_empty());
        assert_eq!(due(&files, 0), ["before"]);
    }
}
