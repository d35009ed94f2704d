//! The second half of making a file: its content, owner and times, on a thread beside the one that makes the next.
//!
//! Making the file takes the directory's lock and most of the time; what is done with its descriptor needs neither. A new
//! thread has the identity of the one that starts it.

use std::{
    ffi::CString,
    os::fd::OwnedFd,
    sync::{
        Arc,
        mpsc::{SyncSender, sync_channel},
    },
    thread::{Builder, Scope, ScopedJoinHandle},
};

use cabana_sandbox::{Error, Result, SandboxPath};
use rustix::{fs::AtFlags, io::Errno};

use super::{
    LeftOut,
    extract::{Names, fault_below},
    named,
};
use crate::{sys, xattr};

/// Files are handed over in batches, since waking the other thread takes longer than a file does. Each file holds a
/// descriptor, and content of at most [`HANDED_OVER`]; at most three batches are under way.
const BATCH: usize = 32;
/// Of attributes in a batch: those of one file may have a mebibyte.
const BATCH_ATTRIBUTES: usize = 2 * 1024 * 1024;
/// Longer content is written where it is read.
pub(crate) const HANDED_OVER: u64 = 64 * 1024;

/// A file that was made, and what it still lacks.
pub(crate) struct Made {
    pub(crate) file: OwnedFd,
    pub(crate) dir: Arc<OwnedFd>,
    pub(crate) name: CString,
    /// Shown in errors.
    pub(crate) path: Vec<u8>,
    pub(crate) content: Vec<u8>,
    pub(crate) owner: Option<(u32, u32)>,
    pub(crate) attributes: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) mode: Option<u32>,
    pub(crate) mtime: (i64, u32),
}

/// Who finishes files: another thread where one can be had.
pub(crate) struct Finisher<'s> {
    how: How<'s>,
    batch: Vec<Made>,
    /// Bytes of the attributes in the batch.
    attributes: usize,
    thread: Option<Thread<'s>>,
    /// Where there is no thread.
    left_out: LeftOut,
}

struct Thread<'s> {
    give: SyncSender<Vec<Made>>,
    ended: ScopedJoinHandle<'s, Result<LeftOut>>,
}

#[derive(Clone, Copy)]
struct How<'s> {
    base: &'s SandboxPath,
    names: Names,
}

impl<'s> Finisher<'s> {
    pub(crate) fn new<'e: 's>(scope: &'s Scope<'s, 'e>, base: &'e SandboxPath, names: Names) -> Self {
        let how = How { base, names };
        let (give, take) = sync_channel(1);
        let finish_all = move || {
            let mut left_out = LeftOut::default();
            take.into_iter().try_for_each(|batch| how.finish_all(batch, &mut left_out)).map(|()| left_out)
        };
        let thread = Builder::new().name("unpack".into()).spawn_scoped(scope, finish_all);
        let thread = thread.ok().map(|ended| Thread { give, ended });
        Finisher { how, batch: Vec::with_capacity(BATCH), attributes: 0, thread, left_out: LeftOut::default() }
    }

    /// An error may be that of an earlier file.
    pub(crate) fn finish(&mut self, made: Made) -> Result<()> {
        self.attributes += made.attributes.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        self.batch.push(made);
        if self.batch.len() < BATCH && self.attributes < BATCH_ATTRIBUTES {
            return Ok(());
        }
        self.hand_over()
    }

    fn hand_over(&mut self) -> Result<()> {
        self.attributes = 0;
        let batch = std::mem::replace(&mut self.batch, Vec::with_capacity(BATCH));
        match &self.thread {
            // Refused only when the thread has ended, with an error that `end` tells.
            Some(thread) => thread.give.send(batch).map_err(|_| Error::failed("unpack", "an earlier file failed")),
            None => self.how.finish_all(batch, &mut self.left_out),
        }
    }

    /// Waits until all are finished, and tells what files could not have.
    pub(crate) fn end(mut self) -> Result<LeftOut> {
        let last = self.hand_over();
        let Some(Thread { give, ended }) = self.thread else { return last.map(|()| self.left_out) };
        drop(give);
        let ended = ended.join().unwrap_or_else(|_| Err(Error::failed("unpack", "the second thread ended early")));
        ended.and_then(|left_out| last.map(|()| left_out))
    }
}

impl How<'_> {
    fn finish_all(self, batch: Vec<Made>, left_out: &mut LeftOut) -> Result<()> {
        batch.into_iter().try_for_each(|made| self.finish(&made, left_out))
    }

    fn finish(self, made: &Made, left_out: &mut LeftOut) -> Result<()> {
        self.steps(made, left_out).map_err(|e| fault_below(self.base, &made.path, "unpack", e))
    }

    fn steps(self, made: &Made, left_out: &mut LeftOut) -> Result<(), Errno> {
        sys::write_all(&made.file, &made.content).inspect_err(|_| {
            let _ = rustix::fs::unlinkat(&made.dir, &made.name, AtFlags::empty()); // half a file is worse than none
        })?;
        if let Some((uid, gid)) = made.owner {
            rustix::fs::fchown(&made.file, Some(sys::uid(uid)), Some(sys::gid(gid)))?;
        }
        attributes(self.names, &made.file, &made.path, &made.attributes, left_out)?;
        if let Some(mode) = made.mode {
            sys::chmod(&made.file, mode)?;
        }
        rustix::fs::futimens(&made.file, &sys::mtime(made.mtime.0, made.mtime.1))
    }
}

/// Those of users alone; the others are dropped. A layer's were chosen before.
pub(crate) fn is_kept(names: Names, attribute: &[u8]) -> bool {
    match names {
        Names::Layer => !attribute.contains(&0),
        Names::Strict | Names::Root => xattr::is_imported(attribute),
    }
}

/// What a file system cannot keep of an archive that came from one that can more: a user's is made without it, a layer is
/// told what it lacks.
pub(crate) fn attributes(
    names: Names,
    file: &OwnedFd,
    path: &[u8],
    attributes: &[(Vec<u8>, Vec<u8>)],
    left_out: &mut LeftOut,
) -> Result<(), Errno> {
    for (name, value) in attributes.iter().filter(|(name, _)| is_kept(names, name)) {
        match (names, xattr::set(sys::proc_path(file).as_bytes(), name, value)) {
            (Names::Strict, Err(Errno::NOTSUP | Errno::RANGE | Errno::TOOBIG)) => {}
            (Names::Layer, Err(errno)) if is_too_much(file, errno) => {
                let name = String::from_utf8_lossy(name);
                left_out.add(named(path, format_args!("its attribute {name:?} ({errno})")));
            }
            (_, result) => result?,
        }
    }
    Ok(())
}

/// Whether an attribute cannot be there, however much room is made. Ext4 says of one that is too large for its file what it says
/// of a full disk.
fn is_too_much(file: &OwnedFd, errno: Errno) -> bool {
    const ROOM: u64 = 256;
    match errno {
        Errno::NOTSUP | Errno::RANGE | Errno::TOOBIG | Errno::INVAL => true,
        Errno::NOSPC => rustix::fs::fstatvfs(file).is_ok_and(|disk| disk.f_bavail > ROOM),
        _ => false,
    }
}
