//! When sandboxes rest and go: what is asked, what is said, leases, and many at once.

use std::time::Duration;

use axum::{Json, extract::State, http::StatusCode};
use cabana_runtime::{
    Action, Hook, Lifecycle, Place, Reaped, Time, Token, Which,
    acts::{
        lease::{Release, Renew, Take, Taken, USUAL},
        purge::Purge,
    },
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::types::id;
use crate::{
    App,
    auth::{Admin, Once, User, ask},
    error::{Answer, ErrorBody, Refused},
    extract::{Body, Path, Query, maybe_object},
};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(take, renew, release)).routes(routes!(delete_many)).routes(routes!(reap))
}

/// What becomes of a sandbox whose time has come.
#[derive(Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum ActionBody {
    /// Its processes end, its files are kept.
    Stop,
    /// Its memory is kept too.
    Pause,
    Delete,
}

impl From<ActionBody> for Action {
    fn from(action: ActionBody) -> Self {
        match action {
            ActionBody::Stop => Self::Stop,
            ActionBody::Pause => Self::Pause,
            ActionBody::Delete => Self::Delete,
        }
    }
}

impl From<Action> for ActionBody {
    fn from(action: Action) -> Self {
        match action {
            Action::Stop => Self::Stop,
            Action::Pause => Self::Pause,
            Action::Delete => Self::Delete,
        }
    }
}

/// When it rests and goes. What is not said is as the server's settings have it; a time of 0 is never.
#[derive(Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct LifecycleBody {
    /// How long nothing may have happened in it: no call, task, terminal, traffic of a port, lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    idle_sec: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idle_action: Option<ActionBody>,
    /// The longest that it may run at a stretch, whatever happens in it; with `delete`, the longest that it may be there.
    #[serde(skip_serializing_if = "Option::is_none")]
    hard_sec: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hard_action: Option<ActionBody>,
    /// When its time has come, whatever happens in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_expire: Option<ActionBody>,
    /// How long after its last use a stopped one is packed away. The next call brings it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    archive_after_sec: Option<u64>,
    /// How long after its last use one that does not run is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    delete_after_sec: Option<u64>,
    /// Runs inside after each start, before the first call.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "maybe_object")]
    after_start: Option<HookBody>,
    /// Runs inside before each stop.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "maybe_object")]
    before_stop: Option<HookBody>,
}

/// A command inside, for a shell. That it fails holds nothing up. An empty one is none.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct HookBody {
    command: String,
    /// The longest that it may take.
    #[serde(default = "usual_hook")]
    timeout_sec: u64,
}

fn usual_hook() -> u64 {
    30
}

impl From<HookBody> for Hook {
    fn from(HookBody { command, timeout_sec }: HookBody) -> Self {
        Self { command, timeout_sec }
    }
}

impl From<Hook> for HookBody {
    fn from(Hook { command, timeout_sec }: Hook) -> Self {
        Self { command, timeout_sec }
    }
}

impl LifecycleBody {
    pub(super) fn lifecycle(self) -> Lifecycle {
        Lifecycle {
            idle_sec: self.idle_sec,
            idle_action: self.idle_action.map(Into::into),
            hard_sec: self.hard_sec,
            hard_action: self.hard_action.map(Into::into),
            expires_at: self.expires_at,
            on_expire: self.on_expire.map(Into::into),
            archive_after_sec: self.archive_after_sec,
            delete_after_sec: self.delete_after_sec,
            after_start: self.after_start.map(Into::into),
            before_stop: self.before_stop.map(Into::into),
        }
    }

    pub(super) fn of(lifecycle: Lifecycle) -> Self {
        Self {
            idle_sec: lifecycle.idle_sec,
            idle_action: lifecycle.idle_action.map(Into::into),
            hard_sec: lifecycle.hard_sec,
            hard_action: lifecycle.hard_action.map(Into::into),
            expires_at: lifecycle.expires_at,
            on_expire: lifecycle.on_expire.map(Into::into),
            archive_after_sec: lifecycle.archive_after_sec,
            delete_after_sec: lifecycle.delete_after_sec,
            after_start: lifecycle.after_start.map(Into::into),
            before_stop: lifecycle.before_stop.map(Into::into),
        }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct TakeBody {
    /// Who has it then, in its own words: whoever finds it taken reads that.
    #[schema(example = "deploying skills")]
    holder: String,
    /// It ends by itself then; renew it six times as often. Three minutes unless said otherwise.
    ttl_sec: Option<u64>,
    /// How long to wait for another one's to end.
    #[serde(default)]
    wait_ms: u64,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Lasts {
    /// From now on. Three minutes unless said otherwise.
    ttl_sec: Option<u64>,
}

#[derive(Serialize, ToSchema)]
struct LeaseBody {
    /// For the header `Cabana-Lease`.
    #[schema(value_type = String)]
    token: Token,
    #[schema(value_type = String, format = DateTime)]
    expires_at: Time,
}

impl From<Taken> for LeaseBody {
    fn from(Taken { token, until }: Taken) -> Self {
        Self { token, expires_at: until }
    }
}

fn lasting(ttl_sec: Option<u64>) -> Duration {
    ttl_sec.map_or(USUAL, Duration::from_secs)
}

fn shown(once: Once) -> Answer<Token> {
    once.lease.ok_or_else(|| Refused::invalid("Cabana-Lease", "is missing: it says which lease is meant"))
}

/// Takes a lease on the sandbox: until it ends nobody else stops, pauses, archives or deletes it, and it is not idle.
///
/// Calls that show its token in the header `Cabana-Lease` are refused with `lease_lost` once it has ended.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/lease", tag = "sandboxes", request_body = TakeBody, params(("sandbox" = String, Path, pattern = "^[a-z][a-z0-9]{15,20}$")), responses(
    (status = 201, body = LeaseBody),
    (status = "default", body = ErrorBody),
))]
async fn take(
    State(app): State<App>,
    User(caller): User,
    Path(sandbox): Path<String>,
    once: Once,
    Body(body): Body<TakeBody>,
) -> Answer<(StatusCode, Json<LeaseBody>)> {
    let patience = Duration::from_millis(body.wait_ms);
    let take = Take { holder: body.holder, lasts: lasting(body.ttl_sec), patience };
    let call = app.runtime.call(ask(caller, Place::Sandbox(id(&sandbox)?), Once { lease: None, ..once }), take).await?;
    let id = call.id();
    let taken = call.answer().await.map_err(|error| Refused::from(error).of_call(id))?;
    Ok((StatusCode::CREATED, Json(taken.into())))
}

/// Renews the lease whose token is in the header `Cabana-Lease`.
#[utoipa::path(put, path = "/v1/sandboxes/{sandbox}/lease", tag = "sandboxes", params(Lasts, ("sandbox" = String, Path, pattern = "^[a-z][a-z0-9]{15,20}$"), ("cabana-lease" = String, Header)), responses(
    (status = 200, body = LeaseBody),
    (status = "default", body = ErrorBody),
))]
async fn renew(
    State(app): State<App>,
    User(caller): User,
    Path(sandbox): Path<String>,
    once: Once,
    Query(lasts): Query<Lasts>,
) -> Answer<Json<LeaseBody>> {
    let sandbox = Place::Sandbox(id(&sandbox)?);
    let renew = Renew { token: shown(once)?, lasts: lasting(lasts.ttl_sec) };
    let call = app.runtime.call(ask(caller, sandbox, once), renew).await?;
    let id = call.id();
    let renewed = call.answer().await.map_err(|error| Refused::from(error).of_call(id))?;
    Ok(Json(renewed.into()))
}

/// Gives the lease back whose token is in the header `Cabana-Lease`.
#[utoipa::path(delete, path = "/v1/sandboxes/{sandbox}/lease", tag = "sandboxes", params(("sandbox" = String, Path, pattern = "^[a-z][a-z0-9]{15,20}$"), ("cabana-lease" = String, Header)), responses(
    (status = 204),
    (status = "default", body = ErrorBody),
))]
async fn release(
    State(app): State<App>,
    User(caller): User,
    Path(sandbox): Path<String>,
    once: Once,
) -> Answer<StatusCode> {
    let sandbox = Place::Sandbox(id(&sandbox)?);
    let call = app.runtime.call(ask(caller, sandbox, once), Release(shown(once)?)).await?;
    let id = call.id();
    call.answer().await.map_err(|error| Refused::from(error).of_call(id))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Which sandboxes of the tenant: those of an app, of one chat of it, or all.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct DeleteBody {
    app: Option<String>,
    /// Of this app.
    chat: Option<String>,
    #[serde(default)]
    all: bool,
}

#[derive(Serialize, ToSchema)]
struct DoomedBody {
    /// How many there were.
    sandboxes: usize,
}

/// Deletes the sandboxes of a chat, of an app, or all. They are gone at once; their files are removed in the background.
#[utoipa::path(post, path = "/v1/sandboxes:delete", tag = "sandboxes", request_body = DeleteBody, responses(
    (status = 202, body = DoomedBody),
    (status = "default", body = ErrorBody),
))]
async fn delete_many(
    State(app): State<App>,
    User(caller): User,
    once: Once,
    Body(body): Body<DeleteBody>,
) -> Answer<(StatusCode, Json<DoomedBody>)> {
    let which = match body {
        DeleteBody { app: None, chat: None, all: true } => Which::All,
        DeleteBody { app: Some(app), chat: None, all: false } => Which::App(app),
        DeleteBody { app: Some(app), chat: Some(chat), all: false } => Which::Chat { app, chat },
        _ => return Err(Refused::invalid("app", "say an app, an app and a chat of it, or `all`")),
    };
    let call = app.runtime.call(ask(caller, Place::Nowhere, once), Purge(which)).await?;
    let id = call.id();
    let purged = call.answer().await.map_err(|error| Refused::from(error).of_call(id))?;
    Ok((StatusCode::ACCEPTED, Json(DoomedBody { sandboxes: purged.sandboxes })))
}

/// What was done.
#[derive(Serialize, ToSchema)]
struct ReapedBody {
    looked_at: u64,
    stopped: u64,
    paused: u64,
    archived: u64,
    deleted: u64,
    /// What a crash or a failure had left undone, and is done.
    resumed: u64,
    /// What could not be done. It is tried again.
    failed: u64,
}

/// Looks after the sandboxes of all tenants whose time has come, now and not when the server would.
#[utoipa::path(post, path = "/v1/reap", tag = "sandboxes", responses(
    (status = 200, body = ReapedBody),
    (status = "default", body = ErrorBody),
))]
async fn reap(State(app): State<App>, Admin(_): Admin) -> Answer<Json<ReapedBody>> {
    let Reaped { looked_at, stopped, paused, archived, deleted, resumed, failed } = app.runtime.reap().await?;
    Ok(Json(ReapedBody { looked_at, stopped, paused, archived, deleted, resumed, failed }))
}
