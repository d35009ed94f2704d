//! What is told about one file.

use std::{collections::BTreeMap, os::fd::BorrowedFd, sync::Arc};

use cabana_sandbox::{FileInfo, Kind, Link, Result, SandboxPath};
use rustix::{
    fs::{OFlags, Stat},
    io::Errno,
};

use crate::{Accounts, Rooted, errno::fault, sys, xattr};

impl Rooted {
    /// Of the entry itself: a link is not followed, but says where it leads.
    pub fn stat(&self, path: &SandboxPath) -> Result<FileInfo> {
        let failed = |e| fault(path, "stat", e);
        let found = self.resolve(path.relative(), OFlags::PATH | OFlags::NOFOLLOW).map_err(failed)?;
        let stat = rustix::fs::fstat(&found).map_err(failed)?;
        let mut info = describe(self, &self.names(), path.clone(), &stat);
        match info.kind {
            Kind::Symlink => {
                let text = rustix::fs::readlinkat(&found, c"", Vec::new()).map_err(failed)?;
                info.link = Some(self.link(path, text.into_bytes()));
            }
            Kind::File | Kind::Directory => info.tags = tags_of(&found),
            Kind::Other => {}
        }
        Ok(info)
    }

    /// An entry of a directory that was just listed. `NOENT` when it vanished meanwhile.
    pub(crate) fn entry(
        &self,
        names: &Arc<Accounts>,
        dir: BorrowedFd<'_>,
        name: &std::ffi::CStr,
        path: SandboxPath,
    ) -> Result<FileInfo, Errno> {
        let stat = sys::stat_at(dir, name)?;
        let mut info = describe(self, names, path, &stat);
        match info.kind {
            Kind::Symlink => {
                let text = sys::link_text(dir, name)?;
                info.link = Some(self.link(&info.path, text));
            }
            Kind::File | Kind::Directory => {
                info.tags = tags(xattr::read_at(&sys::proc_entry(&dir, name), xattr::TAG));
            }
            Kind::Other => {}
        }
        Ok(info)
    }

    fn link(&self, path: &SandboxPath, text: Vec<u8>) -> Link {
        let target = self.canonical(path).ok().map(|(path, stat)| (path, sys::kind(&stat), sys::mode(&stat)));
        Link { text, target }
    }
}

/// Without link and tags.
pub(crate) fn describe(rooted: &Rooted, names: &Accounts, path: SandboxPath, stat: &Stat) -> FileInfo {
    let (uid, gid) = (rooted.ids().inside(stat.st_uid), rooted.ids().inside(stat.st_gid));
    FileInfo {
        path,
        kind: sys::kind(stat),
        size: sys::size(stat),
        mode: sys::mode(stat),
        owner: names.user_name(uid).map_or_else(|| uid.to_string(), str::to_owned),
        group: names.group_name(gid).map_or_else(|| gid.to_string(), str::to_owned),
        modified: sys::modified(stat),
        link: None,
        tags: BTreeMap::new(),
    }
}

pub(crate) fn tags_of(fd: &impl std::os::fd::AsFd) -> BTreeMap<String, String> {
    tags(xattr::read_through(sys::proc_path(fd).as_bytes(), xattr::TAG))
}

/// What is no text was not set by us, and is no tag.
fn tags(attributes: xattr::Attributes) -> BTreeMap<String, String> {
    attributes
        .into_iter()
        .filter_map(|(name, value)| {
            let name = String::from_utf8(name.strip_prefix(xattr::TAG)?.to_vec()).ok()?;
            Some((name, String::from_utf8(value).ok()?)).filter(|(name, _)| !name.is_empty())
        })
        .collect()
}
