//! What the last server left and this one has not taken up yet. Who wants it waits for it, and for nothing else.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{Error, Result};

/// So long a client waits. A sandbox that does not answer is ended a little later, so who asks again gets on.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Pending<Id> {
    all: Arc<Mutex<HashMap<Id, Entry>>>,
    closing: CancellationToken,
}

#[derive(Clone, Default)]
struct Entry {
    done: CancellationToken,
    wanted: Arc<Notify>,
}

impl<Id: Clone + Eq + Hash> Pending<Id> {
    pub(crate) fn new(closing: CancellationToken) -> Self {
        Self { all: Arc::default(), closing }
    }

    /// Until what is returned is dropped.
    pub(crate) fn add(&self, id: Id) -> Outstanding<Id> {
        let entry = Entry::default();
        locked(&self.all).insert(id.clone(), entry.clone());
        Outstanding { all: self.all.clone(), id, entry }
    }

    pub(crate) fn count(&self) -> usize {
        locked(&self.all).len()
    }

    /// Waits until it is taken up. It is wanted, so it goes before others.
    pub(crate) async fn taken_up(&self, id: &Id) -> Result<()> {
        self.taken_up_within(id, PATIENCE).await
    }

    async fn taken_up_within(&self, id: &Id, patience: Duration) -> Result<()> {
        let Some(Entry { done, wanted }) = locked(&self.all).get(id).cloned() else { return Ok(()) };
        wanted.notify_one();
        timeout(patience, done.cancelled()).await.map_err(|_| Error::Recovering)?;
        match self.closing.is_cancelled() {
            true => Err(Error::Left), // it is the next server that takes it up
            false => Ok(()),
        }
    }
}

fn locked<Id>(all: &Mutex<HashMap<Id, Entry>>) -> std::sync::MutexGuard<'_, HashMap<Id, Entry>> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One of them.
pub(crate) struct Outstanding<Id: Eq + Hash> {
    all: Arc<Mutex<HashMap<Id, Entry>>>,
    id: Id,
    entry: Entry,
}

impl<Id: Eq + Hash> Outstanding<Id> {
    /// Comes back when a client waits for it.
    pub(crate) async fn wanted(&self) {
        self.entry.wanted.notified().await;
    }
}

impl<Id: Eq + Hash> Drop for Outstanding<Id> {
    fn drop(&mut self) {
        locked(&self.all).remove(&self.id);
        self.entry.done.cancel();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_client_waits_for_its_own_and_for_no_other() {
        let pending = Pending::new(CancellationToken::new());
        let (one, _other) = (pending.add(1), pending.add(2));
        let mut waits = Box::pin(pending.taken_up(&1));
        assert!(waits.as_mut().now_or_never().is_none());
        one.wanted().await;
        drop(one);
        waits.await.unwrap();
        pending.taken_up(&3).await.unwrap();
        assert_eq!(pending.count(), 1);
    }

    #[tokio::test]
    async fn a_client_that_waited_long_enough_hears_that_it_may_ask_again() {
        let pending = Pending::new(CancellationToken::new());
        let _hangs = pending.add(1);
        assert!(matches!(pending.taken_up_within(&1, Duration::ZERO).await, Err(Error::Recovering)));
    }

    #[tokio::test]
    async fn what_is_left_to_the_next_server_is_not_told_as_taken_up() {
        let closing = CancellationToken::new();
        let pending = Pending::new(closing.clone());
        let left = pending.add(1);
        let mut waits = Box::pin(pending.taken_up(&1));
        assert!(waits.as_mut().now_or_never().is_none());
        closing.cancel();
        drop(left);
        assert!(matches!(waits.await, Err(Error::Left)));
    }
}
