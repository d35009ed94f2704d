//! A root of one's own, with something outside it that must never change.

use std::{
    ffi::CString,
    fs,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use cabana_guest::{IdMap, Rooted, tree};
use cabana_sandbox::{FileInfo, Read, Result, SandboxPath, Write, WriteMode};

pub(crate) const HOST: IdMap = IdMap { base: 0, count: u32::MAX };
pub(crate) const CANARY: &str = "outside";

pub(crate) struct Kit {
    pub(crate) temp: tempfile::TempDir,
    pub(crate) rooted: Rooted,
}

impl Kit {
    pub(crate) fn new() -> Self {
        Self::with(HOST)
    }

    pub(crate) fn with(ids: IdMap) -> Self {
        Self::at_place(tempfile::tempdir().unwrap(), ids)
    }

    /// In memory where the machine has such a place: for tests that make very many files.
    pub(crate) fn light() -> Self {
        let temp = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        Self::at_place(temp, HOST)
    }

    fn at_place(temp: tempfile::TempDir, ids: IdMap) -> Self {
        fs::create_dir(temp.path().join("root")).unwrap();
        fs::write(temp.path().join("canary"), CANARY).unwrap();
        let rooted = Rooted::new(dir_fd(&temp.path().join("root")), ids);
        Self { temp, rooted }
    }

    /// Where a path of the root lies outside.
    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.temp.path().join("root").join(path.trim_start_matches('/'))
    }

    pub(crate) fn dir(&self, path: &str) {
        fs::create_dir_all(self.at(path)).unwrap();
    }

    pub(crate) fn file(&self, path: &str, text: impl AsRef<[u8]>) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), text).unwrap();
    }

    pub(crate) fn link(&self, path: &str, text: impl AsRef<Path>) {
        std::os::unix::fs::symlink(text, self.at(path)).unwrap();
    }

    pub(crate) fn write(&self, at: &str, how: Write, body: impl AsRef<[u8]>) -> Result<FileInfo> {
        let mut writer = self.rooted.write(&path(at), how)?;
        writer.put(body.as_ref())?;
        writer.finish()
    }

    pub(crate) fn replace(&self, at: &str, body: impl AsRef<[u8]>) -> Result<FileInfo> {
        self.write(at, Write::new(WriteMode::Replace), body)
    }

    pub(crate) fn read(&self, at: &str) -> Result<Vec<u8>> {
        let (_, mut reader) = self.rooted.read(&path(at), Read::default())?;
        let mut all = Vec::new();
        while let Some(chunk) = reader.next_chunk()? {
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    }

    /// The names in a directory, in order.
    pub(crate) fn names(&self, at: &str) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(self.at(at)).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub(crate) fn digest(&self, at: &str) -> [u8; 32] {
        tree::digest(dir_fd(&self.at(at)).as_fd(), HOST).unwrap()
    }

    pub(crate) fn canary_is_well(&self) {
        assert_eq!(fs::read_to_string(self.temp.path().join("canary")).unwrap(), CANARY);
        let mut outside: Vec<_> = fs::read_dir(self.temp.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        outside.sort();
        assert_eq!(outside, ["canary", "root"]);
    }
}

impl Drop for Kit {
    fn drop(&mut self) {
        // tempfile cannot remove directories without permissions, nor very deep ones.
        let _ = tree::remove(dir_fd(self.temp.path()).as_fd(), c"root");
    }
}

pub(crate) fn dir_fd(path: &Path) -> OwnedFd {
    fs::File::open(path).unwrap().into()
}

pub(crate) fn path(text: &str) -> SandboxPath {
    text.parse().unwrap()
}

pub(crate) fn c(text: impl AsRef<Path>) -> CString {
    CString::new(text.as_ref().as_os_str().as_bytes()).unwrap()
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(crate) fn mode(path: &Path) -> u32 {
    std::os::unix::fs::PermissionsExt::mode(&fs::symlink_metadata(path).unwrap().permissions()) & 0o7777
}

pub(crate) fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
}

pub(crate) fn fifo(path: &Path) {
    rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::from_raw_mode(0o666)).unwrap();
}

pub(crate) fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty()).unwrap();
}

/// A shell command that must succeed.
pub(crate) fn sh(dir: &Path, script: &str) {
    let status = std::process::Command::new("sh").arg("-ec").arg(script).current_dir(dir).status().unwrap();
    assert!(status.success(), "{script}");
}

/// Two names that change places without a pause, until it is dropped.
pub(crate) struct Exchange {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Exchange {
    pub(crate) fn of(one: PathBuf, other: PathBuf) -> Self {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        let ends = Arc::new(AtomicBool::new(false));
        let ended = ends.clone();
        let exchange = move || {
            while !ended.load(Ordering::Relaxed) {
                renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap();
            }
        };
        Self { ends, thread: Some(std::thread::spawn(exchange)) }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Tries again until it comes about: the race is one that can be won.
pub(crate) fn comes_about(what: &str, mut attempt: impl FnMut() -> bool) {
    let began = Instant::now();
    while !attempt() {
        assert!(began.elapsed() < Duration::from_secs(60), "this never came about: {what}");
    }
}
