//! What was kept long enough, and all that there is as one file: both are the operator's.

use axum::{
    Json,
    body::Body as HttpBody,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use cabana_runtime::{
    Place,
    acts::{backup::Backup, gc::Collect},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    App,
    auth::{Admin, Once, ask, look},
    error::{Answer, ErrorBody, Refused},
    extract::Body,
    seats::KEY_ENDED,
};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(collect)).routes(routes!(backup))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CollectBody {
    /// Change nothing, and say what would go. It has to be said either way.
    dry_run: bool,
}

/// What went, or would go.
#[derive(Serialize, ToSchema)]
struct CollectedBody {
    dry_run: bool,
    kinds: Vec<CountedBody>,
}

#[derive(Serialize, ToSchema)]
struct CountedBody {
    /// `outputs`, `calls` (with tasks), `ledger` (its rows), `snapshots`, `templates`, `layers` or `blobs` (archives that are nobody's).
    kind: String,
    count: u64,
    /// What they took on the disk. What snapshots and templates took is that of their layers.
    bytes: u64,
    /// Some of them.
    examples: Vec<String>,
    /// How many stay, as far as they were counted.
    kept: u64,
    kept_bytes: u64,
}

/// Removes what was kept long enough, as the server does by itself from time to time (`retention.*`).
#[utoipa::path(post, path = "/v1/gc", tag = "retention", request_body = CollectBody, responses(
    (status = 200, body = CollectedBody),
    (status = "default", body = ErrorBody),
))]
async fn collect(
    State(app): State<App>,
    Admin(caller): Admin,
    once: Once,
    Body(body): Body<CollectBody>,
) -> Answer<Json<CollectedBody>> {
    let call = app.runtime.call(ask(caller, Place::Nowhere, once), Collect { dry_run: body.dry_run }).await?;
    let id = call.id();
    let collected = call.answer().await.map_err(|error| Refused::from(error).of_call(id))?;
    let kinds = collected.kinds.into_iter().map(|kind| CountedBody {
        kind: kind.kind,
        count: kind.count,
        bytes: kind.bytes,
        examples: kind.examples,
        kept: kind.kept,
        kept_bytes: kind.kept_bytes,
    });
    Ok(Json(CollectedBody { dry_run: collected.dry_run, kinds: kinds.collect() }))
}

/// All that the server has, as one stream: the record of everything, keys, outputs, templates, snapshots and the files of all
/// sandboxes. `cabana restore` makes a data directory of it. Whoever has it has all of that.
#[utoipa::path(get, path = "/v1/backup", tag = "retention", responses(
    (status = 200, content_type = "application/octet-stream"),
    (status = "default", body = ErrorBody),
))]
async fn backup(State(app): State<App>, Admin(caller): Admin) -> Answer<Response> {
    let seat = app.open_stream(&caller).await?;
    let (_, stream) = app.runtime.look(look(caller, Place::Nowhere), Backup).await?;
    let cut = || Err(cabana_sandbox::Error::failed("making a backup", std::io::Error::other(KEY_ENDED)));
    let stream = seat.hold(stream, cut);
    let headers = [(header::CONTENT_TYPE, "application/octet-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, HttpBody::from_stream(stream)).into_response())
}
