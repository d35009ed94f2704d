//! Snapshots: a sandbox's files at one moment, for others to begin with.

use axum::{Json, extract::State, http::StatusCode};
use cabana_runtime::{
    Caller, Page, Place, SandboxId, Snapshot, SnapshotId, Time,
    acts::snapshot::{Delete, Take},
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::types::{id, page, snapshot_id};
use crate::{
    App,
    auth::{Once, Reader, User, ask},
    error::{Answer, ErrorBody, Refused},
    extract::{Path, Query},
};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(of_sandbox, take)).routes(routes!(list)).routes(routes!(get, delete))
}

/// A sandbox's files at one moment.
#[derive(Serialize, ToSchema)]
struct SnapshotBody {
    #[schema(value_type = String, example = "snap_0198c5f2a3b47c8d9e0f1a2b3c4d5e6f")]
    id: SnapshotId,
    /// The sandbox that it was taken of, which may be gone by now.
    #[schema(value_type = String)]
    sandbox: SandboxId,
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
}

impl SnapshotBody {
    fn of(snapshot: Snapshot) -> Self {
        Self { id: snapshot.id, sandbox: snapshot.sandbox, created_at: snapshot.created }
    }
}

/// Keeps the sandbox's files as they are now. It goes on as it was: running, paused or stopped.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/snapshots", tag = "snapshots", params(("sandbox" = String, Path)), responses(
    (status = 201, body = SnapshotBody),
    (status = "default", body = ErrorBody),
))]
async fn take(
    State(app): State<App>,
    User(caller): User,
    Path(sandbox): Path<String>,
    once: Once,
) -> Answer<(StatusCode, Json<SnapshotBody>)> {
    let call = app.runtime.call(ask(caller.clone(), Place::Sandbox(id(&sandbox)?), once), Take::default()).await?;
    let id = call.id();
    let taken = call.answer().await.map_err(|error| Refused::from(error).of_call(id))?;
    let snapshot = app.runtime.snapshot(&caller, taken.snapshot).await?;
    Ok((StatusCode::CREATED, Json(SnapshotBody::of(snapshot))))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Part {
    /// At most so many.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Where the last page ended: its `next_cursor`.
    cursor: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Which {
    /// Only those of this sandbox, which may be gone by now.
    sandbox: Option<String>,
    /// At most so many.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Where the last page ended: its `next_cursor`.
    cursor: Option<String>,
}

#[derive(Serialize, ToSchema)]
struct SnapshotsBody {
    snapshots: Vec<SnapshotBody>,
    next_cursor: Option<String>,
}

/// The snapshots of one sandbox, the newest first.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/snapshots", tag = "snapshots", params(("sandbox" = String, Path), Part), responses(
    (status = 200, body = SnapshotsBody),
    (status = "default", body = ErrorBody),
))]
async fn of_sandbox(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(sandbox): Path<String>,
    Query(part): Query<Part>,
) -> Answer<Json<SnapshotsBody>> {
    let sandbox = app.runtime.sandbox(&caller, &id(&sandbox)?).await?.id;
    listed(&app, &caller, Some(sandbox), page(part.limit, part.cursor)?).await
}

/// The tenant's snapshots, the newest first.
#[utoipa::path(get, path = "/v1/snapshots", tag = "snapshots", params(Which), responses(
    (status = 200, body = SnapshotsBody),
    (status = "default", body = ErrorBody),
))]
async fn list(
    State(app): State<App>,
    Reader(caller): Reader,
    Query(which): Query<Which>,
) -> Answer<Json<SnapshotsBody>> {
    let sandbox = which.sandbox.as_deref().map(id).transpose()?;
    listed(&app, &caller, sandbox, page(which.limit, which.cursor)?).await
}

async fn listed(app: &App, caller: &Caller, sandbox: Option<SandboxId>, page: Page) -> Answer<Json<SnapshotsBody>> {
    let limit = page.limit as usize;
    let snapshots = app.runtime.snapshot_list(caller, sandbox.as_ref(), page).await?;
    let next_cursor = (snapshots.len() == limit).then(|| snapshots.last().map(Snapshot::cursor)).flatten();
    Ok(Json(SnapshotsBody { snapshots: snapshots.into_iter().map(SnapshotBody::of).collect(), next_cursor }))
}

/// One snapshot.
#[utoipa::path(get, path = "/v1/snapshots/{snapshot}", tag = "snapshots", params(("snapshot" = String, Path)), responses(
    (status = 200, body = SnapshotBody),
    (status = "default", body = ErrorBody),
))]
async fn get(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(snapshot): Path<String>,
) -> Answer<Json<SnapshotBody>> {
    Ok(Json(SnapshotBody::of(app.runtime.snapshot(&caller, snapshot_id(&snapshot)?).await?)))
}

/// Lets it go. What was made from it stays as it is.
#[utoipa::path(delete, path = "/v1/snapshots/{snapshot}", tag = "snapshots", params(("snapshot" = String, Path)), responses(
    (status = 204),
    (status = "default", body = ErrorBody),
))]
async fn delete(
    State(app): State<App>,
    User(caller): User,
    Path(snapshot): Path<String>,
    once: Once,
) -> Answer<StatusCode> {
    let call = app.runtime.call(ask(caller, Place::Nowhere, once), Delete(snapshot_id(&snapshot)?)).await?;
    let id = call.id();
    call.answer().await.map_err(|error| Refused::from(error).of_call(id))?;
    Ok(StatusCode::NO_CONTENT)
}
