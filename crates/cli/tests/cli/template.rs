//! Templates from a directory, a tar and standard input, to sandboxes made of them.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use crate::kit::{Ends, cabana};

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

    /// A root file system with a shell and little else, made from this machine's own.
    fn root(&self) -> PathBuf {
        let root = self.home.path().join("root");
        for dir in ["bin", "etc"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        for program in ["sh", "cat", "id"] {
            let at = Command::new("sh")
                .args(["-c", &format!("realpath $(PATH=/usr/bin:/bin command -v {program})")])
                .ends()
                .well();
            copy(Path::new(at.trim()), &root.join("bin").join(program));
            libraries(at.trim())
                .iter()
                .for_each(|library| copy(library, &root.join(library.strip_prefix("/").unwrap())));
        }
        fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nmaker:x:1234:1234::/home/maker:/bin/sh\n")
            .unwrap();
        fs::write(root.join("etc/group"), "root:x:0:\nmaker:x:1234:\n").unwrap();
        fs::write(root.join("etc/motto"), "made by hand\n").unwrap();
        root
    }

    fn tar(&self, root: &Path) -> PathBuf {
        let tar = self.home.path().join("root.tar");
        Command::new("tar").arg("-C").arg(root).args(["--numeric-owner", "-cf"]).arg(&tar).arg(".").ends().well();
        tar
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::copy(from, to).unwrap();
}

fn libraries(program: &str) -> Vec<PathBuf> {
    let said = Command::new("ldd").arg(program).ends().stdout;
    said.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
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
    let said = house.cabana(&["template", "ls", "--json"]).ends().well();
    let layers = |name: &str| {
        let at = said.find(&format!("\"name\": \"{name}\"")).unwrap_or_else(|| panic!("{said}"));
        let list = said[at..].split_once("\"layers\": [").unwrap().1;
        list.split_once(']').unwrap().0.to_owned()
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
