//! What cases stand on: fresh sandboxes that are removed at the end, and short words for common steps.

use std::{
    future::Future,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use cabana_sandbox::{
    Alter, Capabilities, Error, FileInfo, Files, Provider, Result, Sandbox, SandboxId, SandboxPath, SandboxSpec,
    Stream, User, Write, WriteMode, read_all, write_all,
};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::{
    Subject,
    verdict::{Failure, Outcome},
};

pub(crate) struct Stage {
    subject: Arc<dyn Subject>,
    made: Mutex<Vec<SandboxId>>,
}

impl Stage {
    pub(super) fn new(subject: Arc<dyn Subject>) -> Self {
        Self { subject, made: Mutex::new(Vec::new()) }
    }

    pub(super) fn subject(&self) -> &dyn Subject {
        &*self.subject
    }

    pub(super) fn provider(&self) -> Arc<dyn Provider> {
        self.subject.provider()
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        self.provider().capabilities()
    }

    pub(super) fn spec(&self) -> SandboxSpec {
        self.subject.spec()
    }

    /// A new id. What is made of it is removed at the end.
    pub(super) fn id(&self) -> SandboxId {
        let id = SandboxId::random();
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push(id.clone());
        id
    }

    pub(super) async fn sandbox(&self) -> Result<Arc<dyn Sandbox>> {
        self.provider().create(&self.id(), &self.spec()).await
    }

    /// A fresh sandbox and an empty directory of the ordinary user in it.
    pub(super) async fn room(&self) -> Result<Room> {
        let sandbox = self.sandbox().await?;
        Room::in_sandbox(sandbox, self.subject.as_ref()).await
    }

    pub(super) async fn clear(&self) -> Outcome {
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        for id in made {
            self.provider().destroy(&id).await?;
        }
        Ok(())
    }

    /// What must come soon. A provider that leaves it out fails the case, and does not hang it.
    #[track_caller]
    pub(super) fn soon<T>(&self, what: &str, future: impl Future<Output = T>) -> impl Future<Output = Outcome<T>> {
        let late = Failure::new(format_args!("this did not come: {what}"));
        let patience = self.subject.patience();
        async move { tokio::time::timeout(patience, future).await.map_err(|_| late) }
    }

    /// Asks again until the condition holds.
    #[track_caller]
    pub(super) fn until<F: Future<Output = Outcome<bool>>>(
        &self,
        what: &str,
        mut holds: impl FnMut() -> F,
    ) -> impl Future<Output = Outcome> {
        let waiting = self.soon(what, async move {
            while !holds().await? {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        });
        async move { waiting.await? }
    }
}

/// A directory to work in, as the ordinary user.
pub(crate) struct Room {
    pub(super) sandbox: Arc<dyn Sandbox>,
    pub(super) files: Arc<dyn Files>,
    pub(super) dir: SandboxPath,
}

impl Room {
    pub(super) async fn in_sandbox(sandbox: Arc<dyn Sandbox>, subject: &dyn Subject) -> Result<Self> {
        let files = sandbox.files(Some(&subject.user().as_user()?));
        let dir = subject.user().home()?.join(b"room")?;
        files.alter(Alter::MakeDir(dir.clone(), 0o755)).await?;
        Ok(Self { sandbox, files, dir })
    }

    pub(super) fn root(&self) -> Arc<dyn Files> {
        self.sandbox.files(Some(&User::root()))
    }

    /// A path below the room.
    pub(super) fn path(&self, rest: impl AsRef<[u8]>) -> Result<SandboxPath> {
        Ok(self.dir.below(rest.as_ref())?)
    }

    pub(super) async fn write(&self, rest: &str, content: impl Into<Bytes>) -> Result<FileInfo> {
        write_all(&*self.files, &self.path(rest)?, content).await
    }

    pub(super) async fn write_as(&self, rest: &str, how: Write, body: Stream<Bytes>) -> Result<FileInfo> {
        self.files.write(&self.path(rest)?, how, body).await
    }

    pub(super) async fn read(&self, rest: &str) -> Result<Bytes> {
        self.read_path(&self.path(rest)?).await
    }

    pub(super) async fn read_path(&self, path: &SandboxPath) -> Result<Bytes> {
        read_all(&*self.files, path, 64 * 1024 * 1024).await
    }

    pub(super) async fn stat(&self, rest: &str) -> Result<FileInfo> {
        self.files.stat(&self.path(rest)?).await
    }

    pub(super) async fn make_dir(&self, rest: &str) -> Result<()> {
        self.files.alter(Alter::MakeDir(self.path(rest)?, 0o755)).await
    }

    pub(super) async fn link(&self, rest: &str, text: impl AsRef<[u8]>) -> Result<()> {
        self.files.alter(Alter::Symlink { at: self.path(rest)?, text: text.as_ref().to_vec() }).await
    }

    pub(super) async fn set_mode(&self, rest: &str, mode: u32) -> Result<()> {
        self.files.alter(Alter::SetMode(self.path(rest)?, mode)).await
    }

    pub(super) async fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.files.alter(Alter::Rename(self.path(from)?, self.path(to)?)).await
    }

    pub(super) async fn remove(&self, rest: &str) -> Result<()> {
        self.files.alter(Alter::Remove(self.path(rest)?)).await
    }

    pub(super) async fn remove_all(&self, rest: &str) -> Result<()> {
        self.files.alter(Alter::RemoveAll(self.path(rest)?)).await
    }

    /// The names in the room itself, sorted.
    pub(super) async fn names(&self) -> Result<Vec<Vec<u8>>> {
        names(&*self.files, &self.dir).await
    }
}

pub(super) async fn list(files: &dyn Files, dir: &SandboxPath) -> Result<Vec<FileInfo>> {
    files.list(dir).await?.try_concat().await
}

pub(super) async fn names(files: &dyn Files, dir: &SandboxPath) -> Result<Vec<Vec<u8>>> {
    let mut names: Vec<_> = list(files, dir).await?.iter().map(|entry| entry.path.name().to_vec()).collect();
    names.sort();
    Ok(names)
}

pub(super) fn path(text: impl AsRef<[u8]>) -> Result<SandboxPath> {
    Ok(SandboxPath::new(text.as_ref())?)
}

pub(super) fn how(mode: WriteMode) -> Write {
    Write::new(mode)
}

pub(super) fn body<B: Into<Bytes>>(chunks: impl IntoIterator<Item = B>) -> Stream<Bytes> {
    let chunks: Vec<Bytes> = chunks.into_iter().map(Into::into).collect();
    stream::iter(chunks.into_iter().map(Ok)).boxed()
}

/// One that breaks off after some bytes.
pub(super) fn broken_body(first: &'static str) -> Stream<Bytes> {
    let broken = Err(Error::Offline("the other end went away".into()));
    stream::iter([Ok(Bytes::from_static(first.as_bytes())), broken]).boxed()
}

/// Bytes in which each place can be told from the others; at most 8 MiB of them.
pub(super) fn pattern(len: usize) -> Bytes {
    static PATTERN: OnceLock<Bytes> = OnceLock::new();
    let all = PATTERN.get_or_init(|| {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let words = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        });
        words.take(1024 * 1024).flatten().collect()
    });
    all.slice(..len)
}
