//! The host base: the machine's own programs as the base of a sandbox, with nothing to download.
//!
//! Of the host only the program trees are shown, `/usr` above all, read-only and in place. Around them lies a generated
//! root, the skeleton: of `/etc` an allow-list, of `/var` what the package tools need, accounts without people. Over each
//! tree lies a mask that hides what not everybody on the host may read, since root inside could.
//!
//! Both layers are made once and reused until the fingerprint of the host changes. The fingerprint looks at places that
//! every installation touches and not at every file: a secret put below `/usr` by hand is masked when the base is next made.

mod etc;
mod fingerprint;
mod hidden;
mod mask;
mod skeleton;

use std::{
    collections::BTreeSet,
    fs::{self, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use cabana_guest::IdMap;
use cabana_sandbox::{Defaults, LayerId, Result, SandboxPath, User};
use serde::{Deserialize, Serialize};

use super::{accounts::USER, defaults, failed, lock::Lock, store::Store, templates};
use crate::DataDir;

pub(crate) use etc::holds_credentials;
pub use hidden::{HiddenTool, hidden_tools};

/// Changed whenever a new version makes another skeleton from the same host.
const RECIPE: u32 = 1;

/// Directories of the root that hold programs. Where they are links into `/usr`, they are links inside too.
const PROGRAM_DIRS: [&str; 7] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32", "libo32"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostBase {
    /// The generated root; the lowest first.
    pub root_layers: Vec<LayerId>,
    /// What is shown of the host, each at its place.
    pub trees: Vec<HostTree>,
    /// What the host was when this was made.
    pub fingerprint: String,
    pub defaults: Defaults,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostTree {
    /// Where it is inside, absolute.
    pub at: String,
    pub host: PathBuf,
    /// A layer of whiteouts to lie over it; `None` when there is nothing to hide.
    pub mask: Option<LayerId>,
}

impl HostBase {
    /// What was made before, if the host is still the same; else it is made now. Two processes at once: one makes it.
    pub fn prepare(data: &DataDir, store: &Store) -> Result<Self> {
        prepare_from(Path::new("/"), data, store)
    }

    /// A short text that is another when programs were installed, upgraded or removed. Costs a few dozen stats.
    pub fn current_fingerprint() -> String {
        fingerprint::of(Path::new("/"))
    }

    /// All that it stands on.
    pub fn layers(&self) -> impl Iterator<Item = LayerId> + '_ {
        self.root_layers.iter().copied().chain(self.trees.iter().filter_map(|tree| tree.mask))
    }
}

/// `host` is the root of the host's file system.
fn prepare_from(host: &Path, data: &DataDir, store: &Store) -> Result<HostBase> {
    let now = fingerprint::of(host);
    if let Some(base) = load(data, store, &now) {
        return Ok(base);
    }
    let _one = lock(data).map_err(failed("locking the host base"))?;
    match load(data, store, &now) {
        Some(base) => Ok(base),
        None => make(host, data, store, now),
    }
}

/// The layers of the base that was made last.
pub(crate) fn layers(data: &DataDir) -> Result<BTreeSet<LayerId>> {
    let Some(record) = Record::read(data) else { return Ok(BTreeSet::new()) };
    Ok(record.base().layers().collect())
}

fn load(data: &DataDir, store: &Store, now: &str) -> Option<HostBase> {
    let record = Record::read(data)?;
    let current = record.recipe == RECIPE && record.fingerprint == now && record.ids == ids(store.ids());
    let base = current.then(|| record.base())?;
    let whole = base.layers().all(|layer| store.has(layer));
    whole.then_some(base)
}

fn make(host: &Path, data: &DataDir, store: &Store, fingerprint: String) -> Result<HostBase> {
    let _hold = store.hold()?;
    let at: Vec<String> = trees(host).map_err(failed("looking at the host's programs"))?;
    let (skeleton, masks) = std::thread::scope(|scope| {
        let masks =
            scope.spawn(|| at.iter().map(|at| mask::make(store, &host.join(&at[1..]))).collect::<Result<Vec<_>>>());
        let skeleton = skeleton::make(store, host);
        let masks = masks.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        skeleton.and_then(|skeleton| Ok((skeleton, masks?)))
    })?;
    let mut shown = Vec::new();
    for (at, mask) in at.into_iter().zip(masks) {
        let mask = mask.map(super::store::Sealed::keep).transpose()?;
        shown.push(HostTree { host: host.join(&at[1..]), at, mask });
    }
    let record =
        Record { recipe: RECIPE, fingerprint, ids: ids(store.ids()), skeleton: skeleton.keep()?, trees: shown };
    record.write(data).map_err(failed("writing down the host base"))?;
    Ok(record.base())
}

/// `/usr`, and those of the root's program directories that are no links into it.
fn trees(host: &Path) -> io::Result<Vec<String>> {
    let mut trees = vec!["/usr".to_owned()];
    for name in PROGRAM_DIRS {
        match fs::symlink_metadata(host.join(name)) {
            Ok(entry) if entry.is_dir() => trees.push(format!("/{name}")),
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(trees)
}

fn lock(data: &DataDir) -> io::Result<Lock> {
    let path = data.templates().join(".host.lock");
    OpenOptions::new().create(true).append(true).mode(0o600).open(&path)?;
    Lock::exclusive(&path)
}

/// `templates/.host.json`. One that cannot be read is as good as none: it is made again.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    recipe: u32,
    fingerprint: String,
    ids: (u32, u32),
    skeleton: LayerId,
    trees: Vec<HostTree>,
}

impl Record {
    fn read(data: &DataDir) -> Option<Self> {
        serde_json::from_slice(&fs::read(data.templates().join(".host.json")).ok()?).ok()
    }

    fn write(&self, data: &DataDir) -> io::Result<()> {
        let new = data.templates().join(".host.new");
        let written = templates::write(&new, self).and_then(|()| fs::rename(&new, data.templates().join(".host.json")));
        written.inspect_err(|_| drop(fs::remove_file(&new)))
    }

    fn base(&self) -> HostBase {
        HostBase {
            root_layers: vec![self.skeleton],
            trees: self.trees.clone(),
            fingerprint: self.fingerprint.clone(),
            defaults: host_defaults(),
        }
    }
}

fn ids(ids: IdMap) -> (u32, u32) {
    (ids.base, ids.count)
}

fn host_defaults() -> Defaults {
    let user = User::new(USER).expect("a plain name");
    defaults(user, SandboxPath::new("/home/user").expect("an absolute path"))
}

#[cfg(test)]
mod tests;
