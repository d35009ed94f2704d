//! From a spec to mounts: which layers, in which order, with whose ids.

use std::{
    fs::File,
    os::fd::OwnedFd,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use cabana_guest::{IdMap, Rooted};
use cabana_sandbox::{Base, Defaults, Error, LayerId, Result, SandboxPath, SandboxSpec, Source, User};
use serde::{Deserialize, Serialize};

use crate::{
    data_dir::DataDir,
    home::Record,
    kernel::mounts::detach,
    layers::{self, HostBase, Store, Templates},
    spawner::MAX_LOWER,
    wire::{MountPlan, Place},
};

/// What a sandbox stands on, resolved: a template that is removed or made anew later changes nothing for it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    /// The lowest first.
    pub(crate) layers: Vec<LayerId>,
    pub(crate) trees: Vec<Tree>,
    pub(crate) defaults: Defaults,
    /// Of the host base.
    pub(crate) fingerprint: Option<String>,
}

/// A directory of the host with what hides parts of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tree {
    pub(crate) at: String,
    pub(crate) host: PathBuf,
    pub(crate) mask: Option<LayerId>,
}

impl Plan {
    /// The root, and one for each tree of the host.
    pub(crate) fn overlays(&self) -> usize {
        1 + self.trees.len()
    }

    pub(crate) fn all_layers(&self) -> impl Iterator<Item = LayerId> + '_ {
        self.layers.iter().copied().chain(self.trees.iter().filter_map(|tree| tree.mask))
    }
}

pub(crate) fn trees_of(base: &HostBase) -> Vec<Tree> {
    let tree = |tree: &layers::HostTree| Tree { at: tree.at.clone(), host: tree.host.clone(), mask: tree.mask };
    base.trees.iter().map(tree).collect()
}

pub(crate) fn of(data: &DataDir, store: &Store, host: Option<&HostBase>, spec: &SandboxSpec) -> Result<Plan> {
    let mut plan = match (&spec.base, host) {
        (Base::Host, Some(base)) => Plan {
            layers: base.root_layers.clone(),
            trees: trees_of(base),
            defaults: base.defaults.clone(),
            fingerprint: Some(base.fingerprint.clone()),
        },
        (Base::Host, None) => return Err(Error::Unsupported { provider: "engine", what: "the host base" }),
        (Base::Named(name), _) => {
            let template = Templates::new(data, store).get(name)?;
            Plan { layers: template.layers, trees: Vec::new(), defaults: template.defaults, fingerprint: None }
        }
        (Base::Layers(layers), _) => {
            let defaults = layers::defaults(User::root(), SandboxPath::root());
            Plan { layers: layers.clone(), trees: Vec::new(), defaults, fingerprint: None }
        }
    };
    if plan.layers.is_empty() {
        return Err(Error::invalid("base", "names no layer"));
    }
    if let Some(missing) = plan.layers.iter().find(|layer| !store.has(layer)) {
        return Err(Error::invalid("base", format!("layer {missing} is not in the store: import it first")));
    }
    let mounts = plan.layers.len() + 2 * plan.trees.len() + spec.views.len() + 1;
    if mounts > MAX_LOWER {
        return Err(Error::invalid(
            "base",
            format!("{mounts} layers and views are more than the {MAX_LOWER} that fit"),
        ));
    }
    if let Some(user) = &spec.user {
        plan.defaults.user = user.clone();
    }
    Ok(plan)
}

/// The mounts of a sandbox, detached, each with its plan.
pub(crate) struct Mounts {
    /// Where the overlays are inside.
    pub(crate) overlays: Vec<Vec<u8>>,
    pub(crate) mounts: Vec<MountPlan>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// Opens what a sandbox stands on. `fs` is its own directory.
pub(crate) fn mounts(store: &Store, record: &Record, fs: &Path, storage: IdMap, live: IdMap) -> Result<Mounts> {
    let Record { spec, plan } = record;
    let mut all = Collected { plans: Vec::new(), fds: Vec::new(), live, mapped: storage.base != live.base };
    all.add(fs, Some(storage.base), false, Place::Own)?;
    for layer in plan.layers.iter().rev() {
        all.add(&store.path(layer), Some(storage.base), true, Place::Lower { overlay: 0 })?;
    }
    let mut overlays = vec![b"/".to_vec()];
    for (number, tree) in plan.trees.iter().enumerate() {
        let overlay = number as u32 + 1;
        overlays.push(tree.at.clone().into_bytes());
        if let Some(mask) = &tree.mask {
            all.add(&store.path(mask), Some(storage.base), true, Place::Lower { overlay })?;
        }
        all.add(&tree.host, Some(0), true, Place::Lower { overlay })?;
    }
    for view in &spec.views {
        let at = view.at.as_bytes().to_vec();
        match &view.source {
            Source::Layer(layer) => {
                if view.writable {
                    return Err(Error::invalid("views", "a layer cannot be written to"));
                }
                all.add(&store.path(layer), Some(storage.base), true, Place::View { at, directory: true })?;
            }
            Source::Host(path) => {
                let source = std::fs::metadata(path)
                    .map_err(|error| Error::invalid("views", format!("{}: {error}", path.display())))?;
                let owner = uid_of(store, plan, storage)?;
                let place = Place::View { at, directory: source.is_dir() };
                all.add_owned(path, source.uid(), owner, !view.writable, place)?;
            }
        }
    }
    Ok(Mounts { overlays, mounts: all.plans, fds: all.fds })
}

struct Collected {
    plans: Vec<MountPlan>,
    fds: Vec<OwnedFd>,
    live: IdMap,
    /// An ordinary user's files lie on disk with the ids that they have inside: nothing is mapped.
    mapped: bool,
}

impl Collected {
    fn add(&mut self, path: &Path, from: Option<u32>, read_only: bool, place: Place) -> Result<()> {
        let ids_count = if self.mapped { self.live.count } else { 0 };
        let (ids_from, ids_to) = (from.unwrap_or(0), self.live.base);
        self.push(path, MountPlan { ids_from, ids_to, ids_count, read_only, place })
    }

    /// Files of one owner of the host, as files of one user inside; those of others are nobody's.
    fn add_owned(&mut self, path: &Path, owner: u32, user: u32, read_only: bool, place: Place) -> Result<()> {
        let ids_to = self.live.outside(user).unwrap_or(self.live.base);
        let ids_count = u32::from(self.mapped);
        self.push(path, MountPlan { ids_from: owner, ids_to, ids_count, read_only, place })
    }

    fn push(&mut self, path: &Path, plan: MountPlan) -> Result<()> {
        let mount = detach(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::invalid("base", format!("{} is not there any more", path.display())),
            _ => Error::failed("opening a layer", error),
        })?;
        self.fds.push(mount);
        self.plans.push(plan);
        Ok(())
    }
}

/// The number of the sandbox's default user, by the highest layer that knows it.
fn uid_of(store: &Store, plan: &Plan, storage: IdMap) -> Result<u32> {
    for layer in plan.layers.iter().rev() {
        let root = File::open(store.path(layer)).map_err(|error| Error::failed("opening a layer", error))?;
        if let Some(account) = Rooted::new(root.into(), storage).accounts()?.user(&plan.defaults.user) {
            return Ok(account.uid);
        }
    }
    Err(Error::UnknownUser(plan.defaults.user.clone()))
}
