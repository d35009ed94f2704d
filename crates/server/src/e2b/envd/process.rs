//! `process.Process`: commands are tasks of ours. They go on without whoever began them, and are known by their number inside or by
//! the tag that they were given.

mod follow;
mod input;
mod list;

use std::time::Duration;

use axum::{extract::Request, http::HeaderMap, response::Response};
use cabana_e2b_wire::{
    connect::{Code, Error},
    header as names,
    process::{
        self as wire, ConnectRequest, Empty, ProcessConfig, ProcessSelector, Pty, SendSignalRequest, Signal,
        StartRequest, UpdateRequest,
    },
};
use cabana_runtime::{
    Code as Ours, Error as Failed, Seen, Typed,
    acts::{
        Asked,
        start::{Answer, Start},
        task::{Tell, What},
    },
};
use cabana_sandbox::{Command, Target, TermSize};
use serde::{Deserialize, Serialize};

use super::{
    super::{guest::Guest, refused::connect_error},
    admission::Admission,
    place::{place, user_of},
    rpc::{self, Sending},
};
use crate::App;

/// `None`: there is no such method.
pub(super) async fn serve(app: &App, guest: &Guest, request: Request) -> Option<Response> {
    Some(match request.uri().path() {
        wire::LIST => rpc::respond(app, request, async |_: Empty| list::serve(app, guest).await).await,
        wire::START => start(app, guest, request).await,
        wire::CONNECT => connect(app, guest, request).await,
        wire::UPDATE => rpc::unary(app, request, async |asked| update(app, guest, asked).await).await,
        wire::SEND_INPUT => rpc::unary(app, request, async |asked| input::send(app, guest, asked).await).await,
        wire::STREAM_INPUT => input::stream(app, guest, request).await,
        wire::SEND_SIGNAL => rpc::unary(app, request, async |asked| signal(app, guest, asked).await).await,
        wire::CLOSE_STDIN => rpc::unary(app, request, async |asked| input::close(app, guest, asked).await).await,
        _ => return None,
    })
}

/// So long a killed process is waited for.
const GONE: std::time::Duration = std::time::Duration::from_secs(1);

const MAX_TAG: usize = 1024;

/// What is kept of a command to tell it in a list. Its variables are not: they may be secrets, and are told from memory.
#[derive(Serialize, Deserialize)]
struct Note {
    #[serde(default)]
    config: ProcessConfig,
    #[serde(default)]
    tag: Option<String>,
}

impl Note {
    /// `None`: another front began it.
    fn of(seen: &Seen) -> Option<Self> {
        Self::deserialize(seen.note.as_deref()?).ok()
    }

    fn has_tag(seen: &Seen, tag: &str) -> bool {
        seen.note.as_deref().is_some_and(|note| note["tag"] == tag)
    }
}

async fn seen_tasks(app: &App, guest: &Guest) -> Result<Vec<Seen>, Error> {
    let seen = app.runtime.seen_tasks(&guest.record.tenant, &guest.record.id).await;
    seen.map_err(|error| connect_error(&error))
}

/// One that runs, or did a moment ago.
async fn find(app: &App, guest: &Guest, process: Option<&ProcessSelector>) -> Result<Seen, Error> {
    let selector = process.ok_or_else(|| Error::new(Code::InvalidArgument, "no process is selected"))?;
    let seen = seen_tasks(app, guest).await?;
    let found = seen.into_iter().find(|seen| match selector {
        ProcessSelector::Pid(pid) => seen.pid == *pid,
        ProcessSelector::Tag(tag) => Note::has_tag(seen, tag),
    });
    found.ok_or_else(|| missing(selector))
}

async fn find_running(app: &App, guest: &Guest, process: Option<&ProcessSelector>) -> Result<Seen, Error> {
    let seen = find(app, guest, process).await?;
    match (seen.has_ended, process) {
        (true, Some(selector)) => Err(missing(selector)),
        _ => Ok(seen),
    }
}

fn missing(selector: &ProcessSelector) -> Error {
    let message = match selector {
        ProcessSelector::Pid(pid) => format!("process with pid {pid} not found"),
        ProcessSelector::Tag(tag) => format!("process with tag {tag} not found"),
    };
    Error::new(Code::NotFound, message)
}

async fn start(app: &App, guest: &Guest, request: Request) -> Response {
    let (sending, headers) = (Sending::of(&request), request.headers().clone());
    let begun = async {
        let asked: StartRequest = rpc::asked(app, request).await?;
        let seat = rpc::seat(app, guest).await?;
        Ok((seat, begin(app, guest, &headers, asked).await?))
    };
    match begun.await {
        Ok((seat, (answer, typed))) => follow::from_start(app, guest, sending, seat, answer, typed).await,
        Err(error) => rpc::ended(&error),
    }
}

async fn begin(app: &App, guest: &Guest, headers: &HeaderMap, asked: StartRequest) -> Result<(Answer, Typed), Error> {
    let user = user_of(headers)?;
    if asked.tag.as_ref().is_some_and(|tag| tag.len() > MAX_TAG) {
        return Err(Error::new(Code::InvalidArgument, format!("a tag has at most {MAX_TAG} bytes")));
    }
    let typed = match &asked.pty {
        Some(pty) => Typed::Terminal(size(pty)?),
        None if asked.keeps_stdin() => Typed::Open,
        None => Typed::Whole,
    };
    let StartRequest { process: ProcessConfig { cmd, args, envs, cwd }, tag, .. } = asked;
    let given = cwd.as_deref().unwrap_or_default();
    let dir = place(app, guest, Admission::Token, user.as_ref(), given).await?;
    let asked = Asked {
        cwd: (!dir.is_empty()).then(|| dir.clone()),
        env: envs,
        user,
        timeout: deadline(headers),
        ..Asked::new(Command::Argv(std::iter::once(cmd).chain(args).collect()))
    };
    asked.check().map_err(|error| connect_error(&error))?;
    let note = serde_json::to_value(Note { config: list::shown(&asked, cwd), tag }).ok();
    let begun = async { app.runtime.call(guest.ask(), Start { asked, typed, note }).await?.answer().await };
    let answer = begun.await.map_err(|error| not_begun(&error, &dir))?;
    Ok((answer, typed))
}

fn not_begun(error: &Failed, dir: &str) -> Error {
    match error.code() {
        Ours::WorkdirNotFound => Error::new(Code::InvalidArgument, format!("cwd '{dir}' does not exist")),
        _ => connect_error(error),
    }
}

/// After so long the command is ended. Without one it may run for ever.
fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let asked = headers.get(names::CONNECT_TIMEOUT_MS)?.to_str().ok()?.parse().ok()?;
    (asked > 0).then(|| Duration::from_millis(asked))
}

fn size(pty: &Pty) -> Result<TermSize, Error> {
    let side = |cells: u32| u16::try_from(cells).ok().filter(|cells| *cells > 0);
    match (side(pty.size.cols), side(pty.size.rows)) {
        (Some(cols), Some(rows)) => Ok(TermSize { cols, rows }),
        _ => Err(Error::new(Code::InvalidArgument, "a terminal has from 1 to 65535 columns and rows")),
    }
}

async fn connect(app: &App, guest: &Guest, request: Request) -> Response {
    let sending = Sending::of(&request);
    let found = async {
        let asked: ConnectRequest = rpc::asked(app, request).await?;
        Ok((rpc::seat(app, guest).await?, find(app, guest, asked.process.as_ref()).await?))
    };
    match found.await {
        Ok((seat, seen)) => follow::from_now(app, guest, sending, seat, seen).await,
        Err(error) => rpc::ended(&error),
    }
}

async fn update(app: &App, guest: &Guest, asked: UpdateRequest) -> Result<Empty, Error> {
    let seen = find_running(app, guest, asked.process.as_ref()).await?;
    let Some(pty) = &asked.pty else { return Ok(Empty {}) };
    if !matches!(seen.typed, Typed::Terminal(_)) {
        return Err(Error::new(Code::FailedPrecondition, "the process has no terminal"));
    }
    tell(app, guest, &seen, What::Resize(size(pty)?)).await
}

/// All that it started hears it: a shell alone would keep it to itself.
async fn signal(app: &App, guest: &Guest, asked: SendSignalRequest) -> Result<Empty, Error> {
    let seen = find_running(app, guest, asked.process.as_ref()).await?;
    let number = match asked.signal {
        Signal::Sigterm => 15,
        Signal::Sigkill => 9,
        Signal::Unspecified => return Err(Error::new(Code::Unimplemented, "there is no such signal")),
    };
    tell(app, guest, &seen, What::Signal(number, Target::Tree)).await?;
    if asked.signal == Signal::Sigkill {
        // Whoever hears that it was killed looks for it next. What the kernel holds up is not waited for.
        let _ = tokio::time::timeout(GONE, app.runtime.ended_task(&guest.caller, seen.task)).await;
    }
    Ok(Empty {})
}

async fn tell(app: &App, guest: &Guest, seen: &Seen, what: What) -> Result<Empty, Error> {
    let told = async { app.runtime.call(guest.ask(), Tell { task: seen.task, what }).await?.answer().await };
    told.await.map_err(|error| of_one(&error, seen))?;
    Ok(Empty {})
}

/// One that ended while it was told something.
fn of_one(error: &Failed, seen: &Seen) -> Error {
    match error.code() {
        Ours::TaskNotFound => missing(&ProcessSelector::Pid(seen.pid)),
        _ => connect_error(error),
    }
}
