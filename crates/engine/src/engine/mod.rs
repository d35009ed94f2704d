//! The provider: makes, starts, stops and deletes sandboxes, and knows those that live.

mod bases;
mod found;
mod launch;
mod life;
mod used;
mod views;

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use bytes::Bytes;
use cabana_sandbox::{
    Base, Capabilities, Enforced, Error, Found, Identities, LayerId, Overrides, Provider, Result, Sandbox,
    SandboxEvent, SandboxId, SandboxSpec, SnapshotId, State, Stream, Tell, Template, View, VolumeId,
};
use futures_util::{StreamExt, stream};
use tokio::{
    runtime::Handle,
    sync::mpsc,
    task::{JoinHandle, spawn_blocking},
};
use tokio_util::task::TaskTracker;

pub(crate) use self::{
    found::Taken,
    launch::{launch_error, map_error},
};
use crate::{
    cgroup::Controllers,
    data_dir::{DataDir, OpenError},
    disk::pool,
    home::Homes,
    host,
    identity::Ranges,
    lane::Waker,
    layers::{HostBase, Store, Templates},
    live::Live,
    network::{self, NetworkSettings, Ways},
    rootless,
    snapshot::{Gates, Snapshots},
    spawner::Spawner,
    uncharged::{self, Uncharged},
    warm::Spares,
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
    _waker: Waker,
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
    pub(crate) uncharged: Arc<Uncharged>,
    happened: mpsc::Sender<(SandboxId, SandboxEvent)>,
}

/// One sandbox's place: whoever changes its shape holds the lock.
pub(crate) type Slot = tokio::sync::Mutex<Option<Arc<Live>>>;

impl Engine {
    pub async fn open(config: Config) -> Result<Arc<Self>, OpenError> {
        let runtime = Handle::current();
        let opened = spawn_blocking(move || open_blocking(&config, runtime)).await;
        let engine = opened.map_err(|error| OpenError::Host { what: error.to_string() }).flatten()?;
        engine.shared.tasks.spawn({
            let controllers = engine.shared.ranges.controllers().cloned();
            uncharged::watch(engine.shared.uncharged.clone(), controllers.unwrap_or_default())
        });
        Ok(Arc::new(engine))
    }

    pub fn templates(&self) -> Templates<'_> {
        self.shared.templates()
    }

    /// Whether a sandbox that was made from this template is there.
    pub fn uses_template(&self, name: &str) -> bool {
        self.shared.uses_template(name)
    }

    pub fn snapshots(&self) -> Snapshots<'_> {
        self.shared.snapshots()
    }

    /// What was written in a sandbox, as a layer, or nothing. The sandbox ends with it.
    pub async fn into_layer(&self, id: &SandboxId) -> Result<Option<LayerId>> {
        joined(self.shared.tasks.spawn(self.shared.clone().into_layer(id.clone()))).await
    }

    /// Removes the layers that no template, snapshot or sandbox needs. Says how many went.
    pub fn remove_unused_layers(&self) -> Result<usize> {
        self.shared.remove_unused_layers().map(Option::unwrap_or_default)
    }

    /// What can be kept here, or an error that says what cannot.
    async fn checked(&self, spec: &SandboxSpec) -> Result<SandboxSpec> {
        self.capabilities().check(spec)?;
        network::check(&spec.network).await?;
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
        self.shared.uncharged.close();
        self.shared.cool_all().await;
        self.shared.spawner.close().await;
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

fn open_blocking(config: &Config, runtime: Handle) -> Result<Engine, OpenError> {
    let unfit = |error: &dyn std::fmt::Display| OpenError::Host { what: error.to_string() };
    if host::suid_dumpable() == Some(host::SUID_DUMPABLE) {
        return Err(unfit(&"fs.suid_dumpable is 1, which opens the memory of every sandbox's init to its guests"));
    }
    let ways = Ways::open(&config.network)?;
    let data = DataDir::open(&config.data)?;
    let mode = rootless::mode().map_err(|error| unfit(&error))?;
    let ranges = Ranges::open(mode, config.cgroups, data.path()).map_err(|error| unfit(&error))?;
    data.claim_ids(ranges.storage())?;
    let store = Store::open(&data, ranges.storage()).map_err(|error| unfit(&error))?;
    let homes = Homes::open(&data, ranges.storage()).map_err(|source| OpenError::Io {
        path: config.data.clone(),
        step: "opening the sandboxes",
        source,
    })?;
    let pool = pool::can_limit(data.path());
    let tasks = TaskTracker::new();
    let (happened, events) = mpsc::channel(1024);
    let spawner = Spawner::new(config.helper.clone(), ranges.controllers().cloned(), tasks.clone());
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
        uncharged: Arc::default(),
        happened,
    };
    let waker = Waker::start(runtime).map_err(|error| unfit(&error))?;
    Ok(Engine { shared: Arc::new(shared), events: Mutex::new(Some(events)), _waker: waker })
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
            templates: true,
            search: true,
            late_views: self.changes_views(),
            volumes: true,
            host_base: true,
            outlives_server: self.ranges.identities() == Identities::Own,
            replays_output: true,
            read_only_root: true,
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
}

pub(crate) async fn blocking<T: Send + 'static>(act: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    joined(spawn_blocking(act)).await
}

async fn joined<T>(task: JoinHandle<Result<T>>) -> Result<T> {
    task.await.map_err(|error| Error::failed("a background step", error)).flatten()
}

#[async_trait]
impl Provider for Engine {
    fn capabilities(&self) -> Capabilities {
        self.shared.capabilities()
    }

    fn reaches_inside(&self, network: &cabana_sandbox::NetworkPolicy) -> Result<bool> {
        network::reaches_inside(&self.shared.ways, network)
    }

    async fn create(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        let spec = self.checked(spec).await?;
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

    async fn snapshot(&self, id: &SandboxId, name: SnapshotId) -> Result<Base> {
        joined(self.shared.tasks.spawn(self.shared.clone().snapshot(id.clone(), name))).await
    }

    async fn snapshots(&self) -> Result<Stream<SnapshotId>> {
        let shared = self.shared.clone();
        let names = blocking(move || shared.snapshots().names()).await?;
        Ok(stream::iter(names.into_iter().map(Ok)).boxed())
    }

    async fn remove_snapshot(&self, name: SnapshotId) -> Result<()> {
        let shared = self.shared.clone();
        match blocking(move || shared.snapshots().rm(name)).await {
            Err(Error::NoSnapshot(_)) => Ok(()),
            removed => removed,
        }
    }

    async fn templates(&self) -> Result<Vec<(String, Result<Template>)>> {
        let shared = self.shared.clone();
        blocking(move || shared.templates().ls()).await
    }

    async fn template(&self, name: &str) -> Result<Template> {
        let (shared, name) = (self.shared.clone(), name.to_owned());
        blocking(move || shared.templates().get(&name)).await
    }

    async fn add_template(&self, name: &str, wishes: &Overrides, most: u64, tar: Stream<Bytes>) -> Result<Template> {
        let add = self.shared.clone().add_template(name.to_owned(), wishes.clone(), most, tar);
        joined(self.shared.tasks.spawn(add)).await
    }

    async fn remove_template(&self, name: &str) -> Result<()> {
        let (shared, name) = (self.shared.clone(), name.to_owned());
        blocking(move || shared.templates().rm(&name, &|name| shared.uses_template(name))).await
    }

    async fn set_views(&self, id: &SandboxId, views: &[View]) -> Result<()> {
        joined(self.shared.tasks.spawn(self.shared.clone().set_views(id.clone(), views.to_vec()))).await
    }

    async fn make_volume(&self, name: VolumeId) -> Result<()> {
        let shared = self.shared.clone();
        blocking(move || shared.homes.volumes().make(name)).await
    }

    async fn volumes(&self) -> Result<Stream<VolumeId>> {
        let shared = self.shared.clone();
        let names = blocking(move || shared.homes.volumes().all()).await?;
        Ok(stream::iter(names.into_iter().map(Ok)).boxed())
    }

    async fn volume_usage(&self, name: VolumeId) -> Result<u64> {
        let shared = self.shared.clone();
        blocking(move || shared.homes.volumes().usage(name)).await
    }

    async fn remove_volume(&self, name: VolumeId) -> Result<()> {
        let shared = self.shared.clone();
        blocking(move || shared.homes.volumes().remove(name, &|id| shared.homes.uses_volume(id, name))).await
    }

    async fn tidy(&self) -> Result<bool> {
        let shared = self.shared.clone();
        blocking(move || shared.tidy()).await
    }

    async fn unused(&self, without: &[Base]) -> Result<Vec<(String, u64)>> {
        let (shared, without) = (self.shared.clone(), without.to_vec());
        blocking(move || shared.unused_layers(&without)).await
    }

    async fn save(&self, id: &SandboxId) -> Result<Stream<Bytes>> {
        joined(self.shared.tasks.spawn(self.shared.clone().save(id.clone()))).await
    }

    async fn restore(&self, id: &SandboxId, spec: &SandboxSpec, saved: Stream<Bytes>) -> Result<Vec<String>> {
        let spec = self.checked(spec).await?;
        joined(self.shared.tasks.spawn(self.shared.clone().restore(id.clone(), spec, saved))).await
    }

    async fn save_all(&self, left_out: Tell) -> Result<Stream<Bytes>> {
        self.shared.clone().save_all(left_out).await
    }

    async fn restore_all(&self, saved: Stream<Bytes>) -> Result<Vec<String>> {
        joined(self.shared.tasks.spawn(self.shared.clone().restore_all(saved))).await
    }

    async fn shelve(&self, id: &SandboxId) -> Result<()> {
        joined(self.shared.tasks.spawn(self.shared.clone().shelve(id.clone()))).await
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
