//! Where the parts of an image lie, and whether they are what their digests say.

use std::{
    fs::File,
    io::{self, Read},
};

use rustix::{
    fs::{FileType, Mode, OFlags, ResolveFlags},
    io::Errno,
};
use sha2::{Digest as _, Sha256};

use super::{
    digest::Digest,
    manifest::{Descriptor, MOST_JSON, Why, shown},
};
use crate::layers::rooted::kind;

/// The directory of an image's parts.
pub(super) struct Layout {
    root: File,
    resolve: ResolveFlags,
}

impl Layout {
    /// No part of it is a link.
    pub(super) fn of_oci(root: File) -> Self {
        Self { root, resolve: ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS }
    }

    /// Older `docker save` writes a layer that two images share once, and a link to it. None leads out.
    pub(super) fn of_docker(root: File) -> Self {
        Self { root, resolve: ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS }
    }

    pub(super) fn has(&self, path: &str) -> bool {
        self.open(path).is_ok()
    }

    /// A file by its path, which says nothing about its content.
    pub(super) fn plain(&self, path: &str) -> Result<Blob, Why> {
        let (file, size) = self.open(path)?;
        Ok(Blob::new(path, file, size, None))
    }

    /// A part by its digest. Its size is right; what it holds shows when it has been read.
    pub(super) fn blob(&self, part: &Descriptor) -> Result<Blob, Why> {
        let digest = Digest::parse(&part.digest)?;
        let path = format!("blobs/sha256/{}", digest.hex());
        let (file, size) = self.open(&path)?;
        if size != part.size {
            return Err(format!("its {path} has {size} bytes instead of {}: it is damaged, save it anew", part.size));
        }
        Ok(Blob::new(&path, file, size, Some(digest)))
    }

    fn open(&self, path: &str) -> Result<(File, u64), Why> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let found = loop {
            match rustix::fs::openat2(&self.root, path, flags, Mode::empty(), self.resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                found => break found,
            }
        };
        let file = found.map_err(|errno| match errno {
            Errno::NOENT | Errno::NOTDIR => format!("it has no {}: it is not whole, save it anew", shown(path)),
            Errno::LOOP | Errno::XDEV => {
                format!("its {} is a link, or lies behind one, that is not followed", shown(path))
            }
            errno => format!("its {} cannot be opened: {errno}", shown(path)),
        })?;
        let stat = rustix::fs::fstat(&file).map_err(|e| format!("its {} cannot be looked at: {e}", shown(path)))?;
        match kind(&stat) {
            FileType::RegularFile => Ok((File::from(file), u64::try_from(stat.st_size).unwrap_or(0))),
            _ => Err(format!("its {} is no file", shown(path))),
        }
    }
}

/// A file that is hashed while it is read.
pub(super) struct Blob {
    path: String,
    from: Hashed<io::Take<File>>,
    size: u64,
    digest: Option<Digest>,
}

impl Blob {
    fn new(path: &str, file: File, size: u64, digest: Option<Digest>) -> Self {
        Self { path: path.into(), from: Hashed::new(file.take(size)), size, digest }
    }

    /// What its name says that its content is.
    pub(super) fn expecting(self, digest: Option<Digest>) -> Self {
        Self { digest, ..self }
    }

    /// Text of an image, whole and checked.
    pub(super) fn text(mut self) -> Result<Vec<u8>, Why> {
        if self.size > MOST_JSON {
            return Err(format!("its {} has {} bytes, and {MOST_JSON} are the most", shown(&self.path), self.size));
        }
        let mut text = Vec::new();
        self.from.read_to_end(&mut text).map_err(|e| format!("its {} cannot be read: {e}", shown(&self.path)))?;
        self.check().map(|()| text)
    }

    /// Reads what is left, and tells whether it all was what it should be.
    pub(super) fn check(mut self) -> Result<(), Why> {
        let path = shown(&self.path);
        io::copy(&mut self.from, &mut io::sink()).map_err(|e| format!("its {path} cannot be read: {e}"))?;
        let found = self.from.digest();
        match self.digest {
            Some(digest) if digest != found => {
                let found = found.hex();
                Err(format!("its {path} has the digest sha256:{found} instead: it is damaged, save it anew"))
            }
            _ => Ok(()),
        }
    }
}

impl Read for Blob {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.from.read(into)
    }
}

pub(super) struct Hashed<R> {
    pub(super) from: R,
    hash: Sha256,
}

impl<R> Hashed<R> {
    pub(super) fn new(from: R) -> Self {
        Self { from, hash: Sha256::new() }
    }

    /// Of what was read.
    pub(super) fn digest(&self) -> Digest {
        Digest(self.hash.clone().finalize().into())
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(into)?;
        self.hash.update(&into[..read]);
        Ok(read)
    }
}
