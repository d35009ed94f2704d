//! The patterns of a search, within bounds.
//!
//! A pattern compiles to some hundred times its own length, and ignore files are the guest's: so one file, and all that are
//! in effect for a directory, count for so much and no more. What comes behind that ignores nothing.

use ignore::{
    gitignore::{Gitignore, GitignoreBuilder},
    overrides::{Override, OverrideBuilder},
};

use crate::{Error, Result, SandboxPath, Search};

/// How much of one ignore file counts.
pub const MAX_IGNORE_FILE: usize = 64 << 10;
/// Of the ignore files of a directory and of all above it.
const MAX_IGNORE_BYTES: usize = 128 << 10;
const MAX_IGNORE_PATTERNS: usize = 2000;
/// A longer line is no pattern that any path would match.
const MAX_PATTERN_LEN: usize = 1024;
/// Of the globs of a request together.
const MAX_GLOB_BYTES: usize = 64 << 10;
/// Of a regular expression, before it is looked at.
const MAX_GREP_LEN: usize = 64 << 10;

/// What the ignore files of one directory say.
pub struct IgnoreRules {
    rules: Gitignore,
    size: Size,
}

#[derive(Clone, Copy, Default)]
struct Size {
    bytes: usize,
    patterns: usize,
}

impl Size {
    fn with(self, pattern: &str) -> Option<Self> {
        let more = Self { bytes: self.bytes + pattern.len(), patterns: self.patterns + 1 };
        (more.bytes <= MAX_IGNORE_BYTES && more.patterns <= MAX_IGNORE_PATTERNS).then_some(more)
    }
}

impl IgnoreRules {
    /// `above`: the rules of the directories above, which stay in effect.
    pub fn builder<'a>(dir: &SandboxPath, above: impl Iterator<Item = &'a Self>) -> IgnoreRulesBuilder {
        let above = above.fold(Size::default(), |sum, rules| Size {
            bytes: sum.bytes + rules.size.bytes,
            patterns: sum.patterns + rules.size.patterns,
        });
        IgnoreRulesBuilder { rules: GitignoreBuilder::new(dir.as_path()), above, size: above }
    }

    /// Whether it is ignored, or `None` where no rule says anything.
    pub fn decide(&self, path: &SandboxPath, is_dir: bool) -> Option<bool> {
        let verdict = self.rules.matched(path.as_path(), is_dir);
        (!verdict.is_none()).then(|| verdict.is_ignore())
    }
}

pub struct IgnoreRulesBuilder {
    rules: GitignoreBuilder,
    above: Size,
    size: Size,
}

impl IgnoreRulesBuilder {
    /// Rules of a later file win. `is_over` is asked before each line: then the rest does not count.
    pub fn add_file(&mut self, text: &[u8], is_over: impl Fn() -> bool) {
        for line in String::from_utf8_lossy(whole_lines(text)).lines() {
            if line.trim().is_empty() || line.starts_with('#') || line.len() > MAX_PATTERN_LEN {
                continue;
            }
            let Some(size) = self.size.with(line).filter(|_| !is_over()) else { return };
            // A line that is no pattern is left out, as git does.
            if self.rules.add_line(None, line).is_ok() {
                self.size = size;
            }
        }
    }

    pub fn build(self) -> Option<IgnoreRules> {
        let rules = self.rules.build().ok().filter(|rules| !rules.is_empty())?;
        let bytes = self.size.bytes - self.above.bytes;
        let patterns = self.size.patterns - self.above.patterns;
        Some(IgnoreRules { rules, size: Size { bytes, patterns } })
    }
}

/// As many as count: half a line would be another pattern.
fn whole_lines(text: &[u8]) -> &[u8] {
    match text.get(..MAX_IGNORE_FILE) {
        Some(begin) if text.len() > MAX_IGNORE_FILE => {
            let end = begin.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
            &begin[..end]
        }
        _ => text,
    }
}

impl Search {
    /// Its globs, compiled.
    pub fn compiled_globs(&self) -> Result<Override> {
        let invalid = |error: ignore::Error| Error::invalid("globs", error.to_string());
        if self.globs.iter().map(String::len).sum::<usize>() > MAX_GLOB_BYTES {
            return Err(Error::invalid("globs", format!("must be at most {MAX_GLOB_BYTES} bytes together")));
        }
        let mut globs = OverrideBuilder::new(self.root.as_path());
        for glob in &self.globs {
            if glob.len() > MAX_PATTERN_LEN {
                return Err(Error::invalid("globs", format!("must be at most {MAX_PATTERN_LEN} bytes each")));
            }
            globs.add(glob).map_err(invalid)?;
        }
        globs.build().map_err(invalid)
    }

    /// Its regular expression, if it is one that may be looked at.
    pub fn checked_grep(&self) -> Result<Option<&str>> {
        match self.grep.as_deref() {
            Some(grep) if grep.len() > MAX_GREP_LEN => {
                Err(Error::invalid("grep", format!("must be at most {MAX_GREP_LEN} bytes")))
            }
            grep => Ok(grep),
        }
    }
}
