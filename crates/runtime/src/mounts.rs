//! Mounts: what is asked for by name becomes what a provider shows.

use cabana_model::{Mount, MountMode, MountSource, Tenant};
use cabana_sandbox::{Source, View, check_views};
use serde::{Deserialize, Serialize};

use crate::{Error, Result, Settings, sandboxes::Sandboxes};

/// How many there may be beside the first.
const MOST: usize = 32;

/// What a sandbox is to see beside its own files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mounts {
    /// Mostly a project to work on (LB-1).
    pub primary: Option<Mount>,
    pub extra: Vec<Mount>,
}

impl Mounts {
    /// Those that are mounted at all (LB-2).
    fn shown(&self) -> impl Iterator<Item = &Mount> {
        self.primary.iter().chain(&self.extra).filter(|mount| mount.mode() != MountMode::None)
    }

    /// What can be said without looking at anything.
    pub(crate) fn check(&self, tenant: &Tenant, settings: &Settings) -> Result<()> {
        if self.extra.len() > MOST {
            return Err(Error::invalid("extra_mounts", format!("are more than {MOST}")));
        }
        let mut views = Vec::new();
        for mount in self.shown() {
            let writable = mount.mode() == MountMode::Rw;
            let source = match &mount.source {
                None => return Err(Error::invalid("mount", "names neither a host_path nor a volume")),
                Some(MountSource::Host(path)) => {
                    settings.mounts.judge(tenant, path, writable)?;
                    Source::Host(path.clone())
                }
                // Which one it is makes no difference here.
                Some(MountSource::Volume(_)) => Source::Volume(uuid::Uuid::nil().into()),
            };
            views.push(View { source, at: mount.at.clone(), writable });
        }
        check_views(&views).map_err(in_public)
    }
}

impl Sandboxes {
    /// As the provider takes them, by the names and the rules of now.
    pub(crate) async fn views(&self, tenant: &Tenant, mounts: &Mounts) -> Result<Vec<View>> {
        mounts.check(tenant, self.settings())?;
        let mut views = Vec::new();
        for mount in mounts.shown() {
            let source = match &mount.source {
                None => continue,
                Some(MountSource::Host(path)) => Source::Host(path.clone()),
                Some(MountSource::Volume(name)) => {
                    let found = self.store().volume(tenant, name).await?;
                    Source::Volume(found.ok_or_else(|| Error::NoVolume(name.clone()))?.physical)
                }
            };
            views.push(View { source, at: mount.at.clone(), writable: mount.mode() == MountMode::Rw });
        }
        Ok(views)
    }
}

/// What a provider calls views are mounts here, and its own names of volumes are nobody's business.
pub(crate) fn in_public(error: cabana_sandbox::Error) -> Error {
    match error {
        cabana_sandbox::Error::Invalid { field: "views", why } => Error::invalid("mounts", why),
        cabana_sandbox::Error::NoVolume(_) => Error::invalid("mounts", "a volume of it is not there any more"),
        error => error.into(),
    }
}
