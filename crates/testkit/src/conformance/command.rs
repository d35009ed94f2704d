//! Short words for cases that run commands.

use cabana_sandbox::{Channel, Event, ExecSpec, Exit, Position, Process, Status, run};
use futures_util::StreamExt;

use super::{
    stage::{Room, Stage},
    verdict::{Failure, Outcome},
};

const KEEP: usize = 4 * 1024 * 1024;

/// A command that has ended, with all that it said.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) status: Status,
    pub(super) out: String,
    pub(super) err: String,
}

impl Room {
    pub(super) fn shell(&self, script: &str) -> ExecSpec {
        ExecSpec::shell(script, self.dir.clone())
    }

    pub(super) fn argv(&self, argv: &[&str]) -> ExecSpec {
        ExecSpec::argv(argv.iter().copied(), self.dir.clone())
    }

    /// Runs it to its end.
    pub(super) async fn run(&self, stage: &Stage, spec: ExecSpec) -> Outcome<Done> {
        let what = format!("the end of {:?}", spec.command);
        let outcome = stage.soon(&what, run(&*self.sandbox, spec, KEEP)).await??;
        let text = |kept: cabana_sandbox::Kept| {
            let whole = kept.whole().ok_or_else(|| Failure::new("more output than a case expects"))?;
            Ok::<_, Failure>(String::from_utf8_lossy(&whole).into_owned())
        };
        Ok(Done { status: outcome.exit.status, out: text(outcome.stdout)?, err: text(outcome.stderr)? })
    }

    pub(super) async fn sh(&self, stage: &Stage, script: &str) -> Outcome<Done> {
        self.run(stage, self.shell(script)).await
    }

    pub(super) async fn start<'a>(&self, stage: &'a Stage, spec: ExecSpec) -> Outcome<Running<'a>> {
        let process = stage.soon("the start of the command", self.sandbox.exec(spec)).await??;
        Ok(Running::new(stage, process))
    }

    pub(super) async fn exists(&self, name: &str) -> Outcome<bool> {
        match self.stat(name).await {
            Ok(_) => Ok(true),
            Err(cabana_sandbox::Error::NotFound(_)) => Ok(false),
            Err(other) => Err(other.into()),
        }
    }
}

/// A running command, and what it said so far.
pub(super) struct Running<'a> {
    pub(super) process: Process,
    stage: &'a Stage,
    /// Of all channels, in the order in which it came.
    pub(super) text: String,
    pub(super) channels: Vec<Channel>,
    /// Where the next byte belongs.
    pub(super) end: Position,
}

impl<'a> Running<'a> {
    pub(super) fn new(stage: &'a Stage, process: Process) -> Self {
        Self { process, stage, text: String::new(), channels: Vec::new(), end: 0 }
    }

    /// The next event, soon.
    pub(super) async fn next(&mut self) -> Outcome<Option<Event>> {
        let what = format!("an event; the command said {:?}", self.text);
        let event = self.stage.soon(&what, self.process.events.next()).await?.transpose()?;
        if let Some(Event::Output(output)) = &event {
            self.text.push_str(&String::from_utf8_lossy(&output.bytes));
            self.channels.push(output.channel);
            self.end = output.at + output.bytes.len() as u64;
        }
        Ok(event)
    }

    /// Until it has said this.
    pub(super) async fn says(&mut self, wanted: &str) -> Outcome {
        while !self.text.contains(wanted) {
            match self.next().await? {
                Some(Event::Output(_)) => {}
                other => return Err(Failure::new(format_args!("it ended with {other:?} and said {:?}", self.text))),
            }
        }
        Ok(())
    }

    /// Until it has ended.
    pub(super) async fn exit(&mut self) -> Outcome<Exit> {
        loop {
            match self.next().await? {
                Some(Event::Output(_)) => {}
                Some(Event::Exit(exit)) => return Ok(exit),
                None => {
                    return Err(Failure::new(format_args!("the events ended without an exit, after {:?}", self.text)));
                }
            }
        }
    }
}
