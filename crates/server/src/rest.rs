//! Version 1 of our own interface.

mod calls;
mod chat_files;
mod config;
mod events;
mod exec;
mod files;
pub(crate) mod files_content;
pub(crate) mod files_range;
mod files_search;
mod gc;
mod keys;
mod ledger;
mod lifecycle;
mod mounts;
mod ports;
mod quotas;
mod sandboxes;
mod snapshots;
mod tasks;
mod templates;
mod terminal;
mod types;
mod usage;
mod volumes;
mod webhooks;

use utoipa_axum::router::OpenApiRouter;

pub(crate) use self::types::{id, port};
use crate::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .merge(sandboxes::routes())
        .merge(exec::routes())
        .merge(calls::routes())
        .merge(tasks::routes())
        .merge(files::routes())
        .merge(chat_files::routes())
        .merge(keys::routes())
        .merge(quotas::routes())
        .merge(usage::routes())
        .merge(ledger::routes())
        .merge(lifecycle::routes())
        .merge(terminal::routes())
        .merge(ports::routes())
        .merge(events::routes())
        .merge(snapshots::routes())
        .merge(templates::routes())
        .merge(volumes::routes())
        .merge(gc::routes())
        .merge(webhooks::routes())
        .merge(config::routes())
}
