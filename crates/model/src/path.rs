//! A path inside a sandbox.

use std::{fmt, os::unix::ffi::OsStrExt, path::Path};

use serde::{Deserialize, Serialize};

/// Absolute, without NUL and without `.`, `..` or empty parts. Bytes, not text: a name that is not UTF-8 can be listed
/// and fetched too.
///
/// The type only rules out spellings; links are the business of whoever resolves it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub struct SandboxPath(Vec<u8>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("must be absolute: it begins with no `/`")]
    Relative,
    #[error("must not hold a NUL byte")]
    Nul,
    #[error("must not hold `.`, `..` or empty parts")]
    Odd,
    #[error("must be at most 4095 bytes long, each part at most 255")]
    Long,
}

impl SandboxPath {
    pub fn new(path: impl Into<Vec<u8>>) -> Result<Self, PathError> {
        let path: Vec<u8> = path.into();
        if !path.starts_with(b"/") {
            return Err(PathError::Relative);
        }
        if path.contains(&0) {
            return Err(PathError::Nul);
        }
        if path.len() > 4095 {
            return Err(PathError::Long);
        }
        if path.len() > 1 {
            for part in path[1..].split(|b| *b == b'/') {
                if matches!(part, b"" | b"." | b"..") {
                    return Err(PathError::Odd);
                }
                if part.len() > 255 {
                    return Err(PathError::Long);
                }
            }
        }
        Ok(Self(path))
    }

    pub fn root() -> Self {
        Self(b"/".to_vec())
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn as_path(&self) -> &Path {
        Path::new(std::ffi::OsStr::from_bytes(&self.0))
    }

    /// The path as seen from the root: without its leading `/`; empty for the root itself.
    pub fn relative(&self) -> &Path {
        Path::new(std::ffi::OsStr::from_bytes(&self.0[1..]))
    }

    pub fn is_root(&self) -> bool {
        self.0 == b"/"
    }

    /// The last part; empty for the root.
    pub fn name(&self) -> &[u8] {
        self.0.rsplit(|b| *b == b'/').next().unwrap_or_default()
    }

    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        let cut = self.0.iter().rposition(|b| *b == b'/').unwrap_or(0);
        Some(if cut == 0 { Self::root() } else { Self(self.0[..cut].to_vec()) })
    }

    /// One name below this path.
    pub fn join(&self, name: &[u8]) -> Result<Self, PathError> {
        if name.contains(&b'/') {
            return Err(PathError::Odd);
        }
        self.below(name)
    }

    /// A relative path below this one, with any number of parts.
    pub fn below(&self, rest: &[u8]) -> Result<Self, PathError> {
        if rest.is_empty() {
            return Err(PathError::Odd); // nothing lies below itself, not even the root
        }
        let mut path = if self.is_root() { Vec::new() } else { self.0.clone() };
        path.push(b'/');
        path.extend_from_slice(rest);
        Self::new(path)
    }

    /// Whether this is `dir` itself or lies below it. `/workspace-evil` does not lie in `/workspace`.
    pub fn is_in(&self, dir: &SandboxPath) -> bool {
        dir.is_root() || self.0 == dir.0 || (self.0.starts_with(&dir.0) && self.0.get(dir.0.len()) == Some(&b'/'))
    }
}

impl TryFrom<Vec<u8>> for SandboxPath {
    type Error = PathError;
    fn try_from(path: Vec<u8>) -> Result<Self, PathError> {
        Self::new(path)
    }
}

impl From<SandboxPath> for Vec<u8> {
    fn from(path: SandboxPath) -> Vec<u8> {
        path.0
    }
}

impl std::str::FromStr for SandboxPath {
    type Err = PathError;
    fn from_str(path: &str) -> Result<Self, PathError> {
        Self::new(path)
    }
}

impl fmt::Display for SandboxPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for SandboxPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(text: &str) -> SandboxPath {
        SandboxPath::new(text).unwrap()
    }

    #[test]
    fn xb_03_only_absolute_paths_are_paths() {
        for bad in ["", "a", "./a", "../a", "~", "a/b"] {
            assert_eq!(SandboxPath::new(bad), Err(PathError::Relative), "{bad:?}");
        }
    }

    #[test]
    fn every_spelling_of_dots_is_refused() {
        for bad in ["/..", "/a/..", "/../a", "/a/../b", "/.", "/a/.", "//", "/a//b", "/a/"] {
            assert_eq!(SandboxPath::new(bad), Err(PathError::Odd), "{bad:?}");
        }
        assert_eq!(SandboxPath::new("/a\0b"), Err(PathError::Nul));
        assert_eq!(SandboxPath::new(format!("/{}", "a".repeat(256))), Err(PathError::Long));
        assert_eq!(SandboxPath::new("/a".repeat(2048)), Err(PathError::Long));
        assert!(SandboxPath::new("/...").is_ok());
    }

    #[test]
    fn nothing_is_below_itself() {
        for dir in ["/", "/a"] {
            assert_eq!(path(dir).below(b""), Err(PathError::Odd), "{dir}");
            assert_eq!(path(dir).join(b""), Err(PathError::Odd), "{dir}");
        }
    }

    #[test]
    fn a_prefix_is_not_a_parent() {
        assert!(!path("/workspace-evil").is_in(&path("/workspace")));
        assert!(path("/workspace/a").is_in(&path("/workspace")));
        assert!(path("/workspace").is_in(&path("/workspace")));
        assert!(path("/a").is_in(&SandboxPath::root()));
    }

    proptest! {
        #[test]
        fn parent_and_name_rebuild_the_path(parts in prop::collection::vec("[^/\0]{1,20}", 1..6)) {
            prop_assume!(parts.iter().all(|p| p != "." && p != ".."));
            let whole = path(&format!("/{}", parts.join("/")));
            let parent = whole.parent().unwrap();
            prop_assert_eq!(parent.join(whole.name()).unwrap(), whole.clone());
            prop_assert!(whole.is_in(&parent));
        }

        #[test]
        fn what_is_accepted_has_no_odd_part(bytes in prop::collection::vec(prop::sample::select(b"/.a\0".to_vec()), 0..12)) {
            if let Ok(path) = SandboxPath::new(bytes.clone()) {
                prop_assert!(path.as_bytes().starts_with(b"/"));
                prop_assert!(!bytes.contains(&0));
                prop_assert!(!String::from_utf8(bytes).unwrap().split('/').any(|p| p == ".." || p == "."));
            }
        }
    }
}
