//! A template's layer from a tar of a root file system.

use std::{io, os::fd::BorrowedFd};

use cabana_sandbox::{Error, Result, SandboxPath};

use crate::{
    IdMap,
    archive::{Archive, Extract, Holes, LeftOut, Names, Owners},
    unpack::Me,
};

/// Owners become those of `ids`; modes, setuid bits and `user.*` attributes but for `user.overlay.*` stay. Devices and pipes
/// are left out, links are as they are and never followed, and of two entries with one name the later wins. `on_progress` is told how much of the
/// archive was read. Tells how much of the files is holes, which no length of the archive bounds: more than `max_holes` are too large.
pub fn import_tar(
    into: BorrowedFd<'_>,
    tar: &mut dyn io::Read,
    ids: IdMap,
    max_holes: u64,
    on_progress: &mut dyn FnMut(u64),
) -> Result<u64> {
    let me = Me::read().map_err(|e| Error::failed("read this thread's identity", e))?;
    let owners = Owners::Archives { ids, me: Some((me.uid, me.gid)) };
    let (base, holes) = (&SandboxPath::root(), Holes::up_to(max_holes));
    let (names, left_out) = (Names::Root, LeftOut::default());
    let mut extract =
        Extract { into, base, names, owners, umask: me.umask, rooted: None, holes, left_out, on_progress };
    extract.run(&mut Archive::new(tar))?;
    Ok(extract.holes.found)
}
