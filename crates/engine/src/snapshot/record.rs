//! Snapshots by name, one `snapshots/<digits>.json` each: what a sandbox stood on, and what it had written.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, ErrorKind},
    path::PathBuf,
};

use cabana_sandbox::{Error, Result, SandboxId, SnapshotId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    DataDir,
    layers::{LayerName, Store, failed, now},
    plan::Plan,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub name: SnapshotId,
    /// The sandbox that it was taken of.
    pub of: SandboxId,
    /// When it was taken, as RFC 3339.
    pub made: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    pub(super) of: SandboxId,
    pub(super) made: String,
    pub(super) plan: Plan,
}

#[derive(Debug)]
pub struct Snapshots<'a> {
    dir: PathBuf,
    store: &'a Store,
}

impl<'a> Snapshots<'a> {
    pub(crate) fn new(data: &DataDir, store: &'a Store) -> Self {
        Self { dir: data.snapshots(), store }
    }

    /// By time. A damaged one is listed with its error and hides no other.
    pub fn ls(&self) -> Result<Vec<(SnapshotId, Result<Snapshot>)>> {
        let one = |name| {
            let found = self.read(name);
            (name, found.map(|Record { of, made, .. }| Snapshot { name, of, made }))
        };
        let mut all: Vec<_> = self.names()?.into_iter().map(one).collect();
        all.sort_by_cached_key(|(_, snapshot)| snapshot.as_ref().map_or(String::new(), |found| found.made.clone()));
        Ok(all)
    }

    /// Removes the name. What was made from it stays as it is; layers that nobody needs any more go with the next
    /// [`Engine::remove_unused_layers`](crate::Engine::remove_unused_layers).
    pub fn rm(&self, name: SnapshotId) -> Result<()> {
        match fs::remove_file(self.file(name)) {
            Err(e) if e.kind() == ErrorKind::NotFound => Err(Error::NoSnapshot(name)),
            removed => removed.map_err(failed("removing the snapshot")),
        }
    }

    /// What sandboxes made from it stand on.
    pub(crate) fn plan(&self, name: SnapshotId) -> Result<Plan> {
        let plan = self.read(name)?.plan;
        let missing = plan.all_layers().find(|layer| layer.is_kept() && !self.store.has(layer));
        if let Some(missing) = missing {
            let why = format!("its layer {missing} is not there any more: remove it");
            return Err(Error::BadTemplate { name: name.to_string(), why });
        }
        Ok(plan)
    }

    /// Every layer that a snapshot needs, but for these.
    pub(crate) fn layers(&self, without: &[SnapshotId]) -> Result<BTreeSet<LayerName>> {
        let mut layers = BTreeSet::new();
        for name in self.names()?.into_iter().filter(|name| !without.contains(name)) {
            match self.read(name) {
                Ok(record) => layers.extend(record.plan.all_layers()),
                Err(Error::NoSnapshot(_)) => {} // removed meanwhile
                Err(error) => return Err(error),
            }
        }
        Ok(layers)
    }

    pub(crate) fn has(&self, name: SnapshotId) -> bool {
        self.file(name).exists()
    }

    /// Gives a plan whose layers are all there a name. Whole or not at all, as long as the machine has power: to wait for the
    /// disk here would be to wait for every file that the sandbox has just made. False when the name was faster taken.
    pub(crate) fn publish(&self, name: SnapshotId, of: &SandboxId, plan: Plan) -> Result<bool> {
        self.put(name, &Record { of: of.clone(), made: now(), plan })
    }

    /// As it was written down elsewhere.
    pub(super) fn put(&self, name: SnapshotId, record: &Record) -> Result<bool> {
        let new = self.dir.join(format!(".{}.new", Uuid::new_v4().simple()));
        let text = serde_json::to_vec(record).map_err(|e| failed("writing the snapshot")(e.into()))?;
        let published = fs::write(&new, text).and_then(|()| fs::hard_link(&new, self.file(name)));
        let _ = fs::remove_file(&new);
        match published {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(failed("writing the snapshot")(e)),
        }
    }

    pub(super) fn read(&self, name: SnapshotId) -> Result<Record> {
        let text = match fs::read(self.file(name)) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Err(Error::NoSnapshot(name)),
            text => text.map_err(failed("reading the snapshot"))?,
        };
        let damaged = |e| Error::BadTemplate {
            name: name.to_string(),
            why: format!("what is written down of the snapshot is damaged ({e}): remove it"),
        };
        serde_json::from_slice(&text).map_err(damaged)
    }

    fn file(&self, name: SnapshotId) -> PathBuf {
        self.dir.join(format!("{}.json", name.uuid().simple()))
    }

    pub(crate) fn names(&self) -> Result<Vec<SnapshotId>> {
        let name = |file: &str| {
            let name = SnapshotId::from(Uuid::try_parse(file.strip_suffix(".json")?).ok()?);
            (self.file(name).ends_with(file)).then_some(name) // one name, one file: the parser takes other forms too
        };
        let listed = fs::read_dir(&self.dir).and_then(|dir| {
            dir.map(|entry| Ok(entry?.file_name().to_str().and_then(name))).collect::<io::Result<Vec<_>>>()
        });
        Ok(listed.map_err(failed("listing the snapshots"))?.into_iter().flatten().collect())
    }
}
