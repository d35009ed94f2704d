//! A layer of a sandbox as an archive: a tar with what an ordinary one leaves out.
//!
//! It holds whiteouts (devices with the number zero), pipes, holes, times to the nanosecond, and the attributes that
//! `xattr::is_of_layer` names. Sockets are left out: whoever listened is not there any more.

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use cabana_sandbox::{Error, Result, SandboxPath};
use rustix::{
    fs::{FileType, OFlags, SeekFrom, Stat},
    io::Errno,
};

use super::copy::is_whiteout;
use crate::{
    IdMap,
    archive::{Archive, BLOCK, Extract, Head, Holes, Kind, MAX_PIECES, Names, Owners, Packer, leaving},
    dir::{Descent, Mounts, each_entry, open_again, open_below, sorted_names},
    links::FirstNames,
    sys,
    unpack::Me,
    xattr::{self, Attributes},
};

const CHUNK: usize = 128 * 1024;
/// What [`unpack_layer`] takes, and the kernel in one call.
const MAX_PATH: usize = 4095;

/// Whether a directory is as a new sandbox's own layer is: empty, root's, and nothing was done to it.
pub fn is_untouched(dir: BorrowedFd<'_>, ids: IdMap) -> io::Result<bool> {
    let dir = open_again(dir)?;
    let stat = rustix::fs::fstat(&dir)?;
    let empty = is_empty(dir.as_fd())?;
    let root = (ids.inside(stat.st_uid), ids.inside(stat.st_gid), sys::mode(&stat)) == (0, 0, 0o755);
    Ok(empty && root && xattr::read_of_layer(sys::proc_path(&dir).as_bytes()).is_empty())
}

/// Whether a directory is empty, and looks like another: owner, mode, attributes and time.
pub fn is_dressed_like(like: BorrowedFd<'_>, dir: BorrowedFd<'_>) -> io::Result<bool> {
    let (like, dir) = (open_again(like)?, open_again(dir)?);
    let look = |dir: &OwnedFd| -> Result<_, Errno> {
        let stat = rustix::fs::fstat(dir)?;
        let owner = (stat.st_uid, stat.st_gid, sys::mode(&stat), stat.st_mtime, stat.st_mtime_nsec);
        Ok((owner, xattr::read_of_layer(sys::proc_path(dir).as_bytes())))
    };
    Ok(is_empty(dir.as_fd())? && look(&like)? == look(&dir)?)
}

fn is_empty(dir: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut empty = true;
    each_entry(dir, |_, _| {
        empty = false;
        Ok::<_, Errno>(false)
    })?;
    Ok(empty)
}

/// Nothing changes in it meanwhile. Ids are written as those inside.
pub fn pack_layer(layer: BorrowedFd<'_>, ids: IdMap, out: &mut dyn io::Write) -> io::Result<()> {
    Packing::new(ids, out, None).all(layer).map(drop)
}

/// A tree that others may be changing, and may mean harm. What comes and goes meanwhile is in the archive or is not. What an
/// archive cannot hold, and what is more than `most` bytes, is left out: the answer says so.
pub fn pack_changing(
    tree: BorrowedFd<'_>,
    ids: IdMap,
    most: u64,
    out: &mut dyn io::Write,
) -> io::Result<Option<String>> {
    Packing::new(ids, out, Some(Changing { room: most, left_out: None })).all(tree)
}

/// Into an empty directory that nobody else sees. Everything in the archive may be a lie.
pub fn unpack_layer(into: BorrowedFd<'_>, ids: IdMap, tar: &mut dyn io::Read) -> Result<()> {
    let me = Me::read().map_err(|e| Error::failed("read this thread's identity", e))?;
    let owners = Owners::Archives { ids, me: Some((me.uid, me.gid)) };
    let base = SandboxPath::root();
    let (names, holes) = (Names::Layer, Holes::UNBOUNDED);
    Extract { into, base: &base, names, owners, umask: me.umask, rooted: None, holes, on_progress: &mut |_| () }
        .run(&mut Archive::of_layer(tar))
}

fn attributes(file: &OwnedFd, ids: IdMap) -> Attributes {
    leaving(xattr::read_of_layer(sys::proc_path(file).as_bytes()), ids)
}

struct Packing<'a> {
    ids: IdMap,
    out: Packer<'a>,
    /// Files with several names, by the first one.
    linked: FirstNames,
    buffer: Vec<u8>,
    /// For a tree that does not keep still.
    changing: Option<Changing>,
}

struct Changing {
    /// What may still be written: who moves one file from name to name ahead of the walk must not make it endless.
    room: u64,
    /// The first that was left out, and why.
    left_out: Option<String>,
}

impl<'a> Packing<'a> {
    fn new(ids: IdMap, out: &'a mut dyn io::Write, changing: Option<Changing>) -> Self {
        Self { ids, out: Packer::new(out), linked: FirstNames::new(), buffer: vec![0; CHUNK], changing }
    }

    /// What was left out, if anything may be.
    fn all(mut self, top: BorrowedFd<'_>) -> io::Result<Option<String>> {
        let top = open_again(top)?;
        let stat = rustix::fs::fstat(&top)?;
        self.begin(Kind::Directory, b"./", b"", &stat, 0, &attributes(&top, self.ids))?;
        let below = self.directory(top.as_fd(), b"")?;
        let mut descent: Descent<Vec<CString>> = Descent::new(top, below)?;
        while let Some(below) = descent.state() {
            let Some(name) = below.pop() else {
                match descent.leave() {
                    // Somebody moved a directory that the walk was far below: the way back is lost.
                    Err(Errno::STALE) if self.changing.is_some() => {
                        self.leave_out("a directory was moved while it was read".into())?;
                        break;
                    }
                    left => left?,
                };
                continue;
            };
            let path = descent.path_of(&name);
            let Some(dir) = self.unless_gone(open_below(descent.here()?, &name, Mounts::Stop))? else { continue };
            let stat = rustix::fs::fstat(&dir)?;
            self.begin(Kind::Directory, &[&path, &b"/"[..]].concat(), b"", &stat, 0, &attributes(&dir, self.ids))?;
            let below = self.directory(dir.as_fd(), &path)?;
            descent.enter(&name, dir, below)?;
        }
        self.out.finish()?;
        Ok(self.changing.and_then(|changing| changing.left_out))
    }

    /// Packs what is no directory, and names the directories, the first one last.
    fn directory(&mut self, dir: BorrowedFd<'_>, path: &[u8]) -> io::Result<Vec<CString>> {
        let mut below = Vec::new();
        for name in sorted_names(dir)? {
            let path = if path.is_empty() { name.to_bytes().to_vec() } else { [path, b"/", name.to_bytes()].concat() };
            if path.len() > MAX_PATH {
                let shown = String::from_utf8_lossy(&path[..64]);
                self.leave_out(format!("a path that begins with {shown:?} is longer than {MAX_PATH} bytes"))?;
                continue;
            }
            let Some(stat) = self.unless_gone(sys::stat_at(dir, &name))? else { continue };
            if !self.has_room(&stat) {
                self.leave_out("it grew while it was read".into())?;
                return Ok(Vec::new());
            }
            match sys::file_type(&stat) {
                FileType::Directory => below.push(name),
                _ => self.leaf(dir, &name, &path, &stat)?,
            }
        }
        below.reverse();
        Ok(below)
    }

    /// What vanished, or became something else, between two looks at it.
    fn unless_gone<T>(&self, found: Result<T, Errno>) -> io::Result<Option<T>> {
        match found {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ISDIR | Errno::LOOP | Errno::NXIO | Errno::XDEV)
                if self.changing.is_some() =>
            {
                Ok(None)
            }
            found => Ok(Some(found?)),
        }
    }

    /// An error where everything has to be in the archive: of a path that is too long, since nothing else is left out then.
    fn leave_out(&mut self, what: String) -> io::Result<()> {
        let Some(changing) = &mut self.changing else {
            return Err(io::Error::new(io::ErrorKind::InvalidFilename, what));
        };
        changing.left_out.get_or_insert(what);
        Ok(())
    }

    fn has_room(&mut self, stat: &Stat) -> bool {
        let Some(Changing { room, .. }) = &mut self.changing else { return true };
        let takes = (BLOCK as u64).saturating_add(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512));
        let left = room.checked_sub(takes);
        *room = left.unwrap_or(0);
        left.is_some()
    }

    fn leaf(&mut self, dir: BorrowedFd<'_>, name: &CStr, path: &[u8], stat: &Stat) -> io::Result<()> {
        if stat.st_nlink > 1
            && let Some(first) = self.linked.path(sys::id(stat))
        {
            return self.begin(Kind::Hard, path, &first, stat, 0, &Attributes::new());
        }
        let packed = match sys::file_type(stat) {
            FileType::RegularFile => self.file(dir, name, path)?,
            FileType::Symlink => match self.unless_gone(sys::link_text(dir, name))? {
                Some(text) => {
                    self.begin(Kind::Symlink, path, &text, stat, 0, &Attributes::new())?;
                    true
                }
                None => false,
            },
            FileType::Fifo => {
                self.begin(Kind::Pipe, path, b"", stat, 0, &Attributes::new())?;
                true
            }
            FileType::CharacterDevice if is_whiteout(stat) => {
                self.begin(Kind::Whiteout, path, b"", stat, 0, &Attributes::new())?;
                true
            }
            _ => false, // and other names of it are left out as well
        };
        if packed && stat.st_nlink > 1 {
            self.linked.insert(sys::id(stat), path);
        }
        Ok(())
    }

    /// Whether it is there.
    fn file(&mut self, dir: BorrowedFd<'_>, name: &CStr, path: &[u8]) -> io::Result<bool> {
        let Some((file, stat)) = self.unless_gone(sys::open_regular(dir, name, OFlags::RDONLY))? else {
            return Ok(false);
        };
        let attributes = attributes(&file, self.ids);
        let size = sys::size(&stat);
        let Some(pieces) = pieces(&file, size)? else {
            self.leave_out(format!("the file {:?} has too many holes", String::from_utf8_lossy(path)))?;
            return Ok(false);
        };
        if pieces == [(0, size)] || size == 0 {
            self.begin(Kind::File, path, b"", &stat, size, &attributes)?;
            self.stretch(&file, 0, size)?;
        } else {
            let map = map_text(&pieces);
            let sum: u64 = pieces.iter().map(|(_, length)| length).sum();
            let head = self.head(Kind::File, path, b"", &stat, map.len() as u64 + sum, &attributes);
            self.out.begin(&Head { sparse: Some(size), ..head })?;
            self.out.data(&map)?;
            for (at, length) in pieces {
                self.stretch(&file, at, length)?;
            }
        }
        self.out.end()?;
        Ok(true)
    }

    fn stretch(&mut self, file: &OwnedFd, at: u64, length: u64) -> io::Result<()> {
        let mut done = 0;
        while done < length {
            let want = usize::try_from(length - done).unwrap_or(CHUNK).min(CHUNK);
            let mut n = sys::retry(|| rustix::io::pread(file, &mut self.buffer[..want], at + done))?;
            if n == 0 {
                if self.changing.is_none() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                // It was cut short: its head has said how long it is.
                self.buffer[..want].fill(0);
                n = want;
            }
            self.out.data(&self.buffer[..n])?;
            done += n as u64;
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
        attributes: &Attributes,
    ) -> io::Result<()> {
        let head = self.head(kind, name, link, stat, size, attributes);
        self.out.begin(&head)
    }

    fn head<'h>(
        &self,
        kind: Kind,
        name: &'h [u8],
        link: &'h [u8],
        stat: &Stat,
        size: u64,
        attributes: &'h Attributes,
    ) -> Head<'h> {
        Head {
            kind,
            name,
            link,
            mode: sys::mode(stat),
            uid: self.ids.inside(stat.st_uid),
            gid: self.ids.inside(stat.st_gid),
            user: None,
            group: None,
            mtime: stat.st_mtime,
            nanos: stat.st_mtime_nsec as u32,
            size,
            sparse: None,
            attributes,
        }
    }
}

/// Where the file holds data. `None`: at too many places.
fn pieces(file: &OwnedFd, size: u64) -> io::Result<Option<Vec<(u64, u64)>>> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break, // nothing but a hole to the end
            Err(Errno::INVAL | Errno::NOTSUP) => at,
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(size).min(size);
        if end > start {
            pieces.push((start, end - start));
        }
        if pieces.len() > MAX_PIECES {
            return Ok(None);
        }
        at = end.max(at + 1);
    }
    Ok(Some(pieces))
}

/// PAX 1.0: a number to a line, and zeros to the end of the block.
fn map_text(pieces: &[(u64, u64)]) -> Vec<u8> {
    let mut text = format!("{}\n", pieces.len()).into_bytes();
    for (at, length) in pieces {
        text.extend_from_slice(format!("{at}\n{length}\n").as_bytes());
    }
    text.resize(text.len().next_multiple_of(BLOCK), 0);
    text
}
