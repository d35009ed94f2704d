//! Pipes of commands that have ended, while somebody inside still has the other ends.
//!
//! A daemon that a command left behind may write on: nobody listens, but a closed pipe would kill it, so what it says goes nowhere. Each
//! of these pipes is a descriptor of the server, and a guest needs no process for each, since one process can collect all other ends. So
//! a sandbox has a number of them, and the oldest is closed for one more.

use std::{
    collections::VecDeque,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
    pipe::SpliceFlags,
};
use tokio::io::unix::AsyncFd;
use tokio_util::sync::CancellationToken;

use crate::{
    lane::{self, Lane, SharedFd},
    output::until_readable,
    output_rate::OutputRate,
    spool::CHUNK,
};

/// Two for each command.
const MAX_PIPES: usize = 128;

/// Those of one sandbox.
#[derive(Default)]
pub(crate) struct LeftBehind(Mutex<Pipes>);

#[derive(Default)]
struct Pipes {
    next: u64,
    /// The oldest first.
    open: VecDeque<(u64, CancellationToken)>,
    /// Shared by all of them: otherwise it would be one more descriptor for each.
    nowhere: Weak<OwnedFd>,
}

impl LeftBehind {
    /// Lets what comes go nowhere, until nobody can write any more, or until there are too many of them.
    pub(crate) async fn discard(self: Arc<Self>, pipe: AsyncFd<SharedFd>, lane: Lane, rate: Arc<OutputRate>) {
        let Ok(nowhere) = self.nowhere() else { return };
        let mut place = None;
        loop {
            rate.wait().await;
            let turn = lane.turn().await;
            let gone = lane::held_up(|| {
                rustix::pipe::splice(pipe.get_ref(), None, &*nowhere, None, CHUNK, SpliceFlags::NONBLOCK)
            });
            drop(turn);
            let is_empty = match gone {
                Ok(0) => return,
                Ok(bytes) => {
                    rate.spend(bytes);
                    false
                }
                Err(Errno::AGAIN) => true,
                Err(_) => return,
            };
            // Not before: most pipes end with their command, and must take no place from one that is used.
            let place = place.get_or_insert_with(|| self.add());
            let waits = async {
                if is_empty {
                    until_readable(&pipe).await;
                }
            };
            if place.evicted.run_until_cancelled(waits).await.is_none() {
                return;
            }
        }
    }

    fn add(self: &Arc<Self>) -> Place {
        let mut pipes = self.pipes();
        if pipes.open.len() == MAX_PIPES
            && let Some((_, oldest)) = pipes.open.pop_front()
        {
            oldest.cancel();
        }
        pipes.next += 1;
        let (number, evicted) = (pipes.next, CancellationToken::new());
        pipes.open.push_back((number, evicted.clone()));
        Place { all: self.clone(), number, evicted }
    }

    fn nowhere(&self) -> rustix::io::Result<Arc<OwnedFd>> {
        let mut pipes = self.pipes();
        if let Some(nowhere) = pipes.nowhere.upgrade() {
            return Ok(nowhere);
        }
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let nowhere = Arc::new(rustix::fs::open(c"/dev/null", flags, Mode::empty())?);
        pipes.nowhere = Arc::downgrade(&nowhere);
        Ok(nowhere)
    }

    fn pipes(&self) -> MutexGuard<'_, Pipes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// That of one pipe, while it is open.
struct Place {
    all: Arc<LeftBehind>,
    number: u64,
    evicted: CancellationToken,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.all.pipes().open.retain(|(number, _)| *number != self.number);
    }
}
