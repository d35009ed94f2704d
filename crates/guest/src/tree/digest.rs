//! The name of a tree: one number that two trees share only if they are the same to whoever uses them.
//!
//! A listing in a fixed order goes into BLAKE3, each field with its length or of fixed width, so that no two listings read
//! alike. Times are left out: the same content made twice is the same.

use std::{ffi::CStr, ffi::CString, io, os::fd::AsFd, os::fd::BorrowedFd};

use blake3::Hasher;
use rustix::{
    fs::{FileType, OFlags, Stat},
    io::Errno,
};

use crate::{
    IdMap,
    dir::{Descent, Mounts, open_again, open_below, sorted_names},
    links::FirstNames,
    sys, xattr,
};

const FORMAT: &[u8] = b"cabana tree 1\n";
const CHUNK: usize = 128 * 1024;

pub fn digest(dir: BorrowedFd<'_>, ids: IdMap) -> io::Result<[u8; 32]> {
    let mut listing = Listing { hasher: Hasher::new(), ids, linked: FirstNames::new(), buffer: vec![0; CHUNK] };
    listing.hasher.update(FORMAT);
    let top = open_again(dir)?;
    listing.head(b"", b'd', &rustix::fs::fstat(&top)?);
    listing.attributes(sys::proc_path(&top).as_bytes(), xattr::read_through);
    let below = listing.directory(top.as_fd(), b"")?;
    let mut descent: Descent<Vec<CString>> = Descent::new(top, below)?;
    while let Some(below) = descent.state() {
        let Some(name) = below.pop() else {
            descent.leave()?;
            continue;
        };
        let fd = open_below(descent.here()?, &name, Mounts::Stop)?;
        let below = listing.directory(fd.as_fd(), &descent.path_of(&name))?;
        descent.enter(&name, fd, below)?;
    }
    Ok(*listing.hasher.finalize().as_bytes())
}

struct Listing {
    hasher: Hasher,
    ids: IdMap,
    /// Files with several names, by the first one.
    linked: FirstNames,
    buffer: Vec<u8>,
}

impl Listing {
    /// All entries of one directory, by name; then its subdirectories are to be listed, the first one last in the answer.
    fn directory(&mut self, dir: BorrowedFd<'_>, path: &[u8]) -> Result<Vec<CString>, Errno> {
        let mut below = Vec::new();
        for name in sorted_names(dir)? {
            let path = if path.is_empty() { name.to_bytes().to_vec() } else { [path, b"/", name.to_bytes()].concat() };
            if self.entry(dir, &name, &path)? {
                below.push(name);
            }
        }
        below.reverse();
        Ok(below)
    }

    /// Whether it is a directory.
    fn entry(&mut self, dir: BorrowedFd<'_>, name: &CStr, path: &[u8]) -> Result<bool, Errno> {
        let stat = sys::stat_at(dir, name)?;
        let kind = sys::file_type(&stat);
        self.head(path, letter(kind), &stat);
        if matches!(kind, FileType::RegularFile | FileType::Directory) {
            self.attributes(&sys::proc_entry(&dir, name), xattr::read_at);
        }
        match kind {
            FileType::RegularFile => self.file(dir, name, &stat, path)?,
            FileType::Symlink => {
                self.field(&sys::link_text(dir, name)?);
            }
            FileType::CharacterDevice | FileType::BlockDevice => self.number(stat.st_rdev),
            _ => {}
        }
        Ok(kind == FileType::Directory)
    }

    fn file(&mut self, dir: BorrowedFd<'_>, name: &CStr, stat: &Stat, path: &[u8]) -> Result<(), Errno> {
        if stat.st_nlink > 1 {
            if let Some(first) = self.linked.path(sys::id(stat)) {
                self.hasher.update(b"=");
                self.field(&first);
                return Ok(());
            }
            self.linked.insert(sys::id(stat), path);
        }
        let (file, _) = sys::open_regular(dir, name, OFlags::RDONLY)?;
        let mut content = Hasher::new();
        let mut size = 0;
        loop {
            match sys::retry(|| rustix::io::read(&file, &mut self.buffer))? {
                0 => break,
                n => {
                    content.update(&self.buffer[..n]);
                    size += n as u64;
                }
            }
        }
        self.hasher.update(b":");
        self.number(size);
        self.hasher.update(content.finalize().as_bytes());
        Ok(())
    }

    fn head(&mut self, path: &[u8], kind: u8, stat: &Stat) {
        self.field(path);
        self.hasher.update(&[kind]);
        // A link has no mode of its own.
        let mode = if kind == b'l' { 0 } else { sys::mode(stat) };
        for number in [mode, self.ids.inside(stat.st_uid), self.ids.inside(stat.st_gid)] {
            self.hasher.update(&number.to_le_bytes());
        }
    }

    fn attributes(&mut self, path: &[u8], read: impl Fn(&[u8], &[u8]) -> xattr::Attributes) {
        let attributes = read(path, b"user.");
        self.number(attributes.len() as u64);
        for (name, value) in attributes {
            self.field(&name);
            self.field(&value);
        }
    }

    fn field(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.hasher.update(bytes);
    }

    fn number(&mut self, number: u64) {
        self.hasher.update(&number.to_le_bytes());
    }
}

fn letter(kind: FileType) -> u8 {
    match kind {
        FileType::RegularFile => b'f',
        FileType::Directory => b'd',
        FileType::Symlink => b'l',
        FileType::Fifo => b'p',
        FileType::Socket => b's',
        FileType::CharacterDevice => b'c',
        FileType::BlockDevice => b'b',
        FileType::Unknown => b'?',
    }
}
