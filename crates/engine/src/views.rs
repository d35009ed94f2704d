//! What of the host may be shown inside, and where. Asked before a sandbox is made, and again whenever it is mounted: what a
//! path leads to can be another thing by then. `places` makes room for views inside of others, and `late` changes those of a
//! sandbox that runs.

mod holders;
mod inner_mounts;
mod late;
mod mount_table;
mod places;
mod watches;

use std::{
    fs::{self, Metadata},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::{Path, PathBuf},
};

use cabana_sandbox::{Error, Result, Source, View, check_views};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

pub(crate) use self::{
    late::{Change, Outcome, change},
    places::{in_order, make_places},
};
use crate::{kernel::mounts, layers::Store, volumes::Volumes};

/// The system itself: who writes there owns the machine.
const SYSTEM: [&str; 13] =
    ["/etc", "/usr", "/proc", "/sys", "/dev", "/boot", "/run", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
/// Too much at once; what lies below may be shown.
const TOO_MUCH: [&str; 5] = ["/", "/var", "/root", "/home", "/var/lib"];
/// A source of the host, as it really lies.
pub(crate) struct Shown {
    pub(crate) fd: OwnedFd,
    pub(crate) meta: Metadata,
}

/// Refuses what must not be shown, or not there. `data` is the data directory.
pub fn check_view(view: &View, data: &Path) -> Result<()> {
    check_views(std::slice::from_ref(view))?;
    match &view.source {
        Source::Layer(_) if view.writable => Err(invalid("a layer cannot be written to")),
        Source::Layer(_) | Source::Volume(_) => Ok(()),
        Source::Host(path) => {
            let source = open(path, data)?;
            if view.writable && source.meta.is_dir() { refuse_inner_mounts(path, &source) } else { Ok(()) }
        }
    }
}

/// Whoever may remove and rename directories there could take the mounts on them off, on the machine.
fn refuse_inner_mounts(path: &Path, source: &Shown) -> Result<()> {
    let inner = inner_mounts::find_inner_mount(source.fd.as_fd(), path.as_os_str().as_bytes());
    match inner.map_err(|error| Error::failed("listing the mounts of this machine", error))? {
        None => Ok(()),
        Some(inner) => Err(Error::MountDenied(format!(
            "{} cannot be mounted read-write, since {} is mounted below it on this machine and could be taken off from inside: \
             mount it read-only, or mount directories that have nothing mounted in them",
            path.display(),
            String::from_utf8_lossy(&inner)
        ))),
    }
}

pub(crate) fn check(views: &[View], data: &Path, store: &Store, volumes: &Volumes) -> Result<()> {
    check_views(views)?;
    for view in views {
        check_view(view, data)?;
        match &view.source {
            Source::Layer(layer) if !store.has(layer) => {
                return Err(invalid(format!("layer {layer} is not in the store: import it first")));
            }
            Source::Volume(volume) if !volumes.has(*volume) => return Err(Error::NoVolume(*volume)),
            _ => {}
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

/// Links are followed first: what counts is where it really lies. Then they are refused: whoever may write where one lies
/// could lead it elsewhere before the next start.
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
    if real != path {
        return Err(invalid(format!("{} leads through a symbolic link: name the directory itself", path.display())));
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

/// The error of a view whose place lies behind a symbolic link of one of these trees.
pub(crate) fn find_link(views: &[View], trees: &[PathBuf]) -> Error {
    let link = |tree: &PathBuf, view: &View| {
        let root = fs::File::open(tree).ok()?;
        let link = mounts::first_link(root.as_fd(), view.at.as_bytes(), ResolveFlags::empty())?;
        Some(behind_link(view.at.as_bytes(), &link))
    };
    let found = trees.iter().find_map(|tree| views.iter().find_map(|view| link(tree, view)));
    found.unwrap_or_else(|| invalid("a symbolic link lies on the way to one of them: name where it leads"))
}

/// Whoever has put the link there, a guest or who made the template, would say where the mount is.
fn behind_link(at: &[u8], link: &[u8]) -> Error {
    let [at, link] = [at, link].map(|path| String::from_utf8_lossy(path).into_owned());
    invalid(format!("{at}: {link} is a symbolic link inside, and no mount is put behind one: name where it leads"))
}

fn invalid(why: impl Into<String>) -> Error {
    Error::invalid("views", why)
}
