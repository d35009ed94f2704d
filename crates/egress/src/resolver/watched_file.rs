//! A small file of the system's, read again when it has changed.
//!
//! It is looked at when it is used, and at most once a second. Disks may be slow, so one thread of those that may block does
//! that; one lookup waits for it, for a moment, and all others go on with what is known.

use std::{
    fs::{self, File, Metadata},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::{task::spawn_blocking, time::timeout};

const LOOK_INTERVAL: Duration = Duration::from_secs(1);
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);
/// Lists of hosts that lead nowhere are long. What is beyond this is not read.
const MAX_BYTES: u64 = 8 << 20;

pub(super) struct WatchedFile<T> {
    path: PathBuf,
    parse: fn(&str) -> T,
    state: Mutex<State<T>>,
}

struct State<T> {
    value: Arc<T>,
    /// Of what the value was read from; `None` where there was no file.
    stamp: Option<Stamp>,
    /// `None` while it is looked at: a disk that hangs must not take one thread after the other.
    next_look: Option<Instant>,
}

/// What tells a file from what it was. The time of the last change can be set by nobody, unlike that of the last write.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    bytes: u64,
    changed: (i64, i64),
}

impl<T: Send + Sync + 'static> WatchedFile<T> {
    /// A file that is not there is an empty one, and so is one that cannot be read, until it can.
    pub(super) fn open(path: PathBuf, parse: fn(&str) -> T) -> Arc<Self> {
        let (stamp, text) = read(&path).unwrap_or_else(|error| {
            warn(&path, &error);
            (None, String::new())
        });
        let state = State { value: Arc::new(parse(&text)), stamp, next_look: Some(next_look()) };
        Arc::new(Self { path, parse, state: Mutex::new(state) })
    }

    pub(super) async fn current(self: &Arc<Self>) -> Arc<T> {
        if let Some(look) = self.take_look() {
            // Where it takes longer, a later lookup gets what it finds.
            let _ = timeout(LOOK_TIMEOUT, spawn_blocking(move || look.run())).await;
        }
        self.state().value.clone()
    }

    fn take_look(self: &Arc<Self>) -> Option<Look<T>> {
        self.state().next_look.take_if(|at| *at <= Instant::now()).map(|_| Look(self.clone()))
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn next_look() -> Instant {
    Instant::now() + LOOK_INTERVAL
}

/// The only one at the file. However it ends, there can be another one after it.
struct Look<T: Send + Sync + 'static>(Arc<WatchedFile<T>>);

impl<T: Send + Sync + 'static> Drop for Look<T> {
    fn drop(&mut self) {
        self.0.state().next_look = Some(next_look());
    }
}

impl<T: Send + Sync + 'static> Look<T> {
    fn run(self) {
        let _ = self.refresh().inspect_err(|error| warn(&self.0.path, error));
    }

    /// Where it cannot be looked at (no descriptors are left) what is known stays: an empty list of servers would be another
    /// server.
    fn refresh(&self) -> io::Result<()> {
        let stamp = metadata(&self.0.path)?.as_ref().map(Stamp::of);
        if stamp == self.0.state().stamp {
            return Ok(());
        }
        let (stamp, text) = read(&self.0.path)?;
        let value = Arc::new((self.0.parse)(&text));
        let mut state = self.0.state();
        (state.value, state.stamp) = (value, stamp);
        Ok(())
    }
}

/// `None`: there is no such file.
fn metadata(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        metadata => metadata.map(Some),
    }
}

fn read(path: &Path) -> io::Result<(Option<Stamp>, String)> {
    let Some(metadata) = metadata(path)? else { return Ok((None, String::new())) };
    // A pipe is not opened, which would wait.
    if !metadata.is_file() {
        return Ok((Some(Stamp::of(&metadata)), String::new()));
    }
    let file = File::open(path)?;
    // Before it is read: what is written meanwhile is found by the next look.
    let stamp = Stamp::of(&file.metadata()?);
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    if stamp.bytes > MAX_BYTES {
        tracing::warn!(path = %path.display(), "only the first {MAX_BYTES} bytes of the file are used");
        // Half a line may say something else than all of it.
        bytes.truncate(bytes.iter().rposition(|byte| *byte == b'\n').unwrap_or(0));
    }
    Ok((Some(stamp), String::from_utf8_lossy(&bytes).into_owned()))
}

fn warn(path: &Path, error: &io::Error) {
    tracing::warn!(path = %path.display(), %error, "the file cannot be read");
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            file: (metadata.dev(), metadata.ino()),
            bytes: metadata.size(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}
