//! Waking by whoever comes.
//!
//! Many come at once, and one of them wakes the sandbox: the others wait for that one, and then find it awake.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use cabana_runtime::{Action, Error, Lifecycle, SandboxId, SandboxState, acts::sandbox::Wake};
use tokio::sync::Mutex as Turn;

use super::{
    control::until,
    guest::{Guest, is_awake},
};
use crate::App;

/// A sandbox that was made for less is awake for this long.
const LEAST: u32 = 300;
/// Of those who wait for one sandbox, whoever they are.
const MOST_WAITING: usize = 256;

/// Those that somebody wakes.
#[derive(Default)]
pub(crate) struct Wakes(Mutex<HashMap<SandboxId, Arc<Turn<()>>>>);

impl Wakes {
    fn all<T>(&self, act: impl FnOnce(&mut HashMap<SandboxId, Arc<Turn<()>>>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One's place in the queue of a sandbox. The last to leave takes the queue along.
struct Place<'a> {
    wakes: &'a Wakes,
    sandbox: &'a SandboxId,
    turn: Option<Arc<Turn<()>>>,
}

impl<'a> Place<'a> {
    fn take(wakes: &'a Wakes, sandbox: &'a SandboxId) -> (Self, Arc<Turn<()>>) {
        let turn = wakes.all(|all| all.entry(sandbox.clone()).or_default().clone());
        (Self { wakes, sandbox, turn: Some(turn.clone()) }, turn)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.wakes.all(|all| {
            drop(self.turn.take());
            if all.get(self.sandbox).is_some_and(|turn| Arc::strong_count(turn) == 1) {
                all.remove(self.sandbox);
            }
        });
    }
}

/// Since when it is awake, for whoever comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    Before,
    Now,
}

/// It is awake from here on, for as long as it was made for. Only for those who may come in.
pub(super) async fn wake(app: &App, guest: &Guest) -> Result<Woken, Error> {
    // What its template starts may not be ready yet while somebody is at it.
    let stays = stays_awake(app, guest, guest.record.state, &guest.spec.wanted.lifecycle);
    if stays && !app.wakes.all(|all| all.contains_key(&guest.record.id)) {
        return Ok(Woken::Before);
    }
    let (_place, turn) = Place::take(&app.wakes, &guest.record.id);
    if Arc::strong_count(&turn) / 2 > MOST_WAITING {
        return Err(Error::TooManyPortConnections); // each has two, and the queue one
    }
    let _alone = turn.lock().await;
    let (record, spec) = app.sandbox(&guest.caller, &guest.record.id).await?;
    if stays_awake(app, guest, record.state, &spec.wanted.lifecycle) {
        return Ok(Woken::Now);
    }
    let until = until(app.runtime.clock().now(), guest.kept.timeout.max(LEAST));
    app.runtime.call(guest.ask(), Wake { until }).await?.answer().await?;
    guest.kept.bring_up(app, &guest.caller, &guest.record.id).await?;
    Ok(Woken::Now)
}

/// One whose time is over is about to be put to rest, whatever goes on in it: whoever would wake it then gives it time now.
fn stays_awake(app: &App, guest: &Guest, state: SandboxState, lifecycle: &Lifecycle) -> bool {
    let rests = guest.kept.auto_resume && lifecycle.on_expire != Some(Action::Delete);
    let is_over = lifecycle.expires_at.is_some_and(|end| end <= app.runtime.clock().now());
    is_awake(state) && !(rests && is_over)
}
