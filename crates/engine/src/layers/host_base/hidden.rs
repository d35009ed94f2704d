//! Programs that people on the host can run by name and sandboxes on the host base cannot, since they live elsewhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use super::super::DEFAULT_PATH;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HiddenTool {
    pub name: String,
    /// Where it really lies.
    pub at: PathBuf,
}

/// Of the directories in `path` (the text of a PATH variable), by name.
pub fn hidden_tools(path: &str) -> Vec<HiddenTool> {
    let visible = |at: &Path| ["/usr", "/bin", "/sbin", "/lib", "/lib64"].iter().any(|tree| at.starts_with(tree));
    let mut hidden = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for (name, at) in DEFAULT_PATH.split(':').chain(path.split(':')).flat_map(|dir| programs(Path::new(dir))) {
        if visible(&at) {
            seen.insert(name);
        } else {
            hidden.entry(name).or_insert(at);
        }
    }
    hidden.retain(|name, _| !seen.contains(name));
    hidden.into_iter().map(|(name, at)| HiddenTool { name, at }).collect()
}

/// Each with the place that its links lead to in the end.
fn programs(dir: &Path) -> Vec<(String, PathBuf)> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let program = |entry: fs::DirEntry| {
        let at = entry.path().canonicalize().ok()?;
        let found = fs::metadata(&at).ok()?;
        let runs = found.is_file() && found.permissions().mode() & 0o111 != 0;
        Some((entry.file_name().into_string().ok()?, at)).filter(|_| runs)
    };
    entries.flatten().filter_map(program).collect()
}
