//! Search with list and read alone.

use std::{collections::VecDeque, sync::Arc};

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt, stream};
use ignore::overrides::Override;
use regex::bytes::Regex;
use tokio::time::Instant;

use crate::{
    Error, FileInfo, Files, Hit, IgnoreRules, Kind, MAX_IGNORE_FILE, Read, Result, SandboxPath, Search, Stream,
};

/// Later files win over earlier ones, as in ripgrep.
const IGNORE_FILES: [&[u8]; 2] = [b".gitignore", b".ignore"];
/// Of a longer line only the beginning is looked at and shown: a file without line ends must not fill the memory.
const MAX_LINE: usize = 64 * 1024;

pub(crate) async fn search(files: &Arc<dyn Files>, what: &Search) -> Result<Stream<Vec<Hit>>> {
    let mut hunt = Hunt {
        files: files.clone(),
        globs: what.compiled_globs()?,
        grep: what.checked_grep()?.map(Regex::new).transpose().map_err(|e| Error::invalid("grep", e.to_string()))?,
        ignore_files: what.ignore_files,
        left: what.max_hits as usize,
        deadline: Instant::now() + what.budget,
        dirs: Vec::new(),
        found: VecDeque::new(),
    };
    // The root is listed now, so that a missing one is an error and not an empty search.
    hunt.open(Dir { path: what.root.clone(), rules: Vec::new() }).await?;
    Ok(stream::try_unfold(hunt, |mut hunt| async move { Ok(hunt.next().await?.map(|hits| (hits, hunt))) }).boxed())
}

struct Hunt {
    files: Arc<dyn Files>,
    globs: Override,
    grep: Option<Regex>,
    ignore_files: bool,
    left: usize,
    deadline: Instant,
    dirs: Vec<Dir>,
    found: VecDeque<FileInfo>,
}

/// A directory that is still to be listed, with the rules of the ignore files above it, the outermost first.
struct Dir {
    path: SandboxPath,
    rules: Vec<Arc<IgnoreRules>>,
}

impl Hunt {
    async fn next(&mut self) -> Result<Option<Vec<Hit>>> {
        if self.left == 0 {
            return Ok(None);
        }
        match tokio::time::timeout_at(self.deadline, self.next_hits()).await {
            Ok(hits) => {
                let hits = hits?;
                self.left -= hits.as_ref().map_or(0, Vec::len);
                Ok(hits)
            }
            Err(_) => Err(Error::TimedOut("the search's time was used up: what came before is not all there is")),
        }
    }

    async fn next_hits(&mut self) -> Result<Option<Vec<Hit>>> {
        loop {
            if let Some(entry) = self.found.pop_front() {
                let hits = match &self.grep {
                    None => vec![Hit::Entry(entry)],
                    Some(grep) if entry.kind == Kind::File => lines(&*self.files, &entry.path, grep, self.left).await?,
                    Some(_) => continue,
                };
                if !hits.is_empty() {
                    return Ok(Some(hits));
                }
            } else if let Some(dir) = self.dirs.pop() {
                match self.open(dir).await {
                    // Removed since, or not to be seen by this user: nothing to find there.
                    Ok(()) | Err(Error::NotFound(_) | Error::NotDirectory(_) | Error::Denied(_)) => {}
                    Err(error) => return Err(error),
                }
            } else {
                return Ok(None);
            }
        }
    }

    /// Lists one directory: its files are to be looked at next, its directories later.
    async fn open(&mut self, dir: Dir) -> Result<()> {
        let entries: Vec<FileInfo> = self.files.list(&dir.path).await?.try_concat().await?;
        let mut rules = dir.rules;
        if self.ignore_files {
            rules.extend(self.rules_of(&dir.path, &rules, &entries).await?);
        }
        for entry in entries {
            let is_dir = entry.kind == Kind::Directory;
            let chosen = self.globs.matched(entry.path.as_path(), is_dir);
            if chosen.is_ignore() || (!chosen.is_whitelist() && ignored(&rules, &entry)) {
                continue;
            }
            match is_dir {
                true => self.dirs.push(Dir { path: entry.path, rules: rules.clone() }),
                false => self.found.push_back(entry),
            }
        }
        Ok(())
    }

    async fn rules_of(
        &self,
        dir: &SandboxPath,
        above: &[Arc<IgnoreRules>],
        entries: &[FileInfo],
    ) -> Result<Option<Arc<IgnoreRules>>> {
        let mut rules = IgnoreRules::builder(dir, above.iter().map(Arc::as_ref));
        for name in IGNORE_FILES {
            if !entries.iter().any(|entry| entry.kind == Kind::File && entry.path.name() == name) {
                continue;
            }
            let first = Read { from: 0, len: Some(MAX_IGNORE_FILE as u64 + 1), cap: u64::MAX };
            match self.files.read(&dir.join(name)?, first).await {
                Ok((_, mut body)) => {
                    let mut text = BytesMut::new();
                    while let Some(chunk) = body.try_next().await? {
                        text.extend_from_slice(&chunk);
                    }
                    rules.add_file(&text, || Instant::now() >= self.deadline);
                }
                Err(Error::NotFound(_) | Error::Denied(_) | Error::NotRegular(_) | Error::Busy(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(rules.build().map(Arc::new))
    }
}

/// The innermost rule that says anything decides.
fn ignored(rules: &[Arc<IgnoreRules>], entry: &FileInfo) -> bool {
    let decided = |rules: &Arc<IgnoreRules>| rules.decide(&entry.path, entry.kind == Kind::Directory);
    rules.iter().rev().find_map(decided).unwrap_or(false)
}

/// The file's lines that match, at most `most`. A file with NUL bytes is no text and has none.
async fn lines(files: &dyn Files, path: &SandboxPath, grep: &Regex, most: usize) -> Result<Vec<Hit>> {
    let mut body = match files.read(path, Read { cap: u64::MAX, ..Read::default() }).await {
        Ok((_, body)) => body,
        Err(Error::NotFound(_) | Error::Denied(_) | Error::NotRegular(_) | Error::Busy(_)) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut lines = Lines { path, grep, hits: Vec::new(), line: BytesMut::new(), number: 1 };
    while let Some(chunk) = body.try_next().await? {
        if chunk.contains(&0) {
            return Ok(Vec::new());
        }
        for piece in chunk.split_inclusive(|b| *b == b'\n') {
            lines.push(piece);
            if lines.hits.len() == most {
                return Ok(lines.hits);
            }
        }
    }
    if !lines.line.is_empty() {
        lines.end();
    }
    Ok(lines.hits)
}

struct Lines<'a> {
    path: &'a SandboxPath,
    grep: &'a Regex,
    hits: Vec<Hit>,
    line: BytesMut,
    number: u64,
}

impl Lines<'_> {
    fn push(&mut self, piece: &[u8]) {
        let text = piece.strip_suffix(b"\n").unwrap_or(piece);
        self.line.extend_from_slice(&text[..text.len().min(MAX_LINE - self.line.len())]);
        if text.len() < piece.len() {
            self.end();
        }
    }

    fn end(&mut self) {
        let text: Bytes = self.line.split().freeze();
        if self.grep.is_match(&text) {
            self.hits.push(Hit::Line { path: self.path.clone(), line: self.number, text });
        }
        self.number += 1;
    }
}
