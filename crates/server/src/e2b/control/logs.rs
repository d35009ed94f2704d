//! What was done in a sandbox, and what its commands said, as E2B's console and its command line ask for it.

use std::borrow::Cow;

use axum::{
    extract::{Query, State, rejection::QueryRejection},
    response::Response,
};
use cabana_e2b_wire::control::{Direction, LogEntry, LogLevel, LogsQuery, SandboxLogs, SandboxLogsV2};
use cabana_runtime::{CallRow, Caller, Outcome, Page, Task, Time};
use serde::Serialize;

use super::{super::refused::Refused, one::One};
use crate::{App, auth::Reader, extract::Path, long_answer};

/// Of one answer.
const MOST: usize = 1000;
/// Looked at for it: the newest calls, and the newest commands with what they said.
const CALLS: u32 = 1000;
const TASKS: u32 = 200;
/// Of one line.
const LONGEST: usize = 4096;

type Asked = Result<Query<LogsQuery>, QueryRejection>;

pub(super) async fn logs(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(sandbox): Path<String>,
    query: Asked,
) -> Result<Response, Refused> {
    told(&app, caller, &sandbox, query, SandboxLogs::from).await
}

pub(super) async fn logs_v2(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(sandbox): Path<String>,
    query: Asked,
) -> Result<Response, Refused> {
    told(&app, caller, &sandbox, query, |logs| SandboxLogsV2 { logs }).await
}

/// What commands said has very many lines if somebody wants it to: they are looked through off the workers.
async fn told<T: Serialize>(
    app: &App,
    caller: Caller,
    sandbox: &str,
    query: Asked,
    body: impl FnOnce(Vec<LogEntry>) -> T + Send + 'static,
) -> Result<Response, Refused> {
    let record = One::find(app, caller.clone(), sandbox).await?.record;
    let Query(asked) = query.map_err(|error| Refused::bad(error.body_text()))?;
    let limit = asked.limit.map_or(MOST, |limit| limit as usize);
    if limit > MOST {
        return Err(Refused::bad(format!("limit must be from 0 to {MOST}")));
    }
    let id = Some(&record.id);
    let mut memory = app.runtime.list_memory(&caller.tenant);
    let calls = app.runtime.call_list(&caller, id, Page { limit: CALLS, after: None }).await?;
    long_answer::charge(&mut memory, &calls)?;
    let tasks = app.runtime.task_list(&caller, id, None, Page { limit: TASKS, after: None }).await?;
    long_answer::charge(&mut memory, &tasks)?;
    Ok(long_answer::json(memory, move || body(entries(&calls, &tasks, &asked, limit))).await?)
}

/// Lines become entries once it is known that they are told: an entry takes hundreds of bytes, and a line may have none.
fn entries(calls: &[CallRow], tasks: &[Task], asked: &LogsQuery, limit: usize) -> Vec<LogEntry> {
    let mut said: Vec<_> = calls.iter().map(of_call).chain(tasks.iter().flat_map(of_task)).collect();
    said.retain(|said| {
        let at = said.at.as_millisecond();
        let is_there = asked.cursor.is_none_or(|cursor| match asked.direction {
            Direction::Forward => at >= cursor,
            Direction::Backward => at <= cursor,
        });
        is_there && asked.level.is_none_or(|level| said.level >= level)
    });
    // What was said at one moment stays in its order.
    said.sort_by_key(|said| said.at);
    if asked.direction == Direction::Backward {
        said.reverse();
    }
    let is_asked = |line: &&str| asked.search.as_ref().is_none_or(|text| line.contains(text.as_str()));
    let mut entries = Vec::new();
    for said in said {
        let room = limit - entries.len();
        if room == 0 {
            break;
        }
        let text = said.text();
        let lines: Box<dyn Iterator<Item = &str>> = match (&said.what, asked.direction) {
            (What::Call(_), _) => Box::new(std::iter::once(&*text)),
            (What::Task { .. }, Direction::Forward) => Box::new(text.lines()),
            (What::Task { .. }, Direction::Backward) => Box::new(text.lines().rev()),
        };
        let lines = lines.map(|line| &line[..line.floor_char_boundary(LONGEST)]).filter(is_asked);
        entries.extend(lines.take(room).map(|line| said.entry(line)));
    }
    entries
}

/// What was said at one moment.
struct Said<'a> {
    at: Time,
    level: LogLevel,
    what: What<'a>,
}

enum What<'a> {
    Call(&'a CallRow),
    /// A stream of it, and what was said there.
    Task {
        task: &'a Task,
        stream: &'static str,
        bytes: &'a [u8],
    },
}

fn of_call(call: &CallRow) -> Said<'_> {
    let level = match &call.outcome {
        Some(Outcome::Failed { .. }) => LogLevel::Error,
        Some(Outcome::Unknown | Outcome::Cancelled) => LogLevel::Warn,
        Some(Outcome::Answered(_)) | None => LogLevel::Info,
    };
    Said { at: call.reserved, level, what: What::Call(call) }
}

/// What it said in its own words. When it said each is not known: all is told at its end, and nothing before.
fn of_task(task: &Task) -> impl Iterator<Item = Said<'_>> {
    task.ended.zip(task.inline.as_ref()).into_iter().flat_map(move |(at, said)| {
        let streams = [("stdout", LogLevel::Info, &said.stdout), ("stderr", LogLevel::Warn, &said.stderr)];
        streams.map(|(stream, level, bytes)| Said { at, level, what: What::Task { task, stream, bytes } })
    })
}

impl Said<'_> {
    fn text(&self) -> Cow<'_, str> {
        match &self.what {
            What::Call(call) => {
                let outcome = match &call.outcome {
                    Some(Outcome::Failed { code, message }) => format!(": {}: {message}", code.as_str()),
                    Some(Outcome::Unknown) => ": nobody knows what became of it".to_owned(),
                    Some(Outcome::Cancelled) => ": cancelled".to_owned(),
                    Some(Outcome::Answered(_)) | None => String::new(),
                };
                format!("{}{outcome}", [&[call.verb.clone()][..], &call.argv[..]].concat().join(" ")).into()
            }
            What::Task { bytes, .. } => String::from_utf8_lossy(bytes),
        }
    }

    fn entry(&self, line: &str) -> LogEntry {
        let fields = match &self.what {
            What::Call(call) => {
                vec![("call", call.id.to_string()), ("event_type", call.verb.clone()), ("front", call.front.clone())]
            }
            What::Task { task, stream, .. } => {
                vec![("task", task.id.to_string()), ("event_type", (*stream).to_owned())]
            }
        };
        let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        LogEntry { timestamp: self.at, message: line.to_owned(), level: self.level, fields }
    }
}
