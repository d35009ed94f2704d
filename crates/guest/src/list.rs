//! The entries of a directory, a batch at a time: a directory may hold millions.

use std::{
    ffi::CString,
    os::fd::{AsFd, BorrowedFd},
};

use cabana_sandbox::{FileInfo, Result, SandboxPath};
use rustix::{fs::Dir, io::Errno};

use crate::{Rooted, errno::fault};

const BATCH: usize = 256;

pub struct Listing {
    rooted: Rooted,
    path: SandboxPath,
    entries: Dir,
    dir: std::os::fd::OwnedFd,
}

impl Rooted {
    /// Follows a link to a directory.
    pub fn list(&self, dir: &SandboxPath) -> Result<Listing> {
        let failed = |e| fault(dir, "list", e);
        let fd = self.open_dir(dir)?;
        let entries = Dir::read_from(&fd).map_err(failed)?;
        Ok(Listing { rooted: self.clone(), path: dir.clone(), entries, dir: fd })
    }
}

impl AsFd for Listing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

impl Listing {
    /// At most 256 entries; `None` at the end. One that vanished since it was read is left out.
    pub fn next_batch(&mut self) -> Result<Option<Vec<FileInfo>>> {
        let names = self.next_names()?;
        if names.is_empty() {
            return Ok(None);
        }
        let accounts = self.rooted.names();
        let mut batch = Vec::with_capacity(names.len());
        for name in names {
            let path = self.path.join(name.to_bytes())?;
            match self.rooted.entry(&accounts, self.dir.as_fd(), &name, path) {
                Ok(info) => batch.push(info),
                Err(Errno::NOENT | Errno::STALE) => {}
                Err(errno) => return Err(fault(&self.path, "list", errno)),
            }
        }
        Ok(Some(batch))
    }

    fn next_names(&mut self) -> Result<Vec<CString>> {
        let mut names = Vec::new();
        while names.len() < BATCH {
            match self.entries.read() {
                Some(Ok(entry)) if entry.file_name() == c"." || entry.file_name() == c".." => {}
                Some(Ok(entry)) => names.push(entry.file_name().to_owned()),
                Some(Err(errno)) => return Err(fault(&self.path, "list", errno)),
                None => break,
            }
        }
        Ok(names)
    }
}
