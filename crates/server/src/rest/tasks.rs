//! Commands in the background.

use axum::{Json, extract::State, response::Response};
use cabana_runtime::{CallId, SandboxId, Task, TaskId, TaskState, Time, acts::exec::ExitTold};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    calls::{self, FoundBody, OutputQuery, SearchQuery, StreamQuery},
    exec::ExitBody,
    types::{id, page},
};
use crate::{
    App,
    auth::{Reader, User},
    error::{Answer, ErrorBody, Refused},
    extract::{Path, Query},
    listen::Leaving,
    long_answer,
    stream::{events, named},
};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get))
        .routes(routes!(cancel))
        .routes(routes!(output))
        .routes(routes!(search))
        .routes(routes!(stream))
}

/// A command in the background.
#[derive(Serialize, ToSchema)]
pub(super) struct TaskBody {
    #[schema(value_type = String)]
    id: TaskId,
    #[schema(value_type = String)]
    call_id: CallId,
    #[schema(value_type = String)]
    sandbox: SandboxId,
    /// `running`, `succeeded`, `failed`, `cancelled` or `unknown`.
    #[schema(value_type = String, example = "running")]
    state: TaskState,
    argv: Vec<String>,
    /// Once it has ended, if that is known.
    exit: Option<ExitBody>,
    #[schema(value_type = String, format = DateTime)]
    started_at: Time,
    #[schema(value_type = Option<String>, format = DateTime)]
    ended_at: Option<Time>,
}

impl TaskBody {
    pub(super) fn of(task: &Task) -> Self {
        let exit = task.exit.as_deref().and_then(|exit| serde_json::from_str::<ExitTold>(exit).ok());
        Self {
            id: task.id,
            call_id: task.call,
            sandbox: task.sandbox.clone(),
            state: task.state,
            argv: task.argv.clone(),
            exit: exit.as_ref().map(Into::into),
            started_at: task.started,
            ended_at: task.ended,
        }
    }
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Which {
    /// Only those of this sandbox.
    sandbox: Option<String>,
    /// Only those in this state.
    state: Option<String>,
    /// At most so many.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Where the last page ended: its `next_cursor`.
    cursor: Option<String>,
}

#[derive(Serialize, ToSchema)]
struct TasksBody {
    tasks: Vec<TaskBody>,
    next_cursor: Option<String>,
}

/// The tenant's tasks, the newest first.
#[utoipa::path(get, path = "/v1/tasks", tag = "tasks", params(Which), responses(
    (status = 200, body = TasksBody),
    (status = "default", body = ErrorBody),
))]
async fn list(State(app): State<App>, Reader(caller): Reader, Query(which): Query<Which>) -> Answer<Response> {
    let sandbox = which.sandbox.as_deref().map(id).transpose()?;
    let state = match which.state.as_deref() {
        Some(name) => Some(TaskState::parse(name).ok_or_else(|| Refused::invalid("state", "there is no such one"))?),
        None => None,
    };
    let page = page(which.limit, which.cursor)?;
    let tasks = app.runtime.task_list(&caller, sandbox.as_ref(), state, page.clone()).await?;
    let next_cursor = page.is_full(&tasks).then(|| tasks.last().map(|task| task.cursor())).flatten();
    let mut memory = app.runtime.list_memory(&caller.tenant);
    long_answer::charge(&mut memory, &tasks)?;
    let list = move || TasksBody { tasks: tasks.iter().map(TaskBody::of).collect(), next_cursor };
    Ok(long_answer::json(memory, list).await?)
}

fn task_id(text: &str) -> Answer<TaskId> {
    text.parse().map_err(|error| Refused::invalid("task", error))
}

/// One task.
#[utoipa::path(get, path = "/v1/tasks/{task}", tag = "tasks", params(("task" = String, Path, pattern = "^task_[0-9a-f]{32}$")), responses(
    (status = 200, body = TaskBody),
    (status = "default", body = ErrorBody),
))]
async fn get(State(app): State<App>, Reader(caller): Reader, Path(task): Path<String>) -> Answer<Json<TaskBody>> {
    Ok(Json(TaskBody::of(&app.runtime.task(&caller, task_id(&task)?).await?)))
}

/// Tells it to end, and after a grace ends it with all that it started. One that has ended stays what it is.
#[utoipa::path(post, path = "/v1/tasks/{task}/cancel", tag = "tasks", params(("task" = String, Path, pattern = "^task_[0-9a-f]{32}$")), responses(
    (status = 200, body = TaskBody),
    (status = "default", body = ErrorBody),
))]
async fn cancel(State(app): State<App>, User(caller): User, Path(task): Path<String>) -> Answer<Json<TaskBody>> {
    let id = task_id(&task)?;
    app.runtime.cancel_task(&caller, id).await?;
    let _turn = app.runtime.answer_turn(&caller.tenant).await;
    Ok(Json(TaskBody::of(&app.runtime.task(&caller, id).await?)))
}

/// What it said, as bytes: a part of one stream.
#[utoipa::path(get, path = "/v1/tasks/{task}/output", tag = "tasks", params(("task" = String, Path, pattern = "^task_[0-9a-f]{32}$"), OutputQuery), responses(
    (status = 200, content_type = "application/octet-stream"),
    (status = "default", body = ErrorBody),
))]
async fn output(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(task): Path<String>,
    Query(query): Query<OutputQuery>,
) -> Answer<Response> {
    let log = app.runtime.task_output(&caller, task_id(&task)?).await?;
    calls::part(&app, &caller.tenant, &log, &query)
}

/// The lines of its output that match.
#[utoipa::path(get, path = "/v1/tasks/{task}/search", tag = "tasks", params(("task" = String, Path, pattern = "^task_[0-9a-f]{32}$"), SearchQuery), responses(
    (status = 200, body = FoundBody),
    (status = "default", body = ErrorBody),
))]
async fn search(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(task): Path<String>,
    Query(query): Query<SearchQuery>,
) -> Answer<Response> {
    let log = app.runtime.task_output(&caller, task_id(&task)?).await?;
    calls::found(&app, &caller.tenant, &log, &query).await
}

/// What it says from an offset on, as server-sent events, until it has ended.
#[utoipa::path(get, path = "/v1/tasks/{task}/stream", tag = "tasks", params(("task" = String, Path, pattern = "^task_[0-9a-f]{32}$"), StreamQuery), responses(
    (status = 200, content_type = "text/event-stream"),
    (status = "default", body = ErrorBody),
))]
async fn stream(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(task): Path<String>,
    Query(from): Query<StreamQuery>,
    Leaving(leaving): Leaving,
) -> Answer<Response> {
    #[derive(Serialize)]
    struct Started {
        task_id: TaskId,
    }
    let id = task_id(&task)?;
    let log = app.runtime.task_output(&caller, id).await?;
    let seat = app.open_stream(&caller).await?;
    let runtime = app.runtime.clone();
    let last = async move {
        match runtime.ended_task(&caller, id).await {
            Ok(task) => named("exit", &TaskBody::of(&task)),
            Err(error) => named("error", &Refused::from(error).body()),
        }
    };
    Ok(events(seat, &Started { task_id: id }, &log, from.offsets(), last, leaving))
}
