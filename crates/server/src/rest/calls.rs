//! Calls: what became of them, and what their commands said.

use std::sync::Arc;

use axum::{
    Json,
    body::Body as HttpBody,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use cabana_runtime::{CallId, CallRow, Channel, Error, Line, Log, Outcome, SandboxId, Tenant, Text, Time};
use futures_util::stream::try_unfold;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::types::{id, page};
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

/// One thing that was asked for.
#[derive(Serialize, ToSchema)]
struct CallBody {
    #[schema(value_type = String)]
    id: CallId,
    #[schema(value_type = Option<String>)]
    sandbox: Option<SandboxId>,
    #[schema(example = "exec")]
    verb: String,
    argv: Vec<String>,
    /// `running`, `answered`, `failed`, `cancelled` or `unknown`.
    state: &'static str,
    /// Of one that failed.
    error: Option<FailedBody>,
    #[schema(value_type = String, format = DateTime)]
    started_at: Time,
    #[schema(value_type = Option<String>, format = DateTime)]
    ended_at: Option<Time>,
}

#[derive(Serialize, ToSchema)]
struct FailedBody {
    code: &'static str,
    message: String,
}

impl CallBody {
    fn of(row: &CallRow) -> Self {
        Self {
            id: row.id,
            sandbox: row.sandbox.clone(),
            verb: row.verb.clone(),
            argv: row.argv.clone(),
            state: row.outcome.as_ref().map_or("running", Outcome::as_str),
            error: match &row.outcome {
                Some(Outcome::Failed { code, message }) => {
                    Some(FailedBody { code: code.as_str(), message: message.clone() })
                }
                _ => None,
            },
            started_at: row.reserved,
            ended_at: row.ended,
        }
    }
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Which {
    /// Only those of this sandbox.
    sandbox: Option<String>,
    /// At most so many.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Where the last page ended: its `next_cursor`.
    cursor: Option<String>,
}

#[derive(Serialize, ToSchema)]
struct CallsBody {
    calls: Vec<CallBody>,
    next_cursor: Option<String>,
}

/// The tenant's calls that changed something, the newest first. All that was asked is in the ledger.
#[utoipa::path(get, path = "/v1/calls", tag = "exec", params(Which), responses(
    (status = 200, body = CallsBody),
    (status = "default", body = ErrorBody),
))]
async fn list(State(app): State<App>, Reader(caller): Reader, Query(which): Query<Which>) -> Answer<Response> {
    let sandbox = which.sandbox.as_deref().map(id).transpose()?;
    let page = page(which.limit, which.cursor)?;
    let rows = app.runtime.call_list(&caller, sandbox.as_ref(), page.clone()).await?;
    let next_cursor = page.is_full(&rows).then(|| rows.last().map(|row| row.cursor())).flatten();
    let mut memory = app.runtime.list_memory(&caller.tenant);
    long_answer::charge(&mut memory, &rows)?;
    let list = move || CallsBody { calls: rows.iter().map(CallBody::of).collect(), next_cursor };
    Ok(long_answer::json(memory, list).await?)
}

fn call_id(text: &str) -> Answer<CallId> {
    text.parse().map_err(|error| Refused::invalid("call", error))
}

/// One call.
#[utoipa::path(get, path = "/v1/calls/{call}", tag = "exec", params(("call" = String, Path, pattern = "^call_[0-9a-f]{32}$")), responses(
    (status = 200, body = CallBody),
    (status = "default", body = ErrorBody),
))]
async fn get(State(app): State<App>, Reader(caller): Reader, Path(call): Path<String>) -> Answer<Json<CallBody>> {
    Ok(Json(CallBody::of(&app.runtime.call_row(&caller, call_id(&call)?).await?)))
}

/// Ends it, with all that its command started. One that has ended stays what it is.
#[utoipa::path(post, path = "/v1/calls/{call}/cancel", tag = "exec", params(("call" = String, Path, pattern = "^call_[0-9a-f]{32}$")), responses(
    (status = 200, body = CallBody),
    (status = "default", body = ErrorBody),
))]
async fn cancel(State(app): State<App>, User(caller): User, Path(call): Path<String>) -> Answer<Json<CallBody>> {
    let id = call_id(&call)?;
    app.runtime.cancel_call(&caller, id).await?;
    let _turn = app.runtime.answer_turn(&caller.tenant).await;
    Ok(Json(CallBody::of(&app.runtime.call_row(&caller, id).await?)))
}

/// Which part of an output.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct OutputQuery {
    /// `stdout` or `stderr`; a terminal has `stdout` alone.
    stream: Option<String>,
    /// The first byte.
    #[param(format = "uint64")]
    from: Option<u64>,
    /// The byte after the last; without it, as far as there is something now.
    #[param(format = "uint64")]
    to: Option<u64>,
}

/// What it said, as bytes: a part of one stream.
#[utoipa::path(get, path = "/v1/calls/{call}/output", tag = "exec", params(("call" = String, Path, pattern = "^call_[0-9a-f]{32}$"), OutputQuery), responses(
    (status = 200, content_type = "application/octet-stream"),
    (status = "default", body = ErrorBody),
))]
async fn output(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(call): Path<String>,
    Query(query): Query<OutputQuery>,
) -> Answer<Response> {
    let log = app.runtime.call_output(&caller, call_id(&call)?).await?;
    part(&app, &caller.tenant, &log, &query)
}

/// A part at a time, however long it is. One is in memory while its client takes nothing.
pub(super) fn part(app: &App, tenant: &Tenant, log: &Arc<Log>, query: &OutputQuery) -> Answer<Response> {
    const CHUNK: u64 = 256 << 10;
    let stream = channel(query.stream.as_deref())?;
    let (stdout, stderr) = log.lengths();
    let total = if stream == Channel::Stdout { stdout } else { stderr };
    let (from, to) = (query.from.unwrap_or(0), query.to.unwrap_or(total).min(total));
    let mut memory = app.runtime.list_memory(tenant);
    if !memory.grow(to.saturating_sub(from).min(CHUNK) as usize) {
        return Err(Error::ListsTooLarge.into());
    }
    let body = try_unfold((log.clone(), from, Arc::new(memory)), move |(log, at, memory)| async move {
        if at >= to {
            return Ok(None);
        }
        let bytes = log.read(stream, at..to.min(at + CHUNK)).await?;
        let next = at + bytes.len() as u64;
        // What the cap left out cannot be read.
        Ok::<_, cabana_runtime::StoreError>((!bytes.is_empty()).then(|| (memory.keep(bytes), (log, next, memory))))
    });
    let headers = [(header::CONTENT_TYPE, "application/octet-stream"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    let total = [("cabana-total", total.to_string())];
    Ok((headers, total, HttpBody::from_stream(body)).into_response())
}

/// What to look for in an output.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct SearchQuery {
    /// A regular expression over lines.
    pattern: String,
    /// `stdout` or `stderr`.
    stream: Option<String>,
    /// At most so many lines.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct FoundBody {
    lines: Vec<LineBody>,
    /// Whether there may be more: there are than were asked for, or the search took too long.
    more: bool,
}

#[derive(Serialize, ToSchema)]
struct LineBody {
    /// From one on.
    line: u64,
    /// Of its first byte in the stream.
    offset: u64,
    #[serde(flatten)]
    #[schema(value_type = Object)]
    text: Text,
}

/// The lines of its output that match.
#[utoipa::path(get, path = "/v1/calls/{call}/search", tag = "exec", params(("call" = String, Path, pattern = "^call_[0-9a-f]{32}$"), SearchQuery), responses(
    (status = 200, body = FoundBody),
    (status = "default", body = ErrorBody),
))]
async fn search(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(call): Path<String>,
    Query(query): Query<SearchQuery>,
) -> Answer<Response> {
    let log = app.runtime.call_output(&caller, call_id(&call)?).await?;
    found(&app, &caller.tenant, &log, &query).await
}

pub(super) async fn found(app: &App, tenant: &Tenant, log: &Log, query: &SearchQuery) -> Answer<Response> {
    let limit = match query.limit.unwrap_or(100) {
        limit @ 1..=1000 => limit as usize,
        _ => return Err(Refused::invalid("limit", "must be from 1 to 1000")),
    };
    let stream = channel(query.stream.as_deref())?;
    let (found, memory) = app.runtime.search_output(tenant, log, stream, &query.pattern, limit).await?;
    let line = |line: Line| LineBody { line: line.number, offset: line.offset, text: Text(line.text) };
    let body = move || FoundBody { lines: found.lines.into_iter().map(line).collect(), more: found.more };
    Ok(long_answer::json(memory, body).await?)
}

fn channel(name: Option<&str>) -> Answer<Channel> {
    match name {
        None | Some("stdout") => Ok(Channel::Stdout),
        Some("stderr") => Ok(Channel::Stderr),
        Some(_) => Err(Refused::invalid("stream", "is `stdout` or `stderr`")),
    }
}

/// Where a stream goes on.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct StreamQuery {
    /// So many bytes of stdout are known already.
    #[param(format = "uint64")]
    stdout: Option<u64>,
    /// So many bytes of stderr are known already.
    #[param(format = "uint64")]
    stderr: Option<u64>,
}

impl StreamQuery {
    pub(super) fn offsets(&self) -> (u64, u64) {
        (self.stdout.unwrap_or(0), self.stderr.unwrap_or(0))
    }
}

/// What it says from an offset on, as server-sent events, until it has ended: nothing is lost or doubled.
#[utoipa::path(get, path = "/v1/calls/{call}/stream", tag = "exec", params(("call" = String, Path, pattern = "^call_[0-9a-f]{32}$"), StreamQuery), responses(
    (status = 200, content_type = "text/event-stream"),
    (status = "default", body = ErrorBody),
))]
async fn stream(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(call): Path<String>,
    Query(from): Query<StreamQuery>,
    Leaving(leaving): Leaving,
) -> Answer<Response> {
    #[derive(Serialize)]
    struct Started {
        call_id: CallId,
    }
    let id = call_id(&call)?;
    let log = app.runtime.call_output(&caller, id).await?;
    let seat = app.open_stream(&caller).await?;
    let runtime = app.runtime.clone();
    let last = async move {
        match runtime.ended_call(&caller, id).await {
            Ok(row) => named("exit", &CallBody::of(&row)),
            Err(error) => named("error", &Refused::from(error).body()),
        }
    };
    Ok(events(seat, &Started { call_id: id }, &log, from.offsets(), last, leaving))
}
