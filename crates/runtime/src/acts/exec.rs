//! A command that is waited for.

use std::{sync::Arc, time::Duration};

use cabana_model::{CallId, Clamped};
use cabana_sandbox::{Exit, Status};
use cabana_store::{Log, Stream};
use serde::{Deserialize, Serialize};
use tracing::{Instrument as _, debug_span, field::Empty};

use super::Asked;
use crate::{
    Act, Cx, Error, Needs, Result, Settings, Text, Wanted,
    exec::{self, Followed},
    fault::{self, Point},
    text::whole_characters,
};

pub struct Exec {
    pub asked: Asked,
    pub keep: Keep,
    /// What was asked of its sandbox, and is not so if it is made now.
    pub clamped: Vec<Clamped>,
}

/// How much of each stream an answer carries. The rest is in the output of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keep {
    pub head: u32,
    pub tail: u32,
}

impl Keep {
    /// So that an answer stays small.
    pub const MOST: u32 = 24 << 10;

    pub fn tail(bytes: u32) -> Self {
        Self { head: 0, tail: bytes }
    }

    fn check(self) -> Result<Self> {
        match self.head.checked_add(self.tail) {
            Some(sum) if sum <= Self::MOST => Ok(self),
            _ => Err(Error::invalid("keep", format!("is too much: head and tail together at most {}", Self::MOST))),
        }
    }
}

impl Default for Keep {
    fn default() -> Self {
        Self { head: Self::MOST / 4, tail: Self::MOST - Self::MOST / 4 }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    #[serde(flatten)]
    pub exit: ExitTold,
    pub stdout: Said,
    pub stderr: Said,
    /// What a profile has given instead of what was asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clamped: Vec<Clamped>,
}

/// How a command ended, in words of our own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitTold {
    pub status: Ending,
    /// There if it ended by itself.
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub duration_ms: u64,
    pub cpu_ms: u64,
    pub peak_memory_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    Exited,
    Signalled,
    TimedOut,
    OutOfMemory,
    DiskFull,
}

impl From<Exit> for ExitTold {
    fn from(exit: Exit) -> Self {
        let (status, exit_code, signal) = match exit.status {
            Status::Code(code) => (Ending::Exited, Some(code), None),
            Status::Signal(signal) => (Ending::Signalled, None, Some(signal)),
            Status::TimedOut => (Ending::TimedOut, None, None),
            Status::OutOfMemory => (Ending::OutOfMemory, None, None),
            Status::DiskFull => (Ending::DiskFull, None, None),
        };
        Self {
            status,
            exit_code,
            signal,
            duration_ms: exit.wall.as_millis() as u64,
            cpu_ms: exit.cpu.as_millis() as u64,
            peak_memory_bytes: exit.peak_rss,
        }
    }
}

/// The beginning and the end of a stream, and what lies between.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    pub head: Text,
    /// Follows the head, or comes after what was left out.
    pub tail: Text,
    pub total: u64,
}

impl Said {
    pub fn left_out(&self) -> u64 {
        self.total.saturating_sub((self.head.0.len() + self.tail.0.len()) as u64)
    }

    pub(crate) async fn of(log: &Log, stream: Stream, keep: Keep) -> Result<Self> {
        let (stdout, stderr) = log.lengths();
        let total = if stream == Stream::Stdout { stdout } else { stderr };
        let (first, last) = (u64::from(keep.head), u64::from(keep.tail));
        if total <= first + last {
            return Ok(Self { head: Text(log.read(stream, 0..total).await?), tail: Text::default(), total });
        }
        let head = whole_characters(log.read(stream, 0..first).await?, false, true);
        let tail = whole_characters(log.read(stream, total - last..total).await?, true, false);
        Ok(Self { head: Text(head), tail: Text(tail), total })
    }
}

impl Exec {
    /// The profile's, first of all.
    fn timeout(&self, settings: &Settings, wanted: &Wanted) -> Result<(Duration, Option<Clamped>)> {
        let (wanted, clamped) = settings.timeout(wanted, self.asked.timeout);
        match wanted > settings.exec_timeout_most {
            true => Err(Error::invalid(
                "timeout",
                format!(
                    "is too long: at most {} seconds, or start it in the background",
                    settings.exec_timeout_most.as_secs()
                ),
            )),
            false => Ok((wanted, clamped)),
        }
    }
}

impl Act for Exec {
    const VERB: &'static str = "exec";
    type Answer = Answer;

    fn needs(&self) -> Needs {
        Needs::Running
    }

    fn digest(&self) -> [u8; 32] {
        self.asked.digest()
    }

    fn argv(&self) -> Vec<String> {
        self.asked.argv()
    }

    fn held_bytes(&self) -> usize {
        self.asked.held_bytes()
    }

    async fn run(self, cx: Cx) -> Result<Answer> {
        let keep = self.keep.check()?;
        let wanted = cx.wanted()?;
        let (timeout, clamped) = self.timeout(cx.runtime.settings(), &wanted)?;
        let clamped: Vec<_> = clamped.into_iter().chain(self.clamped.into_iter().filter(|_| cx.made)).collect();
        let (spec, input) = self.asked.spec(cx.call.into(), &cx, Some(timeout))?;
        let (grace, span) = (cx.runtime.settings().grace, debug_span!("exec", exit = Empty));
        let followed = async {
            let process = cx.sandbox()?.exec(spec).await?;
            fault::at(Point::ExecBegun);
            let followed = exec::follow(process, input, &cx.output, &cx.cancel, grace, |error| cx.away(error));
            cx.runtime.0.closing.run_until_cancelled(followed).await.ok_or(Error::Left)?
        };
        let followed = followed.instrument(span.clone()).await?;
        let exit = exit_number(&followed.exit);
        span.record("exit", exit);
        drop(span);
        cx.note(|notes| notes.exit = exit);
        Ok(Answer { clamped, ..answer(followed, &cx.output, keep).await? })
    }
}

pub(crate) fn exit_number(exit: &Exit) -> Option<i64> {
    match exit.status {
        Status::Code(code) => Some(code.into()),
        _ => None,
    }
}

pub(crate) async fn answer(followed: Followed, log: &Arc<Log>, keep: Keep) -> Result<Answer> {
    if followed.cancelled {
        return Err(Error::Cancelled);
    }
    Ok(Answer {
        exit: followed.exit.into(),
        stdout: Said::of(log, Stream::Stdout, keep).await?,
        stderr: Said::of(log, Stream::Stderr, keep).await?,
        clamped: Vec::new(),
    })
}

/// The answer of a command whose call a crash had left open.
pub(crate) async fn recovered(id: CallId, followed: Followed, log: &Arc<Log>) -> Result<bytes::Bytes> {
    let answer = answer(followed, log, Keep::default()).await?;
    let answer = serde_json::to_vec(&answer);
    answer.map(Into::into).map_err(|error| Error::invalid("answer", format!("{id}: {error}")))
}
