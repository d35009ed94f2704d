//! What of the host may be shown inside, and where. Asked before a sandbox is made, and again whenever it is mounted: what a
//! path leads to can be another thing by then.

use std::{
    fs::{self, Metadata},
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

use cabana_sandbox::{Error, Result, SandboxPath, Source, View};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

use crate::layers::Store;

/// The system itself: who writes there owns the machine.
const SYSTEM: [&str; 7] = ["/etc", "/usr", "/proc", "/sys", "/dev", "/boot", "/run"];
/// Too much at once; what lies below may be shown.
const TOO_MUCH: [&str; 5] = ["/", "/var", "/root", "/home", "/var/lib"];
/// What every sandbox has of its own, with all that is below.
const OWN: [&str; 3] = ["/proc", "/sys", "/dev"];
/// What nothing runs without; places below may be taken.
const NEEDED: [&str; 11] = [
    "/",
    "/etc",
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/etc/passwd",
    "/etc/group",
    "/etc/shadow",
    "/etc/gshadow",
];

/// A source of the host, as it really lies.
pub(crate) struct Shown {
    pub(crate) fd: OwnedFd,
    pub(crate) meta: Metadata,
}

/// Refuses what must not be shown, or not there. `data` is the data directory.
pub fn check_view(view: &View, data: &Path) -> Result<()> {
    check_place(&view.at)?;
    match &view.source {
        Source::Layer(_) if view.writable => Err(invalid("a layer cannot be written to")),
        Source::Layer(_) => Ok(()),
        Source::Host(path) => find(path, data).map(drop),
    }
}

pub(crate) fn check(views: &[View], data: &Path, store: &Store) -> Result<()> {
    for (number, view) in views.iter().enumerate() {
        check_view(view, data)?;
        if views[..number].iter().any(|other| other.at == view.at) {
            return Err(invalid(format!("{} is the place of two views", view.at)));
        }
        if let Source::Layer(layer) = &view.source
            && !store.has(layer)
        {
            return Err(invalid(format!("layer {layer} is not in the store: import it first")));
        }
    }
    Ok(())
}

/// Opens a source, just as it was found: nobody can put a link into its path meanwhile.
pub(crate) fn open(path: &Path, data: &Path) -> Result<Shown> {
    let real = find(path, data)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat2(CWD, &real, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
        .map_err(|errno| invalid(format!("{}: {}", real.display(), std::io::Error::from(errno))))?;
    let meta = fs::File::from(fd.try_clone().map_err(|error| Error::failed("opening a view", error))?)
        .metadata()
        .map_err(|error| Error::failed("opening a view", error))?;
    kind(&real, &meta)?;
    Ok(Shown { fd, meta })
}

fn check_place(at: &SandboxPath) -> Result<()> {
    if OWN.iter().any(|own| at.as_path().starts_with(own)) {
        return Err(invalid(format!(
            "a view at {at} would hide what every sandbox has of its own (/proc, /sys, /dev)"
        )));
    }
    if NEEDED.iter().any(|needed| at.as_path() == Path::new(needed)) {
        return Err(invalid(format!("a view at {at} would hide what nothing runs without: choose a place of its own")));
    }
    Ok(())
}

/// Links are followed first: what counts is where it really lies.
fn find(path: &Path, data: &Path) -> Result<PathBuf> {
    if !path.is_absolute() {
        return Err(invalid(format!("{} is no absolute path of this machine", path.display())));
    }
    let real = path.canonicalize().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => invalid(format!("{} does not exist on this machine", path.display())),
        _ => invalid(format!("{}: {error}", path.display())),
    })?;
    let shown = real.display();
    if let Some(system) = SYSTEM.iter().find(|system| real.starts_with(system)) {
        return Err(invalid(format!("{shown} is part of the system itself ({system}), which is never shown")));
    }
    if TOO_MUCH.iter().any(|all| real == Path::new(all)) {
        return Err(invalid(format!("{shown} holds much more than one sandbox needs: name a directory below it")));
    }
    if holds_or_lies_in(&real, data) {
        let why = "holds the data directory, or lies in it: the files of other sandboxes are there";
        return Err(invalid(format!("{shown} {why}")));
    }
    kind(&real, &fs::metadata(&real).map_err(|error| invalid(format!("{shown}: {error}")))?)?;
    Ok(real)
}

/// By path, and by what is there: a directory may be mounted at several places.
fn holds_or_lies_in(path: &Path, data: &Path) -> bool {
    let real = data.canonicalize().unwrap_or_else(|_| data.to_owned());
    let id = |path: &Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
    let ours = id(&real);
    real.starts_with(path)
        || path.starts_with(&real)
        || ours.is_some() && path.ancestors().any(|above| id(above) == ours)
        || id(path).is_some_and(|theirs| real.ancestors().any(|above| id(above) == Some(theirs)))
}

fn kind(path: &Path, meta: &Metadata) -> Result<()> {
    if meta.is_dir() || meta.is_file() {
        return Ok(());
    }
    let why = "is no directory and no regular file: a socket or device would lead out of the sandbox";
    Err(invalid(format!("{} {why}", path.display())))
}

fn invalid(why: impl Into<String>) -> Error {
    Error::invalid("views", why)
}
