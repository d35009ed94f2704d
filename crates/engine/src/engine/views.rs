//! What a running sandbox is shown is changed, and held to across ends of the server.

use std::sync::Arc;

use cabana_sandbox::{Error, Identities, Result, SandboxId, View};

use super::{Shared, Taken, blocking};
use crate::{
    fault::{self, Point},
    home::Record,
    kernel::thread_identity::Identity,
    live::Live,
    plan,
    views::{self, Change, Outcome},
    volumes::volumes_of,
};

impl Shared {
    /// The commands have to stand still meanwhile, and the ids of mounts to be mapped.
    pub(super) fn changes_views(&self) -> bool {
        self.ranges.has_cgroups() && self.ranges.identities() == Identities::Own
    }

    /// All or nothing. The caller keeps others from changing what the sandbox is asked to be.
    pub(crate) async fn change_views(self: &Arc<Self>, live: &Arc<Live>, views: Vec<View>) -> Result<()> {
        if !self.changes_views() {
            return Err(unsupported());
        }
        let slot = self.slot(&live.id);
        // So that nobody pauses, stops or snapshots it half-way.
        let held = slot.lock().await;
        match held.as_ref() {
            Some(held) if Arc::ptr_eq(held, live) => self.change_held_views(live, views).await,
            _ => Err(Error::Gone),
        }
    }

    /// The same of one that may be stopped.
    pub(super) async fn set_views(self: Arc<Self>, id: SandboxId, views: Vec<View>) -> Result<()> {
        let slot = self.slot(&id);
        let mut held = slot.lock().await;
        let set = match self.take_up(&id, &mut held).await {
            Ok(Taken::Live(live)) if self.changes_views() => self.change_held_views(&live, views).await,
            Ok(Taken::Live(_)) => Err(unsupported()),
            Ok(Taken::Stopped(_owned)) => self.change_stopped_views(&id, views).await,
            Ok(Taken::Absent) => Err(Error::NoSandbox(id.clone())),
            Err(error) => Err(error),
        };
        drop(held);
        self.let_go(&id, &slot);
        set
    }

    /// What cannot be shown now is refused now, and not at the next start.
    async fn change_stopped_views(self: &Arc<Self>, id: &SandboxId, views: Vec<View>) -> Result<()> {
        let _closed = self.gates.of(id).close().await?;
        let was = self.read_record(id).await?;
        let wanted = with_views(&was, views)?;
        let change = async {
            let (shared, asked) = (self.clone(), wanted.clone());
            let storage = self.ranges.storage();
            blocking(move || plan::open_views(&shared.data, &shared.store, &asked, storage).map(drop)).await?;
            self.write_record(id, wanted.clone()).await
        };
        self.with_volumes(id, &was, &wanted, change).await
    }

    async fn change_held_views(self: &Arc<Self>, live: &Arc<Live>, views: Vec<View>) -> Result<()> {
        let _closed = self.gates.of(&live.id).close().await?;
        let was = self.read_record(&live.id).await?;
        let wanted = with_views(&was, views)?;
        live.stored.note_left(&was.spec.views);
        self.with_volumes(&live.id, &was, &wanted, self.exchange_views(live, &was, &wanted)).await
    }

    /// New volumes have their marks before a record names them, and old ones after none does.
    async fn with_volumes(
        self: &Arc<Self>,
        id: &SandboxId,
        was: &Record,
        wanted: &Record,
        change: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let (before, after) = (volumes_of(&was.spec.views), volumes_of(&wanted.spec.views));
        let (shared, of, new) = (self.clone(), id.clone(), &after - &before);
        let held = blocking(move || {
            let volumes = shared.homes.volumes();
            volumes.mark(&new, &of).inspect_err(|_| volumes.unmark(&new, &of))
        })
        .await?;
        let changed = change.await;
        drop(held);
        let gone = if changed.is_ok() { &before - &after } else { &after - &before };
        let (shared, of) = (self.clone(), id.clone());
        let unmarked = blocking(move || {
            shared.homes.volumes().unmark(&gone, &of);
            Ok(())
        });
        changed.and(unmarked.await)
    }

    async fn exchange_views(self: &Arc<Self>, live: &Arc<Live>, was: &Record, wanted: &Record) -> Result<()> {
        // What cannot be opened is refused before anything is changed.
        let mut change = self.open_views(live, wanted).await?;
        change.before = Some(was.spec.views.len());
        self.write_record(&live.id, Record { changing: true, ..wanted.clone() }).await?;
        fault::at(Point::ViewsRecorded);
        self.still_for_views(live).await?;
        fault::at(Point::ViewsHeld);
        let changed = self.put_views(live, change).await;
        let holds = if changed.is_ok() { wanted } else { was };
        let record = Record { changing: false, ..holds.clone() };
        fault::at(Point::ViewsChanged);
        let recorded = self.write_record(&live.id, record).await;
        self.go_on_after_views(live).await?;
        changed.and(recorded)
    }

    /// Ends what [`Shared::change_views`] began and a sudden end left undone.
    pub(super) async fn settle_views(self: &Arc<Self>, live: &Arc<Live>, record: Record) -> Result<()> {
        let change = self.open_views(live, &record).await?;
        self.still_for_views(live).await?;
        let changed = self.put_views(live, change).await;
        self.go_on_after_views(live).await?;
        changed?;
        self.write_record(&live.id, Record { changing: false, ..record }).await
    }

    /// Nothing of the sandbox sees a change half made.
    async fn still_for_views(&self, live: &Arc<Live>) -> Result<()> {
        if live.is_paused() { Ok(()) } else { live.hold_still().await }
    }

    async fn go_on_after_views(&self, live: &Arc<Live>) -> Result<()> {
        if live.is_paused() { Ok(()) } else { live.let_go().await }
    }

    /// Detached, with the ids that the sandbox has.
    async fn open_views(self: &Arc<Self>, live: &Arc<Live>, record: &Record) -> Result<Change> {
        let (shared, opened) = (self.clone(), record.clone());
        let storage = self.ranges.storage();
        let views = blocking(move || plan::open_views(&shared.data, &shared.store, &opened, storage)).await?;
        for view in &views {
            self.map_ids(&[], live.ids, view).await?;
        }
        let root = live.ids.base;
        let root = Identity { uid: root, gid: root, groups: Vec::new(), root: true };
        Ok(Change { views, overlays: record.plan.places(), root, before: None })
    }

    /// An error has changed nothing.
    async fn put_views(self: &Arc<Self>, live: &Arc<Live>, change: Change) -> Result<()> {
        let live = live.clone();
        blocking(move || match views::change(&live, change) {
            Outcome::Done => {
                live.open_files.mounts_changed();
                Ok(())
            }
            Outcome::Refused(error) => Err(error),
            Outcome::HalfDone(error) => {
                live.kill(); // it would see what nobody asked for; the next start gives it what it had
                Err(error)
            }
        })
        .await
    }

    async fn read_record(self: &Arc<Self>, id: &SandboxId) -> Result<Record> {
        let (shared, id) = (self.clone(), id.clone());
        blocking(move || shared.homes.read(&id)).await
    }

    async fn write_record(self: &Arc<Self>, id: &SandboxId, record: Record) -> Result<()> {
        let (shared, id) = (self.clone(), id.clone());
        blocking(move || shared.homes.rewrite(&id, &record)).await
    }
}

fn with_views(was: &Record, views: Vec<View>) -> Result<Record> {
    was.plan.check_room(&views)?;
    let mut wanted = was.clone();
    wanted.spec.views = views;
    Ok(wanted)
}

fn unsupported() -> Error {
    let what = "changing views at run time without root and control groups: stop it first";
    Error::Unsupported { provider: "engine", what }
}
