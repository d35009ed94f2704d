//! The next process: this one, with an engine of its own.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use cabana_engine::{Config, Engine};
use cabana_sandbox::{Channel, Event, ExecId, Exit, Found, Process, Provider, Reattached, Sandbox, SandboxId};
use futures_util::StreamExt;

/// Far more than anything here takes: what hangs fails instead.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// One data directory for all tests, as for the processes of one machine: the host base is made once.
pub(crate) fn data() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("data")
}

pub(crate) async fn engine() -> Arc<Engine> {
    let config = Config { helper: env!("CARGO_BIN_EXE_cabana-tests-spawner").into(), ..Config::new(data()) };
    Engine::open(config).await.expect("an engine on this host")
}

pub(crate) async fn found(engine: &Engine, id: &SandboxId) -> Arc<dyn Sandbox> {
    match engine.attach(id).await.unwrap() {
        Found::Running(sandbox) => sandbox,
        Found::Paused(_) => panic!("{id} is paused"),
        Found::Stopped => panic!("{id} is stopped"),
        Found::Absent => panic!("there is no {id}"),
    }
}

pub(crate) async fn running(sandbox: &dyn Sandbox, exec: ExecId) -> Process {
    match sandbox.reattach(&exec, 0).await.unwrap() {
        Reattached::Running(process) => process,
        Reattached::Exited(exit, _) => panic!("it has ended: {exit:?}"),
        Reattached::Missing => panic!("nobody knows it"),
    }
}

/// All that a command said, in order, and how it ended.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) out: Vec<u8>,
    pub(crate) err: Vec<u8>,
    pub(crate) exit: Option<Exit>,
    pub(crate) gaps: u64,
}

impl Said {
    pub(crate) fn out(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }
}

/// From its beginning to its end, whether it has ended or not; `None` when nobody knows it.
pub(crate) async fn all_of(sandbox: &dyn Sandbox, exec: ExecId) -> Option<Said> {
    let mut said = Said::default();
    let mut at = 0;
    let mut events = match sandbox.reattach(&exec, 0).await.unwrap() {
        Reattached::Running(process) => process.events,
        Reattached::Exited(exit, outputs) => {
            said.exit = Some(exit);
            outputs.map(|output| output.map(Event::Output)).boxed()
        }
        Reattached::Missing => return None,
    };
    while let Some(event) = tokio::time::timeout(PATIENCE, events.next()).await.expect("it goes on") {
        match event.unwrap() {
            Event::Exit(exit) => said.exit = Some(exit),
            Event::Output(output) => {
                assert!(output.at >= at, "nothing comes twice");
                said.gaps += output.at - at;
                at = output.at + output.bytes.len() as u64;
                match output.channel {
                    Channel::Stderr => said.err.extend_from_slice(&output.bytes),
                    _ => said.out.extend_from_slice(&output.bytes),
                }
            }
        }
    }
    Some(said)
}

/// Reads on until it has said that.
pub(crate) async fn says(process: &mut Process, wanted: &str) -> String {
    let mut text = String::new();
    while !text.contains(wanted) {
        let event = tokio::time::timeout(PATIENCE, process.events.next()).await;
        match event.unwrap_or_else(|_| panic!("it says {text:?}, and not {wanted:?}")) {
            Some(Ok(Event::Output(output))) => text.push_str(&String::from_utf8_lossy(&output.bytes)),
            other => panic!("{other:?} after {text:?}"),
        }
    }
    text
}

pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < PATIENCE, "waited for long: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
