//! The files of a sandbox.

use std::{
    collections::{BTreeMap, BinaryHeap},
    sync::Arc,
};

use bytes::Bytes;
use cabana_model::Time;
use cabana_sandbox::{
    self as sandbox, Change, Depth, FileInfo, Files, Hit, Kind, Places, SandboxPath, Stream, TreeItem, User,
    WatchEvent, WriteMode,
};
use futures_util::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout_at};

use crate::{
    Act, Call, Cx, Error, Look, MemoryCharge, Needs, Result,
    exec::within,
    fault::{self, Point},
    hashing::{digest, hashed},
    memory::{json_len, size_of_info},
    runtime::SEARCHES_AT_ONCE,
    shares::{self, ARCHIVES, READERS, READERS_BY_URL, Share},
    watches::Watched,
};

/// Whose files, and which. A path is relative to the sandbox's working directory, unless it is absolute; none at all is that
/// directory itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct At {
    pub path: String,
    pub user: Option<User>,
    #[serde(default)]
    pub rights: Rights,
}

/// What a user may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rights {
    /// What the modes of files say.
    #[default]
    Own,
    /// What root inside may. What is made belongs to the user, and so does what is written.
    Root,
}

impl At {
    pub fn new(path: impl Into<String>) -> Self {
        Self { path: path.into(), user: None, rights: Rights::Own }
    }

    fn open(&self, cx: &Cx) -> Result<(Arc<dyn Files>, SandboxPath)> {
        let sandbox = cx.sandbox()?;
        let workdir = &sandbox.defaults().workdir;
        let path = if self.path.is_empty() { workdir.clone() } else { within(workdir, &self.path)? };
        let files = match self.rights {
            Rights::Own => sandbox.files(self.user.as_ref()),
            Rights::Root => sandbox.files_by_root(self.user.as_ref()),
        };
        Ok((files, path))
    }

    /// Who owns what is written, where that is not left as it was.
    fn owner(&self, cx: &Cx) -> Result<Option<User>> {
        let user = || self.user.clone().map_or_else(|| Ok(cx.sandbox()?.defaults().user.clone()), Ok);
        (self.rights == Rights::Root).then(user).transpose()
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
fn awake<T: Send + 'static>(cx: &Cx, stream: BoxStream<'static, T>) -> BoxStream<'static, T> {
    holding(cx.awake.clone(), stream)
}

/// What the server has read of a file, while its client takes nothing.
const READ_AHEAD: u64 = 256 << 10;

/// For one who is about to open what it reads.
fn reader(cx: &Cx) -> Result<Share> {
    place_of(&READERS, cx)
}

fn place_of(places: &Places, cx: &Cx) -> Result<Share> {
    places.take(&shares::tenant(&cx.caller.tenant)).ok_or(Error::TooManyReaders)
}

/// Keeps something as long as somebody reads.
pub(crate) fn holding<T: Send + 'static>(
    held: impl Send + 'static,
    stream: BoxStream<'static, T>,
) -> BoxStream<'static, T> {
    let pass = move |item| {
        let _ = &held;
        item
    };
    stream.map(pass).boxed()
}

pub struct Stat(pub At);

impl Look for Stat {
    const VERB: &'static str = "file.stat";
    type Answer = FileInfo;

    fn needs(&self) -> Needs {
        Needs::Running
    }

    fn argv(&self) -> Vec<String> {
        vec![self.0.path.clone()]
    }

    async fn run(self, cx: Cx) -> Result<FileInfo> {
        let (files, path) = self.0.open(&cx)?;
        Ok(files.stat(&path).await?)
    }
}

/// A part of a directory, by name.
pub struct List {
    pub at: At,
    /// Only what comes behind this name.
    pub after: Option<Vec<u8>>,
    pub most: usize,
}

pub struct Listed {
    pub entries: Vec<FileInfo>,
    /// Whether something comes behind them.
    pub more: bool,
    /// Of the entries: to be kept as long as they, or what is made of them, are.
    pub memory: MemoryCharge,
}

/// Of a page. One whose entries have more to tell ends sooner.
const MAX_PAGE_BYTES: usize = 4 << 20;

impl Look for List {
    const VERB: &'static str = "file.list";
    type Answer = Listed;

    fn needs(&self) -> Needs {
        Needs::Running
    }

    fn argv(&self) -> Vec<String> {
        vec![self.at.path.clone()]
    }

    /// Keeps no more of a directory than is asked for, however large it is.
    async fn run(self, cx: Cx) -> Result<Listed> {
        let (files, path) = self.at.open(&cx)?;
        let mut listing = files.list(&path).await?;
        let mut memory = cx.runtime.0.lists.open(&cx.caller.tenant);
        let (mut first, mut more, mut bytes) = (BinaryHeap::new(), false, 0);
        while let Some(batch) = listing.try_next().await? {
            let behind = |entry: &FileInfo| self.after.as_deref().is_none_or(|after| entry.path.name() > after);
            for entry in batch.into_iter().filter(behind) {
                bytes += size_of_info(&entry);
                first.push(ByName(entry));
                while first.len() > self.most || (bytes > MAX_PAGE_BYTES && first.len() > 1) {
                    bytes -= first.pop().map_or(0, |ByName(last)| size_of_info(&last));
                    more = true;
                }
                if bytes > memory.used() && !memory.grow(bytes - memory.used()) {
                    return Err(Error::ListsTooLarge);
                }
            }
        }
        let entries = first.into_sorted_vec().into_iter().map(|ByName(entry)| entry).collect();
        Ok(Listed { entries, more, memory })
    }
}

/// What lies below a directory: by name, each directory before what it holds. Links are not followed.
pub struct Tree {
    pub at: At,
    /// One is the directory alone.
    pub levels: u32,
    pub most: usize,
    /// What all of it may take.
    pub most_bytes: usize,
}

pub struct TreeEntries {
    pub entries: Vec<FileInfo>,
    /// Of the entries: to be kept as long as they, or what is made of them, are.
    pub memory: MemoryCharge,
}

impl Look for Tree {
    const VERB: &'static str = "file.tree";
    type Answer = TreeEntries;

    fn needs(&self) -> Needs {
        Needs::Running
    }

    fn argv(&self) -> Vec<String> {
        vec![self.at.path.clone(), self.levels.to_string()]
    }

    async fn run(self, cx: Cx) -> Result<TreeEntries> {
        let (files, path) = self.at.open(&cx)?;
        let mut walk = sandbox::walk_tree(&files, &path, sandbox::Walk::Entries { levels: self.levels }).await?;
        let mut room = Room { tree: &self, entries: 0, memory: cx.runtime.0.lists.open(&cx.caller.tenant) };
        let mut found = Vec::new();
        while let Some(batch) = walk.try_next().await? {
            for item in batch {
                let TreeItem::Entry(entry) = item else { continue };
                room.take(&entry)?;
                found.push(entry);
            }
        }
        Ok(TreeEntries { entries: found, memory: room.memory })
    }
}

/// What is left of what a tree may take. All that is read of it is told, so it is counted as it comes.
struct Room<'a> {
    tree: &'a Tree,
    entries: usize,
    memory: MemoryCharge,
}

impl Room<'_> {
    fn take(&mut self, entry: &FileInfo) -> Result<()> {
        let (most, most_bytes) = (self.tree.most, self.tree.most_bytes);
        self.entries += 1;
        if self.entries > most {
            return Err(Error::invalid("depth", format!("reaches more than {most} entries: ask for fewer levels")));
        }
        if !self.memory.grow(size_of_info(entry)) {
            return Err(Error::ListsTooLarge);
        }
        if self.memory.used() > most_bytes {
            let why = format!("reaches entries that take more than {most_bytes} bytes: ask for fewer levels");
            return Err(Error::invalid("depth", why));
        }
        Ok(())
    }
}

struct ByName(FileInfo);

impl Ord for ByName {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.path.cmp(&other.0.path)
    }
}

impl PartialOrd for ByName {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ByName {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for ByName {}

pub struct Read {
    pub at: At,
    pub part: Part,
}

/// Which bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Whole,
    From { from: u64, len: Option<u64> },
    Last(u64),
}

/// A file as it was when it was opened, and its bytes from an offset on.
pub struct Opened {
    pub info: FileInfo,
    pub from: u64,
    pub body: Stream<Bytes>,
}

impl Look for Read {
    const VERB: &'static str = "file.read";
    type Answer = Opened;

    fn needs(&self) -> Needs {
        Needs::Running
    }

    fn argv(&self) -> Vec<String> {
        vec![self.at.path.clone()]
    }

    async fn run(self, cx: Cx) -> Result<Opened> {
        let (share, memory) = (reader(&cx)?, cx.runtime.0.reading.open(&cx.caller.tenant));
        self.open(cx, share, memory, Error::ReadingTooLarge).await
    }
}

/// The same for one who has no key but a URL.
pub(crate) struct ReadByUrl(pub(crate) Read);

impl Look for ReadByUrl {
    const VERB: &'static str = Read::VERB;
    type Answer = Opened;

    fn needs(&self) -> Needs {
        self.0.needs()
    }

    fn argv(&self) -> Vec<String> {
        self.0.argv()
    }

    async fn run(self, cx: Cx) -> Result<Opened> {
        let share = place_of(&READERS_BY_URL, &cx)?;
        let memory = cx.runtime.0.by_url.open(&cx.caller.tenant);
        self.0.open(cx, share, memory, Error::ByUrlTooLarge).await
    }
}

impl Read {
    /// `full`: what is said where the memory does not last.
    async fn open(self, cx: Cx, share: Share, mut memory: MemoryCharge, full: Error) -> Result<Opened> {
        let (files, path) = self.at.open(&cx)?;
        let (from, len) = match self.part {
            Part::Whole => (0, None),
            Part::From { from, len } => (from, len),
            Part::Last(last) => {
                let nothing = sandbox::Read { len: Some(0), ..sandbox::Read::default() };
                let size = files.read(&path, nothing).await?.0.size;
                (size.saturating_sub(last), Some(last))
            }
        };
        let (info, body) = files.read(&path, sandbox::Read { from, len, ..sandbox::Read::default() }).await?;
        let rest = info.size.saturating_sub(from).min(len.unwrap_or(u64::MAX));
        if !memory.grow(rest.min(READ_AHEAD) as usize) {
            return Err(full);
        }
        let memory = Arc::new(memory);
        let body = body.map_ok(move |bytes| memory.keep(bytes)).boxed();
        Ok(Opened { info, from, body: holding(share, awake(&cx, body)) })
    }
}

/// A directory as one archive.
pub struct Zip(pub At);

impl Look for Zip {
    const VERB: &'static str = "file.zip";
    type Answer = (SandboxPath, Stream<Bytes>);

    fn needs(&self) -> Needs {
        Needs::Running
    }

    fn argv(&self) -> Vec<String> {
        vec![self.0.path.clone()]
    }

    async fn run(self, cx: Cx) -> Result<Self::Answer> {
        let archive = ARCHIVES.take(&shares::tenant(&cx.caller.tenant));
        let shares = (reader(&cx)?, archive.ok_or(Error::TooManyReaders)?);
        let (files, dir) = self.0.open(&cx)?;
        let archive = sandbox::zip(&files, &dir).await?;
        Ok((dir, holding(shares, awake(&cx, archive))))
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
        let deadline = Instant::now() + budget;
        let permit = cx.runtime.0.searches.acquire(&cx.caller.tenant);
        let Ok(permit) = timeout_at(deadline, permit).await else {
            return Err(Error::TooManySearches(SEARCHES_AT_ONCE));
        };
        let budget = deadline.saturating_duration_since(Instant::now());
        let what = sandbox::Search { root, globs, grep, ignore_files, max_hits, budget };
        match sandbox::search(&files, what).await {
            // Its time is what was asked for: that it is used up before the first hit is an answer, too.
            Err(error @ sandbox::Error::TimedOut(_)) => Ok(stream::iter([Err(error)]).boxed()),
            found => Ok(holding(permit, awake(&cx, found?))),
        }
    }
}

pub struct Watch {
    pub at: At,
    pub depth: Depth,
    /// Whether each event comes with what the entry is then.
    pub describes: bool,
}

impl Look for Watch {
    const VERB: &'static str = "file.watch";
    type Answer = BoxStream<'static, Result<(WatchEvent, Option<FileInfo>)>>;

    fn needs(&self) -> Needs {
        Needs::Running
    }

    fn argv(&self) -> Vec<String> {
        vec![self.at.path.clone()]
    }

    async fn run(self, cx: Cx) -> Result<Self::Answer> {
        let (files, dir) = self.at.open(&cx)?;
        let whose = Watched {
            physical: cx.record()?.physical.clone(),
            user: self.at.user,
            rights: self.at.rights,
            dir,
            depth: self.depth,
        };
        let told = cx.runtime.watch(&cx.caller.tenant, whose, files.as_ref()).await?;
        let describes = self.describes.then_some(files);
        let told = told.then(move |event| {
            let files = describes.clone();
            async move {
                let event = event?;
                let info = match (&event, files) {
                    (WatchEvent::Changed(Change::Create | Change::Write | Change::Chmod, path), Some(files))
                    | (WatchEvent::Renamed(_, path), Some(files)) => files.stat(path).await.ok(),
                    _ => None,
                };
                Ok((event, info))
            }
        });
        Ok(awake(&cx, told.boxed()))
    }
}

pub struct Write {
    pub at: At,
    pub mode: WriteMode,
    pub perm: Option<u32>,
    pub len: Option<u64>,
    /// Whether directories above it are made where they are missing.
    pub parents: bool,
    /// What is attached to it from then on, in place of what was.
    pub tags: Option<BTreeMap<String, String>>,
    pub body: Stream<Bytes>,
    /// How much of the body is in memory before it is read.
    pub held: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    pub entry: Entry,
    /// SHA-256 of what came.
    pub input: [u8; 32],
}

impl Act for Write {
    const VERB: &'static str = "file.write";
    type Answer = Written;

    fn needs(&self) -> Needs {
        Needs::Running
    }

    /// Of what is known before the body comes. Its length is not: who sends it again may not say it again.
    fn digest(&self) -> [u8; 32] {
        let about = match &self.tags {
            None => format!("{:?}", (&self.at, self.mode, self.perm, self.parents)),
            tags => format!("{:?}", (&self.at, self.mode, self.perm, self.parents, tags)),
        };
        Sha256::digest(about).into()
    }

    fn argv(&self) -> Vec<String> {
        vec![self.at.path.clone()]
    }

    fn held_bytes(&self) -> usize {
        self.held + self.at.path.len()
    }

    async fn run(self, cx: Cx) -> Result<Written> {
        cx.check_room()?;
        let (files, path) = self.at.open(&cx)?;
        if self.parents
            && let Some(parent) = path.parent()
        {
            sandbox::make_dirs(files.as_ref(), &parent).await?;
        }
        let (body, passed) = hashed(self.body);
        let how = sandbox::Write { mode: self.mode, perm: self.perm, len: self.len, ..sandbox::Write::new(self.mode) };
        let cancelled = cx.cancel.clone();
        let written = files.write(&path, how, body);
        let Some(written) = cancelled.run_until_cancelled(written).await else { return Err(Error::Cancelled) };
        let mut entry = Entry::from(written?);
        fault::at(Point::FileWritten);
        if let Some(owner) = self.at.owner(&cx)?.filter(|owner| owner.as_str() != entry.owner) {
            files.alter(sandbox::Alter::SetOwner(path.clone(), owner)).await?;
            entry = Entry::from(files.stat(&path).await?);
        }
        if let Some(tags) = self.tags {
            // Whoever watches hears of a change, so there is none without need.
            if files.stat(&path).await?.tags != tags {
                files.alter(sandbox::Alter::SetTags(path, tags.clone())).await?;
            }
            entry.tags = tags;
        }
        let input = passed.digest().await?;
        cx.note(|notes| notes.input = Some(input));
        Ok(Written { entry, input })
    }

    /// Reads the body and writes nothing. What failed has not read the first one to its end: there is nothing to compare.
    async fn repeats(self, first: Call<Written>) -> Result<()> {
        let Ok(first) = first.answer().await else { return Ok(()) };
        if first.input == digest(self.body).await? { Ok(()) } else { Err(Error::KeyReused) }
    }
}

/// A tar into a directory, which is made where it is missing. What is in it is the archive's owners' only for root.
pub struct Unpack {
    pub at: At,
    pub body: Stream<Bytes>,
}

impl Act for Unpack {
    const VERB: &'static str = "file.unpack";
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::Running
    }

    /// Of what is known before the body comes.
    fn digest(&self) -> [u8; 32] {
        Sha256::digest(format!("{:?}", self.at)).into()
    }

    fn argv(&self) -> Vec<String> {
        vec![self.at.path.clone()]
    }

    async fn run(self, cx: Cx) -> Result<()> {
        cx.check_room()?;
        let (files, dir) = self.at.open(&cx)?;
        make_dirs(files.as_ref(), dir.clone(), 0o755).await?;
        let unpacked = sandbox::unpack(files.as_ref(), &dir, self.body);
        let unpacked = cx.cancel.run_until_cancelled(unpacked).await.ok_or(Error::Cancelled)?;
        Ok(unpacked?)
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

    fn stores(&self) -> bool {
        !self.removes()
    }

    fn removes(&self) -> bool {
        matches!(self.step, Step::Remove { .. })
    }

    fn digest(&self) -> [u8; 32] {
        Sha256::digest(serde_json::to_vec(self).unwrap_or_default()).into()
    }

    fn held_bytes(&self) -> usize {
        json_len(self)
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
            Step::MakeDir { perm, parents: true } => return make_dirs(files.as_ref(), path, perm).await,
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
        files.alter(step).await?;
        fault::at(Point::FileAltered);
        Ok(())
    }
}

/// Those above it are as usual. A directory that is there stays as it is.
async fn make_dirs(files: &dyn Files, path: SandboxPath, perm: u32) -> Result<()> {
    if let Some(parent) = path.parent() {
        sandbox::make_dirs(files, &parent).await?;
    }
    match files.alter(sandbox::Alter::MakeDir(path.clone(), perm)).await {
        Err(sandbox::Error::Exists(_)) => Ok(sandbox::make_dirs(files, &path).await?),
        made => Ok(made?),
    }
}
