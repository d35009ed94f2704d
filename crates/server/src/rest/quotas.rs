//! Quotas: how much a tenant and a key may have, and how much they have.

use axum::{Json, extract::State};
use cabana_runtime::{Amounts, BOUNDLESS, Caller, KeyId, Owner, Quota, Standing, Tenant};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    App,
    auth::{Admin, Reader},
    error::{Answer, ErrorBody, Refused},
    extract::{Body, Path, Query},
};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(of_tenant, set_tenant, unset_tenant))
        .routes(routes!(of_key, set_key, unset_key))
}

/// The most that somebody may have. What is not said is not limited.
#[derive(Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
struct QuotaBody {
    /// All that there are, also those that rest.
    sandboxes: Option<u64>,
    /// Those that run, and those that are paused.
    running: Option<u64>,
    /// In thousandths of a processor: the limits of those that run, together.
    cpu_milli: Option<u64>,
    /// The limits of those that run, together.
    memory_bytes: Option<u64>,
    /// The limits of all, together.
    disk_bytes: Option<u64>,
    calls_per_sec: Option<u64>,
    concurrent_calls: Option<u64>,
    /// Commands in the background that run.
    tasks: Option<u64>,
    /// What is kept: files of sandboxes, volumes, snapshots, outputs. Measured again and again.
    stored_bytes: Option<u64>,
    /// What is recorded of calls: rows of the ledger, of calls and of tasks. Of a tenant alone.
    ledger_bytes: Option<u64>,
}

impl From<QuotaBody> for Quota {
    fn from(body: QuotaBody) -> Self {
        Self {
            sandboxes: body.sandboxes,
            running: body.running,
            cpu_milli: body.cpu_milli,
            memory_bytes: body.memory_bytes,
            disk_bytes: body.disk_bytes,
            calls_per_sec: body.calls_per_sec,
            concurrent_calls: body.concurrent_calls,
            tasks: body.tasks,
            stored_bytes: body.stored_bytes,
            ledger_bytes: body.ledger_bytes,
        }
    }
}

impl From<Quota> for QuotaBody {
    fn from(quota: Quota) -> Self {
        Self {
            sandboxes: quota.sandboxes,
            running: quota.running,
            cpu_milli: quota.cpu_milli,
            memory_bytes: quota.memory_bytes,
            disk_bytes: quota.disk_bytes,
            calls_per_sec: quota.calls_per_sec,
            concurrent_calls: quota.concurrent_calls,
            tasks: quota.tasks,
            stored_bytes: quota.stored_bytes,
            ledger_bytes: quota.ledger_bytes,
        }
    }
}

/// What is in use. Absent: without a bound, since there is a sandbox without such a limit.
#[derive(Serialize, ToSchema)]
struct UseBody {
    sandboxes: u64,
    running: u64,
    cpu_milli: Option<u64>,
    memory_bytes: Option<u64>,
    disk_bytes: Option<u64>,
    concurrent_calls: u64,
    tasks: u64,
    /// As it was last measured; absent where no quota asks for it.
    stored_bytes: Option<u64>,
    /// Absent of a key: it is its tenant's.
    ledger_bytes: Option<u64>,
}

impl UseBody {
    fn of(used: &Amounts, measured: bool, of_tenant: bool) -> Self {
        let count = |amount: u128| u64::try_from(amount).unwrap_or(u64::MAX);
        let sum = |amount: u128| (amount < BOUNDLESS).then(|| count(amount));
        Self {
            sandboxes: count(used.sandboxes),
            running: count(used.running),
            cpu_milli: sum(used.cpu_milli),
            memory_bytes: sum(used.memory_bytes),
            disk_bytes: sum(used.disk_bytes),
            concurrent_calls: count(used.concurrent_calls),
            tasks: count(used.tasks),
            stored_bytes: measured.then(|| count(used.stored_bytes)),
            ledger_bytes: of_tenant.then(|| count(used.ledger_bytes)),
        }
    }
}

/// What somebody may have, and what they have.
#[derive(Serialize, ToSchema)]
struct StandingBody {
    #[schema(value_type = String, example = "default")]
    tenant: Tenant,
    /// Of this key alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    key: Option<KeyId>,
    /// As it was set.
    set: QuotaBody,
    /// As it holds: what was not set is as the server's settings have it.
    limits: QuotaBody,
    #[serde(rename = "use")]
    used: UseBody,
}

impl StandingBody {
    fn of(standing: Standing) -> Self {
        let Standing { owner, set, limits, used } = standing;
        let used = UseBody::of(&used, limits.stored_bytes.is_some(), owner.key.is_none());
        Self { tenant: owner.tenant, key: owner.key, set: set.into(), limits: limits.into(), used }
    }
}

#[derive(Serialize, ToSchema)]
struct StandingsBody {
    quotas: Vec<StandingBody>,
}

/// The quotas of one's tenant and of one's key, with what is in use. The operator sees all that were set.
#[utoipa::path(get, path = "/v1/quotas", tag = "quotas", responses(
    (status = 200, body = StandingsBody),
    (status = "default", body = ErrorBody),
))]
async fn list(State(app): State<App>, Reader(caller): Reader) -> Answer<Json<StandingsBody>> {
    let quotas = app.runtime.standings(&caller).await?;
    Ok(Json(StandingsBody { quotas: quotas.into_iter().map(StandingBody::of).collect() }))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct How {
    /// Also below what is in use: then nothing more begins until enough has gone.
    #[serde(default)]
    force: bool,
}

fn tenant(text: &str) -> Answer<Owner> {
    let tenant = Tenant::new(text).map_err(|error| Refused::invalid("tenant", error))?;
    Ok(Owner { tenant, key: None })
}

async fn owner_of(app: &App, key: &str) -> Answer<Owner> {
    let key: KeyId = key.parse().map_err(|error| Refused::invalid("key", error))?;
    Ok(app.runtime.owner_of(key).await?)
}

async fn set(app: &App, by: &Caller, owner: Owner, quota: Option<Quota>, how: &How) -> Answer<Json<StandingBody>> {
    if quota.is_some_and(|quota| quota.is_none()) {
        return Err(Refused::invalid("quota", "limits nothing: name what it limits, or DELETE it"));
    }
    Ok(Json(StandingBody::of(app.runtime.set_quota(by, owner, quota, how.force).await?)))
}

/// The quota of a tenant.
#[utoipa::path(get, path = "/v1/quotas/{tenant}", tag = "quotas", params(("tenant" = String, Path, pattern = "^[a-z0-9][a-z0-9_-]{0,62}$")), responses(
    (status = 200, body = StandingBody),
    (status = "default", body = ErrorBody),
))]
async fn of_tenant(State(app): State<App>, Admin(_): Admin, Path(name): Path<String>) -> Answer<Json<StandingBody>> {
    Ok(Json(StandingBody::of(app.runtime.standing(tenant(&name)?).await?)))
}

/// Sets the quota of a tenant, as a whole.
#[utoipa::path(put, path = "/v1/quotas/{tenant}", tag = "quotas", request_body = QuotaBody, params(("tenant" = String, Path, pattern = "^[a-z0-9][a-z0-9_-]{0,62}$"), How), responses(
    (status = 200, body = StandingBody),
    (status = "default", body = ErrorBody),
))]
async fn set_tenant(
    State(app): State<App>,
    Admin(caller): Admin,
    Path(name): Path<String>,
    Query(how): Query<How>,
    Body(body): Body<QuotaBody>,
) -> Answer<Json<StandingBody>> {
    set(&app, &caller, tenant(&name)?, Some(body.into()), &how).await
}

/// Takes the quota of a tenant away: it has what the server's settings give.
#[utoipa::path(delete, path = "/v1/quotas/{tenant}", tag = "quotas", params(("tenant" = String, Path, pattern = "^[a-z0-9][a-z0-9_-]{0,62}$"), How), responses(
    (status = 200, body = StandingBody),
    (status = "default", body = ErrorBody),
))]
async fn unset_tenant(
    State(app): State<App>,
    Admin(caller): Admin,
    Path(name): Path<String>,
    Query(how): Query<How>,
) -> Answer<Json<StandingBody>> {
    set(&app, &caller, tenant(&name)?, None, &how).await
}

/// The quota of a key: what was made with it, and what it does.
#[utoipa::path(get, path = "/v1/keys/{key}/quota", tag = "quotas", params(("key" = String, Path, pattern = "^key_[0-9a-f]{32}$")), responses(
    (status = 200, body = StandingBody),
    (status = "default", body = ErrorBody),
))]
async fn of_key(State(app): State<App>, Admin(_): Admin, Path(key): Path<String>) -> Answer<Json<StandingBody>> {
    Ok(Json(StandingBody::of(app.runtime.standing(owner_of(&app, &key).await?).await?)))
}

/// Sets the quota of a key, as a whole. It holds beside that of the tenant.
#[utoipa::path(put, path = "/v1/keys/{key}/quota", tag = "quotas", request_body = QuotaBody, params(("key" = String, Path, pattern = "^key_[0-9a-f]{32}$"), How), responses(
    (status = 200, body = StandingBody),
    (status = "default", body = ErrorBody),
))]
async fn set_key(
    State(app): State<App>,
    Admin(caller): Admin,
    Path(key): Path<String>,
    Query(how): Query<How>,
    Body(body): Body<QuotaBody>,
) -> Answer<Json<StandingBody>> {
    set(&app, &caller, owner_of(&app, &key).await?, Some(body.into()), &how).await
}

/// Takes the quota of a key away.
#[utoipa::path(delete, path = "/v1/keys/{key}/quota", tag = "quotas", params(("key" = String, Path, pattern = "^key_[0-9a-f]{32}$"), How), responses(
    (status = 200, body = StandingBody),
    (status = "default", body = ErrorBody),
))]
async fn unset_key(
    State(app): State<App>,
    Admin(caller): Admin,
    Path(key): Path<String>,
    Query(how): Query<How>,
) -> Answer<Json<StandingBody>> {
    set(&app, &caller, owner_of(&app, &key).await?, None, &how).await
}
