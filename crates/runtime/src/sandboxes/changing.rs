//! The turns of those who change what a sandbox is.

use std::sync::atomic::{AtomicUsize, Ordering};

use cabana_sandbox::Error;
use tokio::sync::{Mutex, MutexGuard, TryLockError};

/// One at a time, in the order in which they came. A guest can make each turn long, so whoever ends the sandbox waits for the one
/// that is under way, and for no other: the rest hears that it is gone.
#[derive(Default)]
pub(super) struct Changing {
    turn: Mutex<()>,
    /// How many wait to end it.
    ending: AtomicUsize,
    /// How many wait for another turn.
    #[cfg(test)]
    in_line: AtomicUsize,
}

impl Changing {
    pub(super) async fn lock(&self) -> MutexGuard<'_, ()> {
        #[cfg(test)]
        let _waiting = Waiting::new(&self.in_line);
        self.turn.lock().await
    }

    /// Those who wait for a turn, and those who wait to end it.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> (usize, usize) {
        (self.in_line.load(Ordering::Acquire), self.ending.load(Ordering::Acquire))
    }

    pub(super) fn try_lock(&self) -> Result<MutexGuard<'_, ()>, TryLockError> {
        self.turn.try_lock()
    }

    /// For what is pointless once it ends.
    pub(super) async fn lock_to_change(&self) -> Result<MutexGuard<'_, ()>, Error> {
        let turn = self.lock().await;
        match self.ending.load(Ordering::Acquire) {
            0 => Ok(turn),
            _ => Err(Error::Gone),
        }
    }

    /// For what may as well be done after the end: it lets those go first who wait to end it.
    pub(super) async fn lock_behind_ends(&self) -> MutexGuard<'_, ()> {
        loop {
            let turn = self.turn.lock().await;
            if self.ending.load(Ordering::Acquire) == 0 {
                return turn;
            }
            drop(turn);
            tokio::task::yield_now().await; // back to the end of the line
        }
    }

    pub(super) async fn lock_to_end(&self) -> MutexGuard<'_, ()> {
        let _waiting = Waiting::new(&self.ending);
        self.turn.lock().await
    }
}

/// Counted until it is dropped, also where nobody waits any more.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;
    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test]
    async fn who_ends_it_waits_for_one_turn_alone() {
        let changing = Arc::new(Changing::default());
        let under_way = changing.lock_to_change().await.unwrap();
        let mut queued = JoinSet::new();
        for _ in 0..8 {
            let changing = changing.clone();
            queued.spawn(async move { changing.lock_to_change().await.map(drop) });
        }
        tokio::task::yield_now().await; // they stand in line
        let mut end = Box::pin(changing.lock_to_end());
        assert!(end.as_mut().now_or_never().is_none(), "one is under way");
        drop(under_way);
        let ending = end.await;
        for refused in queued.join_all().await {
            assert!(matches!(refused, Err(Error::Gone)));
        }
        drop(ending);
        assert!(changing.lock_to_change().await.is_ok(), "those who come later have their turns");
    }

    #[tokio::test]
    async fn starts_in_line_let_an_end_that_came_later_go_first() {
        let changing = Arc::new(Changing::default());
        let under_way = changing.lock_behind_ends().await;
        let mut queued = JoinSet::new();
        let started = Arc::new(AtomicUsize::new(0));
        for _ in 0..8 {
            let (changing, started) = (changing.clone(), started.clone());
            queued.spawn(async move {
                let _turn = changing.lock_behind_ends().await;
                started.fetch_add(1, Ordering::AcqRel);
            });
        }
        tokio::task::yield_now().await; // they stand in line
        let mut end = Box::pin(changing.lock_to_end());
        assert!(end.as_mut().now_or_never().is_none(), "one is under way");
        drop(under_way);
        let ending = end.await;
        assert_eq!(started.load(Ordering::Acquire), 0, "none was before it");
        drop(ending);
        queued.join_all().await;
        assert_eq!(started.load(Ordering::Acquire), 8, "each has its turn then");
    }

    #[tokio::test]
    async fn who_gives_up_to_end_it_stands_in_nobodys_way() {
        let changing = Changing::default();
        let under_way = changing.lock().await;
        assert!(changing.lock_to_end().now_or_never().is_none());
        drop(under_way);
        assert!(changing.lock_to_change().await.is_ok());
    }
}
