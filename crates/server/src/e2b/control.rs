//! The control plane: what makes, finds, changes and ends sandboxes.

pub(super) mod base;
mod create;
mod fork;
mod list;
mod logs;
mod metrics;
mod network;
mod one;
pub(super) mod snapshots;
mod told;
mod verbs;

use axum::{
    Router,
    http::StatusCode,
    routing::{get, post, put},
};

pub(super) use self::{create::until, metrics::processors};
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
        .route("/sandboxes/{sandbox}/fork", post(fork::fork))
        .route("/sandboxes/{sandbox}/metrics", get(metrics::of_one))
        .route("/sandboxes/metrics", get(metrics::of_several))
        .route("/sandboxes/{sandbox}/logs", get(logs::logs))
        .route("/v2/sandboxes/{sandbox}/logs", get(logs::logs_v2))
        .route("/sandboxes/{sandbox}/snapshots", post(snapshots::take))
        .route("/snapshots", get(snapshots::list))
        .route("/sandboxes/{sandbox}/network", put(network::replace))
        .route("/health", get(|| async { StatusCode::NO_CONTENT }))
}
