//! The files of a sandbox, as one user sees them.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Error, Result, SandboxPath, Stream, User};

/// The largest file that is read or written unless the caller says otherwise (XB-7).
pub const DEFAULT_FILE_CAP: u64 = 500 * 1024 * 1024;

#[async_trait]
pub trait Files: Send + Sync {
    /// Of the entry itself: a link is a link, and says where it points.
    async fn stat(&self, path: &SandboxPath) -> Result<FileInfo>;
    /// Follows a link to a directory. In no particular order.
    async fn list(&self, dir: &SandboxPath) -> Result<Stream<Vec<FileInfo>>>;
    /// The file's state when it was opened, and its bytes. Follows links.
    async fn read(&self, path: &SandboxPath, what: Read) -> Result<(FileInfo, Stream<Bytes>)>;
    /// Never makes parent directories. An error in the body, a body over the cap and a body of another length than
    /// promised undo it. Follows links: what is replaced is the target.
    async fn write(&self, path: &SandboxPath, how: Write, body: Stream<Bytes>) -> Result<FileInfo>;
    async fn alter(&self, step: Alter) -> Result<()>;
    /// Armed once it returns: what happens later is seen.
    async fn watch(&self, dir: &SandboxPath, depth: Depth) -> Result<Stream<WatchEvent>>;
    /// The same, for as many of the kernel's watches as the budget gives: where that is not enough, an Overflow is told.
    async fn watch_within(
        &self,
        dir: &SandboxPath,
        depth: Depth,
        _budget: Arc<dyn WatchBudget>,
    ) -> Result<Stream<WatchEvent>> {
        self.watch(dir, depth).await
    }

    // Beside the files where the provider can; `Unsupported` makes the layer on top do it with list, read and write.
    async fn search(&self, _what: Search) -> Result<Stream<Vec<Hit>>> {
        Err(Error::Unsupported { provider: "this one", what: "search beside the files" })
    }
    /// What lies below a directory, each directory before what it holds and by name within it. Links are entries and are not
    /// followed: neither is one that takes the place of a directory or a file meanwhile.
    async fn walk(&self, _dir: &SandboxPath, _what: Walk) -> Result<Stream<Vec<TreeItem>>> {
        Err(Error::Unsupported { provider: "this one", what: "walk beside the files" })
    }
    /// A tar of the directory's content, with names relative to it.
    async fn pack(&self, _dir: &SandboxPath) -> Result<Stream<Bytes>> {
        Err(Error::Unsupported { provider: "this one", what: "pack beside the files" })
    }
    /// Into a directory that exists. A bad archive is refused as a whole where that can be known, and never leaves the directory.
    async fn unpack(&self, _dir: &SandboxPath, _tar: Stream<Bytes>) -> Result<()> {
        Err(Error::Unsupported { provider: "this one", what: "unpack beside the files" })
    }
}

/// What the kernel has few of for all: each directory that is watched takes one.
pub trait WatchBudget: Send + Sync {
    /// Takes one. False: there is none.
    fn take(&self) -> bool;
    fn give_back(&self, watches: usize);
}

#[derive(Clone, Copy, Debug)]
pub struct Read {
    pub from: u64,
    pub len: Option<u64>,
    /// More than this is `TooLarge`, before the first byte.
    pub cap: u64,
}

impl Default for Read {
    fn default() -> Self {
        Self { from: 0, len: None, cap: DEFAULT_FILE_CAP }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Write {
    pub mode: WriteMode,
    /// Of a new file; 0644 if absent. A file that is there keeps its mode unless this names one.
    pub perm: Option<u32>,
    /// How long the body is, if that is known: another length is an error.
    pub len: Option<u64>,
    pub cap: u64,
}

impl Write {
    pub fn new(mode: WriteMode) -> Self {
        Self { mode, perm: None, len: None, cap: DEFAULT_FILE_CAP }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// All or nothing: a temporary file and a rename. A file that is there keeps its mode and owner.
    Replace,
    /// Truncate and write the file that is there: what watchers of a path expect. The body's error leaves what came before it.
    InPlace,
    /// The body's error leaves what came before it too: to cut the file would take what others appended since.
    Append,
    /// `Exists` when there is something already; all or nothing.
    CreateNew,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Alter {
    MakeDir(SandboxPath, u32),
    /// Replaces a file that is there, as rename(2) does.
    Rename(SandboxPath, SandboxPath),
    /// A file, a link or an empty directory.
    Remove(SandboxPath),
    /// The whole tree; links are removed, not followed. Absent is `NotFound`.
    RemoveAll(SandboxPath),
    SetMode(SandboxPath, u32),
    SetOwner(SandboxPath, User),
    Symlink {
        at: SandboxPath,
        text: Vec<u8>,
    },
    /// The whole set: what is not named is removed.
    SetTags(SandboxPath, BTreeMap<String, String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    pub path: SandboxPath,
    pub kind: Kind,
    pub size: u64,
    /// Permission bits with setuid, setgid and sticky: at most 0o7777.
    pub mode: u32,
    /// By name where the sandbox has one, else the number.
    pub owner: String,
    pub group: String,
    pub modified: SystemTime,
    pub link: Option<Link>,
    pub tags: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub text: Vec<u8>,
    /// Where it leads in the end: path, kind and mode. `None` when there is nothing there, or nothing that may be seen.
    pub target: Option<(SandboxPath, Kind, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Depth {
    Here,
    /// New subdirectories too.
    Below,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    Changed(Change, SandboxPath),
    Renamed(SandboxPath, SandboxPath),
    /// Something was missed: look again.
    Overflow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Create,
    Write,
    Remove,
    Chmod,
}

/// How a tree is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// What is there, so many levels deep: one is the directory alone. A directory that may not be read is an entry, and
    /// nothing below it is.
    Entries { levels: u32 },
    /// Everything, and behind the entry of each file its bytes. What may not be read is an error: what is made of it must not
    /// look whole.
    Content,
}

impl Walk {
    /// Without end.
    pub const ALL: Self = Self::Entries { levels: u32::MAX };
}

/// A piece of a tree that is walked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeItem {
    Entry(FileInfo),
    /// Of the file whose entry came last: all pieces together are as long as the file was when it was opened, or shorter if it
    /// was cut meanwhile.
    Content(Bytes),
}

#[derive(Clone, Debug)]
pub struct Search {
    pub root: SandboxPath,
    /// Relative to the root. None at all means every file. A `!` before a glob leaves out what it matches.
    pub globs: Vec<String>,
    /// A regular expression over lines. Without it, entries are found.
    pub grep: Option<String>,
    /// Whether .gitignore and its like are honoured.
    pub ignore_files: bool,
    pub max_hits: u32,
    pub budget: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hit {
    Entry(FileInfo),
    Line { path: SandboxPath, line: u64, text: Bytes },
}
