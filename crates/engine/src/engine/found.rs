//! Sandboxes that outlived their server: how they are found, and taken up.

use std::{os::fd::OwnedFd, sync::Arc};

use cabana_sandbox::{Error, Result, SandboxId};
use futures_util::future::Either;
use tokio::io::unix::AsyncFd;

use super::{Shared, blocking};
use crate::{
    channel::Channel,
    fault::{self, Point},
    greeting,
    home::{Owned, Record},
    kernel::readiness,
    live::{self, Holds, Live},
    places,
    presence::{self, Presence},
};

/// What a sandbox is when somebody wants something of it.
pub(crate) enum Taken {
    Live(Arc<Live>),
    Stopped(Owned),
    Absent,
}

enum Looked {
    Left(Left),
    /// With its directory; without one it is absent.
    Rests(Option<Owned>),
}

/// A sandbox that outlived its server.
struct Left {
    presence: Presence,
    pidfd: OwnedFd,
    home: Owned,
}

impl Shared {
    /// What the sandbox is by now. One that outlived its server is taken up, and is ours.
    pub(crate) async fn take_up(self: &Arc<Self>, id: &SandboxId, held: &mut Option<Arc<Live>>) -> Result<Taken> {
        let rests = |_: &Arc<Self>, _: &SandboxId, owned: Option<Owned>| Ok(owned);
        Ok(match self.take_up_or(id, held, rests).await? {
            Either::Left(live) => Taken::Live(live),
            Either::Right(Some(owned)) => Taken::Stopped(owned),
            Either::Right(None) => Taken::Absent,
        })
    }

    /// As it lives, or what comes of one that does not: its directory, if it has one. That is done where it was looked for, so
    /// that whoever waits for a start waits for one thread and not for two.
    pub(super) async fn take_up_or<T: Send + 'static>(
        self: &Arc<Self>,
        id: &SandboxId,
        held: &mut Option<Arc<Live>>,
        rests: impl FnOnce(&Arc<Self>, &SandboxId, Option<Owned>) -> Result<T> + Send + 'static,
    ) -> Result<Either<Arc<Live>, T>> {
        if let Some(live) = held.as_ref() {
            return Ok(Either::Left(live.clone()));
        }
        let looked = blocking({
            let (shared, id) = (self.clone(), id.clone());
            move || {
                Ok(match shared.look_for(&id)? {
                    Looked::Left(left) => Either::Left((left, rests)),
                    Looked::Rests(owned) => Either::Right(rests(&shared, &id, owned)?),
                })
            }
        });
        let (left, rests) = match looked.await? {
            Either::Left(left) => left,
            Either::Right(done) => return Ok(Either::Right(done)),
        };
        match self.revive(id, left).await? {
            Ok(live) => {
                *held = Some(live.clone());
                Ok(Either::Left(live))
            }
            Err(owned) => {
                let (shared, id) = (self.clone(), id.clone());
                blocking(move || rests(&shared, &id, owned)).await.map(Either::Right)
            }
        }
    }

    /// Ends what runs of it, and gives its directory; `None` when there is no such sandbox. No word of its init is needed for
    /// that: one that lies about itself can be ended, too.
    pub(crate) async fn take_down(
        self: &Arc<Self>,
        id: &SandboxId,
        held: &mut Option<Arc<Live>>,
    ) -> Result<Option<Owned>> {
        if let Some(live) = held.take()
            && let Some(owned) = self.end(&live).await
        {
            return Ok(Some(owned));
        }
        let looked = blocking({
            let (shared, id) = (self.clone(), id.clone());
            move || shared.look_for(&id)
        });
        let Left { presence, pidfd, home } = match looked.await? {
            Looked::Left(left) => left,
            Looked::Rests(owned) => return Ok(owned),
        };
        presence.check_command()?;
        live::end_of(&watched(pidfd)?).await;
        let (shared, id) = (self.clone(), id.clone());
        blocking(move || {
            shared.ranges.clear(presence.range);
            presence::withdraw(&shared.homes.open_home(&id)?.path());
            Ok(Some(home))
        })
        .await
    }

    fn look_for(&self, id: &SandboxId) -> Result<Looked> {
        let Some(home) = self.homes.own(id)? else { return Ok(Looked::Rests(None)) };
        let alive = self.homes.presence(id).and_then(|presence| Some((presence.find()?, presence)));
        let Some((pidfd, presence)) = alive else { return Ok(Looked::Rests(Some(home))) };
        Ok(Looked::Left(Left { presence, pidfd, home }))
    }

    /// An init that cannot be talked to is ended: the sandbox is stopped then, and its files are kept.
    async fn revive(self: &Arc<Self>, id: &SandboxId, left: Left) -> Result<Result<Arc<Live>, Option<Owned>>> {
        let Left { presence, pidfd, home } = left;
        let pidfd = watched(pidfd)?;
        let record = self.homes.read(id)?;
        let Record { spec, plan, changing } = record.clone();
        // An error loses nothing: who stops talking to init leaves it as it was, for the next one.
        let failed = |error| Error::failed("talking to the sandbox's init", error);
        let door = self.homes.open_home(id)?.path();
        let greeted = match blocking(move || presence::knock(&door).map_err(failed)).await? {
            Some(control) => {
                let channel = Channel::new(control).map_err(failed)?;
                let found = greeting::greet(&channel, presence.token.as_u128()).await.map_err(failed)?;
                found.map(|found| (channel, found))
            }
            None => None,
        };
        let Some((channel, mut found)) = greeted else {
            presence.check_command()?;
            live::end_of(&pidfd).await;
            return Ok(Err(Some(home)));
        };
        fault::at(Point::FoundGreeted);
        let lock = found.lock.take().ok_or(Error::Gone)?;
        let (shared, limits) = (self.clone(), spec.limits);
        let lease = blocking(move || shared.ranges.take_up(presence.range, lock, &limits)).await?;
        fault::at(Point::FoundLeased);
        let place = places::SANDBOXES.hold(&places::holder(id, &spec));
        let holds = Holds { lease, home, place };
        let parts = self.parts(id, &spec, plan, holds, channel, pidfd);
        let stillness = found.stillness;
        let live = Live::found(parts, found)?;
        self.tasks.spawn(self.clone().follow(live.clone()));
        let settled = async {
            live.settle(stillness).await?;
            self.uncharged.add_found(&live);
            self.hold_to(&live, &spec).await?;
            live.set_network(&self.ways, &spec.network).await
        };
        if let Err(error) = settled.await {
            self.leave(&live).await;
            return Err(error);
        }
        // What was taken away from it must not stay because it can not be changed: then it is stopped, and starts as it should.
        if changing && self.settle_views(&live, record).await.is_err() {
            return Ok(Err(self.end(&live).await));
        }
        Ok(Ok(live))
    }
}

fn watched(pidfd: OwnedFd) -> Result<AsyncFd<OwnedFd>> {
    readiness::watch(pidfd).map_err(|error| Error::failed("watching the sandbox's init", error))
}
