//! Whether it lives, and whether it can do its work.

use axum::{Json, extract::State, http::StatusCode};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{App, error::Answer};

#[derive(Serialize, ToSchema)]
pub(crate) struct Health {
    #[schema(example = "ok")]
    status: &'static str,
}

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(livez)).routes(routes!(readyz))
}

/// The process answers.
#[utoipa::path(get, path = "/livez", tag = "health", security(()), responses((status = 200, body = Health)))]
pub(crate) async fn livez() -> Json<Health> {
    Json(Health { status: "ok" })
}

/// The store answers too and can be written to, and new work is taken: a server that was told to end answers `draining`.
///
/// Of the store it says what was so within the last second.
#[utoipa::path(get, path = "/readyz", tag = "health", security(()), responses(
    (status = 200, body = Health),
    (status = 503, body = crate::error::ErrorBody),
))]
async fn readyz(State(app): State<App>) -> Answer<(StatusCode, Json<Health>)> {
    app.runtime.check_store().await?;
    Ok((StatusCode::OK, Json(Health { status: "ok" })))
}
