//! A sandbox from a saved one: stopped, with its files, or nothing at all.
//!
//! Everything in the stream may be a lie. Layers are unpacked into drafts, which go if anything fails. Of what the head says,
//! names of content are looked up in the store; kept layers are always the ones in the stream; and which directories of the
//! host are shown where is never taken from it, but from this host's own base.

use std::{
    io::Read,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use bytes::Bytes;
use cabana_guest::{IdMap, tree};
use cabana_sandbox::{Error, Result, SandboxId, SandboxSpec, Stream};

use super::{
    flatten::flatten,
    fresh::Fresh,
    own::{dress_new, put_away},
    saved::{Head, Sections},
};
use crate::{
    engine::{Shared, blocking},
    fault::{self, Point},
    files::fed,
    home::Record,
    layers::{Draft, LayerName, Store},
    plan::Plan,
};

impl Shared {
    pub(crate) async fn restore(
        self: Arc<Self>,
        id: SandboxId,
        spec: SandboxSpec,
        saved: Stream<Bytes>,
    ) -> Result<Vec<String>> {
        self.check_absent(&id)?; // before the stream, which may be long, and once more at the end
        let shared = self.clone();
        let (head, drafts, left_out) = fed(saved, move |saved| shared.receive(saved)).await?;
        let slot = self.slot(&id);
        let held = slot.lock().await;
        let made = match held.is_some() {
            true => self.check_absent(&id),
            false => {
                let (shared, id) = (self.clone(), id.clone());
                blocking(move || shared.make_restored(&id, spec, &head, drafts)).await
            }
        };
        drop(held);
        self.let_go(&id, &slot);
        made.map(|()| left_out)
    }

    fn check_absent(&self, id: &SandboxId) -> Result<()> {
        match self.homes.has(id) {
            true => Err(Error::invalid("id", format!("sandbox {id} is there already: delete it first"))),
            false => Ok(()),
        }
    }

    fn receive(&self, saved: &mut dyn Read) -> Result<(Head, Vec<Draft>, Vec<String>)> {
        let (head, mut sections) = Sections::open(saved)?;
        self.check_layers(&head)?; // before the long part
        let (mut drafts, mut left_out) = (Vec::new(), Vec::new());
        for _ in head.overlays() {
            let (draft, lacks) = receive_layer(&self.store, &mut sections)?;
            drafts.push(draft);
            left_out.extend(lacks);
            sections.leave()?;
        }
        sections.end()?;
        Ok((head, drafts, left_out))
    }

    fn check_layers(&self, head: &Head) -> Result<()> {
        let missing: Vec<_> =
            head.layers.iter().filter(|layer| !self.store.has(*layer)).map(ToString::to_string).collect();
        if missing.is_empty() || head.fingerprint.is_some() {
            return Ok(()); // a host base is made anew where it is missing
        }
        let why =
            format!("the saved sandbox stands on layers that are not here: {}. Import them first", missing.join(", "));
        Err(Error::invalid("base", why))
    }

    fn make_restored(&self, id: &SandboxId, spec: SandboxSpec, head: &Head, drafts: Vec<Draft>) -> Result<()> {
        let (mut plan, _layers_stay) = {
            let _until_pinned = self.store.hold()?;
            let plan = self.plan_of(head)?;
            let pins = self.store.pin(plan.all_layers())?;
            (plan, pins)
        };
        let mut fresh = Fresh::new(&self.store);
        for (overlay, draft) in head.overlays().zip(drafts) {
            let (layer, lock) = draft.keep()?;
            fresh.add((layer, lock));
            let overlay = place(&plan, head, overlay)?;
            plan.stack_mut(overlay).push(layer);
        }
        flatten(&self.store, &mut plan, 0, &mut fresh)?;
        if let Some(user) = &spec.user {
            plan.defaults.user = user.clone();
        }
        plan.sudo = self.homes.shelf.had_sudo(id);
        let _until_named = self.store.hold()?;
        self.make_stopped(id, &Record { spec, plan, changing: false })?;
        fresh.named();
        fault::at(Point::ShelfRestored);
        // What is left there holds a layer for longer than needed, and nothing else.
        let _ = self.homes.shelf.remove(id);
        Ok(())
    }

    pub(super) fn make_stopped(&self, id: &SandboxId, record: &Record) -> Result<()> {
        let (home, _owned) = self.homes.make(id, record)?;
        let fs = home.fs();
        let made = dress_new(&self.store, &record.plan, &fs).and_then(|()| put_away(&self.store, &record.plan, &fs));
        made.inspect_err(|_| drop(self.homes.remove(id)))
    }

    /// What lies below the kept layers.
    pub(super) fn plan_of(&self, head: &Head) -> Result<Plan> {
        self.check_layers(head)?;
        let named = |layers: &[_]| layers.iter().map(LayerName::from).collect();
        let (defaults, fingerprint) = (head.defaults.clone(), head.fingerprint.clone());
        let mut plan = Plan {
            layers: named(&head.layers),
            trees: Vec::new(),
            defaults,
            sudo: false, // what it may is the spec's to say, and not the stream's
            fingerprint,
            trust: None,
        };
        if head.fingerprint.is_some() {
            let base = self.host_base()?;
            plan.rebase(&base);
            if head.layers.is_empty() || head.layers.iter().any(|layer| !self.store.has(layer)) {
                plan.layers = named(&base.root_layers);
            }
        }
        if plan.layers.is_empty() {
            return Err(Error::Archive("it stands on no layer".into()));
        }
        Ok(plan)
    }
}

/// The overlay here that is one of the stream's: trees are found by where they are inside.
pub(super) fn place(plan: &Plan, head: &Head, overlay: usize) -> Result<usize> {
    let Some(tree) = overlay.checked_sub(1) else { return Ok(0) };
    let at = &head.trees[tree].at;
    let found = plan.trees.iter().position(|tree| tree.at == *at);
    let why = || format!("the saved sandbox has changes to {at}, which is no directory of programs on this host");
    found.map(|found| found + 1).ok_or_else(|| Error::invalid("base", why()))
}

/// And what it lacks.
pub(super) fn receive_layer(store: &Store, sections: &mut Sections<'_>) -> Result<(Draft, Vec<String>)> {
    let draft = store.draft()?;
    let left_out = unpack(draft.root.as_fd(), store.ids(), sections)?;
    Ok((draft, left_out))
}

/// The next section, into an empty directory that nobody else sees. Tells what this file system cannot have of it.
pub(super) fn unpack(into: BorrowedFd<'_>, ids: IdMap, sections: &mut Sections<'_>) -> Result<Vec<String>> {
    tree::unpack_layer(into, ids, sections).map_err(|error| match sections.explain(error) {
        // What stands in the way there is the archive's own doing.
        error @ (Error::Archive(_) | Error::NoSpace | Error::Failed { .. }) => error,
        error => Error::Archive(error.to_string()),
    })
}
