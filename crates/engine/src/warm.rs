//! Inits that wait for a sandbox.
//!
//! Cloning namespaces is the larger part of making a sandbox, and the same for all of them. So a few inits are made ahead:
//! they have a range of ids, a cgroup, a network with its loopback up and, where the last sandbox had one, a way out of it, and
//! wait for a plan. The directories of new sandboxes are made ahead with them.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cabana_guest::IdMap;
use cabana_sandbox::{Error, Lifetime, Limits, NetworkPolicy, Result, SandboxSpec};
use tokio::{io::unix::AsyncFd, task::spawn_blocking};

use crate::{
    cgroup::{Cgroup, held},
    channel::Channel,
    engine::{Shared, launch_error, map_error},
    identity::Lease,
    kernel::{fdpass, mounts, pidfd, readiness, shortage::told_apart},
    live,
    network::{Equipped, Namespace},
    plan::{Mount, Mounts, Owners},
    wire::{IdsShown, Place, SetupPlan},
};

/// How long a new sandbox is left alone before the next is prepared.
const SETTLE: Duration = Duration::from_millis(3);

/// What `/dev/shm` holds where memory is not limited.
const SHARED_MEMORY: u64 = 256 << 20;

/// An init without a sandbox.
pub(crate) struct Warm {
    pub(crate) lease: Lease,
    pub(crate) channel: Channel,
    pub(crate) pidfd: AsyncFd<OwnedFd>,
    /// For the mounts of any sandbox. Empty where ids are not mapped.
    maps: Vec<(IdsShown, OwnedFd)>,
    /// Where the next sandbox was likely to want a way out.
    pub(crate) equipped: Option<Equipped>,
}

/// What the last sandbox was like: the next most likely is.
#[derive(Clone, Copy)]
struct Likely {
    limits: Limits,
    network: bool,
    lifetime: Lifetime,
}

pub(crate) struct Spares {
    wanted: usize,
    likely: Mutex<Likely>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: Vec<Warm>,
    coming: usize,
    closed: bool,
}

impl Spares {
    pub(crate) fn new(wanted: usize) -> Self {
        let likely = Likely { limits: Limits::NONE, network: false, lifetime: Lifetime::Persistent };
        Self { wanted, likely: Mutex::new(likely), state: Mutex::default() }
    }

    fn likely(&self) -> MutexGuard<'_, Likely> {
        self.likely.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting<T>(&self, act: impl FnOnce(&mut Vec<Warm>) -> T) -> T {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner).waiting)
    }

    /// With a way out, or without. One without can still get it, and no other way round.
    fn take(&self, network: bool) -> Option<Warm> {
        self.waiting(|waiting| {
            let fits = waiting.iter().rposition(|warm| warm.equipped.is_some() == network);
            let fits = fits.or_else(|| waiting.len().checked_sub(1).filter(|_| network));
            fits.map(|at| waiting.swap_remove(at))
        })
    }

    /// Whether one more is to be made; if so, it is counted.
    fn claim(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = !state.closed && state.waiting.len() + state.coming < self.wanted;
        state.coming += usize::from(missing);
        missing
    }

    /// Gives it back if nobody will come for it.
    fn put(&self, made: Option<Warm>) -> Option<Warm> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.coming -= 1;
        if state.closed {
            return made;
        }
        state.waiting.extend(made);
        None
    }

    fn close(&self) -> Vec<Warm> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.closed = true;
        std::mem::take(&mut state.waiting)
    }
}

impl Shared {
    /// One that waits, or a new one.
    pub(crate) async fn warm(self: &Arc<Self>, network: bool) -> Result<Warm> {
        let mut found = None;
        while found.is_none()
            && let Some(spare) = self.spares.take(network)
        {
            // One whose process is gone is of no use.
            match spare.is_alive() {
                true => found = Some(spare),
                false => self.cool(spare).await,
            }
        }
        match found {
            Some(spare) => Ok(spare),
            None => {
                if let Some(other) = self.spares.waiting(Vec::pop) {
                    // It makes room for one that the next like this can use.
                    let shared = self.clone();
                    self.tasks.spawn(async move { shared.cool(other).await });
                }
                self.make_warm().await
            }
        }
    }

    /// Makes what the next sandbox will need: not at once, since whoever has just got one is about to use the processors.
    pub(crate) fn refill(self: &Arc<Self>, overlays: usize) {
        if !self.spares.claim() {
            return;
        }
        let shared = self.clone();
        self.tasks.spawn(async move {
            tokio::time::sleep(SETTLE).await;
            let made = match shared.make_warm().await {
                Ok(warm) => {
                    let likely = *shared.spares.likely();
                    let warm = match shared.limit(warm, likely.limits).await {
                        Ok(warm) => Some(warm),
                        Err(_) => shared.make_warm().await.ok(), // so little that not even an init can wait in it
                    };
                    match warm {
                        Some(warm) if likely.network => Some(warm.led_out().await),
                        warm => warm,
                    }
                }
                Err(_) => None,
            };
            let failed = made.is_none();
            if let Some(unwanted) = shared.spares.put(made) {
                shared.cool(unwanted).await;
                return;
            }
            if failed {
                return; // a host at its limits is not asked again and again: the next sandbox will
            }
            let (homes, lifetime) = (shared.clone(), shared.spares.likely().lifetime);
            let _ = spawn_blocking(move || homes.homes.make_spares(overlays, lifetime, homes.spares.wanted)).await;
            shared.refill(overlays);
        });
    }

    async fn make_warm(&self) -> Result<Warm> {
        let lease = self.ranges.lease()?;
        match self.heat(&lease).await {
            Ok((channel, pidfd, maps)) => Ok(Warm { lease, channel, pidfd, maps, equipped: None }),
            Err(error) => {
                self.ranges.give_back(lease);
                Err(error)
            }
        }
    }

    /// One that waited may be held to what another was. What it sets itself up in must not be less than what it gets.
    pub(crate) async fn unforeseen(&self, warm: Warm, spec: &SandboxSpec) -> Result<Warm> {
        *self.spares.likely() =
            Likely { limits: held(&spec.limits), network: spec.network != NetworkPolicy::Off, lifetime: spec.lifetime };
        match warm.lease.differs(&Limits::NONE) {
            true => self.limit(warm, spec.limits).await,
            false => Ok(warm),
        }
    }

    /// Before anything of a sandbox's own runs in it. Where it has to be moved for that, it takes too long for when somebody
    /// waits: so the likely ones are set ahead.
    pub(crate) async fn limit(&self, warm: Warm, limits: Limits) -> Result<Warm> {
        if !warm.lease.differs(&limits) {
            return Ok(warm);
        }
        let (warm, limited) = warm.with_lease(move |lease| lease.limit(&limits)).await?;
        match limited {
            Ok(()) => Ok(warm),
            Err(error) => {
                self.cool(warm).await;
                Err(error)
            }
        }
    }

    async fn heat(&self, lease: &Lease) -> Result<(Channel, AsyncFd<OwnedFd>, Vec<(IdsShown, OwnedFd)>)> {
        let failed = |error| Error::failed("opening the control socket", error);
        let (ours, theirs) = fdpass::pair().map_err(failed)?;
        let cgroup = lease.cgroup.as_ref().map(Cgroup::detach).transpose();
        let cgroup = cgroup.map_err(|error| Error::failed("opening the control group", error))?;
        let storage = self.ranges.storage();
        let mut maps = Vec::new();
        if storage.base != lease.ids.base {
            for owners in [Owners::Stored, Owners::Hosts] {
                let ids = owners.shown(storage, lease.ids);
                maps.push((ids, self.spawner.map(ids).await.map_err(launch_error)?));
            }
        }
        let cloned = self.spawner.clone_init(lease.ids, theirs.as_fd(), cgroup.as_ref().map(AsFd::as_fd));
        let pidfd = cloned.await.map_err(launch_error)?;
        Ok((Channel::new(ours).map_err(failed)?, readiness::watch(pidfd).map_err(failed)?, maps))
    }

    /// Ends one that is not needed.
    pub(crate) async fn cool(&self, warm: Warm) {
        let Warm { lease, channel, pidfd, .. } = warm;
        drop(channel);
        live::end_of(&pidfd).await;
        self.ranges.give_back(lease);
    }

    pub(crate) async fn cool_all(&self) {
        for warm in self.spares.close() {
            self.cool(warm).await;
        }
    }

    /// Maps the ids of the mounts and hands them to init.
    pub(crate) async fn hand_over(&self, warm: &Warm, mounts: Mounts, spec: &SandboxSpec) -> Result<()> {
        for mount in &mounts.all {
            self.map_ids(&warm.maps, warm.lease.ids, mount).await?;
        }
        let fds: Vec<_> = mounts.all.iter().map(|mount| mount.fd.as_fd()).collect();
        let places: Vec<Place> = mounts.all.iter().map(|mount| mount.place.clone()).collect();
        let plan = SetupPlan {
            overlays: mounts.overlays,
            mounts: places,
            volatile: spec.lifetime == Lifetime::Ephemeral,
            sudo: spec.sudo,
            writable: spec.read_only_root.then_some(mounts.writable),
            shared_memory: spec.limits.memory.map_or(SHARED_MEMORY, |memory| SHARED_MEMORY.min(memory / 2)),
        };
        let sent = warm.channel.send(&plan.encode(), &fds).await;
        sent.map_err(|error| told_apart(error, |error| Error::failed("telling init what to be", error)))
    }

    /// `maps` are those that are made already.
    pub(crate) async fn map_ids(&self, maps: &[(IdsShown, OwnedFd)], live: IdMap, mount: &Mount) -> Result<()> {
        let mut attributes = if mount.read_only { mounts::RDONLY } else { 0 };
        if let Place::View { .. } = mount.place {
            attributes |= mounts::NOSUID | mounts::NODEV;
        }
        let made_now;
        let storage = self.ranges.storage();
        let map = match storage.base == live.base {
            true => None,
            false => {
                let ids = mount.owners.shown(storage, live);
                match maps.iter().find(|(known, _)| *known == ids) {
                    Some((_, map)) => Some(map.as_fd()),
                    None => {
                        made_now = self.spawner.map(ids).await.map_err(launch_error)?;
                        Some(made_now.as_fd())
                    }
                }
            }
        };
        mounts::set_attributes(mount.fd.as_fd(), attributes, map).map_err(|error| map_error(&error))
    }
}

impl Warm {
    /// On a thread that may block.
    async fn with_lease<T: Send + 'static>(
        mut self,
        act: impl FnOnce(&mut Lease) -> T + Send + 'static,
    ) -> Result<(Self, T)> {
        let done = spawn_blocking(move || {
            let done = act(&mut self.lease);
            (self, done)
        });
        done.await.map_err(|error| Error::failed("a background step", error))
    }

    /// With a way out. Where that cannot be made, whoever wants it tries again, and hears why.
    async fn led_out(mut self) -> Self {
        if let Ok(namespace) = Namespace::of(self.pidfd.as_fd()) {
            self.equipped = namespace.equip().await.ok();
        }
        self
    }

    fn is_alive(&self) -> bool {
        pidfd::is_alive(self.pidfd.as_fd())
    }
}
