//! The processes of a sandbox, as the host sees them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::inside::Inside;

/// A process by its number on the host.
pub(crate) struct HostProcess(pub(crate) u32);

impl HostProcess {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let names = fs::read_dir("/proc").expect("the host has processes").flatten().map(|entry| entry.file_name());
        names.filter_map(|name| name.to_str()?.parse().ok().map(Self))
    }

    /// All of a sandbox, by its pid namespace.
    pub(crate) async fn all_of(inside: &Inside) -> Vec<Self> {
        let namespace = inside.root("readlink /proc/self/ns/pid").await.ok();
        Self::all().filter(|process| process.link("ns/pid") == namespace).collect()
    }

    /// When it began: with its number, that is who it is.
    pub(crate) fn began(&self) -> String {
        self.stat_field(19)
    }

    pub(crate) fn session(&self) -> String {
        self.stat_field(3)
    }

    /// The name may hold anything, so it is counted from its end on.
    fn stat_field(&self, fields_behind: usize) -> String {
        let stat = self.read("stat");
        let fields = stat.rsplit(") ").next().unwrap_or_default();
        fields.split(' ').nth(fields_behind).unwrap_or_default().to_owned()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(self.0.to_string()).join(name)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read(self.path(name)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    pub(crate) fn link(&self, name: &str) -> String {
        fs::read_link(self.path(name)).map(|target| target.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// A field of its status.
    pub(crate) fn status(&self, field: &str) -> String {
        let text = self.read("status");
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Process 1 of its pid namespace.
    pub(crate) fn is_init(&self) -> bool {
        self.status("NSpid").split(' ').next_back() == Some("1")
    }

    /// Whether it runs no program of the sandbox: init itself, and what has not come to its exec.
    pub(crate) fn is_ours(&self) -> bool {
        self.read("comm").trim() == "cabana-init"
    }
}
