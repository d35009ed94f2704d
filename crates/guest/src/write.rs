//! Writing one file: whole or not at all, in place, or at its end.

use std::{
    ffi::CString,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use cabana_sandbox::{Error, FileInfo, Result, SandboxPath, Write, WriteMode};
use rustix::{
    fs::{Access, AtFlags, FileType, Mode, OFlags, RenameFlags, Stat},
    io::Errno,
};

use crate::{
    Rooted,
    bits::SET_IDS,
    errno::fault,
    info::describe,
    rooted::{NOT_EVEN_ALL, Place, SEARCH, WRITE},
    sys,
    temp::{self, Aim},
};

/// Of a new file, when none is named.
const MODE: u32 = 0o644;
/// How often a name that somebody else takes or frees at the same moment is tried again.
const TRIES: usize = 64;

/// A write under way. Dropped without `finish` it is undone: a temporary file goes away, and the file it was to replace
/// is as it was. What was written in place or at the end stays.
pub struct Writer {
    rooted: Rooted,
    path: SandboxPath,
    file: OwnedFd,
    how: Write,
    written: u64,
    /// `None` when the bytes go to the file itself.
    hidden: Option<Hidden>,
}

/// A file that nobody sees yet, and what it is to become.
struct Hidden {
    dir: OwnedFd,
    /// `None` for a file without any name, which needs no undoing: it goes with its descriptor.
    temp: Option<CString>,
    name: CString,
    /// The file that it replaces.
    old: Option<Stat>,
}

impl Rooted {
    /// Never makes parent directories. Follows links: what is replaced is what they lead to.
    pub fn write(&self, path: &SandboxPath, how: Write) -> Result<Writer> {
        if how.len.is_some_and(|len| len > how.cap) {
            return Err(Error::TooLarge { cap: how.cap });
        }
        let begun = match how.mode {
            WriteMode::Replace => self.begin_replace(path, &how),
            WriteMode::CreateNew => self.begin_new(path, &how),
            WriteMode::InPlace => self.open_there(path, &how, OFlags::TRUNC),
            WriteMode::Append => self.open_there(path, &how, OFlags::APPEND),
        };
        let (file, hidden) = begun.map_err(|e| fault(path, "open for writing", e))?;
        Ok(Writer { rooted: self.clone(), path: path.clone(), file, how, written: 0, hidden })
    }

    fn begin_replace(&self, path: &SandboxPath, how: &Write) -> Result<(OwnedFd, Option<Hidden>), Errno> {
        let Place { dir, name, stat } = self.locate(path)?;
        if let Some(old) = &stat {
            check_regular(old)?;
            self.judge_stat(old, WRITE)?;
            sys::check_no_mount(&dir, &name)?;
            // A rename asks only the directory. Who may not write the file must not replace it either.
            rustix::fs::accessat(&dir, &name, Access::WRITE_OK, AtFlags::EACCESS | AtFlags::SYMLINK_NOFOLLOW)?;
        }
        self.judge(&dir, WRITE | SEARCH)?;
        self.check_wish(&dir, how)?;
        match stat {
            None => hide_new(dir, name, how),
            old => hide(dir, name, old),
        }
    }

    fn begin_new(&self, path: &SandboxPath, how: &Write) -> Result<(OwnedFd, Option<Hidden>), Errno> {
        // Not through links: a link is something that is there.
        let parent = path.relative().parent().ok_or(Errno::EXIST)?;
        let dir = self.open_to_change(parent)?;
        self.check_wish(&dir, how)?;
        let name = sys::c_name(path.name())?;
        match sys::stat_at(&dir, &name) {
            Err(Errno::NOENT) => hide_new(dir, name, how),
            Ok(_) => Err(Errno::EXIST),
            Err(errno) => Err(errno),
        }
    }

    /// The file itself, made where it is missing.
    fn open_there(&self, path: &SandboxPath, how: &Write, flags: OFlags) -> Result<(OwnedFd, Option<Hidden>), Errno> {
        for _ in 0..TRIES {
            match self.resolve(path.relative(), OFlags::PATH) {
                Ok(found) => {
                    check_regular(&rustix::fs::fstat(&found)?)?;
                    self.judge(&found, if how.perm.is_some() { NOT_EVEN_ALL } else { WRITE })?;
                    self.check_wish(&found, how)?;
                    self.drop_bits(&found)?;
                    return Ok((open_old(&found, how, flags)?, None));
                }
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
            let Place { dir, name, stat } = self.locate(path)?;
            if stat.is_some() {
                continue;
            }
            self.judge(&dir, WRITE | SEARCH)?;
            self.check_wish(&dir, how)?;
            let new = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
            let mode = how.perm.unwrap_or(MODE);
            match rustix::fs::openat(&dir, &name, new | (flags & OFlags::APPEND), Mode::from_raw_mode(mode & 0o777)) {
                Ok(file) => {
                    sys::chmod(&file, mode)?;
                    return Ok((file, None));
                }
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::AGAIN)
    }

    fn check_wish(&self, at: &OwnedFd, how: &Write) -> Result<(), Errno> {
        how.perm.map_or(Ok(()), |perm| self.check_mode(at, perm))
    }
}

fn check_regular(stat: &Stat) -> Result<(), Errno> {
    match sys::file_type(stat) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Errno::ISDIR),
        _ => Err(Errno::NXIO),
    }
}

fn open_old(found: &OwnedFd, how: &Write, flags: OFlags) -> Result<OwnedFd, Errno> {
    // A mode that may not be set must fail before the content is gone.
    let (file, stat) = match how.perm {
        None => return Ok(sys::regular(found, OFlags::WRONLY | flags)?.0),
        Some(_) => sys::regular(found, OFlags::WRONLY | (flags & OFlags::APPEND))?,
    };
    if let Some(perm) = how.perm.filter(|perm| *perm != sys::mode(&stat)) {
        sys::chmod(&file, perm)?;
    }
    if flags.contains(OFlags::TRUNC) {
        rustix::fs::ftruncate(&file, 0)?;
    }
    Ok(file)
}

/// Where nothing is replaced, a file without a name spares the making and removing of one, and a crash leaves nothing.
fn hide_new(dir: OwnedFd, name: CString, how: &Write) -> Result<(OwnedFd, Option<Hidden>), Errno> {
    let mode = Mode::from_raw_mode(how.perm.unwrap_or(MODE) & 0o777);
    match rustix::fs::openat(&dir, c".", OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC, mode) {
        Ok(file) => Ok((file, Some(Hidden { dir, temp: None, name, old: None }))),
        // A file system, mostly of a view, that cannot.
        Err(Errno::NOTSUP | Errno::ISDIR | Errno::INVAL) => hide(dir, name, None),
        Err(errno) => Err(errno),
    }
}

fn hide(dir: OwnedFd, name: CString, old: Option<Stat>) -> Result<(OwnedFd, Option<Hidden>), Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
    let aim = if old.is_some() { Aim::Replaces } else { Aim::New };
    for _ in 0..TRIES {
        let temp = temp::name(aim);
        // Nobody else sees the content before it is whole.
        match rustix::fs::openat(&dir, &temp, flags, Mode::from_raw_mode(0o600)) {
            Ok(file) => return Ok((file, Some(Hidden { dir, temp: Some(temp), name, old }))),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::AGAIN)
}

impl AsFd for Writer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Writer {
    /// `TooLarge` before the first byte over the cap is written; `NoSpace` when the disk or the quota is full.
    pub fn put(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.written.saturating_add(bytes.len() as u64);
        if written > self.how.cap {
            return Err(Error::TooLarge { cap: self.how.cap });
        }
        if let Some(len) = self.how.len.filter(|len| written > *len) {
            return Err(other_length(len, written));
        }
        sys::write_all(&self.file, bytes).map_err(|e| fault(&self.path, "write", e))?;
        self.written = written;
        Ok(())
    }

    pub fn finish(mut self) -> Result<FileInfo> {
        if let Some(len) = self.how.len.filter(|len| *len != self.written) {
            return Err(other_length(len, self.written));
        }
        let stat = self.settle().map_err(|e| fault(&self.path, "write", e))?;
        Ok(describe(&self.rooted, &self.rooted.names(), self.path.clone(), &stat))
    }

    fn settle(&mut self) -> Result<Stat, Errno> {
        let stat = match &self.hidden {
            None => rustix::fs::fstat(&self.file)?,
            Some(hidden) => {
                let stat = hidden.dress(&self.rooted, &self.file, self.how.perm)?;
                hidden.show(&self.file, self.how.mode)?;
                stat
            }
        };
        self.hidden = None;
        Ok(stat)
    }
}

fn other_length(promised: u64, written: u64) -> Error {
    Error::invalid("body", format!("{promised} bytes were promised, and {written} came"))
}

impl Hidden {
    /// Mode and owner of the file that is replaced. The owner as far as this identity may; a file that changes hands must
    /// not carry its setuid bit to the new one. Tells what the file is then.
    fn dress(&self, rooted: &Rooted, file: &OwnedFd, perm: Option<u32>) -> Result<Stat, Errno> {
        let mut stat = rustix::fs::fstat(file)?;
        let mode = perm.unwrap_or(self.old.as_ref().map_or(MODE, sys::mode));
        let mut mode = rooted.mode_within(file, mode)?;
        if let Some(old) = self.old.as_ref().filter(|old| (stat.st_uid, stat.st_gid) != (old.st_uid, old.st_gid)) {
            match rustix::fs::fchown(file, Some(sys::uid(old.st_uid)), Some(sys::gid(old.st_gid))) {
                Ok(()) => (stat.st_uid, stat.st_gid) = (old.st_uid, old.st_gid),
                // INVAL: an id that has no number where this file system is mounted.
                Err(Errno::PERM | Errno::INVAL | Errno::OVERFLOW) => mode &= !SET_IDS,
                Err(errno) => return Err(errno),
            }
        }
        if sys::mode(&stat) == mode {
            return Ok(stat); // the common case of a new file: the umask left it alone
        }
        sys::chmod(file, mode)?;
        rustix::fs::fstat(file)
    }

    fn show(&self, file: &OwnedFd, mode: WriteMode) -> Result<(), Errno> {
        let Some(temp) = &self.temp else { return self.name_it(file, mode) };
        if mode != WriteMode::CreateNew {
            return rustix::fs::renameat(&self.dir, temp, &self.dir, &self.name);
        }
        match rustix::fs::renameat_with(&self.dir, temp, &self.dir, &self.name, RenameFlags::NOREPLACE) {
            // A file system that cannot: a second name refuses to replace just as well.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                rustix::fs::linkat(&self.dir, temp, &self.dir, &self.name, AtFlags::empty())?;
                rustix::fs::unlinkat(&self.dir, temp, AtFlags::empty())
            }
            result => result,
        }
    }

    /// The first name of a file that has none.
    fn name_it(&self, file: &OwnedFd, mode: WriteMode) -> Result<(), Errno> {
        match self.link(file, &self.name) {
            Err(Errno::EXIST) if mode != WriteMode::CreateNew => {}
            result => return result,
        }
        // Somebody was faster. A link never replaces, so it takes a name and a rename after all.
        for _ in 0..TRIES {
            let temp = temp::name(Aim::Replaces);
            match self.link(file, &temp) {
                Err(Errno::EXIST) => continue,
                result => result?,
            }
            let shown = rustix::fs::renameat(&self.dir, &temp, &self.dir, &self.name);
            if shown.is_err() {
                let _ = rustix::fs::unlinkat(&self.dir, &temp, AtFlags::empty());
            }
            return shown;
        }
        Err(Errno::AGAIN)
    }

    fn link(&self, file: &OwnedFd, name: &CString) -> Result<(), Errno> {
        match rustix::fs::linkat(file, c"", &self.dir, name, AtFlags::EMPTY_PATH) {
            // Before Linux 6.10 this took a capability.
            Err(Errno::NOENT) => {
                let path = sys::proc_path(file);
                rustix::fs::linkat(rustix::fs::CWD, path, &self.dir, name, AtFlags::SYMLINK_FOLLOW)
            }
            result => result,
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(Hidden { dir, temp: Some(temp), .. }) = &self.hidden {
            // Nothing can be done about a failure, and the next write has another name.
            let _ = rustix::fs::unlinkat(dir.as_fd(), temp, AtFlags::empty());
        }
    }
}
