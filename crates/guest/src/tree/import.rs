//! A template's layer from a tar of a root file system.

use std::{io, os::fd::BorrowedFd};

use cabana_sandbox::{Error, Result, SandboxPath};

use crate::{
    IdMap,
    archive::{Archive, Extract, Names, Owners},
    unpack::Me,
};

/// Owners become those of `ids`; modes, setuid bits and `user.*` attributes but for `user.overlay.*` stay. Devices and pipes
/// are left out, links are as they are and never followed, and of two entries with one name the later wins. `on_progress` is told how much of the
/// archive was read.
pub fn import_tar(
    into: BorrowedFd<'_>,
    tar: &mut dyn io::Read,
    ids: IdMap,
    on_progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let me = Me::read().map_err(|e| Error::failed("read this thread's identity", e))?;
    let owners = Owners::Archives { ids, me: Some((me.uid, me.gid)) };
    Extract { into, base: &SandboxPath::root(), names: Names::Root, owners, umask: me.umask, rooted: None, on_progress }
        .run(&mut Archive::new(tar))
}
