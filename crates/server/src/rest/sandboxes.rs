//! Sandboxes: found by their scope, listed, changed, stopped, deleted.

use axum::{extract::State, http::StatusCode, response::Response};
use cabana_runtime::{
    Caller, MemoryCharge, Place, Runtime, SandboxId, SandboxState, Wanted,
    acts::sandbox::{Become, Change, Ensure, Shape},
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    lifecycle::LifecycleBody,
    mounts::MountBody,
    types::{ClampedBody, LimitsBody, NetworkBody, SandboxBody, ScopeBody, SpecBody, id, page},
};
use crate::{
    App,
    auth::{Once, Reader, User, ask},
    error::{Answer, ErrorBody, Refused},
    extract::{Body, Path, Query, maybe_object, object},
    long_answer,
};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(ensure))
        .routes(routes!(list, create))
        .routes(routes!(get, change, delete))
        .routes(routes!(start))
        .routes(routes!(stop))
        .routes(routes!(pause))
        .routes(routes!(archive))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct EnsureBody {
    #[serde(deserialize_with = "object")]
    scope: ScopeBody,
    /// What it becomes if it is not there yet.
    #[serde(default, deserialize_with = "maybe_object")]
    spec: Option<SpecBody>,
}

#[derive(Serialize, ToSchema)]
struct EnsuredBody {
    #[serde(flatten)]
    sandbox: SandboxBody,
    /// Whether it was not there before.
    created: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    clamped: Vec<ClampedBody>,
}

/// A sandbox, and what of it is not as it was asked.
#[derive(Serialize, ToSchema)]
struct MadeBody {
    #[serde(flatten)]
    sandbox: SandboxBody,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    clamped: Vec<ClampedBody>,
}

/// The scope's sandbox, running: absent, it is made; stopped, it is started; running, it is as it is.
#[utoipa::path(post, path = "/v1/sandboxes:ensure", tag = "sandboxes", request_body = EnsureBody, responses(
    (status = 200, body = EnsuredBody),
    (status = "default", body = ErrorBody),
))]
async fn ensure(
    State(app): State<App>,
    User(caller): User,
    once: Once,
    Body(body): Body<EnsureBody>,
) -> Answer<Response> {
    let (wanted, clamped) = body.spec.map(|spec| spec.wanted(app.runtime.settings())).transpose()?.unzip();
    let place = Place::Scope(body.scope.scope()?, wanted);
    let call = app.runtime.call(ask(caller.clone(), place, once), Ensure).await?;
    let id = call.id();
    let done = call.answer().await.map_err(|error| Refused::from(error).of_call(id))?;
    let clamped = ClampedBody::all(clamped.filter(|_| done.created).unwrap_or_default());
    told(&app, &caller, &done.sandbox, move |sandbox| EnsuredBody { sandbox, created: done.created, clamped }).await
}

/// A new sandbox that belongs to no scope.
#[utoipa::path(post, path = "/v1/sandboxes", tag = "sandboxes", request_body = Option<SpecBody>, responses(
    (status = 201, body = MadeBody),
    (status = "default", body = ErrorBody),
))]
async fn create(
    State(app): State<App>,
    User(caller): User,
    once: Once,
    Body(spec): Body<SpecBody>,
) -> Answer<(StatusCode, Response)> {
    let (wanted, clamped) = spec.wanted(app.runtime.settings())?;
    let call = app.runtime.call(ask(caller.clone(), Place::New(Some(wanted)), once), Ensure).await?;
    let id = call.id();
    let done = call.answer().await.map_err(|error| Refused::from(error).of_call(id))?;
    let made = move |sandbox| MadeBody { sandbox, clamped: ClampedBody::all(clamped) };
    Ok((StatusCode::CREATED, told(&app, &caller, &done.sandbox, made).await?))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Which {
    /// Only those in this state.
    state: Option<String>,
    /// At most so many.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Where the last page ended: its `next_cursor`.
    cursor: Option<String>,
}

#[derive(Serialize, ToSchema)]
struct SandboxesBody {
    sandboxes: Vec<SandboxBody>,
    next_cursor: Option<String>,
}

/// The tenant's sandboxes, the newest first.
#[utoipa::path(get, path = "/v1/sandboxes", tag = "sandboxes", params(Which), responses(
    (status = 200, body = SandboxesBody),
    (status = "default", body = ErrorBody),
))]
async fn list(State(app): State<App>, Reader(caller): Reader, Query(which): Query<Which>) -> Answer<Response> {
    let state = match which.state.as_deref() {
        Some(name) => Some(SandboxState::parse(name).ok_or_else(|| Refused::invalid("state", "there is no such one"))?),
        None => None,
    };
    let page = page(which.limit, which.cursor)?;
    let records = app.runtime.sandbox_list(&caller, state, page.clone()).await?;
    let next_cursor = page.is_full(&records).then(|| records.last().map(|record| record.cursor())).flatten();
    let mut memory = app.runtime.list_memory(&caller.tenant);
    long_answer::charge(&mut memory, &records)?;
    let list = move || {
        let told = |record| Ok(SandboxBody::of(&app.runtime, record, &Wanted::of(record)?));
        let sandboxes = records.iter().map(told).collect::<Answer<_>>()?;
        Ok::<_, Refused>(SandboxesBody { sandboxes, next_cursor })
    };
    long_answer::try_json(memory, list).await
}

/// What `body` makes of it, after something was done to it: that is told, once it is its turn.
async fn told<T: Serialize>(
    app: &App,
    caller: &Caller,
    id: &SandboxId,
    body: impl FnOnce(SandboxBody) -> T + Send + 'static,
) -> Answer<Response> {
    let _turn = app.runtime.answer_turn(&caller.tenant).await;
    told_by(app, caller, app.runtime.list_memory(&caller.tenant).owed(), id, body).await
}

async fn told_by<T: Serialize>(
    app: &App,
    caller: &Caller,
    mut memory: MemoryCharge,
    id: &SandboxId,
    body: impl FnOnce(SandboxBody) -> T + Send + 'static,
) -> Answer<Response> {
    let (record, spec) = app.sandbox(caller, id).await?;
    long_answer::charge(&mut memory, std::slice::from_ref(&record))?;
    let runtime = app.runtime.clone();
    Ok(long_answer::json(memory, move || body(SandboxBody::of(&runtime, &record, &spec.wanted))).await?)
}

/// One sandbox. Nothing is started for it.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}", tag = "sandboxes", params(("sandbox" = String, Path, pattern = "^[a-z][a-z0-9]{15,20}$")), responses(
    (status = 200, body = SandboxBody),
    (status = "default", body = ErrorBody),
))]
async fn get(State(app): State<App>, Reader(caller): Reader, Path(sandbox): Path<String>) -> Answer<Response> {
    told_by(&app, &caller, app.runtime.list_memory(&caller.tenant), &id(&sandbox)?, |sandbox| sandbox).await
}

/// What is to be different. What is not said stays as it is.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ChangeBody {
    #[serde(default, deserialize_with = "maybe_object")]
    limits: Option<LimitsBody>,
    #[serde(default, deserialize_with = "maybe_object")]
    network: Option<NetworkBody>,
    env: Option<std::collections::BTreeMap<String, String>>,
    /// Another one; with the mode `none` there is none any more.
    #[serde(default, deserialize_with = "maybe_object")]
    mount: Option<MountBody>,
    /// All of them: those that are not in it are not seen any more.
    extra_mounts: Option<Vec<MountBody>>,
    /// What is said of it; the rest stays.
    #[serde(default, deserialize_with = "maybe_object")]
    lifecycle: Option<LifecycleBody>,
}

/// Other limits, another network, other variables or other mounts, without making it again.
#[utoipa::path(patch, path = "/v1/sandboxes/{sandbox}", tag = "sandboxes", request_body = Option<ChangeBody>, params(("sandbox" = String, Path, pattern = "^[a-z][a-z0-9]{15,20}$")), responses(
    (status = 200, body = MadeBody),
    (status = "default", body = ErrorBody),
))]
async fn change(
    State(app): State<App>,
    User(caller): User,
    Path(sandbox): Path<String>,
    once: Once,
    Body(body): Body<ChangeBody>,
) -> Answer<Response> {
    let change = Change {
        limits: body.limits.map(LimitsBody::limits),
        network: body.network.map(NetworkBody::policy).transpose()?,
        env: body.env,
        mount: body.mount.map(MountBody::primary).transpose()?,
        extra_mounts: body.extra_mounts.map(MountBody::extra).transpose()?,
        lifecycle: body.lifecycle.map(LifecycleBody::lifecycle),
        note: None,
    };
    let sandbox = id(&sandbox)?;
    let call = app.runtime.call(ask(caller.clone(), Place::Sandbox(sandbox.clone()), once), change).await?;
    let id = call.id();
    let done = call.answer().await.map_err(|error| Refused::from(error).of_call(id))?;
    let changed = move |sandbox| MadeBody { sandbox, clamped: ClampedBody::all(done.clamped) };
    told(&app, &caller, &sandbox, changed).await
}

/// Ends it, with its files.
#[utoipa::path(delete, path = "/v1/sandboxes/{sandbox}", tag = "sandboxes", params(("sandbox" = String, Path, pattern = "^[a-z][a-z0-9]{15,20}$")), responses(
    (status = 204),
    (status = "default", body = ErrorBody),
))]
async fn delete(
    State(app): State<App>,
    User(caller): User,
    Path(sandbox): Path<String>,
    once: Once,
) -> Answer<StatusCode> {
    become_(&app.runtime, caller.clone(), &sandbox, once, Shape::Deleted).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn become_(
    runtime: &Runtime,
    caller: cabana_runtime::Caller,
    sandbox: &str,
    once: Once,
    shape: Shape,
) -> Answer<()> {
    let call = runtime.call(ask(caller, Place::Sandbox(id(sandbox)?), once), Become(shape)).await?;
    let id = call.id();
    call.answer().await.map_err(|error| Refused::from(error).of_call(id))
}

/// Lets it run: from stopped or paused; running, it is as it is.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/start", tag = "sandboxes", params(("sandbox" = String, Path, pattern = "^[a-z][a-z0-9]{15,20}$")), responses(
    (status = 200, body = SandboxBody),
    (status = "default", body = ErrorBody),
))]
async fn start(
    State(app): State<App>,
    User(caller): User,
    Path(sandbox): Path<String>,
    once: Once,
) -> Answer<Response> {
    let sandbox = id(&sandbox)?;
    let call = app.runtime.call(ask(caller.clone(), Place::Sandbox(sandbox.clone()), once), Ensure).await?;
    let id = call.id();
    call.answer().await.map_err(|error| Refused::from(error).of_call(id))?;
    told(&app, &caller, &sandbox, |sandbox| sandbox).await
}

/// Ends its processes and keeps its files.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/stop", tag = "sandboxes", params(("sandbox" = String, Path, pattern = "^[a-z][a-z0-9]{15,20}$")), responses(
    (status = 200, body = SandboxBody),
    (status = "default", body = ErrorBody),
))]
async fn stop(State(app): State<App>, User(caller): User, Path(sandbox): Path<String>, once: Once) -> Answer<Response> {
    become_(&app.runtime, caller.clone(), &sandbox, once, Shape::Stopped).await?;
    told(&app, &caller, &id(&sandbox)?, |sandbox| sandbox).await
}

/// Lets its processes stand still, with all that they have in memory.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/pause", tag = "sandboxes", params(("sandbox" = String, Path, pattern = "^[a-z][a-z0-9]{15,20}$")), responses(
    (status = 200, body = SandboxBody),
    (status = "default", body = ErrorBody),
))]
async fn pause(
    State(app): State<App>,
    User(caller): User,
    Path(sandbox): Path<String>,
    once: Once,
) -> Answer<Response> {
    become_(&app.runtime, caller.clone(), &sandbox, once, Shape::Paused).await?;
    told(&app, &caller, &id(&sandbox)?, |sandbox| sandbox).await
}

/// Packs its files away, stopped first if it has to be. The next call brings it back.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/archive", tag = "sandboxes", params(("sandbox" = String, Path, pattern = "^[a-z][a-z0-9]{15,20}$")), responses(
    (status = 200, body = SandboxBody),
    (status = "default", body = ErrorBody),
))]
async fn archive(
    State(app): State<App>,
    User(caller): User,
    Path(sandbox): Path<String>,
    once: Once,
) -> Answer<Response> {
    become_(&app.runtime, caller.clone(), &sandbox, once, Shape::Archived).await?;
    told(&app, &caller, &id(&sandbox)?, |sandbox| sandbox).await
}
