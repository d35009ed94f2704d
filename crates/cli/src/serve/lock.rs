//! One server for one data directory. Its own user finds it by the lock.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Seek, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use cabana_model::Code;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::failure::Failure;

/// Held until the process ends, by whatever end. The file says who holds it, and where that one listens.
pub(super) struct ServerLock {
    file: File,
    path: PathBuf,
}

impl ServerLock {
    pub(super) fn take(data: &Path) -> Result<Self, Failure> {
        let path = data.join("server.lock");
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let mut file = opened.map_err(|error| failed(&path, &error))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut owner = String::new();
                let _ = file.read_to_string(&mut owner);
                let owner = owner.lines().next().and_then(|line| line.trim().parse::<u32>().ok());
                let owner = owner.map_or("another process".into(), |pid| format!("process {pid}"));
                return Err(Failure::new(Code::ServerRunning, format!("{owner} serves {} already", data.display())));
            }
            Err(errno) => return Err(failed(&path, &errno)),
        }
        let mut lock = Self { file, path };
        lock.write(&format!("{}\n", std::process::id()))?;
        Ok(lock)
    }

    /// Where it listens, for those who may read the file.
    pub(super) fn announce(&mut self, url: &str) -> Result<(), Failure> {
        self.write(&format!("{}\n{url}\n", std::process::id()))
    }

    fn write(&mut self, text: &str) -> Result<(), Failure> {
        let written = self.file.set_len(0).and_then(|()| self.file.rewind());
        written.and_then(|()| self.file.write_all(text.as_bytes())).map_err(|error| failed(&self.path, &error))
    }
}

fn failed(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Code::Internal, format!("{}: {error}", path.display()))
}

/// Where the server of this data directory listens, if there is one and we may know.
pub(crate) fn url_of_server(data: &Path) -> Option<String> {
    let path = data.join("server.lock");
    let inode = fs::metadata(&path).ok()?.ino();
    // The kernel's list, not a lock of our own: one that starts meanwhile must not be refused because of us. What a server
    // left behind that is gone must not be believed: its port may belong to somebody who collects keys.
    let is_it = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.contains(&"FLOCK") && words.iter().any(|word| word.ends_with(&format!(":{inode}")))
    };
    // It is read in pieces, and a lock that moves up in between is in none of them: who is not there is looked for again.
    let held = (0..5).any(|_| fs::read_to_string("/proc/locks").is_ok_and(|locks| locks.lines().any(is_it)));
    let text = held.then(|| fs::read_to_string(&path).ok()).flatten()?;
    text.lines().nth(1).map(str::to_owned)
}
