//! A tree as a ZIP, made while it is read. Nothing of it is kept but its table of contents, and that packed: memory does not
//! grow with what the files hold.
//!
//! The sandbox lives on meanwhile. What vanishes before its turn is not in the archive, and what becomes a link leads nowhere;
//! a file that grows has the length it had when it was opened, and one that shrinks the bytes that were there. Whatever else goes wrong ends the stream with an
//! error before the table of contents, and without that no reader takes it for whole.

mod harmless;
mod records;

use std::{
    io::{self, Read as _, Write as _},
    mem,
    sync::Arc,
};

use bytes::Bytes;
use flate2::{Compression, Crc, read::DeflateDecoder, write::DeflateEncoder};
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::task::spawn_blocking;

use self::{
    harmless::Links,
    records::{Entry, Sums, Table},
};
use crate::{Error, FileInfo, Files, Kind, Result, SandboxPath, Stream, TreeItem, Walk, walk::flatten, walk_tree};

/// Of what is handed over at a time, at least: a header each would be more frames than bytes.
const CHUNK: usize = 64 * 1024;
/// What is packed on the thread that waits. More of it is a thread's work.
const AT_ONCE: usize = 16 * 1024;
/// Of the table of contents, packed: about two million entries.
const MAX_TABLE: usize = 32 * 1024 * 1024;

/// Everything below a directory, with names relative to it. Pipes, sockets and devices are left out, and so are links that lead out of it: where it is
/// unpacked, they would lead to something of that machine.
pub async fn zip(files: &Arc<dyn Files>, dir: &SandboxPath) -> Result<Stream<Bytes>> {
    let zipping = Zipping {
        prefix: if dir.is_root() { 1 } else { dir.as_bytes().len() + 1 },
        items: flatten(walk_tree(files, dir, Walk::Content).await?),
        links: Links::default(),
        stage: Stage::Entries,
        table: Table::default(),
        packed: encoder(),
        out: Vec::new(),
        offset: 0,
    };
    Ok(stream::try_unfold(zipping, |mut zipping| async move { Ok(zipping.next().await?.map(|b| (b, zipping))) })
        .boxed())
}

struct Zipping {
    /// How much of each path lies above the directory.
    prefix: usize,
    items: Stream<TreeItem>,
    links: Links,
    stage: Stage,
    table: Table,
    /// The table of contents so far.
    packed: DeflateEncoder<Vec<u8>>,
    /// Not yet handed over.
    out: Vec<u8>,
    /// Where in the archive the end of `out` is.
    offset: u64,
}

enum Stage {
    Entries,
    Body(Box<Body>),
    Table(DeflateDecoder<io::Cursor<Vec<u8>>>),
    Done,
}

/// A file whose header is out.
struct Body {
    entry: Entry,
    press: Press,
    packed: u64,
}

struct Press {
    encoder: DeflateEncoder<Vec<u8>>,
    crc: Crc,
    plain: u64,
}

impl Zipping {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        while self.out.len() < CHUNK && !matches!(self.stage, Stage::Done) {
            self.stage = match mem::replace(&mut self.stage, Stage::Done) {
                Stage::Entries => match self.items.try_next().await? {
                    Some(TreeItem::Entry(entry)) => self.begin(&entry)?,
                    Some(TreeItem::Content(_)) => Stage::Entries, // of what is not in the archive
                    None => self.begin_table()?,
                },
                Stage::Body(body) => match self.items.try_next().await? {
                    Some(TreeItem::Content(bytes)) => self.go_on(body, bytes).await?,
                    Some(TreeItem::Entry(entry)) => {
                        self.end_body(*body)?;
                        self.begin(&entry)?
                    }
                    None => {
                        self.end_body(*body)?;
                        self.begin_table()?
                    }
                },
                Stage::Table(packed) => self.go_on_with_table(packed)?,
                Stage::Done => Stage::Done,
            };
        }
        Ok((!self.out.is_empty()).then(|| mem::take(&mut self.out).into()))
    }

    fn put(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
        self.offset += bytes.len() as u64;
    }

    fn begin(&mut self, found: &FileInfo) -> Result<Stage> {
        let inside = &found.path.as_bytes()[self.prefix..];
        let name = harmless::name(inside);
        match found.kind {
            Kind::Directory => {
                let entry = Entry::new([&name, &b"/"[..]].concat(), found, self.offset);
                self.whole(&entry, &[])?;
            }
            Kind::Symlink => {
                let text = found.link.as_ref().map_or(&b""[..], |link| &link.text);
                if self.links.admit(&name, text) {
                    self.whole(&Entry::new(name, found, self.offset), text)?;
                }
            }
            Kind::File => {
                let entry = Entry::new(name, found, self.offset);
                self.put(&entry.local(None));
                let press = Press { encoder: encoder(), crc: Crc::new(), plain: 0 };
                return Ok(Stage::Body(Box::new(Body { entry, press, packed: 0 })));
            }
            Kind::Other => {}
        }
        Ok(Stage::Entries)
    }

    /// An entry that is known as a whole.
    fn whole(&mut self, entry: &Entry, content: &[u8]) -> Result<()> {
        let mut crc = Crc::new();
        crc.update(content);
        let length = content.len() as u64;
        let sums = Sums { crc: crc.sum(), packed: length, plain: length };
        self.put(&entry.local(Some(&sums)));
        self.put(content);
        self.list(entry, &sums)
    }

    async fn go_on(&mut self, mut body: Box<Body>, bytes: Bytes) -> Result<Stage> {
        body.press = body.press.press(bytes).await?;
        let packed = mem::take(body.press.encoder.get_mut());
        body.packed += packed.len() as u64;
        self.put(&packed);
        Ok(Stage::Body(body))
    }

    fn end_body(&mut self, body: Body) -> Result<()> {
        let Press { encoder, crc, plain } = body.press;
        let rest = encoder.finish().map_err(failed)?;
        let sums = Sums { crc: crc.sum(), packed: body.packed + rest.len() as u64, plain };
        self.put(&rest);
        self.put(&body.entry.descriptor(&sums));
        self.list(&body.entry, &sums)
    }

    fn list(&mut self, entry: &Entry, sums: &Sums) -> Result<()> {
        let record = entry.central(sums);
        self.table.add(record.len());
        self.packed.write_all(&record).map_err(failed)?;
        match self.packed.get_ref().len() {
            0..=MAX_TABLE => Ok(()),
            _ => Err(Error::failed("zip", "the directory has more entries than an archive of it may have")),
        }
    }

    fn begin_table(&mut self) -> Result<Stage> {
        self.table.offset = self.offset;
        let packed = mem::replace(&mut self.packed, encoder()).finish().map_err(failed)?;
        Ok(Stage::Table(DeflateDecoder::new(io::Cursor::new(packed))))
    }

    fn go_on_with_table(&mut self, mut packed: DeflateDecoder<io::Cursor<Vec<u8>>>) -> Result<Stage> {
        let mut part = Vec::with_capacity(CHUNK);
        (&mut packed).take(CHUNK as u64).read_to_end(&mut part).map_err(failed)?;
        if part.is_empty() {
            self.put(&self.table.end());
            return Ok(Stage::Done);
        }
        self.put(&part);
        Ok(Stage::Table(packed))
    }
}

impl Press {
    async fn press(mut self, bytes: Bytes) -> Result<Self> {
        let few = bytes.len() <= AT_ONCE;
        let work = move || {
            self.crc.update(&bytes);
            self.plain += bytes.len() as u64;
            self.encoder.write_all(&bytes).map(|()| self)
        };
        let done = if few { Ok(work()) } else { spawn_blocking(work).await };
        done.map_err(|error| Error::failed("zip", error))?.map_err(failed)
    }
}

fn encoder() -> DeflateEncoder<Vec<u8>> {
    DeflateEncoder::new(Vec::new(), Compression::fast())
}

fn failed(error: io::Error) -> Error {
    Error::failed("zip", error)
}
