//! Links to what listens inside.

use std::time::Duration;

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode, Uri},
};
use cabana_runtime::{Link, Place, Time, Unlink};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::types::{id, port};
use crate::{
    App,
    auth::{Once, User, ask, look},
    error::{Answer, ErrorBody, Refused},
    extract::{Body, Path},
    ports::{authority, is_secure, link_urls},
};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(link)).routes(routes!(unlink))
}

#[derive(Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
struct LinkBody {
    /// How long it opens the port.
    #[schema(minimum = 1, maximum = 2592000, default = 3600)]
    expires_sec: u64,
}

impl Default for LinkBody {
    fn default() -> Self {
        Self { expires_sec: 3600 }
    }
}

#[derive(Serialize, ToSchema)]
struct LinkedBody {
    /// By a host name of its own, where the server has names to give and the client can use them.
    #[schema(example = "http://8000-k3vq7xw2m9pd5ru8thya.localhost:7070/?cabana_link=…")]
    url: String,
    /// By path. A browser gives a page that comes this way no origin: it has no cookies and no storage.
    path_url: String,
    #[schema(value_type = String, format = DateTime)]
    expires_at: Time,
}

/// A link to a port that needs no key, until it ends. It ends before with the key that made it, and when all links to the sandbox are taken back.
///
/// What listens there is reached by `/p/{sandbox}/{port}/…` and by `{port}-{sandbox}.{domain}`, with a key or with a link.
/// The sandbox is started if it has to be.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/ports/{port}/link", tag = "ports", request_body = Option<LinkBody>, params(("sandbox" = String, Path, pattern = "^[a-z][a-z0-9]{15,20}$"), ("port" = u16, Path, minimum = 1)), responses(
    (status = 200, body = LinkedBody),
    (status = "default", body = ErrorBody),
))]
async fn link(
    State(app): State<App>,
    User(caller): User,
    Path((sandbox, number)): Path<(String, String)>,
    uri: Uri,
    headers: HeaderMap,
    Body(body): Body<LinkBody>,
) -> Answer<Json<LinkedBody>> {
    let host = authority(&uri, &headers).ok_or_else(|| Refused::invalid("Host", "is missing, or is no name"))?;
    let link = Link { port: port(&number)?, lasts: Duration::from_secs(body.expires_sec) };
    let (_, signed) = app.runtime.look(look(caller, Place::Sandbox(id(&sandbox)?)), link).await?;
    let (url, path_url) = link_urls(&app, &host, is_secure(&app, &headers), &signed);
    Ok(Json(LinkedBody { url, path_url, expires_at: signed.grant.expires }))
}

/// Takes back all links to the sandbox's ports. A connection that is open by one of them goes on until it ends.
#[utoipa::path(delete, path = "/v1/sandboxes/{sandbox}/links", tag = "ports", params(("sandbox" = String, Path, pattern = "^[a-z][a-z0-9]{15,20}$")), responses(
    (status = 204),
    (status = "default", body = ErrorBody),
))]
async fn unlink(
    State(app): State<App>,
    User(caller): User,
    Path(sandbox): Path<String>,
    once: Once,
) -> Answer<StatusCode> {
    let call = app.runtime.call(ask(caller, Place::Sandbox(id(&sandbox)?), once), Unlink).await?;
    let id = call.id();
    call.answer().await.map_err(|error| Refused::from(error).of_call(id))?;
    Ok(StatusCode::NO_CONTENT)
}
