//! Watchers for clients that cannot read a stream: what happens is kept until they ask for it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::response::Response;
use cabana_e2b_wire::{
    connect::{Code, Error},
    filesystem::{CreateWatcherResponse, Empty, GetWatcherEventsResponse, WatchRequest, WatcherRequest},
};
use cabana_runtime::{CallId, Error as Failed, MemoryLedger, SandboxId};
use futures_util::StreamExt;
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        super::{guest::Guest, refused::connect_error},
        rpc::Ending,
    },
    Files,
    kept_events::{self, KeptEvents},
    watch::{self, Told},
};
use crate::{App, long_answer};

/// Of one sandbox.
const EACH: usize = 64;
/// So long one that is broken waits for somebody to hear why.
const STALE: Duration = Duration::from_secs(600);
/// Until what has just happened has come here: an upload has returned before its events have.
const SETTLES: Duration = Duration::from_millis(25);

/// All that there are, of all sandboxes.
pub(crate) struct Watchers {
    watchers: Mutex<HashMap<String, Watcher>>,
    memory: MemoryLedger,
}

impl Default for Watchers {
    fn default() -> Self {
        Self { watchers: Mutex::default(), memory: kept_events::ledger() }
    }
}

#[derive(Clone)]
struct Watcher {
    sandbox: SandboxId,
    kept: Arc<Mutex<Kept>>,
    ends: CancellationToken,
}

struct Kept {
    events: KeptEvents,
    /// Why there will be no more.
    broken: Option<Error>,
}

impl Watchers {
    fn all<T>(&self, act: impl FnOnce(&mut HashMap<String, Watcher>) -> T) -> T {
        act(&mut self.watchers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn find(&self, guest: &Guest, id: &str) -> Result<Watcher, Error> {
        let found = self.all(|all| all.get(id).filter(|watcher| watcher.sandbox == guest.record.id).cloned());
        found.ok_or_else(|| Error::new(Code::NotFound, format!("watcher with id {id} not found")))
    }
}

impl Watcher {
    fn kept<T>(&self, act: impl FnOnce(&mut Kept) -> T) -> T {
        act(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn keep(&self, mut told: Told) {
        while let Some(Some(event)) = self.ends.run_until_cancelled(told.next()).await {
            let broken = match event {
                Ok(event) => {
                    let lost = !self.kept(|kept| kept.events.push(event));
                    lost.then(|| {
                        Error::new(Code::ResourceExhausted, "more changed than is kept: look again, and ask sooner")
                    })
                }
                Err(Ending::Error(error)) => Some(error),
                Err(Ending::Gone) => Some(Error::new(Code::Unavailable, "the sandbox is gone")),
            };
            if let Some(broken) = broken {
                return self.kept(|kept| kept.broken = Some(broken));
            }
        }
    }
}

pub(super) async fn create(files: &Files<'_>, asked: WatchRequest) -> Result<CreateWatcherResponse, Error> {
    let (app, sandbox) = (files.app, files.guest.record.id.clone());
    let told = watch::watch(files, &asked).await?;
    let events = KeptEvents::new(app.watchers.memory.open(&files.guest.record.tenant));
    let kept = Arc::new(Mutex::new(Kept { events, broken: None }));
    let watcher = Watcher { sandbox, kept, ends: CancellationToken::new() };
    let watcher_id = CallId::now().uuid().simple().to_string();
    app.watchers.all(|all| {
        if all.values().filter(|other| other.sandbox == watcher.sandbox).count() >= EACH {
            return Err(Error::new(Code::ResourceExhausted, format!("a sandbox has at most {EACH} watchers")));
        }
        all.insert(watcher_id.clone(), watcher.clone());
        Ok(())
    })?;
    let (watchers, id) = (app.watchers.clone(), watcher_id.clone());
    app.tasks.spawn(async move {
        watcher.keep(told).await;
        // A client that asks once more hears why, unless there is no sandbox to ask. What was kept for it goes with it.
        if !watcher.kept(|kept| kept.broken.as_ref().is_some_and(|error| error.code == Code::Unavailable)) {
            watcher.ends.run_until_cancelled(tokio::time::sleep(STALE)).await;
        }
        watchers.all(|all| all.remove(&id));
    });
    Ok(CreateWatcherResponse { watcher_id })
}

pub(super) async fn events(app: &App, guest: &Guest, asked: WatcherRequest) -> Result<Response, Error> {
    let watcher = app.watchers.find(guest, &asked.watcher_id)?;
    tokio::time::sleep(SETTLES).await;
    let mut memory = app.runtime.list_memory(&guest.record.tenant);
    let events = watcher.kept(|kept| match (&kept.broken, kept.events.is_empty()) {
        (Some(error), true) => Err(error.clone()),
        _ if memory.grow(kept.events.bytes()) => Ok(kept.events.take()),
        _ => Err(connect_error(&Failed::ListsTooLarge)), // they are there for the next request
    })?;
    let answer = long_answer::json(memory, move || GetWatcherEventsResponse { events }).await;
    answer.map_err(|error| connect_error(&error))
}

pub(super) fn remove(app: &App, guest: &Guest, asked: &WatcherRequest) -> Result<Empty, Error> {
    let watcher = app.watchers.find(guest, &asked.watcher_id)?;
    watcher.ends.cancel();
    app.watchers.all(|all| all.remove(&asked.watcher_id));
    Ok(Empty {})
}
