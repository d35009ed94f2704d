//! The routes, and the document that describes them: one list for both.

use axum::{Router, body::Bytes, http::header, response::IntoResponse, routing::get};
use utoipa::{
    OpenApi,
    openapi::{
        OpenApi as Document,
        security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
    },
};
use utoipa_axum::router::OpenApiRouter;

use crate::{App, health, metrics, rest};

#[derive(OpenApi)]
#[openapi(
    info(title = "Cabana", description = "Every conversation of an AI agent has its own Linux computer.", license(name = "Apache-2.0")),
    tags(
        (name = "sandboxes", description = "Made, found by their scope, stopped and deleted"),
        (name = "exec", description = "Commands, and what they said"),
        (name = "tasks", description = "Commands in the background"),
        (name = "files", description = "The files of a sandbox"),
        (name = "terminal", description = "A command with a terminal, by WebSocket"),
        (name = "ports", description = "What listens inside"),
        (name = "events", description = "What happens, as it happens"),
        (name = "webhooks", description = "Addresses that are told what happens"),
        (name = "snapshots", description = "The files of a sandbox at one moment, for others to begin with"),
        (name = "templates", description = "What sandboxes are made from"),
        (name = "volumes", description = "Directories that outlive sandboxes, for any number of them to have mounted"),
        (name = "keys", description = "Who may do what"),
        (name = "quotas", description = "How much a tenant and a key may have, and what they used"),
        (name = "ledger", description = "The record of everything"),
        (name = "retention", description = "What goes after a while, and backups"),
        (name = "config", description = "The settings of the server"),
        (name = "health", description = "For whoever watches the server"),
    ),
)]
struct Base;

pub(crate) fn routes() -> OpenApiRouter<App> {
    let mut base = Base::openapi();
    let components = base.components.get_or_insert_default();
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
    components.add_security_scheme("key", SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new("X-API-KEY"))));
    let none: [String; 0] = [];
    base.security = Some(vec![SecurityRequirement::new("bearer", none.clone()), SecurityRequirement::new("key", none)]);
    OpenApiRouter::with_openapi(base).merge(health::routes()).merge(metrics::routes()).merge(rest::routes())
}

pub(crate) fn text(document: &Document) -> String {
    // Its parts are all our own, and have names that JSON can hold.
    document.to_pretty_json().unwrap_or_default() + "\n"
}

pub(crate) fn served(document: &Document) -> Router<App> {
    let text = Bytes::from(text(document)); // all answers have the same one
    let serve = move || async move { ([(header::CONTENT_TYPE, "application/json")], text).into_response() };
    Router::new().route("/openapi.json", get(serve))
}
