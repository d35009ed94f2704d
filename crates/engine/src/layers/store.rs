//! The store: `layers/<name>/tree` is a layer, complete and never changed. Most are named by the digest of their content;
//! what snapshots keep is named by chance.
//!
//! A layer is made in a draft, `layers/.tmp-<random>/tree`, and renamed when it is whole. The maker holds a lock on its
//! draft, so the draft of a process that died is known by its lock being free, and is swept at the next open. A layer is
//! removed by turning it into such a draft first: under a digest there is never half a tree.

use std::{
    collections::BTreeSet,
    ffi::CString,
    fs::{self, File},
    io::{self, ErrorKind, Read},
    os::{
        fd::AsFd,
        unix::fs::{DirBuilderExt, PermissionsExt, fchown},
    },
    path::{Path, PathBuf},
};

use cabana_guest::{IdMap, tree};
use cabana_sandbox::{Error, LayerId, Result};
use uuid::Uuid;

use super::{failed, lock::Lock, name::LayerName, writer};
use crate::{DataDir, sweep};

const DRAFT: &str = ".tmp-";
/// In the files of what is sent: a digest reads them, too.
const MAX_HOLES: u64 = 16 << 30;

#[derive(Clone, Debug)]
pub struct Store {
    layers: PathBuf,
    ids: IdMap,
}

/// While one lives, no layer is removed: take it before naming a layer, and drop it when the name is written down.
pub struct Hold {
    _lock: Lock,
}

impl Store {
    /// Opens the store and sweeps what processes that died left in it.
    pub fn open(data: &DataDir, ids: IdMap) -> Result<Self> {
        let store = Self { layers: data.layers(), ids };
        let left = store.names().map_err(failed("sweeping the layer store"))?;
        sweep::beside({
            let store = store.clone();
            move || store.sweep(&left)
        });
        Ok(store)
    }

    pub fn ids(&self) -> IdMap {
        self.ids
    }

    pub fn has(&self, layer: impl Into<LayerName>) -> bool {
        fs::symlink_metadata(self.path(layer)).is_ok_and(|entry| entry.is_dir())
    }

    /// The root of the layer's tree.
    pub fn path(&self, layer: impl Into<LayerName>) -> PathBuf {
        self.layers.join(layer.into().to_string()).join("tree")
    }

    pub(crate) fn open_layer(&self, layer: LayerName) -> Result<File> {
        File::open(self.path(layer)).map_err(failed("opening a layer"))
    }

    /// A name with nothing in it yet. Until something that is used names it, it may be removed.
    pub(crate) fn reserve(&self) -> Result<LayerName> {
        let name = LayerName::new();
        let made = fs::DirBuilder::new().mode(0o700).create(self.layers.join(name.to_string()));
        made.map(|()| name).map_err(failed("making room for a layer"))
    }

    /// Whether the name was reserved, and nothing has come yet.
    pub(crate) fn awaits(&self, layer: LayerName) -> bool {
        self.layers.join(layer.to_string()).is_dir() && !self.has(layer)
    }

    /// Fills a name that was reserved: the directory becomes the layer, by one rename.
    pub(crate) fn fill(&self, layer: LayerName, dir: &Path) -> Result<()> {
        fs::rename(dir, self.path(layer)).map_err(failed("keeping a layer"))
    }

    /// Of what nobody else knows of.
    pub(crate) fn discard(&self, layer: LayerName) -> Result<()> {
        self.remove(layer).map_err(failed("removing a layer"))
    }

    pub fn hold(&self) -> Result<Hold> {
        Lock::shared(&self.layers).map(|_lock| Hold { _lock }).map_err(failed("locking the layer store"))
    }

    pub fn import_tar(&self, tar: &mut dyn Read, on_progress: &mut dyn FnMut(u64)) -> Result<LayerId> {
        let draft = self.draft()?;
        tree::import_tar(draft.root.as_fd(), tar, self.ids, u64::MAX, on_progress)?;
        draft.seal()?.keep()
    }

    pub fn import_dir(&self, from: &Path, on_progress: &mut dyn FnMut(u64)) -> Result<LayerId> {
        let draft = self.draft()?;
        let from = File::open(from).map_err(failed("opening the directory"))?;
        tree::copy(from.as_fd(), draft.root.as_fd(), self.ids, &mut |_, _| true, on_progress)
            .map_err(failed("copying the directory"))?;
        draft.seal()?.keep()
    }

    /// There already: the tar is not read. Content of another digest is refused, and nothing of it kept.
    pub fn import_checked(&self, layer: &LayerId, tar: &mut dyn Read) -> Result<()> {
        if self.has(layer) {
            return Ok(());
        }
        let draft = self.draft()?;
        tree::import_tar(draft.root.as_fd(), tar, self.ids, MAX_HOLES, &mut |_| {})?;
        let sealed = draft.seal()?;
        if sealed.id != *layer {
            return Err(Error::Archive(format!("its content has the digest {}, and {layer} was asked for", sealed.id)));
        }
        sealed.keep().map(drop)
    }

    /// Removes what `used` does not name. It is asked under the lock, when no layer can be between its import and its
    /// first use. While somebody holds the store nothing is removed, and it says `None`; else how many went.
    pub fn remove_unused(&self, used: &mut dyn FnMut() -> Result<BTreeSet<LayerName>>) -> Result<Option<usize>> {
        let Some(alone) = Lock::try_exclusive(&self.layers).map_err(failed("locking the layer store"))? else {
            return Ok(None);
        };
        let used = used()?;
        let mut unnamed = Vec::new();
        for layer in self.all()?.into_iter().filter(|layer| !used.contains(layer)) {
            unnamed.push(self.unname(layer).map_err(failed("removing a layer"))?);
        }
        drop(alone); // nobody waits for what takes long
        for (name, _ours) in &unnamed {
            remove_below(&self.layers, name).map_err(failed("removing a layer"))?;
        }
        Ok(Some(unnamed.len()))
    }

    /// Every layer that is there.
    pub fn all(&self) -> Result<Vec<LayerName>> {
        let names = self.names().map_err(failed("listing the layers"))?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    fn remove(&self, layer: LayerName) -> io::Result<()> {
        let (name, _ours) = self.unname(layer)?;
        remove_below(&self.layers, &name)
    }

    /// Turns a layer into a draft.
    fn unname(&self, layer: LayerName) -> io::Result<(String, Lock)> {
        let from = self.layers.join(layer.to_string());
        let ours = Lock::exclusive(&from)?; // before it is a draft, or a sweeper takes it for a dead one
        let name = format!("{DRAFT}{}", Uuid::new_v4().simple());
        fs::rename(&from, self.layers.join(&name))?;
        Ok((name, ours))
    }

    fn sweep(&self, names: &[String]) {
        for name in names.iter().filter(|name| name.starts_with(DRAFT)) {
            // Where it cannot be had, its maker lives, it is a layer by now, or another sweeper was faster.
            if let Ok(Some(_ours)) = Lock::try_exclusive(&self.layers.join(name)) {
                let _ = remove_below(&self.layers, name); // or the next one does
            }
        }
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.layers)? {
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    pub(crate) fn draft(&self) -> Result<Draft> {
        self.make_draft().map_err(failed("making room for a layer"))
    }

    fn make_draft(&self) -> io::Result<Draft> {
        loop {
            let name = format!("{DRAFT}{}", Uuid::new_v4().simple());
            let at = self.layers.join(&name);
            fs::DirBuilder::new().mode(0o700).create(&at)?;
            // Between the two lines a sweeper may take it for a dead one: then another is made.
            let Some(lock) = not_found(Lock::try_exclusive(&at))?.flatten() else { continue };
            if lock.is_removed()? {
                continue;
            }
            let tree = at.join("tree");
            let root = fs::create_dir(&tree).and_then(|()| File::open(&tree));
            let root = root.inspect_err(|_| drop(remove_below(&self.layers, &name)))?;
            return Ok(Draft { store: self.clone(), name, tree, root, _lock: lock, kept: false });
        }
    }
}

fn not_found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

fn remove_below(dir: &Path, name: &str) -> io::Result<()> {
    let dir = File::open(dir)?;
    match tree::remove(dir.as_fd(), &CString::new(name)?) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// A layer that is being made. Dropped before it is kept, it leaves nothing.
pub(crate) struct Draft {
    store: Store,
    name: String,
    /// Where the tree is made.
    pub(crate) tree: PathBuf,
    pub(crate) root: File,
    /// Tells sweepers that the maker lives.
    _lock: Lock,
    kept: bool,
}

impl Draft {
    /// Ends the making: the root gets its fixed owner, mode and time, so that equal content has an equal digest.
    pub(crate) fn seal(self) -> Result<Sealed> {
        let digest = self.settle().map_err(failed("finishing a layer"))?;
        Ok(Sealed { id: LayerId::from_digest(digest), draft: self })
    }

    /// Ends the making of what has no name by its content: its root stays as it was made.
    pub(crate) fn keep(mut self) -> Result<LayerName> {
        let (layers, name) = (&self.store.layers, LayerName::new());
        fs::rename(layers.join(&self.name), layers.join(name.to_string())).map_err(failed("keeping a layer"))?;
        self.kept = true;
        Ok(name)
    }

    fn settle(&self) -> io::Result<[u8; 32]> {
        let owner = writer::outside(self.store.ids, 0);
        fchown(&self.root, Some(owner), Some(owner))?;
        self.root.set_permissions(fs::Permissions::from_mode(0o755))?;
        rustix::fs::futimens(&self.root, &writer::both(writer::MADE))?;
        let digest = tree::digest(self.root.as_fd(), self.store.ids)?;
        // A name that says what the content is must not survive a power cut that the content did not survive.
        rustix::fs::syncfs(&self.root)?;
        Ok(digest)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.kept {
            // Nobody to tell; the next sweep takes what is left.
            drop(remove_below(&self.store.layers, &self.name));
        }
    }
}

/// A layer that is whole and has its name, but is not in the store yet.
pub(crate) struct Sealed {
    pub(crate) id: LayerId,
    draft: Draft,
}

impl Sealed {
    pub(crate) fn keep(mut self) -> Result<LayerId> {
        let layers = &self.draft.store.layers;
        match fs::rename(layers.join(&self.draft.name), layers.join(self.id.to_string())) {
            Ok(()) => self.draft.kept = true,
            Err(_) if self.draft.store.has(self.id) => {} // somebody has made it already: ours is dropped
            Err(e) => return Err(failed("keeping a layer")(e)),
        }
        Ok(self.id)
    }
}
