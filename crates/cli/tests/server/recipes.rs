//! Templates by recipe for tests. To build one takes minutes, so each is built once, and linked into a test's data: as long as
//! no recipe changes, the next run of the tests finds it.
//!
//! `Server::prepared(&[], recipes::base)` is a server with the template `base`.

use std::{
    fs,
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::Command,
};

use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};

use crate::stage::{CABANA, take_base};

/// The template `base`.
pub(crate) fn base(data: &Path) {
    take("base", "base", data);
}

fn take(recipe: &str, template: &str, data: &Path) {
    let built = built(recipe, template);
    if !data.join("version").exists() {
        take_base(data);
    }
    for part in ["layers", "templates"] {
        // A layer never changes, so a link is as good as a copy.
        let copied = Command::new("cp").args(["-al", "--no-clobber"]).arg(built.join(part)).arg(data).status().unwrap();
        assert!(copied.success());
    }
}

/// A data directory with the template, and nothing else that runs in it.
fn built(recipe: &str, template: &str) -> PathBuf {
    let all = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("recipes");
    let data = all.join(digest());
    fs::create_dir_all(&data).unwrap();
    let lock = fs::File::create(data.with_extension("lock")).unwrap();
    flock(lock.as_fd(), FlockOperation::LockExclusive).unwrap();
    if !data.join("templates").join(format!("{template}.json")).exists() {
        let build = ["template", "build", recipe];
        let built = Command::new(CABANA).arg("--data").arg(&data).args(build).env_remove("CABANA_URL").status();
        assert!(built.unwrap().success(), "the template {template} is built");
    }
    data
}

/// Of all that recipes say.
fn digest() -> String {
    let mut files = Vec::new();
    below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes"), &mut files);
    files.sort();
    let all = files.iter().fold(Sha256::new(), |all, file| {
        all.chain_update(file.to_string_lossy().as_bytes()).chain_update(fs::read(file).unwrap())
    });
    all.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn below(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { below(&path, files) } else { files.push(path) }
    }
}
