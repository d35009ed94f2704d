//! What the tests of published escapes share: files of the host that tell when they were reached, and short ways to run code.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use cabana_sandbox::{ExecSpec, SandboxPath};

use crate::inside::unique;

/// A directory of the host with one file, both open to everybody: only the sandbox's root keeps a guest away from them.
pub(crate) struct Canary {
    dir: tempfile::TempDir,
    content: String,
    before: Vec<Marks>,
}

/// Owner, mode, links, size and times.
type Marks = (PathBuf, u32, u32, u32, u64, u64, i64, i64, i64, i64);

impl Canary {
    pub(crate) fn new() -> Self {
        Self::with_content(&unique("canary"))
    }

    pub(crate) fn with_content(content: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("f"), content).unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        fs::set_permissions(dir.path().join("f"), fs::Permissions::from_mode(0o666)).unwrap();
        let before = marks(dir.path());
        Self { dir, content: content.to_owned(), before }
    }

    pub(crate) fn dir(&self) -> &str {
        self.dir.path().to_str().unwrap()
    }

    pub(crate) fn file(&self) -> String {
        format!("{}/f", self.dir())
    }

    pub(crate) fn content(&self) -> &str {
        &self.content
    }

    /// Of a control.
    #[track_caller]
    pub(crate) fn is_touched(&self, what: &str) {
        assert_ne!(marks(self.dir.path()), self.before, "the control does not get through: {what}");
    }

    /// Nothing was written, made, removed, renamed, linked or given away, and no mode was changed.
    #[track_caller]
    pub(crate) fn is_untouched(&self, what: &str) {
        assert_eq!(marks(self.dir.path()), self.before, "{what}");
        assert_eq!(fs::read_to_string(self.file()).unwrap(), self.content, "{what}");
    }
}

fn marks(dir: &Path) -> Vec<Marks> {
    let below = fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path());
    let mut all: Vec<_> = below.chain([dir.to_owned()]).collect();
    all.sort();
    let marks_of = |path: PathBuf| {
        let meta = fs::symlink_metadata(&path).unwrap();
        let (uid, gid, mode, links, size) = (meta.uid(), meta.gid(), meta.mode(), meta.nlink(), meta.size());
        (path, uid, gid, mode, links, size, meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec())
    };
    all.into_iter().map(marks_of).collect()
}

pub(crate) fn python(script: &str) -> ExecSpec {
    ExecSpec::argv(["/usr/bin/python3", "-c", script], SandboxPath::root())
}

pub(crate) fn shell(script: &str) -> ExecSpec {
    ExecSpec::shell(script, SandboxPath::root())
}
