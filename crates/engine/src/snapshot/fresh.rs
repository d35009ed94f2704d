//! Layers that nothing names yet.

use crate::layers::{LayerName, Store};

/// Dropped before something that lasts names them, they go. A killed process leaves them to
/// [`Store::remove_unused`], since no record names them.
pub(super) struct Fresh {
    store: Store,
    layers: Vec<LayerName>,
}

impl Fresh {
    pub(super) fn new(store: &Store) -> Self {
        Self { store: store.clone(), layers: Vec::new() }
    }

    pub(super) fn add(&mut self, layer: LayerName) {
        self.layers.push(layer);
    }

    /// A record names them from here on.
    pub(super) fn named(mut self) {
        self.layers.clear();
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        for layer in self.layers.drain(..) {
            let _ = self.store.discard(layer); // the next sweep takes what is left
        }
    }
}
