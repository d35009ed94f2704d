//! Files through the interface, and the same by plain system calls in a plain directory on the same disk.
//!
//! The page cache is warm and nothing is synced, unless a name says so. Between two writes the disk is synced outside the
//! measured part: otherwise the dirty pages of one would slow the other.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use anyhow::{Result, ensure};
use bytes::Bytes;
use cabana_sandbox::{Alter, Files, Read, Sandbox, SandboxPath, Stream, User, Write, WriteMode};
use futures_util::{StreamExt, stream};

use crate::{
    figure::LARGE_MIB,
    rhythm::{Turns, nanoseconds},
    subject::run,
};

const PIECE: usize = 256 * 1024;
const PIECES: usize = (LARGE_MIB as usize * 1024 * 1024) / PIECE;
const LARGE: u64 = LARGE_MIB * 1024 * 1024;
const SMALL_FILES: usize = 10_000;
const SMALL: usize = 1024;

/// Whether the file's bytes are on the disk at the end of the measured part.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fsync {
    No,
    Yes,
}

#[derive(Clone)]
pub(crate) struct Plain {
    dir: PathBuf,
}

impl Plain {
    pub(crate) fn new(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)?;
        Ok(Self { dir: dir.to_owned() })
    }

    pub(crate) fn read(&self, samples: usize) -> Result<Vec<f64>> {
        let path = self.dir.join("large");
        write_pieces(&path, Fsync::No)?;
        let mut piece = vec![0; PIECE];
        let mut once = || -> Result<f64> {
            let start = Instant::now();
            let mut file = File::open(&path)?;
            let mut total = 0;
            loop {
                let length = file.read(&mut piece)?;
                if length == 0 {
                    break;
                }
                total += length as u64;
            }
            let took = nanoseconds(start);
            ensure!(total == LARGE, "the plain file has {total} bytes");
            Ok(took)
        };
        once()?;
        let told = (0..samples).map(|_| once()).collect();
        fs::remove_file(&path)?;
        told
    }

    pub(crate) fn write(&self, samples: usize, fsync: Fsync) -> Result<Vec<f64>> {
        let path = self.dir.join("large");
        let once = || -> Result<f64> {
            sync_disk(&self.dir)?;
            let start = Instant::now();
            write_pieces(&path, fsync)?;
            let took = nanoseconds(start);
            fs::remove_file(&path)?;
            Ok(took)
        };
        once()?;
        (0..samples).map(|_| once()).collect()
    }

    pub(crate) fn small(&self, samples: usize) -> Result<Vec<f64>> {
        let content = [b'x'; SMALL];
        let once = || -> Result<f64> {
            let dir = self.dir.join(fresh_name());
            fs::create_dir(&dir)?;
            sync_disk(&self.dir)?;
            let start = Instant::now();
            for i in 0..SMALL_FILES {
                File::create(dir.join(small_name(i)))?.write_all(&content)?;
            }
            Ok(nanoseconds(start))
        };
        once()?;
        (0..samples).map(|_| once()).collect()
    }
}

fn write_pieces(path: &Path, fsync: Fsync) -> Result<()> {
    let piece = vec![b'x'; PIECE];
    let mut file = File::create(path)?;
    for _ in 0..PIECES {
        file.write_all(&piece)?;
    }
    if fsync == Fsync::Yes {
        file.sync_all()?;
    }
    Ok(())
}

/// The files of one sandbox, in its working directory: that is on its own layer, and so on the disk.
pub(crate) struct Ours {
    sandbox: Arc<dyn Sandbox>,
    files: Arc<dyn Files>,
    dir: SandboxPath,
    /// A directory on the same disk, to sync it.
    disk: PathBuf,
}

impl Ours {
    pub(crate) fn new(sandbox: &Arc<dyn Sandbox>, disk: &Path) -> Self {
        let dir = sandbox.defaults().workdir.clone();
        Self { sandbox: sandbox.clone(), files: sandbox.files(Some(&User::root())), dir, disk: disk.to_owned() }
    }

    pub(crate) async fn read(&self, samples: usize) -> Result<Vec<f64>> {
        let path = self.dir.join(b"large")?;
        self.files.write(&path, replace(LARGE), large_body()).await?;
        let mut turns = Turns::of_long(samples);
        while turns.next().await {
            turns.tell(self.read_once(&path).await?);
        }
        self.files.alter(Alter::Remove(path)).await?;
        Ok(turns.told())
    }

    async fn read_once(&self, path: &SandboxPath) -> Result<f64> {
        let start = Instant::now();
        let (_, mut body) = self.files.read(path, Read::default()).await?;
        let mut total = 0;
        while let Some(piece) = body.next().await {
            total += piece?.len() as u64;
        }
        let took = nanoseconds(start);
        ensure!(total == LARGE, "{path} has {total} bytes");
        Ok(took)
    }

    pub(crate) async fn write(&self, samples: usize, fsync: Fsync) -> Result<Vec<f64>> {
        let mut turns = Turns::of_long(samples);
        while turns.next().await {
            turns.tell(self.write_once(fsync).await?);
        }
        Ok(turns.told())
    }

    async fn write_once(&self, fsync: Fsync) -> Result<f64> {
        let path = self.dir.join(b"large")?;
        self.settle().await?;
        let start = Instant::now();
        self.files.write(&path, replace(LARGE), large_body()).await?;
        if fsync == Fsync::Yes {
            // The interface has no fsync; a user of a sandbox has this program.
            run(self.sandbox.as_ref(), &["sync", &path.to_string()]).await?;
        }
        let took = nanoseconds(start);
        self.files.alter(Alter::Remove(path)).await?;
        Ok(took)
    }

    pub(crate) async fn small_one_by_one(&self, samples: usize) -> Result<Vec<f64>> {
        let content = Bytes::from(vec![b'x'; SMALL]);
        let mut turns = Turns::of_long(samples);
        while turns.next().await {
            let dir = self.new_dir().await?;
            let start = Instant::now();
            for i in 0..SMALL_FILES {
                let path = dir.join(small_name(i).as_bytes())?;
                let body = stream::iter([Ok(content.clone())]).boxed();
                self.files.write(&path, replace(SMALL as u64), body).await?;
            }
            turns.tell(nanoseconds(start));
        }
        Ok(turns.told())
    }

    pub(crate) async fn small_unpack(&self, samples: usize) -> Result<Vec<f64>> {
        let archive = small_archive()?;
        let mut turns = Turns::of_long(samples);
        while turns.next().await {
            let dir = self.new_dir().await?;
            let start = Instant::now();
            self.files.unpack(&dir, pieces_of(&archive)).await?;
            turns.tell(nanoseconds(start));
        }
        Ok(turns.told())
    }

    async fn new_dir(&self) -> Result<SandboxPath> {
        let dir = self.dir.join(fresh_name().as_bytes())?;
        self.files.alter(Alter::MakeDir(dir.clone(), 0o755)).await?;
        self.settle().await?;
        Ok(dir)
    }

    async fn settle(&self) -> Result<()> {
        let disk = self.disk.clone();
        tokio::task::spawn_blocking(move || sync_disk(&disk)).await?
    }
}

/// A directory of its own for each turn, removed with everything at the end of the run: ext4 makes new files slowly for
/// minutes after many were removed, and would measure the turn before instead of this one.
fn fresh_name() -> String {
    static TURN: AtomicUsize = AtomicUsize::new(0);
    format!("small-{}", TURN.fetch_add(1, Ordering::Relaxed))
}

fn replace(length: u64) -> Write {
    Write { len: Some(length), ..Write::new(WriteMode::Replace) }
}

fn large_body() -> Stream<Bytes> {
    let piece = Bytes::from(vec![b'x'; PIECE]);
    stream::iter((0..PIECES).map(move |_| Ok(piece.clone()))).boxed()
}

fn small_name(i: usize) -> String {
    format!("file-{i:05}")
}

fn small_archive() -> Result<Bytes> {
    let content = [b'x'; SMALL];
    let mut tar = tar::Builder::new(Vec::with_capacity(SMALL_FILES * 2 * SMALL));
    for i in 0..SMALL_FILES {
        let mut header = tar::Header::new_gnu();
        header.set_size(SMALL as u64);
        header.set_mode(0o644);
        header.set_mtime(1_700_000_000);
        tar.append_data(&mut header, small_name(i), content.as_slice())?;
    }
    Ok(Bytes::from(tar.into_inner()?))
}

fn pieces_of(archive: &Bytes) -> Stream<Bytes> {
    let archive = archive.clone();
    let starts = (0..archive.len()).step_by(PIECE);
    stream::iter(starts.map(move |start| Ok(archive.slice(start..archive.len().min(start + PIECE))))).boxed()
}

fn sync_disk(on: &Path) -> Result<()> {
    Ok(rustix::fs::syncfs(File::open(on)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_large_body_is_256_mib() {
        let total = large_body().fold(0, async |total, piece| total + piece.unwrap().len() as u64).await;
        assert_eq!(total, 256 * 1024 * 1024);
    }

    #[tokio::test]
    async fn the_archive_arrives_whole_and_holds_every_small_file() {
        let archive = small_archive().unwrap();
        let pieces: Vec<_> = pieces_of(&archive).map(|piece| piece.unwrap()).collect().await;
        assert_eq!(pieces.concat(), archive);
        let mut reader = tar::Archive::new(archive.as_ref());
        assert_eq!(reader.entries().unwrap().count(), SMALL_FILES);
    }
}
