//! Version 1 of our own interface.

mod calls;
mod chat_files;
mod exec;
mod files;
mod files_content;
mod files_range;
mod files_search;
mod keys;
mod ledger;
mod sandboxes;
mod tasks;
mod types;

use utoipa_axum::router::OpenApiRouter;

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
        .merge(ledger::routes())
}
