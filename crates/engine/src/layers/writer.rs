//! Writes a generated tree: directories, files, links and whiteouts with the owners, modes and times that it is told, so
//! that the same input gives the same layer.
//!
//! It writes only into drafts, which nobody else can reach, so that plain paths are safe here.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt, fchown, lchown, symlink},
    path::{Path, PathBuf},
};

use cabana_guest::IdMap;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps};

/// When generated things were made: one moment for all, since their content does not depend on it. Not 1970, which zip
/// tools refuse.
pub(crate) const MADE: Timespec = Timespec { tv_sec: 1_577_836_800, tv_nsec: 0 };

pub(crate) const fn both(time: Timespec) -> Timestamps {
    Timestamps { last_access: time, last_modification: time }
}

/// The id on disk of an id inside. What a small range cannot hold belongs to its last id; what no range holds, to nobody.
pub(crate) fn outside(ids: IdMap, inside: u32) -> u32 {
    let nobody = 65_534.min(ids.count - 1);
    ids.base + if inside < ids.count { inside } else { nobody }
}

/// Mode, owner and time of an entry, as seen inside.
#[derive(Clone, Copy)]
pub(crate) struct Meta {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) time: Timespec,
}

impl Meta {
    pub(crate) fn new(mode: u32) -> Self {
        Self { mode, uid: 0, gid: 0, time: MADE }
    }

    pub(crate) fn owned(self, uid: u32, gid: u32) -> Self {
        Self { uid, gid, ..self }
    }

    pub(crate) fn at(self, time: Timespec) -> Self {
        Self { time, ..self }
    }
}

pub(crate) struct Writer<'a> {
    root: &'a Path,
    ids: IdMap,
    /// Times of directories are set last: each new entry changes them.
    dirs: BTreeMap<PathBuf, Timespec>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(root: &'a Path, ids: IdMap) -> Self {
        Self { root, ids, dirs: BTreeMap::new() }
    }

    /// A directory; one that is there gets the new mode and owner. Parents that are not there are made, 0755 and root's.
    pub(crate) fn dir(&mut self, path: &str, meta: Meta) -> io::Result<()> {
        self.dir_at(Path::new(path), meta)
    }

    pub(crate) fn dir_at(&mut self, path: &Path, meta: Meta) -> io::Result<()> {
        self.parents(path)?;
        let at = self.root.join(path);
        match fs::create_dir(&at) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        lchown(&at, Some(outside(self.ids, meta.uid)), Some(outside(self.ids, meta.gid)))?;
        fs::set_permissions(&at, fs::Permissions::from_mode(meta.mode))?;
        self.dirs.insert(path.into(), meta.time);
        Ok(())
    }

    pub(crate) fn has_dir(&self, path: &Path) -> bool {
        self.dirs.contains_key(path)
    }

    pub(crate) fn file(&mut self, path: &str, content: impl AsRef<[u8]>, meta: Meta) -> io::Result<()> {
        let file = self.new_file(Path::new(path))?;
        (&file).write_all(content.as_ref())?;
        self.finish(&file, meta)
    }

    /// The content of an open file, without taking it through our memory where the kernel can.
    pub(crate) fn file_from(&mut self, path: &Path, from: &mut File, meta: Meta) -> io::Result<()> {
        let mut file = self.new_file(path)?;
        io::copy(from, &mut file)?;
        self.finish(&file, meta)
    }

    pub(crate) fn link(&mut self, path: &str, to: impl AsRef<Path>) -> io::Result<()> {
        self.link_at(Path::new(path), to.as_ref(), Meta::new(0o777))
    }

    pub(crate) fn link_at(&mut self, path: &Path, to: &Path, meta: Meta) -> io::Result<()> {
        self.parents(path)?;
        let at = self.root.join(path);
        symlink(to, &at)?;
        lchown(&at, Some(outside(self.ids, meta.uid)), Some(outside(self.ids, meta.gid)))?;
        Ok(rustix::fs::utimensat(CWD, &at, &both(meta.time), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Hides what the layers below have at this path: to overlayfs, a device 0:0 means that there is nothing.
    pub(crate) fn whiteout(&mut self, path: &Path) -> io::Result<()> {
        self.parents(path)?;
        let at = self.root.join(path);
        rustix::fs::mknodat(CWD, &at, FileType::CharacterDevice, Mode::empty(), 0)?;
        lchown(&at, Some(outside(self.ids, 0)), Some(outside(self.ids, 0)))?;
        Ok(rustix::fs::utimensat(CWD, &at, &both(MADE), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// The times of directories, from the deepest up.
    pub(crate) fn end(self) -> io::Result<()> {
        for (path, time) in self.dirs.iter().rev() {
            rustix::fs::utimensat(CWD, self.root.join(path), &both(*time), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }

    fn parents(&mut self, path: &Path) -> io::Result<()> {
        match path.parent() {
            Some(parent) if parent != Path::new("") && !self.has_dir(parent) => self.dir_at(parent, Meta::new(0o755)),
            _ => Ok(()),
        }
    }

    fn new_file(&mut self, path: &Path) -> io::Result<File> {
        self.parents(path)?;
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.root.join(path))
    }

    fn finish(&self, file: &File, meta: Meta) -> io::Result<()> {
        fchown(file, Some(outside(self.ids, meta.uid)), Some(outside(self.ids, meta.gid)))?;
        file.set_permissions(fs::Permissions::from_mode(meta.mode))?;
        Ok(rustix::fs::futimens(file, &both(meta.time))?)
    }
}
