//! A tar into a directory, with write and alter alone. Everything in the archive may be hostile.

use std::{collections::HashSet, sync::Arc};

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::Mutex;

use super::tar::{BLOCK, Header, MAX_EXTENSION, padding, pax, until_nul};
use crate::{Alter, Error, Files, Kind, Read, Result, SandboxPath, Stream, Write, WriteMode};

pub(super) async fn unpack(files: &dyn Files, dir: &SandboxPath, tar: Stream<Bytes>) -> Result<()> {
    // Also says so when there is no such directory, before anything is pulled.
    drop(files.list(dir).await?);
    let archive = Arc::new(Mutex::new(Archive { tar, held: Bytes::new(), body: 0, padding: 0, cut_off: false }));
    let mut unpacking = Unpacking { files, dir, archive, safe: HashSet::new(), modes: Vec::new() };
    unpacking.run().await?;
    unpacking.set_modes().await
}

struct Unpacking<'a> {
    files: &'a dyn Files,
    dir: &'a SandboxPath,
    /// Shared with the body of the file that is being written.
    archive: Arc<Mutex<Archive>>,
    /// Directories below `dir` that were seen to be no links.
    safe: HashSet<SandboxPath>,
    /// Set at the end: a directory that is read-only could not be filled.
    modes: Vec<(SandboxPath, u32)>,
}

impl Unpacking<'_> {
    async fn run(&mut self) -> Result<()> {
        loop {
            let next = self.archive.lock().await.next().await?;
            let Some(header) = next else { return Ok(()) };
            let Some(path) = self.place(&header.name)? else { continue };
            self.check_parents(&path).await?;
            match header.kind {
                b'0' | 0 | b'7' => self.file(&path, &header).await?,
                b'1' => self.hard_link(&path, &header).await?,
                b'2' => self.symlink(&path, &header).await?,
                b'5' => self.directory(&path, &header).await?,
                _ => return Err(bad(&header.name, "is a device, a pipe or something unknown")),
            }
        }
    }

    /// Where the entry belongs; `None` for the directory itself.
    fn place(&self, name: &[u8]) -> Result<Option<SandboxPath>> {
        if name.starts_with(b"/") {
            return Err(bad(name, "is absolute"));
        }
        let parts: Vec<&[u8]> = name.split(|b| *b == b'/').filter(|part| !matches!(*part, b"" | b".")).collect();
        if parts.contains(&&b".."[..]) {
            return Err(bad(name, "leaves the directory"));
        }
        if parts.is_empty() {
            return Ok(None);
        }
        let path = self.dir.below(&parts.join(&b'/')).map_err(|error| bad(name, &error.to_string()))?;
        Ok(Some(path))
    }

    /// A link on the way would lead a later entry out of the directory. Parents that the archive does not name are made.
    async fn check_parents(&mut self, path: &SandboxPath) -> Result<()> {
        let mut unknown = Vec::new();
        let mut parent = path.parent();
        while let Some(dir) = parent.filter(|dir| dir != self.dir && !self.safe.contains(dir)) {
            parent = dir.parent();
            unknown.push(dir);
        }
        for dir in unknown.into_iter().rev() {
            match self.files.stat(&dir).await {
                Ok(info) if info.kind == Kind::Directory => {}
                Ok(info) if info.kind == Kind::Symlink => return Err(bad(path.as_bytes(), "goes through a link")),
                Ok(_) => return Err(Error::NotDirectory(dir)),
                Err(Error::NotFound(_)) => self.files.alter(Alter::MakeDir(dir.clone(), 0o755)).await?,
                Err(error) => return Err(error),
            }
            self.safe.insert(dir);
        }
        Ok(())
    }

    async fn file(&self, path: &SandboxPath, header: &Header) -> Result<()> {
        self.remove_link(path).await?;
        let how = Write { perm: Some(header.mode), len: Some(header.size), cap: u64::MAX, mode: WriteMode::Replace };
        let written = self.files.write(path, how, body(self.archive.clone())).await;
        // Whatever the provider makes of it: if the archive was cut off, that is what went wrong.
        if self.archive.lock().await.cut_off {
            return Err(truncated());
        }
        written.map(drop)
    }

    /// A copy: the interface knows no hard links.
    async fn hard_link(&mut self, path: &SandboxPath, header: &Header) -> Result<()> {
        let Some(target) = self.place(&header.link)? else {
            return Err(bad(&header.name, "links to the directory itself"));
        };
        self.check_parents(&target).await?;
        let info = match self.files.stat(&target).await {
            Err(Error::NotFound(_)) => return Err(bad(&header.name, "links to what is not in the archive")),
            info => info?,
        };
        match info.kind {
            _ if target == *path => Ok(()),
            Kind::File => {
                self.remove_link(path).await?;
                let (info, body) = self.files.read(&target, Read { cap: u64::MAX, ..Read::default() }).await?;
                let how = Write { perm: Some(info.mode), len: None, cap: u64::MAX, mode: WriteMode::Replace };
                self.files.write(path, how, body).await.map(drop)
            }
            Kind::Symlink => {
                let text = info.link.map(|link| link.text).unwrap_or_default();
                self.make_symlink(path, text).await
            }
            Kind::Directory | Kind::Other => Err(bad(&header.name, "links to what is no file")),
        }
    }

    /// The text is kept as it is: a link may point anywhere, only nothing is written through it.
    async fn symlink(&self, path: &SandboxPath, header: &Header) -> Result<()> {
        if header.link.is_empty() {
            return Err(bad(&header.name, "is a link without a text"));
        }
        self.make_symlink(path, header.link.clone()).await
    }

    async fn make_symlink(&self, path: &SandboxPath, text: Vec<u8>) -> Result<()> {
        match self.files.stat(path).await {
            Ok(info) if info.kind == Kind::Directory => return Err(Error::IsDirectory(path.clone())),
            Ok(_) => self.files.alter(Alter::Remove(path.clone())).await?,
            Err(Error::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
        self.files.alter(Alter::Symlink { at: path.clone(), text }).await
    }

    async fn directory(&mut self, path: &SandboxPath, header: &Header) -> Result<()> {
        match self.files.alter(Alter::MakeDir(path.clone(), header.mode | 0o700)).await {
            Err(Error::Exists(_)) if self.files.stat(path).await?.kind == Kind::Directory => {}
            Err(Error::Exists(_)) => return Err(bad(&header.name, "is a directory where there is a file or a link")),
            result => result?,
        }
        self.safe.insert(path.clone());
        self.modes.push((path.clone(), header.mode));
        Ok(())
    }

    /// A write follows links; an archive's file replaces them.
    async fn remove_link(&self, path: &SandboxPath) -> Result<()> {
        match self.files.stat(path).await {
            Ok(info) if info.kind == Kind::Symlink => self.files.alter(Alter::Remove(path.clone())).await,
            Ok(_) | Err(Error::NotFound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The innermost first: a directory that may not be entered any more hides what is below.
    async fn set_modes(&self) -> Result<()> {
        for (path, mode) in self.modes.iter().rev() {
            self.files.alter(Alter::SetMode(path.clone(), *mode)).await?;
        }
        Ok(())
    }
}

fn bad(name: &[u8], why: &str) -> Error {
    Error::Archive(format!("its entry {:?} {why}", String::from_utf8_lossy(name)))
}

fn truncated() -> Error {
    Error::Archive("it is cut off".into())
}

/// Pulls headers and bodies out of the bytes as they come.
struct Archive {
    tar: Stream<Bytes>,
    held: Bytes,
    /// What is left of the current entry's body, and the zeros after it.
    body: u64,
    padding: u64,
    cut_off: bool,
}

impl Archive {
    /// The next entry with its long names and PAX records applied; `None` at the end mark.
    async fn next(&mut self) -> Result<Option<Header>> {
        let (mut name, mut link, mut size) = (None, None, None);
        loop {
            while self.chunk().await?.is_some() {}
            while self.padding > 0 {
                self.padding -= self.take(self.padding).await?.len() as u64;
            }
            let block = self.block().await?;
            if block == [0; BLOCK] {
                return Ok(None);
            }
            let mut header = Header::decode(&block)?;
            match header.kind {
                b'L' => name = Some(until_nul(&self.extension(header.size).await?)),
                b'K' => link = Some(until_nul(&self.extension(header.size).await?)),
                b'x' => {
                    for (key, value) in pax(&self.extension(header.size).await?)? {
                        match key.as_slice() {
                            b"path" => name = Some(value),
                            b"linkpath" => link = Some(value),
                            b"size" => size = Some(decimal(&value)?),
                            _ => {}
                        }
                    }
                }
                // Defaults for all that follows: nothing in them says where an entry goes.
                b'g' => drop(self.extension(header.size).await?),
                _ => {
                    header.name = name.unwrap_or(header.name);
                    header.link = link.unwrap_or(header.link);
                    header.size = size.unwrap_or(header.size);
                    // Only files have a body; some writers give links a size too.
                    let body = if matches!(header.kind, b'1' | b'2' | b'5') { 0 } else { header.size };
                    (self.body, self.padding) = (body, padding(body) as u64);
                    return Ok(Some(header));
                }
            }
        }
    }

    /// The next piece of the current entry's body.
    async fn chunk(&mut self) -> Result<Option<Bytes>> {
        if self.body == 0 {
            return Ok(None);
        }
        let chunk = self.take(self.body).await?;
        self.body -= chunk.len() as u64;
        Ok(Some(chunk))
    }

    async fn extension(&mut self, size: u64) -> Result<Vec<u8>> {
        if size > MAX_EXTENSION {
            return Err(Error::Archive("a name or a PAX header is too long".into()));
        }
        (self.body, self.padding) = (size, padding(size) as u64);
        let mut whole = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            whole.extend_from_slice(&chunk);
        }
        Ok(whole)
    }

    async fn block(&mut self) -> Result<[u8; BLOCK]> {
        let mut block = BytesMut::with_capacity(BLOCK);
        while block.len() < BLOCK {
            let piece = self.take((BLOCK - block.len()) as u64).await?;
            block.extend_from_slice(&piece);
        }
        block.as_ref().try_into().map_err(|_| truncated())
    }

    /// At least one byte and at most `most`.
    async fn take(&mut self, most: u64) -> Result<Bytes> {
        while self.held.is_empty() {
            match self.tar.try_next().await? {
                Some(bytes) => self.held = bytes,
                None => {
                    self.cut_off = true;
                    return Err(truncated());
                }
            }
        }
        let len = self.held.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        Ok(self.held.split_to(len))
    }
}

fn decimal(digits: &[u8]) -> Result<u64> {
    let number = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| Error::Archive("a PAX size is no number".into()))
}

/// The current entry's body, as a stream for a write.
fn body(archive: Arc<Mutex<Archive>>) -> Stream<Bytes> {
    stream::try_unfold(archive, |archive| async move {
        let chunk = archive.lock().await.chunk().await?;
        Ok(chunk.map(|chunk| (chunk, archive)))
    })
    .boxed()
}
