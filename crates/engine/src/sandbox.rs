//! A handle on a running sandbox.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use cabana_sandbox::{
    Defaults, Duplex, Error, ExecId, ExecSpec, Files, Limits, NetworkPolicy, Position, Process, Reattached, Result,
    Sandbox, SandboxId, SandboxSpec, StoredParts, Usage, User, Wanted,
};
use tokio::task::spawn_blocking;

use crate::{
    disk, disk_rate,
    engine::Shared,
    exec,
    fault::{self, Point},
    files::EngineFiles,
    live::Live,
    network,
    wire::ToInit,
};

/// Any number of them; none keeps the sandbox alive.
pub(crate) struct EngineSandbox {
    shared: Arc<Shared>,
    live: Arc<Live>,
}

impl EngineSandbox {
    pub(crate) fn new(shared: Arc<Shared>, live: Arc<Live>) -> Self {
        Self { shared, live }
    }
}

impl EngineSandbox {
    /// Recorded first: a limit that a restart forgets was none.
    async fn limit(&self, limits: Limits) -> Result<()> {
        self.shared.capabilities().check_limits(&limits)?;
        let was = self.record(move |spec| spec.limits = limits).await?;
        fault::at(Point::RecordChanged);
        let live = self.live.clone();
        let set = spawn_blocking(move || live.with_lease_mut(|lease| lease.limit(&limits))).await;
        let mut set = set.map_err(|error| Error::failed("setting limits", error))?.unwrap_or(Err(Error::Gone));
        if set.is_ok() {
            set = self.shared.limit_disk(&self.live, limits).await;
        }
        if set.is_err() {
            self.record(move |spec| *spec = was).await?;
            return set;
        }
        self.live.set_limits(limits);
        if limits.memory.is_some() {
            self.shared.tasks.spawn(self.live.clone().watch_memory());
        }
        if limits.io.is_some() {
            self.shared.tasks.spawn(disk_rate::watch(self.live.clone()));
        }
        Ok(())
    }

    async fn network(&self, policy: NetworkPolicy) -> Result<()> {
        self.shared.capabilities().check_network(&policy)?;
        network::check(&policy).await?;
        let recorded = policy.clone();
        let was = self.record(move |spec| spec.network = recorded).await?;
        let set = self.live.set_network(&self.shared.ways, &policy).await;
        if set.is_err() {
            self.record(move |spec| *spec = was).await?;
        }
        set
    }

    async fn record(&self, change: impl FnOnce(&mut SandboxSpec) + Send + 'static) -> Result<SandboxSpec> {
        let (shared, id) = (self.shared.clone(), self.live.id.clone());
        // A snapshot of a sandbox that has just been stopped writes the same record.
        let entered = shared.gates.of(&id).enter().await;
        let recorded = spawn_blocking(move || {
            let _entered = entered;
            shared.homes.change(&id, change)
        })
        .await;
        recorded.map_err(|error| Error::failed("writing the sandbox's record", error))?
    }
}

#[async_trait]
impl Sandbox for EngineSandbox {
    fn id(&self) -> &SandboxId {
        &self.live.id
    }

    fn defaults(&self) -> &Defaults {
        &self.live.defaults
    }

    async fn exec(&self, spec: ExecSpec) -> Result<Process> {
        self.live.awake()?;
        exec::exec(&self.live, spec).await
    }

    async fn reattach(&self, id: &ExecId, from: Position) -> Result<Reattached> {
        Ok(exec::reattach(&self.live, id, from))
    }

    async fn forget(&self, id: &ExecId) -> Result<()> {
        for exec in self.live.execs.forget(id, self.live.is_kept()) {
            self.live.send(&ToInit::forget(exec), &[]).await?;
        }
        Ok(())
    }

    async fn processes(&self) -> Result<Vec<(ExecId, u32)>> {
        self.live.root()?;
        Ok(self.live.execs.running())
    }

    fn files(&self, user: Option<&User>) -> Arc<dyn Files> {
        Arc::new(EngineFiles::new(self.live.clone(), self.shared.gates.of(&self.live.id), user.cloned()))
    }

    fn files_by_root(&self, user: Option<&User>) -> Arc<dyn Files> {
        let files = EngineFiles::new(self.live.clone(), self.shared.gates.of(&self.live.id), user.cloned());
        Arc::new(files.by_root())
    }

    async fn connect(&self, port: u16) -> Result<Box<dyn Duplex>> {
        self.live.awake()?;
        Ok(Box::new(self.live.connect(port).await?))
    }

    async fn update(&self, wanted: Wanted) -> Result<()> {
        self.live.root()?;
        let _changing = self.live.changing.lock().await;
        match wanted {
            Wanted::Limits(limits) => self.limit(limits).await,
            Wanted::Network(policy) => self.network(policy).await,
            Wanted::Views(views) => self.shared.change_views(&self.live, views).await,
        }
    }

    async fn stored(&self) -> Result<StoredParts> {
        self.live.root()?;
        disk::stored(&self.live, &self.shared).await
    }

    async fn end_for_want_of_room(&self) -> Result<()> {
        disk::end_for_want_of_room(&self.live).await
    }

    async fn usage(&self) -> Result<Usage> {
        self.live.root()?;
        let (shared, live) = (self.shared.clone(), self.live.clone());
        let measured = spawn_blocking(move || {
            let disk = live.disk.known(shared.homes.disk_usage(&live.id)?);
            let group =
                live.with_lease(|lease| lease.cgroup.as_ref().map(|cgroup| (cgroup.pids(), cgroup.cpu_us()))).flatten();
            let (pids, cpu_us) = group.unwrap_or_default();
            let memory = pids.iter().map(|pid| resident(*pid)).sum();
            Ok(Usage { memory, cpu: Duration::from_micros(cpu_us), disk, pids: pids.len() as u32 })
        });
        measured.await.map_err(|error| Error::failed("measuring", error))?
    }
}

/// What a process of the host's numbering has in memory.
fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages: u64 = text.split(' ').nth(1).and_then(|number| number.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}
