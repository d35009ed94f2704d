//! The mask over a tree of the host: a whiteout for everything that not everybody on the host may read.
//!
//! Inside, the host's root is mapped to the sandbox's root, or nothing below `/usr` could be upgraded there. So root inside
//! could read what only root outside may. What the kernel denies anyway, since its owner is not mapped, needs no mask; unless we are in
//! a group that is not mapped, either: that looks like any other, and where nobody may give up groups, sandboxes are in it, too.

use std::{
    fs,
    io::{self, ErrorKind},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use cabana_sandbox::Result;
use rustix::fs::Timespec;

use super::super::{
    failed,
    store::{Sealed, Store},
    writer::{Meta, Writer},
};

/// The id that stands for those that are not mapped into our user namespace.
const UNMAPPED: u32 = 65_534;

pub(super) fn make(store: &Store, tree: &Path) -> Result<Option<Sealed>> {
    let hidden = find(tree).map_err(failed("looking for what must be hidden"))?;
    if hidden.is_empty() {
        return Ok(None);
    }
    let draft = store.draft()?;
    let mut writer = Writer::new(&draft.tree, store.ids());
    for path in &hidden {
        cover(&mut writer, tree, path).map_err(failed("writing a mask"))?;
    }
    writer.end().map_err(failed("writing a mask"))?;
    draft.seal().map(Some)
}

/// The paths to hide, relative to the tree. What is below a hidden directory is hidden with it.
fn find(tree: &Path) -> io::Result<Vec<PathBuf>> {
    let all_owners_count = sees_all_ids()? || has_unmapped_group();
    let device = fs::symlink_metadata(tree)?.dev();
    let (mut hidden, mut dirs) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(dir) = dirs.pop() {
        let Some(entries) = if_there(fs::read_dir(tree.join(&dir)))? else { continue };
        for entry in entries {
            let entry = entry?;
            let Some(meta) = if_there(entry.metadata())? else { continue };
            let path = dir.join(entry.file_name());
            // The first byte that nobody but its owner may see decides; a file system mounted here is not shown at all.
            let open = match meta.file_type() {
                kind if kind.is_symlink() => true,
                kind if kind.is_file() => meta.mode() & 0o004 != 0,
                kind if kind.is_dir() => meta.mode() & 0o005 == 0o005 && meta.dev() == device,
                _ => false,
            };
            let denied_anyway = !all_owners_count && meta.uid() == UNMAPPED && meta.gid() == UNMAPPED;
            if !open && !denied_anyway {
                hidden.push(path);
            } else if open && meta.is_dir() {
                dirs.push(path);
            }
        }
    }
    hidden.sort();
    Ok(hidden)
}

/// Whether every id is mapped here, as it is outside of any user namespace: then 65534 is a user like any other.
fn sees_all_ids() -> io::Result<bool> {
    let map = fs::read_to_string("/proc/self/uid_map")?;
    Ok(map.split_whitespace().eq(["0", "0", "4294967295"]))
}

fn has_unmapped_group() -> bool {
    // An error would be that there are more than there can be: then one of them is none of ours.
    rustix::process::getgroups().map_or(true, |groups| groups.iter().any(|group| group.as_raw() == UNMAPPED))
}

/// The host lives: what goes away during the walk was not there.
fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => Ok(None),
        other => other.map(Some),
    }
}

/// The directories on the way cover those of the host, so they are made with the same metadata.
fn cover(writer: &mut Writer<'_>, tree: &Path, path: &Path) -> io::Result<()> {
    let parents: Vec<_> = path.ancestors().skip(1).filter(|dir| *dir != Path::new("")).collect();
    for dir in parents.into_iter().rev() {
        if !writer.has_dir(dir) {
            let meta = fs::symlink_metadata(tree.join(dir))?;
            let time = Timespec { tv_sec: meta.mtime(), tv_nsec: meta.mtime_nsec() };
            writer.dir_at(dir, Meta::new(meta.mode() & 0o7777).owned(meta.uid(), meta.gid()).at(time))?;
        }
    }
    writer.whiteout(path)
}
