//! One live sandbox in memory.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use cabana_sandbox::{
    Capabilities, Defaults, Duplex, Error, ExecId, ExecSpec, Files, Position, Process, Provider, Reattached, Result,
    Sandbox, SandboxId, SandboxPath, SandboxSpec, Stored, StoredParts, Usage, User, Wanted,
};
use tokio::sync::RwLock;

use super::{Fake, Fault, files::FakeFiles, fs::Fs, lock, unsupported};

/// From one start to the next stop. Handles of an ended session are `Gone` for ever.
pub(super) struct Session {
    alive: AtomicBool,
    fs: Arc<Mutex<Fs>>,
}

impl Session {
    pub(super) fn new(fs: Arc<Mutex<Fs>>) -> Arc<Self> {
        Arc::new(Self { alive: AtomicBool::new(true), fs })
    }

    pub(super) fn end(&self, fault: Option<Fault>) {
        if fault != Some(Fault::OldHandlesWork) {
            self.alive.store(false, Ordering::SeqCst);
        }
        if fault != Some(Fault::WatchOutlivesItsSandbox) {
            lock(&self.fs).watchers.clear();
        }
    }

    pub(super) fn fs(&self) -> Result<MutexGuard<'_, Fs>> {
        if self.alive.load(Ordering::SeqCst) { Ok(lock(&self.fs)) } else { Err(Error::Gone) }
    }
}

pub(super) struct FakeSandbox {
    id: SandboxId,
    session: Arc<Session>,
    defaults: Defaults,
    measuring: Arc<RwLock<()>>,
    fault: Option<Fault>,
}

impl FakeSandbox {
    pub(super) fn new(
        id: SandboxId,
        session: Arc<Session>,
        spec: &SandboxSpec,
        measuring: Arc<RwLock<()>>,
        fault: Option<Fault>,
    ) -> Self {
        let named = |name: &str| User::new(name).unwrap_or_else(|_| User::root());
        let user = match &spec.user {
            _ if fault == Some(Fault::DefaultUserIsRoot) => User::root(),
            Some(user) if fault != Some(Fault::SpecUserIsIgnored) => user.clone(),
            _ => named("user"),
        };
        let workdir = SandboxPath::new("/home/user").unwrap_or_else(|_| SandboxPath::root());
        let id = if fault == Some(Fault::HandleHasAnotherId) { SandboxId::random() } else { id };
        Self { id, session, defaults: Defaults { user, workdir, env: BTreeMap::new() }, measuring, fault }
    }

    fn capabilities(&self) -> Capabilities {
        Fake::new().capabilities()
    }
}

#[async_trait]
impl Sandbox for FakeSandbox {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn defaults(&self) -> &Defaults {
        &self.defaults
    }

    async fn exec(&self, spec: ExecSpec) -> Result<Process> {
        spec.check()?;
        drop(self.session.fs()?);
        Err(unsupported("exec"))
    }

    async fn reattach(&self, _: &ExecId, _: Position) -> Result<Reattached> {
        self.session.fs().map(|_| Reattached::Missing)
    }

    async fn forget(&self, _: &ExecId) -> Result<()> {
        self.session.fs().map(drop)
    }

    async fn processes(&self) -> Result<Vec<(ExecId, u32)>> {
        self.session.fs().map(|_| Vec::new())
    }

    fn files(&self, user: Option<&User>) -> Arc<dyn Files> {
        let user = user.unwrap_or(&self.defaults.user).clone();
        Arc::new(FakeFiles::new(self.session.clone(), user, self.fault))
    }

    fn files_by_root(&self, user: Option<&User>) -> Arc<dyn Files> {
        let user = user.unwrap_or(&self.defaults.user).clone();
        Arc::new(FakeFiles::new(self.session.clone(), user, self.fault).by_root())
    }

    async fn connect(&self, _: u16) -> Result<Box<dyn Duplex>> {
        Err(unsupported("connect"))
    }

    async fn update(&self, wanted: Wanted) -> Result<()> {
        drop(self.session.fs()?);
        let (mut spec, mut limits) = (Fake::spec(), None);
        match wanted {
            Wanted::Limits(wanted) => {
                spec.limits = wanted;
                limits = Some(wanted);
            }
            Wanted::Network(network) => spec.network = network,
            Wanted::Views(_) => return Err(unsupported("views")),
        }
        if self.fault != Some(Fault::UpdateIsPretended) {
            self.capabilities().check(&spec)?;
        }
        if let Some(limits) = limits.filter(|_| self.fault != Some(Fault::UpdateChangesNothing)) {
            self.session.fs()?.limits = limits;
        }
        Ok(())
    }

    async fn usage(&self) -> Result<Usage> {
        drop(self.session.fs()?);
        // Files are measured also where it stops meanwhile.
        let _held = self.measuring.read().await;
        Ok(Usage { disk: lock(&self.session.fs).bytes(), ..Usage::default() })
    }

    async fn stored(&self) -> Result<StoredParts> {
        let own = Stored { bytes: self.usage().await?.disk, inodes: 0 };
        Ok(StoredParts { own, ..StoredParts::default() })
    }

    /// It runs none.
    async fn end_for_want_of_room(&self) -> Result<()> {
        self.session.fs().map(drop)
    }
}
