//! The files of a sandbox.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use cabana_model::Time;
use cabana_sandbox::{
    self as sandbox, Depth, FileInfo, Files, Hit, Kind, SandboxPath, Stream, User, WatchEvent, WriteMode,
};
use futures_util::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Act, Cx, Look, Needs, Result, exec::within};

/// Whose files, and which. A path is relative to the sandbox's working directory, unless it is absolute.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct At {
    pub path: String,
    pub user: Option<User>,
}

impl At {
    pub fn new(path: impl Into<String>) -> Self {
        Self { path: path.into(), user: None }
    }

    fn open(&self, cx: &Cx) -> Result<(Arc<dyn Files>, SandboxPath)> {
        let sandbox = cx.sandbox()?;
        Ok((sandbox.files(self.user.as_ref()), within(&sandbox.defaults().workdir, &self.path)?))
    }
}

/// An entry of a directory, as it is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub name: String,
    pub path: String,
    pub kind: Kind,
    pub size: u64,
    /// Permission bits, with setuid, setgid and sticky.
    pub mode: u32,
    pub owner: String,
    pub group: String,
    pub modified: Time,
    /// Of a link: its text.
    pub link: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
}

impl From<FileInfo> for Entry {
    fn from(info: FileInfo) -> Self {
        Self {
            name: String::from_utf8_lossy(info.path.name()).into_owned(),
            path: info.path.to_string(),
            kind: info.kind,
            size: info.size,
            mode: info.mode,
            owner: info.owner,
            group: info.group,
            modified: Time::try_from(info.modified).unwrap_or(Time::UNIX_EPOCH),
            link: info.link.map(|link| String::from_utf8_lossy(&link.text).into_owned()),
            tags: info.tags,
        }
    }
}

/// Keeps the sandbox awake as long as somebody reads.
fn awake<T: Send + 'static>(cx: &Cx, stream: Stream<T>) -> Stream<T> {
    let awake = cx.awake.clone();
    let held = move |item| {
        let _ = &awake;
        item
    };
    stream.map(held).boxed()
}

pub struct Stat(pub At);

impl Look for Stat {
    const VERB: &'static str = "file.stat";
    type Answer = Entry;

    fn needs(&self) -> Needs {
        Needs::Running
    }

    fn argv(&self) -> Vec<String> {
        vec![self.0.path.clone()]
    }

    async fn run(self, cx: Cx) -> Result<Entry> {
        let (files, path) = self.0.open(&cx)?;
        Ok(files.stat(&path).await?.into())
    }
}

/// In no particular order.
pub struct List(pub At);

impl Look for List {
    const VERB: &'static str = "file.list";
    type Answer = Stream<Vec<FileInfo>>;

    fn needs(&self) -> Needs {
        Needs::Running
    }

    fn argv(&self) -> Vec<String> {
        vec![self.0.path.clone()]
    }

    async fn run(self, cx: Cx) -> Result<Self::Answer> {
        let (files, path) = self.0.open(&cx)?;
        Ok(awake(&cx, files.list(&path).await?))
    }
}

pub struct Read {
    pub at: At,
    pub what: sandbox::Read,
}

impl Look for Read {
    const VERB: &'static str = "file.read";
    type Answer = (FileInfo, Stream<Bytes>);

    fn needs(&self) -> Needs {
        Needs::Running
    }

    fn argv(&self) -> Vec<String> {
        vec![self.at.path.clone()]
    }

    async fn run(self, cx: Cx) -> Result<Self::Answer> {
        let (files, path) = self.at.open(&cx)?;
        let (info, body) = files.read(&path, self.what).await?;
        Ok((info, awake(&cx, body)))
    }
}

pub struct Search {
    pub at: At,
    pub what: SearchFor,
}

/// As [`sandbox::Search`], but for the place.
pub struct SearchFor {
    pub globs: Vec<String>,
    pub grep: Option<String>,
    pub ignore_files: bool,
    pub max_hits: u32,
    pub budget: std::time::Duration,
}

impl Look for Search {
    const VERB: &'static str = "file.search";
    type Answer = Stream<Vec<Hit>>;

    fn needs(&self) -> Needs {
        Needs::Running
    }

    fn argv(&self) -> Vec<String> {
        let words = self.what.globs.iter().chain(&self.what.grep);
        std::iter::once(&self.at.path).chain(words).cloned().collect()
    }

    async fn run(self, cx: Cx) -> Result<Self::Answer> {
        let (files, root) = self.at.open(&cx)?;
        let SearchFor { globs, grep, ignore_files, max_hits, budget } = self.what;
        let what = sandbox::Search { root, globs, grep, ignore_files, max_hits, budget };
        Ok(awake(&cx, sandbox::search(&files, what).await?))
    }
}

pub struct Watch {
    pub at: At,
    pub depth: Depth,
}

impl Look for Watch {
    const VERB: &'static str = "file.watch";
    type Answer = Stream<WatchEvent>;

    fn needs(&self) -> Needs {
        Needs::Running
    }

    fn argv(&self) -> Vec<String> {
        vec![self.at.path.clone()]
    }

    async fn run(self, cx: Cx) -> Result<Self::Answer> {
        let (files, path) = self.at.open(&cx)?;
        Ok(awake(&cx, files.watch(&path, self.depth).await?))
    }
}

pub struct Write {
    pub at: At,
    pub mode: WriteMode,
    pub perm: Option<u32>,
    pub len: Option<u64>,
    /// Whether directories above it are made where they are missing.
    pub parents: bool,
    pub body: Stream<Bytes>,
}

impl Act for Write {
    const VERB: &'static str = "file.write";
    type Answer = Entry;

    fn needs(&self) -> Needs {
        Needs::Running
    }

    /// Of what is known before the body comes.
    fn digest(&self) -> [u8; 32] {
        let about = format!("{:?}", (&self.at, self.mode, self.perm, self.len, self.parents));
        Sha256::digest(about).into()
    }

    fn argv(&self) -> Vec<String> {
        vec![self.at.path.clone()]
    }

    async fn run(self, cx: Cx) -> Result<Entry> {
        let (files, path) = self.at.open(&cx)?;
        if self.parents
            && let Some(parent) = path.parent()
        {
            sandbox::make_dirs(files.as_ref(), &parent).await?;
        }
        let digest = Arc::new(Mutex::new(Sha256::new()));
        let hashed = digest.clone();
        let body = self.body.inspect_ok(move |bytes| {
            hashed.lock().unwrap_or_else(PoisonError::into_inner).update(bytes);
        });
        let how = sandbox::Write { mode: self.mode, perm: self.perm, len: self.len, ..sandbox::Write::new(self.mode) };
        let cancelled = cx.cancel.clone();
        let written = files.write(&path, how, body.boxed());
        let Some(written) = cancelled.run_until_cancelled(written).await else { return Err(crate::Error::Cancelled) };
        let written = written?;
        let digest = digest.lock().unwrap_or_else(PoisonError::into_inner).clone().finalize();
        cx.note(|notes| notes.input = Some(digest.into()));
        Ok(written.into())
    }
}

/// A change of names, modes or owners.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Step {
    MakeDir { perm: u32, parents: bool },
    Move { to: String },
    Remove { tree: bool },
    SetMode { mode: u32 },
    SetOwner { owner: User },
    Symlink { text: String },
    SetTags { tags: BTreeMap<String, String> },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Alter {
    pub at: At,
    pub step: Step,
}

impl Act for Alter {
    const VERB: &'static str = "file.alter";
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::Running
    }

    fn digest(&self) -> [u8; 32] {
        Sha256::digest(serde_json::to_vec(self).unwrap_or_default()).into()
    }

    fn argv(&self) -> Vec<String> {
        let name = match &self.step {
            Step::MakeDir { .. } => "mkdir",
            Step::Move { .. } => "move",
            Step::Remove { .. } => "remove",
            Step::SetMode { .. } => "chmod",
            Step::SetOwner { .. } => "chown",
            Step::Symlink { .. } => "symlink",
            Step::SetTags { .. } => "tag",
        };
        let to = if let Step::Move { to } = &self.step { Some(to.clone()) } else { None };
        [name.to_owned(), self.at.path.clone()].into_iter().chain(to).collect()
    }

    async fn run(self, cx: Cx) -> Result<()> {
        let (files, path) = self.at.open(&cx)?;
        let step = match self.step {
            Step::MakeDir { parents: true, .. } => return Ok(sandbox::make_dirs(files.as_ref(), &path).await?),
            Step::MakeDir { perm, parents: false } => sandbox::Alter::MakeDir(path, perm),
            Step::Move { to } => {
                let to = within(&cx.sandbox()?.defaults().workdir, &to)?;
                sandbox::Alter::Rename(path, to)
            }
            Step::Remove { tree: true } => sandbox::Alter::RemoveAll(path),
            Step::Remove { tree: false } => sandbox::Alter::Remove(path),
            Step::SetMode { mode } => sandbox::Alter::SetMode(path, mode),
            Step::SetOwner { owner } => sandbox::Alter::SetOwner(path, owner),
            Step::Symlink { text } => sandbox::Alter::Symlink { at: path, text: text.into_bytes() },
            Step::SetTags { tags } => sandbox::Alter::SetTags(path, tags),
        };
        Ok(files.alter(step).await?)
    }
}
