//! From nothing to a sandbox and back: whoever changes what one is holds its slot meanwhile.

use std::{io, sync::Arc};

use cabana_sandbox::{Error, Found, Result, Sandbox, SandboxEvent, SandboxId, SandboxSpec, State};
use futures_util::future::Either;

use super::{Shared, Slot, blocking, found::Taken, launch::Prepared};
use crate::{
    fault::{self, Point},
    home::{Home, Owned},
    live::{Holds, Live},
    presence,
    sandbox::EngineSandbox,
    snapshot,
};

impl Shared {
    pub(super) async fn create(self: Arc<Self>, id: SandboxId, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        let slot = self.slot(&id);
        let mut held = slot.lock().await;
        let made = self.take_up_or(&id, &mut held, move |shared, id, _| shared.prepare_new(id, spec));
        let created = match made.await {
            Ok(Either::Left(live)) => Ok(live),
            Ok(Either::Right(prepared)) => self.launch_new(&id, prepared).await,
            Err(error) => Err(error),
        };
        self.settle(&id, held, &slot, created)
    }

    pub(super) async fn find(self: Arc<Self>, id: SandboxId) -> Result<Found> {
        let slot = self.slot(&id);
        let mut held = slot.lock().await;
        let found = match self.take_up(&id, &mut held).await {
            Ok(Taken::Live(live)) => {
                let found = if live.is_paused() { Found::Paused } else { Found::Running };
                Ok(found(Arc::new(EngineSandbox::new(self.clone(), live))))
            }
            Ok(Taken::Stopped(_)) => Ok(Found::Stopped),
            Ok(Taken::Absent) => Ok(Found::Absent),
            Err(error) => Err(error),
        };
        drop(held);
        self.let_go(&id, &slot);
        found
    }

    /// Or nothing is left of it.
    async fn launch_new(self: &Arc<Self>, id: &SandboxId, prepared: Prepared) -> Result<Arc<Live>> {
        match self.launch(id, prepared).await {
            Ok(live) => Ok(live),
            Err((error, owned)) => {
                let (shared, id) = (self.clone(), id.clone());
                let _ = blocking(move || shared.homes.remove(&id).map_err(removing)).await;
                drop(owned);
                Err(error)
            }
        }
    }

    pub(super) async fn start(self: Arc<Self>, id: SandboxId) -> Result<Arc<dyn Sandbox>> {
        let slot = self.slot(&id);
        let mut held = slot.lock().await;
        let started = self.started(&id, &mut held).await;
        self.settle(&id, held, &slot, started)
    }

    async fn started(self: &Arc<Self>, id: &SandboxId, held: &mut Option<Arc<Live>>) -> Result<Arc<Live>> {
        // What was being written from outside when it was stopped is written into the same layer, which is mounted once.
        if held.is_none() {
            drop(self.gates.of(id).close().await?);
        }
        let found = self.take_up_or(id, held, |shared, id, owned| match owned {
            Some(owned) => shared.prepare_again(id, owned),
            None => Err(Error::NoSandbox(id.clone())),
        });
        match found.await? {
            Either::Left(live) => live.pause(false).await.map(|()| live),
            Either::Right(prepared) => self.launch(id, prepared).await.map_err(|(error, _)| error),
        }
    }

    /// Notes a sandbox that lives now, or lets the slot of one that does not go.
    fn settle(
        self: &Arc<Self>,
        id: &SandboxId,
        mut held: tokio::sync::MutexGuard<'_, Option<Arc<Live>>>,
        slot: &Arc<Slot>,
        launched: Result<Arc<Live>>,
    ) -> Result<Arc<dyn Sandbox>> {
        match launched {
            Ok(live) => {
                *held = Some(live.clone());
                Ok(Arc::new(EngineSandbox::new(self.clone(), live)))
            }
            Err(error) => {
                drop(held);
                self.let_go(id, slot);
                Err(error)
            }
        }
    }

    /// Stopped is less than paused: there is no memory to keep.
    pub(super) async fn pause(self: Arc<Self>, id: SandboxId) -> Result<()> {
        let slot = self.slot(&id);
        let mut held = slot.lock().await;
        let paused = match self.take_up(&id, &mut held).await {
            Ok(Taken::Live(live)) => live.pause(true).await,
            Ok(Taken::Stopped(_)) => Err(Error::Gone),
            Ok(Taken::Absent) => Err(Error::NoSandbox(id.clone())),
            Err(error) => Err(error),
        };
        drop(held);
        self.let_go(&id, &slot);
        paused
    }

    pub(super) async fn stop(self: Arc<Self>, id: SandboxId) -> Result<()> {
        let slot = self.slot(&id);
        let mut held = slot.lock().await;
        let stopped = match self.take_down(&id, &mut held).await {
            Ok(Some(owned)) => self.rest(&id, owned).await,
            Ok(None) => Err(Error::NoSandbox(id.clone())),
            Err(error) => Err(error),
        };
        drop(held);
        self.let_go(&id, &slot);
        stopped
    }

    /// Of one in which nothing runs any more: what ends with its processes goes, and what it does not need until it is started.
    async fn rest(self: &Arc<Self>, id: &SandboxId, owned: Owned) -> Result<()> {
        // Somebody may still write from outside, into what is mounted for them alone: then the next stop finds it.
        let closed = self.gates.of(id).try_close();
        let (shared, id) = (self.clone(), id.clone());
        blocking(move || {
            let _owned = owned;
            shared.homes.remove_ephemeral(&id).map_err(removing)?;
            let Ok(home) = shared.homes.open_home(&id) else { return Ok(()) };
            home.forget_life();
            if let (Some(_closed), Ok(record)) = (closed, home.read()) {
                // It is stopped, whatever comes of this; the next stop finds what is left.
                let _ = snapshot::put_away(&shared.store, &record.plan, &home.fs());
            }
            Ok(())
        })
        .await
    }

    pub(crate) async fn destroy(self: Arc<Self>, id: SandboxId) -> Result<()> {
        let slot = self.slot(&id);
        let mut held = slot.lock().await;
        let removed = match self.take_down(&id, &mut held).await {
            Ok(_owned) => {
                fault::at(Point::DestroyEnded);
                let (shared, id) = (self.clone(), id.clone());
                blocking(move || {
                    shared.homes.remove(&id).map_err(removing)?;
                    shared.homes.shelf.remove(&id).map_err(removing)
                })
                .await
            }
            Err(error) => Err(error),
        };
        drop(held);
        self.let_go(&id, &slot);
        removed
    }

    pub(super) async fn shelve(self: Arc<Self>, id: SandboxId) -> Result<()> {
        let slot = self.slot(&id);
        let mut held = slot.lock().await;
        let shelved = match self.take_up(&id, &mut held).await {
            Ok(Taken::Stopped(_owned)) => {
                let (shared, id) = (self.clone(), id.clone());
                blocking(move || {
                    shared.homes.shelf.put(&id, &shared.homes.read(&id)?)?;
                    fault::at(Point::ShelfNoted);
                    shared.homes.remove(&id).map_err(removing)
                })
                .await
            }
            Ok(Taken::Live(_)) => Err(Error::invalid("id", format!("sandbox {id} is not stopped: stop it first"))),
            Ok(Taken::Absent) if self.homes.shelf.has(&id) => Ok(()),
            Ok(Taken::Absent) => Err(Error::NoSandbox(id.clone())),
            Err(error) => Err(error),
        };
        drop(held);
        self.let_go(&id, &slot);
        shelved
    }

    /// Its directory stays ours until what is returned is dropped.
    pub(super) async fn end(self: &Arc<Self>, live: &Live) -> Option<Owned> {
        live.stop().await;
        self.ended(live)
    }

    /// Gives back what a sandbox had that lives no more.
    fn ended(&self, live: &Live) -> Option<Owned> {
        let Holds { lease, home, place } = live.take_holds()?;
        fault::at(Point::StopEnded);
        self.ranges.give_back(lease);
        drop(place);
        if live.is_kept()
            && let Ok(home) = self.homes.open_home(&live.id)
        {
            presence::withdraw(&home.path());
        }
        Some(home)
    }

    /// It lives on, and is somebody else's from here on.
    pub(super) async fn leave(&self, live: &Arc<Live>) {
        tokio::join!(live.leave(), live.free_steps());
        drop(live.take_holds());
    }

    /// All sandboxes of the data directory, as they look from outside.
    pub(super) fn states(&self) -> Vec<(SandboxId, State)> {
        let state = |home: &Home| match home.presence() {
            Some(presence) if presence.find().is_none() => State::Stopped,
            Some(presence) if self.ranges.is_frozen(presence.range) => State::Paused,
            Some(_) => State::Running,
            None => State::Stopped,
        };
        let sandboxes = self.homes.all().into_iter();
        sandboxes.filter_map(|home| Some((home.id()?, state(&home)))).collect()
    }

    /// Hears of the end of a sandbox that nobody asked for.
    pub(super) async fn follow(self: Arc<Self>, live: Arc<Live>) {
        if !live.listen().await {
            return;
        }
        let slot = self.slot(&live.id);
        let mut held = slot.lock().await;
        if held.as_ref().is_some_and(|held| Arc::ptr_eq(held, &live)) {
            *held = None;
        }
        let owned = self.ended(&live);
        let _ = self.happened.try_send((live.id.clone(), SandboxEvent::Died));
        if let Some(owned) = owned {
            let _ = self.rest(&live.id, owned).await; // it is stopped all the same
        }
        drop(held);
        self.let_go(&live.id, &slot);
    }
}

fn removing(error: io::Error) -> Error {
    Error::failed("removing the sandbox's directory", error)
}
