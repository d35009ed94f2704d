//! Snapshots by name, one `snapshots/<chance>.json` each: what a sandbox stood on, and what it had written.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, ErrorKind},
    path::PathBuf,
};

use cabana_sandbox::{Base, Error, Result, SandboxId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    DataDir,
    layers::{LayerName, Store, failed, now},
    plan::Plan,
};

/// What every name begins with. No name of a template has a colon in it.
const PREFIX: &str = "snapshot:";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// For `Base::Named`.
    pub name: String,
    /// The sandbox that it was taken of.
    pub of: SandboxId,
    /// When it was taken, as RFC 3339.
    pub made: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    of: SandboxId,
    made: String,
    plan: Plan,
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

    pub(crate) fn is_name(name: &str) -> bool {
        name.starts_with(PREFIX)
    }

    /// By time. A damaged one is listed with its error and hides no other.
    pub fn ls(&self) -> Result<Vec<(String, Result<Snapshot>)>> {
        let names = self.names().map_err(failed("listing the snapshots"))?;
        let one = |name: String| {
            let found = self.read(&name);
            (name.clone(), found.map(|Record { of, made, .. }| Snapshot { name, of, made }))
        };
        let mut all: Vec<_> = names.into_iter().map(one).collect();
        all.sort_by_cached_key(|(_, snapshot)| snapshot.as_ref().map_or(String::new(), |found| found.made.clone()));
        Ok(all)
    }

    /// Removes the name. What was made from it stays as it is; layers that nobody needs any more go with the next
    /// [`Engine::remove_unused_layers`](crate::Engine::remove_unused_layers).
    pub fn rm(&self, name: &str) -> Result<()> {
        match fs::remove_file(self.file(name)?) {
            Err(e) if e.kind() == ErrorKind::NotFound => Err(Error::NoTemplate(name.into())),
            removed => removed.map_err(failed("removing the snapshot")),
        }
    }

    /// What sandboxes made from it stand on.
    pub(crate) fn plan(&self, name: &str) -> Result<Plan> {
        let plan = self.read(name)?.plan;
        let missing = plan.all_layers().find(|layer| layer.is_kept() && !self.store.has(layer));
        if let Some(missing) = missing {
            let why = format!("its layer {missing} is not there any more: remove it");
            return Err(Error::BadTemplate { name: name.into(), why });
        }
        Ok(plan)
    }

    /// Every layer that a snapshot needs.
    pub(crate) fn layers(&self) -> Result<BTreeSet<LayerName>> {
        let mut layers = BTreeSet::new();
        for name in self.names().map_err(failed("listing the snapshots"))? {
            match self.read(&name) {
                Ok(record) => layers.extend(record.plan.all_layers()),
                Err(Error::NoTemplate(_)) => {} // removed meanwhile
                Err(error) => return Err(error),
            }
        }
        Ok(layers)
    }

    /// Gives a plan whose layers are all there a name. Whole or not at all, as long as the machine has power: to wait for the
    /// disk here would be to wait for every file that the sandbox has just made.
    pub(crate) fn publish(&self, of: &SandboxId, plan: Plan) -> Result<Base> {
        let name = format!("{PREFIX}{}", Uuid::new_v4().simple());
        let record = Record { of: of.clone(), made: now(), plan };
        let file = self.file(&name)?;
        let new = file.with_extension("new");
        let text = serde_json::to_vec(&record).map_err(|e| failed("writing the snapshot")(e.into()))?;
        let published = fs::write(&new, text).and_then(|()| fs::rename(&new, &file));
        published.inspect_err(|_| drop(fs::remove_file(&new))).map_err(failed("writing the snapshot"))?;
        Ok(Base::Named(name))
    }

    fn read(&self, name: &str) -> Result<Record> {
        let file = self.file(name)?;
        let text = match fs::read(&file) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Err(Error::NoTemplate(name.into())),
            text => text.map_err(failed("reading the snapshot"))?,
        };
        let damaged = |e| Error::BadTemplate {
            name: name.into(),
            why: format!("its file {} is damaged ({e}): remove it", file.display()),
        };
        serde_json::from_slice(&text).map_err(damaged)
    }

    /// A name that no snapshot can have is one that none has: it never becomes part of a path.
    fn file(&self, name: &str) -> Result<PathBuf> {
        let chance = name.strip_prefix(PREFIX).filter(|rest| is_chance(rest));
        let chance = chance.ok_or_else(|| Error::NoTemplate(name.into()))?;
        Ok(self.dir.join(format!("{chance}.json")))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let file = entry?.file_name();
            let chance = file.to_str().and_then(|file| file.strip_suffix(".json")).filter(|chance| is_chance(chance));
            names.extend(chance.map(|chance| format!("{PREFIX}{chance}")));
        }
        Ok(names)
    }
}

fn is_chance(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
