//! Usage, by day and verb.

use axum::{Json, extract::State};
use cabana_runtime::{Tenant, Time, Usage};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    App,
    auth::Reader,
    error::{Answer, ErrorBody, Refused},
    extract::Query,
};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(usage))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Which {
    /// The first day, in UTC; without it, 30 days ago.
    #[param(example = "2026-01-01")]
    from: Option<String>,
    /// The last day; without it, today.
    #[param(example = "2026-01-31")]
    to: Option<String>,
}

#[derive(Serialize, ToSchema)]
struct UsageBody {
    #[schema(value_type = String, example = "default")]
    tenant: Tenant,
    usage: Vec<DayBody>,
}

/// What was done on one day with one verb.
#[derive(Serialize, ToSchema)]
struct DayBody {
    #[schema(example = "2026-01-31")]
    day: String,
    #[schema(example = "exec")]
    verb: String,
    calls: u64,
    /// How many of them did not do what was asked, for whatever reason.
    failed: u64,
    duration_ms: u64,
}

impl DayBody {
    fn of(usage: Usage) -> Self {
        let Usage { day, verb, calls, failed, ms } = usage;
        Self { day, verb, calls, failed, duration_ms: ms }
    }
}

/// What the tenant did, by day and verb, as its ledger says. A task is the verb `task`, on the day when it ended.
#[utoipa::path(get, path = "/v1/usage", tag = "quotas", params(Which), responses(
    (status = 200, body = UsageBody),
    (status = "default", body = ErrorBody),
))]
async fn usage(State(app): State<App>, Reader(caller): Reader, Query(which): Query<Which>) -> Answer<Json<UsageBody>> {
    const USUAL: i64 = 30 * 24 * 3600;
    let today = app.runtime.clock().now();
    let before = Time::from_second(today.as_second() - USUAL).unwrap_or(Time::MIN);
    let (from, to) = (day("from", which.from, before)?, day("to", which.to, today)?);
    if from > to {
        return Err(Refused::invalid("from", "is later than `to`"));
    }
    let usage = app.runtime.usage(&caller, from, to).await?;
    Ok(Json(UsageBody { tenant: caller.tenant, usage: usage.into_iter().map(DayBody::of).collect() }))
}

fn day(field: &str, given: Option<String>, usual: Time) -> Answer<String> {
    let Some(text) = given else { return Ok(usual.to_string().chars().take(10).collect()) };
    let is_day = text.len() == 10 && format!("{text}T00:00:00Z").parse::<Time>().is_ok();
    if is_day { Ok(text) } else { Err(Refused::invalid(field, "must be a day, as 2026-01-31")) }
}
