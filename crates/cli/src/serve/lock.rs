//! One server for one data directory. Its own user finds it by the lock.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Seek, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use cabana_model::Code;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::failure::Failure;

/// How long a server that was killed may take to end, once nothing is slow any more.
const DYING: Duration = Duration::from_secs(30);
const RETRY_DELAY: Duration = Duration::from_millis(50);

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
                let owner = owner_of(&mut file);
                if !owner.is_some_and(|pid| outlasts(pid, &file, data)) {
                    let owner = owner.map_or("another process".into(), |pid| format!("process {pid}"));
                    return Err(Failure::new(
                        Code::ServerRunning,
                        format!("{owner} serves {} already", data.display()),
                    ));
                }
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

fn owner_of(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.lines().next()?.trim().parse().ok()
}

/// Takes the lock of a server that was killed, and that waits in the kernel for a sandbox which is slow by its limits.
fn outlasts(pid: u32, file: &File, data: &Path) -> bool {
    if !cabana_engine::is_dying(pid) {
        return false;
    }
    cabana_engine::lift_cpu_limits_of(pid, data);
    let began = Instant::now();
    while began.elapsed() < DYING {
        if flock(file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return true;
        }
        std::thread::sleep(RETRY_DELAY);
    }
    false
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
