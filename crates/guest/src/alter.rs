//! The single steps that change a tree.

use std::{
    collections::BTreeMap,
    ffi::CStr,
    os::fd::{AsFd, BorrowedFd},
};

use cabana_sandbox::{Alter, Error, Result, SandboxPath, User};
use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
};

use crate::{
    Rooted,
    errno::{fault, io_fault},
    info::tags_of,
    rooted::NOT_EVEN_ALL,
    sys,
    temp::{self, Aim},
    tree, xattr,
};

/// What one attribute's name may have beside `user.e2b.`.
const MAX_TAG_NAME: usize = 255 - xattr::TAG.len();
const MAX_LINK_TEXT: usize = 4095;
const ALL_BITS: u32 = 0o7777;

impl Rooted {
    pub fn alter(&self, step: &Alter) -> Result<()> {
        match step {
            Alter::MakeDir(path, mode) => self.make_dir(path, *mode),
            Alter::Rename(from, to) => self.rename(from, to),
            Alter::Remove(path) => self.remove(path),
            Alter::RemoveAll(path) => self.remove_all(path),
            Alter::SetMode(path, mode) => self.set_mode(path, *mode),
            Alter::SetOwner(path, user) => self.set_owner(path, user),
            Alter::Symlink { at, text } => self.symlink(at, text),
            Alter::SetTags(path, tags) => self.set_tags(path, tags),
        }
    }

    fn make_dir(&self, path: &SandboxPath, mode: u32) -> Result<()> {
        if path.is_root() {
            return Err(Error::Exists(path.clone()));
        }
        let failed = |e| fault(path, "make the directory", e);
        let (dir, name) = self.parent(path)?;
        self.check_mode(&dir, mode).map_err(failed)?;
        rustix::fs::mkdirat(&dir, &name, Mode::from_raw_mode(mode & 0o1777)).map_err(failed)?;
        // The umask of this process is not the sandbox's: the mode is as asked. A group inherited from above stays.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&dir, &name, flags, Mode::empty()).map_err(failed)?;
        let got = sys::mode(&rustix::fs::fstat(&made).map_err(failed)?);
        let wanted = mode | (got & 0o2000);
        if got != wanted {
            sys::chmod_path(&made, wanted).map_err(failed)?;
        }
        Ok(())
    }

    fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        let (from_dir, from_name) = self.parent(from)?;
        let (to_dir, to_name) = self.parent(to)?;
        sys::check_no_mount(&from_dir, &from_name).map_err(|e| fault(from, "rename", e))?;
        sys::check_no_mount(&to_dir, &to_name).map_err(|e| fault(to, "rename", e))?;
        match rustix::fs::renameat(&from_dir, &from_name, &to_dir, &to_name) {
            Ok(()) => Ok(()),
            // A directory of a layer below, or another mount: the kernel leaves the copying to us.
            Err(Errno::XDEV) => self.move_by_copy(from, to),
            Err(errno) => Err(rename_fault(from, to, errno)),
        }
    }

    /// All or nothing as far as it can be: the copy is made under a hidden name, shown with one rename, and only then the
    /// original goes.
    fn move_by_copy(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        let (from_dir, from_name) = self.parent(from)?;
        let (to_dir, to_name) = self.parent(to)?;
        if to.is_in(from) {
            return Err(Error::invalid("to", format!("{to} lies inside {from}")));
        }
        may_remove(from_dir.as_fd(), &from_name).map_err(|e| fault(from, "rename", e))?;
        let aim = if sys::stat_at(&to_dir, &to_name).is_ok() { Aim::Replaces } else { Aim::New };
        let hidden = temp::name(aim);
        let copied = self
            .mode_within(&to_dir, ALL_BITS)
            .and_then(|bits| tree::copy_entry(from_dir.as_fd(), &from_name, to_dir.as_fd(), &hidden, bits))
            .map_err(|e| fault(from, "copy in place of a rename", e))
            .and_then(|()| {
                rustix::fs::renameat(&to_dir, &hidden, &to_dir, &to_name).map_err(|e| rename_fault(from, to, e))
            });
        if copied.is_err() {
            // The first error is the one to tell.
            let _ = tree::remove(to_dir.as_fd(), &hidden);
            return copied;
        }
        tree::remove_inside(from_dir.as_fd(), &from_name).map_err(|e| io_fault(from, "remove the original", e))
    }

    fn remove(&self, path: &SandboxPath) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        sys::check_no_mount(&dir, &name).map_err(|e| fault(path, "remove", e))?;
        let removed = match rustix::fs::unlinkat(&dir, &name, AtFlags::empty()) {
            Err(Errno::ISDIR) => rustix::fs::unlinkat(&dir, &name, AtFlags::REMOVEDIR),
            result => result,
        };
        removed.map_err(|e| match e {
            Errno::EXIST => Error::NotEmpty(path.clone()),
            e => fault(path, "remove", e),
        })
    }

    fn remove_all(&self, path: &SandboxPath) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        sys::stat_at(&dir, &name).map_err(|e| fault(path, "remove", e))?;
        sys::check_no_mount(&dir, &name).map_err(|e| fault(path, "remove", e))?;
        tree::remove_inside(dir.as_fd(), &name).map_err(|e| io_fault(path, "remove", e))
    }

    fn set_mode(&self, path: &SandboxPath, mode: u32) -> Result<()> {
        let found = self.find(path)?;
        let set = || {
            self.judge(&found, NOT_EVEN_ALL)?;
            self.check_change(&found, mode)?;
            sys::chmod_path(&found, mode)
        };
        set().map_err(|e| fault(path, "set the mode", e))
    }

    fn set_owner(&self, path: &SandboxPath, user: &User) -> Result<()> {
        let ids = self.ids();
        let account = self.accounts()?.user_within(user, ids)?;
        let (uid, gid) = (ids.outside(account.uid).map(sys::uid), ids.outside(account.gid).map(sys::gid));
        let found = self.find(path)?;
        self.judge(&found, NOT_EVEN_ALL).map_err(|e| fault(path, "set the owner", e))?;
        rustix::fs::chownat(found, c"", uid, gid, AtFlags::EMPTY_PATH).map_err(|e| fault(path, "set the owner", e))
    }

    fn symlink(&self, at: &SandboxPath, text: &[u8]) -> Result<()> {
        if text.is_empty() || text.contains(&0) || text.len() > MAX_LINK_TEXT {
            return Err(Error::invalid("text", "of a link must have 1 to 4095 bytes and no NUL"));
        }
        if at.is_root() {
            return Err(Error::Exists(at.clone()));
        }
        let (dir, name) = self.parent(at)?;
        rustix::fs::symlinkat(text, &dir, &name).map_err(|e| fault(at, "make the link", e))
    }

    /// The whole set or, when one cannot be set, the old one.
    fn set_tags(&self, path: &SandboxPath, tags: &BTreeMap<String, String>) -> Result<()> {
        for name in tags.keys() {
            if name.is_empty() || name.len() > MAX_TAG_NAME || name.contains('\0') {
                return Err(Error::invalid("tags", format!("{name:?} is no name of a tag: 1 to {MAX_TAG_NAME} bytes")));
            }
        }
        let found = self.find(path)?;
        let at = sys::proc_path(&found);
        self.judge(&found, NOT_EVEN_ALL).map_err(|e| fault(path, "set the tags", e))?;
        // Also when there is nothing to change: who may not write learns it, and not whether there were tags.
        rustix::fs::accessat(rustix::fs::CWD, at.as_str(), rustix::fs::Access::WRITE_OK, AtFlags::EACCESS)
            .map_err(|e| fault(path, "set the tags", e))?;
        let old = tags_of(&found);
        put_tags(&at, &old, tags).map_err(|errno| {
            let _ = put_tags(&at, tags, &old);
            match errno {
                Errno::RANGE | Errno::TOOBIG => Error::invalid("tags", "a value is too long for this file system"),
                errno => fault(path, "set the tags", errno),
            }
        })
    }
}

/// Which of the two paths is to blame.
fn rename_fault(from: &SandboxPath, to: &SandboxPath, errno: Errno) -> Error {
    match errno {
        Errno::EXIST | Errno::NOTEMPTY => Error::NotEmpty(to.clone()),
        Errno::ISDIR | Errno::NOTDIR => fault(to, "rename", errno),
        Errno::INVAL => Error::invalid("to", format!("{to} lies inside {from}")),
        errno => fault(from, "rename", errno),
    }
}

fn put_tags(at: &str, old: &BTreeMap<String, String>, new: &BTreeMap<String, String>) -> Result<(), Errno> {
    let full = |name: &str| [xattr::TAG, name.as_bytes()].concat();
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        xattr::remove(at.as_bytes(), &full(name))?;
    }
    for (name, value) in new.iter().filter(|(name, value)| old.get(*name) != Some(value)) {
        xattr::set(at.as_bytes(), &full(name), value.as_bytes())?;
    }
    Ok(())
}

/// Asked before a long copy, so that the usual refusal comes before anything was done.
fn may_remove(dir: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    sys::stat_at(dir, name)?;
    rustix::fs::accessat(dir, c".", rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK, AtFlags::EACCESS)
}
