//! What all sandboxes of a process have together.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Who has fewer than this many finds one also when there are few left.
const FEW: usize = 8;

/// A number of places. The last quarter is for those who have few, so that nobody takes all of them.
#[derive(Clone, Debug)]
pub struct Places {
    free: Arc<Semaphore>,
    reserve: usize,
}

/// One of them, until it is dropped.
pub type Place = OwnedSemaphorePermit;

impl Places {
    pub fn new(most: usize) -> Places {
        let most = most.min(Semaphore::MAX_PERMITS);
        Places { free: Arc::new(Semaphore::new(most)), reserve: most / 4 }
    }

    /// For one who has so many already.
    pub fn take(&self, has: usize) -> Option<Place> {
        if has >= FEW && self.free.available_permits() <= self.reserve {
            return None;
        }
        self.free.clone().try_acquire_owned().ok()
    }
}

impl Default for Places {
    /// As many as anybody wants.
    fn default() -> Places {
        Places::new(Semaphore::MAX_PERMITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_much_leaves_a_quarter_to_others() {
        let places = Places::new(100);
        let greedy: Vec<Place> =
            std::iter::successors(Some(0), |has| Some(has + 1)).map_while(|has| places.take(has)).collect();
        assert_eq!(greedy.len(), 75);
        let modest: Vec<Place> = (0..FEW).map_while(|has| places.take(has)).collect();
        assert_eq!(modest.len(), FEW);
        assert!(places.take(FEW).is_none());
        drop(greedy);
        assert!(places.take(FEW).is_some(), "what is given back is there again");
    }

    #[test]
    fn none_is_there_twice() {
        let places = Places::new(4);
        let all: Vec<Place> = (0..10).map_while(|_| places.take(0)).collect();
        assert_eq!(all.len(), 4);
    }
}
