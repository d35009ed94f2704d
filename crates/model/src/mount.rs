//! What a sandbox may be shown of the machine: a pure decision about names. Where a name really leads is looked at when it is
//! opened.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{SandboxPath, Tenant, VolumeName};

/// Something that is seen inside, as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// Absent only where nothing is mounted.
    pub source: Option<MountSource>,
    pub at: SandboxPath,
    /// Not said: as a profile has it.
    pub mode: Option<MountMode>,
}

impl Mount {
    pub fn mode(&self) -> MountMode {
        self.mode.unwrap_or_default()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountSource {
    /// A directory of the machine.
    Host(PathBuf),
    Volume(VolumeName),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountMode {
    #[default]
    Rw,
    Ro,
    /// Not at all.
    None,
}

/// Which directories of the machine the operator lets be mounted. Of none, unless some are named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountRules {
    allow: Vec<Allowed>,
    /// With all that is above and below: the data directory.
    never: Vec<PathBuf>,
}

/// `PATH` or `PATH:ro`; `{tenant}` in it stands for whoever asks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Allowed {
    path: String,
    read_only: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MountRefused {
    #[error("{0} is no plain absolute path: it has `.`, `..`, empty parts or a NUL in it, or begins with no `/`")]
    Odd(String),
    #[error("/ is the whole machine: name a directory in it")]
    Everything,
    #[error("{path} is part of the system itself ({system}), which is never mounted")]
    System { path: String, system: &'static str },
    #[error("{0} holds the data directory of the server, or lies in it: the files of other sandboxes are there")]
    Data(String),
    #[error(
        "{0} cannot be mounted: the operator lets no directory of this machine be mounted (`mounts.allow` is empty)"
    )]
    Nothing(String),
    #[error("{0} is in no directory that the operator lets be mounted (`mounts.allow`)")]
    NotListed(String),
    #[error("{0} may be mounted read-only alone: ask for the mode ro")]
    ReadOnly(String),
}

impl MountRefused {
    /// Whether it is the words that are wrong, and not what they ask for.
    pub fn is_odd(&self) -> bool {
        matches!(self, Self::Odd(_))
    }
}

/// Who reads or writes there owns the machine, or knows its secrets.
const SYSTEM: [&str; 17] = [
    "/etc", "/usr", "/proc", "/sys", "/dev", "/boot", "/run", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
    "/root", "/var/lib", "/var/run", "/var/log",
];
const TENANT: &str = "{tenant}";

impl MountRules {
    /// As they are written in the configuration, with the directories that nothing may come near.
    pub fn new<T: AsRef<str>>(allow: &[T], never: Vec<PathBuf>) -> Result<Self, String> {
        let allow = allow.iter().map(|text| Allowed::parse(text.as_ref())).collect::<Result<_, _>>()?;
        Ok(Self { allow, never })
    }

    /// Whether this tenant may have it mounted.
    pub fn judge(&self, tenant: &Tenant, path: &Path, writable: bool) -> Result<(), MountRefused> {
        let shown = path.display().to_string();
        check_system(path)?;
        if self.never.iter().any(|never| never.starts_with(path) || path.starts_with(never)) {
            return Err(MountRefused::Data(shown));
        }
        if self.allow.is_empty() {
            return Err(MountRefused::Nothing(shown));
        }
        let mut fitting = self.allow.iter().filter(|allowed| allowed.covers(tenant, path)).peekable();
        match (fitting.peek().is_none(), writable && !fitting.any(|allowed| !allowed.read_only)) {
            (true, _) => Err(MountRefused::NotListed(shown)),
            (false, true) => Err(MountRefused::ReadOnly(shown)),
            (false, false) => Ok(()),
        }
    }
}

/// What nobody can allow.
fn check_system(path: &Path) -> Result<(), MountRefused> {
    let shown = path.display().to_string();
    let plain = SandboxPath::new(shown.as_bytes()).map_err(|_| MountRefused::Odd(shown.clone()))?;
    if plain.is_root() {
        return Err(MountRefused::Everything);
    }
    match SYSTEM.iter().find(|system| path.starts_with(system)) {
        Some(system) => Err(MountRefused::System { path: shown, system }),
        None => Ok(()),
    }
}

impl Allowed {
    fn parse(text: &str) -> Result<Self, String> {
        let (path, read_only) = match text.strip_suffix(":ro") {
            Some(path) => (path, true),
            None => (text.strip_suffix(":rw").unwrap_or(text), false),
        };
        let path = if path.len() > 1 { path.strip_suffix('/').unwrap_or(path) } else { path };
        if path.replace(TENANT, "").contains(['{', '}']) {
            return Err(format!("{text}: {TENANT} is the only thing that can stand in braces"));
        }
        check_system(Path::new(&path.replace(TENANT, "tenant"))).map_err(|refused| format!("{text}: {refused}"))?;
        Ok(Self { path: path.to_owned(), read_only })
    }

    fn covers(&self, tenant: &Tenant, path: &Path) -> bool {
        path.starts_with(self.path.replace(TENANT, tenant.as_str()))
    }
}

impl fmt::Display for MountMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rw => "rw",
            Self::Ro => "ro",
            Self::None => "none",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(allow: &[&str]) -> MountRules {
        MountRules::new(allow, vec!["/srv/cabana".into()]).unwrap()
    }

    fn judge(rules: &MountRules, tenant: &str, path: &str, writable: bool) -> Result<(), MountRefused> {
        rules.judge(&Tenant::new(tenant).unwrap(), Path::new(path), writable)
    }

    #[test]
    fn nothing_is_mounted_where_nothing_is_allowed() {
        assert!(matches!(judge(&rules(&[]), "a", "/srv/x", false), Err(MountRefused::Nothing(_))));
        assert!(matches!(judge(&MountRules::default(), "a", "/home/a", false), Err(MountRefused::Nothing(_))));
    }

    #[test]
    fn what_is_listed_may_be_mounted_with_what_is_below_it() {
        let rules = rules(&["/srv/projects/", "/data/shared:ro", "/data/shared/open"]);
        for (path, writable) in [("/srv/projects", true), ("/srv/projects/a/b", true), ("/data/shared/x", false)] {
            assert_eq!(judge(&rules, "a", path, writable), Ok(()), "{path}");
        }
        assert_eq!(judge(&rules, "a", "/data/shared/open/x", true), Ok(()), "one that fits is enough");
        assert!(matches!(judge(&rules, "a", "/data/shared/x", true), Err(MountRefused::ReadOnly(_))));
        for path in ["/srv/projects2", "/srv/project", "/data", "/home"] {
            assert!(matches!(judge(&rules, "a", path, false), Err(MountRefused::NotListed(_))), "{path}");
        }
    }

    #[test]
    fn a_tenant_has_what_is_its_own() {
        let rules = rules(&["/srv/of/{tenant}/files", "/home/all-{tenant}"]);
        assert_eq!(judge(&rules, "a", "/srv/of/a/files/x", true), Ok(()));
        assert_eq!(judge(&rules, "b-1", "/home/all-b-1", true), Ok(()));
        for path in ["/srv/of/b/files", "/srv/of/a", "/srv/of/ab/files", "/home/all-ab", "/srv/of/{tenant}/files"] {
            assert!(matches!(judge(&rules, "a", path, false), Err(MountRefused::NotListed(_))), "{path}");
        }
    }

    #[test]
    fn the_system_and_the_data_directory_are_nobodys_to_allow() {
        let rules = rules(&["/srv"]);
        assert_eq!(judge(&rules, "a", "/", false), Err(MountRefused::Everything));
        for path in ["/etc", "/etc/passwd", "/proc/1", "/root/x", "/usr/share", "/var/lib/x", "/lib64", "/dev/null"] {
            assert!(matches!(judge(&rules, "a", path, false), Err(MountRefused::System { .. })), "{path}");
        }
        for path in ["/srv", "/srv/cabana", "/srv/cabana/layers"] {
            assert!(matches!(judge(&rules, "a", path, false), Err(MountRefused::Data(_))), "{path}");
        }
        assert_eq!(judge(&rules, "a", "/srv/cabana2", false), Ok(()));
        for odd in ["", "relative", "/srv/../etc", "/srv/./x", "/srv//x", "/srv/x/", "/srv/\0"] {
            assert!(judge(&rules, "a", odd, false).is_err_and(|refused| refused.is_odd()), "{odd:?}");
        }
    }

    #[test]
    fn what_cannot_be_allowed_is_refused_when_it_is_configured() {
        for bad in
            ["", "/", "relative", "/etc", "/etc:ro", "/srv/../x", "/srv/{user}", "/srv/{tenant", "/srv/}", "/var/lib/x"]
        {
            assert!(MountRules::new(&[bad], Vec::new()).is_err(), "{bad:?}");
        }
    }
}
