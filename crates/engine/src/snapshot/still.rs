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
//! The kernel is asked whether nobody does: a descriptor of a file keeps an overlay alive that has no mount any more, wherever it is.
//! Of one that is kept alive, they are copied.
//!
//! Of a **running** one, the commands are frozen, changes from outside wait, and its own layers are copied. What a process
//! has written is in the page cache at the latest, which a copy reads: nothing has to be flushed for it.

use std::{
    fs::File,
    io,
    os::fd::AsFd,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use cabana_guest::tree;
use cabana_sandbox::{Error, Result, SandboxId};

use super::{
    flatten::flatten,
    fresh::Fresh,
    own::{is_untouched, kept_top, remove, upper, work},
};
use crate::{
    engine::{Shared, blocking},
    fault::{self, Point},
    home::Record,
    kernel::mounts,
    layers::{Pins, Store, failed},
    live::Live,
    plan::Plan,
};

/// How long the kernel may take to let go of an overlay whose sandbox has just ended.
const LETTING_GO: Duration = Duration::from_secs(1);
const RETRY_DELAY: Duration = Duration::from_millis(5);

/// What a sandbox was at that moment. The layers stay as long as this lives.
pub(super) struct Still {
    pub(super) plan: Plan,
    /// Those that only this plan names.
    pub(super) fresh: Fresh,
    pub(super) _layers_stay: Pins,
}

impl Shared {
    /// The caller holds the sandbox's slot, and has closed its gate.
    pub(super) async fn still(self: &Arc<Self>, id: &SandboxId, live: Option<&Arc<Live>>) -> Result<Still> {
        let (shared, id) = (self.clone(), id.clone());
        let Some(live) = live else { return blocking(move || shared.keep_or_copy_own(&id)).await };
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

    fn keep_or_copy_own(&self, id: &SandboxId) -> Result<Still> {
        let (own, plan) = (self.homes.open_home(id)?.fs(), self.homes.read(id)?.plan);
        let begun = Instant::now();
        while is_kept_alive(&own, &plan) {
            if begun.elapsed() > LETTING_GO {
                return self.copy_own(id);
            }
            thread::sleep(RETRY_DELAY);
        }
        self.keep_own(id)
    }

    /// The layers of its record stay: the caller has the sandbox.
    fn keep_own(&self, id: &SandboxId) -> Result<Still> {
        let (home, record) = (self.homes.open_home(id)?, self.homes.read(id)?);
        let (ids, own) = (self.ranges.storage(), home.fs());
        settle(&self.store, &record.plan, &own)?;
        let mut fresh = Fresh::new(&self.store);
        let Record { spec, mut plan, changing } = record.clone();
        let to_come = plan.overlays();
        flatten(&self.store, &mut plan, to_come, &mut fresh)?;
        for overlay in 0..plan.overlays() {
            if !is_untouched(&upper(&own, overlay), ids)? {
                let (name, lock) = self.store.reserve()?;
                fresh.add((name, Some(lock)));
                plan.stack_mut(overlay).push(name);
            }
        }
        fault::at(Point::SnapshotReserved);
        let hold = self.store.hold()?;
        if plan != record.plan {
            let written = home.rewrite(&Record { spec, plan: plan.clone(), changing });
            written.map_err(failed("writing the sandbox's record"))?;
        }
        fault::at(Point::SnapshotRecorded);
        fresh.named();
        drop(hold);
        settle(&self.store, &plan, &own)?;
        fault::at(Point::SnapshotSettled);
        let _layers_stay = self.store.pin(plan.all_layers())?;
        Ok(Still { plan, fresh: Fresh::new(&self.store), _layers_stay })
    }

    /// The same.
    fn copy_own(&self, id: &SandboxId) -> Result<Still> {
        let (own, mut plan) = (self.homes.open_home(id)?.fs(), self.homes.read(id)?.plan);
        let _layers_stay = self.store.pin(plan.all_layers())?;
        let mut fresh = Fresh::new(&self.store);
        for overlay in 0..plan.overlays() {
            let upper = upper(&own, overlay);
            if is_untouched(&upper, self.ranges.storage())? {
                continue;
            }
            let draft = self.store.draft()?;
            let upper = File::open(upper).map_err(failed("opening the sandbox's layer"))?;
            tree::copy_layer(upper.as_fd(), draft.root.as_fd()).map_err(failed("copying the sandbox's layer"))?;
            let (name, lock) = draft.keep()?;
            fresh.add((name, lock));
            plan.stack_mut(overlay).push(name);
        }
        Ok(Still { plan, fresh, _layers_stay })
    }
}

/// Whether somebody has a hold on an overlay of these layers, or may have. An ordinary user cannot ask.
fn is_kept_alive(own: &Path, plan: &Plan) -> bool {
    let is_upper = |overlay| {
        let asked = File::open(upper(own, overlay)).and_then(|dir| mounts::is_upper_of_overlay(dir.as_fd()));
        // What is not there is in no overlay.
        let cannot_be = [io::ErrorKind::PermissionDenied, io::ErrorKind::NotFound];
        asked.unwrap_or_else(|error| !cannot_be.contains(&error.kind()))
    };
    (0..plan.overlays()).any(is_upper)
}

/// Ends what [`Shared::still`] began with a stopped sandbox and a sudden end left undone. Costs some looks if there is
/// nothing to do.
pub(crate) fn settle(store: &Store, plan: &Plan, own: &Path) -> Result<()> {
    for overlay in 0..plan.overlays() {
        let Some(top) = kept_top(plan, overlay).filter(|top| store.awaits(*top)) else { continue };
        // What the kernel kept in it was for the layer that goes away.
        remove(&work(own, overlay)).map_err(failed("clearing the sandbox's work directory"))?;
        fault::at(Point::SnapshotCleared);
        store.fill(top, &upper(own, overlay))?;
        fault::at(Point::SnapshotMoved);
    }
    Ok(())
}
