//! A tar of a directory's content.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use cabana_sandbox::{Error, Result, SandboxPath};
use rustix::{
    fs::{FileType, OFlags, Stat},
    io::Errno,
};

use crate::{
    Accounts, Rooted,
    archive::{Head, Kind, Packer},
    dir::{Descent, Mounts, is_pseudo, open_below},
    errno::fault,
    links::FirstNames,
    names::{Below, Names, Next, Place},
    sys, xattr,
};

const CHUNK: usize = 128 * 1024;

/// No longer one is unpacked again. And of each directory on the way its name is held.
const MAX_PATH: usize = 4095;

impl Rooted {
    /// Names are relative to the directory, which is no entry itself. Sockets, devices and pipes are left out, and so are
    /// the kernel's own file systems. A file that changes while it is packed has the length it had when it was opened.
    pub fn pack(&self, dir: &SandboxPath, out: &mut dyn io::Write) -> Result<()> {
        let top = self.open_dir(dir)?;
        let failed = |e| fault(dir, "pack", e);
        let mut packing = Packing {
            rooted: self,
            dir,
            accounts: self.names(),
            names: Names::new(),
            out: Packer::new(out),
            linked: FirstNames::new(),
            buffer: vec![0; CHUNK],
        };
        let below = packing.directory(top.as_fd(), b"", None)?;
        let mut descent = Descent::new(top, below).map_err(failed)?;
        while let Some(below) = descent.state() {
            let name = match below.next() {
                Next::Enter(name) => name,
                Next::Part(place) => {
                    let below = packing.directory(descent.here().map_err(failed)?, descent.path(), Some(place))?;
                    *descent.state().ok_or(Errno::STALE).map_err(failed)? = below;
                    continue;
                }
                Next::Leave => {
                    descent.leave().map_err(failed)?;
                    continue;
                }
            };
            let path = descent.path_of(&name);
            let fd = match open_below(descent.here().map_err(failed)?, &name, Mounts::Cross) {
                // Removed since it was listed.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                result => result.map_err(|e| packing.fault(&path, e))?,
            };
            if is_pseudo(&fd) {
                continue;
            }
            let below = packing.directory(fd.as_fd(), &path, None)?;
            descent.enter(&name, fd, below).map_err(failed)?;
        }
        packing.out.finish().map_err(unwritten)
    }
}

struct Packing<'a> {
    rooted: &'a Rooted,
    dir: &'a SandboxPath,
    accounts: Arc<Accounts>,
    names: Names,
    out: Packer<'a>,
    /// Files with several names, by the first one.
    linked: FirstNames,
    buffer: Vec<u8>,
}

impl Packing<'_> {
    /// Packs the entries of a directory in the part at a place; its subdirectories among them are to be entered next.
    fn directory(&mut self, dir: BorrowedFd<'_>, path: &[u8], at: Option<Place>) -> Result<Below> {
        let mut below = Vec::new();
        let part = self.names.part(dir, at).map_err(|e| self.fault(path, e))?;
        for name in part.names {
            let path = if path.is_empty() { name.to_bytes().to_vec() } else { [path, b"/", name.to_bytes()].concat() };
            if path.len() > MAX_PATH {
                return Err(self.fault(&path, Errno::NAMETOOLONG));
            }
            let entry = match part.again {
                true => sys::stat_at(dir, &name)
                    .map(|stat| sys::file_type(&stat) == FileType::Directory)
                    .map_err(Trouble::Kernel),
                false => self.entry(dir, &name, &path),
            };
            match entry {
                Ok(true) => below.push(name),
                Ok(false) | Err(Trouble::Kernel(Errno::NOENT)) => {}
                Err(Trouble::Kernel(errno)) => return Err(self.fault(&path, errno)),
                Err(Trouble::Out(error)) => return Err(unwritten(error)),
            }
        }
        Ok(self.names.below(below, part.place))
    }

    /// Whether it is a directory.
    fn entry(&mut self, dir: BorrowedFd<'_>, name: &CStr, path: &[u8]) -> Result<bool, Trouble> {
        let stat = sys::stat_at(dir, name)?;
        match sys::file_type(&stat) {
            FileType::Directory => {
                let attributes = xattr::read_at(&sys::proc_entry(&dir, name), b"user.");
                self.begin(Kind::Directory, &[path, &b"/"[..]].concat(), b"", &stat, 0, &attributes)?;
                return Ok(true);
            }
            FileType::Symlink => {
                let text = sys::link_text(dir, name)?;
                self.begin(Kind::Symlink, path, &text, &stat, 0, &xattr::Attributes::new())?;
            }
            FileType::RegularFile => self.file(dir, name, path, &stat)?,
            _ => {}
        }
        Ok(false)
    }

    fn file(&mut self, dir: BorrowedFd<'_>, name: &CStr, path: &[u8], stat: &Stat) -> Result<(), Trouble> {
        if stat.st_nlink > 1
            && let Some(first) = self.linked.path(sys::id(stat))
        {
            return self.begin(Kind::Hard, path, &first, stat, 0, &xattr::Attributes::new());
        }
        let (file, stat) = match sys::open_regular(dir, name, OFlags::RDONLY) {
            // It was a file a moment ago: now it is something that is left out.
            Err(Errno::NXIO | Errno::ISDIR) => return Ok(()),
            result => result?,
        };
        let attributes = xattr::read_through(sys::proc_path(&file).as_bytes(), b"user.");
        self.begin(Kind::File, path, b"", &stat, sys::size(&stat), &attributes)?;
        while self.out.left() > 0 {
            match sys::retry(|| rustix::io::read(&file, &mut self.buffer))? {
                0 => break,
                n => self.out.data(&self.buffer[..n])?,
            }
        }
        self.out.end()?;
        if stat.st_nlink > 1 {
            self.linked.insert(sys::id(&stat), path);
        }
        Ok(())
    }

    fn begin(
        &mut self,
        kind: Kind,
        name: &[u8],
        link: &[u8],
        stat: &Stat,
        size: u64,
        attributes: &xattr::Attributes,
    ) -> Result<(), Trouble> {
        let ids = self.rooted.ids();
        let (uid, gid) = (ids.inside(stat.st_uid), ids.inside(stat.st_gid));
        let head = Head {
            kind,
            name,
            link,
            mode: sys::mode(stat),
            uid,
            gid,
            user: self.accounts.user_name(uid),
            group: self.accounts.group_name(gid),
            mtime: stat.st_mtime,
            nanos: 0,
            size,
            sparse: None,
            attributes,
        };
        Ok(self.out.begin(&head)?)
    }

    fn fault(&self, path: &[u8], errno: Errno) -> Error {
        let path = if path.is_empty() { Ok(self.dir.clone()) } else { self.dir.below(path) };
        fault(path.as_ref().unwrap_or(self.dir), "pack", errno)
    }
}

/// The files' side or the archive's side.
enum Trouble {
    Kernel(Errno),
    Out(io::Error),
}

impl From<Errno> for Trouble {
    fn from(errno: Errno) -> Self {
        Self::Kernel(errno)
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Out(error)
    }
}

fn unwritten(error: io::Error) -> Error {
    Error::failed("write the archive", error)
}
