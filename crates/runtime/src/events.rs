//! What happens to sandboxes and tasks, as it happens.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use cabana_model::{Life, Phase, SandboxId, SandboxState, TaskId, TaskState, Tenant, Time};
use serde::Serialize;
use tokio::sync::broadcast;
use uuid::Uuid;

use crate::acts::exec::ExitTold;

/// As many as a slow listener may be behind before it is told that it missed some.
const BEHIND: usize = 256;

#[derive(Clone, Debug)]
pub struct Happened {
    pub id: Uuid,
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
    #[serde(rename = "sandbox.archived")]
    Archived { reason: String },
    /// A command that goes with a start or a stop has run.
    #[serde(rename = "sandbox.hook")]
    Hook {
        hook: Phase,
        /// Not there if it could not be run.
        exit: Option<ExitTold>,
        said: String,
    },
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
    /// `None`: nothing that anybody waits for.
    pub(crate) fn of(life: Life, reason: &str) -> Option<Self> {
        let reason = reason.to_owned();
        Some(match life.state {
            SandboxState::Running => Self::Running { reason },
            SandboxState::Paused => Self::Paused { reason },
            SandboxState::Stopped => Self::Stopped { reason },
            SandboxState::Archived => Self::Archived { reason },
            SandboxState::Failed => Self::Failed { reason },
            _ if life == Life::CLAIMED => Self::Created { reason },
            _ if life == Life::DOOMED => Self::Deleted { reason },
            _ => return None,
        })
    }
}

type Channel = broadcast::Sender<Arc<Happened>>;
type About = (Tenant, Option<SandboxId>);

/// A channel for each that is listened to, and none for the rest: whoever waits for one sandbox is not woken for another.
#[derive(Default)]
pub(crate) struct Events(Mutex<HashMap<About, Channel>>);

impl Events {
    fn all<T>(&self, act: impl FnOnce(&mut HashMap<About, Channel>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn tell(&self, happened: Happened) {
        let happened = Arc::new(happened);
        let mut about = (happened.tenant.clone(), None);
        self.all(|channels| {
            if channels.is_empty() {
                return;
            }
            for sandbox in [None, Some(happened.sandbox.clone())] {
                about.1 = sandbox;
                let heard = channels.get(&about).map(|channel| channel.send(happened.clone()).is_ok());
                if heard == Some(false) {
                    channels.remove(&about); // the last listener went
                }
            }
        });
    }

    pub(crate) fn listen(&self, tenant: &Tenant, sandbox: Option<&SandboxId>) -> Listener {
        let about = (tenant.clone(), sandbox.cloned());
        self.all(|channels| {
            if !channels.contains_key(&about) {
                channels.retain(|_, channel| channel.receiver_count() > 0);
            }
            Listener(channels.entry(about).or_insert_with(|| broadcast::channel(BEHIND).0).subscribe())
        })
    }
}

/// Hears of what happens, from when it was made.
pub struct Listener(broadcast::Receiver<Arc<Happened>>);

pub enum Heard {
    Event(Arc<Happened>),
    /// So many came faster than they were taken, and are gone.
    Missed(u64),
}

impl Listener {
    /// `None`: there is nothing more to come.
    pub async fn next(&mut self) -> Option<Heard> {
        match self.0.recv().await {
            Ok(happened) => Some(Heard::Event(happened)),
            Err(broadcast::error::RecvError::Lagged(missed)) => Some(Heard::Missed(missed)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn happened(tenant: &str, sandbox: &str) -> Happened {
        Happened {
            id: Uuid::now_v7(),
            at: Time::UNIX_EPOCH,
            tenant: Tenant::new(tenant).unwrap(),
            sandbox: SandboxId::new(sandbox).unwrap(),
            event: Event::DiskFull,
        }
    }

    #[tokio::test]
    async fn a_listener_that_is_too_slow_is_told_how_much_it_missed() {
        let events = Events::default();
        let mut listener = events.listen(&Tenant::new("one").unwrap(), None);
        for _ in 0..BEHIND + 10 {
            events.tell(happened("one", "aaaaaaaaaaaaaaaa"));
        }
        assert!(matches!(listener.next().await, Some(Heard::Missed(10))));
        for _ in 0..BEHIND {
            assert!(matches!(listener.next().await, Some(Heard::Event(_))));
        }
    }

    #[test]
    fn nothing_is_kept_for_listeners_that_are_gone() {
        let events = Events::default();
        let (one, two) = (Tenant::new("one").unwrap(), Tenant::new("two").unwrap());
        drop(events.listen(&one, None));
        drop(events.listen(&one, Some(&SandboxId::new("aaaaaaaaaaaaaaaa").unwrap())));
        events.tell(happened("one", "aaaaaaaaaaaaaaaa"));
        assert_eq!(events.all(|channels| channels.len()), 0);
        drop(events.listen(&one, None));
        let _listener = events.listen(&two, None);
        assert_eq!(events.all(|channels| channels.len()), 1);
    }
}
