//! Layers that nothing names yet.

use crate::layers::{LayerName, Lock, Store};

/// Dropped before something that lasts names them, they go. A killed process leaves them to
/// [`Store::remove_unused`], since no record names them.
pub(super) struct Fresh {
    store: Store,
    /// What keeps each until it is named is its lock.
    layers: Vec<(LayerName, Option<Lock>)>,
}

impl Fresh {
    pub(super) fn new(store: &Store) -> Self {
        Self { store: store.clone(), layers: Vec::new() }
    }

    pub(super) fn add(&mut self, layer: (LayerName, Option<Lock>)) {
        self.layers.push(layer);
    }

    /// A record names them from here on. The caller holds the store since before it was written.
    pub(super) fn named(mut self) {
        self.layers.clear();
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        for (layer, lock) in self.layers.drain(..) {
            drop(lock); // it would keep the layer from us, too
            let _ = self.store.discard(layer); // the next sweep takes what is left
        }
    }
}
