//! A layer of a sandbox as an archive: a tar with what an ordinary one leaves out.
//!
//! It holds whiteouts (devices with the number zero), pipes, holes, times to the nanosecond, and the attributes that
//! `xattr::is_of_layer` names. Sockets are left out: whoever listened is not there any more.

use std::{
    ffi::CStr,
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
    archive::{
        self, Archive, BLOCK, Extract, Head, Holes, Kind, LeftOut, MAX_LIST, MAX_PIECES, Owners, Packer, leaving, named,
    },
    dir::{Descent, Mounts, each_entry, open_again, open_below},
    errno::is_shortage,
    links::FirstNames,
    names::{Below, Names, Next, Place},
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

/// Whether [`pack_layer`] would find in it what no archive holds. No content is read for that.
pub fn is_packable(layer: BorrowedFd<'_>, ids: IdMap) -> io::Result<bool> {
    let mut nothing = io::sink();
    let mut packing = Packing::new(ids, &mut nothing, None);
    packing.has_content = false;
    match packing.all(layer) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidFilename | io::ErrorKind::InvalidData) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A tree that others may be changing, and may mean harm. What comes and goes meanwhile is in the archive or is not. What an
/// archive cannot hold, what cannot be read, and what is more than `most` bytes, is left out: the answer names it. An error is
/// one of `out`, or a shortage of descriptors or memory: what is there and can be read is not left out for that.
pub fn pack_changing(tree: BorrowedFd<'_>, ids: IdMap, most: u64, out: &mut dyn io::Write) -> io::Result<Vec<String>> {
    let changing = Changing { room: most, left_out: LeftOut::default() };
    Packing::new(ids, out, Some(changing)).all(tree).map(LeftOut::into_lines)
}

/// Into an empty directory that nobody else sees. Everything in the archive may be a lie. Tells what this file system cannot
/// have of it.
pub fn unpack_layer(into: BorrowedFd<'_>, ids: IdMap, tar: &mut dyn io::Read) -> Result<Vec<String>> {
    let me = Me::read().map_err(|e| Error::failed("read this thread's identity", e))?;
    let owners = Owners::Archives { ids, me: Some((me.uid, me.gid)) };
    let base = SandboxPath::root();
    let mut extract = Extract {
        into,
        base: &base,
        names: archive::Names::Layer,
        owners,
        umask: me.umask,
        rooted: None,
        holes: Holes::UNBOUNDED,
        left_out: LeftOut::default(),
        on_progress: &mut |_| (),
    };
    extract.run(&mut Archive::of_layer(tar))?;
    Ok(extract.left_out.into_lines())
}

struct Packing<'a> {
    ids: IdMap,
    out: Packer<'a>,
    names: Names,
    /// Files with several names, by the first one.
    linked: FirstNames,
    buffer: Vec<u8>,
    /// Files are more than their heads.
    has_content: bool,
    /// For a tree that does not keep still.
    changing: Option<Changing>,
}

struct Changing {
    /// What may still be written: who moves one file from name to name ahead of the walk must not make it endless.
    room: u64,
    left_out: LeftOut,
}

impl<'a> Packing<'a> {
    fn new(ids: IdMap, out: &'a mut dyn io::Write, changing: Option<Changing>) -> Self {
        let (names, linked) = (Names::new(), FirstNames::new());
        Self { ids, out: Packer::new(out), names, linked, buffer: vec![0; CHUNK], has_content: true, changing }
    }

    /// What was left out, if anything may be.
    fn all(mut self, top: BorrowedFd<'_>) -> io::Result<LeftOut> {
        let opened = open_again(top).and_then(|top| Ok((rustix::fs::fstat(&top)?, top)));
        if let Some((stat, top)) = self.if_readable(b".", opened)? {
            self.tree(top, &stat)?;
        }
        self.out.finish()?;
        Ok(self.changing.map(|changing| changing.left_out).unwrap_or_default())
    }

    fn tree(&mut self, top: OwnedFd, stat: &Stat) -> io::Result<()> {
        let attributes = self.attributes(b".", &top)?;
        self.begin(Kind::Directory, b"./", b"", stat, 0, &attributes)?;
        let below = self.directory(top.as_fd(), b"", None)?;
        let mut descent = Descent::new(top, below)?;
        while let Some(below) = descent.state() {
            let name = match below.next() {
                Next::Enter(name) => name,
                Next::Part(place) => {
                    let below = self.directory(descent.here()?, descent.path(), Some(place))?;
                    *descent.state().ok_or(Errno::STALE)? = below;
                    continue;
                }
                Next::Leave => {
                    match descent.leave() {
                        // Somebody moved a directory that the walk was far below: the way back is lost.
                        Err(errno) if self.changing.is_some() && !is_shortage(errno) => {
                            let why = match errno {
                                Errno::STALE => "a directory was moved while it was read".into(),
                                errno => format!("the way back was lost ({errno})"),
                            };
                            self.leave_out(b".", why)?;
                            break;
                        }
                        left => left?,
                    };
                    continue;
                }
            };
            let path = descent.path_of(&name);
            let opened = open_below(descent.here()?, &name, Mounts::Stop);
            let opened = opened.and_then(|dir| Ok((rustix::fs::fstat(&dir)?, dir)));
            let Some((stat, dir)) = self.if_readable(&path, opened)? else { continue };
            let attributes = self.attributes(&path, &dir)?;
            self.begin(Kind::Directory, &[&path, &b"/"[..]].concat(), b"", &stat, 0, &attributes)?;
            let below = self.directory(dir.as_fd(), &path, None)?;
            descent.enter(&name, dir, below)?;
        }
        Ok(())
    }

    /// Packs what is no directory in the part at a place, and names the directories.
    fn directory(&mut self, dir: BorrowedFd<'_>, path: &[u8], at: Option<Place>) -> io::Result<Below> {
        let mut below = Vec::new();
        let listed = self.names.part(dir, at);
        let Some(part) = self.if_readable(path, listed)? else { return Ok(self.names.below(below, Place::default())) };
        for name in part.names {
            let path = if path.is_empty() { name.to_bytes().to_vec() } else { [path, b"/", name.to_bytes()].concat() };
            if path.len() > MAX_PATH {
                let shown = String::from_utf8_lossy(&path[..64]);
                let what = format!("a path that begins with {shown:?} is longer than {MAX_PATH} bytes");
                let Some(changing) = &mut self.changing else {
                    return Err(io::Error::new(io::ErrorKind::InvalidFilename, what));
                };
                changing.left_out.add(what);
                continue;
            }
            let stat = sys::stat_at(dir, &name);
            let Some(stat) = self.if_readable(&path, stat)? else { continue };
            if !part.again && !self.has_room(&stat) {
                self.leave_out(&path, "it grew while it was read".into())?;
                return Ok(self.names.below(Vec::new(), Place::default()));
            }
            match sys::file_type(&stat) {
                FileType::Directory => below.push(name),
                _ if part.again => {}
                _ => self.leaf(dir, &name, &path, &stat)?,
            }
        }
        Ok(self.names.below(below, part.place))
    }

    /// What vanished, or became something else, between two looks at it, is not there. What cannot be read is left out: it
    /// keeps nothing else out.
    fn if_readable<T>(&mut self, path: &[u8], found: Result<T, Errno>) -> io::Result<Option<T>> {
        match found {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ISDIR | Errno::LOOP | Errno::NXIO | Errno::XDEV)
                if self.changing.is_some() =>
            {
                Ok(None)
            }
            Err(errno) if is_shortage(errno) => Err(errno.into()),
            Err(errno) => self.leave_out(path, format!("it cannot be read ({errno})")).map(|()| None),
        }
    }

    /// An error where everything has to be in the archive.
    fn leave_out(&mut self, path: &[u8], why: String) -> io::Result<()> {
        let what = named(path, why);
        let Some(changing) = &mut self.changing else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        };
        changing.left_out.add(what);
        Ok(())
    }

    /// Those that an archive holds.
    fn attributes(&mut self, path: &[u8], file: &OwnedFd) -> io::Result<Attributes> {
        let (mut attributes, whole) = xattr::read_for_archive(sys::proc_path(file).as_bytes());
        if !whole {
            let most = xattr::MAX_ATTRIBUTES;
            self.leave_out(path, format!("attributes of more than {most} bytes, or that cannot be read"))?;
        }
        for list in xattr::ACCESS_LISTS {
            if attributes.get(list).is_some_and(|list| list.len() > MAX_LIST) {
                attributes.remove(list);
                self.leave_out(path, format!("a list of access of more than {MAX_LIST} bytes"))?;
            }
        }
        Ok(leaving(attributes, self.ids))
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
            FileType::Symlink => match self.if_readable(path, sys::link_text(dir, name))? {
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
        let opened = sys::open_regular(dir, name, OFlags::RDONLY);
        let Some((file, stat)) = self.if_readable(path, opened)? else { return Ok(false) };
        let attributes = self.attributes(path, &file)?;
        let size = sys::size(&stat);
        let Some(pieces) = self.if_readable(path, pieces(&file, size))? else { return Ok(false) };
        let Some(pieces) = pieces else {
            self.leave_out(path, "it has too many holes".into())?;
            return Ok(false);
        };
        if !self.has_content {
            return Ok(true);
        }
        if pieces == [(0, size)] || size == 0 {
            self.begin(Kind::File, path, b"", &stat, size, &attributes)?;
            self.stretch(&file, path, 0, size)?;
        } else {
            let map = map_text(&pieces);
            let sum: u64 = pieces.iter().map(|(_, length)| length).sum();
            let head = self.head(Kind::File, path, b"", &stat, map.len() as u64 + sum, &attributes);
            self.out.begin(&Head { sparse: Some(size), ..head })?;
            self.out.data(&map)?;
            for (at, length) in pieces {
                self.stretch(&file, path, at, length)?;
            }
        }
        self.out.end()?;
        Ok(true)
    }

    fn stretch(&mut self, file: &OwnedFd, path: &[u8], at: u64, length: u64) -> io::Result<()> {
        let (mut done, mut readable) = (0, true);
        while done < length {
            let want = usize::try_from(length - done).unwrap_or(CHUNK).min(CHUNK);
            let mut n = match readable {
                true => match sys::retry(|| rustix::io::pread(file, &mut self.buffer[..want], at + done)) {
                    Ok(n) => n,
                    Err(errno) if is_shortage(errno) => return Err(errno.into()),
                    Err(errno) => {
                        self.leave_out(path, format!("what it holds from byte {} on ({errno})", at + done))?;
                        readable = false;
                        0
                    }
                },
                false => 0,
            };
            if n == 0 {
                if self.changing.is_none() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                // Its head has said how long it is.
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
fn pieces(file: &OwnedFd, size: u64) -> Result<Option<Vec<(u64, u64)>>, Errno> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break, // nothing but a hole to the end
            Err(Errno::INVAL | Errno::NOTSUP) => at,
            Err(errno) => return Err(errno),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_no_fault_of_a_file() {
        let ids = IdMap { base: 0, count: 1 };
        for changing in [true, false] {
            let mut out = io::sink();
            let changing = changing.then(|| Changing { room: u64::MAX, left_out: LeftOut::default() });
            let mut packing = Packing::new(ids, &mut out, changing);
            for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS] {
                let error = packing.if_readable::<()>(b"file", Err(errno)).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(errno.raw_os_error()));
            }
            let left_out = packing.changing.map(|changing| changing.left_out);
            assert!(left_out.is_none_or(|left_out| left_out.is_empty()));
        }
    }
}
