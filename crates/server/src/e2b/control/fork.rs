//! `POST /sandboxes/{id}/fork`: more sandboxes that begin with the files of one that runs.
//!
//! Files are all that a fork begins with. Processes and memory are not copied, and nothing pretends that they were: what is to run in
//! a fork is started there.

use axum::{Json, extract::State, http::StatusCode};
use cabana_e2b_wire::control::{ApiError, ForkResult, ForkSandbox, Sandbox};
use cabana_runtime::{
    AboutSnapshot, Place, SnapshotId, Wanted,
    acts::{
        sandbox::Ensure,
        snapshot::{Delete, Take},
    },
};
use futures_util::{StreamExt, stream};

use super::{super::refused::Refused, create::until, one::One, told};
use crate::{
    App,
    auth::User,
    extract::{Body, Path},
};

/// Of one request.
const MOST: u32 = 100;
/// Made at a time.
const TOGETHER: usize = 4;

pub(super) async fn fork(
    State(app): State<App>,
    User(caller): User,
    Path(sandbox): Path<String>,
    Body(asked): Body<ForkSandbox>,
) -> Result<(StatusCode, Json<Vec<ForkResult>>), Refused> {
    if !(1..=MOST).contains(&asked.count) {
        return Err(Refused::bad(format!("count must be from 1 to {MOST}")));
    }
    let one = One::find(&app, caller, &sandbox).await?;
    if one.is_paused() {
        let why = format!("sandbox \"{sandbox}\" is paused and cannot be forked: resume it first");
        return Err(Refused::new(StatusCode::CONFLICT, why));
    }
    // A client that goes away meanwhile must not leave the snapshot behind.
    let forking = app.tasks.spawn(async move { forked(&one, asked).await });
    let forks = forking.await.map_err(|_| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, "the fork broke off"))?;
    Ok((StatusCode::CREATED, Json(forks?)))
}

/// Each becomes one or fails by itself. The snapshot between is nobody's: what was made from it needs it no longer.
async fn forked(one: &One, asked: ForkSandbox) -> Result<Vec<ForkResult>, Refused> {
    let snapshot = one.call(Take { about: AboutSnapshot { built: true, ..AboutSnapshot::default() } }).await?.snapshot;
    let fork = |_| async move {
        match made(one, snapshot, asked.timeout).await {
            Ok(sandbox) => ForkResult::Sandbox(sandbox),
            Err(refused) => ForkResult::Error(ApiError::from(refused)),
        }
    };
    let forks = stream::iter(0..asked.count).map(fork).buffered(TOGETHER).collect().await;
    if let Err(error) = one.call_at(Place::Nowhere, Delete(snapshot)).await {
        tracing::warn!(%snapshot, error = error.message(), "the snapshot of a fork could not be removed");
    }
    Ok(forks)
}

async fn made(one: &One, snapshot: SnapshotId, timeout: u32) -> Result<Sandbox, Refused> {
    let mut wanted = Wanted { snapshot: Some(snapshot), ..one.spec.wanted.clone() };
    wanted.lifecycle.expires_at = Some(until(one.app.runtime.clock().now(), timeout));
    let made = one.call_at(Place::New(Some(wanted)), Ensure).await?;
    let record = one.app.runtime.sandbox(&one.caller, &made.sandbox).await?;
    told::sandbox(&one.app, &one.caller, &record, &one.kept).await
}
