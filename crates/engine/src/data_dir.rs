//! The data directory: where layers, templates and sandboxes lie, and the check that it is ours.
//!
//! It has mode 0700, always: the layers hold set-uid programs owned by the storage range, and whoever on the host could
//! run one would own every layer. Sandboxes reach layers through idmapped mounts made by us, never through this path.
//! Any number of processes may hold it open at once.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use cabana_guest::IdMap;
use cabana_model::Code;
use rustix::fs::{Access, AtFlags, FlockOperation};

const VERSION: &str = "1\n";
const PARTS: [&str; 5] = ["layers", "templates", "snapshots", "sandboxes", "volumes"];

#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    dir: OwnedFd,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the data directory {} cannot be written to: it lies on a read-only file system or its permissions forbid it", path.display())]
    ReadOnly { path: PathBuf },
    #[error("{} is not a data directory of ours: {why}", path.display())]
    NotOurs { path: PathBuf, why: String },
    #[error("{} cannot be the data directory: it, or a part of its path, is not a directory", path.display())]
    NotDirectory { path: PathBuf },
    #[error("the data directory {} has version {found:?}, and this program knows only {:?}", path.display(), VERSION.trim())]
    Version { path: PathBuf, found: String },
    #[error("the setting of the {name} cannot be used: {why}")]
    Setting { name: &'static str, why: String },
    #[error("this host cannot run sandboxes: {what}")]
    Host { what: String },
    #[error("{step} in the data directory {} failed: {source}", path.display())]
    Io { path: PathBuf, step: &'static str, source: io::Error },
}

impl OpenError {
    pub fn code(&self) -> Code {
        match self {
            Self::ReadOnly { .. } => Code::DataDirReadOnly,
            Self::NotOurs { .. } | Self::NotDirectory { .. } => Code::DataDirNotOurs,
            Self::Version { .. } => Code::DataDirVersion,
            Self::Setting { .. } => Code::BadRequest,
            Self::Host { .. } => Code::HostUnsupported,
            Self::Io { source, .. } if source.kind() == ErrorKind::StorageFull => Code::NoSpace,
            Self::Io { .. } => Code::Internal,
        }
    }
}

impl DataDir {
    /// Opens what is there, or makes it: a directory that is absent or empty becomes ours, one with other content never.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        let path = std::path::absolute(path.as_ref()).map_err(|e| failure(path.as_ref(), "finding its path", e))?;
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.map_err(|e| failure(&path, "making it", e))?;
        let dir = File::open(&path).map_err(|e| failure(&path, "opening it", e))?;
        check_owner(&path, &dir)?;
        check_writable(&path, &dir)?;
        match read_version(&path)? {
            Some(version) => check_version(&path, &version)?,
            None => adopt(&path, &dir)?,
        }
        make_private(&path, &dir)?;
        make_parts(&path)?;
        Ok(Self { path, dir: dir.into() })
    }

    /// All files in it lie in one range of ids. Root of a machine and root of a container may share a directory, but not
    /// that: the layers of one would belong to nobody in the other's sandboxes.
    pub(crate) fn claim_ids(&self, ids: IdMap) -> Result<(), OpenError> {
        let (path, ours) = (self.path.join("ids"), format!("{} {}\n", ids.base, ids.count));
        // On a full disk nothing more can be written.
        if fs::read_to_string(&path).is_ok_and(|theirs| theirs == ours) {
            return Ok(());
        }
        let draft = self.path.join(format!(".ids-{}", uuid::Uuid::new_v4().simple()));
        let claimed = fs::write(&draft, &ours).and_then(|()| fs::hard_link(&draft, &path));
        let _ = fs::remove_file(&draft);
        match claimed {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(failure(&self.path, "claiming its ids", e)),
            _ => {}
        }
        let theirs = fs::read_to_string(&path).map_err(|e| failure(&self.path, "reading its ids", e))?;
        if theirs == ours {
            return Ok(());
        }
        let why =
            format!("its files have the ids {} on disk, and this process would write {}", theirs.trim(), ours.trim());
        Err(OpenError::NotOurs { path: self.path.clone(), why })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    pub fn layers(&self) -> PathBuf {
        self.path.join("layers")
    }

    pub fn templates(&self) -> PathBuf {
        self.path.join("templates")
    }

    pub fn snapshots(&self) -> PathBuf {
        self.path.join("snapshots")
    }

    pub fn volumes(&self) -> PathBuf {
        self.path.join("volumes")
    }

    pub fn sandboxes(&self) -> PathBuf {
        self.path.join("sandboxes")
    }
}

/// Somebody else's directory could change under us: whoever owns it could swap a layer for another.
fn check_owner(path: &Path, dir: &File) -> Result<(), OpenError> {
    let owner = dir.metadata().map_err(|e| failure(path, "looking at it", e))?.uid();
    let us = rustix::process::geteuid().as_raw();
    if owner == us {
        return Ok(());
    }
    Err(OpenError::NotOurs {
        path: path.into(),
        why: format!("it belongs to user {owner}, and this process runs as user {us}"),
    })
}

fn check_writable(path: &Path, dir: &File) -> Result<(), OpenError> {
    rustix::fs::accessat(dir, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)
        .map_err(|e| failure(path, "checking that it can be written to", e.into()))
}

fn read_version(path: &Path) -> Result<Option<Vec<u8>>, OpenError> {
    // Not a pipe that waits for ever, and not more than a version can be.
    let options =
        fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path.join("version"));
    let mut text = Vec::new();
    match options.and_then(|file| file.take(64).read_to_end(&mut text)) {
        Ok(_) => Ok(Some(text)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(failure(path, "reading its version", e)),
    }
}

fn check_version(path: &Path, version: &[u8]) -> Result<(), OpenError> {
    if version == VERSION.as_bytes() {
        return Ok(());
    }
    Err(OpenError::Version { path: path.into(), found: String::from_utf8_lossy(version).trim().to_owned() })
}

/// One process at a time makes a new directory ours; the others find it made.
fn adopt(path: &Path, dir: &File) -> Result<(), OpenError> {
    let io = |step| move |e: io::Error| failure(path, step, e);
    rustix::fs::flock(dir.as_fd(), FlockOperation::LockExclusive).map_err(|e| io("locking it")(e.into()))?;
    let outcome = adopt_locked(path);
    rustix::fs::flock(dir.as_fd(), FlockOperation::Unlock).map_err(|e| io("unlocking it")(e.into()))?;
    outcome
}

fn adopt_locked(path: &Path) -> Result<(), OpenError> {
    if let Some(version) = read_version(path)? {
        return check_version(path, &version);
    }
    for entry in fs::read_dir(path).map_err(|e| failure(path, "listing it", e))? {
        let name = entry.map_err(|e| failure(path, "listing it", e))?.file_name();
        // `version.new` was left by one of us that ended here; `lost+found` is what an empty ext4 has.
        if name != "version.new" && name != "lost+found" {
            let why = format!("it is not empty (there is {name:?}) and has no file `version`");
            return Err(OpenError::NotOurs { path: path.into(), why });
        }
    }
    write_version(path).map_err(|e| failure(path, "writing its version", e))
}

/// Whole or not at all: a version that is there is complete.
fn write_version(path: &Path) -> io::Result<()> {
    let new = path.join("version.new");
    let mut file = File::create(&new)?;
    let written = file.write_all(VERSION.as_bytes()).and_then(|()| file.sync_all());
    written.and_then(|()| fs::rename(&new, path.join("version"))).inspect_err(|_| drop(fs::remove_file(&new)))
}

fn make_private(path: &Path, dir: &File) -> Result<(), OpenError> {
    let mode = dir.metadata().map_err(|e| failure(path, "looking at it", e))?.mode();
    if mode & 0o7777 == 0o700 {
        return Ok(());
    }
    dir.set_permissions(fs::Permissions::from_mode(0o700)).map_err(|e| failure(path, "closing it to others", e))
}

fn make_parts(path: &Path) -> Result<(), OpenError> {
    for part in PARTS {
        match fs::DirBuilder::new().mode(0o700).create(path.join(part)) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(failure(path, "making its parts", e)),
            _ => {}
        }
    }
    Ok(())
}

fn failure(path: &Path, step: &'static str, source: io::Error) -> OpenError {
    let path = path.to_path_buf();
    match source.kind() {
        ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => OpenError::ReadOnly { path },
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => OpenError::NotDirectory { path },
        _ => OpenError::Io { path, step, source },
    }
}
