//! A provider in memory: files and states with the semantics of the real ones, and no commands.

mod fault;
mod files;
mod fs;
mod kept;
mod resolve;
mod sandbox;
mod templates;
mod watch;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use cabana_sandbox::{
    Base, Capabilities, Enforced, Error, Found, Identities, LayerId, Overrides, Provider, Result, Sandbox,
    SandboxEvent, SandboxId, SandboxSpec, SnapshotId, State, Stream, Tell, Template, View, VolumeId,
};
use futures_util::{StreamExt, stream};
use tokio::sync::{OwnedRwLockWriteGuard, RwLock};

pub use fault::Fault;
use fs::Fs;
use kept::{Everything, Kept};
use sandbox::{FakeSandbox, Session};
use templates::Made;

const NAME: &str = "fake";

/// Clones are the same provider. Everything is gone with the last of them.
#[derive(Clone, Default)]
pub struct Fake {
    boxes: Arc<Mutex<BTreeMap<SandboxId, Record>>>,
    /// Of saved ones, by their numbers.
    kept: Arc<Mutex<BTreeMap<u64, Kept>>>,
    everything: Arc<Mutex<BTreeMap<u64, Everything>>>,
    /// What those stand on whose files are saved elsewhere.
    shelf: Arc<Mutex<BTreeMap<SandboxId, Base>>>,
    snapshots: Arc<Mutex<BTreeMap<SnapshotId, Kept>>>,
    templates: Arc<Mutex<BTreeMap<String, Made>>>,
    volumes: Arc<Mutex<BTreeSet<VolumeId>>>,
    volumes_held: Arc<AtomicBool>,
    /// What each takes, and whether that cannot be told.
    volume_bytes: Arc<AtomicU64>,
    volumes_unknown: Arc<AtomicBool>,
    /// How many times a volume was begun to be measured.
    measurements: Arc<AtomicU64>,
    /// Who has it measures the files of a sandbox.
    measuring: Arc<RwLock<()>>,
    /// Who has it makes and starts a sandbox.
    beginning: Arc<RwLock<()>>,
    numbers: Arc<AtomicU64>,
    /// So many of the next stops and destroys fail.
    away: Arc<AtomicU64>,
    fault: Option<Fault>,
}

/// One sandbox: its files stay while it is stopped, its session does not.
struct Record {
    spec: SandboxSpec,
    fs: Arc<Mutex<Fs>>,
    session: Option<Arc<Session>>,
    paused: bool,
}

impl Fake {
    pub fn new() -> Self {
        Self::default()
    }

    /// One that does one thing wrong.
    pub fn broken(fault: Fault) -> Self {
        Self { fault: Some(fault), ..Self::default() }
    }

    /// So many of the next stops and destroys fail, and change nothing.
    pub fn be_away(&self, times: u64) {
        self.away.store(times, Ordering::Relaxed);
    }

    /// From now on the measuring of a volume does not end.
    pub fn hold_volumes(&self) {
        self.volumes_held.store(true, Ordering::Relaxed);
    }

    /// Until it is dropped, the measuring of a sandbox does not end.
    pub async fn hold_usage(&self) -> OwnedRwLockWriteGuard<()> {
        self.measuring.clone().write_owned().await
    }

    /// Until it is dropped, no sandbox is made or started.
    pub async fn hold_begin(&self) -> OwnedRwLockWriteGuard<()> {
        self.beginning.clone().write_owned().await
    }

    /// The same sandboxes, and nothing that is held of this server's is held of the next one's.
    pub fn of_next_server(&self) -> Self {
        Self { beginning: Arc::default(), ..self.clone() }
    }

    /// As `create` leaves it.
    pub fn make(&self, id: &SandboxId) {
        let mut made = Record::new(&Self::spec(), self.fault);
        self.wake(id, &mut made);
        self.boxes().insert(id.clone(), made);
    }

    /// How many there are, whatever they do.
    pub fn count(&self) -> usize {
        self.boxes().len()
    }

    /// How many of them run or are paused.
    pub fn running(&self) -> usize {
        self.boxes().values().filter(|there| there.session.is_some()).count()
    }

    /// From now on each volume takes so much, or cannot be measured.
    pub fn set_volume_size(&self, bytes: Option<u64>) {
        self.volume_bytes.store(bytes.unwrap_or(0), Ordering::Relaxed);
        self.volumes_unknown.store(bytes.is_none(), Ordering::Relaxed);
    }

    /// How many times a volume was begun to be measured.
    pub fn volume_measurements(&self) -> u64 {
        self.measurements.load(Ordering::Relaxed)
    }

    fn there(&self) -> Result<()> {
        let away = self.away.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |times| times.checked_sub(1));
        if away.is_ok() { Err(Error::Offline("the fake is away".into())) } else { Ok(()) }
    }

    /// What every sandbox of it is made from.
    pub fn spec() -> SandboxSpec {
        SandboxSpec::new(Base::Named("fake".into()))
    }

    fn boxes(&self) -> MutexGuard<'_, BTreeMap<SandboxId, Record>> {
        lock(&self.boxes)
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn wake(&self, id: &SandboxId, sandbox: &mut Record) -> Arc<dyn Sandbox> {
        let session = sandbox.session.get_or_insert_with(|| Session::new(sandbox.fs.clone())).clone();
        Arc::new(FakeSandbox::new(id.clone(), session, &sandbox.spec, self.measuring.clone(), self.fault))
    }

    fn check(&self, spec: &SandboxSpec) -> Result<()> {
        let mut asked = spec.clone();
        if self.has(Fault::LimitsArePretended) || self.has(Fault::AbsurdLimitsAreTaken) && spec.limits.check().is_err()
        {
            asked.limits = Default::default();
        }
        if self.has(Fault::NetworkIsPretended) {
            asked.network = cabana_sandbox::NetworkPolicy::Off;
        }
        self.capabilities().check(&asked)?;
        if !spec.views.is_empty() {
            return Err(unsupported("views"));
        }
        match &spec.base {
            base if self.base_files(base).is_some() => Ok(()),
            Base::Snapshot(name) => Err(Error::NoSnapshot(*name)),
            Base::Named(name) if name == "fake" || self.has(Fault::EveryTemplateIsThere) => Ok(()),
            Base::Named(name) => Err(Error::NoTemplate(name.clone())),
            Base::Host | Base::Layers(_) => Err(unsupported("layers")),
        }
    }
}

fn unsupported(what: &'static str) -> Error {
    Error::Unsupported { provider: NAME, what }
}

/// A panic in one test's task is told there: what the lock holds is as good as before.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl Provider for Fake {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            provider: NAME,
            identities: Identities::None,
            memory: Enforced::No,
            cpu: Enforced::No,
            pids: Enforced::No,
            disk: Enforced::ByKernel,
            inodes: Enforced::ByKernel,
            open_files: Enforced::No,
            io: Enforced::No,
            // Nothing runs, so nothing gets out.
            network_off: Enforced::ByKernel,
            network_allow: Enforced::No,
            network_public: Enforced::No,
            network_host: Enforced::No,
            kill_tree: Enforced::No,
            exec: false,
            connect: false,
            pause: true,
            snapshot: true,
            templates: true,
            search: false,
            late_views: false,
            volumes: true,
            host_base: false,
            outlives_server: false,
            replays_output: false,
            read_only_root: false,
        }
    }

    async fn create(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        let _may = self.beginning.read().await;
        self.check(spec).inspect_err(|_| {
            if self.has(Fault::RefusedCreateLeavesOne) {
                self.boxes().entry(id.clone()).or_insert_with(|| Record::new(spec, None));
            }
        })?;
        if self.has(Fault::ConcurrentCreatesRace) && !self.boxes().contains_key(id) {
            tokio::task::yield_now().await;
            let mut boxes = self.boxes();
            let mut made = Record::new(spec, self.fault);
            let sandbox = self.wake(id, &mut made);
            boxes.insert(id.clone(), made);
            return Ok(sandbox);
        }
        let mut boxes = self.boxes();
        if self.has(Fault::CreateAgainStartsAfresh) {
            boxes.remove(id);
        }
        let shared =
            self.has(Fault::FilesAreShared).then(|| boxes.values().next().map(|other| other.fs.clone())).flatten();
        match boxes.get_mut(id) {
            Some(there) if there.session.is_none() && !self.has(Fault::CreateWakesAStoppedOne) => {
                Err(Error::invalid("id", "there is a stopped sandbox of this id: start it"))
            }
            Some(there) => Ok(self.wake(id, there)),
            None => {
                let mut made = Record::new(spec, self.fault);
                made.fs = shared.or_else(|| self.base_files(&spec.base)).unwrap_or(made.fs);
                let sandbox = self.wake(id, &mut made);
                boxes.insert(id.clone(), made);
                Ok(sandbox)
            }
        }
    }

    async fn attach(&self, id: &SandboxId) -> Result<Found> {
        let mut boxes = self.boxes();
        match boxes.get_mut(id) {
            None if self.has(Fault::AttachToAbsentFails) => Err(Error::NoSandbox(id.clone())),
            None => Ok(Found::Absent),
            Some(there) if there.session.is_none() && !self.has(Fault::AttachWakes) => Ok(Found::Stopped),
            Some(there) if there.paused => Ok(Found::Paused(self.wake(id, there))),
            Some(there) => Ok(Found::Running(self.wake(id, there))),
        }
    }

    async fn start(&self, id: &SandboxId) -> Result<Arc<dyn Sandbox>> {
        let _may = self.beginning.read().await;
        let mut boxes = self.boxes();
        if self.has(Fault::StartMakesAnAbsentOne) {
            boxes.entry(id.clone()).or_insert_with(|| Record::new(&Self::spec(), None));
        }
        let there = boxes.get_mut(id).ok_or_else(|| Error::NoSandbox(id.clone()))?;
        if there.session.is_some() && self.has(Fault::StartOfARunningOneFails) {
            return Err(Error::invalid("id", "it runs already"));
        }
        there.paused &= self.has(Fault::StartLeavesItPaused);
        Ok(self.wake(id, there))
    }

    async fn pause(&self, id: &SandboxId) -> Result<()> {
        let mut boxes = self.boxes();
        match boxes.get_mut(id) {
            _ if self.has(Fault::PauseIsPretended) => Ok(()),
            Some(there) if there.session.is_some() => {
                if there.paused && self.has(Fault::PauseTwiceFails) {
                    return Err(Error::Paused);
                }
                there.paused = true;
                if self.has(Fault::PauseEndsTheSession)
                    && let Some(session) = there.session.replace(Session::new(there.fs.clone()))
                {
                    session.end(self.fault);
                }
                Ok(())
            }
            _ if self.has(Fault::AnythingCanBePaused) => Ok(()),
            Some(_) => Err(Error::Gone),
            None => Err(Error::NoSandbox(id.clone())),
        }
    }

    async fn stop(&self, id: &SandboxId) -> Result<()> {
        self.there()?;
        let mut boxes = self.boxes();
        let there = boxes.get_mut(id).ok_or_else(|| Error::NoSandbox(id.clone()))?;
        if there.paused && self.has(Fault::PausedOnesDoNotStop) {
            return Err(Error::Paused);
        }
        there.paused = false;
        match there.session.take() {
            Some(session) => {
                lock(&there.fs).forget_at_stop(self.fault);
                session.end(self.fault);
                Ok(())
            }
            None if self.has(Fault::StopTwiceFails) => Err(Error::Gone),
            None => Ok(()),
        }
    }

    async fn destroy(&self, id: &SandboxId) -> Result<()> {
        self.there()?;
        self.forget_kept(id);
        lock(&self.shelf).remove(id);
        let mut boxes = self.boxes();
        let there = if self.has(Fault::DestroyOnlyStops) {
            boxes.get_mut(id).and_then(|there| there.session.take())
        } else {
            match boxes.remove(id) {
                Some(there) => there.session,
                None if self.has(Fault::DestroyTwiceFails) => return Err(Error::NoSandbox(id.clone())),
                None => None,
            }
        };
        if let Some(session) = there {
            session.end(self.fault);
        }
        Ok(())
    }

    async fn list(&self) -> Result<Stream<(SandboxId, State)>> {
        let state = |there: &Record| match there.session {
            Some(_) if there.paused => State::Paused,
            Some(_) if !self.has(Fault::ListSaysStopped) => State::Running,
            _ => State::Stopped,
        };
        let mut all: Vec<_> = self.boxes().iter().map(|(id, there)| (id.clone(), state(there))).collect();
        if self.has(Fault::ListOmitsStoppedOnes) {
            all.retain(|(_, state)| *state != State::Stopped);
        }
        Ok(stream::iter(all.into_iter().map(Ok)).boxed())
    }

    async fn snapshot(&self, id: &SandboxId, name: SnapshotId) -> Result<Base> {
        self.take_snapshot(id, name).map(|()| Base::Snapshot(name))
    }

    async fn snapshots(&self) -> Result<Stream<SnapshotId>> {
        let mut all: Vec<_> = lock(&self.snapshots).keys().copied().collect();
        if self.has(Fault::SnapshotsAreNotListed) {
            all.clear();
        }
        Ok(stream::iter(all.into_iter().map(Ok)).boxed())
    }

    async fn remove_snapshot(&self, name: SnapshotId) -> Result<()> {
        let removed = self.has(Fault::SnapshotRemovalIsPretended) || lock(&self.snapshots).remove(&name).is_some();
        if !removed && self.has(Fault::SnapshotRemovedTwiceFails) { Err(Error::NoSnapshot(name)) } else { Ok(()) }
    }

    async fn templates(&self) -> Result<Vec<(String, Result<Template>)>> {
        Ok(self.listed_templates())
    }

    async fn template(&self, name: &str) -> Result<Template> {
        self.one_template(name)
    }

    async fn add_template(&self, name: &str, wishes: &Overrides, most: u64, tar: Stream<Bytes>) -> Result<Template> {
        self.make_template(name, wishes, most, tar).await
    }

    async fn remove_template(&self, name: &str) -> Result<()> {
        self.forget_template(name)
    }

    async fn set_views(&self, id: &SandboxId, views: &[View]) -> Result<()> {
        match self.boxes().contains_key(id) {
            false => Err(Error::NoSandbox(id.clone())),
            true if views.is_empty() => Ok(()),
            true => Err(unsupported("views")),
        }
    }

    async fn make_volume(&self, name: VolumeId) -> Result<()> {
        lock(&self.volumes).insert(name);
        Ok(())
    }

    async fn volumes(&self) -> Result<Stream<VolumeId>> {
        let mut all: Vec<_> = lock(&self.volumes).iter().copied().collect();
        if self.has(Fault::VolumesAreNotListed) {
            all.clear();
        }
        Ok(stream::iter(all.into_iter().map(Ok)).boxed())
    }

    async fn volume_usage(&self, name: VolumeId) -> Result<u64> {
        self.measurements.fetch_add(1, Ordering::Relaxed);
        if self.volumes_held.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        if self.volumes_unknown.load(Ordering::Relaxed) {
            return Err(Error::TimedOut("the volume"));
        }
        let known = lock(&self.volumes).contains(&name) || self.has(Fault::AbsentVolumeIsMeasured);
        if known { Ok(self.volume_bytes.load(Ordering::Relaxed)) } else { Err(Error::NoVolume(name)) }
    }

    async fn remove_volume(&self, name: VolumeId) -> Result<()> {
        if !self.has(Fault::VolumeRemovalIsPretended) {
            lock(&self.volumes).remove(&name);
        }
        Ok(())
    }

    async fn tidy(&self) -> Result<bool> {
        Ok(true)
    }

    async fn unused(&self, _: &[Base]) -> Result<Vec<(String, u64)>> {
        Ok(Vec::new())
    }

    async fn save(&self, id: &SandboxId) -> Result<Stream<Bytes>> {
        self.save_files(id).map(Self::saved)
    }

    async fn restore(&self, id: &SandboxId, spec: &SandboxSpec, saved: Stream<Bytes>) -> Result<Vec<String>> {
        self.check(spec)?;
        self.put_back(id, spec, saved).await.map(|()| Vec::new())
    }

    async fn save_all(&self, _: Tell) -> Result<Stream<Bytes>> {
        Ok(Self::saved(self.save_everything()))
    }

    async fn restore_all(&self, saved: Stream<Bytes>) -> Result<Vec<String>> {
        self.put_everything_back(saved).await
    }

    async fn shelve(&self, id: &SandboxId) -> Result<()> {
        self.put_on_shelf(id)
    }

    async fn import(&self, _: &LayerId, _: Stream<Bytes>) -> Result<()> {
        Err(unsupported("layers"))
    }

    fn events(&self) -> Stream<(SandboxId, SandboxEvent)> {
        stream::pending().boxed()
    }
}

impl Record {
    fn new(spec: &SandboxSpec, fault: Option<Fault>) -> Self {
        let mut fs = Fs::new(fault);
        fs.limits = spec.limits;
        Self { spec: spec.clone(), fs: Arc::new(Mutex::new(fs)), session: None, paused: false }
    }
}
