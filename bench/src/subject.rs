//! What is measured: a provider, through the interface that everybody uses, and nothing beside it.

use std::{sync::Arc, time::Instant};

use anyhow::{Context, Result, bail, ensure};
use cabana_sandbox::{
    Base, Event, ExecId, ExecSpec, Provider, Sandbox, SandboxId, SandboxPath, SandboxSpec, SnapshotId, Status,
};
use futures_util::StreamExt;
use tokio::{sync::OnceCell, task::JoinSet};

use crate::{
    floors::samples_of,
    rhythm::{Rhythm, nanoseconds},
};

pub(crate) struct Subject {
    provider: Arc<dyn Provider>,
    spec: SandboxSpec,
    /// For commands and files; made when first asked for.
    live: OnceCell<Arc<dyn Sandbox>>,
}

impl Subject {
    pub(crate) fn new(provider: Arc<dyn Provider>, spec: SandboxSpec) -> Self {
        Self { provider, spec, live: OnceCell::new() }
    }

    pub(crate) async fn create(&self) -> Result<Arc<dyn Sandbox>> {
        Ok(self.provider.create(&SandboxId::random(), &self.spec).await?)
    }

    pub(crate) async fn create_from(&self, base: &Base) -> Result<Arc<dyn Sandbox>> {
        let spec = SandboxSpec { base: base.clone(), ..self.spec.clone() };
        Ok(self.provider.create(&SandboxId::random(), &spec).await?)
    }

    pub(crate) async fn stop(&self, sandbox: &dyn Sandbox) -> Result<()> {
        Ok(self.provider.stop(sandbox.id()).await?)
    }

    pub(crate) async fn snapshot(&self, sandbox: &dyn Sandbox) -> Result<Base> {
        Ok(self.provider.snapshot(sandbox.id(), SnapshotId::now()).await?)
    }

    pub(crate) async fn destroy(&self, sandbox: &dyn Sandbox) -> Result<()> {
        Ok(self.provider.destroy(sandbox.id()).await?)
    }

    pub(crate) async fn live(&self) -> Result<&Arc<dyn Sandbox>> {
        self.live.get_or_try_init(|| self.create()).await
    }

    /// Ends all that lives in this data directory, also what a failure or an interrupt left behind.
    pub(crate) async fn close(&self) -> Result<()> {
        let mut all = self.provider.list().await?;
        while let Some(found) = all.next().await {
            let (id, _) = found?;
            self.provider.destroy(&id).await?;
        }
        Ok(())
    }

    pub(crate) async fn create_exec(&self, rhythm: Rhythm) -> Result<Vec<f64>> {
        let mut turns = rhythm.turns();
        while turns.next().await {
            let start = Instant::now();
            let sandbox = self.create().await?;
            run(sandbox.as_ref(), &["/bin/true"]).await?;
            turns.tell(nanoseconds(start));
            self.destroy(sandbox.as_ref()).await?;
        }
        Ok(turns.told())
    }

    pub(crate) async fn exec(&self, rhythm: Rhythm) -> Result<Vec<f64>> {
        let live = self.live().await?;
        let mut turns = rhythm.turns();
        while turns.next().await {
            let start = Instant::now();
            let id = run(live.as_ref(), &["/bin/true"]).await?;
            turns.tell(nanoseconds(start));
            live.forget(&id).await?; // thousands of outcomes that nobody asks for are no part of the figure
        }
        Ok(turns.told())
    }

    pub(crate) async fn wake_exec(&self, rhythm: Rhythm) -> Result<Vec<f64>> {
        let sandbox = self.create().await?;
        let mut turns = rhythm.turns();
        while turns.next().await {
            self.provider.stop(sandbox.id()).await?;
            let start = Instant::now();
            let awake = self.provider.start(sandbox.id()).await?;
            run(awake.as_ref(), &["/bin/true"]).await?;
            turns.tell(nanoseconds(start));
        }
        self.destroy(sandbox.as_ref()).await?;
        Ok(turns.told())
    }

    /// A sandbox with ten processes, paused and resumed.
    pub(crate) async fn pause(&self, rhythm: Rhythm) -> Result<Vec<f64>> {
        let sandbox = self.create().await?;
        let spec =
            ExecSpec::shell("for i in 1 2 3 4 5 6 7 8 9; do sleep infinity & done; echo; wait", SandboxPath::root());
        let mut processes = sandbox.exec(spec).await?;
        ensure!(matches!(processes.events.next().await, Some(Ok(Event::Output(_)))), "no process was started");
        let mut turns = rhythm.turns();
        while turns.next().await {
            let start = Instant::now();
            self.provider.pause(sandbox.id()).await?;
            self.provider.start(sandbox.id()).await?;
            turns.tell(nanoseconds(start));
        }
        self.destroy(sandbox.as_ref()).await?;
        Ok(turns.told())
    }

    /// What a program of ours that keeps a rhythm tells from inside.
    pub(crate) async fn told_inside(&self, rhythm: Rhythm, argv: &[&str]) -> Result<Vec<f64>> {
        let (samples, pause) = (rhythm.samples.to_string(), rhythm.pause.as_millis().to_string());
        let (program, rest) = argv.split_first().context("a program")?;
        let argv: Vec<&str> = [&[*program, &samples, &pause], rest].concat();
        let (id, said) = said(self.live().await?.as_ref(), &argv).await?;
        self.live().await?.forget(&id).await?;
        samples_of(&said)
    }

    /// So many creates at once, until all are ready.
    pub(crate) async fn burst(self: &Arc<Self>, sandboxes: usize) -> Result<f64> {
        let start = Instant::now();
        let mut creates = JoinSet::new();
        for _ in 0..sandboxes {
            let subject = self.clone();
            creates.spawn(async move { subject.create().await });
        }
        let made = creates.join_all().await;
        let took = nanoseconds(start);
        let made = made.into_iter().collect::<Result<_>>()?;
        self.destroy_all(made).await?;
        Ok(took)
    }

    pub(crate) async fn destroy_all(self: &Arc<Self>, sandboxes: Vec<Arc<dyn Sandbox>>) -> Result<()> {
        let mut ends = JoinSet::new();
        for sandbox in sandboxes {
            let subject = self.clone();
            ends.spawn(async move { subject.destroy(sandbox.as_ref()).await });
        }
        ends.join_all().await.into_iter().collect()
    }
}

/// A command to its exit. Any other exit than 0 is no sample.
pub(crate) async fn run(sandbox: &dyn Sandbox, argv: &[&str]) -> Result<ExecId> {
    said(sandbox, argv).await.map(|(id, _)| id)
}

/// The same, with what it said.
async fn said(sandbox: &dyn Sandbox, argv: &[&str]) -> Result<(ExecId, String)> {
    let spec = ExecSpec::argv(argv.iter().copied(), SandboxPath::root());
    let id = spec.id;
    let mut process = sandbox.exec(spec).await?;
    let mut said = Vec::new();
    while let Some(event) = process.events.next().await {
        match event? {
            Event::Output(output) => said.extend_from_slice(&output.bytes),
            Event::Exit(exit) => {
                let said = String::from_utf8_lossy(&said).into_owned();
                ensure!(exit.status == Status::Code(0), "{argv:?} ended with {:?}: {said}", exit.status);
                return Ok((id, said));
            }
        }
    }
    bail!("{argv:?} ended without an exit")
}

#[cfg(test)]
mod tests {
    use cabana_testkit::Fake;

    use super::*;

    fn subject() -> Arc<Subject> {
        Arc::new(Subject::new(Arc::new(Fake::new()), Fake::spec()))
    }

    async fn alive(subject: &Subject) -> usize {
        subject.provider.list().await.unwrap().count().await
    }

    #[tokio::test]
    async fn a_burst_leaves_no_sandbox_behind() {
        let subject = subject();
        assert!(subject.burst(100).await.unwrap() > 0.0);
        assert_eq!(alive(&subject).await, 0);
    }

    #[tokio::test]
    async fn the_end_of_the_run_ends_all_sandboxes() {
        let subject = subject();
        subject.live().await.unwrap();
        subject.create().await.unwrap();
        assert_eq!(alive(&subject).await, 2);
        subject.close().await.unwrap();
        assert_eq!(alive(&subject).await, 0);
    }
}
