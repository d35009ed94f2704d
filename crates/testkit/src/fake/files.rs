//! The files in memory, as one user sees them.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use cabana_sandbox::{
    Alter, Change, Depth, Error, FileInfo, Files, Hit, Read, Result, SandboxPath, Search, Stream, User, WatchEvent,
    Write, WriteMode,
};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::{
    Fault,
    fs::{Fs, Ino, Node, ROOT, Who, now},
    resolve::{Last, Spot},
    sandbox::Session,
    unsupported,
};

const BATCH: usize = 256;
const CHUNK: usize = 64 * 1024;

pub(super) struct FakeFiles {
    session: Arc<Session>,
    user: User,
    by_root: bool,
    fault: Option<Fault>,
}

impl FakeFiles {
    pub(super) fn new(session: Arc<Session>, user: User, fault: Option<Fault>) -> Self {
        Self { session, user, by_root: false, fault }
    }

    pub(super) fn by_root(self) -> Self {
        Self { by_root: true, ..self }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Each operation begins with it: is the sandbox there, and is there such a user?
    fn with<T>(&self, act: impl FnOnce(&mut Fs, Who) -> Result<T>) -> Result<T> {
        let mut fs = self.session.fs()?;
        let mut who = fs.user(&self.user)?;
        who.rules |= self.by_root;
        act(&mut fs, who)
    }

    /// The same files without faults of search, pack and unpack, to do the rest of these with.
    fn plain(&self) -> Arc<dyn Files> {
        Arc::new(Self { session: self.session.clone(), user: self.user.clone(), by_root: self.by_root, fault: None })
    }
}

#[async_trait]
impl Files for FakeFiles {
    async fn stat(&self, path: &SandboxPath) -> Result<FileInfo> {
        self.with(|fs, who| {
            let last = if fs.has(Fault::StatFollowsLinks) { Last::Follow } else { Last::Keep };
            let ino = fs.find(who, path, last)?;
            let info = fs.info(who, ino, path);
            let dangling = info.link.as_ref().is_some_and(|link| link.target.is_none());
            if dangling && fs.has(Fault::DanglingLinkIsNotFound) { Err(fs.missing(path)) } else { Ok(info) }
        })
    }

    async fn list(&self, dir: &SandboxPath) -> Result<Stream<Vec<FileInfo>>> {
        self.with(|fs, who| {
            let last = if fs.has(Fault::ListRefusesLinks) { Last::Keep } else { Last::Follow };
            let ino = fs.find(who, dir, last)?;
            if !fs.is_dir(ino) && !fs.has(Fault::ListOfAFileIsEmpty) {
                return Err(Error::NotDirectory(dir.clone()));
            }
            if !fs.may(who, ino, 4) {
                return Err(Error::Denied(dir.clone()));
            }
            let mut found = Vec::new();
            for (name, entry) in fs.entries(ino) {
                let path = dir.join(&name)?;
                let seen = match fs.has(Fault::ListFollowsLinks) {
                    true => fs.find(who, &path, Last::Follow).unwrap_or(entry),
                    false => entry,
                };
                if !(fs.has(Fault::ListOmitsHiddenFiles) && name.starts_with(b".")) {
                    found.push(fs.info(who, seen, &path));
                }
            }
            if fs.has(Fault::ListIsCutOff) {
                found.truncate(1000);
            }
            if fs.has(Fault::ListRepeatsAtBatches) && found.len() > BATCH {
                found.insert(BATCH, found[BATCH - 1].clone());
            }
            let batches: Vec<_> = found.chunks(BATCH).map(|batch| Ok(batch.to_vec())).collect();
            Ok(stream::iter(batches).boxed())
        })
    }

    async fn read(&self, path: &SandboxPath, what: Read) -> Result<(FileInfo, Stream<Bytes>)> {
        self.with(|fs, who| {
            let last = if fs.has(Fault::ReadRefusesLinks) { Last::Keep } else { Last::Follow };
            let ino = fs.find(who, path, last)?;
            let content: &[u8] = match &fs.inode(ino).node {
                Node::File(content) => content,
                Node::Dir(_) if fs.has(Fault::ReadOfADirectoryIsEmpty) => &[],
                Node::Dir(_) => return Err(Error::IsDirectory(path.clone())),
                Node::Link(_) => return Err(Error::Loop(path.clone())),
            };
            if !fs.may(who, ino, 4) {
                return Err(Error::Denied(path.clone()));
            }
            let size = content.len() as u64;
            if what.from > size && fs.has(Fault::BeyondTheEndFails) {
                return Err(Error::invalid("from", "is beyond the end"));
            }
            let from = if fs.has(Fault::SpanIgnoresFrom) { 0 } else { what.from.min(size) };
            let len = what.len.filter(|_| !fs.has(Fault::SpanIgnoresLen)).unwrap_or(u64::MAX).min(size - from);
            let over = len > what.cap || (len == what.cap && fs.has(Fault::CapIsOneTooSmall));
            if over && !fs.has(Fault::ReadIgnoresTheCap) {
                return Err(Error::TooLarge { cap: what.cap });
            }
            let info = fs.info(who, ino, path);
            if fs.has(Fault::ReadSeesWhatCameLater) {
                return Ok((info, lazily(self.session.clone(), path.clone())));
            }
            let mut content = Bytes::copy_from_slice(&content[from as usize..(from + len) as usize]);
            if fs.has(Fault::ReadLosesTheLastByte) {
                content.truncate(content.len().saturating_sub(1));
            }
            Ok((info, chunks(content)))
        })
    }

    async fn write(&self, path: &SandboxPath, how: Write, body: Stream<Bytes>) -> Result<FileInfo> {
        let perm = if self.has(Fault::PermIsIgnored) { None } else { how.perm.map(|perm| perm & 0o7777) };
        let how = Write { perm, ..how };
        let place = self.with(|fs, who| fs.place(who, path, &how))?;
        if how.len.is_some_and(|len| len > how.cap)
            && !self.has(Fault::WriteIgnoresTheCap)
            && !self.has(Fault::WriteCutsAtTheCap)
        {
            return Err(Error::TooLarge { cap: how.cap });
        }
        let streams = how.mode == WriteMode::InPlace || self.has(Fault::ReplaceShowsItsMiddle);
        let info = if streams {
            self.write_through(path, how, &place, body).await
        } else {
            self.write_whole(path, how, &place, body).await
        }?;
        if self.has(Fault::WriteSaysTheOldSize) { Ok(FileInfo { size: 0, ..info }) } else { Ok(info) }
    }

    async fn alter(&self, step: Alter) -> Result<()> {
        self.with(|fs, who| match step {
            Alter::MakeDir(path, mode) => fs.make_dir(who, &path, mode & 0o7777),
            Alter::Rename(from, to) => fs.rename(who, &from, &to),
            Alter::Remove(path) => fs.remove(who, &path),
            Alter::RemoveAll(path) => fs.remove_all(who, &path),
            Alter::SetMode(path, mode) => fs.set_mode(who, &path, mode),
            Alter::SetOwner(path, owner) => fs.set_owner(who, &path, &owner),
            Alter::Symlink { at, text } => fs.symlink(who, &at, text),
            Alter::SetTags(path, tags) => fs.set_tags(who, &path, tags),
        })
    }

    async fn watch(&self, dir: &SandboxPath, depth: Depth) -> Result<Stream<WatchEvent>> {
        self.with(|fs, who| {
            let found = fs.find(who, dir, Last::Follow);
            let ino = match found {
                Err(_) if fs.has(Fault::WatchOfNothingIsQuiet) => ROOT,
                ino => ino?,
            };
            if !fs.is_dir(ino) {
                return Err(Error::NotDirectory(dir.clone()));
            }
            if !fs.may(who, ino, 4) {
                return Err(Error::Denied(dir.clone()));
            }
            Ok(fs.watch(ino, dir.clone(), depth))
        })
    }

    async fn search(&self, mut what: Search) -> Result<Stream<Vec<Hit>>> {
        let plain = self.plain();
        match self.fault {
            Some(Fault::SearchIgnoresGlobs) => what.globs.clear(),
            Some(Fault::SearchForgetsExclusions) => what.globs.retain(|glob| !glob.starts_with('!')),
            Some(Fault::SearchIgnoresIgnoreFiles) => what.ignore_files = false,
            Some(Fault::SearchIgnoresMaxHits) => what.max_hits = u32::MAX,
            Some(Fault::SearchCountsLinesFromZero) => {
                let hits = cabana_sandbox::search(&plain, what).await?;
                return Ok(hits.map_ok(|hits| hits.into_iter().map(one_line_less).collect()).boxed());
            }
            _ => return Err(unsupported("search beside the files")),
        }
        cabana_sandbox::search(&plain, what).await
    }

    async fn pack(&self, dir: &SandboxPath) -> Result<Stream<Bytes>> {
        match self.fault {
            Some(Fault::PackIsCutOff) => Ok(cabana_sandbox::pack(&self.plain(), dir).await?.take(2).boxed()),
            _ => Err(unsupported("pack beside the files")),
        }
    }

    async fn unpack(&self, dir: &SandboxPath, tar: Stream<Bytes>) -> Result<()> {
        match self.fault {
            Some(Fault::UnpackAcceptsAnything) => {
                let _ = cabana_sandbox::unpack(&*self.plain(), dir, tar).await;
                Ok(())
            }
            Some(Fault::UnpackMakesItsDirectory) => {
                cabana_sandbox::make_dirs(&*self.plain(), dir).await?;
                cabana_sandbox::unpack(&*self.plain(), dir, tar).await
            }
            _ => Err(unsupported("unpack beside the files")),
        }
    }
}

fn one_line_less(hit: Hit) -> Hit {
    match hit {
        Hit::Line { path, line, text } => Hit::Line { path, line: line - 1, text },
        entry @ Hit::Entry(_) => entry,
    }
}

fn chunks(content: Bytes) -> Stream<Bytes> {
    stream::iter((0..content.len()).step_by(CHUNK).map(move |at| Ok(content.slice(at..content.len().min(at + CHUNK)))))
        .boxed()
}

/// By its path again at every chunk, as one who does not hold the file open would.
fn lazily(session: Arc<Session>, path: SandboxPath) -> Stream<Bytes> {
    stream::try_unfold((session, path, 0), |(session, path, at)| async move {
        let next = {
            let fs = session.fs()?;
            let ino = fs.find(Who::of(0), &path, Last::Follow)?;
            match &fs.inode(ino).node {
                Node::File(content) if at < content.len() => {
                    Bytes::copy_from_slice(&content[at..content.len().min(at + CHUNK)])
                }
                _ => return Ok(None),
            }
        };
        let end = at + next.len();
        Ok(Some((next, (session, path, end))))
    })
    .boxed()
}

impl FakeFiles {
    /// Nothing is seen of it before its end: `Replace`, `CreateNew` and `Append`.
    async fn write_whole(&self, path: &SandboxPath, how: Write, place: &Spot, body: Stream<Bytes>) -> Result<FileInfo> {
        let mut content = Vec::new();
        let pulled = self
            .pull(how, body, |bytes| {
                content.extend_from_slice(bytes);
                Ok(())
            })
            .await;
        if let Err(error) = pulled {
            self.leave_behind(path, how, place, content)?;
            return Err(error);
        }
        self.with(|fs, who| {
            if fs.has(Fault::WatchShowsTheTemporary) {
                fs.tell(Change::Create, place.dir, b".tmp-1");
            }
            fs.put(who, path, &how, content)
        })
    }

    /// Nothing of a write that failed, unless that is the fault.
    fn leave_behind(&self, path: &SandboxPath, how: Write, place: &Spot, half: Vec<u8>) -> Result<()> {
        match (self.fault, how.mode) {
            (Some(Fault::ReplaceKeepsHalf), WriteMode::Replace | WriteMode::CreateNew) => {
                self.with(|fs, who| fs.put(who, path, &how, half).map(drop))
            }
            (Some(Fault::AppendLosesTheFile), WriteMode::Append) => {
                let emptied = Write { mode: WriteMode::InPlace, ..how };
                self.with(|fs, who| fs.put(who, path, &emptied, Vec::new()).map(drop))
            }
            (Some(Fault::TemporaryIsLeft), WriteMode::Replace) => {
                self.with(|fs, who| Ok(fs.add(who, place.dir, b".tmp-1", Node::File(half), 0o600))).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Truncates first, then writes what comes as it comes.
    async fn write_through(
        &self,
        path: &SandboxPath,
        how: Write,
        place: &Spot,
        body: Stream<Bytes>,
    ) -> Result<FileInfo> {
        let old = match place.ino {
            Some(ino) if self.has(Fault::InPlaceDoesNotTruncate) => self.with(|fs, _| Ok(fs.content(ino).to_vec()))?,
            _ => Vec::new(),
        };
        let start = Write { mode: WriteMode::InPlace, ..how };
        self.with(|fs, who| fs.put(who, path, &start, Vec::new()))?;
        let mut total = 0;
        let append = |bytes: &[u8]| {
            self.with(|fs, who| {
                fs.put(who, path, &Write { mode: WriteMode::Append, perm: None, ..how }, bytes.to_vec()).map(drop)
            })
        };
        self.pull(how, body, |bytes| {
            total += bytes.len();
            append(bytes)
        })
        .await?;
        if let Some(rest) = old.get(total..).filter(|rest| !rest.is_empty()) {
            append(rest)?;
        }
        self.with(|fs, who| {
            let ino = fs.find(who, path, Last::Follow)?;
            Ok(fs.info(who, ino, path))
        })
    }

    async fn pull(&self, how: Write, mut body: Stream<Bytes>, mut push: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut total = 0;
        while let Some(bytes) = body.try_next().await? {
            if bytes.is_empty() && self.has(Fault::EmptyChunkIsTheEnd) {
                break;
            }
            if total + bytes.len() as u64 > how.cap && !self.has(Fault::WriteIgnoresTheCap) {
                if self.has(Fault::WriteCutsAtTheCap) {
                    return push(&bytes[..(how.cap - total) as usize]);
                }
                return Err(Error::TooLarge { cap: how.cap });
            }
            total += bytes.len() as u64;
            push(&bytes)?;
        }
        match how.len {
            Some(len) if len != total && !self.has(Fault::LengthIsNotChecked) => {
                Err(Error::invalid("len", format!("{len} bytes were promised and {total} came")))
            }
            _ => Ok(()),
        }
    }
}

impl Fs {
    /// Where the write goes, and whether it may, before any of the body is pulled.
    fn place(&mut self, who: Who, path: &SandboxPath, how: &Write) -> Result<Spot> {
        if self.has(Fault::WriteMakesParents)
            && let Some(parent) = path.parent()
            && self.find(who, &parent, Last::Follow).is_err()
        {
            self.make_dir(who, &parent, 0o755)?;
        }
        let keep = how.mode == WriteMode::CreateNew || self.has(Fault::ReplaceReplacesLinks);
        let spot = self.resolve(who, path, if keep { Last::Keep } else { Last::Follow })?;
        if !self.is_dir(spot.dir) {
            return Err(Error::NotDirectory(path.clone()));
        }
        match spot.ino {
            Some(_) if how.mode == WriteMode::CreateNew && !self.has(Fault::CreateNewReplaces) => {
                Err(Error::Exists(path.clone()))
            }
            Some(ino) if self.is_dir(ino) => match self.has(Fault::WriteOntoADirectoryIsDenied) {
                true => Err(Error::Denied(path.clone())),
                false => Err(Error::IsDirectory(path.clone())),
            },
            Some(ino) if !self.may(who, ino, 2) => Err(Error::Denied(path.clone())),
            Some(_) => Ok(spot),
            None if !self.may(who, spot.dir, 3) => Err(Error::Denied(path.clone())),
            None if spot.name.len() > 200 && self.has(Fault::NamesAreShort) => {
                Err(Error::invalid("path", "is too long"))
            }
            None => Ok(spot),
        }
    }

    /// The body is complete: the file has it now.
    fn put(&mut self, who: Who, path: &SandboxPath, how: &Write, content: Vec<u8>) -> Result<FileInfo> {
        let spot = self.place(who, path, how)?;
        if content.is_empty() && how.mode == WriteMode::Replace && self.has(Fault::EmptyBodyWritesNothing) {
            return Ok(self.info(who, spot.dir, path));
        }
        if let Err(full) = self.room(content.len(), usize::from(spot.ino.is_none())) {
            if self.has(Fault::NoSpaceIsWritten) && spot.ino.is_none() {
                self.add(who, spot.dir, &spot.name, Node::File(content), 0o644);
            }
            return Err(full);
        }
        let mode = how.perm.unwrap_or(if self.has(Fault::NewFilesAreSecret) { 0o600 } else { 0o644 });
        let ino = match spot.ino {
            None => {
                let lossy = String::from_utf8_lossy(&spot.name).into_owned().into_bytes();
                let name = if self.has(Fault::NamesAreText) { lossy } else { spot.name };
                let ino = self.add(who, spot.dir, &name, Node::File(content), mode);
                self.change(ino, Change::Write, |_| {});
                ino
            }
            Some(ino) => {
                let append = how.mode == WriteMode::Append && !self.has(Fault::AppendReplaces);
                let replace = how.mode == WriteMode::Replace;
                let reset_mode = match replace {
                    true => self.has(Fault::ReplaceResetsTheMode),
                    false => self.has(Fault::InPlaceResetsTheMode) && how.mode == WriteMode::InPlace,
                };
                let new_owner = replace && self.has(Fault::ReplaceTakesOwnership);
                let change = if how.mode == WriteMode::InPlace && self.has(Fault::InPlaceMakesANewFile) {
                    Change::Create
                } else {
                    Change::Write
                };
                self.change(ino, change, |inode| {
                    match &mut inode.node {
                        Node::File(old) if append => old.extend_from_slice(&content),
                        node => *node = Node::File(content),
                    }
                    inode.modified = now();
                    if reset_mode || how.perm.is_some() {
                        inode.mode = mode;
                    }
                    if new_owner {
                        (inode.uid, inode.gid) = (who.uid, who.uid);
                    }
                });
                ino
            }
        };
        Ok(self.info(who, ino, path))
    }

    fn content(&self, ino: Ino) -> &[u8] {
        if let Node::File(content) = &self.inode(ino).node { content } else { &[] }
    }

    /// The place of a new entry.
    fn vacant(&self, who: Who, path: &SandboxPath) -> Result<Spot> {
        let spot = self.resolve(who, path, Last::Keep)?;
        if spot.ino.is_some() {
            return Err(Error::Exists(path.clone()));
        }
        self.check_dir(who, spot.dir, path)?;
        Ok(spot)
    }

    fn make_dir(&mut self, who: Who, path: &SandboxPath, mode: u32) -> Result<()> {
        if self.has(Fault::MakeDirMakesParents)
            && let Some(parent) = path.parent()
            && self.find(who, &parent, Last::Follow).is_err()
        {
            self.make_dir(who, &parent, 0o755)?;
        }
        let mode = if self.has(Fault::MakeDirIgnoresTheMode) { 0o755 } else { mode };
        match self.vacant(who, path) {
            Err(Error::Exists(_)) if self.has(Fault::MakeDirAgainIsOk) => Ok(()),
            spot => {
                let spot = spot?;
                self.room(0, 1)?;
                self.add(who, spot.dir, &spot.name, Node::Dir(BTreeMap::new()), mode);
                Ok(())
            }
        }
    }

    fn symlink(&mut self, who: Who, at: &SandboxPath, text: Vec<u8>) -> Result<()> {
        if text.is_empty() || text.contains(&0) {
            return Err(Error::invalid("text", "of a link must not be empty or hold a NUL byte"));
        }
        if self.has(Fault::SymlinkReplaces) && self.find(who, at, Last::Keep).is_ok() {
            self.remove(who, at)?;
        }
        let spot = self.vacant(who, at)?;
        self.room(0, 1)?;
        self.add(who, spot.dir, &spot.name, Node::Link(text), 0o777);
        Ok(())
    }

    fn remove(&mut self, who: Who, path: &SandboxPath) -> Result<()> {
        let last = if self.has(Fault::RemoveFollowsLinks) { Last::Follow } else { Last::Keep };
        let spot = self.resolve(who, path, last)?;
        match spot.ino {
            None if self.has(Fault::RemoveOfNothingIsOk) => Ok(()),
            None => Err(self.missing(path)),
            Some(ino) if !self.entries(ino).is_empty() => match self.has(Fault::RemoveTakesTheTree) {
                true => self.take_tree(who, &spot, ino, path),
                false => Err(Error::NotEmpty(path.clone())),
            },
            Some(ino) => self.take(who, &spot, ino, path),
        }
    }

    fn remove_all(&mut self, who: Who, path: &SandboxPath) -> Result<()> {
        let spot = self.resolve(who, path, Last::Keep)?;
        match spot.ino {
            None if self.has(Fault::RemoveAllOfNothingIsOk) => Ok(()),
            None => Err(self.missing(path)),
            Some(ino) if !self.is_dir(ino) && self.has(Fault::RemoveAllWantsADirectory) => {
                Err(Error::NotDirectory(path.clone()))
            }
            Some(ino) => self.take_tree(who, &spot, ino, path),
        }
    }

    fn set_mode(&mut self, who: Who, path: &SandboxPath, mode: u32) -> Result<()> {
        let ino = self.find(who, path, Last::Follow)?;
        if !who.rules && who.uid != self.inode(ino).uid && !self.has(Fault::ModesAreAnybodys) {
            return Err(Error::Denied(path.clone()));
        }
        let mode = match self.fault {
            Some(Fault::SetModeKeepsHighBits) => mode,
            Some(Fault::SetModeLosesSpecialBits) => mode & 0o777,
            _ => mode & 0o7777,
        };
        self.change(ino, Change::Chmod, |inode| inode.mode = mode);
        Ok(())
    }

    fn set_owner(&mut self, who: Who, path: &SandboxPath, owner: &User) -> Result<()> {
        let ino = self.find(who, path, Last::Follow)?;
        let owner = self.user(owner)?;
        if !who.rules && !self.has(Fault::OwnersAreAnybodys) {
            return Err(Error::Denied(path.clone()));
        }
        if !self.has(Fault::SetOwnerDoesNothing) {
            self.change(ino, Change::Chmod, |inode| inode.uid = owner.uid);
        }
        Ok(())
    }

    fn set_tags(&mut self, who: Who, path: &SandboxPath, tags: BTreeMap<String, String>) -> Result<()> {
        let ino = self.find(who, path, Last::Follow)?;
        if !self.may(who, ino, 2) {
            return Err(Error::Denied(path.clone()));
        }
        let merge = self.has(Fault::TagsAreAdded);
        self.change(ino, Change::Chmod, |inode| match merge {
            true => inode.tags.extend(tags),
            false => inode.tags = tags,
        });
        Ok(())
    }
}
