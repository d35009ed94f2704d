//! The provider: makes, starts, stops and deletes sandboxes, and knows those that live.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use bytes::Bytes;
use cabana_sandbox::{
    Base, Capabilities, Defaults, Enforced, Error, Found, Identities, LayerId, Lifetime, Limits, Provider, Result,
    Sandbox, SandboxEvent, SandboxId, SandboxSpec, Source, State, Stream,
};
use futures_util::{StreamExt, stream};
use tokio::{
    io::unix::AsyncFd,
    sync::mpsc,
    task::{JoinHandle, spawn_blocking},
};
use tokio_util::task::TaskTracker;

use crate::{
    cgroup::Controllers,
    channel::Channel,
    data_dir::{DataDir, OpenError},
    disk::{self, Most, pool},
    fault::{self, Point},
    home::{Homes, Owned, Record},
    identity::Ranges,
    kernel::readiness,
    layers::{self, HostBase, LayerName, Store, Templates},
    live::{self, Holds, Live, Parts, SetupError},
    network::{self, NetworkSettings, Ways},
    plan::{self, Mounts},
    presence::{self, Presence},
    rootless,
    sandbox::EngineSandbox,
    snapshot::{self, Gates, Snapshots},
    spawner::{LaunchError, Spawner},
    warm::{Spares, Warm},
    wire::{Failure, Step, ToInit},
};

/// How an engine is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where layers, templates and sandboxes lie.
    pub data: PathBuf,
    /// What is started as the spawner: a program whose `main` begins with [`crate::helper_main`].
    pub helper: PathBuf,
    /// Whether control groups are used where they are to be had. Without them a supervisor keeps each command's tree
    /// together, which a guest can kill.
    pub cgroups: bool,
    /// How many inits are made ahead, for the next sandboxes. Each costs some hundred KiB; the first is made when the first
    /// sandbox is.
    pub spares: usize,
    pub network: NetworkSettings,
}

impl Config {
    /// The running program is its own helper.
    pub fn new(data: impl Into<PathBuf>) -> Self {
        let helper = PathBuf::from("/proc/self/exe");
        Self { data: data.into(), helper, cgroups: true, spares: 2, network: NetworkSettings::default() }
    }
}

/// Sandboxes by namespaces, overlays and a spawner: no container runtime underneath.
pub struct Engine {
    shared: Arc<Shared>,
    events: Mutex<Option<mpsc::Receiver<(SandboxId, SandboxEvent)>>>,
}

/// What the tasks of an engine share.
pub(crate) struct Shared {
    pub(crate) data: DataDir,
    pub(crate) store: Store,
    pub(crate) homes: Homes,
    /// Whether the kernel counts what each sandbox takes of the disk.
    pool: bool,
    pub(crate) ranges: Ranges,
    pub(crate) spawner: Spawner,
    pub(crate) spares: Spares,
    pub(crate) ways: Ways,
    pub(crate) gates: Gates,
    slots: Mutex<HashMap<SandboxId, Arc<Slot>>>,
    /// Looked at at the first use, and kept: a look costs more than a sandbox.
    host_base: Mutex<Option<Arc<HostBase>>>,
    pub(crate) tasks: TaskTracker,
    happened: mpsc::Sender<(SandboxId, SandboxEvent)>,
}

/// A sandbox before it lives.
struct Prepared {
    record: Record,
    mounts: Mounts,
    home: Owned,
}

/// What a sandbox is when somebody wants something of it.
pub(crate) enum Taken {
    Live(Arc<Live>),
    Stopped(Owned),
    Absent,
}

enum Looked {
    Left(Box<Left>),
    Other(Taken),
}

/// A sandbox that outlived its server.
struct Left {
    record: Record,
    presence: Presence,
    pidfd: OwnedFd,
    control: io::Result<OwnedFd>,
    home: Owned,
}

/// One sandbox's place: whoever changes its shape holds the lock.
pub(crate) type Slot = tokio::sync::Mutex<Option<Arc<Live>>>;

impl Engine {
    pub async fn open(config: Config) -> Result<Arc<Self>, OpenError> {
        let opened = spawn_blocking(move || open_blocking(&config)).await;
        opened.map_err(|error| OpenError::Host { what: error.to_string() }).flatten().map(Arc::new)
    }

    pub fn templates(&self) -> Templates<'_> {
        Templates::new(&self.shared.data, &self.shared.store)
    }

    /// Whether a sandbox that was made from this template is there.
    pub fn uses_template(&self, name: &str) -> bool {
        let named = Base::Named(name.to_owned());
        self.shared
            .homes
            .all()
            .iter()
            .any(|id| self.shared.homes.read(id).is_ok_and(|record| record.spec.base == named))
    }

    pub fn snapshots(&self) -> Snapshots<'_> {
        Snapshots::new(&self.shared.data, &self.shared.store)
    }

    /// Removes the layers that no template, snapshot or sandbox needs. Says how many went.
    pub fn remove_unused_layers(&self) -> Result<usize> {
        let shared = &self.shared;
        shared.store.remove_unused(&mut || {
            let mut used = self.templates().layers()?;
            used.extend(self.snapshots().layers()?);
            for record in shared.homes.all_records()? {
                used.extend(record.plan.all_layers());
                used.extend(record.spec.views.iter().filter_map(|view| match &view.source {
                    Source::Layer(layer) => Some(LayerName::from(layer)),
                    Source::Host(_) => None,
                }));
            }
            Ok(used)
        })
    }

    /// What can be kept here, or an error that says what cannot.
    fn checked(&self, spec: &SandboxSpec) -> Result<SandboxSpec> {
        self.capabilities().check(spec)?;
        network::check(&spec.network)?;
        let mut spec = spec.clone();
        if self.shared.ranges.identities() == Identities::Single {
            spec.user = Some(cabana_sandbox::User::root()); // there is nobody else
        }
        Ok(spec)
    }

    /// Ends the sandboxes that live here, the spawner and all tasks. What is persistent stays on disk.
    pub async fn close(&self) {
        self.shut(false).await;
    }

    /// As [`Engine::close`], but persistent sandboxes live on if they can, with their commands: whoever opens the data
    /// directory next finds them as they are by then. So they do when this process is killed.
    pub async fn leave(&self) {
        self.shut(true).await;
    }

    async fn shut(&self, leave: bool) {
        let slots: Vec<_> = self.shared.slots().iter().map(|(id, slot)| (id.clone(), slot.clone())).collect();
        for (id, slot) in slots {
            let mut slot = slot.lock().await;
            if let Some(live) = slot.take() {
                match leave && live.is_kept() {
                    true => self.shared.leave(&live).await,
                    false => drop(self.shared.end(&live).await),
                }
            }
            let _ = spawn_blocking({
                let (shared, id) = (self.shared.clone(), id);
                move || shared.homes.remove_ephemeral(&id)
            })
            .await;
        }
        self.shared.cool_all().await;
        self.shared.spawner.close().await;
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

fn open_blocking(config: &Config) -> Result<Engine, OpenError> {
    let host = |error: &dyn std::fmt::Display| OpenError::Host { what: error.to_string() };
    let ways = Ways::open(&config.network)?;
    let data = DataDir::open(&config.data)?;
    let mode = rootless::mode().map_err(|error| host(&error))?;
    let ranges = Ranges::open(mode, config.cgroups, data.path()).map_err(|error| host(&error))?;
    data.claim_ids(ranges.storage())?;
    let store = Store::open(&data, ranges.storage()).map_err(|error| host(&error))?;
    let homes = Homes::open(&data, ranges.storage()).map_err(|source| OpenError::Io {
        path: config.data.clone(),
        step: "opening the sandboxes",
        source,
    })?;
    let pool = pool::can_limit(data.path());
    let tasks = TaskTracker::new();
    let (happened, events) = mpsc::channel(1024);
    let spawner = Spawner::new(config.helper.clone(), tasks.clone());
    let shared = Shared {
        data,
        store,
        homes,
        pool,
        ranges,
        spawner,
        spares: Spares::new(config.spares),
        ways,
        gates: Gates::default(),
        slots: Mutex::default(),
        host_base: Mutex::default(),
        tasks,
        happened,
    };
    Ok(Engine { shared: Arc::new(shared), events: Mutex::new(Some(events)) })
}

impl Shared {
    pub(crate) fn capabilities(&self) -> Capabilities {
        let controllers = self.ranges.controllers();
        Capabilities {
            provider: "engine",
            identities: self.ranges.identities(),
            memory: controllers.map_or(Enforced::No, Controllers::memory),
            cpu: controllers.map_or(Enforced::No, Controllers::cpu),
            pids: controllers.map_or(Enforced::No, Controllers::pids),
            disk: if self.pool { Enforced::ByKernel } else { Enforced::ByWatching },
            inodes: Enforced::ByWatching,
            open_files: Enforced::ByKernel,
            io: controllers.map_or(Enforced::No, Controllers::io),
            network_off: Enforced::ByKernel,
            network_allow: Enforced::ByKernel,
            network_public: Enforced::ByKernel,
            network_host: Enforced::ByKernel,
            kill_tree: if self.ranges.has_cgroups() { Enforced::ByKernel } else { Enforced::ByWatching },
            exec: true,
            connect: true,
            pause: self.ranges.has_cgroups(),
            snapshot: true,
            search: true,
            late_views: false,
            host_base: true,
            outlives_server: self.ranges.identities() == Identities::Own,
            replays_output: true,
        }
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn slot(&self, id: &SandboxId) -> Arc<Slot> {
        self.slots().entry(id.clone()).or_default().clone()
    }

    /// A slot that nobody uses any more is let go, or a million sandboxes that came and went would stay in memory.
    pub(crate) fn let_go(&self, id: &SandboxId, slot: &Arc<Slot>) {
        let mut slots = self.slots();
        // The map's and the caller's: nobody else can come by it while the map is locked.
        if Arc::strong_count(slot) == 2 && slot.try_lock().is_ok_and(|live| live.is_none()) {
            slots.remove(id);
        }
    }

    async fn create(self: Arc<Self>, id: SandboxId, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        let slot = self.slot(&id);
        let mut held = slot.lock().await;
        let created = match self.take_up(&id, &mut held).await {
            Ok(Taken::Live(live)) => Ok(live),
            Ok(Taken::Stopped(_) | Taken::Absent) => self.make(&id, spec).await,
            Err(error) => Err(error),
        };
        self.settle(&id, held, &slot, created)
    }

    async fn find(self: Arc<Self>, id: SandboxId) -> Result<Found> {
        let slot = self.slot(&id);
        let mut held = slot.lock().await;
        let found = match self.take_up(&id, &mut held).await {
            Ok(Taken::Live(live)) if live.is_paused() => Ok(Found::Paused),
            Ok(Taken::Live(live)) => Ok(Found::Running(Arc::new(EngineSandbox::new(self.clone(), live)))),
            Ok(Taken::Stopped(_)) => Ok(Found::Stopped),
            Ok(Taken::Absent) => Ok(Found::Absent),
            Err(error) => Err(error),
        };
        drop(held);
        self.let_go(&id, &slot);
        found
    }

    async fn make(self: &Arc<Self>, id: &SandboxId, spec: SandboxSpec) -> Result<Arc<Live>> {
        let prepared = blocking({
            let (shared, id) = (self.clone(), id.clone());
            move || shared.prepare_new(&id, spec)
        });
        match self.launch(id, prepared.await?).await {
            Ok(live) => Ok(live),
            Err((error, owned)) => {
                let (shared, id) = (self.clone(), id.clone());
                let _ = blocking(move || shared.homes.remove(&id).map_err(removing)).await;
                drop(owned);
                Err(error)
            }
        }
    }

    async fn start(self: Arc<Self>, id: SandboxId) -> Result<Arc<dyn Sandbox>> {
        let slot = self.slot(&id);
        let mut held = slot.lock().await;
        let started = match self.take_up(&id, &mut held).await {
            Ok(Taken::Live(live)) => live.pause(false).await.map(|()| live),
            Ok(Taken::Stopped(owned)) => {
                let (shared, id_too) = (self.clone(), id.clone());
                match blocking(move || shared.prepare_again(&id_too, owned)).await {
                    Ok(prepared) => self.launch(&id, prepared).await.map_err(|(error, _)| error),
                    Err(error) => Err(error),
                }
            }
            Ok(Taken::Absent) => Err(Error::NoSandbox(id.clone())),
            Err(error) => Err(error),
        };
        self.settle(&id, held, &slot, started)
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
    async fn pause(self: Arc<Self>, id: SandboxId) -> Result<()> {
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

    async fn stop(self: Arc<Self>, id: SandboxId) -> Result<()> {
        let slot = self.slot(&id);
        let mut held = slot.lock().await;
        let stopped = match self.take_up(&id, &mut held).await {
            Ok(Taken::Live(live)) => {
                *held = None;
                let _owned = self.end(&live).await;
                let (shared, id) = (self.clone(), id.clone());
                blocking(move || shared.homes.remove_ephemeral(&id).map_err(removing)).await
            }
            Ok(Taken::Stopped(_)) => Ok(()),
            Ok(Taken::Absent) => Err(Error::NoSandbox(id.clone())),
            Err(error) => Err(error),
        };
        drop(held);
        self.let_go(&id, &slot);
        stopped
    }

    async fn destroy(self: Arc<Self>, id: SandboxId) -> Result<()> {
        let slot = self.slot(&id);
        let mut held = slot.lock().await;
        let owned = match self.take_up(&id, &mut held).await {
            Ok(Taken::Live(live)) => {
                *held = None;
                Ok(self.end(&live).await)
            }
            Ok(Taken::Stopped(owned)) => Ok(Some(owned)),
            Ok(Taken::Absent) => Ok(None),
            Err(error) => Err(error),
        };
        let removed = match owned {
            Ok(_owned) => {
                fault::at(Point::DestroyEnded);
                let (shared, id) = (self.clone(), id.clone());
                blocking(move || shared.homes.remove(&id).map_err(removing)).await
            }
            Err(error) => Err(error),
        };
        drop(held);
        self.let_go(&id, &slot);
        removed
    }

    /// Its directory stays ours until what is returned is dropped.
    async fn end(&self, live: &Live) -> Option<Owned> {
        live.stop().await;
        self.ended(live)
    }

    /// Gives back what a sandbox had that lives no more.
    fn ended(&self, live: &Live) -> Option<Owned> {
        let Holds { lease, home } = live.take_holds()?;
        fault::at(Point::StopEnded);
        self.ranges.give_back(lease);
        if live.is_kept()
            && let Ok(home) = self.homes.open_home(&live.id)
        {
            presence::withdraw(&home.path());
        }
        Some(home)
    }

    /// It lives on, and is somebody else's from here on.
    async fn leave(&self, live: &Live) {
        live.leave().await;
        drop(live.take_holds());
    }

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
        let taken = self.revive(id, *left).await?;
        if let Taken::Live(live) = &taken {
            *held = Some(live.clone());
        }
        Ok(taken)
    }

    /// All sandboxes of the data directory, as they look from outside.
    fn states(&self) -> Vec<(SandboxId, State)> {
        let state = |id: &SandboxId| match self.homes.presence(id) {
            Some(presence) if presence.find().is_none() => State::Stopped,
            Some(presence) if self.ranges.is_frozen(presence.range) => State::Paused,
            Some(_) => State::Running,
            None => State::Stopped,
        };
        self.homes.all().into_iter().map(|id| (id.clone(), state(&id))).collect()
    }

    fn look_for(&self, id: &SandboxId) -> Result<Looked> {
        let Some(home) = self.homes.own(id)? else { return Ok(Looked::Other(Taken::Absent)) };
        let alive = self.homes.presence(id).and_then(|presence| Some((presence.find()?, presence)));
        let Some((pidfd, presence)) = alive else { return Ok(Looked::Other(Taken::Stopped(home))) };
        let (record, path) = (self.homes.read(id)?, self.homes.open_home(id)?.path());
        let control = presence::knock(&path);
        Ok(Looked::Left(Box::new(Left { record, presence, pidfd, control, home })))
    }

    /// An init that cannot be talked to is ended: the sandbox is stopped then, and its files are kept.
    async fn revive(self: &Arc<Self>, id: &SandboxId, left: Left) -> Result<Taken> {
        let Left { record: Record { spec, plan }, presence, pidfd, control, home } = left;
        let pidfd = readiness::watch(pidfd).map_err(|error| Error::failed("watching the sandbox's init", error))?;
        let greeted = match control.and_then(Channel::new) {
            Ok(channel) => live::greet(&channel, presence.token.as_u128()).await.map(|found| (channel, found)),
            Err(_) => None,
        };
        let Some((channel, mut found)) = greeted else {
            live::end_of(&pidfd).await;
            return Ok(Taken::Stopped(home));
        };
        fault::at(Point::FoundGreeted);
        // From here on an error loses nothing: who stops talking to init leaves it as it was, for the next one.
        let lock = found.lock.take().ok_or(Error::Gone)?;
        let (shared, limits) = (self.clone(), spec.limits);
        let lease = blocking(move || shared.ranges.take_up(presence.range, lock, &limits)).await?;
        fault::at(Point::FoundLeased);
        let holds = Holds { lease, home };
        let parts = self.parts(id, &spec, Self::defaults(plan), holds, channel, pidfd);
        let stillness = found.stillness;
        let live = Live::found(parts, found)?;
        self.tasks.spawn(self.clone().follow(live.clone()));
        let settled = match live.settle(stillness).await {
            Ok(()) => self.hold_to(&live, &spec).await,
            Err(error) => Err(error),
        };
        if let Err(error) = settled {
            self.leave(&live).await;
            return Err(error);
        }
        Ok(Taken::Live(live))
    }

    fn parts(
        &self,
        id: &SandboxId,
        spec: &SandboxSpec,
        defaults: Defaults,
        holds: Holds,
        channel: Channel,
        pidfd: AsyncFd<OwnedFd>,
    ) -> Parts {
        Parts {
            id: id.clone(),
            defaults,
            limits: spec.limits,
            own: self.homes.fs(id),
            holds,
            kept: self.outlives(spec),
            channel,
            pidfd,
            tasks: self.tasks.clone(),
            happened: self.happened.clone(),
        }
    }

    /// Whether the sandbox lives on when this process ends.
    fn outlives(&self, spec: &SandboxSpec) -> bool {
        spec.lifetime == Lifetime::Persistent && self.ranges.identities() == Identities::Own
    }

    /// As it is now; making it anew takes seconds, and happens when the host's programs have changed.
    pub(crate) fn host_base(&self) -> Result<Arc<HostBase>> {
        let mut known = self.host_base.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = |base: &HostBase| base.layers().all(|layer| self.store.has(layer));
        let current = |base: &HostBase| whole(base) && HostBase::current_fingerprint() == base.fingerprint;
        if let Some(base) = known.as_ref().filter(|base| current(base)) {
            return Ok(base.clone());
        }
        let base = Arc::new(HostBase::prepare(&self.data, &self.store)?);
        *known = Some(base.clone());
        Ok(base)
    }

    /// Everything on disk, and the descriptors of a new sandbox.
    fn prepare_new(&self, id: &SandboxId, spec: SandboxSpec) -> Result<Prepared> {
        let layers_stay = self.store.hold()?;
        let mut plan = plan::of(&self.data, &self.store, &|| self.host_base(), &spec)?;
        plan.trust = self.trust(&plan)?;
        if let (Base::Named(_), Some(was)) = (&spec.base, &plan.fingerprint) {
            self.compare_base(id, was, &*self.host_base()?);
        }
        let record = Record { spec, plan };
        let (home, owned) = self.homes.make(id, &record)?;
        fault::at(Point::HomeNamed);
        drop(layers_stay); // the record says from here on that they are used
        let mounts = snapshot::dress_new(&self.store, &record.plan, &home.fs())
            .and_then(|()| plan::mounts(&self.data, &self.store, &record, &home.fs(), self.ranges.storage()));
        Ok(Prepared { mounts: mounts.inspect_err(|_| drop(home.remove()))?, record, home: owned })
    }

    /// Tells of a base that is not what it was.
    fn compare_base(&self, id: &SandboxId, was: &str, base: &HostBase) {
        if was != base.fingerprint {
            let changed = SandboxEvent::BaseChanged { was: was.to_owned(), now: base.fingerprint.clone() };
            let _ = self.happened.try_send((id.clone(), changed));
        }
    }

    /// The descriptors of a sandbox that is there.
    fn prepare_again(&self, id: &SandboxId, owned: Owned) -> Result<Prepared> {
        let mut record = self.homes.read(id)?;
        self.trust_again(id, &mut record)?;
        let home = self.homes.open_home(id)?;
        snapshot::settle(&self.store, &record.plan, &home.fs())?;
        if let Some(was) = record.plan.fingerprint.clone() {
            let base = self.host_base()?;
            record.plan.rebase(&base);
            self.compare_base(id, &was, &base);
        }
        let mounts = plan::mounts(&self.data, &self.store, &record, &home.fs(), self.ranges.storage())?;
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
    fn defaults(plan: plan::Plan) -> Defaults {
        let mut defaults = plan.defaults;
        if plan.trust.is_some() {
            layers::trusting(&mut defaults.env);
        }
        defaults
    }

    /// From directories to a running sandbox. If it fails, its directory comes back.
    async fn launch(self: &Arc<Self>, id: &SandboxId, prepared: Prepared) -> Result<Arc<Live>, (Error, Option<Owned>)> {
        let Prepared { record: Record { mut spec, plan }, mounts, home } = prepared;
        spec.sudo |= plan.sudo;
        let overlays = plan.overlays();
        let warm = match self.warm_for(id, mounts, &spec).await {
            Ok(warm) => warm,
            Err(error) => return Err((error, Some(home))),
        };
        let Warm { lease, channel, pidfd, .. } = warm;
        let parts = self.parts(id, &spec, Self::defaults(plan), Holds { lease, home }, channel, pidfd);
        let live = Live::new(parts).await.map_err(|(error, Holds { lease, home })| {
            self.ranges.give_back(lease);
            match error {
                SetupError::Refused(failure) => (setup_error(failure), Some(home)),
                SetupError::Lost(error) => (Error::failed("setting the sandbox up", error), Some(home)),
            }
        })?;
        fault::at(Point::InitReady);
        self.tasks.spawn(self.clone().follow(live.clone()));
        if let Err(error) = self.hold_to(&live, &spec).await {
            return Err((error, self.end(&live).await));
        }
        self.refill(overlays);
        Ok(live)
    }

    /// What is set once it lives.
    async fn hold_to(self: &Arc<Self>, live: &Arc<Live>, spec: &SandboxSpec) -> Result<()> {
        if spec.limits.disk.is_some() || spec.limits.inodes.is_some() {
            self.limit_disk(live, spec.limits).await?;
        }
        if spec.limits.memory.is_some() {
            self.tasks.spawn(live.clone().watch_memory());
        }
        live.set_network(&self.ways, &spec.network).await
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

    /// An init that is becoming this sandbox.
    async fn warm_for(self: &Arc<Self>, id: &SandboxId, mounts: Mounts, spec: &SandboxSpec) -> Result<Warm> {
        let warm = self.warm().await?;
        let warm = self.limit(warm, spec.limits).await?;
        let handed = self.hand_over(&warm, mounts, spec).await;
        fault::at(Point::InitTold);
        let handed = match handed {
            Ok(()) if self.outlives(spec) => self.let_stay(&warm, id).await,
            handed => handed,
        };
        match handed {
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
        told.map_err(failed)
    }

    /// Hears of the end of a sandbox that nobody asked for.
    async fn follow(self: Arc<Self>, live: Arc<Live>) {
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
        let (shared, id) = (self.clone(), live.id.clone());
        let _ = spawn_blocking(move || shared.homes.remove_ephemeral(&id)).await;
        drop(owned);
        drop(held);
        self.let_go(&live.id, &slot);
    }
}

fn removing(error: io::Error) -> Error {
    Error::failed("removing the sandbox's directory", error)
}

pub(crate) async fn blocking<T: Send + 'static>(act: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    joined(spawn_blocking(act)).await
}

async fn joined<T>(task: JoinHandle<Result<T>>) -> Result<T> {
    task.await.map_err(|error| Error::failed("a background step", error)).flatten()
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
        (_, libc::ENOSPC) => return Error::NoSpace,
        _ => return Error::failed(failure.step.text(), errno),
    };
    Error::Host(format!("{}: {why} ({errno})", failure.step.text()))
}

#[async_trait]
impl Provider for Engine {
    fn capabilities(&self) -> Capabilities {
        self.shared.capabilities()
    }

    async fn create(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        let spec = self.checked(spec)?;
        // A task of its own: who stops waiting does not leave half a sandbox.
        let made = self.shared.tasks.spawn(self.shared.clone().create(id.clone(), spec));
        joined(made).await
    }

    async fn attach(&self, id: &SandboxId) -> Result<Found> {
        joined(self.shared.tasks.spawn(self.shared.clone().find(id.clone()))).await
    }

    async fn start(&self, id: &SandboxId) -> Result<Arc<dyn Sandbox>> {
        joined(self.shared.tasks.spawn(self.shared.clone().start(id.clone()))).await
    }

    async fn pause(&self, id: &SandboxId) -> Result<()> {
        if !self.capabilities().pause {
            return Err(unsupported("pausing"));
        }
        joined(self.shared.tasks.spawn(self.shared.clone().pause(id.clone()))).await
    }

    async fn stop(&self, id: &SandboxId) -> Result<()> {
        joined(self.shared.tasks.spawn(self.shared.clone().stop(id.clone()))).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<()> {
        joined(self.shared.tasks.spawn(self.shared.clone().destroy(id.clone()))).await
    }

    async fn list(&self) -> Result<Stream<(SandboxId, State)>> {
        let shared = self.shared.clone();
        let ids = blocking(move || Ok(shared.states())).await?;
        let live: Vec<_> = self.shared.slots().iter().map(|(id, slot)| (id.clone(), slot.clone())).collect();
        let mut alive = HashMap::new();
        for (id, slot) in live {
            if let Some(live) = slot.lock().await.as_ref() {
                alive.insert(id, if live.is_paused() { State::Paused } else { State::Running });
            }
        }
        let state = move |(id, state): (SandboxId, State)| {
            let state = alive.get(&id).copied().unwrap_or(state);
            Ok((id, state))
        };
        Ok(stream::iter(ids.into_iter().map(state)).boxed())
    }

    async fn snapshot(&self, id: &SandboxId) -> Result<Base> {
        joined(self.shared.tasks.spawn(self.shared.clone().snapshot(id.clone()))).await
    }

    async fn save(&self, id: &SandboxId) -> Result<Stream<Bytes>> {
        joined(self.shared.tasks.spawn(self.shared.clone().save(id.clone()))).await
    }

    async fn restore(&self, id: &SandboxId, spec: &SandboxSpec, saved: Stream<Bytes>) -> Result<()> {
        let spec = self.checked(spec)?;
        joined(self.shared.tasks.spawn(self.shared.clone().restore(id.clone(), spec, saved))).await
    }

    async fn import(&self, layer: &LayerId, tar: Stream<Bytes>) -> Result<()> {
        if self.shared.store.has(layer) {
            return Ok(());
        }
        let (shared, layer) = (self.shared.clone(), *layer);
        crate::files::fed(tar, move |tar| shared.store.import_checked(&layer, tar)).await
    }

    fn events(&self) -> Stream<(SandboxId, SandboxEvent)> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner).take();
        match events {
            Some(events) => {
                stream::unfold(events, |mut events| async { events.recv().await.map(|event| (Ok(event), events)) })
                    .boxed()
            }
            None => stream::empty().boxed(), // there is one reader
        }
    }
}

fn unsupported(what: &'static str) -> Error {
    Error::Unsupported { provider: "engine", what }
}
