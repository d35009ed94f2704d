//! What sandboxes stand on whose files are saved elsewhere: it stays until they are restored or destroyed.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use cabana_sandbox::{Base, Error, Result, SandboxId, VolumeId};
use serde::{Deserialize, Serialize};

use crate::{home::Record, layers::LayerName, volumes::volumes_of};

pub(crate) struct Shelf(PathBuf);

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shelved {
    pub(crate) base: Base,
    /// What it wrote itself is in what was saved.
    pub(crate) layers: Vec<LayerName>,
    /// That it has among its views.
    #[serde(default)]
    pub(crate) volumes: BTreeSet<VolumeId>,
    /// What its template gave it, and no stream can.
    #[serde(default)]
    pub(crate) sudo: bool,
}

impl Shelf {
    pub(crate) fn open(dir: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&dir)?;
        Ok(Self(dir))
    }

    fn path(&self, id: &SandboxId) -> PathBuf {
        self.0.join(format!("{id}.json"))
    }

    pub(crate) fn has(&self, id: &SandboxId) -> bool {
        self.path(id).exists()
    }

    pub(crate) fn put(&self, id: &SandboxId, record: &Record) -> Result<()> {
        let layers = record.plan.all_layers().filter(|layer| !layer.is_kept()).collect();
        let volumes = volumes_of(&record.spec.views);
        self.write(id, &Shelved { base: record.spec.base.clone(), layers, volumes, sudo: record.plan.sudo })
    }

    pub(crate) fn write(&self, id: &SandboxId, shelved: &Shelved) -> Result<()> {
        let new = self.path(id).with_extension("new");
        let written = serde_json::to_vec(shelved)
            .map_err(io::Error::from)
            .and_then(|text| fs::write(&new, text))
            .and_then(|()| fs::rename(&new, self.path(id)));
        written.map_err(|error| Error::failed("noting what the sandbox stands on", error))
    }

    /// Whether setuid programs gained anything in it.
    pub(crate) fn had_sudo(&self, id: &SandboxId) -> bool {
        read(&self.path(id)).ok().flatten().is_some_and(|shelved| shelved.sudo)
    }

    /// Whether it has this volume. Who cannot be read may have it.
    pub(crate) fn uses_volume(&self, id: &SandboxId, volume: VolumeId) -> bool {
        match read(&self.path(id)) {
            Ok(shelved) => shelved.is_some_and(|shelved| shelved.volumes.contains(&volume)),
            Err(_) => true,
        }
    }

    /// Absent is fine.
    pub(crate) fn remove(&self, id: &SandboxId) -> io::Result<()> {
        match fs::remove_file(self.path(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    pub(crate) fn all(&self) -> Result<Vec<(SandboxId, Shelved)>> {
        let failed = |error| Error::failed("reading what sandboxes stand on", error);
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.0).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".json"));
            if let Some(id) = name.and_then(|name| SandboxId::new(name).ok())
                && let Some(shelved) = read(&path).map_err(failed)?
            {
                all.push((id, shelved));
            }
        }
        Ok(all)
    }
}

/// `None`: it was restored or destroyed meanwhile.
fn read(path: &Path) -> io::Result<Option<Shelved>> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
    }
}
