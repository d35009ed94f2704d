//! What happens to sandboxes and tasks, as it happens.

use cabana_model::{SandboxId, SandboxState, TaskId, TaskState, Tenant, Time};
use serde::Serialize;
use tokio::sync::broadcast;

/// As many as a slow listener may be behind before it is told that it missed some.
const BEHIND: usize = 1024;

#[derive(Clone, Debug)]
pub struct Happened {
    pub at: Time,
    pub tenant: Tenant,
    pub sandbox: SandboxId,
    pub event: Event,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type")]
pub enum Event {
    #[serde(rename = "sandbox.created")]
    Created { reason: String },
    #[serde(rename = "sandbox.running")]
    Running { reason: String },
    #[serde(rename = "sandbox.stopped")]
    Stopped { reason: String },
    #[serde(rename = "sandbox.paused")]
    Paused { reason: String },
    #[serde(rename = "sandbox.failed")]
    Failed { reason: String },
    #[serde(rename = "sandbox.deleted")]
    Deleted { reason: String },
    #[serde(rename = "sandbox.out_of_memory")]
    OutOfMemory,
    #[serde(rename = "sandbox.disk_full")]
    DiskFull,
    #[serde(rename = "sandbox.base_changed")]
    BaseChanged { was: String, now: String },
    #[serde(rename = "task.started")]
    TaskStarted { task: TaskId },
    #[serde(rename = "task.ended")]
    TaskEnded { task: TaskId, state: TaskState },
    #[serde(rename = "network.allowed")]
    NetworkAllowed { host: String, port: u16, rule: String, reason: String },
    #[serde(rename = "network.denied")]
    NetworkDenied { host: String, port: u16, rule: String, reason: String },
}

impl Event {
    pub(crate) fn of(state: SandboxState, reason: &str) -> Self {
        let reason = reason.to_owned();
        match state {
            SandboxState::Provisioning => Self::Created { reason },
            SandboxState::Running => Self::Running { reason },
            SandboxState::Paused => Self::Paused { reason },
            SandboxState::Stopped => Self::Stopped { reason },
            SandboxState::Deleting => Self::Deleted { reason },
            SandboxState::Failed => Self::Failed { reason },
        }
    }
}

pub(crate) struct Events(broadcast::Sender<Happened>);

impl Events {
    pub(crate) fn new() -> Self {
        Self(broadcast::channel(BEHIND).0)
    }

    pub(crate) fn tell(&self, happened: Happened) {
        let _ = self.0.send(happened); // nobody may be listening
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Happened> {
        self.0.subscribe()
    }
}
