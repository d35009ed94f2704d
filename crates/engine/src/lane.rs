//! What a guest can hold up, and for whom.
//!
//! Files, pipes and terminals of a sandbox have locks of the kernel that a guest can hold for as long as it likes: by a write
//! whose pages come from a slow disk, for one. Who waits for such a lock cannot be interrupted, not even by its own end. So
//! no step on them takes the last worker of the runtime, and of one sandbox only a few are under way at a time: what else is
//! asked of it waits as a task, and holds up nobody else's.

use std::{
    cell::Cell,
    io,
    mem::ManuallyDrop,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use cabana_sandbox::{Error, Result};
use tokio::{
    io::unix::AsyncFd,
    runtime::{Handle, RuntimeFlavor},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::{block_in_place, spawn_blocking},
};

use crate::kernel::readiness;

/// How many steps of one sandbox may be in the kernel at a time: each can be a thread that a guest holds.
const WIDTH: usize = 8;

/// How many walks through its files. They also wait for their clients, so they are apart.
const WALKS: usize = 8;

/// How long a step may have to wait for its turn. Those before it take microseconds, unless a guest holds them up.
const PATIENCE: Duration = Duration::from_secs(30);

/// The steps of one sandbox.
#[derive(Clone)]
pub(crate) struct Lane {
    places: Arc<Semaphore>,
    width: usize,
}

/// A place in a lane, until the kernel has come back.
pub(crate) struct Turn {
    _place: Option<OwnedSemaphorePermit>,
}

impl Lane {
    pub(crate) fn new() -> Self {
        Self::of(WIDTH)
    }

    pub(crate) fn of_walks() -> Self {
        Self::of(WALKS)
    }

    fn of(width: usize) -> Self {
        Self { places: Arc::new(Semaphore::new(width)), width }
    }

    /// Whether nothing is in the kernel.
    pub(crate) fn is_idle(&self) -> bool {
        self.places.available_permits() == self.width
    }

    /// For as long as it takes: for what has no client who waits.
    pub(crate) async fn turn(&self) -> Turn {
        Turn { _place: self.places.clone().acquire_owned().await.ok() }
    }

    pub(crate) fn semaphore(&self) -> Arc<Semaphore> {
        self.places.clone()
    }

    /// For a client, who is told if it takes too long.
    pub(crate) async fn turn_in_time(&self) -> Result<Turn> {
        if let Ok(place) = self.places.clone().try_acquire_owned() {
            return Ok(Turn { _place: Some(place) });
        }
        let late = || Error::TimedOut("the sandbox holds up all that is done with its files: end its commands");
        tokio::time::timeout(PATIENCE, self.turn()).await.map_err(|_| late())
    }

    /// A step for a client, on a thread that may be held up.
    pub(crate) async fn step<T: Send + 'static>(&self, act: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        let turn = self.turn_in_time().await?;
        let act = move || {
            let _turn = turn;
            act()
        };
        match on_a_worker() {
            true => held_up(act),
            false => spawn_blocking(act).await.map_err(|error| Error::failed("a file operation", error)).flatten(),
        }
    }
}

impl Lane {
    /// Closes something of the guest's: that can free what was removed meanwhile, or wait for who uses it. Later, if it has to
    /// wait for its turn.
    pub(crate) fn close<T: Send + 'static>(&self, thing: T) {
        let Ok(runtime) = Handle::try_current() else { return drop(thing) };
        match self.places.clone().try_acquire_owned() {
            Ok(turn) => held_up(move || drop((thing, turn))),
            Err(_) => {
                let lane = self.clone();
                runtime.spawn(async move {
                    let turn = lane.turn().await;
                    let _ = spawn_blocking(move || drop((thing, turn))).await; // nobody waits for it
                });
            }
        }
    }

    /// An end of something whose other end is a guest's.
    pub(crate) fn watch(&self, fd: OwnedFd) -> io::Result<AsyncFd<SharedFd>> {
        readiness::watch_shared(SharedFd { fd: ManuallyDrop::new(fd), lane: self.clone() })
    }
}

/// A pipe or a terminal that a guest uses too.
pub(crate) struct SharedFd {
    fd: ManuallyDrop<OwnedFd>,
    lane: Lane,
}

impl AsFd for SharedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for SharedFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for SharedFd {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: nobody uses it after this.
        self.lane.close(unsafe { ManuallyDrop::take(&mut self.fd) });
    }
}

fn on_a_worker() -> bool {
    Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread)
}

/// A step that a guest may hold up. Waking another thread takes longer than most of them, so they are done on this one: on a
/// runtime of several threads, either because enough others are left to go on, or because another takes its tasks over, which
/// is a wake-up again.
pub(crate) fn held_up<T>(act: impl FnOnce() -> T) -> T {
    if IS_HELD_UP.get() {
        return act(); // a step within a step: this thread is counted already
    }
    let Some(runtime) = Handle::try_current().ok().filter(|_| on_a_worker()) else { return act() };
    match HeldUp::of(runtime.metrics().num_workers()) {
        Some(_held) => act(),
        None => block_in_place(act),
    }
}

/// One worker thread that may be held up. At most half of them are: the others go on.
struct HeldUp;

static HELD_UP: AtomicUsize = AtomicUsize::new(0);

/// Between two looks at whether a worker is held up.
const LOOKS: Duration = Duration::from_millis(50);

/// Has some worker poll for events while another is held up. Of the workers that sleep one alone polls, and when that is the one that was
/// woken and is held up now, no other takes the polling over by itself: one that is woken and finds nothing to do does.
pub(crate) struct Waker(Arc<AtomicBool>);

impl Waker {
    pub(crate) fn start(runtime: Handle) -> io::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = is_over.clone();
        std::thread::Builder::new().name("waker".to_owned()).spawn(move || {
            while !ends.load(Ordering::Acquire) {
                std::thread::sleep(LOOKS);
                if HELD_UP.load(Ordering::Acquire) > 0 {
                    runtime.spawn(async {});
                }
            }
        })?;
        Ok(Self(is_over))
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

thread_local! {
    static IS_HELD_UP: Cell<bool> = const { Cell::new(false) };
}

impl HeldUp {
    fn of(workers: usize) -> Option<Self> {
        let more = |held| (held < workers / 2).then_some(held + 1);
        HELD_UP.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        IS_HELD_UP.set(true);
        Some(Self)
    }
}

impl Drop for HeldUp {
    fn drop(&mut self) {
        IS_HELD_UP.set(false);
        HELD_UP.fetch_sub(1, Ordering::AcqRel);
    }
}
