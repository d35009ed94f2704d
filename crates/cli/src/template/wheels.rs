//! Packages of Python for a recipe, fetched by the machine's own pip: it knows where this machine gets them from.
//!
//! Wheels alone, which are archives: nothing of them runs here. What they hold is installed inside.

use std::{
    env::consts::ARCH,
    fs,
    io::{BufRead, BufReader, ErrorKind},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use cabana_model::Code;
use cabana_sandbox::{Error, SandboxId};

use super::{build::Lines, recipe::Wheels};
use crate::failure::Failure;

/// The C library of the Debian inside: wheels for an older one run on it too.
const GLIBC_MINOR: u32 = 36;

/// A directory of wheels, which goes with it.
pub(super) struct Fetched {
    dir: PathBuf,
    files: Vec<PathBuf>,
}

impl Fetched {
    pub(super) fn files(&self) -> &[PathBuf] {
        &self.files
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

pub(super) fn fetch(wheels: &Wheels, tell: &mut dyn FnMut(&str)) -> Result<Fetched, Failure> {
    let dir = std::env::temp_dir().join(format!("cabana-wheels-{}", SandboxId::random()));
    let made = fs::DirBuilder::new().mode(0o700).create(&dir);
    made.map_err(|error| Error::failed("making room for the wheels", error))?;
    let mut fetched = Fetched { dir, files: Vec::new() };
    run(wheels, &fetched.dir, tell)?;
    let listed = fs::read_dir(&fetched.dir).and_then(|dir| dir.map(|entry| Ok(entry?.path())).collect());
    fetched.files = listed.map_err(|error| Error::failed("listing the wheels", error))?;
    fetched.files.sort();
    Ok(fetched)
}

/// Pip, and not what lies in the working directory under the name of one of its modules: others may write there.
fn pip() -> Command {
    let mut command = Command::new("python3");
    command.args(["-I", "-m", "pip"]);
    command
}

fn run(wheels: &Wheels, into: &Path, tell: &mut dyn FnMut(&str)) -> Result<(), Failure> {
    let missing = || {
        let why = "pip is not there to fetch Python's packages: `apt-get install python3-pip`";
        Failure::new(Code::TemplateInvalid, why).with_hint("Install it, and try again.")
    };
    let mut command = pip();
    command.args(["download", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]);
    command.args(["--no-deps", "--only-binary=:all:", "--implementation=cp", "--python-version", &wheels.python]);
    let abi = format!("cp{}", wheels.python.replace('.', ""));
    command.args(["--abi", &abi, "--abi", "abi3", "--abi", "none"]);
    for minor in 5..=GLIBC_MINOR {
        command.args(["--platform", &format!("manylinux_2_{minor}_{ARCH}")]);
    }
    command.args(["--platform", &format!("manylinux2014_{ARCH}"), "--dest"]).arg(into).args(&wheels.packages);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => missing(),
        _ => Error::failed("starting pip", error).into(),
    })?;
    // Its errors are few, and fit into the pipe; they are read once it has said all else.
    let mut lines = Lines::default();
    if let Some(said) = child.stdout.take() {
        for line in BufReader::new(said).split(b'\n').map_while(Result::ok) {
            lines.take(&line, &mut *tell);
            lines.take(b"\n", &mut *tell);
        }
    }
    let ended = child.wait_with_output().map_err(|error| Error::failed("waiting for pip", error))?;
    if ended.status.success() {
        return Ok(());
    }
    if String::from_utf8_lossy(&ended.stderr).contains("No module named pip") {
        return Err(missing());
    }
    lines.take(&ended.stderr, tell);
    let why = format!("pip failed ({}). Its last words:\n{}", ended.status, Vec::from(lines.end()).join("\n"));
    Err(Failure::new(Code::TemplateInvalid, why).with_hint("Look whether this machine reaches its package index."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_in_the_working_directory_is_not_run() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("pip.py"), "raise SystemExit(77)").unwrap();
        let run =
            |mut command: Command| command.arg("--version").current_dir(dir.path()).output().unwrap().status.code();
        let mut open = Command::new("python3");
        open.args(["-m", "pip"]);
        assert_eq!((run(open), run(pip())), (Some(77), Some(0)));
    }
}
