//! A sandbox's own layers on disk: made for it, and put away while it is stopped.
//!
//! `fs/` holds an upper and a work directory for each overlay. Of a sandbox that runs nothing they say nothing if nothing was
//! written to them, and take most of what such a sandbox takes of the disk. So a stop removes the work directories, which hold
//! nothing between two mounts, and the upper ones that look exactly as new ones would; the next start makes what is missing.
//! Whatever a sudden end leaves is between the two, and both can be done again.

use std::{
    ffi::CString,
    fs::{self, File},
    io,
    os::{
        fd::AsFd,
        unix::fs::{MetadataExt, PermissionsExt, chown},
    },
    path::{Path, PathBuf},
};

use cabana_guest::{IdMap, tree};
use cabana_sandbox::Result;

use crate::{
    fault::{self, Point},
    layers::{LayerName, MADE, Store, both, failed},
    plan::Plan,
};

pub(crate) fn upper(own: &Path, overlay: usize) -> PathBuf {
    own.join(format!("upper{overlay}"))
}

pub(crate) fn work(own: &Path, overlay: usize) -> PathBuf {
    own.join(format!("work{overlay}"))
}

/// A directory as a new sandbox has it, of root inside. The time is that of every layer's root: so it can be made again.
pub(crate) fn make(dir: &Path, ids: IdMap) -> io::Result<()> {
    fs::create_dir(dir)?;
    chown(dir, ids.outside(0), ids.outside(0))?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    Ok(rustix::fs::utimensat(rustix::fs::CWD, dir, &both(MADE), rustix::fs::AtFlags::empty())?)
}

/// The root of an overlay looks as its own layer does: a new one takes over the looks of the one below.
pub(crate) fn dress_new(store: &Store, plan: &Plan, own: &Path) -> Result<()> {
    (0..plan.overlays()).try_for_each(|overlay| dress(store, plan, overlay, &upper(own, overlay)))
}

fn dress(store: &Store, plan: &Plan, overlay: usize, dir: &Path) -> Result<()> {
    let Some(top) = kept_top(plan, overlay) else { return Ok(()) };
    let layer = store.open_layer(top)?;
    let dressed = File::open(dir).and_then(|dir| tree::dress_like(layer.as_fd(), dir.as_fd()));
    dressed.map_err(failed("making the sandbox's layer"))
}

/// What was put away, before it is mounted. Each directory is made elsewhere, and renamed when it looks as it should.
pub(crate) fn take_out(store: &Store, plan: &Plan, own: &Path) -> Result<()> {
    let new = own.join("new");
    let begin = || {
        remove(&new)?;
        make(&new, store.ids())
    };
    for overlay in 0..plan.overlays() {
        for (at, looks) in [(upper(own, overlay), true), (work(own, overlay), false)] {
            if at.exists() {
                continue;
            }
            begin().map_err(failed("making the sandbox's layer"))?;
            if looks {
                dress(store, plan, overlay, &new)?;
            }
            fs::rename(&new, &at).map_err(failed("making the sandbox's layer"))?;
        }
    }
    fault::at(Point::HomeTakenOut);
    Ok(())
}

/// Of a sandbox in which nothing runs: nothing of it is mounted.
pub(crate) fn put_away(store: &Store, plan: &Plan, own: &Path) -> Result<()> {
    for overlay in 0..plan.overlays() {
        remove(&work(own, overlay)).map_err(failed("clearing the sandbox's work directory"))?;
        fault::at(Point::HomeCleared);
        // One that a snapshot is to have as a layer goes there first (see `still`).
        if kept_top(plan, overlay).is_some_and(|top| store.awaits(top)) {
            continue;
        }
        let upper = upper(own, overlay);
        if is_as_made(store, plan, overlay, &upper)? {
            fs::remove_dir(&upper).map_err(failed("clearing the sandbox's layer"))?;
        }
    }
    fault::at(Point::HomePutAway);
    Ok(())
}

pub(super) fn kept_top(plan: &Plan, overlay: usize) -> Option<LayerName> {
    plan.stack(overlay).last().copied().filter(LayerName::is_kept)
}

fn is_as_made(store: &Store, plan: &Plan, overlay: usize, upper: &Path) -> Result<bool> {
    let Some(dir) = open(upper)? else { return Ok(false) };
    let looked = match kept_top(plan, overlay) {
        Some(top) => tree::is_dressed_like(store.open_layer(top)?.as_fd(), dir.as_fd()),
        None => dir.metadata().and_then(|meta| {
            let then = (meta.mtime(), meta.mtime_nsec()) == (MADE.tv_sec, MADE.tv_nsec);
            Ok(then && tree::is_untouched(dir.as_fd(), store.ids())?)
        }),
    };
    looked.map_err(failed("looking at the sandbox's layer"))
}

/// Whether nothing was written to it; nothing was, if it is put away.
pub(super) fn is_untouched(upper: &Path, ids: IdMap) -> Result<bool> {
    let Some(dir) = open(upper)? else { return Ok(true) };
    tree::is_untouched(dir.as_fd(), ids).map_err(failed("looking at the sandbox's layer"))
}

fn open(dir: &Path) -> Result<Option<File>> {
    match File::open(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some).map_err(failed("opening the sandbox's layer")),
    }
}

/// Without following links, whatever is there. Absent is Ok.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    tree::remove(File::open(parent)?.as_fd(), &CString::new(name.as_encoded_bytes())?)
}
