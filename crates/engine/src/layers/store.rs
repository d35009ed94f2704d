//! The store: `layers/<name>/tree` is a layer, complete and never changed. Most are named by the digest of their content;
//! what snapshots keep is named by chance.
//!
//! A layer is made in a draft, `layers/.tmp-<random>/tree`, and renamed when it is whole. The maker holds a lock on its
//! draft, so the draft of a process that died is known by its lock being free, and is swept at the next open. A layer is
//! removed by turning it into such a draft first: under a digest there is never half a tree.
//!
//! Who removes layers has to know what names them, so it holds the store alone for a moment. Who writes down a name holds it
//! together with others, for as short: what takes long (a copy, a stream at a client's pace) pins its layers by locks of their
//! own, and does not keep the others from being removed.

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
    thread,
    time::{Duration, Instant},
};

use cabana_guest::{
    IdMap,
    tree::{self, Allowance},
};
use cabana_sandbox::{Error, LayerId, Result};
use uuid::Uuid;

use super::{failed, lock::Lock, name::LayerName, writer};
use crate::{DataDir, sweep};

const DRAFT: &str = ".tmp-";
/// In the files of what is sent: a digest reads them, too.
const MAX_HOLES: u64 = 16 << 30;
/// Of who wants the store alone: new holders wait as long.
const PATIENCE: Duration = Duration::from_millis(250);
const RETRY_DELAY: Duration = Duration::from_millis(1);

#[derive(Clone, Debug)]
pub struct Store {
    layers: PathBuf,
    /// A directory whose lock is passed by on the way to a hold, so that holds that overlap keep none who wants the store alone
    /// waiting for ever. It is that of the snapshots, which nothing else locks.
    gate: PathBuf,
    ids: IdMap,
}

/// While one lives, no layer is removed: take it before naming a layer, and drop it when the name is written down.
pub struct Hold {
    _lock: Lock,
}

/// While one lives, these layers stay, whatever names them.
pub(crate) struct Pins {
    _locks: Vec<Lock>,
}

impl Store {
    /// Opens the store and sweeps what processes that died left in it.
    pub fn open(data: &DataDir, ids: IdMap) -> Result<Self> {
        let store = Self { layers: data.layers(), gate: data.snapshots(), ids };
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

    /// A name with nothing in it yet. It stays as long as its lock is held.
    pub(crate) fn reserve(&self) -> Result<(LayerName, Lock)> {
        self.make_name().map_err(failed("making room for a layer"))
    }

    fn make_name(&self) -> io::Result<(LayerName, Lock)> {
        loop {
            let name = LayerName::new();
            let at = self.layers.join(name.to_string());
            fs::DirBuilder::new().mode(0o700).create(&at)?;
            // Between the two lines nothing keeps it: then another is made.
            let Some(lock) = not_found(Lock::try_exclusive(&at))?.flatten() else { continue };
            if !lock.is_removed()? && at.is_dir() {
                return Ok((name, lock));
            }
        }
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
        let held = Lock::shared(&self.gate).and_then(|_passed| Lock::shared(&self.layers));
        held.map(|_lock| Hold { _lock }).map_err(failed("locking the layer store"))
    }

    /// The caller holds the store, or what names them cannot go meanwhile. Those that are not there are left out.
    pub(crate) fn pin(&self, layers: impl IntoIterator<Item = LayerName>) -> Result<Pins> {
        let locks = layers.into_iter().map(|layer| not_found(Lock::shared(&self.layers.join(layer.to_string()))));
        let locks = locks.collect::<io::Result<Vec<_>>>().map_err(failed("locking a layer"))?;
        Ok(Pins { _locks: locks.into_iter().flatten().collect() })
    }

    /// `None`: somebody holds it for longer. Who comes later waits.
    fn alone(&self) -> io::Result<Option<Lock>> {
        let _gate = Lock::exclusive(&self.gate)?;
        let begun = Instant::now();
        loop {
            match Lock::try_exclusive(&self.layers)? {
                None if begun.elapsed() < PATIENCE => thread::sleep(RETRY_DELAY),
                tried => return Ok(tried),
            }
        }
    }

    pub fn import_tar(&self, tar: &mut dyn Read, on_progress: &mut dyn FnMut(u64)) -> Result<LayerId> {
        let draft = self.draft()?;
        tree::import_tar(draft.root.as_fd(), tar, self.ids, &mut Allowance::of_holes(u64::MAX), on_progress)?;
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
        tree::import_tar(draft.root.as_fd(), tar, self.ids, &mut Allowance::of_holes(MAX_HOLES), &mut |_| {})?;
        let sealed = draft.seal()?;
        if sealed.id != *layer {
            return Err(Error::Archive(format!("its content has the digest {}, and {layer} was asked for", sealed.id)));
        }
        sealed.keep().map(drop)
    }

    /// Removes what `used` does not name, and nothing pins. It is asked under the lock, when no layer can be between its import
    /// and its first use. How many went; `None` if there may be more that go later: while somebody holds the store for long nothing
    /// is removed. One that cannot be removed keeps no other: its error comes last.
    pub fn remove_unused(&self, used: &mut dyn FnMut() -> Result<BTreeSet<LayerName>>) -> Result<Option<usize>> {
        let Some(alone) = self.alone().map_err(failed("locking the layer store"))? else { return Ok(None) };
        let used = used()?;
        let (mut unnamed, mut all, mut failures) = (Vec::new(), true, Vec::new());
        for layer in self.all()?.into_iter().filter(|layer| !used.contains(layer)) {
            match not_found(self.unname(layer)) {
                Ok(Some(Some(removed))) => unnamed.push(removed),
                Ok(Some(None)) => all = false,
                Ok(None) => {} // gone already
                Err(error) => failures.push(error),
            }
        }
        drop(alone); // nobody waits for what takes long
        failures.extend(unnamed.iter().filter_map(|(name, _ours)| remove_below(&self.layers, name).err()));
        match failures.into_iter().next() {
            Some(error) => Err(failed("removing a layer")(error)),
            None => Ok(all.then_some(unnamed.len())),
        }
    }

    /// Every layer that is there.
    pub fn all(&self) -> Result<Vec<LayerName>> {
        let names = self.names().map_err(failed("listing the layers"))?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    fn remove(&self, layer: LayerName) -> io::Result<()> {
        match self.unname(layer)? {
            Some((name, _ours)) => remove_below(&self.layers, &name),
            None => Ok(()),
        }
    }

    /// Turns a layer into a draft, unless it is pinned.
    fn unname(&self, layer: LayerName) -> io::Result<Option<(String, Lock)>> {
        let from = self.layers.join(layer.to_string());
        // Before it is a draft, or a sweeper takes it for a dead one.
        let Some(ours) = Lock::try_exclusive(&from)? else { return Ok(None) };
        let name = format!("{DRAFT}{}", Uuid::new_v4().simple());
        fs::rename(&from, self.layers.join(&name))?;
        Ok(Some((name, ours)))
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
            return Ok(Draft { store: self.clone(), name, tree, root, lock: Some(lock), kept: false });
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
    lock: Option<Lock>,
    kept: bool,
}

impl Draft {
    /// Ends the making: the root gets its fixed owner, mode and time, so that equal content has an equal digest.
    pub(crate) fn seal(self) -> Result<Sealed> {
        let digest = self.settle().map_err(failed("finishing a layer"))?;
        Ok(Sealed { id: LayerId::from_digest(digest), draft: self })
    }

    /// Ends the making of what has no name by its content: its root stays as it was made. The layer stays as long as its lock
    /// is held.
    pub(crate) fn keep(mut self) -> Result<(LayerName, Option<Lock>)> {
        let (layers, name) = (&self.store.layers, LayerName::new());
        fs::rename(layers.join(&self.name), layers.join(name.to_string())).map_err(failed("keeping a layer"))?;
        self.kept = true;
        Ok((name, self.lock.take()))
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
