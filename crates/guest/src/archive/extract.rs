//! Making files of an archive's entries, only ever below one directory.
//!
//! Each parent is opened by the kernel with no link on the way and no way up, so an archive that first makes a link and then
//! writes «through» it is refused. The last parent stays open: the next file most often lies beside the last.

use std::{
    ffi::CString,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use cabana_sandbox::{Error, Result, SandboxPath};
use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags},
    io::Errno,
};

use super::{
    Archive, LeftOut,
    finish::{self, Finisher, HANDED_OVER, Made},
    layer, named,
    read::{Entry, Kind},
    sparse::Map,
};
use crate::{IdMap, Rooted, errno::fault, ids::NOBODY, sys, tree, xattr};

/// What only this file system cannot have, and that of the archive could.
const LIMITS: [Errno; 6] =
    [Errno::NAMETOOLONG, Errno::MLINK, Errno::FBIG, Errno::ILSEQ, Errno::OVERFLOW, Errno::NOTSUP];
/// Of directories that wait for their modes, their names and attributes: as much memory as that may take.
const MAX_WAITING: usize = 64 * 1024 * 1024;
const TRIES: usize = 16;
const PROGRESS: u64 = 1024 * 1024;

/// What is done about names that are not plain.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Names {
    /// For users: an absolute name is an error, the directory itself is left as it is, and a directory is not replaced.
    Strict,
    /// For a whole root file system: a leading `/` is dropped, `./` is the root itself, and the later entry wins.
    Root,
    /// For a layer of a sandbox: absolute names and second entries of a name are errors, `./` is the root itself, and what
    /// hides files of the layers below is made. A directory comes before what is in it, and all of that before anything else.
    Layer,
}

/// Whose the files become.
#[derive(Clone, Copy)]
pub(crate) enum Owners {
    /// The calling identity's.
    Mine,
    /// As the archive says. `me` is who makes them: what is already right is not set again.
    Archives { ids: IdMap, me: Option<(u32, u32)> },
}

pub(crate) struct Extract<'a> {
    pub(crate) into: BorrowedFd<'a>,
    /// Shown in errors.
    pub(crate) base: &'a SandboxPath,
    pub(crate) names: Names,
    pub(crate) owners: Owners,
    /// Bits that the process takes away from new files.
    pub(crate) umask: u32,
    /// Says where set-uid and set-gid bits may be set; without one they may be anywhere.
    pub(crate) rooted: Option<&'a Rooted>,
    pub(crate) holes: Holes,
    /// Of a layer: what this file system cannot have.
    pub(crate) left_out: LeftOut,
    pub(crate) on_progress: &'a mut dyn FnMut(u64),
}

/// Bytes of files that are not in the archive: a few of its own say any length, and who reads the files reads that.
#[derive(Clone, Copy)]
pub(crate) struct Holes {
    pub(crate) most: u64,
    pub(crate) found: u64,
}

impl Holes {
    pub(crate) const UNBOUNDED: Self = Self::up_to(u64::MAX);

    pub(crate) const fn up_to(most: u64) -> Self {
        Self { most, found: 0 }
    }

    fn add(&mut self, bytes: u64) -> Result<()> {
        self.found = self.found.saturating_add(bytes);
        if self.found > self.most { Err(Error::TooLarge { cap: self.most }) } else { Ok(()) }
    }
}

/// A directory gets its mode and time last: until then it must take entries. In a layer that is when the archive has left it,
/// so only those on the way to an entry wait.
struct Waiting {
    path: Vec<u8>,
    mode: u32,
    owner: Option<(u32, u32)>,
    mtime: (i64, u32),
    attributes: Attributes,
}

type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

impl Waiting {
    fn size(&self) -> usize {
        let attributes = self.attributes.iter();
        let attributes = attributes.map(|(name, value)| name.len() + value.len() + size_of::<(Vec<u8>, Vec<u8>)>());
        self.path.len() + size_of::<Self>() + attributes.sum::<usize>()
    }
}

/// The directory of the last entry.
struct Parent {
    path: Vec<u8>,
    dir: Arc<OwnedFd>,
    /// A directory with setgid gives its group to what is made in it.
    gives_group: bool,
}

impl Extract<'_> {
    pub(crate) fn run(&mut self, archive: &mut Archive<'_>) -> Result<()> {
        let (base, names) = (self.base, self.names);
        let waiting = std::thread::scope(|scope| {
            let mut finisher = Finisher::new(scope, base, names);
            let waiting = self.make_all(archive, &mut finisher);
            self.left_out.append(finisher.end()?);
            waiting
        })?;
        (self.on_progress)(archive.taken());
        // The deepest first: setting a directory's mode may close the way to what lies in it.
        waiting.into_iter().rev().try_for_each(|waiting| self.settle(&waiting))
    }

    /// Tells the directories that wait for the end.
    fn make_all(&mut self, archive: &mut Archive<'_>, finisher: &mut Finisher<'_>) -> Result<Vec<Waiting>> {
        let mut waiting: Vec<Waiting> = Vec::new();
        let mut waiting_bytes = 0;
        let mut parent: Option<Parent> = None;
        let mut passed_over: Option<Vec<u8>> = None;
        while let Some(mut entry) = archive.next()? {
            let path = self.clean(&entry.name)?;
            self.progress(archive);
            if passed_over.as_ref().is_some_and(|above| is_below(&path, above)) {
                continue;
            }
            passed_over = None;
            if self.names == Names::Layer {
                waiting_bytes -= self.settle_left(&mut waiting, &path)?;
            }
            match (self.names, entry.kind) {
                (Names::Layer, Kind::Special) => return Err(Error::Archive("it has a device in it".into())),
                (Names::Layer, _) => {
                    if let Owners::Archives { ids, .. } = self.owners {
                        entry.attributes = layer::arriving(entry.attributes, ids)?;
                    }
                }
                (_, Kind::Special | Kind::Whiteout | Kind::Pipe) => continue,
                _ => {}
            }
            if entry.kind == Kind::Directory {
                if path.is_empty() && self.names == Names::Strict {
                    continue;
                }
                if !path.is_empty() {
                    let (dir, name) = self.place(&mut parent, &path)?;
                    if self.directory(dir.dir.as_fd(), &name, &entry, &path)?.is_none() {
                        passed_over = Some(path);
                        continue;
                    }
                }
                let owner = self.owner(&entry);
                let mut attributes = std::mem::take(&mut entry.attributes);
                attributes.retain(|(name, _)| finish::is_kept(self.names, name));
                if self.names == Names::Layer {
                    attributes = self.dress_early(&path, attributes)?;
                }
                let next = Waiting { path, mode: entry.mode, owner, mtime: entry.mtime, attributes };
                waiting_bytes += next.size();
                if waiting_bytes > MAX_WAITING {
                    let why = "it has too many directories, or too many attributes of directories";
                    return Err(Error::Archive(why.into()));
                }
                waiting.push(next);
                continue;
            }
            if path.is_empty() {
                return Err(Error::Archive("an entry that is no directory has no name".into()));
            }
            let (dir, name) = self.place(&mut parent, &path)?;
            match entry.kind {
                Kind::File => {
                    if let Some(made) = self.file(dir, name, entry, archive, path)? {
                        finisher.finish(made)?;
                    }
                }
                Kind::Symlink => self.symlink(dir.dir.as_fd(), &name, &entry, &path)?,
                Kind::Whiteout => self.node(dir.dir.as_fd(), &name, &entry, FileType::CharacterDevice, &path)?,
                Kind::Pipe => self.node(dir.dir.as_fd(), &name, &entry, FileType::Fifo, &path)?,
                _ => self.hard_link(dir.dir.as_fd(), &name, &entry, &path)?,
            }
        }
        Ok(waiting)
    }

    /// Settles the directories of a layer that an entry does not lie in. Tells how much memory they took.
    fn settle_left(&mut self, waiting: &mut Vec<Waiting>, path: &[u8]) -> Result<usize> {
        let mut freed = 0;
        while let Some(left) = waiting.pop_if(|last| !is_below(path, &last.path)) {
            freed += left.size();
            self.settle(&left)?;
        }
        let above = waiting.last().map_or(&b""[..], |last| &last.path);
        if split(path).0 != above {
            let path = String::from_utf8_lossy(path);
            return Err(Error::Archive(format!("the entry {path:?} does not come behind those of its directory")));
        }
        Ok(freed)
    }

    /// Sets the attributes that have no say in what is made in a directory, and gives the others.
    fn dress_early(&mut self, path: &[u8], attributes: Attributes) -> Result<Attributes> {
        let (late, early): (Attributes, Attributes) =
            attributes.into_iter().partition(|(name, _)| xattr::ACCESS_LISTS.contains(&name.as_slice()));
        if !early.is_empty() {
            let dir = self.open_dir(path).map_err(|e| self.fault(path, "unpack", e))?;
            let set = finish::attributes(self.names, &dir, path, &early, &mut self.left_out);
            set.map_err(|e| self.fault(path, "unpack", e))?;
        }
        Ok(late)
    }

    fn progress(&mut self, archive: &Archive<'_>) {
        (self.on_progress)(archive.taken());
    }

    /// The name without empty parts and `.`, checked before anything of the entry is made.
    fn clean(&self, name: &[u8]) -> Result<Vec<u8>> {
        let shown = || String::from_utf8_lossy(name).into_owned();
        if name.starts_with(b"/") && self.names != Names::Root {
            return Err(Error::Archive(format!("the name {:?} is absolute", shown())));
        }
        if name.contains(&0) {
            return Err(Error::Archive(format!("the name {:?} holds a NUL byte", shown())));
        }
        let mut clean = Vec::with_capacity(name.len());
        for part in name.split(|b| *b == b'/').filter(|part| !matches!(*part, b"" | b".")) {
            if part == b".." {
                return Err(Error::Archive(format!("the name {:?} leads upwards", shown())));
            }
            if !clean.is_empty() {
                clean.push(b'/');
            }
            clean.extend_from_slice(part);
            if part.len() > 255 || clean.len() > 4095 {
                return Err(Error::Archive("a name is too long".into()));
            }
        }
        Ok(clean)
    }

    fn place<'p>(&self, parent: &'p mut Option<Parent>, path: &[u8]) -> Result<(&'p Parent, CString)> {
        let (above, name) = split(path);
        let name = sys::c_name(name).map_err(|e| self.fault(path, "unpack", e))?;
        let known = parent.take().filter(|parent| parent.path == above);
        let found = match known {
            Some(found) => found,
            None => self.open_parent(above)?,
        };
        Ok((parent.insert(found), name))
    }

    fn open_parent(&self, path: &[u8]) -> Result<Parent> {
        let dir = match self.open_dir(path) {
            Err(Errno::NOENT) => self.make_parents(path)?,
            Err(Errno::LOOP | Errno::NOTDIR) => return Err(self.through(path)),
            result => result.map_err(|e| self.fault(path, "unpack", e))?,
        };
        let stat = rustix::fs::fstat(&dir).map_err(|e| self.fault(path, "unpack", e))?;
        Ok(Parent { path: path.to_vec(), dir: Arc::new(dir), gives_group: sys::mode(&stat) & 0o2000 != 0 })
    }

    fn open_dir(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { &b"."[..] } else { path };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        sys::openat2(self.into, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW, resolve)
    }

    fn make_parents(&self, path: &[u8]) -> Result<OwnedFd> {
        let mut dir = self.open_dir(b"").map_err(|e| self.fault(path, "unpack", e))?;
        for part in path.split(|b| *b == b'/') {
            match rustix::fs::mkdirat(&dir, part, Mode::from_raw_mode(0o755)) {
                Ok(()) => {
                    if let Owners::Archives { ids, .. } = self.owners
                        && let (Some(uid), Some(gid)) = (ids.outside(0), ids.outside(0))
                    {
                        let (uid, gid) = (Some(sys::uid(uid)), Some(sys::gid(gid)));
                        rustix::fs::chownat(&dir, part, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
                            .map_err(|e| self.fault(path, "unpack", e))?;
                    }
                }
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(self.fault(path, "unpack", errno)),
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            dir = match rustix::fs::openat(&dir, part, flags, Mode::empty()) {
                Err(Errno::LOOP | Errno::NOTDIR) => return Err(self.through(path)),
                result => result.map_err(|e| self.fault(path, "unpack", e))?,
            };
        }
        Ok(dir)
    }

    fn file(
        &mut self,
        parent: &Parent,
        name: CString,
        entry: Entry,
        archive: &mut Archive<'_>,
        path: Vec<u8>,
    ) -> Result<Option<Made>> {
        // While it is not whole it must not be a setuid program; and a mode that the umask leaves alone is right at once.
        let plain = entry.mode & 0o777;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
        let make = || rustix::fs::openat(&parent.dir, &name, flags, Mode::from_raw_mode(plain));
        let Some(file) = self.make(parent.dir.as_fd(), &name, &path, make)? else { return Ok(None) };
        let filled = match &entry.sparse {
            Some(map) => self.pieces(&file, archive, map, &path).map(|()| Vec::new()),
            None if archive.left() <= HANDED_OVER => archive.rest(),
            None => self.content(&file, archive, &path).map(|()| Vec::new()),
        };
        if filled.is_err() {
            let _ = rustix::fs::unlinkat(&parent.dir, &name, AtFlags::empty()); // half a file is worse than none
        }
        let content = match filled {
            Err(Error::TooLarge { .. }) if self.names == Names::Layer => {
                self.left_out.add(named(&path, "it is larger than a file can be here"));
                return Ok(None);
            }
            filled => filled?,
        };
        let owner = self.owner(&entry).filter(|owner| {
            let Owners::Archives { me, .. } = self.owners else { return true };
            parent.gives_group || me != Some(*owner)
        });
        let mode = self.mode_within(parent.dir.as_fd(), entry.mode, &path)?;
        let mode = Some(mode).filter(|mode| *mode != plain & !self.umask);
        let (dir, attributes, mtime) = (parent.dir.clone(), entry.attributes, entry.mtime);
        Ok(Some(Made { file, dir, name, path, content, owner, attributes, mode, mtime }))
    }

    fn content(&mut self, file: &OwnedFd, archive: &mut Archive<'_>, path: &[u8]) -> Result<()> {
        let mut told = archive.taken();
        loop {
            let bytes = archive.data()?;
            if bytes.is_empty() {
                return Ok(());
            }
            sys::write_all(file, bytes).map_err(|e| self.fault(path, "unpack", e))?;
            let n = bytes.len();
            archive.consume(n);
            if archive.taken() - told >= PROGRESS {
                told = archive.taken();
                self.progress(archive);
            }
        }
    }

    fn pieces(&mut self, file: &OwnedFd, archive: &mut Archive<'_>, map: &Map, path: &[u8]) -> Result<()> {
        self.holes.add(map.holes())?;
        for (at, length) in &map.pieces {
            let (mut at, mut left) = (*at, *length);
            while left > 0 {
                let bytes = archive.data()?;
                let n = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                if n == 0 {
                    return Err(Error::Archive("a sparse file has too little data".into()));
                }
                sys::write_all_at(file, &bytes[..n], at).map_err(|e| self.fault(path, "unpack", e))?;
                archive.consume(n);
                at += n as u64;
                left -= n as u64;
            }
        }
        rustix::fs::ftruncate(file, map.size).map_err(|e| self.fault(path, "unpack", e))
    }

    fn symlink(&mut self, dir: BorrowedFd<'_>, name: &CString, entry: &Entry, path: &[u8]) -> Result<()> {
        let text = &entry.link;
        if text.is_empty() || text.contains(&0) || text.len() > 4095 {
            return Err(Error::Archive(format!("the link {:?} leads nowhere", String::from_utf8_lossy(path))));
        }
        match self.make(dir, name, path, || rustix::fs::symlinkat(text.as_slice(), dir, name))? {
            Some(()) => self.dress(dir, name, entry, path),
            None => Ok(()),
        }
    }

    /// A whiteout, whose numbers are zero, or a pipe.
    fn node(&mut self, dir: BorrowedFd<'_>, name: &CString, entry: &Entry, kind: FileType, path: &[u8]) -> Result<()> {
        let mode = Mode::from_raw_mode(entry.mode & 0o777);
        if self.make(dir, name, path, || rustix::fs::mknodat(dir, name, kind, mode, 0))?.is_none() {
            return Ok(());
        }
        self.dress(dir, name, entry, path)?;
        // By its name: to open it would be to wait for the other end. It was made here, in a tree that nobody else sees. After
        // the owner, whose change takes bits away.
        rustix::fs::chmodat(dir, name, Mode::from_raw_mode(entry.mode), AtFlags::empty())
            .map_err(|e| self.fault(path, "unpack", e))
    }

    /// Owner and time of what is never opened.
    fn dress(&self, dir: BorrowedFd<'_>, name: &CString, entry: &Entry, path: &[u8]) -> Result<()> {
        let failed = |e| self.fault(path, "unpack", e);
        if let Some((uid, gid)) = self.owner(entry) {
            let (uid, gid) = (Some(sys::uid(uid)), Some(sys::gid(gid)));
            rustix::fs::chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        }
        let times = sys::mtime(entry.mtime.0, entry.mtime.1);
        rustix::fs::utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)
    }

    fn hard_link(&mut self, dir: BorrowedFd<'_>, name: &CString, entry: &Entry, path: &[u8]) -> Result<()> {
        let target = self.clean(&entry.link)?;
        if target.is_empty() {
            return self.miss(path, &target);
        }
        if target == path {
            return Ok(());
        }
        let (above, last) = split(&target);
        let above = match self.open_dir(above) {
            Err(Errno::NOENT) => return self.miss(path, &target),
            Err(Errno::LOOP | Errno::NOTDIR) => return Err(self.through(&target)),
            result => result.map_err(|e| self.fault(&target, "unpack", e))?,
        };
        let last = sys::c_name(last).map_err(|e| self.fault(path, "unpack", e))?;
        let there = match sys::stat_at(&above, &last) {
            Err(Errno::NOENT) => return self.miss(path, &target),
            result => result.map_err(|e| self.fault(&target, "unpack", e))?,
        };
        // Two names of one file already: unlinking one to link it again would be for nothing.
        if sys::stat_at(dir, name).is_ok_and(|old| sys::id(&old) == sys::id(&there)) {
            return Ok(());
        }
        self.make(dir, name, path, || rustix::fs::linkat(&above, &last, dir, name, AtFlags::empty())).map(drop)
    }

    /// Of a layer it may be another name of what could not be made.
    fn miss(&mut self, path: &[u8], target: &[u8]) -> Result<()> {
        let why = format!("it is another name of {:?}, which is not there", String::from_utf8_lossy(target));
        if self.names != Names::Layer || self.left_out.is_empty() {
            return Err(Error::Archive(named(path, why)));
        }
        self.left_out.add(named(path, why));
        Ok(())
    }

    fn directory(&mut self, dir: BorrowedFd<'_>, name: &CString, entry: &Entry, path: &[u8]) -> Result<Option<()>> {
        let may_be_there = self.names != Names::Layer;
        let make = || match rustix::fs::mkdirat(dir, name, Mode::from_raw_mode((entry.mode & 0o777) | 0o700)) {
            Err(Errno::EXIST) if may_be_there && is_directory(dir, name) => Ok(()),
            result => result,
        };
        self.make(dir, name, path, make)
    }

    /// Makes something new; what is there under the name goes first. `None` is what of a layer cannot be here.
    fn make<T>(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &CString,
        path: &[u8],
        mut make: impl FnMut() -> Result<T, Errno>,
    ) -> Result<Option<T>> {
        for _ in 0..TRIES {
            match make() {
                Err(Errno::EXIST) => {}
                Err(errno) if self.names == Names::Layer && LIMITS.contains(&errno) => {
                    self.left_out.add(named(path, errno));
                    return Ok(None);
                }
                result => return result.map(Some).map_err(|e| self.fault(path, "unpack", e)),
            }
            if self.names == Names::Layer {
                let path = String::from_utf8_lossy(path);
                return Err(Error::Archive(format!("two entries have the name {path:?}")));
            }
            sys::check_no_mount(dir, name).map_err(|e| self.fault(path, "unpack", e))?;
            match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::ISDIR) if self.names == Names::Root => {
                    tree::remove(dir, name).map_err(|e| crate::errno::io_fault(self.base, "unpack", e))?;
                }
                Err(errno) => return Err(self.fault(path, "unpack", errno)),
            }
        }
        Err(self.fault(path, "unpack", Errno::AGAIN))
    }

    /// A directory that vanished or became something else meanwhile has nothing to be set.
    fn settle(&mut self, waiting: &Waiting) -> Result<()> {
        let base = self.base;
        let failed = |e| fault_below(base, &waiting.path, "unpack", e);
        let dir = match self.open_dir(&waiting.path) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            result => result.map_err(failed)?,
        };
        if let Some((uid, gid)) = waiting.owner {
            rustix::fs::chownat(&dir, c"", Some(sys::uid(uid)), Some(sys::gid(gid)), AtFlags::EMPTY_PATH)
                .map_err(failed)?;
        }
        let attributes = &waiting.attributes;
        finish::attributes(self.names, &dir, &waiting.path, attributes, &mut self.left_out).map_err(failed)?;
        let mode = self.mode_within(dir.as_fd(), waiting.mode, &waiting.path)?;
        sys::chmod_path(&dir, mode).map_err(failed)?;
        let times = sys::mtime(waiting.mtime.0, waiting.mtime.1);
        rustix::fs::utimensat(rustix::fs::CWD, sys::proc_path(&dir), &times, AtFlags::empty()).map_err(failed)
    }

    fn mode_within(&self, at: BorrowedFd<'_>, mode: u32, path: &[u8]) -> Result<u32> {
        let within = self.rooted.map_or(Ok(mode), |rooted| rooted.mode_within(at, mode));
        within.map_err(|e| self.fault(path, "unpack", e))
    }

    fn owner(&self, entry: &Entry) -> Option<(u32, u32)> {
        let Owners::Archives { ids, .. } = self.owners else { return None };
        let id = |raw: u64| ids.adopt(u32::try_from(raw).unwrap_or(NOBODY));
        Some((id(entry.uid)?, id(entry.gid)?))
    }

    fn through(&self, path: &[u8]) -> Error {
        let path = String::from_utf8_lossy(path);
        Error::Archive(format!("an entry leads through {path:?}, where a link or a file is, and no directory"))
    }

    fn fault(&self, path: &[u8], step: &'static str, errno: Errno) -> Error {
        fault_below(self.base, path, step, errno)
    }
}

pub(crate) fn fault_below(base: &SandboxPath, path: &[u8], step: &'static str, errno: Errno) -> Error {
    let path = if path.is_empty() { Ok(base.clone()) } else { base.below(path) };
    fault(path.as_ref().unwrap_or(base), step, errno)
}

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(cut) => (&path[..cut], &path[cut + 1..]),
        None => (b"", path),
    }
}

/// The top lies in none.
fn is_below(path: &[u8], dir: &[u8]) -> bool {
    match path.strip_prefix(dir) {
        Some(rest) => !rest.is_empty() && (dir.is_empty() || rest[0] == b'/'),
        None => false,
    }
}

fn is_directory(dir: BorrowedFd<'_>, name: &CString) -> bool {
    sys::stat_at(dir, name).is_ok_and(|stat| sys::file_type(&stat) == FileType::Directory)
}
