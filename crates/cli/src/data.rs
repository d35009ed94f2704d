//! Where the data directory is.

use std::{
    env,
    path::{Path, PathBuf, absolute},
};

use cabana_model::Code;

use crate::{config, failure::Failure};

/// For the verbs that work on it: where the server of this machine has it, if its file says so.
pub(crate) fn of_machine(given: Option<PathBuf>) -> Result<PathBuf, Failure> {
    let given = given.or_else(of_variable);
    // The file is root's, and so is what it names.
    match given {
        None if rustix::process::geteuid().is_root() => directory(config::data_of_file()?),
        given => directory(given),
    }
}

pub(crate) fn of_variable() -> Option<PathBuf> {
    env::var_os("CABANA_DATA").filter(|path| !path.is_empty()).map(PathBuf::from)
}

pub(crate) fn directory(given: Option<PathBuf>) -> Result<PathBuf, Failure> {
    let path = given.or_else(default).ok_or_else(|| {
        let why = "there is no data directory: neither XDG_DATA_HOME nor HOME is set";
        Failure::new(Code::DataDirNotOurs, why)
    })?;
    absolute(&path).map_err(|e| Failure::new(Code::DataDirNotOurs, format!("the data directory {path:?}: {e}")))
}

fn default() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some("/var/lib/cabana".into());
    }
    // The specification of these variables says that a relative path is to be ignored.
    let set = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    set("XDG_DATA_HOME").or_else(|| Some(set("HOME")?.join(".local/share"))).map(|home| home.join("cabana"))
}

/// As it really lies, also when it is not there yet.
pub(crate) fn real(path: &Path) -> PathBuf {
    for above in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (above.canonicalize(), path.strip_prefix(above)) {
            return if rest.as_os_str().is_empty() { real } else { real.join(rest) };
        }
    }
    path.to_owned()
}
