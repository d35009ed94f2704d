//! Which layers the sandboxes of the data directory stand on.
//!
//! There may be a hundred thousand, and whoever removes layers keeps every create waiting. So the records are read before the
//! lock is taken, and under it only those that have come or changed since: a record is never changed but replaced.

use std::{
    collections::{BTreeSet, HashMap},
    fs, io,
    os::unix::fs::MetadataExt,
    path::PathBuf,
};

use cabana_sandbox::{Error, Result, Source};

use crate::{
    home::{Home, Homes, Record},
    layers::LayerName,
};

#[derive(Default)]
pub(super) struct Used {
    /// More than are, maybe: of a record that was replaced meanwhile, those of both.
    pub(super) layers: BTreeSet<LayerName>,
    read: HashMap<PathBuf, Version>,
}

/// Of a file that is never written to once it has its name.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Version {
    inode: u64,
    changed: (i64, i64),
}

impl Used {
    /// Reads what has come or changed since it was called last.
    pub(super) fn read(&mut self, homes: &Homes) -> Result<()> {
        for home in homes.everybodys() {
            let path = home.record();
            let Some(version) = version(&path)? else { continue }; // deleted meanwhile
            if self.read.get(&path) == Some(&version) {
                continue;
            }
            if let Some(record) = read(&home)? {
                self.layers.extend(record.plan.all_layers());
                self.layers.extend(record.spec.views.iter().filter_map(|view| match &view.source {
                    Source::Layer(layer) => Some(LayerName::from(layer)),
                    Source::Host(_) | Source::Volume(_) => None,
                }));
            }
            self.read.insert(path, version);
        }
        Ok(())
    }
}

fn version(path: &PathBuf) -> Result<Option<Version>> {
    match fs::symlink_metadata(path) {
        Ok(meta) => Ok(Some(Version { inode: meta.ino(), changed: (meta.ctime(), meta.ctime_nsec()) })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::failed("looking at a sandbox's record", error)),
    }
}

fn read(home: &Home) -> Result<Option<Record>> {
    match home.read() {
        Err(Error::NoSandbox(_)) => Ok(None), // deleted meanwhile
        read => read.map(Some),
    }
}
