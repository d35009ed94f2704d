//! From directories to a running sandbox.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use cabana_sandbox::{
    Base, Defaults, Error, Identities, LayerId, Lifetime, Limits, NetworkPolicy, Result, SandboxEvent, SandboxId,
    SandboxSpec,
};
use tokio::io::unix::AsyncFd;

use super::{Shared, blocking};
use crate::{
    channel::Channel,
    disk::{self, Most, pool},
    disk_rate,
    fault::{self, Point},
    home::{Owned, Record},
    layers::{self, HostBase},
    live::{Holds, Live, Parts, SetupError},
    network::{Namespace, Network, Outlet},
    places,
    plan::{self, Mounts},
    presence::Presence,
    snapshot,
    spawner::LaunchError,
    views,
    warm::Warm,
    wire::{Failure, Step, ToInit},
};

/// A sandbox before it lives.
pub(super) struct Prepared {
    pub(super) record: Record,
    pub(super) mounts: Mounts,
    pub(super) home: Owned,
}

impl Shared {
    /// Everything on disk, and the descriptors of a new sandbox.
    pub(super) fn prepare_new(&self, id: &SandboxId, spec: SandboxSpec) -> Result<Prepared> {
        let layers_stay = self.store.hold()?;
        let mut plan = plan::of(&self.data, &self.store, &|| self.host_base(), &spec)?;
        plan.trust = self.trust(&plan)?;
        if let (Base::Snapshot(_), Some(was)) = (&spec.base, &plan.fingerprint) {
            self.compare_base(id, was, &*self.host_base()?);
        }
        let record = Record { spec, plan, changing: false };
        let (home, owned) = self.homes.make(id, &record)?;
        fault::at(Point::HomeNamed);
        drop(layers_stay); // the record says from here on that they are used
        let mounts = snapshot::dress_new(&self.store, &record.plan, &home.fs())
            .and_then(|()| plan::mounts(&self.data, &self.store, &record, &home.fs(), self.ranges.storage()));
        Ok(Prepared { mounts: mounts.inspect_err(|_| drop(self.homes.remove(id)))?, record, home: owned })
    }

    /// Tells of a base that is not what it was.
    fn compare_base(&self, id: &SandboxId, was: &str, base: &HostBase) {
        if was != base.fingerprint {
            let changed = SandboxEvent::BaseChanged { was: was.to_owned(), now: base.fingerprint.clone() };
            let _ = self.happened.try_send((id.clone(), changed));
        }
    }

    /// The descriptors of a sandbox that is there.
    pub(super) fn prepare_again(&self, id: &SandboxId, owned: Owned) -> Result<Prepared> {
        let mut record = self.homes.read(id)?;
        self.trust_again(id, &mut record)?;
        let home = self.homes.open_home(id)?;
        snapshot::settle(&self.store, &record.plan, &home.fs())?;
        if let Some(was) = record.plan.fingerprint.clone() {
            let base = self.host_base()?;
            record.plan.rebase(&base);
            self.compare_base(id, &was, &base);
        }
        self.homes.refill(&home, record.plan.overlays(), |fs| snapshot::dress_new(&self.store, &record.plan, fs));
        snapshot::take_out(&self.store, &record.plan, &home.fs())?;
        let mounts = plan::mounts(&self.data, &self.store, &record, &home.fs(), self.ranges.storage())?;
        if record.changing {
            record.changing = false; // what is mounted now is what it says
            self.homes.rewrite(id, &record)?;
        }
        Ok(Prepared { mounts, record, home: owned })
    }

    fn trust(&self, plan: &plan::Plan) -> Result<Option<LayerId>> {
        self.ways.trust.as_ref().map(|trust| trust.layer(&self.store, &plan.layers)).transpose()
    }

    /// The settings may have changed since the sandbox was made.
    fn trust_again(&self, id: &SandboxId, record: &mut Record) -> Result<()> {
        let _layers_stay = self.store.hold()?; // until the record names the new one
        let trust = self.trust(&record.plan)?;
        if trust == record.plan.trust {
            return Ok(());
        }
        record.plan.trust = trust;
        self.homes.rewrite(id, record)
    }

    /// What every command of the sandbox has.
    pub(super) fn defaults(plan: plan::Plan) -> Defaults {
        let mut defaults = plan.defaults;
        if plan.trust.is_some() {
            layers::trusting(&mut defaults.env);
        }
        defaults
    }

    /// From directories to a running sandbox. If it fails, its directory comes back.
    pub(super) async fn launch(
        self: &Arc<Self>,
        id: &SandboxId,
        prepared: Prepared,
    ) -> Result<Arc<Live>, (Error, Option<Owned>)> {
        let Prepared { record: Record { mut spec, plan, .. }, mounts, home } = prepared;
        spec.sudo |= plan.sudo;
        let overlays = plan.overlays();
        let Some(place) = places::SANDBOXES.take(&places::holder(id, &spec)) else {
            return Err((Error::Exhausted("places for sandboxes that live, of this tenant or of all"), Some(home)));
        };
        let (warm, outlet) = match self.begin(mounts, &spec).await {
            Ok(begun) => begun,
            Err(error) => return Err((error, Some(home))),
        };
        let network = async {
            match outlet {
                None => Ok(None),
                Some(outlet) => {
                    let (holder, happened) = (places::holder(id, &spec), self.happened.clone());
                    let opened = Network::open(&self.ways, outlet, &spec.network, id.clone(), holder, happened);
                    opened.await.map(Some)
                }
            }
        };
        let live = async {
            let Warm { lease, channel, pidfd, .. } = match self.equip(warm, id, &spec).await {
                Ok(warm) => warm,
                Err(error) => return Err((error, Some(home))),
            };
            let parts = self.parts(id, &spec, plan, Holds { lease, home, place }, channel, pidfd);
            Live::new(parts).await.map_err(|(error, Holds { lease, home, .. })| {
                self.ranges.give_back(lease);
                match error {
                    SetupError::Refused(Failure { step: Step::View, errno: libc::ELOOP }) => {
                        (self.behind_a_link(id), Some(home))
                    }
                    SetupError::Refused(failure) => (setup_error(failure), Some(home)),
                    SetupError::Lost(error) => (Error::failed("setting the sandbox up", error), Some(home)),
                }
            })
        };
        let (live, network) = tokio::join!(live, network);
        let live = live?;
        fault::at(Point::InitReady);
        self.tasks.spawn(self.clone().follow(live.clone()));
        let held = match network {
            Ok(network) => {
                live.give_network(network).await;
                self.uncharged.add(&live);
                self.hold_to(&live, &spec).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = held {
            return Err((error, self.end(&live).await));
        }
        self.refill(overlays);
        Ok(live)
    }

    /// Init says only that a link is in the way of a view. Which one is found where it most likely lies.
    fn behind_a_link(&self, id: &SandboxId) -> Error {
        let looked = || {
            let record = self.homes.read(id)?;
            let layers = record.plan.layers.iter().rev().map(|layer| self.store.path(layer));
            let trees: Vec<_> = [snapshot::upper(&self.homes.fs(id), 0)].into_iter().chain(layers).collect();
            Ok::<_, Error>(views::find_link(&record.spec.views, &trees))
        };
        looked().unwrap_or_else(|error| error)
    }

    /// What is set once it lives.
    pub(super) async fn hold_to(self: &Arc<Self>, live: &Arc<Live>, spec: &SandboxSpec) -> Result<()> {
        if spec.limits.disk.is_some() || spec.limits.inodes.is_some() {
            self.limit_disk(live, spec.limits).await?;
        }
        if spec.limits.memory.is_some() {
            self.tasks.spawn(live.clone().watch_memory());
        }
        if spec.limits.io.is_some() {
            self.tasks.spawn(disk_rate::watch(live.clone()));
        }
        Ok(())
    }

    /// By the kernel where it can, else by looking.
    pub(crate) async fn limit_disk(&self, live: &Arc<Live>, limits: Limits) -> Result<()> {
        let own = live.disk.own().to_owned();
        let limited = blocking(move || {
            pool::limit(&own, limits.disk).map_err(|error| Error::failed("limiting the sandbox's layer", error))
        });
        if live.disk.set(Most::of(&limits, limited.await?)) {
            self.tasks.spawn(disk::watch(live.clone()));
        }
        Ok(())
    }

    /// An init that is becoming this sandbox, and the network that it may want: whatever else there is to do is done while
    /// it sets itself up.
    async fn begin(self: &Arc<Self>, mounts: Mounts, spec: &SandboxSpec) -> Result<(Warm, Option<Outlet>)> {
        let warm = self.warm(spec.network != NetworkPolicy::Off).await?;
        let mut warm = self.unforeseen(warm, spec).await?;
        let equipped = warm.equipped.take();
        let begun = async {
            let outlet = match (&spec.network, equipped) {
                (NetworkPolicy::Off, _) => None,
                (_, Some(equipped)) => Some(Outlet::Equipped(equipped)),
                (_, None) => Some(Outlet::Bare(Namespace::of(warm.pidfd.as_fd())?)),
            };
            self.hand_over(&warm, mounts, spec).await?;
            fault::at(Point::InitTold);
            Ok(outlet)
        };
        match begun.await {
            Ok(outlet) => Ok((warm, outlet)),
            Err(error) => {
                self.cool(warm).await;
                Err(error)
            }
        }
    }

    /// Limits it, before anything of the sandbox's own runs in it, and lets it stay if it is to.
    async fn equip(&self, warm: Warm, id: &SandboxId, spec: &SandboxSpec) -> Result<Warm> {
        let warm = self.limit(warm, spec.limits).await?;
        if !self.outlives(spec) {
            return Ok(warm);
        }
        match self.let_stay(&warm, id).await {
            Ok(()) => Ok(warm),
            Err(error) => {
                self.cool(warm).await;
                Err(error)
            }
        }
    }

    /// Tells init to outlive us, once it can be found. It is setting itself up meanwhile.
    async fn let_stay(&self, warm: &Warm, id: &SandboxId) -> Result<()> {
        let failed = |error| Error::failed("making the sandbox stay", error);
        let presence = Presence::of(warm.pidfd.as_fd(), warm.lease.number).map_err(failed)?;
        let (path, token) = (self.homes.open_home(id)?.path(), presence.token.as_u128());
        let door = blocking(move || presence.announce(&path).map_err(failed)).await?;
        fault::at(Point::InitAnnounced);
        let lock = warm.lease.lock.as_ref().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let told = warm.channel.send(&ToInit::keep(token), &[door.as_fd(), lock.as_fd()]).await;
        fault::at(Point::InitKept);
        match told {
            // It has ended already: why, it has told whoever asks for it next.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            told => told.map_err(failed),
        }
    }

    pub(super) fn parts(
        &self,
        id: &SandboxId,
        spec: &SandboxSpec,
        plan: plan::Plan,
        holds: Holds,
        channel: Channel,
        pidfd: AsyncFd<OwnedFd>,
    ) -> Parts {
        Parts {
            id: id.clone(),
            holder: places::holder(id, spec),
            overlays: plan.places(),
            defaults: Self::defaults(plan),
            limits: spec.limits,
            own: self.homes.fs(id),
            holds,
            kept: self.outlives(spec),
            channel,
            pidfd,
            tasks: self.tasks.clone(),
            uncharged: self.uncharged.clone(),
            happened: self.happened.clone(),
        }
    }

    /// Whether the sandbox lives on when this process ends.
    pub(super) fn outlives(&self, spec: &SandboxSpec) -> bool {
        spec.lifetime == Lifetime::Persistent && self.ranges.identities() == Identities::Own
    }
}

pub(crate) fn launch_error(error: LaunchError) -> Error {
    match error {
        LaunchError::Refused(failure) => setup_error(failure),
        LaunchError::NeverWorked(why) => Error::Host(why),
        LaunchError::Unreachable(error) => Error::Offline(error.into()),
    }
}

pub(crate) fn map_error(error: &io::Error) -> Error {
    setup_error(Failure { step: Step::MountIds, errno: error.raw_os_error().unwrap_or(libc::EIO) })
}

/// ENOTSUPP of the kernel, which is no number of the C library's.
const NO_MEMORY_FOR_FILTERS: i32 = 524;

/// Says what is behind it where the kernel's answer is a riddle.
fn setup_error(failure: Failure) -> Error {
    let errno = io::Error::from_raw_os_error(failure.errno);
    let why = match (failure.step, failure.errno) {
        (Step::MountIds, libc::EINVAL) => "the file system of the layers does not support mapped ids",
        (Step::MountIds, libc::EPERM | libc::EACCES) => "the layers' ids may not be mapped by this process",
        (Step::Proc, libc::EPERM) => "/proc of this host is partly masked, as in a container",
        (Step::Clone, libc::ENOSPC) => "the limit of namespaces is reached (user.max_*_namespaces)",
        (Step::Clone | Step::IdMap, libc::EPERM) => "this host does not allow user namespaces",
        (Step::Clone, libc::EAGAIN) => "the limit of processes is reached (kernel.pid_max or RLIMIT_NPROC)",
        // What the kernel says where it has no more memory for filters that it compiles: one number for the whole machine.
        (Step::Walls, NO_MEMORY_FOR_FILTERS) => {
            return Error::Exhausted("the kernel's memory for compiled filters (net.core.bpf_jit_limit)");
        }
        (_, libc::ENOSPC) => return Error::NoSpace,
        _ => return Error::failed(failure.step.text(), errno),
    };
    Error::Host(format!("{}: {why} ({errno})", failure.step.text()))
}

#[cfg(test)]
mod tests {
    use cabana_sandbox::Code;

    use super::*;

    #[test]
    fn what_comes_back_by_itself_is_told_apart_from_what_this_host_lacks() {
        let code = |step, errno| setup_error(Failure { step, errno }).code();
        assert_eq!(code(Step::Walls, NO_MEMORY_FOR_FILTERS), Code::HostExhausted);
        assert_eq!(code(Step::Proc, libc::EPERM), Code::HostUnsupported);
        assert_eq!(code(Step::Walls, libc::EPERM), Code::Internal);
    }
}
