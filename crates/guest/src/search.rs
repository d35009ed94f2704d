//! Finding entries by name and lines by content.
//!
//! The same rules as the search that is made of list and read: globs as in `.gitignore` (a name without `/` matches at any
//! depth), what is chosen by a glob is not ignored, and directories are gone through but are no hits.

use std::{
    cell::RefCell,
    ffi::CStr,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use cabana_sandbox::{Error, Hit, IgnoreRules, IgnoreRulesBuilder, MAX_IGNORE_FILE, Result, SandboxPath, Search};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkMatch};
use ignore::overrides::Override;
use rustix::{
    fs::{FileType, OFlags},
    io::Errno,
};

use crate::{
    Accounts, Rooted,
    dir::{Descent, Mounts, is_pseudo, open_below},
    errno::fault,
    names::{Below, Names, Next, Place},
    pattern::Pattern,
    sys,
};

/// Later files win over earlier ones, as in ripgrep.
const IGNORE_FILES: [&CStr; 2] = [c".gitignore", c".ignore"];
/// Of a longer line only the beginning is shown.
const MAX_LINE: usize = 4 * 1024;
/// A file with a line longer than this is no text: it is passed over.
const MAX_HEAP: usize = 16 * 1024 * 1024;
const BATCH: usize = 256;
/// Lines of one file that are kept back: more would be the file's own size in memory.
const MAX_KEPT: usize = 4096;
/// Hits are shown at least this often.
const SHOW: Duration = Duration::from_millis(100);

impl Rooted {
    /// Gives hits to `sink` in batches, by name within each directory, until it says `false` or `max_hits` are found. It is
    /// asked with an empty batch from time to time whether to go on. When
    /// the budget is used up, what was found comes first and then `TimedOut`. Links are not followed; what the identity
    /// may not read has no hits.
    pub fn search(&self, what: &Search, sink: &mut dyn FnMut(Vec<Hit>) -> bool) -> Result<()> {
        let deadline = Instant::now().checked_add(what.budget);
        let mut hunt = Hunt {
            rooted: self,
            accounts: self.names(),
            names: Names::new(),
            root: &what.root,
            globs: what.compiled_globs()?,
            grep: what.checked_grep()?.map(|pattern| Grep::new(pattern, deadline)).transpose()?,
            ignore_files: what.ignore_files,
            hits: Hits {
                sink,
                batch: Vec::new(),
                shown: Instant::now(),
                left: what.max_hits as usize,
                deadline,
                late: false,
                closed: what.max_hits == 0,
            },
        };
        let top = self.open_dir(&what.root)?;
        let walked = hunt.walk(top).map_err(|e| fault(&what.root, "search", e));
        hunt.hits.show_rest();
        match hunt.hits.late {
            true => Err(Error::TimedOut("the search's time was used up: what came before is not all there is")),
            false => walked,
        }
    }
}

struct Hunt<'a> {
    rooted: &'a Rooted,
    accounts: Arc<Accounts>,
    names: Names,
    root: &'a SandboxPath,
    globs: Override,
    grep: Option<Grep>,
    ignore_files: bool,
    hits: Hits<'a>,
}

/// A directory on the way: what is still to be entered in it, and what its ignore files say.
struct Here {
    below: Below,
    rules: Option<IgnoreRules>,
}

impl Hunt<'_> {
    fn walk(&mut self, top: OwnedFd) -> Result<(), Errno> {
        let mut descent = Descent::new(top, self.unopened())?;
        self.open(&mut descent)?;
        while let Some(here) = descent.state() {
            if self.hits.over() {
                break;
            }
            let name = match here.below.next() {
                Next::Enter(name) => name,
                Next::Part(place) => {
                    self.look_at(&mut descent, Some(place))?;
                    continue;
                }
                Next::Leave => {
                    descent.leave()?;
                    continue;
                }
            };
            // Gone, closed to this identity, or too deep to be named: nothing to find there.
            let Ok(fd) = open_below(descent.here()?, &name, Mounts::Cross) else { continue };
            if is_pseudo(&fd) || self.root.below(&descent.path_of(&name)).is_err() {
                continue;
            }
            descent.enter(&name, fd, self.unopened())?;
            self.open(&mut descent)?;
        }
        Ok(())
    }

    fn unopened(&self) -> Here {
        Here { below: self.names.below(Vec::new(), Place::default()), rules: None }
    }

    /// Where the walk is.
    fn path(&self, descent: &Descent<Here>) -> Option<SandboxPath> {
        if descent.path().is_empty() { Some(self.root.clone()) } else { self.root.below(descent.path()).ok() }
    }

    /// Looks at the entries of the directory where the walk is; those of its directories come later.
    fn open(&mut self, descent: &mut Descent<Here>) -> Result<(), Errno> {
        let Some(path) = self.path(descent) else { return Ok(()) };
        if self.ignore_files {
            let above = descent.states().filter_map(|here| here.rules.as_ref());
            let rules = rules_of(descent.here()?, IgnoreRules::builder(&path, above), self.hits.deadline);
            if let Some(here) = descent.state() {
                here.rules = rules;
            }
        }
        self.look_at(descent, None)
    }

    /// At those in the part at a place.
    fn look_at(&mut self, descent: &mut Descent<Here>, at: Option<Place>) -> Result<(), Errno> {
        let Some(path) = self.path(descent) else { return Ok(()) };
        let mut below = Vec::new();
        let part = self.names.part(descent.here()?, at)?;
        for name in part.names {
            if self.hits.over() {
                return Ok(());
            }
            let Ok(path) = path.join(name.to_bytes()) else { continue };
            let Ok(stat) = sys::stat_at(descent.here()?, &name) else { continue };
            let kind = sys::file_type(&stat);
            let is_dir = kind == FileType::Directory;
            let chosen = self.globs.matched(path.as_path(), is_dir);
            let ignored = || chosen.is_none() && ignored(descent, &path, is_dir);
            if chosen.is_ignore() || ignored() {
                continue;
            }
            match is_dir {
                true => below.push(name),
                false if part.again => {}
                false => self.look(descent.here()?, &name, path, kind),
            }
        }
        if let Some(here) = descent.state() {
            here.below = self.names.below(below, part.place);
        }
        Ok(())
    }

    /// What vanished, or may not be read, is no hit.
    fn look(&mut self, dir: BorrowedFd<'_>, name: &CStr, path: SandboxPath, kind: FileType) {
        match &mut self.grep {
            None => {
                if let Ok(info) = self.rooted.entry(&self.accounts, dir, name, path) {
                    self.hits.add(Hit::Entry(info));
                }
            }
            Some(grep) if kind == FileType::RegularFile => {
                if let Ok((file, _)) = sys::open_regular(dir, name, OFlags::RDONLY) {
                    grep.look(&file, &path, &mut self.hits);
                }
            }
            Some(_) => {}
        }
    }
}

/// The innermost rule that says anything decides.
fn ignored(descent: &Descent<Here>, path: &SandboxPath, is_dir: bool) -> bool {
    let decided = |rules: &IgnoreRules| rules.decide(path, is_dir);
    descent.states().rev().filter_map(|here| here.rules.as_ref()).find_map(decided).unwrap_or(false)
}

fn rules_of(dir: BorrowedFd<'_>, mut rules: IgnoreRulesBuilder, deadline: Option<Instant>) -> Option<IgnoreRules> {
    for name in IGNORE_FILES {
        // Missing, closed, or no regular file: then it says nothing.
        let Ok((file, _)) = sys::open_regular(dir, name, OFlags::RDONLY) else { continue };
        let mut text = Vec::new();
        let mut file = io::Read::take(std::fs::File::from(file), MAX_IGNORE_FILE as u64 + 1);
        if io::Read::read_to_end(&mut file, &mut text).is_ok() {
            rules.add_file(&text, || is_over(deadline));
        }
    }
    if is_over(deadline) { None } else { rules.build() }
}

struct Grep {
    matcher: Pattern,
    searcher: Searcher,
}

impl Grep {
    fn new(pattern: &str, deadline: Option<Instant>) -> Result<Self> {
        let matcher = Pattern::new(pattern, deadline)?;
        let searcher = SearcherBuilder::new()
            .binary_detection(BinaryDetection::quit(0))
            .line_number(true)
            .heap_limit(Some(MAX_HEAP))
            .build();
        Ok(Self { matcher, searcher })
    }

    fn look(&mut self, file: &OwnedFd, path: &SandboxPath, hits: &mut Hits<'_>) {
        let hits = RefCell::new(hits); // of the reader and of the lines in turn
        let reader = Timed { file, hits: &hits };
        let mut lines = Lines { path, hits: &hits, found: Vec::new() };
        // A file that cannot be read to its end has no further hits.
        if self.searcher.search_reader(&self.matcher, reader, &mut lines).is_ok() {
            lines.commit();
        }
    }
}

/// The lines of one file, kept back until it is likely to be text: a NUL byte after them takes them back.
struct Lines<'a, 'h> {
    path: &'a SandboxPath,
    hits: &'a RefCell<&'a mut Hits<'h>>,
    found: Vec<Hit>,
}

impl Lines<'_, '_> {
    fn commit(&mut self) {
        let mut hits = self.hits.borrow_mut();
        self.found.drain(..).for_each(|hit| hits.add(hit));
    }
}

impl Sink for &mut Lines<'_, '_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, line: &SinkMatch<'_>) -> io::Result<bool> {
        let text = line.bytes();
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        let text = Bytes::copy_from_slice(&text[..text.len().min(MAX_LINE)]);
        self.found.push(Hit::Line { path: self.path.clone(), line: line.line_number().unwrap_or(0), text });
        if self.found.len() == MAX_KEPT {
            self.commit();
        }
        let hits = self.hits.borrow();
        Ok(!hits.closed && self.found.len() < hits.left)
    }

    fn binary_data(&mut self, _: &Searcher, _: u64) -> io::Result<bool> {
        self.found.clear();
        Ok(false)
    }
}

/// A file that seems to end when the time is used up, or nobody wants hits any more: a terabyte must not hold the search.
struct Timed<'a, 'h> {
    file: &'a OwnedFd,
    hits: &'a RefCell<&'a mut Hits<'h>>,
}

impl io::Read for Timed<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.hits.borrow_mut().over() {
            return Ok(0);
        }
        Ok(sys::retry(|| rustix::io::read(self.file.as_fd(), &mut *buffer))?)
    }
}

struct Hits<'a> {
    sink: &'a mut dyn FnMut(Vec<Hit>) -> bool,
    batch: Vec<Hit>,
    shown: Instant,
    left: usize,
    /// `None` when the budget is longer than time.
    deadline: Option<Instant>,
    late: bool,
    closed: bool,
}

impl Hits<'_> {
    fn add(&mut self, hit: Hit) {
        if self.closed {
            return;
        }
        self.batch.push(hit);
        self.left -= 1;
        if self.left == 0 || self.batch.len() >= BATCH || self.shown.elapsed() >= SHOW {
            self.show();
        }
        self.closed |= self.left == 0;
    }

    fn show(&mut self) {
        self.shown = Instant::now();
        let batch = std::mem::take(&mut self.batch);
        if !(self.sink)(batch) {
            self.closed = true;
        }
    }

    fn show_rest(&mut self) {
        if !self.batch.is_empty() {
            self.show();
        }
    }

    fn over(&mut self) -> bool {
        if !self.closed && self.shown.elapsed() >= SHOW {
            self.show();
        }
        if !self.closed && is_over(self.deadline) {
            self.late = true;
            self.closed = true;
        }
        self.closed
    }
}

fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}
