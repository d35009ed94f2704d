//! All sandboxes at once, with what they are made from: for a backup, which is read into another data directory.
//!
//! The frames are those of a saved sandbox. Each section says what comes: a layer, whose tar is the next section, or something
//! that stands on layers that came before. So a layer that many stand on is there once. The layers of the host base are not in
//! it: they are made anew from the host.
//!
//! Volumes come first, for the sandboxes that see them. Those are free meanwhile: a volume is saved as it is while it changes.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use bytes::Bytes;
use cabana_guest::tree;
use cabana_sandbox::{
    Base, Error, Lifetime, Result, SandboxId, SandboxSpec, SnapshotId, Source, Stream, Tell, Template, VolumeId,
};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use super::{
    record::{self, Snapshots},
    restore::{place, receive_layer, unpack},
    saved::{FrameWriter, Head, Sections},
};
use crate::{
    engine::Shared,
    files::{fed, from_thread},
    home::Record,
    kernel::shortage::told_apart,
    layers::{Draft, LayerName, Pins, Templates},
    plan::Plan,
    shelf::Shelved,
    volumes::volumes_of,
};

const NAME: &[u8] = b"cabana sandboxes ";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Item {
    /// Its tar is the next section.
    Layer(LayerName),
    Template(Template),
    /// Its tar is the next section.
    Volume(VolumeId),
    Snapshot {
        name: SnapshotId,
        of: SandboxId,
        made: String,
        stands: Stands,
    },
    Sandbox {
        id: SandboxId,
        spec: Box<SandboxSpec>,
        stands: Stands,
    },
    /// One whose files are saved elsewhere: what they stand on.
    Shelved {
        id: SandboxId,
        shelved: Shelved,
    },
    /// What could not be saved, and why.
    LeftOut(String),
    End,
}

/// What something stands on.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stands {
    head: Head,
    /// The kept layers, overlay after overlay: each came before.
    kept: Vec<LayerName>,
    sudo: bool,
}

impl Stands {
    fn of(plan: &Plan) -> Self {
        let stacks = (0..plan.overlays()).flat_map(|overlay| plan.stack(overlay));
        let kept = stacks.copied().filter(LayerName::is_kept).collect();
        Self { head: Head::of(plan), kept, sudo: plan.sudo }
    }
}

impl Shared {
    /// What is left out is told as it turns out, and said in the stream.
    pub(crate) async fn save_all(self: Arc<Self>, left_out: Tell) -> Result<Stream<Bytes>> {
        let (tasks, here) = (self.tasks.clone(), Handle::current());
        let write = move |out: &mut dyn Write| {
            let frames = FrameWriter::new(NAME, out).map_err(failed)?;
            Saver { shared: &self, frames, written: HashSet::new(), left_out }.all(&here)
        };
        from_thread(&tasks, None, write).await
    }

    pub(crate) async fn restore_all(self: Arc<Self>, saved: Stream<Bytes>) -> Result<Vec<String>> {
        fed(saved, move |saved| self.receive_all(saved)).await
    }

    fn receive_all(&self, saved: &mut dyn Read) -> Result<Vec<String>> {
        let _layers_stay = self.store.hold()?; // until something names them
        let mut sections = Sections::begin(NAME, saved)?;
        let (mut kept, mut left_out) = (HashMap::new(), Vec::new());
        loop {
            match sections.told()? {
                Item::Layer(name) => {
                    let (draft, lacks) = receive_layer(&self.store, &mut sections)?;
                    sections.leave()?;
                    left_out.extend(lacks.into_iter().map(|what| format!("of layer {name}: {what}")));
                    left_out.extend(self.keep_layer(name, draft, &mut kept)?);
                }
                Item::Template(template) => match template.layers.iter().find(|layer| !self.store.has(*layer)) {
                    Some(missing) => {
                        left_out.push(format!("template {}: its layer {missing} is not there", template.name));
                    }
                    None => Templates::new(&self.data, &self.store).adopt(&template)?,
                },
                Item::Volume(volume) => {
                    let mut lacks = Vec::new();
                    self.homes.volumes().receive(volume, |tree| {
                        lacks = unpack(tree, self.store.ids(), &mut sections)?;
                        Ok(())
                    })?;
                    sections.leave()?;
                    left_out.extend(lacks.into_iter().map(|what| format!("of volume {volume}: {what}")));
                }
                Item::Snapshot { name, of, made, stands } => match self.stood_on(&stands, &kept) {
                    Ok(plan) => {
                        Snapshots::new(&self.data, &self.store).put(name, &record::Record { of, made, plan })?;
                    }
                    Err(error) => left_out.push(elsewhere(&format!("snapshot {name}"), error)?),
                },
                Item::Sandbox { id, spec, stands } => match self.stood_on(&stands, &kept) {
                    Ok(plan) => {
                        // One that was left out is there, and empty, so that it starts.
                        for volume in volumes_of(&spec.views) {
                            self.homes.volumes().make(volume)?;
                        }
                        self.make_stopped(&id, &Record { spec: *spec, plan, changing: false })?;
                    }
                    Err(error) => left_out.push(elsewhere(&format!("sandbox {id}"), error)?),
                },
                Item::Shelved { id, shelved } => self.homes.shelf.write(&id, &shelved)?,
                Item::LeftOut(what) => left_out.push(what),
                Item::End => break,
            }
        }
        sections.end()?;
        Ok(left_out)
    }

    /// One that is not what its name says has lost something on the way: what stands on it is left out, too.
    fn keep_layer(
        &self,
        name: LayerName,
        draft: Draft,
        kept: &mut HashMap<LayerName, LayerName>,
    ) -> Result<Option<String>> {
        match name {
            LayerName::Content(id) => {
                let sealed = draft.seal()?;
                if sealed.id != id {
                    return Ok(Some(format!("layer {id}: what came of it has the digest {}", sealed.id)));
                }
                sealed.keep().map(|_| None)
            }
            // Its name is of chance, and means nothing here.
            LayerName::Kept(_) => match kept.insert(name, draft.keep()?.0) {
                None => Ok(None),
                Some(_) => Err(Error::Archive(format!("the layer {name} is in it twice"))),
            },
        }
    }

    fn stood_on(&self, stands: &Stands, kept: &HashMap<LayerName, LayerName>) -> Result<Plan> {
        let Stands { head, kept: named, sudo } = stands;
        head.check()?;
        let mut plan = self.plan_of(head)?;
        plan.sudo = *sudo;
        if head.overlays().count() != named.len() {
            return Err(Error::Archive("it has another number of layers than it says".into()));
        }
        for (overlay, name) in head.overlays().zip(named) {
            let layer = kept.get(name).ok_or_else(|| Error::Archive(format!("the layer {name} is not in it")))?;
            let overlay = place(&plan, head, overlay)?;
            plan.stack_mut(overlay).push(*layer);
        }
        Ok(plan)
    }
}

/// What this host lacks keeps one thing out. What is damaged keeps all out.
fn elsewhere(what: &str, error: Error) -> Result<String> {
    match error {
        Error::Invalid { .. } => Ok(format!("{what}: {error}")),
        error => Err(error),
    }
}

fn failed(error: io::Error) -> Error {
    told_apart(error, |error| Error::failed("saving the sandboxes", error))
}

struct Saver<'a> {
    shared: &'a Arc<Shared>,
    frames: FrameWriter<'a>,
    written: HashSet<LayerName>,
    left_out: Tell,
}

impl Saver<'_> {
    fn all(mut self, here: &Handle) -> Result<()> {
        let templates = Templates::new(&self.shared.data, &self.shared.store);
        for (name, _) in templates.ls()? {
            match self.pinned(|| templates.get(&name), |template| template.layers.iter().map(LayerName::from).collect())
            {
                Ok((template, _layers_stay)) => {
                    self.layers(template.layers.iter().map(LayerName::from))?;
                    self.item(&Item::Template(template))?;
                }
                Err(Error::NoTemplate(_)) => {} // removed meanwhile
                Err(error) => self.left_out(&format!("template {name}"), &error)?,
            }
        }
        let snapshots = Snapshots::new(&self.shared.data, &self.shared.store);
        for name in snapshots.names()? {
            match self.pinned(|| snapshots.read(name), |record| record.plan.all_layers().collect()) {
                Ok((record::Record { of, made, plan }, _layers_stay)) => {
                    if let Some(missing) = self.missing(&plan) {
                        let why = Error::invalid("base", format!("its layer {missing} is not there"));
                        self.left_out(&format!("snapshot {name}"), &why)?;
                        continue;
                    }
                    self.stack(&plan)?;
                    self.item(&Item::Snapshot { name, of, made, stands: Stands::of(&plan) })?;
                }
                Err(Error::NoSnapshot(_)) => {}
                Err(error) => self.left_out(&format!("snapshot {name}"), &error)?,
            }
        }
        for volume in self.shared.homes.volumes().all()? {
            self.volume(volume)?;
        }
        for id in self.shared.homes.persistent().map_err(failed)? {
            self.sandbox(id, here)?;
        }
        // After the sandboxes: one that is shelved meanwhile is here.
        let shelf = || self.shared.homes.shelf.all();
        let needed = |all: &Vec<(SandboxId, Shelved)>| all.iter().flat_map(|(_, one)| one.layers.clone()).collect();
        let (all, _layers_stay) = self.pinned(shelf, needed)?;
        for (id, shelved) in all {
            if shelved.base != Base::Host {
                self.those_there(&format!("sandbox {id}"), shelved.layers.iter().copied())?;
            }
            self.item(&Item::Shelved { id, shelved })?;
        }
        self.item(&Item::End)
    }

    /// Reads what names layers, and keeps them until they are written.
    fn pinned<T>(
        &self,
        read: impl FnOnce() -> Result<T>,
        layers: impl FnOnce(&T) -> BTreeSet<LayerName>,
    ) -> Result<(T, Pins)> {
        let _until_pinned = self.shared.store.hold()?;
        let read = read()?;
        let pins = self.shared.store.pin(layers(&read))?;
        Ok((read, pins))
    }

    /// A layer that somebody has taken away, which keeps nothing else out.
    fn missing(&self, plan: &Plan) -> Option<LayerName> {
        in_backup(plan).find(|layer| !self.shared.store.has(*layer))
    }

    fn volume(&mut self, volume: VolumeId) -> Result<()> {
        let (tree, takes) = match self.shared.homes.volumes().open(volume) {
            Ok(Some(opened)) => opened,
            Ok(None) => return Ok(()),
            Err(error) => return self.left_out(&format!("volume {volume}"), &error),
        };
        self.item(&Item::Volume(volume))?;
        self.tree(&format!("volume {volume}"), tree.as_fd(), takes)
    }

    /// It is free again before its layers are written.
    fn sandbox(&mut self, id: SandboxId, here: &Handle) -> Result<()> {
        match self.shared.homes.read(&id) {
            Ok(Record { spec, .. }) if spec.lifetime == Lifetime::Persistent => {}
            Ok(_) | Err(Error::NoSandbox(_)) => return Ok(()), // passing by now, or deleted meanwhile
            Err(error) => return self.left_out(&format!("sandbox {id}"), &error),
        }
        let views = |record: &Record| record.spec.views.iter().filter_map(of_view).collect();
        let still = here.block_on(self.shared.still_by_id(&id));
        let pinned = still.and_then(|still| Ok((still, self.pinned(|| self.shared.homes.read(&id), views)?)));
        match pinned {
            Ok((still, (Record { spec, .. }, _views_stay))) => {
                if let Some(missing) = self.missing(&still.plan) {
                    let why = Error::invalid("base", format!("its layer {missing} is not there"));
                    return self.left_out(&format!("sandbox {id}"), &why);
                }
                self.stack(&still.plan)?;
                self.those_there(&format!("sandbox {id}"), spec.views.iter().filter_map(of_view))?;
                self.item(&Item::Sandbox { id, spec: Box::new(spec), stands: Stands::of(&still.plan) })
            }
            Err(Error::NoSandbox(_)) => Ok(()), // deleted meanwhile
            Err(error) => self.left_out(&format!("sandbox {id}"), &error),
        }
    }

    fn stack(&mut self, plan: &Plan) -> Result<()> {
        self.layers(in_backup(plan))
    }

    /// What lacks one of them comes without it.
    fn those_there(&mut self, what: &str, layers: impl Iterator<Item = LayerName>) -> Result<()> {
        let (there, gone): (Vec<_>, Vec<_>) = layers.partition(|layer| self.shared.store.has(*layer));
        for layer in gone {
            self.leave_out(format!("of {what}: the layer {layer} is not there"))?;
        }
        self.layers(there.into_iter())
    }

    fn layers(&mut self, layers: impl Iterator<Item = LayerName>) -> Result<()> {
        for layer in layers {
            if !self.written.insert(layer) {
                continue;
            }
            let tree = self.shared.store.open_layer(layer)?;
            self.item(&Item::Layer(layer))?;
            self.tree(&format!("layer {layer}"), tree.as_fd(), u64::MAX)?;
        }
        Ok(())
    }

    /// What somebody put there that no archive holds must not keep everybody else's files out of the backup.
    fn tree(&mut self, what: &str, tree: BorrowedFd<'_>, most: u64) -> Result<()> {
        let left_out = tree::pack_changing(tree, self.shared.store.ids(), most, &mut self.frames).map_err(failed)?;
        self.frames.end_section().map_err(failed)?;
        left_out.into_iter().try_for_each(|left| self.leave_out(format!("of {what}: {left}")))
    }

    fn left_out(&mut self, what: &str, error: &Error) -> Result<()> {
        self.leave_out(format!("{what}: {error}"))
    }

    fn leave_out(&mut self, what: String) -> Result<()> {
        (self.left_out)(&what);
        self.item(&Item::LeftOut(what))
    }

    fn item(&mut self, item: &Item) -> Result<()> {
        let text = serde_json::to_vec(item).map_err(|error| failed(error.into()))?;
        self.frames.write_all(&text).and_then(|()| self.frames.end_section()).map_err(failed)
    }
}

/// The layers that a plan stands on, but for those of the host base.
fn in_backup(plan: &Plan) -> impl Iterator<Item = LayerName> + '_ {
    let of_host = plan.fingerprint.is_some();
    let stacks = (0..plan.overlays()).flat_map(|overlay| plan.stack(overlay));
    stacks.copied().filter(move |layer| layer.is_kept() || !of_host)
}

fn of_view(view: &cabana_sandbox::View) -> Option<LayerName> {
    match &view.source {
        Source::Layer(layer) => Some(layer.into()),
        Source::Host(_) | Source::Volume(_) => None,
    }
}
