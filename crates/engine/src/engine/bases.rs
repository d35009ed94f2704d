//! What sandboxes are made from, and the layers of it that nobody needs any more.

use std::{collections::BTreeSet, os::fd::AsFd, sync::Arc};

use bytes::Bytes;
use cabana_guest::tree;
use cabana_sandbox::{Base, Overrides, Result, Stream, Template};

use super::{Shared, blocking, used::Used};
use crate::{
    files::fed,
    layers::{LayerName, Templates, failed},
    snapshot::Snapshots,
};

impl Shared {
    pub(super) fn templates(&self) -> Templates<'_> {
        Templates::new(&self.data, &self.store)
    }

    pub(super) fn snapshots(&self) -> Snapshots<'_> {
        Snapshots::new(&self.data, &self.store)
    }

    pub(super) fn uses_template(&self, name: &str) -> bool {
        let named = Base::Named(name.to_owned());
        // Whoever cannot say what is shelved cannot say that nothing of it is needed.
        let of_shelved =
            || self.homes.shelf.all().map_or(true, |all| all.iter().any(|(_, shelved)| shelved.base == named));
        self.homes.all().iter().any(|home| home.read().is_ok_and(|record| record.spec.base == named)) || of_shelved()
    }

    /// What cannot be kept is refused before the first byte is pulled.
    pub(super) async fn add_template(
        self: Arc<Self>,
        name: String,
        wishes: Overrides,
        most: u64,
        tar: Stream<Bytes>,
    ) -> Result<Template> {
        let (shared, asked) = (self.clone(), name.clone());
        blocking(move || shared.templates().check_new(&asked)).await?;
        fed(tar, move |tar| self.templates().add_sent(&name, tar, most, &wishes)).await
    }

    /// `None` while somebody holds the store.
    pub(super) fn remove_unused_layers(&self) -> Result<Option<usize>> {
        let mut used = Used::default();
        used.read(&self.homes)?;
        let named = self.named_layers(&[])?;
        if self.store.all()?.iter().all(|layer| named.contains(layer) || used.layers.contains(layer)) {
            return Ok(Some(0));
        }
        self.store.remove_unused(&mut || {
            used.read(&self.homes)?;
            let mut all = self.named_layers(&[])?;
            all.append(&mut used.layers);
            all.extend(self.homes.shelf.all()?.into_iter().flat_map(|(_, shelved)| shelved.layers));
            Ok(all)
        })
    }

    fn layers_of_sandboxes(&self) -> Result<BTreeSet<LayerName>> {
        let mut used = Used::default();
        used.read(&self.homes)?;
        used.layers.extend(self.homes.shelf.all()?.into_iter().flat_map(|(_, shelved)| shelved.layers));
        Ok(used.layers)
    }

    /// What nothing would need without these. As in [`Shared::tidy`], records are read only where there may be some.
    pub(super) fn unused_layers(&self, without: &[Base]) -> Result<Vec<(String, u64)>> {
        let named = self.named_layers(without)?;
        let mut unnamed: Vec<LayerName> =
            self.store.all()?.into_iter().filter(|layer| !named.contains(layer)).collect();
        if unnamed.is_empty() {
            return Ok(Vec::new());
        }
        let used = self.layers_of_sandboxes()?;
        unnamed.retain(|layer| !used.contains(layer));
        let measured = unnamed.into_iter().filter_map(|layer| {
            let tree = self.store.open_layer(layer).ok()?; // absent: one that is reserved, or removed meanwhile
            Some(tree::usage(tree.as_fd()).map(|measured| (layer.to_string(), measured.found().bytes)))
        });
        measured.collect::<std::io::Result<_>>().map_err(failed("measuring a layer"))
    }

    /// Nobody is locked out, and no record of a sandbox is read, where there is nothing to remove.
    pub(super) fn tidy(&self) -> Result<bool> {
        let named = self.named_layers(&[])?;
        if self.store.all()?.iter().all(|layer| named.contains(layer)) {
            return Ok(true);
        }
        self.remove_unused_layers().map(|removed| removed.is_some())
    }

    /// Those that templates and snapshots need, but for these.
    fn named_layers(&self, without: &[Base]) -> Result<BTreeSet<LayerName>> {
        let (mut templates, mut snapshots) = (Vec::new(), Vec::new());
        for base in without {
            match base {
                Base::Named(name) => templates.push(name.as_str()),
                Base::Snapshot(name) => snapshots.push(*name),
                Base::Host | Base::Layers(_) => {}
            }
        }
        let mut named = self.templates().layers(&templates)?;
        named.extend(self.snapshots().layers(&snapshots)?);
        Ok(named)
    }
}
