//! How long keys open something, for what was begun with one and has no end of its own: it ends with its key.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use cabana_model::{KeyId, Time};
use tokio_util::sync::CancellationToken;

use crate::Clock;

/// Until a key is revoked or expires. Cheap to clone.
#[derive(Clone)]
pub struct KeyLife {
    revoked: Arc<CancellationToken>,
    expires: Option<Time>,
    clock: Clock,
}

impl KeyLife {
    /// Returns when the key opens nothing any more.
    pub async fn ended(self) {
        let expired = async {
            match self.expires {
                Some(end) => self.clock.until(end).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.revoked.cancelled() => {}
            () = expired => {}
        }
    }
}

/// Of the keys with which something goes on.
#[derive(Default)]
pub(crate) struct KeyLives(Mutex<HashMap<KeyId, Weak<CancellationToken>>>);

impl KeyLives {
    fn all<T>(&self, act: impl FnOnce(&mut HashMap<KeyId, Weak<CancellationToken>>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Hears of every revocation that comes after this.
    pub(crate) fn watch(&self, id: KeyId) -> Watched {
        Watched(self.all(|lives| {
            if let Some(revoked) = lives.get(&id).and_then(Weak::upgrade) {
                return revoked;
            }
            lives.retain(|_, revoked| revoked.strong_count() > 0);
            let revoked = Arc::new(CancellationToken::new());
            lives.insert(id, Arc::downgrade(&revoked));
            revoked
        }))
    }

    pub(crate) fn end(&self, id: KeyId) {
        if let Some(revoked) = self.all(|lives| lives.remove(&id)).and_then(|revoked| revoked.upgrade()) {
            revoked.cancel();
        }
    }
}

/// A key of which nothing is known but that it was not revoked since.
pub(crate) struct Watched(Arc<CancellationToken>);

impl Watched {
    pub(crate) fn until(self, expires: Option<Time>, clock: Clock) -> KeyLife {
        KeyLife { revoked: self.0, expires, clock }
    }
}
