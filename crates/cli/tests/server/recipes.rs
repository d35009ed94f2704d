//! Templates by recipe for tests. To build one takes minutes, so each is built once, and linked into a test's data: as long as
//! no recipe changes, the next run of the tests finds it.
//!
//! `Server::prepared(&[], recipes::base)` is a server with the template `base`, `recipes::interpreter` that of the code
//! interpreter too.

use std::{
    fs,
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::Command,
};

use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};

use crate::stage::{CABANA, take_base};

/// A recipe, and its template.
type Made = (&'static str, &'static str);

const BASE: Made = ("base", "base");
const INTERPRETER: Made = ("code-interpreter", "code-interpreter-v1");

/// The template `base`.
pub(crate) fn base(data: &Path) {
    take(&[BASE], data);
}

/// The template of the code interpreter, and `base`.
pub(crate) fn interpreter(data: &Path) {
    take(&[BASE, INTERPRETER], data);
}

fn take(recipes: &[Made], data: &Path) {
    let built = built(recipes);
    if !data.join("version").exists() {
        take_base(data);
    }
    link(&built, data);
}

/// A layer never changes, so a link is as good as a copy.
fn link(from: &Path, data: &Path) {
    for part in ["layers", "templates"] {
        let copied = Command::new("cp").args(["-al", "--no-clobber"]).arg(from.join(part)).arg(data).status().unwrap();
        assert!(copied.success());
    }
}

/// A data directory with the templates, each of which may stand on the one before, and nothing that runs in it.
fn built(recipes: &[Made]) -> PathBuf {
    let (&(recipe, template), before) = recipes.split_last().unwrap();
    let all = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("recipes");
    let data = all.join(digest(recipes));
    fs::create_dir_all(&all).unwrap();
    let lock = fs::File::create(data.with_extension("lock")).unwrap();
    flock(lock.as_fd(), FlockOperation::LockExclusive).unwrap();
    if data.join("templates").join(format!("{template}.json")).exists() {
        return data;
    }
    if !before.is_empty() && !data.exists() {
        fs::create_dir(&data).unwrap();
        let below = built(before);
        for part in ["ids", "version"] {
            fs::copy(below.join(part), data.join(part)).unwrap();
        }
        link(&below, &data);
    }
    let build = ["template", "build", recipe];
    let built = Command::new(CABANA).arg("--data").arg(&data).args(build).env_remove("CABANA_URL").status();
    assert!(built.unwrap().success(), "the template {template} is built");
    data
}

/// Of all that these recipes say.
fn digest(recipes: &[Made]) -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes");
    let mut all = Sha256::new();
    for (recipe, _) in recipes {
        let mut files = vec![dir.join(format!("{recipe}.toml"))];
        below(&dir.join(recipe), &mut files);
        files.sort();
        all = files.iter().fold(all, |all, file| all.chain_update(fs::read(file).unwrap()));
    }
    all.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// A recipe may have no more than its own file.
fn below(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() { below(&path, files) } else { files.push(path) }
    }
}
