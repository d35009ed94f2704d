//! Sandboxes that outlived their server: how they are found, and taken up.

use std::{os::fd::OwnedFd, sync::Arc};

use cabana_sandbox::{Error, Result, SandboxId};
use tokio::io::unix::AsyncFd;

use super::{Shared, blocking};
use crate::{
    channel::Channel,
    fault::{self, Point},
    greeting,
    home::{Owned, Record},
    kernel::readiness,
    live::{self, Holds, Live},
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
    Other(Taken),
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
        if let Some(live) = held.as_ref() {
            return Ok(Taken::Live(live.clone()));
        }
        let looked = blocking({
            let (shared, id) = (self.clone(), id.clone());
            move || shared.look_for(&id)
        });
        let left = match looked.await? {
            Looked::Left(left) => left,
            Looked::Other(taken) => return Ok(taken),
        };
        let taken = self.revive(id, left).await?;
        if let Taken::Live(live) = &taken {
            *held = Some(live.clone());
        }
        Ok(taken)
    }

    /// Ends what runs of it, and gives its directory; `None` when there is no such sandbox. No word of its init is needed for
    /// that: one that lies about itself can be ended, too.
    pub(super) async fn take_down(
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
            Looked::Other(Taken::Stopped(owned)) => return Ok(Some(owned)),
            Looked::Other(_) => return Ok(None),
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
        let Some(home) = self.homes.own(id)? else { return Ok(Looked::Other(Taken::Absent)) };
        let alive = self.homes.presence(id).and_then(|presence| Some((presence.find()?, presence)));
        let Some((pidfd, presence)) = alive else { return Ok(Looked::Other(Taken::Stopped(home))) };
        Ok(Looked::Left(Left { presence, pidfd, home }))
    }

    /// An init that cannot be talked to is ended: the sandbox is stopped then, and its files are kept.
    async fn revive(self: &Arc<Self>, id: &SandboxId, left: Left) -> Result<Taken> {
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
            return Ok(Taken::Stopped(home));
        };
        fault::at(Point::FoundGreeted);
        let lock = found.lock.take().ok_or(Error::Gone)?;
        let (shared, limits) = (self.clone(), spec.limits);
        let lease = blocking(move || shared.ranges.take_up(presence.range, lock, &limits)).await?;
        fault::at(Point::FoundLeased);
        let holds = Holds { lease, home };
        let parts = self.parts(id, &spec, Self::defaults(plan), holds, channel, pidfd);
        let stillness = found.stillness;
        let live = Live::found(parts, found)?;
        self.tasks.spawn(self.clone().follow(live.clone()));
        let settled = async {
            live.settle(stillness).await?;
            self.hold_to(&live, &spec).await?;
            live.set_network(&self.ways, &spec.network).await
        };
        if let Err(error) = settled.await {
            self.leave(&live).await;
            return Err(error);
        }
        // What was taken away from it must not stay because it can not be changed: then it is stopped, and starts as it should.
        if changing && self.settle_views(&live, record).await.is_err() {
            return Ok(self.end(&live).await.map_or(Taken::Absent, Taken::Stopped));
        }
        Ok(Taken::Live(live))
    }
}

fn watched(pidfd: OwnedFd) -> Result<AsyncFd<OwnedFd>> {
    readiness::watch(pidfd).map_err(|error| Error::failed("watching the sandbox's init", error))
}
