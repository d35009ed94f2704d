//! All sandboxes at once, with what they are made from: for a backup, which is read into another data directory.
//!
//! The frames are those of a saved sandbox. Each section says what comes: a layer, whose tar is the next section, or something
//! that stands on layers that came before. So a layer that many stand on is there once. The layers of the host base are not in
//! it: they are made anew from the host.
//!
//! Volumes come first, for the sandboxes that see them. Those are free meanwhile: a volume is saved as it is while it changes.

use std::{
    collections::{HashMap, HashSet},
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use bytes::Bytes;
use cabana_guest::tree;
use cabana_sandbox::{
    Base, Error, Lifetime, Result, SandboxId, SandboxSpec, SnapshotId, Source, Stream, Template, VolumeId,
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
    home::{Home, Record},
    layers::{Draft, LayerName, Templates},
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
    pub(crate) async fn save_all(self: Arc<Self>) -> Result<Stream<Bytes>> {
        let (tasks, here) = (self.tasks.clone(), Handle::current());
        let write = move |out: &mut dyn Write| {
            let _layers_stay = self.store.hold()?; // until they are written
            let frames = FrameWriter::new(NAME, out).map_err(failed)?;
            Saver { shared: &self, frames, written: HashSet::new() }.all(&here)
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
                    let draft = receive_layer(&self.store, &mut sections)?;
                    sections.leave()?;
                    self.keep_layer(name, draft, &mut kept)?;
                }
                Item::Template(template) => {
                    let missing = template.layers.iter().find(|layer| !self.store.has(*layer));
                    if let Some(missing) = missing {
                        return Err(Error::Archive(format!("the layer {missing} of a template is not in it")));
                    }
                    Templates::new(&self.data, &self.store).adopt(&template)?;
                }
                Item::Volume(volume) => {
                    self.homes.volumes().receive(volume, |tree| unpack(tree, self.store.ids(), &mut sections))?;
                    sections.leave()?;
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

    fn keep_layer(&self, name: LayerName, draft: Draft, kept: &mut HashMap<LayerName, LayerName>) -> Result<()> {
        match name {
            LayerName::Content(id) => {
                let sealed = draft.seal()?;
                if sealed.id != id {
                    return Err(Error::Archive(format!(
                        "a layer has the digest {}, and is said to be {id}",
                        sealed.id
                    )));
                }
                sealed.keep().map(drop)
            }
            // Its name is of chance, and means nothing here.
            LayerName::Kept(_) => match kept.insert(name, draft.keep()?) {
                None => Ok(()),
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
    Error::failed("saving the sandboxes", error)
}

struct Saver<'a> {
    shared: &'a Arc<Shared>,
    frames: FrameWriter<'a>,
    written: HashSet<LayerName>,
}

impl Saver<'_> {
    fn all(mut self, here: &Handle) -> Result<()> {
        for (name, template) in Templates::new(&self.shared.data, &self.shared.store).ls()? {
            match template {
                Ok(template) => {
                    self.layers(template.layers.iter().map(LayerName::from))?;
                    self.item(&Item::Template(template))?;
                }
                Err(Error::NoTemplate(_)) => {} // removed meanwhile
                Err(error) => self.left_out(&format!("template {name}"), &error)?,
            }
        }
        let snapshots = Snapshots::new(&self.shared.data, &self.shared.store);
        for name in snapshots.names()? {
            match snapshots.read(name) {
                Ok(record::Record { of, made, plan }) => {
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
        for id in self.shared.homes.all().iter().filter_map(Home::id) {
            self.sandbox(id, here)?;
        }
        // After the sandboxes: one that is shelved meanwhile is here.
        for (id, shelved) in self.shared.homes.shelf.all()? {
            let there: Vec<_> = shelved.layers.iter().copied().filter(|layer| self.shared.store.has(layer)).collect();
            if shelved.base != Base::Host {
                self.layers(there.into_iter())?;
            }
            self.item(&Item::Shelved { id, shelved })?;
        }
        self.item(&Item::End)
    }

    fn volume(&mut self, volume: VolumeId) -> Result<()> {
        let Some((tree, takes)) = self.shared.homes.volumes().open(volume)? else { return Ok(()) };
        self.item(&Item::Volume(volume))?;
        self.tree(&format!("volume {volume}"), tree.as_fd(), takes)
    }

    /// It is free again before its layers are written.
    fn sandbox(&mut self, id: SandboxId, here: &Handle) -> Result<()> {
        match self.shared.homes.read(&id) {
            Ok(Record { spec, .. }) if spec.lifetime == Lifetime::Persistent => {}
            _ => return Ok(()),
        }
        let still = here.block_on(self.shared.still_by_id(&id));
        match still.and_then(|still| Ok((still, self.shared.homes.read(&id)?))) {
            Ok((still, Record { spec, .. })) => {
                self.stack(&still.plan)?;
                let views: Vec<LayerName> = spec.views.iter().filter_map(of_view).collect();
                self.layers(views.into_iter())?;
                self.item(&Item::Sandbox { id, spec: Box::new(spec), stands: Stands::of(&still.plan) })
            }
            Err(Error::NoSandbox(_)) => Ok(()), // deleted meanwhile
            Err(error) => self.left_out(&format!("sandbox {id}"), &error),
        }
    }

    fn stack(&mut self, plan: &Plan) -> Result<()> {
        let of_host = plan.fingerprint.is_some();
        let stacks = (0..plan.overlays()).flat_map(|overlay| plan.stack(overlay));
        self.layers(stacks.copied().filter(|layer| layer.is_kept() || !of_host))
    }

    fn layers(&mut self, layers: impl Iterator<Item = LayerName>) -> Result<()> {
        for layer in layers {
            if !self.written.insert(layer) {
                continue;
            }
            let tree = self.shared.store.open_layer(layer)?;
            self.item(&Item::Layer(layer))?;
            match layer {
                // It came out of an archive, and its name says what is in it.
                LayerName::Content(_) => {
                    tree::pack_layer(tree.as_fd(), self.shared.store.ids(), &mut self.frames).map_err(failed)?;
                    self.frames.end_section().map_err(failed)?;
                }
                LayerName::Kept(_) => self.tree(&format!("layer {layer}"), tree.as_fd(), u64::MAX)?,
            }
        }
        Ok(())
    }

    /// What somebody put there that no archive holds must not keep everybody else's files out of the backup.
    fn tree(&mut self, what: &str, tree: BorrowedFd<'_>, most: u64) -> Result<()> {
        let left_out = tree::pack_changing(tree, self.shared.store.ids(), most, &mut self.frames).map_err(failed)?;
        self.frames.end_section().map_err(failed)?;
        match left_out {
            Some(why) => self.item(&Item::LeftOut(format!("of {what}: {why}"))),
            None => Ok(()),
        }
    }

    fn left_out(&mut self, what: &str, error: &Error) -> Result<()> {
        self.item(&Item::LeftOut(format!("{what}: {error}")))
    }

    fn item(&mut self, item: &Item) -> Result<()> {
        let text = serde_json::to_vec(item).map_err(|error| failed(error.into()))?;
        self.frames.write_all(&text).and_then(|()| self.frames.end_section()).map_err(failed)
    }
}

fn of_view(view: &cabana_sandbox::View) -> Option<LayerName> {
    match &view.source {
        Source::Layer(layer) => Some(layer.into()),
        Source::Host(_) | Source::Volume(_) => None,
    }
}
