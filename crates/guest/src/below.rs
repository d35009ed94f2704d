//! Files of this machine below one directory that others may change meanwhile: the two sides of a copy into a sandbox and out
//! of it.
//!
//! The directory itself is whatever its path leads to. Below it no name leads through a link, nor up: so neither a name that
//! comes from a sandbox, nor a link that a sandbox puts into a directory that it shares with us, leads a copy elsewhere.

use std::{
    ffi::{CStr, CString, OsStr},
    fs::File,
    io::{self, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    },
    path::Path,
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat},
    io::Errno,
};

use crate::{
    dir::{Descent, Mounts, open_again, open_below, sorted_names},
    sys,
    temp::{self, Aim},
};

/// How often a name that somebody else takes at the same moment is tried again.
const TRIES: usize = 16;

pub struct Below {
    top: OwnedFd,
}

/// A file under another name until it is whole. Dropped before that it leaves nothing, and what was there stays.
pub struct Draft {
    dir: OwnedFd,
    name: CString,
    temp: Option<CString>,
    file: File,
}

impl Below {
    /// Follows links to the directory.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let flags = (OFlags::DIRECTORY | OFlags::NONBLOCK).bits().cast_signed();
        let top = File::options().read(true).custom_flags(flags).open(dir)?;
        Ok(Self { top: top.into() })
    }

    /// Each entry, a directory before what it holds, with its path from here. What `visit` says no to is not entered.
    pub fn walk(&self, visit: &mut dyn FnMut(&Path, &Stat) -> bool) -> io::Result<()> {
        let top = open_again(self.top.as_fd())?;
        let below = entries(top.as_fd(), b"", visit)?;
        let mut descent = Descent::new(top, below)?;
        while let Some(below) = descent.state() {
            let Some(name) = below.pop() else {
                descent.leave()?;
                continue;
            };
            let dir = match open_below(descent.here()?, &name, Mounts::Cross) {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                dir => dir?,
            };
            let below = entries(dir.as_fd(), &descent.path_of(&name), visit)?;
            descent.enter(&name, dir, below)?;
        }
        Ok(())
    }

    /// A regular file. Anything else is not opened.
    pub fn read(&self, path: &Path) -> io::Result<File> {
        let (dir, name) = self.place(path)?;
        Ok(sys::open_regular(dir.as_fd(), &name, OFlags::RDONLY)?.0.into())
    }

    /// The directory and those above it. There already is Ok; a link in its place is not.
    pub fn make_dirs(&self, path: &Path) -> io::Result<()> {
        let mut dir = open_again(self.top.as_fd())?;
        for part in path.components() {
            let name = sys::c_name(part.as_os_str().as_bytes())?;
            match rustix::fs::mkdirat(&dir, &name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            dir = self.step(dir.as_fd(), &name)?;
        }
        Ok(())
    }

    /// A new file that takes the place of whatever file or link has the name.
    pub fn draft(&self, path: &Path) -> io::Result<Draft> {
        let (dir, name) = self.place(path)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
        for _ in 0..TRIES {
            let temp = temp::name(Aim::New);
            match rustix::fs::openat(&dir, &temp, flags, Mode::from_raw_mode(0o600)) {
                Ok(file) => return Ok(Draft { dir, name, temp: Some(temp), file: file.into() }),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// The directory that holds a path's last name, and that name.
    fn place(&self, path: &Path) -> io::Result<(OwnedFd, CString)> {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let dir = sys::openat2(self.top.as_fd(), above, OFlags::PATH | OFlags::DIRECTORY, resolve)?;
        Ok((dir, sys::c_name(name.as_bytes())?))
    }

    fn step(&self, dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        sys::openat2(dir, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW, resolve)
    }
}

/// Those of one directory. Gives the directories to enter, the first one last.
fn entries(
    dir: BorrowedFd<'_>,
    path: &[u8],
    visit: &mut dyn FnMut(&Path, &Stat) -> bool,
) -> Result<Vec<CString>, Errno> {
    let mut below = Vec::new();
    for name in sorted_names(dir)? {
        let stat = match sys::stat_at(dir, &name) {
            Err(Errno::NOENT) => continue,
            stat => stat?,
        };
        let path = if path.is_empty() { name.to_bytes().to_vec() } else { [path, b"/", name.to_bytes()].concat() };
        let enters = visit(Path::new(OsStr::from_bytes(&path)), &stat);
        if enters && sys::file_type(&stat) == FileType::Directory {
            below.push(name);
        }
    }
    below.reverse();
    Ok(below)
}

impl Write for Draft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Draft {
    /// Gives it its mode, and then its name.
    pub fn finish(mut self, mode: u32) -> io::Result<()> {
        sys::chmod(&self.file, mode)?;
        if let Some(temp) = &self.temp {
            rustix::fs::renameat(&self.dir, temp, &self.dir, &self.name)?;
        }
        self.temp = None;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(temp) = &self.temp {
            let _ = rustix::fs::unlinkat(&self.dir, temp, AtFlags::empty()); // nobody to tell, and no other has this name
        }
    }
}
