//! A template's layer from a tar of a root file system.

use std::{io, os::fd::BorrowedFd};

use cabana_sandbox::{Error, Result, SandboxPath};

use crate::{
    IdMap,
    archive::{Archive, Extract, Holes, LeftOut, MAX_ENTRIES, Names, Owners},
    unpack::Me,
};

/// What one archive may make, or several together, beside the bytes that it has.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    /// Bytes of files.
    pub holes: u64,
    /// An empty file takes room as well.
    pub entries: u64,
}

impl Allowance {
    /// For one archive.
    pub fn of_holes(holes: u64) -> Self {
        Self { holes, entries: MAX_ENTRIES }
    }
}

/// Owners become those of `ids`; modes, setuid bits and `user.*` attributes but for `user.overlay.*` stay. Devices and pipes
/// are left out, links are as they are and never followed, and of two entries with one name the later wins. `on_progress` is told how much of the
/// archive was read. In `left` is then what is left, also after an error.
pub fn import_tar(
    into: BorrowedFd<'_>,
    tar: &mut dyn io::Read,
    ids: IdMap,
    left: &mut Allowance,
    on_progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let me = Me::read().map_err(|e| Error::failed("read this thread's identity", e))?;
    let owners = Owners::Archives { ids, me: Some((me.uid, me.gid)) };
    let (base, holes) = (&SandboxPath::root(), Holes::up_to(left.holes));
    let (names, left_out) = (Names::Root, LeftOut::default());
    let mut extract =
        Extract { into, base, names, owners, umask: me.umask, rooted: None, holes, left_out, on_progress };
    let mut archive = Archive::of_entries(tar, left.entries);
    let made = extract.run(&mut archive);
    left.holes = left.holes.saturating_sub(extract.holes.found);
    left.entries = left.entries.saturating_sub(archive.entries());
    made
}
