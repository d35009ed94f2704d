//! Where a sandbox lies on disk: its record, and its own layer.
//!
//! A persistent one has `sandboxes/<id>/` with `record.json` and `fs/`; it is made under another name and renamed, so it is there as
//! a whole or not at all. Ephemeral ones lie below a directory of the process that made them, which is locked
//! as long as that process lives: whoever opens the data directory next removes what a killed one left behind.
//!
//! What gets its name, or loses it, lies in the same directory before and after: the kernel has one lock for all renames of a file
//! system between directories, in which guests may stand in very large numbers.

use std::{
    ffi::CString,
    fs, io,
    os::{fd::AsFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use cabana_guest::{
    IdMap,
    tree::{self, Measured},
};
use cabana_sandbox::{Error, Lifetime, Result, SandboxId, SandboxSpec, VolumeId};
use serde::{Deserialize, Serialize};

use crate::{
    data_dir::DataDir,
    disk::pool,
    fault::{self, Point},
    layers::Lock,
    plan::Plan,
    presence::{self, Presence},
    shelf::Shelf,
    snapshot, sweep,
    volumes::{Volumes, volumes_of},
};

/// How long a lock may outlive the process that had it: one that was killed while it started another has left its
/// descriptors to that one, until its exec.
const LETTING_GO: Duration = Duration::from_millis(500);

/// Begins no id: what has no name yet, and what has it no more.
const DRAFT: &str = ".draft-";
const GOING: &str = ".going-";

pub(crate) struct Homes {
    persistent: PathBuf,
    ephemeral: PathBuf,
    /// An empty directory, for the next process that finds no inode to make its own with.
    spare: PathBuf,
    /// Held until this process ends, by whatever end.
    _alive: Lock,
    ids: IdMap,
    volumes: Volumes,
    pub(crate) shelf: Shelf,
    /// Directories made ahead: making one takes the disk longer than a sandbox may take.
    spares: Mutex<Vec<Draft>>,
}

/// A directory for a sandbox that has no id yet.
struct Draft {
    home: Home,
    owned: Owned,
    overlays: usize,
}

/// One sandbox's directory.
pub(crate) struct Home {
    parent: PathBuf,
    name: String,
}

/// A sandbox's directory that no other process may use meanwhile. What is ephemeral is its process's own anyway.
pub(crate) struct Owned(#[expect(dead_code, reason = "held, and let go by dropping it")] Option<Lock>);

#[cfg(fuzzing)]
impl Owned {
    /// Of a sandbox without a directory.
    pub(crate) fn nothing() -> Self {
        Self(None)
    }
}

/// What a sandbox was made from. Enough to start it again.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    pub(crate) spec: SandboxSpec,
    pub(crate) plan: Plan,
    /// Views were being changed when this was written: what is mounted may not be what the spec says.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) changing: bool,
}

impl Homes {
    pub(crate) fn open(data: &DataDir, ids: IdMap) -> io::Result<Self> {
        let (all, spare) = (data.path().join("ephemeral"), data.path().join("ephemeral.spare"));
        fs::create_dir_all(&all)?;
        let (persistent, volumes) = (data.sandboxes(), Volumes::new(data, ids));
        let (ephemeral, alive) = loop {
            let dir = make_owner(&all, &spare)?;
            // Between the two, another process may have taken it for something left over.
            match Lock::exclusive(&dir) {
                Ok(lock) if dir.exists() => break (dir, lock),
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        };
        sweep::beside({
            let (all, spare, persistent, volumes) = (all.clone(), spare.clone(), persistent.clone(), volumes.clone());
            move || {
                remove_left_over(&all, &spare);
                remove_nameless(&persistent);
                volumes.sweep();
            }
        });
        let _ = fs::create_dir(&spare); // the disk may have no room for it
        let shelf = Shelf::open(data.path().join("shelf"))?;
        Ok(Self { persistent, ephemeral, spare, _alive: alive, ids, volumes, shelf, spares: Mutex::default() })
    }

    fn home(&self, id: &SandboxId) -> Home {
        let ephemeral = Home { parent: self.ephemeral.clone(), name: id.to_string() };
        if ephemeral.path().exists() {
            ephemeral
        } else {
            Home { parent: self.persistent.clone(), name: id.to_string() }
        }
    }

    /// Its own layer.
    pub(crate) fn fs(&self, id: &SandboxId) -> PathBuf {
        self.home(id).fs()
    }

    pub(crate) fn has(&self, id: &SandboxId) -> bool {
        self.home(id).path().exists()
    }

    /// Changes what a sandbox is asked to be. Gives what it was asked before.
    pub(crate) fn change(&self, id: &SandboxId, change: impl FnOnce(&mut SandboxSpec)) -> Result<SandboxSpec> {
        let mut record = self.read(id)?;
        let was = record.spec.clone();
        change(&mut record.spec);
        let written = self.home(id).rewrite(&record);
        written.map(|()| was).map_err(|error| Error::failed("writing the sandbox's record", error))
    }

    /// Changes what a sandbox stands on.
    pub(crate) fn rewrite(&self, id: &SandboxId, record: &Record) -> Result<()> {
        self.home(id).rewrite(record).map_err(|error| Error::failed("writing the sandbox's record", error))
    }

    pub(crate) fn open_home(&self, id: &SandboxId) -> Result<Home> {
        let home = self.home(id);
        if home.path().exists() { Ok(home) } else { Err(Error::NoSandbox(id.clone())) }
    }

    /// Keeps other processes off it; `None` when there is no such sandbox. Blocks.
    pub(crate) fn own(&self, id: &SandboxId) -> Result<Option<Owned>> {
        let home = self.home(id);
        if home.parent == self.ephemeral {
            return Ok(Some(Owned(None)));
        }
        let failed = |error| Error::failed("locking the sandbox's directory", error);
        let begun = Instant::now();
        let lock = loop {
            match Lock::try_exclusive(&home.path()) {
                Ok(None) if begun.elapsed() < LETTING_GO => std::thread::sleep(LETTING_GO / 50),
                lock => break lock,
            }
        };
        match lock {
            Ok(Some(lock)) if lock.is_removed().map_err(failed)? => Ok(None),
            Ok(Some(lock)) => Ok(Some(Owned(Some(lock)))),
            Ok(None) => Err(Error::InUse(id.clone())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// The note of a sandbox that lives, or lived, in whatever process.
    pub(crate) fn presence(&self, id: &SandboxId) -> Option<Presence> {
        self.home(id).presence()
    }

    pub(crate) fn read(&self, id: &SandboxId) -> Result<Record> {
        self.home(id).read()
    }

    pub(crate) fn make(&self, id: &SandboxId, record: &Record) -> Result<(Home, Owned)> {
        if self.has(id) {
            return Err(Error::invalid(
                "id",
                format!("sandbox {id} is there already, stopped: start it or delete it first"),
            ));
        }
        let lifetime = record.spec.lifetime;
        let home = Home { parent: self.parent(lifetime).to_owned(), name: id.to_string() };
        let volumes = volumes_of(&record.spec.views);
        let _held = self.volumes.mark(&volumes, id).inspect_err(|_| self.volumes.unmark(&volumes, id))?;
        let overlays = record.plan.overlays();
        let draft = match self.take_spare(overlays, lifetime) {
            Some(spare) => Ok(spare),
            None => self.draft(overlays, lifetime),
        };
        let made = draft.and_then(|Draft { home: draft, owned, .. }| {
            let written = draft.write(record);
            fault::at(Point::HomeDrafted);
            let named = written.and_then(|()| fs::rename(draft.path(), home.path()));
            named.map(|()| owned).inspect_err(|_| drop(draft.remove()))
        });
        made.map(|owned| (home, owned)).map_err(|error| {
            self.volumes.unmark(&volumes, id);
            match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::NoSpace,
                _ => Error::failed("making the sandbox's directory", error),
            }
        })
    }

    fn parent(&self, lifetime: Lifetime) -> &Path {
        match lifetime {
            Lifetime::Ephemeral => &self.ephemeral,
            Lifetime::Persistent => &self.persistent,
        }
    }

    /// It is owned before it has the sandbox's name: nobody finds it who does not find it taken.
    fn draft(&self, overlays: usize, lifetime: Lifetime) -> io::Result<Draft> {
        let (home, owned) = loop {
            let home = Home { parent: self.parent(lifetime).to_owned(), name: nameless(DRAFT) };
            fs::create_dir(home.path())?;
            // Between the two, another process may have taken it for something left over.
            match home.own(lifetime) {
                Ok(Some(owned)) => break (home, owned),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        };
        match home.fill(overlays, self.ids) {
            Ok(()) => Ok(Draft { home, owned, overlays }),
            Err(error) => {
                let _ = home.remove();
                Err(error)
            }
        }
    }

    fn take_spare(&self, overlays: usize, lifetime: Lifetime) -> Option<Draft> {
        let mut spares = self.spares.lock().unwrap_or_else(PoisonError::into_inner);
        let place = spares.iter().position(|spare| self.is_spare_for(spare, overlays, lifetime))?;
        Some(spares.swap_remove(place))
    }

    fn is_spare_for(&self, spare: &Draft, overlays: usize, lifetime: Lifetime) -> bool {
        spare.overlays == overlays && spare.home.parent == self.parent(lifetime)
    }

    /// Gives one in which all was put away what was made ahead, dressed as it should be: one rename, where to make it anew takes the
    /// disk longer than a start may take. Where that cannot be, it is as it was.
    pub(crate) fn refill(&self, home: &Home, overlays: usize, dress: impl FnOnce(&Path) -> Result<()>) {
        if fs::read_dir(home.fs()).map_or(true, |mut entries| entries.next().is_some()) {
            return;
        }
        let Some(spare) = self.take_spare(overlays, Lifetime::Persistent) else { return };
        let _ = dress(&spare.home.fs()).map(|()| fs::rename(spare.home.fs(), home.fs()));
        let _ = spare.home.remove();
    }

    /// Makes directories ahead, until there are so many for this number of overlays.
    pub(crate) fn make_spares(&self, overlays: usize, lifetime: Lifetime, wanted: usize) {
        let count = || {
            let spares = self.spares.lock().unwrap_or_else(PoisonError::into_inner);
            spares.iter().filter(|spare| self.is_spare_for(spare, overlays, lifetime)).count()
        };
        while count() < wanted {
            let Ok(spare) = self.draft(overlays, lifetime) else { return };
            self.spares.lock().unwrap_or_else(PoisonError::into_inner).push(spare);
        }
    }

    /// Its name goes first: half a sandbox is none. What is left then is removed at the next start.
    pub(crate) fn remove(&self, id: &SandboxId) -> io::Result<()> {
        let home = self.home(id);
        let going = Home { parent: home.parent.clone(), name: nameless(GOING) };
        match fs::rename(home.path(), going.path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            moved => moved?,
        }
        fault::at(Point::DestroyUnnamed);
        self.unmark(&going, id);
        going.remove()
    }

    pub(crate) fn remove_ephemeral(&self, id: &SandboxId) -> io::Result<()> {
        let home = Home { parent: self.ephemeral.clone(), name: id.to_string() };
        self.unmark(&home, id);
        home.remove()
    }

    /// One that was put on the shelf comes back, and has them then.
    fn unmark(&self, home: &Home, id: &SandboxId) {
        if let Ok(record) = home.read()
            && !self.shelf.has(id)
        {
            self.volumes.unmark(&volumes_of(&record.spec.views), id);
        }
    }

    pub(crate) fn volumes(&self) -> &Volumes {
        &self.volumes
    }

    /// Whether a sandbox, of whatever process, has this volume among its views. Who cannot be read may have it.
    pub(crate) fn uses_volume(&self, id: &SandboxId, volume: VolumeId) -> bool {
        let has = |parent| match (Home { parent, name: id.to_string() }).read() {
            Ok(record) => volumes_of(&record.spec.views).contains(&volume),
            Err(error) => !matches!(error, Error::NoSandbox(_)),
        };
        self.parents().any(has) || self.shelf.uses_volume(id, volume)
    }

    /// What its own layer takes on disk.
    pub(crate) fn disk_usage(&self, id: &SandboxId) -> Result<Measured> {
        let failed = |error| Error::failed("measuring the sandbox's layer", error);
        let fs = fs::File::open(self.home(id).fs()).map_err(failed)?;
        tree::usage(fs.as_fd()).map_err(failed)
    }

    /// Those of this process, and the persistent ones: their names are looked at, and nothing in them.
    /// The persistent ones. Where they cannot be listed, that is no empty list.
    pub(crate) fn persistent(&self) -> io::Result<Vec<SandboxId>> {
        let mut ids = Vec::new();
        for entry in fs::read_dir(&self.persistent)? {
            ids.extend(entry?.file_name().into_string().ok().and_then(|name| name.try_into().ok()));
        }
        Ok(ids)
    }

    pub(crate) fn all(&self) -> Vec<Home> {
        let mut all = homes_in(&self.persistent);
        all.extend(homes_in(&self.ephemeral));
        all
    }

    /// Of all sandboxes in the data directory, also the ephemeral ones of other processes.
    pub(crate) fn everybodys(&self) -> impl Iterator<Item = Home> {
        self.parents().flat_map(|parent| homes_in(&parent))
    }

    fn parents(&self) -> impl Iterator<Item = PathBuf> {
        let owners = self.ephemeral.parent().and_then(|all| fs::read_dir(all).ok()).into_iter().flatten().flatten();
        [self.persistent.clone()].into_iter().chain(owners.map(|owner| owner.path()))
    }
}

impl Drop for Homes {
    fn drop(&mut self) {
        for spare in self.spares.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = spare.home.remove();
        }
        retire(&self.ephemeral, &self.spare);
    }
}

impl Home {
    pub(crate) fn path(&self) -> PathBuf {
        self.parent.join(&self.name)
    }

    /// `None` of a draft.
    pub(crate) fn id(&self) -> Option<SandboxId> {
        SandboxId::new(self.name.as_str()).ok()
    }

    pub(crate) fn record(&self) -> PathBuf {
        self.path().join("record.json")
    }

    pub(crate) fn read(&self) -> Result<Record> {
        let failed = |error: io::Error| match (error.kind(), self.id()) {
            (io::ErrorKind::NotFound, Some(id)) => Error::NoSandbox(id),
            _ => Error::failed("reading the sandbox's record", error),
        };
        let text = fs::read(self.record()).map_err(failed)?;
        serde_json::from_slice(&text).map_err(|error| Error::failed("reading the sandbox's record", error))
    }

    pub(crate) fn presence(&self) -> Option<Presence> {
        Presence::read(&self.path())
    }

    /// `None`: it was removed meanwhile.
    fn own(&self, lifetime: Lifetime) -> io::Result<Option<Owned>> {
        let lock = match lifetime {
            Lifetime::Ephemeral => None,
            Lifetime::Persistent => Some(Lock::exclusive(&self.path())?),
        };
        let is_removed = lock.as_ref().map(Lock::is_removed).transpose()?.unwrap_or(false);
        Ok((!is_removed).then_some(Owned(lock)))
    }

    /// What is mounted: the upper and work directories of all overlays.
    pub(crate) fn fs(&self) -> PathBuf {
        self.path().join("fs")
    }

    fn fill(&self, overlays: usize, ids: IdMap) -> io::Result<()> {
        let fs = self.fs();
        pool::make_dir(&fs)?;
        for number in 0..overlays {
            snapshot::make_own(&snapshot::upper(&fs, number), ids)?;
            snapshot::make_own(&snapshot::work(&fs, number), ids)?;
        }
        Ok(())
    }

    /// Of one that is there already: whole or not at all.
    pub(crate) fn rewrite(&self, record: &Record) -> io::Result<()> {
        let new = self.path().join("record.new");
        fs::write(&new, serde_json::to_vec(record)?)?;
        fault::at(Point::RecordDrafted);
        fs::rename(new, self.record())
    }

    /// Notes of an init that is no more, and of a change that was not made.
    pub(crate) fn forget_life(&self) {
        presence::withdraw(&self.path());
        let _ = fs::remove_file(self.path().join("record.new"));
    }

    fn write(&self, record: &Record) -> io::Result<()> {
        fs::write(self.record(), serde_json::to_vec(record)?)
    }

    pub(crate) fn remove(&self) -> io::Result<()> {
        remove_tree(&self.path())
    }
}

/// A draft is no id.
fn homes_in(dir: &Path) -> Vec<Home> {
    let names =
        fs::read_dir(dir).into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let homes = names.map(|name| Home { parent: dir.to_owned(), name });
    homes.filter(|home| home.id().is_some()).collect()
}

/// Without following links, whatever a guest left there, and however deep. Absent is Ok.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let parent = match fs::File::open(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        parent => parent?,
    };
    tree::remove(parent.as_fd(), &CString::new(name.as_bytes())?)
}

/// A directory for what ends with this process.
fn make_owner(all: &Path, spare: &Path) -> io::Result<PathBuf> {
    let dir = all.join(uuid::Uuid::new_v4().simple().to_string());
    match fs::create_dir(&dir) {
        // Guests take each inode that becomes free; that of the spare never is.
        Err(error) if is_full(&error) => take_spare_owner(all, spare, &dir)?,
        made => made?,
    }
    Ok(dir)
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A process that was killed has not put it back: then its own is there.
fn take_spare_owner(all: &Path, spare: &Path, dir: &Path) -> io::Result<()> {
    match fs::rename(spare, dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            remove_left_over(all, spare);
            fs::rename(spare, dir)
        }
        taken => taken,
    }
}

/// Removes what ended with its process, and keeps the directory itself as the spare. One that something is left in stays what it is: as the
/// spare, its sandboxes would be those of the next process.
fn retire(owner: &Path, spare: &Path) {
    let Ok(entries) = fs::read_dir(owner) else { return };
    let mut is_empty = true;
    for entry in entries {
        is_empty &= entry.and_then(|entry| remove_tree(&entry.path())).is_ok();
    }
    if is_empty && fs::rename(owner, spare).is_err() {
        let _ = fs::remove_dir(owner);
    }
}

fn nameless(kind: &str) -> String {
    format!("{kind}{}", uuid::Uuid::new_v4().simple())
}

/// Removes what has no name beside the persistent sandboxes, and is no living process's.
fn remove_nameless(sandboxes: &Path) {
    for entry in fs::read_dir(sandboxes).into_iter().flatten().flatten() {
        let is_nameless =
            entry.file_name().to_str().is_some_and(|name| name.starts_with(DRAFT) || name.starts_with(GOING));
        if is_nameless && let Ok(Some(_lock)) = Lock::try_exclusive(&entry.path()) {
            let _ = remove_tree(&entry.path());
        }
    }
}

fn remove_left_over(all: &Path, spare: &Path) {
    for owner in fs::read_dir(all).into_iter().flatten().flatten() {
        // No process holds it: its own is gone, and so are its sandboxes.
        if let Ok(Some(_lock)) = Lock::try_exclusive(&owner.path()) {
            retire(&owner.path(), spare);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    /// For as long as the test goes on.
    struct Mounted<'a>(&'a Path);

    impl<'a> Mounted<'a> {
        fn tmpfs(at: &'a Path, options: &CStr) -> Self {
            rustix::mount::mount("test", at, "tmpfs", rustix::mount::MountFlags::empty(), options).unwrap();
            Self(at)
        }
    }

    impl Drop for Mounted<'_> {
        fn drop(&mut self) {
            rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH).unwrap();
        }
    }

    #[test]
    fn on_a_disk_without_inodes_the_directory_of_a_killed_process_is_that_of_the_next() {
        let disk = tempfile::tempdir().unwrap();
        let _mounted = Mounted::tmpfs(disk.path(), c"nr_inodes=5");
        let [all, killed, spare] = ["all", "all/killed", "spare"].map(|name| disk.path().join(name));
        fs::create_dir_all(&killed).unwrap();
        fs::write(killed.join("left"), b"").unwrap();
        fs::write(disk.path().join("of a guest"), b"").unwrap();
        let full = fs::create_dir(all.join("another")).unwrap_err();
        assert!(is_full(&full), "the control: {full}");
        let own = make_owner(&all, &spare).unwrap();
        assert!(!killed.exists() && fs::read_dir(own).unwrap().next().is_none());
        assert!(!spare.exists(), "it is taken once");
    }

    #[test]
    fn a_directory_in_which_something_is_left_is_no_spare() {
        let dir = tempfile::tempdir().unwrap();
        let [all, owner, spare] = ["all", "all/ended", "spare"].map(|name| dir.path().join(name));
        let busy = owner.join("sandbox/mounted");
        fs::create_dir_all(&busy).unwrap();
        let mounted = Mounted::tmpfs(&busy, c"");
        remove_left_over(&all, &spare);
        assert!(owner.join("sandbox").exists() && !spare.exists());
        drop(mounted);
        remove_left_over(&all, &spare);
        assert!(!owner.exists() && fs::read_dir(&spare).unwrap().next().is_none());
    }

    fn make(path: &Path) -> PathBuf {
        fs::create_dir_all(path).unwrap();
        path.to_owned()
    }

    #[test]
    fn what_a_killed_process_left_without_a_name_is_removed_and_what_another_makes_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let sandboxes = dir.path();
        let left = [DRAFT, GOING].map(|kind| make(&sandboxes.join(nameless(kind)).join("fs/upper0")));
        let (named, made) = (make(&sandboxes.join("named")), make(&sandboxes.join(nameless(DRAFT))));
        let lock = Lock::exclusive(&made).unwrap();
        remove_nameless(sandboxes);
        assert!(left.iter().all(|left| !left.exists()));
        assert!(named.exists() && made.exists());
        drop(lock);
        remove_nameless(sandboxes);
        assert!(named.exists() && !made.exists());
    }
}
