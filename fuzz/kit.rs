//! A root of one's own, with something outside that must stay as it is and must not be seen.

use std::{collections::BTreeSet, ffi::OsString, fs, os::fd::AsFd, path::PathBuf};

use cabana_guest::{IdMap, Rooted, tree};

pub(crate) const SECRET: &[u8] = b"what lies outside";
/// A name that nobody inside thinks of.
pub(crate) const BESIDE: &str = "beside-the-root-3f9c51";

pub(crate) struct Kit {
    dir: tempfile::TempDir,
    pub(crate) inside: PathBuf,
    pub(crate) rooted: Rooted,
}

impl Kit {
    pub(crate) fn new() -> Self {
        match Self::make() {
            Ok(kit) => kit,
            Err(error) => panic!("there is no directory to work in: {error}"),
        }
    }

    fn make() -> std::io::Result<Self> {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
        let inside = dir.path().canonicalize()?.join("root");
        fs::create_dir(&inside)?;
        fs::write(dir.path().join("secret"), SECRET)?;
        fs::write(dir.path().join(BESIDE), "")?;
        let root = fs::File::open(&inside)?.into();
        Ok(Self { dir, inside, rooted: Rooted::new(root, IdMap { base: 0, count: u32::MAX }) })
    }

    /// Outside is as it was.
    pub(crate) fn check(&self) {
        assert_eq!(fs::read(self.dir.path().join("secret")).unwrap_or_default(), SECRET, "the secret changed");
        let names: BTreeSet<OsString> =
            fs::read_dir(self.dir.path()).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(
            names,
            BTreeSet::from([BESIDE.into(), "root".into(), "secret".into()]),
            "something was made outside"
        );
    }
}

impl Drop for Kit {
    fn drop(&mut self) {
        // The library's own, since a guest can make a tree that is too deep for others.
        let _ = fs::File::open(self.dir.path()).and_then(|dir| tree::remove(dir.as_fd(), c"root"));
    }
}
