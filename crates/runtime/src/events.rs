//! What happens to sandboxes and tasks, as it happens.

use std::{
    collections::HashMap,
    ops::Deref,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Instant,
};

use cabana_model::{Life, Phase, SandboxId, SandboxState, TaskId, TaskState, Tenant, Time, WebhookId};
use serde::Serialize;
use tokio::sync::broadcast;
use uuid::Uuid;

use crate::{Error, Result, acts::exec::ExitTold, webhooks::Hooks};

/// As many as a slow listener may be behind before it is told that it missed some.
const BEHIND: usize = 256;
/// Of one tenant.
const MAX_LISTENERS: usize = 1024;
/// Of the network: each event as often as it is heard, and no event less often than that.
const HEARD_PER_SEC: f64 = 10_000.0;
const HEARD_AT_ONCE: f64 = 50_000.0;
const FEWEST_LISTENERS: f64 = 50.0;

#[derive(Clone, Debug)]
pub struct Happened {
    pub id: Uuid,
    pub at: Time,
    pub tenant: Tenant,
    pub sandbox: Option<SandboxId>,
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
    DiskFull { reason: String },
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
    #[serde(rename = "webhook.disabled")]
    WebhookDisabled { webhook: WebhookId, reason: String },
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

    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Created { .. } => "sandbox.created",
            Self::Running { .. } => "sandbox.running",
            Self::Stopped { .. } => "sandbox.stopped",
            Self::Paused { .. } => "sandbox.paused",
            Self::Failed { .. } => "sandbox.failed",
            Self::Deleted { .. } => "sandbox.deleted",
            Self::Archived { .. } => "sandbox.archived",
            Self::Hook { .. } => "sandbox.hook",
            Self::OutOfMemory => "sandbox.out_of_memory",
            Self::DiskFull { .. } => "sandbox.disk_full",
            Self::BaseChanged { .. } => "sandbox.base_changed",
            Self::TaskStarted { .. } => "task.started",
            Self::TaskEnded { .. } => "task.ended",
            Self::NetworkAllowed { .. } => "network.allowed",
            Self::NetworkDenied { .. } => "network.denied",
            Self::WebhookDisabled { .. } => "webhook.disabled",
        }
    }

    /// Whether the store wrote down for webhooks what it tells of, in the transaction of the change.
    pub(crate) fn is_recorded(&self) -> bool {
        match self {
            Self::Created { .. }
            | Self::Running { .. }
            | Self::Stopped { .. }
            | Self::Paused { .. }
            | Self::Failed { .. }
            | Self::Deleted { .. }
            | Self::Archived { .. }
            | Self::TaskEnded { .. } => true,
            Self::Hook { .. }
            | Self::OutOfMemory
            | Self::DiskFull { .. }
            | Self::BaseChanged { .. }
            | Self::TaskStarted { .. }
            | Self::NetworkAllowed { .. }
            | Self::NetworkDenied { .. }
            | Self::WebhookDisabled { .. } => false,
        }
    }
}

/// As everybody hears of it.
#[derive(Serialize)]
pub struct EventBody<'a> {
    pub id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<&'a SandboxId>,
    at: Time,
    #[serde(flatten)]
    event: &'a Event,
}

impl Happened {
    pub fn body(&self) -> EventBody<'_> {
        let id = format!("event_{}", self.id.simple());
        EventBody { id, sandbox: self.sandbox.as_ref(), at: self.at, event: &self.event }
    }
}

/// One event for all that hear of it: it is written once, however many they are.
pub struct Announcement {
    happened: Arc<Happened>,
    json: OnceLock<String>,
}

impl Announcement {
    pub fn json(&self) -> &str {
        // Only what cannot be written as JSON fails, and of that there is nothing here.
        self.json.get_or_init(|| serde_json::to_string(&self.happened.body()).unwrap_or_default())
    }
}

impl Deref for Announcement {
    type Target = Happened;

    fn deref(&self) -> &Happened {
        &self.happened
    }
}

type Channel = broadcast::Sender<Arc<Announcement>>;
type About = (Tenant, Option<SandboxId>);

/// A channel for each that is listened to, and none for the rest: whoever waits for one sandbox is not woken for another.
#[derive(Default)]
pub(crate) struct Events {
    channels: Mutex<HashMap<About, Channel>>,
    /// Of each tenant, for events that a guest makes as often as it likes.
    network: NetworkShares,
    pub(crate) hooks: Hooks,
}

impl Events {
    fn all<T>(&self, act: impl FnOnce(&mut HashMap<About, Channel>) -> T) -> T {
        act(&mut self.channels.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn tell(&self, happened: Happened) {
        let is_by_guest = matches!(happened.event, Event::NetworkAllowed { .. } | Event::NetworkDenied { .. });
        if is_by_guest && !self.network.take(&happened.tenant, self.listeners(&happened), Instant::now()) {
            return;
        }
        let happened = Arc::new(happened);
        self.hooks.heard(&happened);
        let mut about = (happened.tenant.clone(), None);
        self.all(|channels| {
            if channels.is_empty() {
                return;
            }
            let announcement = Arc::new(Announcement { happened: happened.clone(), json: OnceLock::new() });
            for sandbox in std::iter::once(None).chain(happened.sandbox.clone().map(Some)) {
                about.1 = sandbox;
                let heard = channels.get(&about).map(|channel| channel.send(announcement.clone()).is_ok());
                let is_last = about.1.is_some() && matches!(happened.event, Event::Deleted { .. });
                if heard == Some(false) || is_last {
                    // The last listener went; or the sandbox, and another one may have its id.
                    channels.remove(&about);
                }
            }
        });
    }

    /// That hear of it.
    fn listeners(&self, happened: &Happened) -> usize {
        let about = [Some(None), happened.sandbox.clone().map(Some)];
        let about = about.into_iter().flatten().map(|sandbox| (happened.tenant.clone(), sandbox));
        self.all(|channels| about.filter_map(|about| channels.get(&about)).map(Channel::receiver_count).sum())
    }

    pub(crate) fn listen(&self, tenant: &Tenant, sandbox: Option<&SandboxId>) -> Result<Listener> {
        let about = (tenant.clone(), sandbox.cloned());
        self.all(|channels| {
            if !channels.contains_key(&about) {
                channels.retain(|_, channel| channel.receiver_count() > 0);
            }
            let of_tenant = channels.iter().filter(|((of, _), _)| of == tenant);
            if of_tenant.map(|(_, channel)| channel.receiver_count()).sum::<usize>() >= MAX_LISTENERS {
                return Err(Error::TooManyListeners(MAX_LISTENERS));
            }
            Ok(Listener(channels.entry(about).or_insert_with(|| broadcast::channel(BEHIND).0).subscribe()))
        })
    }
}

/// How often guests of a tenant are told of: by how many hear of it, since that is what it costs.
#[derive(Default)]
struct NetworkShares(Mutex<HashMap<Tenant, NetworkShare>>);

struct NetworkShare {
    left: f64,
    filled: Instant,
}

impl NetworkShares {
    /// False: it is left out.
    fn take(&self, tenant: &Tenant, listeners: usize, now: Instant) -> bool {
        let mut shares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !shares.contains_key(tenant) {
            // One that is full again is as one that is not there.
            shares.retain(|_, share| share.grown(now) < HEARD_AT_ONCE);
            shares.insert(tenant.clone(), NetworkShare { left: HEARD_AT_ONCE, filled: now });
        }
        let Some(share) = shares.get_mut(tenant) else { return false };
        (share.left, share.filled) = (share.grown(now), now);
        let cost = (listeners as f64).max(FEWEST_LISTENERS);
        let fits = share.left >= cost;
        share.left -= if fits { cost } else { 0.0 };
        fits
    }
}

impl NetworkShare {
    fn grown(&self, now: Instant) -> f64 {
        let grown = now.saturating_duration_since(self.filled).as_secs_f64() * HEARD_PER_SEC;
        (self.left + grown).min(HEARD_AT_ONCE)
    }
}

/// Hears of what happens, from when it was made.
pub struct Listener(broadcast::Receiver<Arc<Announcement>>);

pub enum Heard {
    Event(Arc<Announcement>),
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

    #[test]
    fn the_store_and_whoever_listens_hear_of_the_same_changes() {
        for &state in SandboxState::ALL {
            for phase in std::iter::once(None).chain(Phase::ALL.iter().copied().map(Some)) {
                let life = Life { state, phase };
                assert_eq!(Event::of(life, "").map(|event| event.kind()), life.event(), "{life:?}");
            }
        }
    }

    fn happened(tenant: &str, sandbox: &str) -> Happened {
        Happened {
            id: Uuid::now_v7(),
            at: Time::UNIX_EPOCH,
            tenant: Tenant::new(tenant).unwrap(),
            sandbox: SandboxId::new(sandbox).ok(),
            event: Event::DiskFull { reason: "full".to_owned() },
        }
    }

    #[tokio::test]
    async fn a_listener_that_is_too_slow_is_told_how_much_it_missed() {
        let events = Events::default();
        let mut listener = events.listen(&Tenant::new("one").unwrap(), None).unwrap();
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
        drop(events.listen(&one, None).unwrap());
        drop(events.listen(&one, Some(&SandboxId::new("aaaaaaaaaaaaaaaa").unwrap())).unwrap());
        events.tell(happened("one", "aaaaaaaaaaaaaaaa"));
        assert_eq!(events.all(|channels| channels.len()), 0);
        drop(events.listen(&one, None).unwrap());
        let _listener = events.listen(&two, None).unwrap();
        assert_eq!(events.all(|channels| channels.len()), 1);
    }

    #[tokio::test]
    async fn an_event_is_written_once_for_all_that_hear_of_it() {
        let (events, one) = (Events::default(), Tenant::new("one").unwrap());
        let sandbox = SandboxId::new("aaaaaaaaaaaaaaaa").unwrap();
        let mut listeners = Vec::new();
        for about in [None, None, Some(&sandbox)] {
            listeners.push(events.listen(&one, about).unwrap());
        }
        events.tell(happened("one", sandbox.as_str()));
        let mut written = Vec::new();
        for listener in &mut listeners {
            let Some(Heard::Event(event)) = listener.next().await else { panic!("it is heard") };
            written.push((event.json().as_ptr(), event));
        }
        assert!(written.iter().all(|(at, event)| *at == written[0].0 && event.json().contains("sandbox.disk_full")));
    }

    #[test]
    fn a_tenant_has_so_many_listeners_and_another_one_its_own() {
        let (events, one) = (Events::default(), Tenant::new("one").unwrap());
        let sandbox = SandboxId::new("aaaaaaaaaaaaaaaa").unwrap();
        let of = |n: usize| n.is_multiple_of(2).then_some(&sandbox);
        let mut open: Vec<_> = (0..MAX_LISTENERS).map(|n| events.listen(&one, of(n)).unwrap()).collect();
        assert!(matches!(events.listen(&one, None), Err(Error::TooManyListeners(MAX_LISTENERS))));
        assert!(events.listen(&Tenant::new("two").unwrap(), None).is_ok());
        open.pop();
        assert!(events.listen(&one, None).is_ok());
    }

    #[test]
    fn what_guests_do_in_the_network_is_told_by_how_many_hear_of_it() {
        let (shares, now) = (NetworkShares::default(), Instant::now());
        let (one, two) = (Tenant::new("one").unwrap(), Tenant::new("two").unwrap());
        let told = |tenant: &Tenant, listeners: usize, after: u64| {
            let at = now + std::time::Duration::from_secs(after);
            (0..10_000).filter(|_| shares.take(tenant, listeners, at)).count()
        };
        assert_eq!(told(&one, 0, 0), 1000, "as many as at once");
        assert_eq!((told(&one, 0, 1), told(&one, 1000, 2)), (200, 10), "and those of each second");
        assert_eq!(told(&two, 1000, 2), 50, "another tenant has its own");
        told(&two, 0, 3600);
        assert_eq!(shares.0.lock().unwrap().len(), 2);
        told(&Tenant::new("three").unwrap(), 0, 7200);
        assert_eq!(shares.0.lock().unwrap().len(), 1, "who rests takes no room");
    }
}
