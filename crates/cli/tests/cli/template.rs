//! Templates from a directory, a tar and standard input, to sandboxes made of them.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    kit::{Ends, cabana},
    root,
};

/// A data directory of its own: names are few.
struct House {
    home: TempDir,
}

impl House {
    fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap() }
    }

    fn cabana(&self, words: &[&str]) -> Command {
        let mut command = cabana();
        command.args(words).env("CABANA_DATA", self.home.path().join("data"));
        command
    }

    fn root(&self) -> PathBuf {
        let root = self.home.path().join("root");
        root::make(&root);
        root
    }

    fn tar(&self, root: &Path) -> PathBuf {
        let tar = self.home.path().join("root.tar");
        root::tar(root, &tar);
        tar
    }
}

#[test]
fn a_template_from_a_directory_is_made_listed_used_and_removed() {
    let house = House::new();
    let root = house.root();
    let words =
        ["template", "add", "mine", "--from", root.to_str().unwrap(), "--user", "maker", "--workdir", "/srv/work"];
    house.cabana(&words).args(["--env", "MOTTO=short and good"]).ends().well();

    let listed = house.cabana(&["template", "ls"]).ends().well();
    let line = listed.lines().find(|line| line.starts_with("mine ")).unwrap_or_else(|| panic!("{listed}"));
    assert!(line.contains("maker") && line.contains("/srv/work") && line.contains(root.to_str().unwrap()), "{listed}");

    let told = house.cabana(&["template", "inspect", "mine"]).ends().well();
    assert!(told.contains("maker") && told.contains("MOTTO") && !told.contains("short and good"), "{told}");
    house.cabana(&["template", "inspect", "other"]).ends().fails(1, "template_not_found");

    let script = "id -u; pwd; echo $MOTTO; cat /etc/motto; echo changed > /etc/motto || echo kept";
    let ended = house.cabana(&["run", "--template", "mine", "--", "sh", "-c", script]).ends();
    assert_eq!(ended.well(), "1234\n/srv/work\nshort and good\nmade by hand\nkept\n");
    let ended = house.cabana(&[
        "run",
        "--template",
        "mine",
        "--user",
        "root",
        "--",
        "sh",
        "-c",
        "echo x > /etc/motto; cat /etc/motto",
    ]);
    assert_eq!({ ended }.ends().well(), "x\n");
    assert_eq!(house.cabana(&["run", "--template", "mine", "--", "cat", "/etc/motto"]).ends().well(), "made by hand\n");

    house.cabana(&["template", "rm", "mine"]).ends().well();
    house.cabana(&["run", "--template", "mine", "--", "true"]).ends().fails(125, "template_not_found");
    house.cabana(&["template", "rm", "mine"]).ends().fails(1, "template_not_found");
}

#[test]
fn a_tar_from_a_file_and_from_standard_input_are_the_same() {
    let house = House::new();
    let tar = house.tar(&house.root());
    house.cabana(&["template", "add", "file", "--from", tar.to_str().unwrap()]).ends().well();
    house.cabana(&["template", "add", "piped", "--from", "-"]).stdin(File::open(&tar).unwrap()).ends().well();
    let said: Value = serde_json::from_str(&house.cabana(&["template", "ls", "--json"]).ends().well()).unwrap();
    let layers = |name: &str| {
        let found = said.as_array().unwrap().iter().find(|template| template["name"] == name);
        found.unwrap_or_else(|| panic!("{said}"))["layers"].clone()
    };
    assert_eq!(layers("file"), layers("piped"));
    assert_eq!(
        house.cabana(&["run", "--template", "piped", "--", "cat", "/etc/motto"]).ends().well(),
        "made by hand\n"
    );
}

#[test]
fn a_name_is_used_once() {
    let house = House::new();
    let root = house.root();
    let add = ["template", "add", "mine", "--from", root.to_str().unwrap()];
    house.cabana(&add).ends().well();
    house.cabana(&add).ends().fails(1, "template_exists");
}

#[test]
fn what_is_no_template_is_refused_and_leaves_nothing() {
    let house = House::new();
    let tar = house.tar(&house.root());
    let whole = fs::read(&tar).unwrap();
    let cut = house.home.path().join("cut.tar");
    fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let empty = house.home.path().join("empty");
    fs::create_dir(&empty).unwrap();
    for (from, code) in [
        (cut.to_str().unwrap(), "archive_invalid"),
        (empty.to_str().unwrap(), "template_invalid"),
        ("/no/such/place", "bad_request"),
        ("debian:Not A Suite", "bad_request"),
    ] {
        house.cabana(&["template", "add", "broken", "--from", from]).ends().fails(1, code);
    }
    house.cabana(&["template", "add", "Bad/Name", "--from", tar.to_str().unwrap()]).ends().fails(1, "bad_request");
    assert_eq!(house.cabana(&["template", "ls"]).ends().well().lines().count(), 1, "only the heading");
}

#[test]
fn a_bad_variable_is_refused_without_its_text() {
    let house = House::new();
    let told =
        house.cabana(&["template", "add", "x", "--from", "/tmp", "--env", "hunter2"]).ends().fails(1, "bad_request");
    assert!(!told.contains("hunter2"));
}
