//! A root file system with a shell and little else, made from this machine's own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

pub(crate) fn make(root: &Path) {
    for dir in ["bin", "etc"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    for program in ["sh", "cat", "id"] {
        let at = said("sh", &["-c", &format!("realpath $(PATH=/usr/bin:/bin command -v {program})")]);
        add(root, at.trim(), program);
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nmaker:x:1234:1234::/home/maker:/bin/sh\n").unwrap();
    fs::write(root.join("etc/group"), "root:x:0:\nmaker:x:1234:\n").unwrap();
    fs::write(root.join("etc/motto"), "made by hand\n").unwrap();
}

/// One more program of this machine, with its libraries.
pub(crate) fn add(root: &Path, from: &str, name: &str) {
    copy(Path::new(from), &root.join("bin").join(name));
    libraries(from).iter().for_each(|library| copy(library, &root.join(library.strip_prefix("/").unwrap())));
}

pub(crate) fn tar(root: &Path, tar: &Path) {
    let packed = Command::new("tar").arg("-C").arg(root).args(["--numeric-owner", "-cf"]).arg(tar).arg(".").status();
    assert!(packed.unwrap().success());
}

fn said(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::copy(from, to).unwrap();
}

fn libraries(program: &str) -> Vec<PathBuf> {
    said("ldd", &[program]).split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}
