//! The control plane: what makes, finds, changes and ends sandboxes.

mod create;
mod list;
mod network;
mod told;
mod verbs;

use axum::{
    Router,
    http::StatusCode,
    routing::{get, post, put},
};

pub(super) use self::create::until;
use crate::App;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/sandboxes", post(create::create).get(list::list_v1))
        .route("/v2/sandboxes", post(create::create_v2).get(list::list))
        .route("/sandboxes/{sandbox}", get(verbs::show).delete(verbs::kill))
        .route("/sandboxes/{sandbox}/connect", post(verbs::connect))
        .route("/v2/sandboxes/{sandbox}/connect", post(verbs::connect_v2))
        .route("/sandboxes/{sandbox}/pause", post(verbs::pause))
        .route("/sandboxes/{sandbox}/resume", post(verbs::resume))
        .route("/sandboxes/{sandbox}/timeout", post(verbs::timeout))
        .route("/sandboxes/{sandbox}/refreshes", post(verbs::refresh))
        .route("/sandboxes/{sandbox}/network", put(network::replace))
        .route("/health", get(|| async { StatusCode::NO_CONTENT }))
}
