//! The workspace as it lies on disk: what cargo says of it, and its files.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;

/// One package of the workspace, as `cargo metadata` tells it.
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) manifest: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
}

#[derive(Clone, Debug)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Normal,
    Dev,
    Build,
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests lie in a folder of the workspace").to_owned()
}

pub(crate) fn packages() -> Vec<Package> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--offline", "--no-deps"])
        .current_dir(root())
        .stdin(Stdio::null())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    packages_of(&serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON"))
}

fn packages_of(metadata: &Value) -> Vec<Package> {
    let packages = metadata["packages"].as_array().expect("metadata lists packages");
    assert!(!packages.is_empty(), "metadata lists no package: nothing would be checked");
    packages
        .iter()
        .map(|package| Package {
            name: text(&package["name"]),
            manifest: text(&package["manifest_path"]).into(),
            dependencies: package["dependencies"].as_array().into_iter().flatten().map(dependency_of).collect(),
        })
        .collect()
}

fn dependency_of(dependency: &Value) -> Dependency {
    let kind = match dependency["kind"].as_str() {
        None => Kind::Normal,
        Some("dev") => Kind::Dev,
        Some("build") => Kind::Build,
        Some(other) => panic!("cargo has a new kind of dependency: {other}"),
    };
    Dependency { name: text(&dependency["name"]), kind }
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

/// A file of the project, by its path from the root.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) bytes: Vec<u8>,
}

impl File {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// What git tracks or would track. Outside of a git checkout (a source archive): every file but what builds leave behind.
pub(crate) fn files() -> Vec<File> {
    let root = root();
    let mut paths = git_files(&root).unwrap_or_else(|| walk(&root));
    paths.sort();
    let files: Vec<File> =
        paths.into_iter().filter_map(|path| Some(File { bytes: fs::read(root.join(&path)).ok()?, path })).collect();
    assert!(files.iter().any(|file| file.path == "Cargo.toml"), "the project's files were not found");
    files
}

pub(crate) fn files_ending(suffix: &str) -> Vec<File> {
    files().into_iter().filter(|file| file.path.ends_with(suffix)).collect()
}

fn git_files(root: &Path) -> Option<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let names = output.status.success().then_some(output.stdout)?;
    let paths = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Some(paths.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
}

fn walk(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the project can be read").flatten() {
            let name = entry.file_name();
            let kind = entry.file_type().expect("an entry has a type");
            if kind.is_dir() && name != "target" && name != ".git" && name != "node_modules" {
                folders.push(entry.path());
            } else if kind.is_file() {
                let path = entry.path();
                let path = path.strip_prefix(root).expect("below the root");
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    found
}

#[test]
fn metadata_is_read_with_the_kind_of_each_dependency() {
    let metadata = serde_json::json!({"packages": [{
        "name": "cabana-x", "manifest_path": "/p/Cargo.toml",
        "dependencies": [{"name": "a", "kind": null}, {"name": "b", "kind": "dev"}, {"name": "c", "kind": "build"}],
    }]});
    let kinds: Vec<Kind> = packages_of(&metadata)[0].dependencies.iter().map(|d| d.kind).collect();
    assert_eq!(kinds, [Kind::Normal, Kind::Dev, Kind::Build]);
}

#[test]
fn without_git_the_walk_finds_the_same_sources() {
    let root = root();
    let walked = walk(&root);
    for file in files_ending(".rs") {
        assert!(walked.contains(&file.path), "{} is not walked", file.path);
    }
    assert!(!walked.iter().any(|path| path.starts_with("target/")), "what builds leave behind is walked");
}
