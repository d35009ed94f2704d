//! How soon the kernel ends init when memory runs out.
//!
//! The kernel keeps it the same for all processes that share a memory: init, the supervisors, and commands before their exec. The
//! files of process 1 are closed to root inside; where there is a single id, those of the others are not. So init puts it back.

use std::{ffi::CStr, os::fd::OwnedFd};

use rustix::fs::{Mode, OFlags};

pub(super) struct OomScore {
    file: OwnedFd,
    usual: Text,
}

type Text = ([u8; 8], usize);

impl OomScore {
    /// None where init may not write to its own: then root inside, who has no right that init lacks, may not either.
    pub(super) fn open(file: &CStr) -> Option<Self> {
        let file = rustix::fs::open(file, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let usual = read(&file)?;
        Some(Self { file, usual })
    }

    pub(super) fn put_back(&self) {
        if read(&self.file).is_some_and(|now| now != self.usual) {
            let (text, length) = &self.usual;
            let _ = rustix::io::pwrite(&self.file, &text[..*length], 0);
        }
    }
}

impl AsRef<OwnedFd> for OomScore {
    fn as_ref(&self) -> &OwnedFd {
        &self.file
    }
}

fn read(file: &OwnedFd) -> Option<Text> {
    let mut text = [0; 8];
    let length = rustix::io::pread(file, &mut text, 0).ok()?;
    Some((text, length))
}
