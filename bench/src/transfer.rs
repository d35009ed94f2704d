//! Large files over HTTP, in and out, and the same by plain system calls on the same disk: with the disk, and without it.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    path::Path,
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};

use crate::{
    figure::LARGE_MIB,
    http::{Client, Served},
    rhythm::nanoseconds,
};

const MIB: u64 = 500;
const PIECE: usize = 256 << 10;
const PIECES: u64 = (MIB << 20) / PIECE as u64;

/// Whether the disk has a part in it: bytes that go to it are synced, and those that come from it are not in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disk {
    Synced,
    Cached,
}

/// As long as the file that a rate is told for takes.
fn scaled(start: Instant) -> f64 {
    nanoseconds(start) * LARGE_MIB as f64 / MIB as f64
}

/// Lets the machine forget what it has read, and write what it has to.
fn chill() -> Result<()> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "1").context("dropping the page cache needs root")
}

pub(crate) fn plain_write(dir: &Path, disk: Disk, samples: usize) -> Result<Vec<f64>> {
    let (path, piece) = (dir.join("transfer"), vec![b'x'; PIECE]);
    let once = || -> Result<f64> {
        rustix::fs::sync();
        let start = Instant::now();
        let mut file = File::create(&path)?;
        for _ in 0..PIECES {
            file.write_all(&piece)?;
        }
        if disk == Disk::Synced {
            file.sync_all()?;
        }
        let took = scaled(start);
        fs::remove_file(&path)?;
        Ok(took)
    };
    (0..samples).map(|_| once()).collect()
}

pub(crate) fn plain_read(dir: &Path, disk: Disk, samples: usize) -> Result<Vec<f64>> {
    let (path, mut piece) = (dir.join("transfer"), vec![b'x'; PIECE]);
    let mut file = File::create(&path)?;
    for _ in 0..PIECES {
        file.write_all(&piece)?;
    }
    drop(file);
    let mut once = || -> Result<f64> {
        if disk == Disk::Synced {
            chill()?;
        }
        let start = Instant::now();
        let (mut file, mut total) = (File::open(&path)?, 0);
        loop {
            match file.read(&mut piece)? {
                0 => break,
                length => total += length as u64,
            }
        }
        ensure!(total == MIB << 20, "the plain file has {total} bytes");
        Ok(scaled(start))
    };
    let told = (0..samples).map(|_| once()).collect();
    fs::remove_file(&path)?;
    told
}

impl Served {
    pub(crate) async fn upload(&self, disk: Disk, samples: usize) -> Result<Vec<f64>> {
        let (mut client, id) = self.with_sandbox().await?;
        let mut told = Vec::with_capacity(samples);
        for _ in 0..samples {
            tokio::task::spawn_blocking(rustix::fs::sync).await?;
            let start = Instant::now();
            client.put_large(&id).await?;
            if disk == Disk::Synced {
                // Over HTTP nothing is synced; a user of a sandbox has this program.
                client.run(&id, &["sync", "large"]).await?;
            }
            told.push(scaled(start));
        }
        client.ask(&format!("DELETE /v1/sandboxes/{id}"), "").await?;
        Ok(told)
    }

    pub(crate) async fn download(&self, disk: Disk, samples: usize) -> Result<Vec<f64>> {
        let (mut client, id) = self.with_sandbox().await?;
        client.put_large(&id).await?;
        let mut told = Vec::with_capacity(samples);
        for _ in 0..samples {
            if disk == Disk::Synced {
                tokio::task::spawn_blocking(chill).await??;
            }
            let start = Instant::now();
            client.get_large(&id).await?;
            told.push(scaled(start));
        }
        client.ask(&format!("DELETE /v1/sandboxes/{id}"), "").await?;
        Ok(told)
    }

    /// How much more memory than before it had at most while a large file went in and out, in KiB.
    pub(crate) async fn transfer_memory(&self) -> Result<f64> {
        let (mut client, id) = self.with_sandbox().await?;
        self.forget_peak()?;
        let before = self.memory("VmRSS:")?;
        client.put_large(&id).await?;
        client.get_large(&id).await?;
        let peak = self.memory("VmHWM:")?;
        client.ask(&format!("DELETE /v1/sandboxes/{id}"), "").await?;
        Ok(peak - before)
    }

    async fn with_sandbox(&self) -> Result<(Client, String)> {
        let mut client = self.client().await?;
        let id = client.ensure(&self.fresh()).await?;
        Ok((client, id))
    }
}

impl Client {
    async fn put_large(&mut self, sandbox: &str) -> Result<()> {
        let head = format!("PUT /v1/sandboxes/{sandbox}/files?path=large HTTP/1.1\r\n{}", self.head);
        let head = format!("{head}\r\nContent-Length: {}\r\n\r\n", MIB << 20);
        let piece = vec![b'x'; PIECE];
        self.stream.write_all(head.as_bytes()).await?;
        for _ in 0..PIECES {
            self.stream.write_all(&piece).await?;
        }
        self.stream.flush().await?;
        self.answer("an upload").await.map(drop)
    }

    async fn get_large(&mut self, sandbox: &str) -> Result<()> {
        let head = format!("GET /v1/sandboxes/{sandbox}/files?path=large HTTP/1.1\r\n{}\r\n\r\n", self.head);
        self.stream.write_all(head.as_bytes()).await?;
        self.stream.flush().await?;
        let mut line = String::new();
        self.stream.read_line(&mut line).await?;
        ensure!(line.starts_with("HTTP/1.1 200"), "a download: {}", line.trim());
        let mut left = None;
        loop {
            line.clear();
            self.stream.read_line(&mut line).await?;
            match line.trim().split_once(':') {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    left = Some(value.trim().parse()?);
                }
                Some(_) => {}
                None => break,
            }
        }
        let Some(mut left): Option<u64> = left else { bail!("a download does not say how long it is") };
        ensure!(left == MIB << 20, "a download has {left} bytes");
        let mut piece = vec![0; PIECE];
        while left > 0 {
            let length = self.stream.read(&mut piece).await?;
            ensure!(length > 0, "a download broke off, with {left} bytes to come");
            left -= length as u64;
        }
        Ok(())
    }
}
