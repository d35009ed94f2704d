//! One server for one data directory. Its own user finds it by the lock.
//!
//! There are two locks on one file. By `flock` a second server is kept away. By `fcntl` the server is seen: whether that one is
//! held can be asked without taking it, so that a server which starts meanwhile is not refused because of who asks.

mod port;

use std::{
    fs::{File, OpenOptions},
    io::{Read, Seek, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use cabana_model::Code;
use rustix::{
    fs::{FlockOperation, fcntl_lock, flock},
    io::Errno,
    process::{Flock, FlockType, fcntl_getlk},
};
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;

/// How long a server that was killed may take to end, once nothing is slow any more: the kernel may be removing a file of very many
/// pieces for it.
const DYING: Duration = Duration::from_secs(600);
/// Whether guests have to stand still for that shows sooner. What takes longer may be one tenant's doing, and no other's guests wait
/// for it.
const GUESTS_STAND_STILL: Duration = Duration::from_secs(30);
const AT_A_TIME: Duration = Duration::from_secs(2);
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Held until the process ends, by whatever end. The file says who holds it, and where that one listens.
pub(super) struct ServerLock {
    file: File,
    path: PathBuf,
}

impl ServerLock {
    /// `end`: it need not be waited for any longer.
    pub(super) fn take(data: &Path, end: &CancellationToken) -> Result<Self, Failure> {
        let path = data.join("server.lock");
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let mut file = opened.map_err(|error| failed(&path, &error))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let owner = owner_of(&mut file);
                if !owner.is_some_and(|pid| outlasts(pid, &file, data, end)) {
                    return Err(is_served(owner, data));
                }
            }
            Err(errno) => return Err(failed(&path, &errno)),
        }
        fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|errno| failed(&path, &errno))?;
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

fn is_served(owner: Option<u32>, data: &Path) -> Failure {
    let data = data.display();
    let why = match owner {
        Some(pid) if cabana_engine::is_dying(pid) => {
            format!("process {pid}, which served {data}, was killed, and the kernel has not ended it yet")
        }
        Some(pid) => format!("process {pid} serves {data} already"),
        None => format!("another process serves {data} already"),
    };
    Failure::new(Code::ServerRunning, why)
}

/// Takes the lock of a server that was killed, and that waits in the kernel for a sandbox which is slow by its limits.
fn outlasts(pid: u32, file: &File, data: &Path, end: &CancellationToken) -> bool {
    if !cabana_engine::is_dying(pid) {
        return false;
    }
    let guests = cabana_engine::Guests::of(pid, data);
    let (began, mut is_told) = (Instant::now(), false);
    while began.elapsed() < DYING && !end.is_cancelled() {
        let is_free = match began.elapsed() < GUESTS_STAND_STILL {
            true => guests.stand_still_for(|| comes_free(file)),
            false => comes_free(file),
        };
        if is_free {
            return true;
        }
        if !cabana_engine::is_dying(pid) {
            return comes_free(file); // or another has taken it
        }
        if !std::mem::replace(&mut is_told, true) {
            tracing::warn!(pid, "waits for a server that was killed: the kernel has not ended it yet");
        }
        std::thread::sleep(RETRY_DELAY);
    }
    false
}

fn comes_free(file: &File) -> bool {
    let began = Instant::now();
    while began.elapsed() < AT_A_TIME {
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
///
/// What a server left behind that is gone must not be believed: its port may belong to an account that collects keys.
pub(crate) fn url_of_server(data: &Path) -> Option<String> {
    let mut file = File::open(data.join("server.lock")).ok()?;
    // Asked of the file itself: a list of the machine's locks has numbers of inodes, which are the same on other file systems.
    // And a lock for writing takes a descriptor for writing: who may merely read the file cannot hold one.
    fcntl_getlk(&file, &Flock::from(FlockType::ReadLock)).ok()??;
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    let url = text.lines().nth(1)?;
    // A server that ends has let its port go before its lock.
    let address = url.split_once("://")?.1.parse().ok()?;
    let accounts = [0, file.metadata().ok()?.uid()];
    port::is_served_only_by(address, &accounts).then(|| url.to_owned())
}
