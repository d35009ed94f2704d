//! What was done in a sandbox, and what its commands said, as E2B's console and its command line ask for it.

use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
};
use cabana_e2b_wire::control::{Direction, LogEntry, LogLevel, LogsQuery, SandboxLogs, SandboxLogsV2};
use cabana_runtime::{CallRow, Outcome, Page, Record, Task, Time};

use super::{super::refused::Refused, one::One};
use crate::{App, auth::Reader, extract::Path};

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
) -> Result<Json<SandboxLogs>, Refused> {
    let one = One::find(&app, caller, &sandbox).await?;
    Ok(Json(entries(&app, &one.record, query).await?.into()))
}

pub(super) async fn logs_v2(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(sandbox): Path<String>,
    query: Asked,
) -> Result<Json<SandboxLogsV2>, Refused> {
    let one = One::find(&app, caller, &sandbox).await?;
    Ok(Json(SandboxLogsV2 { logs: entries(&app, &one.record, query).await? }))
}

async fn entries(app: &App, record: &Record, query: Asked) -> Result<Vec<LogEntry>, Refused> {
    let Query(asked) = query.map_err(|error| Refused::bad(error.body_text()))?;
    let limit = asked.limit.map_or(MOST, |limit| limit as usize);
    if limit > MOST {
        return Err(Refused::bad(format!("limit must be from 0 to {MOST}")));
    }
    let (tenant, id) = (&record.tenant, Some(&record.id));
    let calls = app.runtime.call_list(tenant, id, Page { limit: CALLS, after: None }).await?;
    let tasks = app.runtime.task_list(tenant, id, None, Page { limit: TASKS, after: None }).await?;
    let mut entries: Vec<_> = calls.iter().map(of_call).chain(tasks.iter().flat_map(of_task)).collect();
    entries.retain(|entry| {
        let at = entry.timestamp.as_millisecond();
        let is_there = asked.cursor.is_none_or(|cursor| match asked.direction {
            Direction::Forward => at >= cursor,
            Direction::Backward => at <= cursor,
        });
        is_there
            && asked.level.is_none_or(|level| entry.level >= level)
            && asked.search.as_ref().is_none_or(|text| entry.message.contains(text.as_str()))
    });
    // Lines of one moment stay in their order.
    entries.sort_by_key(|entry| entry.timestamp);
    if asked.direction == Direction::Backward {
        entries.reverse();
    }
    entries.truncate(limit);
    Ok(entries)
}

fn of_call(call: &CallRow) -> LogEntry {
    let (level, outcome) = match &call.outcome {
        Some(Outcome::Failed { code, message }) => (LogLevel::Error, format!(": {}: {message}", code.as_str())),
        Some(Outcome::Unknown) => (LogLevel::Warn, ": nobody knows what became of it".to_owned()),
        Some(Outcome::Cancelled) => (LogLevel::Warn, ": cancelled".to_owned()),
        Some(Outcome::Answered(_)) | None => (LogLevel::Info, String::new()),
    };
    let said = [&[call.verb.clone()][..], &call.argv[..]].concat().join(" ");
    let fields = [("call", call.id.to_string()), ("event_type", call.verb.clone()), ("front", call.front.clone())];
    entry(call.reserved, level, &format!("{said}{outcome}"), &fields)
}

/// What it said in its own words. When it said each is not known: all is told at its end, and nothing before.
fn of_task(task: &Task) -> Vec<LogEntry> {
    let (Some(at), Some(said)) = (task.ended, &task.inline) else { return Vec::new() };
    let channels = [("stdout", LogLevel::Info, &said.stdout), ("stderr", LogLevel::Warn, &said.stderr)];
    let lines = channels.into_iter().flat_map(|(name, level, bytes)| {
        let fields = [("task", task.id.to_string()), ("event_type", name.to_owned())];
        let text = String::from_utf8_lossy(bytes).into_owned();
        text.lines().map(|line| entry(at, level, line, &fields)).collect::<Vec<_>>()
    });
    lines.collect()
}

fn entry(at: Time, level: LogLevel, message: &str, fields: &[(&str, String)]) -> LogEntry {
    let message = message[..message.floor_char_boundary(LONGEST)].to_owned();
    let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    LogEntry { timestamp: at, message, level, fields }
}
