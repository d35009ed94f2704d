//! A sandbox's files at one moment, as layers that never change again.
//!
//! Of a **stopped** sandbox nobody writes to its own layers, so they become read-only layers as they are, by a rename, and
//! the sandbox goes on with empty ones above them: the same work for one file as for 100,000. What an overlay leaves in its
//! upper directory is what it understands in a lower one: whiteouts are devices with the number zero, opaqueness is an
//! attribute, and nothing in it depends on the layers below, since redirects and metadata-only copies are off in an overlay
//! of a user namespace.
//!
//! The order makes it safe against a sudden end. First the names are reserved in the store; then the sandbox's record, by
//! one rename, says that it stands on them; then each own layer is moved to its name. An end before the record leaves the
//! sandbox as it was, and empty names that nothing uses. After it, a name that is reserved and still awaits its layer says
//! exactly what is left to do, and [`settle`] does it whenever the sandbox is touched next. At no moment does a layer lie
//! where nothing that is used names it, so nothing can take it for rubbish.
//!
//! Of a **running** one, the commands are frozen, changes from outside wait, and its own layers are copied. What a process
//! has written is in the page cache at the latest, which a copy reads: nothing has to be flushed for it.

use std::{
    ffi::CString,
    fs::{self, File},
    io,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use cabana_guest::{IdMap, tree};
use cabana_sandbox::{Error, Result, SandboxId};

use super::{flatten::flatten, fresh::Fresh};
use crate::{
    engine::{Shared, blocking},
    fault::{self, Point},
    home::Record,
    layers::{Hold, Store, failed},
    live::Live,
    plan::Plan,
};

/// What a sandbox was at that moment. The layers stay as long as this lives.
pub(super) struct Still {
    pub(super) plan: Plan,
    /// Those that only this plan names.
    pub(super) fresh: Fresh,
    pub(super) _layers_stay: Hold,
}

impl Shared {
    /// The caller holds the sandbox's slot, and has closed its gate.
    pub(super) async fn still(self: &Arc<Self>, id: &SandboxId, live: Option<&Arc<Live>>) -> Result<Still> {
        let (shared, id) = (self.clone(), id.clone());
        let Some(live) = live else { return blocking(move || shared.keep_own(&id)).await };
        if !self.ranges.has_cgroups() {
            let what = "snapshots of a running sandbox without control groups, which would freeze it: stop it first";
            return Err(Error::Unsupported { provider: "engine", what });
        }
        if live.is_paused() {
            return blocking(move || shared.copy_own(&id)).await;
        }
        live.hold_still().await?;
        fault::at(Point::SnapshotHeld);
        let copied = blocking(move || shared.copy_own(&id)).await;
        fault::at(Point::SnapshotCopied);
        live.let_go().await?;
        copied
    }

    fn keep_own(&self, id: &SandboxId) -> Result<Still> {
        let _layers_stay = self.store.hold()?;
        let (home, record) = (self.homes.open_home(id)?, self.homes.read(id)?);
        let (ids, own) = (self.ranges.storage(), home.fs());
        settle(&self.store, &record.plan, &own)?;
        let mut fresh = Fresh::new(&self.store);
        let Record { spec, mut plan } = record.clone();
        let to_come = plan.overlays();
        flatten(&self.store, &mut plan, to_come, &mut fresh)?;
        for overlay in 0..plan.overlays() {
            if !is_untouched(&upper(&own, overlay), ids)? {
                let name = self.store.reserve()?;
                fresh.add(name);
                plan.stack_mut(overlay).push(name);
            }
        }
        fault::at(Point::SnapshotReserved);
        if plan != record.plan {
            let written = home.rewrite(&Record { spec, plan: plan.clone() });
            written.map_err(failed("writing the sandbox's record"))?;
        }
        fault::at(Point::SnapshotRecorded);
        fresh.named();
        settle(&self.store, &plan, &own)?;
        fault::at(Point::SnapshotSettled);
        Ok(Still { plan, fresh: Fresh::new(&self.store), _layers_stay })
    }

    fn copy_own(&self, id: &SandboxId) -> Result<Still> {
        let _layers_stay = self.store.hold()?;
        let (own, mut plan) = (self.homes.open_home(id)?.fs(), self.homes.read(id)?.plan);
        let mut fresh = Fresh::new(&self.store);
        for overlay in 0..plan.overlays() {
            let upper = upper(&own, overlay);
            if is_untouched(&upper, self.ranges.storage())? {
                continue;
            }
            let draft = self.store.draft()?;
            let upper = File::open(upper).map_err(failed("opening the sandbox's layer"))?;
            tree::copy_layer(upper.as_fd(), draft.root.as_fd()).map_err(failed("copying the sandbox's layer"))?;
            let name = draft.keep()?;
            fresh.add(name);
            plan.stack_mut(overlay).push(name);
        }
        Ok(Still { plan, fresh, _layers_stay })
    }
}

/// Ends what [`Shared::still`] began with a stopped sandbox and a sudden end left undone. Costs some looks if there is
/// nothing to do.
pub(crate) fn settle(store: &Store, plan: &Plan, own: &Path) -> Result<()> {
    for overlay in 0..plan.overlays() {
        settle_overlay(store, plan, own, overlay)?;
    }
    Ok(())
}

fn settle_overlay(store: &Store, plan: &Plan, own: &Path, overlay: usize) -> Result<()> {
    let Some(top) = plan.stack(overlay).last().copied().filter(|top| top.is_kept()) else { return Ok(()) };
    let (upper, work) = (upper(own, overlay), own.join(format!("work{overlay}")));
    if store.awaits(top) {
        // What the kernel kept in it was for the layer that goes away.
        remove(&work).map_err(failed("clearing the sandbox's work directory"))?;
        fault::at(Point::SnapshotCleared);
        store.fill(top, &upper)?;
        fault::at(Point::SnapshotMoved);
    }
    // Made elsewhere, and renamed when it looks as it should.
    if !upper.exists() {
        let new = own.join("upper.new");
        let make = || {
            remove(&new)?;
            fs::create_dir(&new)
        };
        make().map_err(failed("making the sandbox's layer"))?;
        dress(store, plan, overlay, &new)?;
        fs::rename(&new, &upper).map_err(failed("making the sandbox's layer"))?;
    }
    if !work.exists() {
        let make = || {
            fs::create_dir(&work)?;
            std::os::unix::fs::chown(&work, store.ids().outside(0), store.ids().outside(0))
        };
        make().map_err(failed("making the sandbox's work directory"))?;
    }
    Ok(())
}

/// The root of an overlay looks as its own layer does: a new one takes over the looks of the one below.
pub(crate) fn dress_new(store: &Store, plan: &Plan, own: &Path) -> Result<()> {
    (0..plan.overlays()).try_for_each(|overlay| dress(store, plan, overlay, &upper(own, overlay)))
}

fn dress(store: &Store, plan: &Plan, overlay: usize, dir: &Path) -> Result<()> {
    let Some(top) = plan.stack(overlay).last().filter(|top| top.is_kept()) else { return Ok(()) };
    let layer = store.open_layer(*top)?;
    let dressed = File::open(dir).and_then(|dir| tree::dress_like(layer.as_fd(), dir.as_fd()));
    dressed.map_err(failed("making the sandbox's layer"))
}

fn upper(own: &Path, overlay: usize) -> PathBuf {
    own.join(format!("upper{overlay}"))
}

fn is_untouched(upper: &Path, ids: IdMap) -> Result<bool> {
    let looked = File::open(upper).and_then(|upper| tree::is_untouched(upper.as_fd(), ids));
    looked.map_err(failed("looking at the sandbox's layer"))
}

/// Without following links, whatever is there. Absent is Ok.
fn remove(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    tree::remove(File::open(parent)?.as_fd(), &CString::new(name.as_encoded_bytes())?)
}
