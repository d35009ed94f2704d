//! Making, starting, stopping and ending.

use std::sync::Arc;

use cabana_model::{SandboxId, SandboxState, SnapshotId, Tenant};
use cabana_sandbox::{Found, Sandbox, SandboxEvent, SandboxSpec, Wanted as Update};
use cabana_store::{Record, Transition};
use tracing::{Instrument as _, debug_span};
use uuid::Uuid;

use super::{Sandboxes, Slot, Wanted};
use crate::{
    Error, Result,
    events::{Event, Happened},
    fault::{self, Point},
    mounts,
};

impl Sandboxes {
    /// The sandbox, running: a look at the slot where it runs already.
    pub(crate) async fn running(&self, slot: &Arc<Slot>, why: &str) -> Result<Arc<dyn Sandbox>> {
        if let Some(live) = slot.live() {
            return Ok(live);
        }
        self.started(slot, why).instrument(debug_span!("start")).await
    }

    async fn started(&self, slot: &Arc<Slot>, why: &str) -> Result<Arc<dyn Sandbox>> {
        let _alone = slot.changing.lock().await;
        if let Some(live) = slot.live() {
            return Ok(live); // whoever was before us has done it
        }
        let record = slot.record();
        let sandbox = match record.state {
            SandboxState::Deleting => return Err(Error::NoSandbox(record.id.clone())),
            SandboxState::Provisioning | SandboxState::Failed => self.make(slot, &record, why).await?,
            SandboxState::Running | SandboxState::Paused | SandboxState::Stopped => {
                self.wake(slot, &record, why).await?
            }
        };
        self.hold(slot, sandbox.clone());
        Ok(sandbox)
    }

    /// What is there already is a sandbox that a crash kept from being recorded.
    async fn make(&self, slot: &Slot, record: &Record, why: &str) -> Result<Arc<dyn Sandbox>> {
        let wanted = slot.wanted()?;
        let made = match self.provider.attach(&record.physical).await? {
            Found::Absent => self.create(record, &wanted).await,
            Found::Running(sandbox) => Ok(sandbox),
            Found::Paused | Found::Stopped => self.provider.start(&record.physical).await.map_err(mounts::in_public),
        };
        match made {
            Ok(sandbox) => {
                fault::at(Point::SandboxMade);
                self.step(slot, SandboxState::Running, why).await.map(|()| sandbox)
            }
            Err(error) => {
                let error = in_public(error, wanted.snapshot);
                self.step(slot, SandboxState::Failed, &error.to_string()).await?;
                Err(error)
            }
        }
    }

    async fn create(&self, record: &Record, wanted: &Wanted) -> Result<Arc<dyn Sandbox>> {
        let views = self.views(&record.tenant, &wanted.mounts).await?;
        let spec = SandboxSpec { views, ..wanted.sandbox.clone() };
        self.provider.create(&record.physical, &spec).await.map_err(mounts::in_public)
    }

    async fn wake(&self, slot: &Slot, record: &Record, why: &str) -> Result<Arc<dyn Sandbox>> {
        let sandbox = match self.provider.attach(&record.physical).await? {
            Found::Running(sandbox) => sandbox,
            Found::Paused => self.provider.start(&record.physical).await?,
            Found::Stopped => {
                // What the operator allowed then may be forbidden by now.
                slot.wanted()?.mounts.check(&record.tenant, self.settings())?;
                self.provider.start(&record.physical).await.map_err(mounts::in_public)?
            }
            Found::Absent => {
                self.step(slot, SandboxState::Failed, "its files are not there any more").await?;
                return self.make(slot, &slot.record(), "made again, since its files were gone").await;
            }
        };
        if record.state != SandboxState::Running {
            fault::at(Point::SandboxWoken);
            self.step(slot, SandboxState::Running, why).await?;
        }
        Ok(sandbox)
    }

    fn hold(&self, slot: &Arc<Slot>, sandbox: Arc<dyn Sandbox>) {
        slot.set_live(Some(sandbox));
        self.slots(|slots| slots.live.insert(slot.record().physical.clone(), slot.clone()));
    }

    fn let_go(&self, slot: &Slot) {
        slot.set_live(None);
        self.slots(|slots| slots.live.remove(&slot.record().physical));
    }

    /// Files are kept.
    pub(crate) async fn stop(&self, slot: &Slot, why: &str) -> Result<()> {
        let _alone = slot.changing.lock().await;
        let record = slot.record();
        match record.state {
            SandboxState::Running | SandboxState::Paused => {
                self.provider.stop(&record.physical).await?;
                fault::at(Point::SandboxStopped);
                self.let_go(slot);
                self.step(slot, SandboxState::Stopped, why).await
            }
            SandboxState::Provisioning | SandboxState::Stopped | SandboxState::Failed => Ok(()),
            SandboxState::Deleting => Err(Error::NoSandbox(record.id.clone())),
        }
    }

    /// Memory is kept.
    pub(crate) async fn pause(&self, slot: &Slot, why: &str) -> Result<()> {
        let _alone = slot.changing.lock().await;
        let record = slot.record();
        match record.state {
            SandboxState::Running => {
                self.provider.pause(&record.physical).await?;
                fault::at(Point::SandboxPaused);
                self.let_go(slot);
                self.step(slot, SandboxState::Paused, why).await
            }
            SandboxState::Paused => Ok(()),
            SandboxState::Deleting => Err(Error::NoSandbox(record.id.clone())),
            SandboxState::Provisioning | SandboxState::Stopped | SandboxState::Failed => {
                Err(Error::invalid("sandbox", format!("is {}, and only a running one can be paused", record.state)))
            }
        }
    }

    /// Nothing is started for it, and it stays what it is.
    pub(crate) async fn snapshot(&self, slot: &Slot, name: SnapshotId) -> Result<()> {
        let _alone = slot.changing.lock().await;
        let record = slot.record();
        match record.state {
            SandboxState::Running | SandboxState::Paused | SandboxState::Stopped => {
                self.provider.snapshot(&record.physical, name).await.map(drop).map_err(|error| match error {
                    cabana_sandbox::Error::NoSandbox(_) => Error::NoSandbox(record.id.clone()),
                    error => error.into(),
                })
            }
            SandboxState::Deleting => Err(Error::NoSandbox(record.id.clone())),
            SandboxState::Provisioning | SandboxState::Failed => {
                Err(Error::invalid("sandbox", format!("is {}, and has no files yet: start it first", record.state)))
            }
        }
    }

    /// The record goes last: whatever ends us before is picked up by the next one.
    pub(crate) async fn delete(&self, slot: &Slot, why: &str) -> Result<()> {
        {
            let _alone = slot.changing.lock().await;
            if !slot.is_deleting() {
                self.step(slot, SandboxState::Deleting, why).await?;
            }
        }
        self.finish_delete(slot).await
    }

    pub(crate) async fn finish_delete(&self, slot: &Slot) -> Result<()> {
        let _alone = slot.changing.lock().await;
        let record = slot.record();
        fault::at(Point::SandboxDeleting);
        self.provider.destroy(&record.physical).await?;
        fault::at(Point::SandboxDestroyed);
        self.let_go(slot);
        self.went();
        self.store.remove(&record.physical).await?;
        self.slots(|slots| {
            slots.by_physical.remove(&record.physical);
            slots.by_id.remove(&(record.tenant.clone(), record.id.clone()));
            if let Some(scope) = &record.scope {
                slots.by_scope.remove(&super::scope_key(&record.tenant, scope));
            }
        });
        Ok(())
    }

    /// What became of it while there was no server. Nothing is started for it. False: it was never made.
    pub(crate) async fn found_again(&self, slot: &Arc<Slot>) -> Result<bool> {
        let _alone = slot.changing.lock().await;
        let record = slot.record();
        let found = self.provider.attach(&record.physical).await?;
        if let (SandboxState::Provisioning, Found::Absent) = (record.state, &found) {
            return Ok(false);
        }
        match (record.state, found) {
            (SandboxState::Failed, Found::Absent) => Ok(()),
            (_, Found::Absent) => self.step(slot, SandboxState::Failed, "its files are not there any more").await,
            (state, Found::Running(sandbox)) => {
                self.hold(slot, sandbox);
                match state {
                    SandboxState::Running => Ok(()),
                    _ => self.step(slot, SandboxState::Running, "found running").await,
                }
            }
            (SandboxState::Running, Found::Paused) => self.step(slot, SandboxState::Paused, "found paused").await,
            (SandboxState::Running | SandboxState::Paused, Found::Stopped) => {
                self.step(slot, SandboxState::Stopped, "found stopped: the machine was restarted, or it died").await
            }
            _ => Ok(()),
        }
        .map(|()| true)
    }

    /// What the provider tells of by itself.
    pub(crate) async fn happened(&self, physical: &SandboxId, event: SandboxEvent) {
        let Some(slot) = self.of_physical(physical) else { return };
        let event = match event {
            SandboxEvent::Died => {
                let _alone = slot.changing.lock().await;
                if slot.live().is_some() && slot.record().state == SandboxState::Running {
                    self.let_go(&slot);
                    if let Err(error) = self.step(&slot, SandboxState::Stopped, "it died").await {
                        tracing::error!(sandbox = %physical, %error, "the end of a sandbox could not be recorded");
                    }
                }
                return;
            }
            SandboxEvent::OutOfMemory(_) => Event::OutOfMemory,
            SandboxEvent::DiskFull => Event::DiskFull,
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
    async fn step(&self, slot: &Slot, to: SandboxState, why: &str) -> Result<()> {
        for _ in 0..2 {
            let Record { physical, version, tenant, id, .. } = &*slot.record();
            let (physical, version) = (physical.clone(), *version);
            let next = Transition { physical, version, to, why: why.to_owned(), at: self.clock.now() };
            if let Some(next) = self.store.transition(next).await? {
                self.tell(&next);
                slot.set_record(next);
                return Ok(());
            }
            let now = self.store.sandbox(tenant, id).await?.ok_or_else(|| Error::NoSandbox(id.clone()))?;
            slot.set_record(now);
        }
        let was = format!("it is {} by now, and not to become {to}", slot.record().state);
        Err(cabana_sandbox::Error::failed("changing the sandbox's record", was).into())
    }

    /// Other limits, another network, other variables: of the sandbox first, and then of its record.
    pub(crate) async fn change(&self, slot: &Slot, alter: impl FnOnce(&mut Wanted)) -> Result<()> {
        let _alone = slot.changing.lock().await;
        let sandbox = slot.live().ok_or(cabana_sandbox::Error::Gone)?; // somebody may have stopped it meanwhile
        let was = slot.wanted()?;
        let mut wanted = was.clone();
        alter(&mut wanted);
        // First what is most likely to be refused.
        let mounted = wanted.mounts != was.mounts;
        let tenant = &slot.record().tenant.clone();
        if mounted {
            let views = self.views(tenant, &wanted.mounts).await?;
            sandbox.update(Update::Views(views)).await.map_err(mounts::in_public)?;
        }
        let rest = async {
            sandbox.update(Update::Limits(wanted.sandbox.limits)).await?;
            sandbox.update(Update::Network(wanted.sandbox.network.clone())).await
        };
        if let Err(error) = rest.await {
            if mounted {
                sandbox.update(Update::Views(self.views(tenant, &was.mounts).await?)).await?;
            }
            return Err(error.into());
        }
        self.changed(slot, &wanted).await
    }

    /// Of one that runs, and of one that does not: nothing is started for it.
    pub(crate) async fn change_mounts(&self, slot: &Slot, alter: impl FnOnce(&mut Wanted)) -> Result<()> {
        let _alone = slot.changing.lock().await;
        let record = slot.record();
        let mut wanted = slot.wanted()?;
        alter(&mut wanted);
        let views = self.views(&record.tenant, &wanted.mounts).await?;
        match record.state {
            SandboxState::Deleting => return Err(Error::NoSandbox(record.id.clone())),
            // It has nothing yet that could be shown to it.
            SandboxState::Provisioning | SandboxState::Failed => {}
            SandboxState::Running | SandboxState::Paused | SandboxState::Stopped => {
                self.provider.set_views(&record.physical, &views).await.map_err(mounts::in_public)?;
            }
        }
        self.changed(slot, &wanted).await
    }

    /// Under the lock of the slot.
    async fn changed(&self, slot: &Slot, wanted: &Wanted) -> Result<()> {
        fault::at(Point::SandboxChanged);
        let spec = serde_json::to_string(wanted).map_err(|error| Error::invalid("spec", error.to_string()))?;
        let record = slot.record();
        let next = self.store.change_spec(&record.physical, record.version, spec).await?;
        slot.set_record(next.ok_or_else(|| Error::NoSandbox(record.id.clone()))?);
        Ok(())
    }

    /// It was used just now.
    pub(crate) async fn touch(&self, slot: &Slot) {
        let now = self.clock.now();
        if slot.touch(now.as_second())
            && let Err(error) = self.store.touch(&slot.record().physical, now).await
        {
            tracing::warn!(%error, "the use of a sandbox could not be written down");
        }
    }

    pub(super) fn tell(&self, record: &Record) {
        self.tell_of(&record.tenant, &record.id, Event::of(record.state, &record.why));
    }

    pub(crate) fn tell_of(&self, tenant: &Tenant, sandbox: &SandboxId, event: Event) {
        let (id, at) = (Uuid::now_v7(), self.clock.now());
        self.events.tell(Happened { id, at, tenant: tenant.clone(), sandbox: sandbox.clone(), event });
    }
}

/// The provider's own name of a snapshot is nobody's business.
fn in_public(error: Error, snapshot: Option<SnapshotId>) -> Error {
    use cabana_sandbox::Error as Inner;
    match (error, snapshot) {
        (Error::Sandbox(Inner::NoSnapshot(_)), Some(id)) => Error::NoSnapshot(id),
        (Error::Sandbox(Inner::BadTemplate { why, .. }), Some(id)) => {
            Inner::BadTemplate { name: id.to_string(), why }.into()
        }
        (error, _) => error,
    }
}
