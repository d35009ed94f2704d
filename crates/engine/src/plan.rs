//! From a spec to mounts: which layers, in which order, with whose ids.

use std::{
    fs::File,
    os::fd::{AsFd, OwnedFd},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use cabana_guest::{IdMap, Rooted};
use cabana_sandbox::{Base, Defaults, Error, LayerId, Result, SandboxPath, SandboxSpec, Source, Template, User, View};
use serde::{Deserialize, Serialize};

use crate::{
    data_dir::DataDir,
    home::Record,
    kernel::mounts::{detach, detach_open},
    layers::{self, HostBase, LayerName, Store, Templates},
    snapshot::Snapshots,
    spawner::MAX_LOWER,
    views,
    volumes::Volumes,
    wire::{Ids, IdsShown, Place},
};

/// What a sandbox stands on, resolved: a template that is removed or made anew later changes nothing for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    /// The lowest first: those of the template, and above them what snapshots kept.
    pub(crate) layers: Vec<LayerName>,
    pub(crate) trees: Vec<Tree>,
    pub(crate) defaults: Defaults,
    /// Whether the template says so.
    pub(crate) sudo: bool,
    /// Of the host base.
    pub(crate) fingerprint: Option<String>,
    /// On top of the layers: certificates of the operator's own.
    pub(crate) trust: Option<LayerId>,
}

/// A directory of the host with what hides parts of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tree {
    pub(crate) at: String,
    pub(crate) host: PathBuf,
    pub(crate) mask: Option<LayerId>,
    /// What snapshots kept of changes to it; the lowest first.
    pub(crate) layers: Vec<LayerName>,
}

impl Plan {
    /// The root, and one for each tree of the host.
    pub(crate) fn overlays(&self) -> usize {
        1 + self.trees.len()
    }

    pub(crate) fn all_layers(&self) -> impl Iterator<Item = LayerName> + '_ {
        let tree = |tree: &Tree| tree.layers.clone().into_iter().chain(tree.mask.map(LayerName::Content));
        let trust = self.trust.map(LayerName::Content);
        self.layers.iter().copied().chain(trust).chain(self.trees.iter().flat_map(tree))
    }

    /// The layers of one overlay, without what a tree of the host has below them.
    pub(crate) fn stack(&self, overlay: usize) -> &[LayerName] {
        match overlay.checked_sub(1) {
            None => &self.layers,
            Some(tree) => &self.trees[tree].layers,
        }
    }

    pub(crate) fn stack_mut(&mut self, overlay: usize) -> &mut Vec<LayerName> {
        match overlay.checked_sub(1) {
            None => &mut self.layers,
            Some(tree) => &mut self.trees[tree].layers,
        }
    }

    /// Where the overlays are inside.
    pub(crate) fn places(&self) -> Vec<Vec<u8>> {
        [b"/".to_vec()].into_iter().chain(self.trees.iter().map(|tree| tree.at.clone().into_bytes())).collect()
    }

    /// Whether so many views fit beside what it stands on.
    pub(crate) fn check_room(&self, views: &[View]) -> Result<()> {
        let mounts = self.mounts() + views.len();
        let why = || format!("{mounts} layers and views are more than the {MAX_LOWER} that fit");
        if mounts > MAX_LOWER { Err(Error::invalid("base", why())) } else { Ok(()) }
    }

    /// Without views, which are not the plan's.
    pub(crate) fn mounts(&self) -> usize {
        2 + self.layers.len() + self.trees.iter().map(|tree| tree.layers.len() + 2).sum::<usize>()
    }

    /// The host's programs as they are now. What was changed of them stays changed.
    pub(crate) fn rebase(&mut self, base: &HostBase) {
        let mut trees = trees_of(base);
        for tree in &mut trees {
            let was = self.trees.iter_mut().find(|was| was.at == tree.at);
            tree.layers = was.map(|was| std::mem::take(&mut was.layers)).unwrap_or_default();
        }
        self.trees = trees;
    }
}

fn trees_of(base: &HostBase) -> Vec<Tree> {
    let tree = |tree: &layers::HostTree| Tree {
        at: tree.at.clone(),
        host: tree.host.clone(),
        mask: tree.mask,
        layers: Vec::new(),
    };
    base.trees.iter().map(tree).collect()
}

/// `host` gives the host base, which takes long where it has to be made.
pub(crate) fn of(
    data: &DataDir,
    store: &Store,
    host: &dyn Fn() -> Result<Arc<HostBase>>,
    spec: &SandboxSpec,
) -> Result<Plan> {
    let named = |layers: &[LayerId]| layers.iter().map(LayerName::from).collect();
    let mut plan = match &spec.base {
        Base::Host => {
            let base = host()?;
            Plan {
                layers: named(&base.root_layers),
                trees: trees_of(&base),
                defaults: base.defaults.clone(),
                sudo: false,
                fingerprint: Some(base.fingerprint.clone()),
                trust: None,
            }
        }
        Base::Snapshot(name) => {
            let mut plan = Snapshots::new(data, store).plan(*name)?;
            if plan.fingerprint.is_some() {
                plan.rebase(&*host()?);
            }
            plan
        }
        Base::Named(name) => {
            let Template { layers, defaults, sudo, .. } = Templates::new(data, store).get(name)?;
            Plan { layers: named(&layers), trees: Vec::new(), defaults, sudo, fingerprint: None, trust: None }
        }
        Base::Layers(layers) => {
            let defaults = layers::defaults(User::root(), SandboxPath::root());
            Plan { layers: named(layers), trees: Vec::new(), defaults, sudo: false, fingerprint: None, trust: None }
        }
    };
    if plan.layers.is_empty() {
        return Err(Error::invalid("base", "names no layer"));
    }
    check_layers(store, &plan)?;
    views::check(&spec.views, data.path(), store, &Volumes::new(data, store.ids()))?;
    plan.check_room(&spec.views)?;
    if let Some(user) = &spec.user {
        plan.defaults.user = user.clone();
    }
    Ok(plan)
}

/// What a sandbox stands on may have vanished since it was made.
fn check_layers(store: &Store, plan: &Plan) -> Result<()> {
    match plan.all_layers().find(|layer| !store.has(layer)) {
        Some(missing) => {
            let why =
                format!("layer {missing} is not in the store: import it, or add the template again that it is from");
            Err(Error::invalid("base", why))
        }
        None => Ok(()),
    }
}

/// The mounts of a sandbox, detached: what init is told, and what must be done to them before.
pub(crate) struct Mounts {
    /// Where the overlays are inside.
    pub(crate) overlays: Vec<Vec<u8>>,
    /// What can be written where the root cannot.
    pub(crate) writable: Vec<Vec<u8>>,
    pub(crate) all: Vec<Mount>,
}

pub(crate) struct Mount {
    pub(crate) fd: OwnedFd,
    pub(crate) place: Place,
    pub(crate) read_only: bool,
    pub(crate) owners: Owners,
}

/// Whose the files of a mount are inside.
#[derive(Clone, Copy)]
pub(crate) enum Owners {
    /// They lie in the storage range.
    Stored,
    /// They are the host's, and keep their numbers.
    Hosts,
    /// Those of one owner of the host are one user's inside; those of others are nobody's.
    One { host: Ids, inside: Ids },
}

/// Opens what a sandbox stands on. `fs` is its own directory.
pub(crate) fn mounts(data: &DataDir, store: &Store, record: &Record, fs: &Path, storage: IdMap) -> Result<Mounts> {
    let plan = &record.plan;
    check_layers(store, plan)?;
    let mut all = vec![open(fs, Place::Own, false, Owners::Stored)?];
    let trust = plan.trust.map(LayerName::Content);
    for layer in trust.iter().chain(plan.layers.iter().rev()) {
        all.push(open(&store.path(layer), Place::Lower { overlay: 0 }, true, Owners::Stored)?);
    }
    for (number, tree) in plan.trees.iter().enumerate() {
        let overlay = number as u32 + 1;
        for layer in tree.layers.iter().rev() {
            all.push(open(&store.path(layer), Place::Lower { overlay }, true, Owners::Stored)?);
        }
        if let Some(mask) = &tree.mask {
            all.push(open(&store.path(mask), Place::Lower { overlay }, true, Owners::Stored)?);
        }
        all.push(open(&tree.host, Place::Lower { overlay }, true, Owners::Hosts)?);
    }
    all.extend(open_views(data, store, record, storage)?);
    Ok(Mounts { overlays: record.plan.places(), writable: writable(&record.plan.defaults), all })
}

/// Opens what is shown of the host, of layers and of volumes: the outer ones first, with a place in them for the inner ones.
pub(crate) fn open_views(data: &DataDir, store: &Store, record: &Record, storage: IdMap) -> Result<Vec<Mount>> {
    let Record { spec, plan, .. } = record;
    views::check(&spec.views, data.path(), store, &Volumes::new(data, storage))?;
    let open = |view| open_view(data, store, plan, view, storage);
    let views = views::in_order(&spec.views).into_iter().map(open).collect::<Result<Vec<_>>>()?;
    views::make_places(&views)?;
    Ok(views)
}

fn open_view(data: &DataDir, store: &Store, plan: &Plan, view: &View, storage: IdMap) -> Result<Mount> {
    let at = view.at.as_bytes().to_vec();
    match &view.source {
        Source::Layer(layer) => open(&store.path(layer), Place::View { at, directory: true }, true, Owners::Stored),
        Source::Volume(volume) => {
            let tree = Volumes::new(data, storage).tree(*volume);
            open(&tree, Place::View { at, directory: true }, !view.writable, Owners::Stored)
        }
        Source::Host(path) => {
            let source = views::open(path, data.path())?;
            // The group, too: what has an id that is not mapped, be it only the group's, cannot be written to.
            let host = Ids { user: source.meta.uid(), group: source.meta.gid() };
            let owners = Owners::One { host, inside: ids_of(store, plan, storage)? };
            let fd =
                detach_open(source.fd.as_fd()).map_err(|error| Error::failed("opening a directory to show", error))?;
            let place = Place::View { at, directory: source.meta.is_dir() };
            Ok(Mount { fd, place, read_only: !view.writable, owners })
        }
    }
}

/// Where a session works, and what is there for a while. Not all of it, where a session works in the root itself.
fn writable(defaults: &Defaults) -> Vec<Vec<u8>> {
    let mut all = vec![layers::WORKSPACE.into(), b"/tmp".to_vec(), b"/var/tmp".to_vec()];
    let workdir = defaults.workdir.as_bytes();
    if workdir != b"/" && !all.iter().any(|path| path == workdir) {
        all.push(workdir.to_vec());
    }
    all
}

fn open(path: &Path, place: Place, read_only: bool, owners: Owners) -> Result<Mount> {
    let fd = detach(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::invalid("base", format!("{} is not there any more", path.display())),
        _ => Error::failed("opening a layer", error),
    })?;
    Ok(Mount { fd, place, read_only, owners })
}

impl Owners {
    /// How that is shown in a live range.
    pub(crate) fn shown(self, storage: IdMap, live: IdMap) -> IdsShown {
        let outside = |id| live.outside(id).unwrap_or(live.base);
        match self {
            Self::Stored => IdsShown { from: Ids::both(storage.base), to: Ids::both(live.base), count: live.count },
            Self::Hosts => IdsShown { from: Ids::both(0), to: Ids::both(live.base), count: live.count },
            Self::One { host, inside } => {
                IdsShown { from: host, to: Ids { user: outside(inside.user), group: outside(inside.group) }, count: 1 }
            }
        }
    }
}

/// The numbers of the sandbox's default user, by the highest layer that knows it.
fn ids_of(store: &Store, plan: &Plan, storage: IdMap) -> Result<Ids> {
    for layer in plan.layers.iter().rev() {
        let root = File::open(store.path(layer)).map_err(|error| Error::failed("opening a layer", error))?;
        if let Some(account) = Rooted::new(root.into(), storage).accounts()?.user(&plan.defaults.user) {
            return Ok(Ids { user: account.uid, group: account.gid });
        }
    }
    Err(Error::UnknownUser(plan.defaults.user.clone()))
}
