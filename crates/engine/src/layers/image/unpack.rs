//! The layers of an image become one: each is unpacked by itself, and laid over those below it as overlayfs would.
//!
//! So no layer can write through a link of another: where one has a link and a higher one a directory, the directory is there.

use std::{ffi::CString, fs, io, os::fd::AsFd, os::unix::ffi::OsStringExt};

use cabana_guest::tree::{self, Allowance};
use cabana_sandbox::{Error, Result};

use super::{
    digest::Digest,
    layout::{Blob, Hashed},
    manifest::shown,
};
use crate::layers::{
    failed,
    source::{Bounded, Progress, decoded, import},
    store::Store,
};

/// A layer that is not unpacked yet.
pub(super) struct Packed {
    pub(super) blob: Blob,
    /// Of the tar in it.
    pub(super) tar: Option<Digest>,
}

/// Of all layers together.
#[derive(Clone, Copy)]
pub(super) struct Most {
    pub(super) bytes: u64,
    pub(super) entries: u64,
}

/// The lowest first, into the empty directory `into`.
pub(super) fn unpack(
    name: &str,
    layers: Vec<Packed>,
    store: &Store,
    into: &fs::File,
    most: Most,
    on_progress: &mut dyn FnMut(Progress<'_>),
) -> Result<()> {
    let mut left = most;
    for (below, layer) in layers.into_iter().enumerate() {
        let draft = if below == 0 { None } else { Some(store.draft()?) };
        let target = draft.as_ref().map_or(into, |draft| &draft.root);
        let done = most.bytes - left.bytes;
        let mut on_progress = |progress: Progress<'_>| match progress {
            Progress::Copied(bytes) => on_progress(Progress::Copied(done + bytes)),
            other => on_progress(other),
        };
        let hides_all =
            one(layer, store, target, &mut left, &mut on_progress).map_err(|e| of_layer(name, below + 1, most, e))?;
        if let Some(draft) = draft {
            if hides_all {
                clear(into).map_err(failed("merging the layers of an image"))?;
            }
            tree::merge_layer(draft.root.as_fd(), into.as_fd()).map_err(failed("merging the layers of an image"))?;
        }
    }
    tree::drop_vain_whiteouts(into.as_fd(), &[]).map_err(failed("merging the layers of an image"))
}

/// Why a layer is not there.
enum NotUnpacked {
    /// It is not what the image says.
    Other(String),
    TooLarge,
    TooMany,
    Failed(Error),
}

impl From<Error> for NotUnpacked {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Whether it hides everything below it.
fn one(
    mut layer: Packed,
    store: &Store,
    into: &fs::File,
    left: &mut Most,
    on_progress: &mut dyn FnMut(Progress<'_>),
) -> Result<bool, NotUnpacked> {
    let mut allowance = Allowance { holes: left.bytes, entries: left.entries };
    let mut tar = Hashed::new(Bounded::new(decoded(&mut layer.blob)?, left.bytes));
    let unpacked = import(&mut tar, into, store.ids(), &mut allowance, on_progress);
    let whole = unpacked.as_ref().is_ok_and(|_| io::copy(&mut tar, &mut io::sink()).is_ok());
    let over = tar.from.over || matches!(unpacked, Err(Error::TooLarge { .. }));
    let holes = left.bytes - allowance.holes;
    let (rest, found) = (tar.from.left.checked_sub(holes).filter(|_| !over), tar.digest());
    drop(tar);
    left.bytes = rest.ok_or(NotUnpacked::TooLarge)?;
    left.entries = allowance.entries;
    // That it is damaged explains why it could not be unpacked, and not the other way round.
    layer.blob.check().map_err(NotUnpacked::Other)?;
    if unpacked.is_err() && left.entries == 0 {
        return Err(NotUnpacked::TooMany);
    }
    unpacked?;
    if !whole {
        return Err(Error::Archive("it goes on after its end, with what cannot be unpacked".into()).into());
    }
    if layer.tar.is_some_and(|tar| tar != found) {
        let found = shown(&format!("sha256:{}", found.hex()));
        return Err(NotUnpacked::Other(format!(
            "its tar has the digest {found}, and not the one of the configuration: it is damaged, save it anew"
        )));
    }
    Ok(tree::apply_marks(into.as_fd(), store.ids())?)
}

fn of_layer(name: &str, number: usize, most: Most, error: NotUnpacked) -> Error {
    match error {
        NotUnpacked::Other(why) => {
            Error::BadTemplate { name: name.into(), why: format!("layer {number} of the image: {why}") }
        }
        NotUnpacked::TooLarge => Error::TooLarge { cap: most.bytes },
        NotUnpacked::TooMany => {
            Error::Archive(format!("with layer {number} the image has more than {} entries", most.entries))
        }
        NotUnpacked::Failed(Error::Archive(why)) => Error::Archive(format!("layer {number} of the image: {why}")),
        NotUnpacked::Failed(other) => other,
    }
}

fn clear(dir: &fs::File) -> io::Result<()> {
    for entry in fs::read_dir(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(dir)))? {
        tree::remove(dir.as_fd(), &CString::new(entry?.file_name().into_vec())?)?;
    }
    Ok(())
}
