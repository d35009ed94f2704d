//! Commands: waited for, streamed, or in the background.

use std::{collections::BTreeMap, time::Duration};

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use cabana_runtime::{
    Call, CallId, Caller, Clamped, Place, Text,
    acts::{
        Asked,
        exec::{self, Ending, Exec, ExitTold, Keep},
        start::Start,
    },
};
use cabana_sandbox::{Command, User as Inside};
use serde::{Deserialize, Serialize, de::IgnoredAny};
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    tasks::TaskBody,
    types::{ClampedBody, ScopeBody, SpecBody, id},
};
use crate::{
    App,
    auth::{Once, User, ask},
    error::{Answer, ErrorBody, Refused},
    extract::{Body, Path, maybe_object},
    long_answer,
    seats::StreamSeat,
    stream::{events, named},
};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(exec_in_scope)).routes(routes!(exec_in_sandbox))
}

/// A command: a line for the shell, or a program with its arguments.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CommandBody {
    /// For the shell.
    #[schema(example = "echo hello")]
    command: Option<String>,
    /// Without a shell.
    argv: Option<Vec<String>>,
    /// Relative to the sandbox's working directory, unless it is absolute.
    cwd: Option<String>,
    /// For this command alone. Kept out of the ledger.
    #[serde(default)]
    env: BTreeMap<String, String>,
    user: Option<String>,
    /// All of its input.
    stdin: Option<String>,
    stdin_b64: Option<String>,
    /// After so long it is ended, with all that it started.
    timeout_ms: Option<u64>,
    /// How much of each stream the answer carries.
    #[serde(default, deserialize_with = "maybe_object")]
    keep: Option<KeepBody>,
    /// Answer at once with a task; it goes on without anybody.
    #[serde(default)]
    background: bool,
}

#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct KeepBody {
    #[serde(default)]
    head_bytes: u32,
    #[serde(default)]
    tail_bytes: u32,
}

impl CommandBody {
    fn asked(self) -> Answer<(Asked, Keep, bool)> {
        let command = match (self.command, self.argv) {
            (Some(line), None) => Command::Shell(line),
            (None, Some(argv)) => Command::Argv(argv),
            _ => return Err(Refused::invalid("command", "give either `command` or `argv`")),
        };
        let stdin = match (self.stdin, self.stdin_b64) {
            (None, None) => None,
            (Some(text), None) => Some(Text(text.into())),
            (None, Some(text)) => {
                let bytes = STANDARD.decode(text).map_err(|error| Refused::invalid("stdin_b64", error))?;
                Some(Text(bytes.into()))
            }
            _ => return Err(Refused::invalid("stdin", "give either `stdin` or `stdin_b64`")),
        };
        let user = self.user.map(Inside::new).transpose().map_err(|error| Refused::invalid("user", error))?;
        let timeout = match self.timeout_ms {
            Some(0) => return Err(Refused::invalid("timeout_ms", "must be longer than zero")),
            timeout => timeout.map(Duration::from_millis),
        };
        let keep = self.keep.map_or_else(Keep::default, |keep| Keep { head: keep.head_bytes, tail: keep.tail_bytes });
        let asked = Asked { command, cwd: self.cwd, env: self.env, user, stdin, timeout };
        Ok((asked, keep, self.background))
    }
}

#[derive(Deserialize, ToSchema)]
struct ScopedBody {
    /// Without one, the command has a sandbox of its own that ends with it.
    #[serde(default, deserialize_with = "maybe_object")]
    scope: Option<ScopeBody>,
    /// What the sandbox becomes if it is not there yet.
    #[serde(default, deserialize_with = "maybe_object")]
    spec: Option<SpecBody>,
    #[serde(flatten)]
    command: CommandBody,
    /// What is left when all that is known is taken: serde has no other way to find it here.
    #[serde(flatten)]
    #[schema(ignore)]
    unknown: BTreeMap<String, IgnoredAny>,
}

/// How a command ended, and what it said. Of a stream that is too long, the beginning and the end.
#[derive(Serialize, ToSchema)]
pub(super) struct ExecBody {
    #[schema(value_type = String)]
    call_id: CallId,
    #[serde(flatten)]
    exit: ExitBody,
    #[serde(flatten)]
    stdout: StdoutBody,
    #[serde(flatten)]
    stderr: StderrBody,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    clamped: Vec<ClampedBody>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct ExitBody {
    /// `exited`, `signalled`, `timed_out`, `out_of_memory` or `disk_full`.
    #[schema(example = "exited")]
    status: &'static str,
    /// There if it ended by itself.
    exit_code: Option<i32>,
    signal: Option<i32>,
    duration_ms: u64,
    cpu_ms: u64,
    peak_memory_bytes: u64,
}

impl From<&ExitTold> for ExitBody {
    fn from(exit: &ExitTold) -> Self {
        Self {
            status: match exit.status {
                Ending::Exited => "exited",
                Ending::Signalled => "signalled",
                Ending::TimedOut => "timed_out",
                Ending::OutOfMemory => "out_of_memory",
                Ending::DiskFull => "disk_full",
            },
            exit_code: exit.exit_code,
            signal: exit.signal,
            duration_ms: exit.duration_ms,
            cpu_ms: exit.cpu_ms,
            peak_memory_bytes: exit.peak_memory_bytes,
        }
    }
}

macro_rules! said {
    ($name:ident, $text:ident, $b64:ident, $tail:ident, $tail_b64:ident, $total:ident, $left:ident) => {
        #[derive(Serialize, ToSchema)]
        pub(super) struct $name {
            /// As text. Absent where it is none: then it is in base64.
            #[serde(skip_serializing_if = "Option::is_none")]
            $text: Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            $b64: Option<String>,
            /// The end, where something before it was left out.
            #[serde(skip_serializing_if = "Option::is_none")]
            $tail: Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            $tail_b64: Option<String>,
            /// How many bytes it said in all.
            $total: u64,
            /// How many of them are only in the output of the call.
            $left: u64,
        }

        impl From<&exec::Said> for $name {
            fn from(said: &exec::Said) -> Self {
                let ($text, $b64) = text_or_bytes(&said.head);
                let left = said.left_out();
                let ($tail, $tail_b64) = if left > 0 { text_or_bytes(&said.tail) } else { (None, None) };
                Self { $text, $b64, $tail, $tail_b64, $total: said.total, $left: left }
            }
        }
    };
}

said!(StdoutBody, stdout, stdout_b64, stdout_tail, stdout_tail_b64, stdout_total, stdout_left_out);
said!(StderrBody, stderr, stderr_b64, stderr_tail, stderr_tail_b64, stderr_total, stderr_left_out);

fn text_or_bytes(text: &Text) -> (Option<String>, Option<String>) {
    match std::str::from_utf8(&text.0) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(STANDARD.encode(&text.0))),
    }
}

impl ExecBody {
    pub(super) fn of(call_id: CallId, answer: &exec::Answer) -> Self {
        let (stdout, stderr) = ((&answer.stdout).into(), (&answer.stderr).into());
        let clamped = ClampedBody::all(answer.clamped.clone());
        Self { call_id, exit: (&answer.exit).into(), stdout, stderr, clamped }
    }
}

/// Runs a command in the sandbox of a scope, which is made or started if it has to be.
///
/// With `Accept: text/event-stream`, what it says comes as it says it. With `background`, the answer is a task.
#[utoipa::path(post, path = "/v1/exec", tag = "exec", request_body = ScopedBody, responses(
    (status = 200, body = ExecBody),
    (status = 202, body = TaskBody),
    (status = "default", body = ErrorBody),
))]
async fn exec_in_scope(
    State(app): State<App>,
    User(caller): User,
    once: Once,
    headers: HeaderMap,
    Body(body): Body<ScopedBody>,
) -> Answer<Response> {
    if let Some(name) = body.unknown.keys().next() {
        return Err(Refused::invalid(name, "there is no such field"));
    }
    let (wanted, clamped) = body.spec.map(|spec| spec.wanted(app.runtime.settings())).transpose()?.unzip();
    let place = match body.scope {
        Some(scope) => Place::Scope(scope.scope()?, wanted),
        None if body.command.background => {
            return Err(Refused::invalid("scope", "is needed in the background: the sandbox has to outlive the call"));
        }
        None => Place::Once(wanted),
    };
    let asked = Asking { command: body.command, clamped: clamped.unwrap_or_default() };
    run(&app, caller, place, once, &headers, asked).await
}

/// Runs a command in a sandbox, which is started if it has to be. See `POST /v1/exec`.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/exec", tag = "exec", request_body = CommandBody, params(("sandbox" = String, Path, pattern = "^[a-z][a-z0-9]{15,20}$")), responses(
    (status = 200, body = ExecBody),
    (status = 202, body = TaskBody),
    (status = "default", body = ErrorBody),
))]
async fn exec_in_sandbox(
    State(app): State<App>,
    User(caller): User,
    Path(sandbox): Path<String>,
    once: Once,
    headers: HeaderMap,
    Body(body): Body<CommandBody>,
) -> Answer<Response> {
    let asked = Asking { command: body, clamped: Vec::new() };
    run(&app, caller, Place::Sandbox(id(&sandbox)?), once, &headers, asked).await
}

/// A command, and what of the sandbox that may be made for it is not as it was asked.
struct Asking {
    command: CommandBody,
    clamped: Vec<Clamped>,
}

async fn run(
    app: &App,
    caller: Caller,
    place: Place,
    once: Once,
    headers: &HeaderMap,
    Asking { command, clamped }: Asking,
) -> Answer<Response> {
    let (asked, keep, background) = command.asked()?;
    let tenant = caller.tenant.clone();
    if background {
        let call = app.runtime.call(ask(caller.clone(), place, once), Start::new(asked)).await?;
        let id = call.id();
        let started = call.answer().await.map_err(|error| Refused::from(error).of_call(id))?;
        let task = app.runtime.task(&caller, started.task).await?;
        return Ok((StatusCode::ACCEPTED, Json(TaskBody::of(&task))).into_response());
    }
    let seat = if streams(headers) { Some(app.open_stream(&caller).await?) } else { None };
    let call = app.runtime.call(ask(caller, place, once), Exec { asked, keep, clamped }).await?;
    if let Some(seat) = seat {
        return Ok(streamed(seat, call));
    }
    let id = call.id();
    let of_call = |error| Refused::from(error).of_call(id);
    let (answer, _turn) = call.answer_in_turn(&app.runtime, &tenant).await.map_err(of_call)?;
    let mut memory = app.runtime.list_memory(&tenant).owed(); // it has run
    let said = [&answer.stdout, &answer.stderr].map(|said| said.head.0.len() + said.tail.0.len());
    let _never_refused = memory.grow(said.iter().sum());
    long_answer::json(memory, move || ExecBody::of(id, &answer)).await.map_err(of_call)
}

fn streams(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.split(',').any(|kind| kind.trim().starts_with("text/event-stream")))
}

#[derive(Serialize)]
struct Started {
    call_id: CallId,
}

/// The last word of a stream.
#[derive(Serialize)]
struct Exited {
    #[serde(flatten)]
    exit: ExitBody,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    clamped: Vec<ClampedBody>,
}

impl Exited {
    fn of(answer: exec::Answer) -> Self {
        Self { exit: (&answer.exit).into(), clamped: ClampedBody::all(answer.clamped) }
    }
}

fn streamed(seat: StreamSeat, call: Call<exec::Answer>) -> Response {
    let (id, log) = (call.id(), call.output().clone());
    let last = async move {
        match call.answer().await {
            Ok(answer) => named("exit", &Exited::of(answer)),
            Err(error) => named("error", &Refused::from(error).of_call(id).body()),
        }
    };
    events(seat, &Started { call_id: id }, &log, (0, 0), last, CancellationToken::new())
}
