//! A user's archive, into a directory that exists.

use std::{io, os::fd::AsFd};

use cabana_sandbox::{Error, Result, SandboxPath};

use crate::{
    Rooted,
    archive::{Archive, Extract, Holes, LeftOut, Names, Owners},
    errno::fault,
    rooted::{SEARCH, WRITE},
};

impl Rooted {
    /// As the calling identity. Owners are the archive's only for root inside. Entries lie below the directory, whatever
    /// their names say and whatever links are there; the directory itself stays as it is. Files that are there are replaced.
    pub fn unpack(&self, dir: &SandboxPath, tar: &mut dyn io::Read) -> Result<()> {
        let into = self.open_dir(dir)?;
        self.judge(&into, WRITE | SEARCH).map_err(|e| fault(dir, "unpack", e))?;
        let me = Me::read().map_err(|e| Error::failed("read this thread's identity", e))?;
        let ids = self.ids();
        let owners = match ids.inside(me.uid) {
            0 => Owners::Archives { ids, me: Some((me.uid, me.gid)) },
            _ => Owners::Mine,
        };
        Extract {
            into: into.as_fd(),
            base: dir,
            names: Names::Strict,
            owners,
            umask: me.umask,
            rooted: Some(self),
            holes: Holes::UNBOUNDED, // in the sandbox's own files, whose length it sets as it likes
            left_out: LeftOut::default(),
            on_progress: &mut |_| (),
        }
        .run(&mut Archive::new(tar))
    }
}

/// Who this thread is to the file system, and what its process takes away from modes: only /proc tells without changing it.
pub(crate) struct Me {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) umask: u32,
}

impl Me {
    pub(crate) fn read() -> io::Result<Self> {
        let status = std::fs::read_to_string("/proc/thread-self/status")?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        // Real, effective, saved, and the file system's.
        let last = |name| field(name)?.split_whitespace().nth(3)?.parse().ok();
        let umask = field("Umask:").and_then(|mask| u32::from_str_radix(mask, 8).ok());
        match (last("Uid:"), last("Gid:"), umask) {
            (Some(uid), Some(gid), Some(umask)) => Ok(Self { uid, gid, umask }),
            _ => Err(io::Error::other("/proc/thread-self/status has no Uid, Gid or Umask")),
        }
    }
}
