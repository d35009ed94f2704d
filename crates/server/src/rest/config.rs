//! The settings of the server, while it serves.

use axum::{Json, extract::State};
use cabana_runtime::Code;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    App,
    auth::Admin,
    error::{Answer, ErrorBody, Refused},
};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(reload))
}

/// What became of the settings that were read again.
#[derive(Serialize, ToSchema)]
struct ReloadedBody {
    /// Those that have another value since then.
    #[schema(example = json!(["limits.memory"]))]
    changed: Vec<String>,
    /// Those that will have another value once the server is started again.
    #[schema(example = json!(["server.listen"]))]
    needs_restart: Vec<String>,
}

/// Reads the file of the settings again, and the certificates, as SIGHUP does.
///
/// What can change while the server serves counts for everything that begins from now on. If anything is wrong with the
/// settings, nothing changes.
#[utoipa::path(post, path = "/v1/config:reload", tag = "config", responses(
    (status = 200, body = ReloadedBody),
    (status = "default", body = ErrorBody),
))]
async fn reload(State(app): State<App>, Admin(caller): Admin) -> Answer<Json<ReloadedBody>> {
    // Files are read, which may take a while.
    let reload = app.options.reload.clone();
    let reloaded = tokio::task::spawn_blocking(move || (reload.0)()).await;
    let reloaded = reloaded.map_err(|error| Refused::new(Code::Internal, error.to_string()))?;
    let reloaded = reloaded.map_err(|why| Refused::new(Code::BadRequest, why))?;
    app.runtime.note(&caller, "config.reload", reloaded.changed.clone()).await?;
    Ok(Json(ReloadedBody { changed: reloaded.changed, needs_restart: reloaded.needs_restart }))
}
