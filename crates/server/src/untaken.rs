//! What the client of a stream has not taken yet, charged from before it is made until it is gone.
//!
//! Where its tenant has no room for more, more is not made: the stream goes on once others have taken theirs, and nobody is refused.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use cabana_runtime::MemoryCharge;

/// Between two tries.
const AGAIN: Duration = Duration::from_millis(100);
/// About what a part takes beside its bytes, until it is sent.
const PART: usize = 512;
/// Longer than any of them is.
const SIGN_OF_LIFE: usize = 64;

/// Of one stream. All clones are one.
#[derive(Clone)]
pub(crate) struct Untaken(Arc<Mutex<State>>);

struct State {
    memory: MemoryCharge,
    /// There is room for so much that has not gone on yet.
    made: usize,
}

impl Untaken {
    pub(crate) fn new(memory: MemoryCharge) -> Self {
        Self(Arc::new(Mutex::new(State { memory, made: 0 })))
    }

    /// Returns once there is room for so many bytes more.
    pub(crate) async fn make_room(&self, bytes: usize) {
        while !self.state().grow(bytes + PART) {
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Is charged as long as any of it is there: what room was made for, and no more than it takes; what comes without, once there is
    /// room, or `end` has come. A sign of life is not charged.
    pub(crate) async fn keep(&self, bytes: Bytes, end: impl Future<Output = ()>) -> Bytes {
        if bytes.len() > SIGN_OF_LIFE && self.state().made == 0 {
            tokio::select! {
                () = self.make_room(bytes.len()) => {}
                () = end => {}
            }
        }
        let mut state = self.state();
        let made = std::mem::take(&mut state.made);
        if made == 0 {
            return bytes;
        }
        let size = made.min(2 * bytes.len() + PART); // written into a buffer that doubles as it grows
        state.give_back(made - size);
        drop(state);
        Bytes::from_owner(Part { bytes, size, of: self.clone() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn grow(&mut self, size: usize) -> bool {
        let fits = self.memory.grow(size);
        self.made += if fits { size } else { 0 };
        fits
    }

    fn give_back(&mut self, size: usize) {
        let left = self.memory.used().saturating_sub(size);
        self.memory.shrink(left);
    }
}

struct Part {
    bytes: Bytes,
    size: usize,
    of: Untaken,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.of.state().give_back(self.size);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, ready},
        pin::pin,
    };

    use cabana_runtime::{MemoryLedger, Tenant};
    use futures_util::FutureExt as _;
    use tokio::time::timeout;

    use super::*;

    const KIB: usize = 1 << 10;

    #[tokio::test]
    async fn more_waits_until_something_is_taken() {
        let (ledger, tenant) = (MemoryLedger::new(16 * KIB, 64 * KIB), Tenant::new("one").unwrap());
        let [one, other] = [(); 2].map(|()| Untaken::new(ledger.open(&tenant)));
        one.make_room(14 * KIB).now_or_never().expect("there is room");
        let mut part = one.keep(Bytes::from(vec![7; 7 * KIB]), pending()).await;
        let mut more = pin!(other.make_room(14 * KIB));
        assert!(more.as_mut().now_or_never().is_none());
        drop(part.split_to(6 * KIB));
        assert!(more.as_mut().now_or_never().is_none(), "some of it is there");
        assert_eq!(&part[..], &[7; KIB]);
        drop(part);
        timeout(Duration::from_secs(60), more).await.expect("there is room again");
    }

    #[tokio::test]
    async fn what_takes_less_than_there_was_room_for_is_charged_for_what_it_takes() {
        let (ledger, tenant) = (MemoryLedger::new(16 * KIB, 64 * KIB), Tenant::new("one").unwrap());
        let [one, other] = [(); 2].map(|()| Untaken::new(ledger.open(&tenant)));
        one.make_room(14 * KIB).await;
        let part = one.keep(Bytes::from(vec![7; KIB]), pending()).await;
        other.make_room(14 * KIB).now_or_never().expect("the rest is another's");
        let sign_of_life = one.keep(Bytes::from_static(b":\n\n"), pending()).await;
        assert_eq!((part.len(), &sign_of_life[..]), (KIB, &b":\n\n"[..]));
    }

    #[tokio::test]
    async fn what_came_without_room_waits_for_it() {
        let (ledger, tenant) = (MemoryLedger::new(16 * KIB, 64 * KIB), Tenant::new("one").unwrap());
        let [one, other] = [(); 2].map(|()| Untaken::new(ledger.open(&tenant)));
        let event = || Bytes::from(vec![7; 14 * KIB]);
        let first = one.keep(event(), pending()).await;
        let mut second = pin!(other.keep(event(), pending()));
        assert_eq!(other.keep(event(), ready(())).await, event(), "the end does not wait");
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        assert_eq!(timeout(Duration::from_secs(60), second).await.expect("there is room again"), event());
    }
}
