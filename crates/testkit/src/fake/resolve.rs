//! From a path to an inode, as the kernel does it for one user.

use std::collections::VecDeque;

use cabana_sandbox::{Error, Result, SandboxPath};

use super::{
    Fault,
    fs::{Fs, Ino, Node, ROOT, Who},
};

const MAX_LINKS: u32 = 40;

/// Where a path leads: an entry of a directory, which may not be there yet.
#[derive(Clone, Debug)]
pub(super) struct Spot {
    pub(super) dir: Ino,
    pub(super) name: Vec<u8>,
    pub(super) ino: Option<Ino>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Last {
    Follow,
    /// A link at the end of the path is meant itself.
    Keep,
}

impl Fs {
    /// What is there; `NotFound` if nothing is.
    pub(super) fn find(&self, who: Who, path: &SandboxPath, last: Last) -> Result<Ino> {
        self.resolve(who, path, last)?.ino.ok_or_else(|| self.missing(path))
    }

    pub(super) fn missing(&self, path: &SandboxPath) -> Error {
        match self.has(Fault::MissingIsAFailure) {
            true => Error::failed("looking up a path", "No such file or directory"),
            false => Error::NotFound(path.clone()),
        }
    }

    pub(super) fn resolve(&self, who: Who, path: &SandboxPath, last: Last) -> Result<Spot> {
        let mut rest: VecDeque<&[u8]> = parts(path.as_bytes()).collect();
        let mut here = ROOT;
        let mut links = 0;
        while let Some(part) = rest.pop_front() {
            if part == b".." {
                if here == ROOT && self.has(Fault::DotDotAtTheRootFails) {
                    return Err(self.missing(path));
                }
                here = self.inode(here).up;
                continue;
            }
            let Node::Dir(entries) = &self.inode(here).node else { return Err(self.through_file(path)) };
            if !self.may(who, here, 1) {
                return Err(Error::Denied(path.clone()));
            }
            let Some(ino) = entries.get(part).copied() else {
                return match rest.is_empty() {
                    true => Ok(Spot { dir: here, name: part.to_vec(), ino: None }),
                    false => Err(self.missing(path)),
                };
            };
            match &self.inode(ino).node {
                Node::Link(text) if !rest.is_empty() || last == Last::Follow => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(if self.has(Fault::LoopIsNotFound) {
                            self.missing(path)
                        } else {
                            Error::Loop(path.clone())
                        });
                    }
                    if text.starts_with(b"/") {
                        here = ROOT;
                    }
                    parts(text).rev().for_each(|part| rest.push_front(part));
                }
                _ if rest.is_empty() => return Ok(Spot { dir: here, name: part.to_vec(), ino: Some(ino) }),
                _ => here = ino,
            }
        }
        let inode = self.inode(here);
        Ok(Spot { dir: inode.up, name: inode.name.clone(), ino: Some(here) })
    }

    fn through_file(&self, path: &SandboxPath) -> Error {
        match self.has(Fault::ThroughAFileIsNotFound) {
            true => Error::NotFound(path.clone()),
            false => Error::NotDirectory(path.clone()),
        }
    }

    /// Without any link in it.
    pub(super) fn path_of(&self, ino: Ino) -> Option<SandboxPath> {
        let mut names = Vec::new();
        let mut here = ino;
        while here != ROOT {
            let inode = self.inode(here);
            names.push(inode.name.clone());
            here = inode.up;
        }
        names.reverse();
        if names.is_empty() { Some(SandboxPath::root()) } else { SandboxPath::root().below(&names.join(&b'/')).ok() }
    }

    /// Bits as in a mode: 4 to read, 2 to write, 1 to enter.
    pub(super) fn may(&self, who: Who, ino: Ino, bits: u32) -> bool {
        let inode = self.inode(ino);
        if self.has(Fault::RootIsLikeAnybody) && who.rules && inode.uid != 0 {
            return inode.mode & bits == bits;
        }
        let is_dir = matches!(inode.node, Node::Dir(_));
        let ignored = self.has(if is_dir { Fault::DirectoriesAreOpen } else { Fault::FilesAreOpen });
        if who.rules || ignored {
            return true;
        }
        let shift = match () {
            () if inode.uid == who.uid => 6,
            () if inode.gid == who.uid => 3,
            () => 0,
        };
        inode.mode >> shift & bits == bits
    }
}

fn parts(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|b| *b == b'/').filter(|part| !matches!(*part, b"" | b"."))
}
