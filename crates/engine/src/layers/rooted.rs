//! Looks into a tree that somebody else made: every link in it leads inside it, whatever it says.

use std::{
    fs::File,
    io::{self, Read},
    os::{fd::OwnedFd, unix::ffi::OsStringExt},
    path::{Path, PathBuf},
};

use cabana_guest::IdMap;
use rustix::{
    fs::{FileType, Mode, OFlags, ResolveFlags, Stat, Timespec},
    io::Errno,
};

use super::writer::Meta;

/// More than any account file holds.
const TEXT_CAP: u64 = 4 << 20;

pub(crate) struct Rooted<'a> {
    root: &'a File,
    at: &'a Path,
    ids: IdMap,
}

impl<'a> Rooted<'a> {
    /// `at` is where `root` lies.
    pub(crate) fn new(root: &'a File, at: &'a Path, ids: IdMap) -> Self {
        Self { root, at, ids }
    }

    /// What a path leads to in the end.
    pub(crate) fn stat(&self, path: &str) -> io::Result<Option<Stat>> {
        let Some(found) = self.open(path, OFlags::PATH)? else { return Ok(None) };
        Ok(Some(rustix::fs::fstat(found)?))
    }

    pub(crate) fn is_dir(&self, path: &str) -> io::Result<bool> {
        Ok(self.stat(path)?.is_some_and(|stat| kind(&stat) == FileType::Directory))
    }

    /// Of the entry itself. The way to it may lead through links.
    pub(crate) fn entry(&self, path: &str) -> io::Result<Option<Stat>> {
        let Some(found) = self.open(path, OFlags::PATH | OFlags::NOFOLLOW)? else { return Ok(None) };
        Ok(Some(rustix::fs::fstat(found)?))
    }

    /// Where a directory really lies, relative to the root: `/etc` may be a link to `/system/etc`.
    pub(crate) fn real_dir(&self, path: &str) -> io::Result<Option<PathBuf>> {
        let Some(found) = self.open(path, OFlags::PATH | OFlags::DIRECTORY)? else { return Ok(None) };
        let fd = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&found));
        let real = rustix::fs::readlink(fd, Vec::new())?.into_bytes();
        let real = PathBuf::from(std::ffi::OsString::from_vec(real));
        Ok(real.strip_prefix(self.at.canonicalize()?).ok().map(Path::to_path_buf))
    }

    /// A regular file's text; `None` if there is no such file.
    pub(crate) fn text(&self, path: &str) -> io::Result<Option<String>> {
        if !self.stat(path)?.is_some_and(|stat| kind(&stat) == FileType::RegularFile) {
            return Ok(None); // nor is a pipe opened, which would wait
        }
        let Some(file) = self.open(path, OFlags::RDONLY | OFlags::NONBLOCK)? else { return Ok(None) };
        let mut text = Vec::new();
        File::from(file).take(TEXT_CAP).read_to_end(&mut text)?;
        Ok(Some(String::from_utf8_lossy(&text).into_owned()))
    }

    /// Mode, owner and time of an entry, with the ids as seen inside.
    pub(crate) fn meta(&self, stat: &Stat) -> Meta {
        let inside = |id: u32| id.checked_sub(self.ids.base).filter(|id| *id < self.ids.count).unwrap_or(65_534);
        let time = Timespec { tv_sec: stat.st_mtime as _, tv_nsec: stat.st_mtime_nsec as _ };
        Meta::new(stat.st_mode & 0o7777).owned(inside(stat.st_uid), inside(stat.st_gid)).at(time)
    }

    fn open(&self, path: &str, flags: OFlags) -> io::Result<Option<OwnedFd>> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        loop {
            match rustix::fs::openat2(self.root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
                Ok(found) => return Ok(Some(found)),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
                Err(Errno::AGAIN | Errno::INTR) => {} // a rename elsewhere in the system disturbed the walk
                Err(e) => return Err(e.into()),
            }
        }
    }
}

pub(crate) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}
