//! The tree below one directory, and how a path in it is resolved.

use std::{
    ffi::{CString, OsStr},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use cabana_sandbox::{Result, SandboxPath};
use rustix::{
    fs::{FileType, OFlags, ResolveFlags, Stat},
    io::Errno,
};

use crate::{IdMap, account_cache::AccountCache, dir::is_pseudo, errno::fault, sys};

/// As many links as the kernel itself follows.
const MAX_LINKS: usize = 40;
const MAX_PATH: usize = 4096;

/// The files below one directory descriptor. Every path ends at that directory: absolute links point into it, and `..`
/// stops at it. Cheap to clone.
#[derive(Clone)]
pub struct Rooted {
    inner: Arc<Inner>,
}

struct Inner {
    root: OwnedFd,
    ids: IdMap,
    /// Where the mounts are that are its own, without their first slash. None where there are no others.
    own_mounts: Option<Vec<PathBuf>>,
    accounts: AccountCache,
}

/// Where a path leads in the end: a name in a directory, and what is there.
pub(crate) struct Place {
    pub(crate) dir: OwnedFd,
    pub(crate) name: CString,
    pub(crate) stat: Option<Stat>,
}

pub(crate) const READ: u32 = 0o4;
pub(crate) const WRITE: u32 = 0o2;
pub(crate) const SEARCH: u32 = 0o1;
/// No mode has this bit.
pub(crate) const NOT_EVEN_ALL: u32 = 1 << 31;

impl Rooted {
    /// `root` is an `O_PATH` or a readable descriptor of a directory.
    pub fn new(root: OwnedFd, ids: IdMap) -> Self {
        Self { inner: Arc::new(Inner { root, ids, own_mounts: None, accounts: AccountCache::default() }) }
    }

    /// The root of a sandbox that runs. What lies on none of the mounts at these absolute paths is a view's.
    pub fn of_sandbox<'p>(root: OwnedFd, ids: IdMap, own_mounts: impl IntoIterator<Item = &'p [u8]>) -> Self {
        let relative = |path: &[u8]| PathBuf::from(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path)));
        let own_mounts = Some(own_mounts.into_iter().map(relative).collect());
        Self { inner: Arc::new(Inner { root, ids, own_mounts, accounts: AccountCache::default() }) }
    }

    pub(crate) fn ids(&self) -> IdMap {
        self.inner.ids
    }

    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.inner.root.as_fd()
    }

    pub(crate) fn own_mounts(&self) -> Option<&[PathBuf]> {
        self.inner.own_mounts.as_deref()
    }

    pub(crate) fn account_cache(&self) -> &AccountCache {
        &self.inner.accounts
    }

    /// The one way by which a path becomes a descriptor. Magic links (`/proc/1/root`) would leave the root: they are `LOOP`.
    /// What the kernel makes up is closed: much of `/proc` tells of whoever reads it, and that would be the host.
    pub(crate) fn resolve(&self, relative: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let found = sys::openat2(self.root(), path, flags, resolve)?;
        if is_pseudo(&found) { Err(Errno::ACCESS) } else { Ok(found) }
    }

    /// Whoever acts for root inside has capabilities of the host, and the kernel lets them override the modes of what
    /// belongs to the host: its files in /proc, and in a view those of owners who are not mapped. So what is not the
    /// sandbox's own is judged by what everybody may do with it; `NOT_EVEN_ALL` is for what only an owner may.
    pub(crate) fn judge(&self, found: impl AsFd, everybody: u32) -> Result<(), Errno> {
        self.judge_stat(&rustix::fs::fstat(found)?, everybody)
    }

    pub(crate) fn judge_stat(&self, stat: &Stat, everybody: u32) -> Result<(), Errno> {
        let ours = self.ids().holds(stat.st_uid);
        if ours || stat.st_mode & everybody == everybody { Ok(()) } else { Err(Errno::ACCESS) }
    }

    pub(crate) fn open_dir(&self, dir: &SandboxPath) -> Result<OwnedFd> {
        // O_DIRECTORY refuses a pipe or a device before it would be opened.
        let open = || {
            let found = self.resolve(dir.relative(), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK)?;
            self.judge(&found, READ | SEARCH)?;
            Ok(found)
        };
        open().map_err(|e| fault(dir, "open the directory", e))
    }

    /// What is behind a path, links followed, without opening it.
    pub(crate) fn find(&self, path: &SandboxPath) -> Result<OwnedFd> {
        self.resolve(path.relative(), OFlags::PATH).map_err(|e| fault(path, "find", e))
    }

    /// The directory that holds a path's last name, and that name. The root itself is held by nothing.
    pub(crate) fn parent(&self, path: &SandboxPath) -> Result<(OwnedFd, CString)> {
        let dir = path.relative().parent().unwrap_or(Path::new(""));
        let found = match path.is_root() {
            true => Err(Errno::BUSY),
            false => self.open_to_change(dir),
        };
        let name = sys::c_name(path.name());
        match (found, name) {
            (Ok(dir), Ok(name)) => Ok((dir, name)),
            (Err(errno), _) | (_, Err(errno)) => Err(fault(path, "open the parent directory", errno)),
        }
    }

    /// A directory in which entries are made, renamed or removed.
    pub(crate) fn open_to_change(&self, dir: &Path) -> Result<OwnedFd, Errno> {
        let found = self.resolve(dir, OFlags::PATH | OFlags::DIRECTORY)?;
        self.judge(&found, WRITE | SEARCH)?;
        Ok(found)
    }

    /// Follows the last name's links by their text, so that what they lead to can be replaced or made. Each step is
    /// resolved inside the root, so a link that changes meanwhile leads elsewhere, but never out.
    pub(crate) fn locate(&self, path: &SandboxPath) -> Result<Place, Errno> {
        let mut text = path.relative().as_os_str().as_bytes().to_vec();
        for _ in 0..=MAX_LINKS {
            let cut = text.iter().rposition(|b| *b == b'/');
            let (above, name) = cut.map_or((&b""[..], &text[..]), |cut| (&text[..cut], &text[cut + 1..]));
            if matches!(name, b"" | b"." | b"..") {
                return Err(Errno::ISDIR);
            }
            let dir = self.resolve(Path::new(OsStr::from_bytes(above)), OFlags::PATH | OFlags::DIRECTORY)?;
            let name = sys::c_name(name)?;
            let stat = match sys::stat_at(&dir, &name) {
                Err(Errno::NOENT) => return Ok(Place { dir, name, stat: None }),
                result => result?,
            };
            if sys::file_type(&stat) != FileType::Symlink {
                return Ok(Place { dir, name, stat: Some(stat) });
            }
            let link = match sys::link_text(&dir, &name) {
                Err(Errno::NOENT) => continue, // it was one a moment ago: now it is looked at again
                link => link?,
            };
            text = match link.strip_prefix(b"/") {
                Some(absolute) => absolute.to_vec(),
                None => [above, b"/", &link].concat(),
            };
            let leading = text.iter().take_while(|b| **b == b'/').count();
            text.drain(..leading);
            if text.len() > MAX_PATH {
                return Err(Errno::NAMETOOLONG);
            }
        }
        Err(Errno::LOOP)
    }

    /// The path without links that the given one leads to, with what is there. It is text: told, never acted on.
    pub(crate) fn canonical(&self, path: &SandboxPath) -> Result<(SandboxPath, Stat), Errno> {
        // The kernel's word first: it knows magic links, permissions and circles.
        let truth = rustix::fs::fstat(self.resolve(path.relative(), OFlags::PATH)?)?;
        let mut done: Vec<Vec<u8>> = Vec::new();
        let mut ahead: Vec<Vec<u8>> = parts(path.relative().as_os_str().as_bytes());
        let mut at = self.resolve(Path::new(""), OFlags::PATH)?;
        let (mut links, mut steps) = (0, 0);
        while let Some(part) = ahead.pop() {
            steps += 1;
            if steps > MAX_PATH {
                return Err(Errno::LOOP);
            }
            if part == b".." {
                done.pop();
                at = self.reach(&done)?;
                continue;
            }
            let name = sys::c_name(&part)?;
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let next = rustix::fs::openat(&at, &name, flags, rustix::fs::Mode::empty())?;
            if sys::file_type(&rustix::fs::fstat(&next)?) != FileType::Symlink {
                done.push(part);
                at = next;
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(Errno::LOOP);
            }
            let text = rustix::fs::readlinkat(&next, c"", Vec::new())?.into_bytes();
            if text.starts_with(b"/") {
                done.clear();
                at = self.reach(&done)?;
            }
            ahead.extend(parts(&text));
        }
        // Whoever changed a link in between gets no path that was never true.
        if sys::id(&rustix::fs::fstat(&at)?) != sys::id(&truth) {
            return Err(Errno::STALE);
        }
        let text = [&b"/"[..], &done.join(&b'/')].concat();
        SandboxPath::new(text).map(|path| (path, truth)).map_err(|_| Errno::NAMETOOLONG)
    }

    fn reach(&self, parts: &[Vec<u8>]) -> Result<OwnedFd, Errno> {
        self.resolve(Path::new(OsStr::from_bytes(&parts.join(&b'/'))), OFlags::PATH)
    }
}

/// A path's parts, the first one last, without `.` and empty ones.
fn parts(text: &[u8]) -> Vec<Vec<u8>> {
    let mut parts: Vec<_> =
        text.split(|b| *b == b'/').filter(|p| !matches!(*p, b"" | b".")).map(<[u8]>::to_vec).collect();
    parts.reverse();
    parts
}
