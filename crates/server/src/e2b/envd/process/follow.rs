//! What a command says, to whoever listens: from its start, or from now on.

use std::sync::Arc;

use axum::response::Response;
use cabana_e2b_wire::{
    connect::{Code, Error},
    process::{Empty, EndEvent, Output, ProcessEvent, StartEvent, StartResponse},
};
use cabana_runtime::{
    Caller, Channel, Chunk, Log, Runtime, SandboxId, SandboxState, Seen, Task, TaskId, Typed,
    acts::{
        exec::{Ending as How, ExitTold},
        start::Answer,
    },
};
use futures_util::{Stream, StreamExt, stream};

use super::super::{
    super::{guest::Guest, refused::connect_error},
    rpc::{self, Ending, Sending},
};
use crate::{App, seats::StreamSeat};

const KILLED: i32 = 9;

/// With all that it says. Whoever began it also began its time.
pub(super) async fn from_start(
    app: &App,
    guest: &Guest,
    sending: Sending,
    seat: StreamSeat,
    begun: Answer,
    typed: Typed,
) -> Response {
    let Some(pid) = begun.pid else {
        return rpc::ended(&Error::new(Code::Unavailable, "the server was started again meanwhile"));
    };
    let following = Following::of(guest, begun.task, pid, typed, true);
    match app.runtime.task_output(&following.caller, following.task).await {
        Ok(log) => following.send(app, sending, seat, &log, (0, 0)),
        Err(error) => rpc::ended(&connect_error(&error)),
    }
}

/// One that ended a moment ago has only its end left to tell.
pub(super) async fn from_now(app: &App, guest: &Guest, sending: Sending, seat: StreamSeat, seen: Seen) -> Response {
    let Seen { task, pid, typed, .. } = seen;
    let following = Following::of(guest, task, pid, typed, false);
    match app.runtime.task_output(&following.caller, task).await {
        Ok(log) => {
            let from = log.lengths();
            following.send(app, sending, seat, &log, from)
        }
        Err(error) => rpc::ended(&connect_error(&error)),
    }
}

struct Following {
    caller: Caller,
    sandbox: SandboxId,
    task: TaskId,
    pid: u32,
    typed: Typed,
    is_starter: bool,
}

impl Following {
    fn of(guest: &Guest, task: TaskId, pid: u32, typed: Typed, is_starter: bool) -> Self {
        let (caller, sandbox) = (guest.caller.clone(), guest.record.id.clone());
        Self { caller, sandbox, task, pid, typed, is_starter }
    }

    fn send(self, app: &App, sending: Sending, seat: StreamSeat, log: &Arc<Log>, from: (u64, u64)) -> Response {
        let start = ProcessEvent::Start(StartEvent { pid: self.pid });
        let said = said(&seat, log, from, self.typed);
        let last = stream::once(self.last(app.runtime.clone()));
        let events = stream::once(std::future::ready(Ok(start))).chain(said).chain(last);
        let alive = StartResponse::from(ProcessEvent::Keepalive(Empty {}));
        // Both methods answer with the same: an event.
        sending.send(seat, alive, events.map(|event| event.map(StartResponse::from)))
    }

    async fn last(self, runtime: Runtime) -> Result<ProcessEvent, Ending> {
        let task = runtime.ended_task(&self.caller, self.task).await.map_err(|error| connect_error(&error))?;
        let exit = exit(&task).ok_or(Ending::Gone)?;
        // A command that is killed with its sandbox has no end of its own.
        if exit.exit_code.is_none() && !self.is_there(&runtime).await {
            return Err(Ending::Gone);
        }
        Ok(ProcessEvent::End(match (exit.status, exit.exit_code, exit.signal) {
            (How::TimedOut, ..) if self.is_starter => {
                return Err(Error::new(Code::DeadlineExceeded, "context deadline exceeded").into());
            }
            (_, Some(code), _) => EndEvent::exited(code),
            (_, _, Some(signal)) => EndEvent::signalled(signal),
            // By a limit.
            _ => EndEvent::signalled(KILLED),
        }))
    }
}

impl Following {
    async fn is_there(&self, runtime: &Runtime) -> bool {
        let record = runtime.sandbox(&self.caller, &self.sandbox).await;
        record.is_ok_and(|record| record.state == SandboxState::Running)
    }
}

/// `None`: nobody knows, since its sandbox went.
fn exit(task: &Task) -> Option<ExitTold> {
    serde_json::from_str(task.exit.as_deref()?).ok()
}

fn said(
    seat: &StreamSeat,
    log: &Arc<Log>,
    (stdout, stderr): (u64, u64),
    typed: Typed,
) -> impl Stream<Item = Result<ProcessEvent, Ending>> + Send + use<> {
    let is_terminal = matches!(typed, Typed::Terminal(_));
    seat.paced(log.follow(stdout, stderr), size_of_event).map(move |chunk| match chunk {
        Ok(Chunk { stream, bytes, .. }) => Ok(match (is_terminal, stream) {
            (true, _) => Output::Pty(bytes),
            (false, Channel::Stdout) => Output::Stdout(bytes),
            (false, Channel::Stderr) => Output::Stderr(bytes),
        }
        .into()),
        Err(error) => Err(connect_error(&error.into()).into()),
    })
}

/// At most: as base64.
fn size_of_event(chunk: &Chunk) -> usize {
    2 * chunk.bytes.len()
}
