//! The bytes of a regular file.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytes::Bytes;
use cabana_sandbox::{Error, FileInfo, Read, Result, SandboxPath};
use rustix::{buffer::spare_capacity, fs::OFlags};

use crate::{
    Rooted,
    errno::fault,
    info::{describe, tags_of},
    rooted::READ,
    sys,
};

const CHUNK: usize = 256 * 1024;
/// For files of the kernel's own, which have no size: they are seldom larger.
const BLIND_CHUNK: usize = 16 * 1024;

/// What a file held, from where it was asked. A file that grows meanwhile is read to the size it had when it was opened.
pub struct Reader {
    file: OwnedFd,
    path: SandboxPath,
    at: u64,
    left: Left,
}

enum Left {
    Exactly(u64),
    /// The file says it is empty, as those in /proc do: to its end, but not beyond the cap.
    ToTheEnd {
        most: u64,
        cap: u64,
        /// Whether more than `most` is an error, or just not asked for.
        capped: bool,
    },
}

impl Rooted {
    /// Follows links. Only regular files are ever opened.
    pub fn read(&self, path: &SandboxPath, what: Read) -> Result<(FileInfo, Reader)> {
        let found = self.find(path)?;
        let (file, stat) = sys::regular(&found, OFlags::RDONLY).map_err(|e| fault(path, "open", e))?;
        self.judge_stat(&stat, READ).map_err(|e| fault(path, "open", e))?;
        let there = sys::size(&stat).saturating_sub(what.from);
        let wanted = what.len.map_or(there, |len| len.min(there));
        if wanted > what.cap {
            return Err(Error::TooLarge { cap: what.cap });
        }
        let left = match stat.st_size {
            0 => {
                let len = what.len.unwrap_or(u64::MAX);
                Left::ToTheEnd { most: len.min(what.cap), cap: what.cap, capped: len > what.cap }
            }
            _ => Left::Exactly(wanted),
        };
        let mut info = describe(self, &self.names(), path.clone(), &stat);
        info.tags = tags_of(&found);
        Ok((info, Reader { file, path: path.clone(), at: what.from, left }))
    }
}

impl AsFd for Reader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Reader {
    /// At most 256 KiB; `None` at the end.
    pub fn next_chunk(&mut self) -> Result<Option<Bytes>> {
        let size = match self.left {
            Left::Exactly(0) => return Ok(None),
            Left::Exactly(left) => usize::try_from(left).unwrap_or(CHUNK).min(CHUNK),
            Left::ToTheEnd { .. } => BLIND_CHUNK,
        };
        let mut chunk = Vec::with_capacity(size);
        // The capacity may be larger than asked for: what was promised decides.
        let got = sys::retry(|| {
            chunk.clear();
            rustix::io::pread(&self.file, spare_capacity(&mut chunk), self.at)
        });
        let got = got.map_err(|e| fault(&self.path, "read", e))?;
        if got == 0 {
            self.left = Left::Exactly(0);
            return Ok(None);
        }
        self.count(&mut chunk)?;
        self.at += chunk.len() as u64;
        Ok((!chunk.is_empty()).then(|| chunk.into()))
    }

    fn count(&mut self, chunk: &mut Vec<u8>) -> Result<()> {
        let got = chunk.len() as u64;
        match &mut self.left {
            Left::Exactly(left) => {
                let taken = got.min(*left);
                chunk.truncate(taken as usize);
                *left -= taken;
            }
            Left::ToTheEnd { most, cap, capped } => {
                if got > *most && *capped {
                    return Err(Error::TooLarge { cap: *cap });
                }
                let taken = got.min(*most);
                chunk.truncate(taken as usize);
                *most -= taken;
                if *most == 0 && !*capped {
                    self.left = Left::Exactly(0);
                }
            }
        }
        Ok(())
    }
}
