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
        copy(Path::new(at.trim()), &root.join("bin").join(program));
        libraries(at.trim()).iter().for_each(|library| copy(library, &root.join(library.strip_prefix("/").unwrap())));
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nmaker:x:1234:1234::/home/maker:/bin/sh\n").unwrap();
    fs::write(root.join("etc/group"), "root:x:0:\nmaker:x:1234:\n").unwrap();
    fs::write(root.join("etc/motto"), "made by hand\n").unwrap();
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
