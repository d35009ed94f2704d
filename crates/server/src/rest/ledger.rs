//! The record of everything.

use axum::{Json, extract::State, response::Response};
use cabana_runtime::{Dropped, Head, LedgerRow};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    App,
    auth::Reader,
    error::{Answer, ErrorBody, Refused},
    extract::Query,
    long_answer,
};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(rows)).routes(routes!(head))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Which {
    /// Those after this number.
    #[param(format = "uint64")]
    after: Option<u64>,
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

#[derive(Serialize, ToSchema)]
struct LedgerBody {
    /// From the oldest on. Each carries the hash of the one before it.
    #[schema(value_type = Vec<Object>)]
    rows: Vec<LedgerRow>,
    /// What is missing before the first row, if something was dropped: the number and the hash of the last of it, how many rows
    /// it was in all, and when. A row `ledger.drop` of the chain says the same.
    #[schema(value_type = Option<Object>)]
    dropped: Option<Dropped>,
}

/// The tenant's ledger: one row for each call, in order.
#[utoipa::path(get, path = "/v1/ledger", tag = "ledger", params(Which), responses(
    (status = 200, body = LedgerBody),
    (status = "default", body = ErrorBody),
))]
async fn rows(State(app): State<App>, Reader(caller): Reader, Query(which): Query<Which>) -> Answer<Response> {
    const USUAL: u32 = 100;
    let limit = match which.limit.unwrap_or(USUAL) {
        limit @ 1..=1000 => limit,
        _ => return Err(Refused::invalid("limit", "must be from 1 to 1000")),
    };
    let (rows, dropped) = app.runtime.ledger(&caller, which.after.unwrap_or(0), limit).await?;
    let mut memory = app.runtime.list_memory(&caller.tenant);
    long_answer::charge(&mut memory, &rows)?;
    Ok(long_answer::json(memory, move || LedgerBody { rows, dropped }).await?)
}

#[derive(Serialize, ToSchema)]
struct HeadBody {
    #[schema(value_type = Option<Object>)]
    head: Option<Head>,
}

/// The newest row's number and hash: kept elsewhere, it shows later that nothing was cut off.
#[utoipa::path(get, path = "/v1/ledger/head", tag = "ledger", responses(
    (status = 200, body = HeadBody),
    (status = "default", body = ErrorBody),
))]
async fn head(State(app): State<App>, Reader(caller): Reader) -> Answer<Json<HeadBody>> {
    Ok(Json(HeadBody { head: app.runtime.ledger_head(&caller).await? }))
}
