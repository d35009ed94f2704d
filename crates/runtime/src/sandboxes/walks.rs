//! Looks at what the files of one sandbox take. A guest can make each long.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

/// Of one sandbox: now and then, and at its stops.
const MAX_WALKS: usize = 4;

pub(super) struct Walks {
    places: Arc<Semaphore>,
    begun: AtomicU64,
    /// The number of the walk whose finding counts.
    counts: Arc<Mutex<u64>>,
}

impl Default for Walks {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(MAX_WALKS)), begun: AtomicU64::new(0), counts: Arc::default() }
    }
}

/// One that is under way.
pub(super) struct Walk {
    number: u64,
    counts: Arc<Mutex<u64>>,
    _place: OwnedSemaphorePermit,
}

impl Walks {
    /// `None`: as many are under way as may be.
    pub(super) fn begin(&self) -> Option<Walk> {
        let place = self.places.clone().try_acquire_owned().ok()?;
        let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        Some(Walk { number, counts: self.counts.clone(), _place: place })
    }
}

impl Walk {
    /// Writes down what it has found, unless one that began later has done so: that one has seen more.
    pub(super) async fn record<E>(&self, write: impl Future<Output = Result<(), E>>) -> Result<(), E> {
        let mut counts = self.counts.lock().await;
        if *counts < self.number {
            write.await?;
            *counts = self.number;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_the_walk_found_counts_that_began_last() {
        let (walks, written) = (Walks::default(), AtomicU64::new(0));
        let (first, second) = (walks.begin().unwrap(), walks.begin().unwrap());
        let write = async |walk: &Walk, size| {
            let written = walk.record(async {
                written.store(size, Ordering::Relaxed);
                Ok::<_, ()>(())
            });
            written.await.unwrap();
        };
        write(&second, 20).await;
        write(&first, 10).await;
        assert_eq!(written.load(Ordering::Relaxed), 20);
        write(&walks.begin().unwrap(), 5).await;
        assert_eq!(written.load(Ordering::Relaxed), 5);
        let more: Vec<_> = std::iter::from_fn(|| walks.begin()).collect();
        assert_eq!(more.len(), MAX_WALKS - 2);
    }
}
