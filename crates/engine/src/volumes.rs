//! Volumes: directories that outlive the sandboxes which see them, and that any number of sandboxes see at once.
//!
//! `volumes/<id>/tree` is what they see; it lies in the storage range, as layers do. `used/` beside it has a mark for each sandbox
//! with the volume among its views, made before the sandbox's record says so and removed after. So whoever removes a volume looks
//! at its marks, and not at every sandbox; a mark that a sudden end left behind is known by the record that does not say so.

use std::{
    collections::BTreeSet,
    ffi::CString,
    fs::{self, File},
    io::{self, ErrorKind},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::{DirBuilderExt, PermissionsExt, chown},
    },
    path::{Path, PathBuf},
};

use cabana_guest::{
    IdMap,
    tree::{self, Measured},
};
use cabana_sandbox::{Error, Result, SandboxId, Source, View, VolumeId};
use uuid::Uuid;

use crate::{
    data_dir::DataDir,
    disk::pool,
    layers::{Lock, failed},
};

const DRAFT: &str = ".tmp-";

#[derive(Clone, Debug)]
pub(crate) struct Volumes {
    dir: PathBuf,
    ids: IdMap,
}

/// While one lives, none of these volumes is removed.
pub(crate) struct Held(#[expect(dead_code, reason = "held, and let go by dropping it")] Vec<Lock>);

/// The volumes among views.
pub(crate) fn volumes_of(views: &[View]) -> BTreeSet<VolumeId> {
    let volume = |view: &View| match view.source {
        Source::Volume(volume) => Some(volume),
        Source::Host(_) | Source::Layer(_) => None,
    };
    views.iter().filter_map(volume).collect()
}

impl Volumes {
    pub(crate) fn new(data: &DataDir, ids: IdMap) -> Self {
        Self { dir: data.volumes(), ids }
    }

    /// What is seen.
    pub(crate) fn tree(&self, volume: VolumeId) -> PathBuf {
        self.path(volume).join("tree")
    }

    pub(crate) fn has(&self, volume: VolumeId) -> bool {
        fs::symlink_metadata(self.tree(volume)).is_ok_and(|entry| entry.is_dir())
    }

    pub(crate) fn all(&self) -> Result<Vec<VolumeId>> {
        let entries = fs::read_dir(&self.dir).map_err(failed("listing the volumes"))?;
        Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
    }

    /// Whole or not at all. There already is Ok.
    pub(crate) fn make(&self, volume: VolumeId) -> Result<()> {
        if self.has(volume) {
            return Ok(());
        }
        self.receive(volume, |_| Ok(()))
    }

    /// Whole or not at all, with what `fill` puts into it. One that is there stays as it is.
    pub(crate) fn receive(&self, volume: VolumeId, fill: impl FnOnce(BorrowedFd<'_>) -> Result<()>) -> Result<()> {
        const WHAT: &str = "making a volume";
        let draft = self.dir.join(format!("{DRAFT}{}", Uuid::new_v4().simple()));
        fs::DirBuilder::new().mode(0o700).create(&draft).map_err(failed(WHAT))?;
        let filled = || {
            let _ours = Lock::exclusive(&draft).map_err(failed(WHAT))?;
            fill(self.lay_out(&draft).map_err(failed(WHAT))?.as_fd())?;
            match fs::rename(&draft, self.path(volume)) {
                Err(_) if self.has(volume) => self.remove_named(&draft), // somebody was faster
                renamed => renamed,
            }
            .map_err(failed(WHAT))
        };
        filled().inspect_err(|_| drop(self.remove_named(&draft)))
    }

    fn lay_out(&self, draft: &Path) -> io::Result<File> {
        let (tree, root) = (draft.join("tree"), self.ids.outside(0));
        fs::create_dir(draft.join("used"))?;
        fs::create_dir(&tree)?;
        chown(&tree, root, root)?;
        // Whoever a sandbox lets work there: templates have users of their own.
        fs::set_permissions(&tree, fs::Permissions::from_mode(0o777))?;
        File::open(&tree)
    }

    /// What is seen, and the most that a copy of it may take: it may grow meanwhile, and not without end.
    pub(crate) fn open(&self, volume: VolumeId) -> Result<Option<(File, u64)>> {
        const SLACK: u64 = 64 << 20;
        let tree = match File::open(self.tree(volume)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            tree => tree.map_err(failed("opening a volume"))?,
        };
        let stored = tree::usage(tree.as_fd()).map_err(failed("measuring a volume"))?.found().with_names();
        Ok(Some((tree, stored.saturating_mul(2).saturating_add(SLACK))))
    }

    /// Notes that a sandbox is about to have them.
    pub(crate) fn mark(&self, volumes: &BTreeSet<VolumeId>, sandbox: &SandboxId) -> Result<Held> {
        let mut held = Vec::new();
        for volume in volumes {
            let mark = || -> io::Result<Option<Lock>> {
                let lock = Lock::shared(&self.path(*volume))?;
                if lock.is_removed()? || !self.has(*volume) {
                    return Ok(None);
                }
                File::create(self.used(*volume).join(sandbox.to_string()))?;
                Ok(Some(lock))
            };
            match mark() {
                Ok(Some(lock)) => held.push(lock),
                Ok(None) => return Err(Error::NoVolume(*volume)),
                Err(error) if error.kind() == ErrorKind::NotFound => return Err(Error::NoVolume(*volume)),
                Err(error) => return Err(failed("noting who uses a volume")(error)),
            }
        }
        Ok(Held(held))
    }

    /// It has them no more. A mark that stays leads nowhere.
    pub(crate) fn unmark(&self, volumes: &BTreeSet<VolumeId>, sandbox: &SandboxId) {
        for volume in volumes {
            let _ = fs::remove_file(self.used(*volume).join(sandbox.to_string()));
        }
    }

    /// Also of what a removal has left.
    pub(crate) fn usage(&self, volume: VolumeId) -> Result<u64> {
        let tree = File::open(self.tree(volume)).or_else(|_| File::open(self.unnamed(volume)));
        let tree = match tree {
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(Error::NoVolume(volume)),
            tree => tree.map_err(failed("opening a volume"))?,
        };
        match tree::usage(tree.as_fd()).map_err(failed("measuring a volume"))? {
            Measured::Whole(usage) => Ok(usage.with_names()),
            // What was known before is nearer to the truth.
            Measured::AtLeast(_) => Err(Error::TimedOut(
                "a sandbox moves directories of the volume about, and it could not be measured: end its commands",
            )),
        }
    }

    /// With all that is in it, unless a sandbox has it. Absent is Ok. `has` says whether a sandbox's record names it. After an error the
    /// volume may be gone, and some of its files be left: then the next removal goes on with them.
    pub(crate) fn remove(&self, volume: VolumeId, has: &dyn Fn(&SandboxId) -> bool) -> Result<()> {
        match self.unname(volume, has) {
            Ok(true) => {}
            Ok(false) => return Err(Error::VolumeInUse(volume)),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed("removing a volume")(error)),
        }
        let left = self.unnamed(volume);
        let removed = Lock::exclusive(&left).and_then(|_ours| self.remove_named(&left));
        match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("removing the files of a volume")(error)),
            _ => Ok(()),
        }
    }

    /// Half a volume is none, so its name goes before its files. False: a sandbox has it.
    fn unname(&self, volume: VolumeId, has: &dyn Fn(&SandboxId) -> bool) -> io::Result<bool> {
        let _ours = Lock::exclusive(&self.path(volume))?;
        for mark in fs::read_dir(self.used(volume))? {
            let mark = mark?;
            let sandbox = mark.file_name().into_string().ok().and_then(|name| SandboxId::new(name).ok());
            if sandbox.is_some_and(|sandbox| has(&sandbox)) {
                return Ok(false);
            }
        }
        fs::rename(self.path(volume), self.unnamed(volume))?;
        Ok(true)
    }

    /// What processes that died left.
    pub(crate) fn sweep(&self) {
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let left = entry.file_name().to_str().is_some_and(|name| name.starts_with(DRAFT));
            if left && let Ok(Some(_ours)) = Lock::try_exclusive(&entry.path()) {
                let _ = self.remove_named(&entry.path());
            }
        }
    }

    fn path(&self, volume: VolumeId) -> PathBuf {
        self.dir.join(volume.to_string())
    }

    /// What is left of it once it has no name any more.
    fn unnamed(&self, volume: VolumeId) -> PathBuf {
        self.dir.join(format!("{DRAFT}{volume}"))
    }

    fn used(&self, volume: VolumeId) -> PathBuf {
        self.path(volume).join("used")
    }

    fn remove_named(&self, path: &Path) -> io::Result<()> {
        let Some(name) = path.file_name() else { return Ok(()) };
        let name = CString::new(name.as_encoded_bytes())?;
        tree::remove_forced(File::open(&self.dir)?.as_fd(), &name, &pool::make_writable)
    }
}
