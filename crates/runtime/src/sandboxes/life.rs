//! Making, starting, stopping and ending: what the record owes is done, one thing after another.
//!
//! [`cabana_model::Life`] says what comes when. Each thing is done under the lock of the slot, and then the record says so;
//! whoever finds a record after a crash goes on with what it says is next.

use std::{sync::Arc, time::Duration};

use cabana_model::{
    Facts, Hook, Hooked, Life, Lifecycle, Operation, Phase, Reality, Role, SandboxState, SnapshotId, Then, Time,
    Verdict, Work, amount,
};
use cabana_sandbox::{Found, Sandbox, SandboxEvent, SandboxSpec, Wanted as Update};
use cabana_store::{By, Moved, Record, Transition};
use futures_util::{StreamExt, TryStreamExt};
use jiff::SignedDuration;
use tokio::time::timeout;
use tracing::{Instrument as _, debug_span};
use uuid::Uuid;

use super::{Sandboxes, Slot, Wanted, long_specs::off_if_long};
use crate::{
    Error, Mounts, Result, SandboxId, Tenant,
    events::{Event, Happened},
    fault::{self, Point},
    hooks, mounts,
    quotas::{Pass, Room},
};

/// When somebody looks at what is under way and should have ended long ago.
const TAKEN_OVER: SignedDuration = SignedDuration::from_mins(15);
/// So long a stop waits for what its files take to be measured: a guest decides how many there are.
const MEASURED_BEFORE_STOP: Duration = Duration::from_secs(2);
/// The longest time between two tries of what fails.
const MOST_PATIENCE: SignedDuration = SignedDuration::from_mins(10);

/// Who changes a sandbox, and what that spares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change<'a> {
    pub(crate) by: By,
    pub(crate) why: &'a str,
    /// Only if it is what it was at this version: whoever changed it since may have given it more time.
    pub(crate) at: Option<u64>,
    /// Only if nothing goes on in it.
    pub(crate) spares_work: bool,
}

impl<'a> Change<'a> {
    pub(crate) fn asked(by: By, why: &'a str) -> Self {
        Self { by, why, at: None, spares_work: false }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stepped {
    Done,
    /// Somebody else was before us, and what was to come comes from there no more.
    Overtaken,
}

enum Performed {
    Done,
    /// The record owes something else by now.
    Otherwise,
}

impl Sandboxes {
    /// The sandbox, running: a look at the slot where it runs already.
    pub(crate) async fn running(&self, slot: &Arc<Slot>, why: &str) -> Result<Arc<dyn Sandbox>> {
        self.taken_up(slot).await?;
        if let Some(live) = slot.live() {
            return Ok(live);
        }
        self.started(slot, why).instrument(debug_span!("start")).await
    }

    async fn started(&self, slot: &Arc<Slot>, why: &str) -> Result<Arc<dyn Sandbox>> {
        let _alone = slot.changing.lock_behind_ends().await;
        self.start_alone(slot, why).await
    }

    /// Under the lock of the slot.
    async fn start_alone(&self, slot: &Arc<Slot>, why: &str) -> Result<Arc<dyn Sandbox>> {
        if let Some(live) = slot.live() {
            return Ok(live); // whoever was before us has done it
        }
        self.check_starts()?;
        // Held until it runs, and is counted by itself.
        let _room = match slot.set_room(None) {
            Some(room) => room,
            None => self.quotas.room(&slot.record(), &slot.wanted()?.sandbox.limits).map_err(Error::Exceeded)?,
        };
        // It may be where it is by what it says, or not: twice, since its files may turn out to be gone.
        for _ in 0..2 {
            let life = slot.record().life();
            match life.state {
                SandboxState::Deleting => return Err(Error::NoSandbox(slot.record().id.clone())),
                SandboxState::Running => self.look_again(slot).await?,
                SandboxState::Archiving if life.phase == Some(Phase::Clear) => self.drive(slot, why).await?,
                _ => {}
            }
            if let Some(live) = slot.live() {
                return Ok(live);
            }
            if let Some(next) = slot.record().life().begin(Operation::Wake, self.hooked(slot)?) {
                self.step(slot, next, why, By::Itself).await?;
            }
            self.drive(slot, why).await?;
            if let Some(live) = slot.live() {
                return Ok(live);
            }
        }
        Err(cabana_sandbox::Error::Gone.into())
    }

    /// What the provider says, where the record may be older.
    async fn look_again(&self, slot: &Arc<Slot>) -> Result<()> {
        let handle = self.reconcile(slot).await?;
        if let (SandboxState::Running, Some(handle)) = (slot.record().state, handle) {
            self.hold(slot, handle);
        }
        Ok(())
    }

    /// Makes the record say what the provider does. What runs or is paused of it has a handle.
    pub(super) async fn reconcile(&self, slot: &Arc<Slot>) -> Result<Option<Arc<dyn Sandbox>>> {
        let record = slot.record();
        let (reality, handle) = self.reality(&record).await?;
        let next = record.life().found(reality, self.hooked(slot)?);
        if next != record.life() {
            let why = match reality {
                Reality::Running => "found running",
                Reality::Paused => "found paused",
                Reality::Stopped => "found stopped: the machine was restarted, or it died",
                Reality::Absent => "its files are not there any more",
                Reality::Saved => "found packed away",
            };
            self.step(slot, next, why, By::Itself).await?;
        }
        self.count(slot);
        if let Some(found) = handle.as_ref().filter(|_| reality == Reality::Running) {
            self.note_stored(&record, found).await;
        }
        Ok(handle)
    }

    async fn reality(&self, record: &Record) -> Result<(Reality, Option<Arc<dyn Sandbox>>)> {
        Ok(match self.provider.attach(&record.physical).await? {
            Found::Running(sandbox) => (Reality::Running, Some(sandbox)),
            Found::Paused(sandbox) => (Reality::Paused, Some(sandbox)),
            Found::Stopped => (Reality::Stopped, None),
            Found::Absent if self.store.blobs().has(&record.physical).await => (Reality::Saved, None),
            Found::Absent => (Reality::Absent, None),
        })
    }

    /// One that runs, and is not paused.
    async fn alive(&self, record: &Record) -> Result<Option<Arc<dyn Sandbox>>> {
        let (reality, handle) = self.reality(record).await?;
        Ok(handle.filter(|_| reality == Reality::Running))
    }

    /// Does what is owed until nothing is. Under the lock of the slot, which no call passes meanwhile.
    pub(super) async fn drive(&self, slot: &Arc<Slot>, why: &str) -> Result<()> {
        let mut handle = None;
        while let Some(phase) = slot.record().phase {
            let life = slot.record().life();
            if matches!(phase, Phase::Make | Phase::Start | Phase::Restore) {
                self.check_starts()?;
            }
            let (next, failed) = match self.perform(slot, phase, &mut handle).await {
                Ok(Performed::Otherwise) => continue,
                Ok(Performed::Done) => match life.done(self.hooked(slot)?) {
                    Some(Then::Becomes(next)) => (next, None),
                    _ => return self.forget(slot).await,
                },
                Err(error) => match life.failed() {
                    Some(next) => (next, Some(error)),
                    None => return self.owe(slot, error).await,
                },
            };
            let stepped = match failed {
                None => self.step(slot, next, why, By::Itself).await?,
                Some(error) => {
                    let error = in_public(error, slot)?;
                    let stepped = self.step(slot, next, &error.to_string(), By::Itself).await?;
                    if !matches!(phase, Phase::AfterStart | Phase::BeforeStop) {
                        return Err(error);
                    }
                    stepped
                }
            };
            if stepped == Stepped::Overtaken {
                continue;
            }
            if next.state == SandboxState::Running {
                let running = match handle.take() {
                    Some(handle) => Some(handle),
                    None => self.alive(&slot.record()).await?,
                };
                if let Some(running) = running {
                    self.hold(slot, running);
                }
            }
        }
        Ok(())
    }

    /// It stays what it is and is tried again, later each time, for ever.
    async fn owe(&self, slot: &Slot, error: Error) -> Result<()> {
        let record = slot.record();
        tracing::warn!(sandbox = %record.id, state = %record.state, tries = record.tries, %error, "an operation has to be tried again");
        let patience = SignedDuration::from_secs(1i64 << record.tries.min(10)).min(MOST_PATIENCE);
        let due = self.clock.now().saturating_add(patience).unwrap_or(Time::MAX);
        if let Some(next) = self.store.trouble(&record.physical, record.version, error.to_string(), due).await? {
            slot.set_record(next);
            self.is_due(due);
        }
        Err(error)
    }

    async fn perform(
        &self,
        slot: &Arc<Slot>,
        phase: Phase,
        handle: &mut Option<Arc<dyn Sandbox>>,
    ) -> Result<Performed> {
        let record = slot.record();
        let physical = &record.physical;
        match phase {
            Phase::Make => {
                // What is there already is a sandbox that a crash kept from being recorded.
                let found = match slot.was_new() {
                    true => Found::Absent,
                    false => self.provider.attach(physical).await?,
                };
                let made = match found {
                    Found::Absent => {
                        // The record keeps what is said, and its tenant reads it.
                        self.keeper.space.check().map_err(|error| error.told_to(Role::Use))?;
                        let spec = self.spec_of(slot).await?;
                        self.provider.create(physical, &spec).await.map_err(mounts::in_public)?
                    }
                    Found::Running(sandbox) => sandbox,
                    Found::Paused(_) | Found::Stopped => {
                        self.provider.start(physical).await.map_err(mounts::in_public)?
                    }
                };
                self.note_stored(&record, &made).await;
                *handle = Some(made);
                fault::at(Point::SandboxMade);
            }
            Phase::Start => {
                // What the operator allowed then may be forbidden by now.
                let forbidden = slot.wanted()?.mounts.check(&record.tenant, self.settings()).err();
                if let Some(forbidden) = forbidden
                    && let Found::Stopped = self.provider.attach(physical).await?
                {
                    return Err(forbidden);
                }
                let started = match self.provider.start(physical).await {
                    Err(cabana_sandbox::Error::NoSandbox(_)) => return self.begin_anew(slot).await,
                    started => started.map_err(mounts::in_public)?,
                };
                self.note_stored(&record, &started).await;
                *handle = Some(started);
                fault::at(Point::SandboxWoken);
            }
            Phase::AfterStart | Phase::BeforeStop => {
                let sandbox = match handle.clone() {
                    Some(sandbox) => Some(sandbox),
                    None => self.alive(&record).await?,
                };
                if let (Some(sandbox), Some(hook)) = (&sandbox, self.hook(slot, phase)?) {
                    let told = hooks::run_hook(&**sandbox, phase, &hook, &slot.wanted()?.env).await;
                    self.tell_of(&record.tenant, &record.id, told);
                }
                *handle = sandbox;
            }
            Phase::Stop => {
                let running = match handle.clone() {
                    Some(sandbox) => Some(sandbox),
                    None => self.alive(&record).await?,
                };
                if let Some(sandbox) = running {
                    self.note_stored(&record, &sandbox).await;
                }
                // What takes longer is measured while it stops, and after.
                let _ = timeout(MEASURED_BEFORE_STOP, self.measure_one(slot)).await;
                self.provider.stop(physical).await?;
                fault::at(Point::SandboxStopped);
            }
            Phase::Pause => {
                self.provider.pause(physical).await?;
                fault::at(Point::SandboxPaused);
            }
            Phase::Save => {
                self.provider.stop(physical).await?;
                let saved = self.provider.save(physical).await?.map_err(Error::from).boxed();
                self.store.blobs().keep(physical, saved).await?;
                fault::at(Point::SandboxSaved);
            }
            Phase::Clear => {
                self.provider.shelve(physical).await?;
                self.went();
                fault::at(Point::SandboxCleared);
            }
            Phase::Restore => {
                if let Found::Absent = self.provider.attach(physical).await? {
                    let saved = self.store.blobs().read(physical).await?.ok_or_else(|| {
                        cabana_sandbox::Error::failed("bringing it back", "its archive is not there any more")
                    })?;
                    let saved = saved.map_err(|error| cabana_sandbox::Error::failed("reading an archive", error));
                    let spec = self.spec_of(slot).await?;
                    let restored = self.provider.restore(physical, &spec, saved.boxed()).await;
                    for what in restored.map_err(mounts::in_public)? {
                        tracing::warn!(sandbox = %record.id, what, "lost from a sandbox that was brought back");
                    }
                }
                fault::at(Point::SandboxRestored);
            }
            Phase::DropSaved => self.store.blobs().remove(physical).await?,
            Phase::Destroy => {
                fault::at(Point::SandboxDeleting);
                self.provider.destroy(physical).await?;
                self.went();
                fault::at(Point::SandboxDestroyed);
            }
            Phase::Forget => self.store.blobs().remove(physical).await?,
        }
        Ok(Performed::Done)
    }

    /// What was asked for, with what its mounts lead to now.
    async fn spec_of(&self, slot: &Slot) -> Result<SandboxSpec> {
        let wanted = slot.wanted()?;
        let record = slot.record();
        let views = self.views(&record.tenant, &wanted.mounts).await?;
        let tenant = Some(record.tenant.as_str().to_owned());
        Ok(SandboxSpec { views, tenant, ..wanted.sandbox.clone() })
    }

    /// One whose files are gone begins like a new one, and its record says so. One that is packed away is brought back: a backup
    /// may have its archive, and a record that is a moment older.
    async fn begin_anew(&self, slot: &Arc<Slot>) -> Result<Performed> {
        let hooked = self.hooked(slot)?;
        let (reality, _) = self.reality(&slot.record()).await?;
        let gone = slot.record().life().found(reality, hooked);
        let (found, next) = match reality {
            Reality::Saved => ("found packed away", "brought back"),
            _ => ("its files are not there any more", "made again, since its files were gone"),
        };
        self.step(slot, gone, found, By::Itself).await?;
        if let Some(again) = slot.record().life().begin(Operation::Wake, hooked) {
            self.step(slot, again, next, By::Itself).await?;
        }
        Ok(Performed::Otherwise)
    }

    fn hook(&self, slot: &Slot, phase: Phase) -> Result<Option<Hook>> {
        let lifecycle = self.lifecycle(slot)?;
        Ok(if phase == Phase::AfterStart { lifecycle.after_start } else { lifecycle.before_stop })
    }

    /// What was asked, and what the settings say of the rest.
    pub(crate) fn lifecycle(&self, slot: &Slot) -> Result<Lifecycle> {
        let wanted = slot.wanted()?;
        Ok(self.lifecycle_of(&wanted))
    }

    pub(crate) fn lifecycle_of(&self, wanted: &Wanted) -> Lifecycle {
        let dialect = self.dialect_of(wanted).map(|dialect| &dialect.lifecycle);
        let asked = wanted.lifecycle.clone();
        dialect.into_iter().chain([&self.settings.lifecycle]).fold(asked, Lifecycle::or)
    }

    fn hooked(&self, slot: &Slot) -> Result<Hooked> {
        Ok(self.lifecycle(slot)?.hooked())
    }

    /// Whether it may run, before anything is begun for that: the place where a session gets its sandbox (LB-13). `None`: it does.
    pub(crate) fn make_room(&self, slot: &Slot) -> Result<Option<Room>> {
        if slot.live().is_some() {
            return Ok(None);
        }
        self.quotas.room(&slot.record(), &slot.wanted()?.sandbox.limits).map(Some).map_err(Error::Exceeded)
    }

    /// Against the quotas, as what it is by now. One that is paused has its memory still, and one that is on its way has what
    /// it had.
    fn count(&self, slot: &Slot) {
        use SandboxState as S;
        let record = slot.record();
        match (record.state, slot.wanted()) {
            (S::Running | S::Paused | S::Pausing | S::Stopping, Ok(wanted)) => {
                self.quotas.runs(&record, &wanted.sandbox.limits);
            }
            (S::Stopped | S::Failed | S::Archiving | S::Archived | S::Restoring, _) => {
                self.quotas.rests(&record.physical);
            }
            (S::Provisioning | S::Waking | S::Deleting, _) => {}
            (_, Err(error)) => tracing::error!(%error, "a sandbox is counted in no quota"),
        }
    }

    pub(super) fn hold(&self, slot: &Arc<Slot>, sandbox: Arc<dyn Sandbox>) {
        self.count(slot);
        slot.used();
        slot.set_live(Some(sandbox));
        slot.set_room(None); // of another who was about to do the same
        self.slots(|slots| slots.live.insert(slot.record().physical.clone(), slot.clone()));
    }

    pub(super) fn let_go(&self, slot: &Slot) {
        slot.set_live(None);
        slot.set_room(None);
        self.slots(|slots| slots.rests(&slot.record().physical));
    }

    /// To stop, pause, pack away or delete it. False: it is spared, or is that already.
    ///
    /// Calls that come meanwhile find nothing that runs, and wait at the lock. So what goes on was there before, and is seen.
    pub(crate) async fn end(&self, slot: &Arc<Slot>, operation: Operation, change: Change<'_>) -> Result<bool> {
        // Whoever is refused for another's lease must not have the changes of its holder refused.
        let overtakes = change.at.is_none() && !slot.is_leased_to_another(change.by);
        let _alone = match operation {
            Operation::Stop | Operation::Delete if overtakes => slot.changing.lock_to_end().await,
            Operation::Pause => slot.changing.lock_to_change().await?,
            _ => slot.changing.lock().await,
        };
        self.end_alone(slot, operation, change).await
    }

    /// Under the lock of the slot.
    pub(super) async fn end_alone(&self, slot: &Arc<Slot>, operation: Operation, change: Change<'_>) -> Result<bool> {
        if slot.is_deleting() {
            return Err(Error::NoSandbox(slot.record().id.clone()));
        }
        let live = slot.set_live(None);
        let spared = change.at.is_some_and(|version| slot.record().version != version)
            || change.spares_work && !slot.work().is_none();
        let begun = match slot.record().life().begin(operation, self.hooked(slot)?) {
            Some(next) if !spared => {
                self.step(slot, next, change.why, change.by).await.map(|stepped| stepped == Stepped::Done)
            }
            _ => Ok(false),
        };
        if !matches!(begun, Ok(true)) {
            slot.set_live(live.filter(|_| slot.record().state == SandboxState::Running));
            return begun;
        }
        self.let_go(slot);
        self.drive(slot, change.why).await.map(|()| true)
    }

    /// Files are kept. False: it was stopped.
    pub(crate) async fn stop(&self, slot: &Arc<Slot>, change: Change<'_>) -> Result<bool> {
        self.end(slot, Operation::Stop, change).await
    }

    /// Memory is kept.
    pub(crate) async fn pause(&self, slot: &Arc<Slot>, change: Change<'_>) -> Result<()> {
        let done = self.end(slot, Operation::Pause, change).await?;
        match slot.record().state {
            SandboxState::Paused => Ok(()),
            state if !done => {
                Err(Error::invalid("sandbox", format!("is {state}, and only a running one can be paused")))
            }
            _ => Ok(()),
        }
    }

    /// Its files are packed away.
    pub(crate) async fn archive(&self, slot: &Arc<Slot>, change: Change<'_>) -> Result<()> {
        let _alone = slot.changing.lock_behind_ends().await;
        self.end_alone(slot, Operation::Stop, change).await?;
        self.end_alone(slot, Operation::Archive, change).await?;
        match slot.record().state {
            SandboxState::Archived => Ok(()),
            state => Err(Error::invalid("sandbox", format!("is {state}, and only a stopped one can be archived"))),
        }
    }

    /// Nothing is started for it, and it stays what it is; one that is packed away is brought back.
    pub(crate) async fn snapshot(&self, slot: &Arc<Slot>, name: SnapshotId) -> Result<()> {
        let _alone = slot.changing.lock_to_change().await?;
        if matches!(slot.record().state, SandboxState::Archived | SandboxState::Archiving | SandboxState::Restoring) {
            self.start_alone(slot, "its files are wanted").await?;
        }
        let record = slot.record();
        match record.state {
            SandboxState::Deleting => Err(Error::NoSandbox(record.id.clone())),
            SandboxState::Provisioning | SandboxState::Failed => {
                Err(Error::invalid("sandbox", format!("is {}, and has no files yet: start it first", record.state)))
            }
            _ => self.provider.snapshot(&record.physical, name).await.map(drop).map_err(|error| match error {
                cabana_sandbox::Error::NoSandbox(_) => Error::NoSandbox(record.id.clone()),
                error => error.into(),
            }),
        }
    }

    /// The record goes last: whatever ends us before is picked up by the next one.
    pub(crate) async fn delete(&self, slot: &Arc<Slot>, change: Change<'_>) -> Result<()> {
        match self.end(slot, Operation::Delete, change).await {
            Err(Error::NoSandbox(_)) => self.finish_delete(slot).await,
            ended => ended.map(drop),
        }
    }

    pub(crate) async fn finish_delete(&self, slot: &Arc<Slot>) -> Result<()> {
        let _alone = slot.changing.lock().await;
        self.let_go(slot);
        match self.store.by_physical(&slot.record().physical).await? {
            Some(record) => slot.set_record(record),
            None => return Ok(()), // whoever was before us has done it
        }
        self.drive(slot, "it is being deleted").await
    }

    async fn forget(&self, slot: &Slot) -> Result<()> {
        let record = slot.record();
        slot.set_room(None);
        self.quotas.rests(&record.physical);
        self.store.remove(&record.physical).await?;
        self.slots(|slots| slots.forget(&record));
        Ok(())
    }

    /// What is owed and nobody does. False: somebody is at it.
    pub(crate) async fn resume(&self, slot: &Arc<Slot>) -> Result<bool> {
        let Ok(_alone) = slot.changing.try_lock() else { return Ok(false) };
        let record = slot.record();
        if record.phase.is_none() {
            return Ok(false);
        }
        if record.state != SandboxState::Deleting {
            self.look_again(slot).await?;
        }
        let record = slot.record();
        if record.phase.is_none() {
            return Ok(true);
        }
        let starts =
            matches!(record.state, SandboxState::Provisioning | SandboxState::Waking | SandboxState::Restoring);
        let _room = match slot.set_room(None) {
            None if starts => match self.quotas.room(&record, &slot.wanted()?.sandbox.limits) {
                Ok(room) => Some(room),
                // Nobody waits for it: it can wait for room.
                Err(_) => return Ok(false),
            },
            room => room,
        };
        self.let_go(slot);
        self.drive(slot, "gone on with").await?;
        Ok(true)
    }

    /// What the provider tells of by itself.
    pub(crate) async fn happened(&self, physical: &SandboxId, event: SandboxEvent) {
        let Some(slot) = self.of_physical(physical) else { return };
        let event = match event {
            SandboxEvent::Died => {
                let _alone = slot.changing.lock().await;
                if slot.live().is_some() && slot.record().state == SandboxState::Running {
                    self.let_go(&slot);
                    let stopped = Life { state: SandboxState::Stopped, phase: None };
                    if let Err(error) = self.step(&slot, stopped, "it died", By::Itself).await {
                        tracing::error!(sandbox = %physical, %error, "the end of a sandbox could not be recorded");
                    }
                }
                return;
            }
            SandboxEvent::OutOfMemory(_) => Event::OutOfMemory,
            SandboxEvent::DiskFull => {
                Event::DiskFull { reason: "its own files have reached their limit on the disk".to_owned() }
            }
            SandboxEvent::BaseChanged { was, now } => Event::BaseChanged { was, now },
            SandboxEvent::Network { host, port, allowed: true, rule, reason } => {
                Event::NetworkAllowed { host, port, rule, reason }
            }
            SandboxEvent::Network { host, port, allowed: false, rule, reason } => {
                Event::NetworkDenied { host, port, rule, reason }
            }
        };
        let record = slot.record();
        self.tell_of(&record.tenant, &record.id, event);
    }

    /// Under the lock of the slot. What the slot knew may be older than that: then it is looked up, and tried once more.
    pub(super) async fn step(&self, slot: &Slot, to: Life, why: &str, by: By) -> Result<Stepped> {
        for _ in 0..2 {
            let record = slot.record();
            let at = self.clock.now();
            let next = Transition {
                physical: record.physical.clone(),
                version: record.version,
                to,
                why: why.to_owned(),
                at,
                active: slot.active(),
                due: self.due_of(slot, to, at)?,
                by,
            };
            match self.store.transition(next).await? {
                Moved::To(next) => {
                    self.tell(&next);
                    if let Some(due) = next.due {
                        self.is_due(due);
                    }
                    slot.set_record(*next);
                    self.count(slot);
                    return Ok(Stepped::Done);
                }
                Moved::Busy(lease) => return Err(self.busy(slot, lease)),
                Moved::Stale => {}
            }
            let now = self.store.by_physical(&record.physical).await?;
            slot.set_record(now.ok_or_else(|| Error::NoSandbox(record.id.clone()))?);
            if slot.is_deleting() {
                return Err(Error::NoSandbox(record.id.clone()));
            }
        }
        Ok(Stepped::Overtaken)
    }

    /// When it has to be looked at, once it is this.
    fn due_of(&self, slot: &Slot, life: Life, at: Time) -> Result<Option<Time>> {
        if life.phase.is_some() {
            return Ok(at.checked_add(TAKEN_OVER).ok());
        }
        let facts = Facts { state: life.state, started: at, work: Work::default(), ..self.facts(slot) };
        Ok(match self.lifecycle(slot)?.decide(&facts, at) {
            Verdict::Now(_) => Some(at),
            Verdict::At(time) => Some(time),
            Verdict::Never => None,
        })
    }

    pub(crate) fn facts(&self, slot: &Slot) -> Facts {
        let record = slot.record();
        Facts {
            state: record.state,
            created: record.created,
            started: record.started.unwrap_or(record.created),
            active: slot.active(),
            work: slot.work(),
        }
    }

    /// When it is to be looked at, if it is still what it was.
    pub(crate) async fn look_at(&self, slot: &Slot, version: u64, due: Option<Time>) -> Result<()> {
        let record = slot.record();
        self.store.set_due(&record.physical, version, due).await?;
        slot.set_due(version, due);
        Ok(())
    }

    /// Other limits, another network, other variables: of the sandbox first, and then of its record. What is altered is what those
    /// before it in the line have left. `sent`: how many bytes of it came with the request.
    pub(crate) async fn change<T>(
        &self,
        slot: &Slot,
        sent: usize,
        alter: impl FnOnce(&mut Wanted) -> Result<T>,
    ) -> Result<T> {
        self.taken_up(slot).await?;
        let _alone = slot.changing.lock_to_change().await?;
        let (record, was) = (slot.record(), slot.wanted()?);
        let (tenant, length) = (&record.tenant, record.spec.len());
        let cloned = was.clone();
        let mut wanted = off_if_long(tenant, length, move || Wanted::clone(&cloned)).await?;
        let altered = alter(&mut wanted)?;
        let write = move || wanted.to_spec().map(|spec| (spec, wanted));
        let (spec, wanted) = off_if_long(tenant, length + sent, write).await??;
        let (mut resized, mut _grown) = (None, None);
        let limits = wanted.sandbox.limits;
        let sandbox = match wanted.sandbox != was.sandbox {
            true => Some(slot.live().ok_or(cabana_sandbox::Error::Gone)?), // somebody may have stopped it meanwhile
            false => None,
        };
        if sandbox.is_some() {
            resized = Some(self.quotas.resize(&slot.record(), &limits).map_err(Error::Exceeded)?);
            _grown = self.grow(slot, was.sandbox.limits.disk, limits.disk).await?;
        }
        // First what is most likely to be refused.
        let mounted = wanted.mounts != was.mounts;
        if mounted {
            self.show(slot, &wanted.mounts).await?;
        }
        if let Some(sandbox) = sandbox {
            let rest = async {
                sandbox.update(Update::Limits(limits)).await?;
                sandbox.update(Update::Network(wanted.sandbox.network.clone())).await
            };
            if let Err(error) = rest.await {
                if mounted {
                    self.show(slot, &was.mounts).await?;
                }
                return Err(error.into());
            }
        }
        fault::at(Point::SandboxChanged);
        let record = slot.record();
        // It may be due at another time by now: somebody looks at once.
        let now = self.clock.now();
        let next = self.store.change_spec(&record.physical, record.version, spec, limits.disk, now).await?;
        slot.set_changed(next.ok_or_else(|| Error::NoSandbox(record.id.clone()))?, wanted);
        if let Some(resized) = resized {
            resized.done();
        }
        self.sooner.notify_one();
        Ok(altered)
    }

    /// Room for a larger disk, until its record says so.
    async fn grow(&self, slot: &Slot, from: Option<u64>, to: Option<u64>) -> Result<Option<Pass>> {
        if amount(to) <= amount(from) {
            return Ok(None);
        }
        let record = slot.record();
        let grow = self.quotas.grow(&record, from, to);
        self.store.held_while(&record.tenant, record.key, grow).await?.map(Some).map_err(Error::Exceeded)
    }

    /// What the files of those take that run, of one tenant. The rest was measured when it stopped.
    pub(crate) async fn measure(&self, tenant: &Tenant) {
        for slot in self.all_live().iter().filter(|slot| slot.record().tenant == *tenant) {
            self.measure_one(slot).await;
        }
    }

    /// Where somebody has to know it. What has begun goes on though nobody waits for it any more: whoever is stopped is not measured
    /// again, and what its files take counts until it goes.
    pub(crate) async fn measure_one(&self, slot: &Slot) {
        let record = slot.record();
        if !self.quotas.measures(&record.tenant) {
            return;
        }
        let sandbox = match slot.live() {
            Some(live) => Some(live),
            None => self.alive(&record).await.ok().flatten(),
        };
        let Some(sandbox) = sandbox else { return }; // what it took was measured when it stopped
        let Some(walk) = slot.walks.begin() else {
            tracing::warn!(sandbox = %record.id, "what a sandbox stores is not measured again before that has ended");
            return;
        };
        let (store, closing) = (self.store.clone(), self.closing.clone());
        let measured = self.tasks.spawn(async move {
            let measure = async {
                let usage = sandbox.usage().await?;
                Ok::<_, Error>(walk.record(store.set_stored(&record.physical, usage.disk)).await?)
            };
            if let Some(Err(error)) = closing.run_until_cancelled(measure).await {
                tracing::warn!(sandbox = %record.id, %error, "what a sandbox stores could not be measured");
            }
        });
        let _ = measured.await;
    }

    /// Of one that runs, and of one that does not: nothing is started for it, so that one whose mounts are gone has a way out.
    async fn show(&self, slot: &Slot, mounts: &Mounts) -> Result<()> {
        let record = slot.record();
        let views = self.views(&record.tenant, mounts).await?;
        let shown = match slot.live() {
            Some(sandbox) => sandbox.update(Update::Views(views)).await,
            None => self.provider.set_views(&record.physical, &views).await,
        };
        match shown {
            // It has no files that something could be shown beside: what is asked for comes with them.
            Err(cabana_sandbox::Error::NoSandbox(_)) => Ok(()),
            shown => shown.map_err(mounts::in_public),
        }
    }

    /// It was used just now.
    pub(crate) async fn touch(&self, slot: &Slot) {
        let now = slot.used();
        if slot.touch(now.as_second())
            && let Err(error) = self.store.touch(&slot.record().physical, now).await
        {
            tracing::warn!(%error, "the use of a sandbox could not be written down");
        }
    }

    pub(crate) fn tell(&self, record: &Record) {
        if let Some(event) = Event::of(record.life(), &record.why) {
            let (tenant, sandbox) = (record.tenant.clone(), Some(record.id.clone()));
            self.events.tell(Happened { id: record.event_id(), at: record.changed, tenant, sandbox, event });
        }
    }

    pub(crate) fn tell_of(&self, tenant: &Tenant, sandbox: &SandboxId, event: Event) {
        let (id, at, sandbox) = (Uuid::now_v7(), self.clock.now(), Some(sandbox.clone()));
        self.events.tell(Happened { id, at, tenant: tenant.clone(), sandbox, event });
    }
}

/// The provider's own name of a snapshot is nobody's business.
fn in_public(error: Error, slot: &Slot) -> Result<Error> {
    use cabana_sandbox::Error as Inner;
    Ok(match (error, slot.wanted()?.snapshot) {
        (Error::Sandbox(Inner::NoSnapshot(_)), Some(id)) => Error::NoSnapshot(id),
        (Error::Sandbox(Inner::BadTemplate { why, .. }), Some(id)) => {
            Inner::BadTemplate { name: id.to_string(), why }.into()
        }
        (error, _) => error,
    })
}
