//! What of the machine and which volumes a sandbox sees (LB-1).

use cabana_runtime::{Mount, MountMode, MountSource, VolumeName};
use cabana_sandbox::SandboxPath;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::{Answer, Refused};

/// Where a sandbox has a directory for it.
const WORKSPACE: &str = "/workspace";

/// A directory of the server's machine, or a volume, that is seen inside.
#[derive(Clone, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MountBody {
    /// A directory of the server's machine that the operator lets be mounted (`mounts.allow`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    host_path: Option<String>,
    /// In its place: a volume of the tenant's, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    volume: Option<String>,
    /// Where it is seen inside. Of `mount`, `/workspace` if it is not said.
    #[serde(default)]
    mount_path: Option<String>,
    /// `rw`, unless a profile has another.
    #[serde(default)]
    mode: Option<MountModeBody>,
}

/// `none`: it is not mounted at all.
#[derive(Clone, Copy, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum MountModeBody {
    Rw,
    Ro,
    None,
}

impl MountBody {
    pub(super) fn primary(self) -> Answer<Mount> {
        self.mount("mount", Some(WORKSPACE))
    }

    pub(super) fn extra(all: Vec<Self>) -> Answer<Vec<Mount>> {
        all.into_iter().map(|mount| mount.mount("extra_mounts", None)).collect()
    }

    fn mount(self, field: &str, usual: Option<&str>) -> Answer<Mount> {
        let invalid = |why: &dyn std::fmt::Display| Refused::invalid(field, why);
        let mode = self.mode.map(|mode| match mode {
            MountModeBody::Rw => MountMode::Rw,
            MountModeBody::Ro => MountMode::Ro,
            MountModeBody::None => MountMode::None,
        });
        let source = match (self.host_path, self.volume) {
            (Some(_), Some(_)) => return Err(invalid(&"has a host_path and a volume: give one of the two")),
            (None, None) if mode != Some(MountMode::None) => {
                return Err(invalid(&"names neither a host_path nor a volume"));
            }
            (None, None) => None,
            (Some(path), None) => Some(MountSource::Host(plain(path).into())),
            (None, Some(name)) => Some(MountSource::Volume(VolumeName::new(name).map_err(|error| invalid(&error))?)),
        };
        let at = self.mount_path.map(plain).or_else(|| usual.map(str::to_owned));
        let at = at.ok_or_else(|| invalid(&"has no mount_path"))?;
        let at = SandboxPath::new(at).map_err(|error| invalid(&format_args!("mount_path {error}")))?;
        Ok(Mount { source, at, mode })
    }

    pub(super) fn of(mount: &Mount) -> Self {
        let (host_path, volume) = match &mount.source {
            Some(MountSource::Host(path)) => (Some(path.display().to_string()), None),
            Some(MountSource::Volume(name)) => (None, Some(name.to_string())),
            None => (None, None),
        };
        let mode = match mount.mode() {
            MountMode::Rw => MountModeBody::Rw,
            MountMode::Ro => MountModeBody::Ro,
            MountMode::None => MountModeBody::None,
        };
        Self { host_path, volume, mount_path: Some(mount.at.to_string()), mode: Some(mode) }
    }
}

/// A slash at the end says that it is a directory, and no more.
fn plain(mut path: String) -> String {
    if path.len() > 1 && path.ends_with('/') {
        path.pop();
    }
    path
}
