//! A command, from what was asked to its end.

use std::{collections::BTreeMap, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use cabana_model::{ExecId, TaskState};
use cabana_sandbox::{
    Channel, Command, Event, ExecSpec, Exit, Output, Position, Process, SandboxPath, Status, Stdin, Stdio, Target, User,
};
use cabana_store::{Log, Stream};
use futures_util::StreamExt;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;
use tokio_util::sync::CancellationToken;

use crate::{
    Cx, Error, MemoryCharge, Result, Text,
    fault::{self, Point},
    words,
};

/// What somebody wants to have run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Asked {
    pub command: Command,
    /// Relative to the sandbox's working directory, unless it is absolute.
    pub cwd: Option<String>,
    pub env: BTreeMap<String, String>,
    pub user: Option<User>,
    /// All of its input.
    pub stdin: Option<Text>,
    pub timeout: Option<Duration>,
}

impl Asked {
    pub fn new(command: Command) -> Self {
        Self { command, cwd: None, env: BTreeMap::new(), user: None, stdin: None, timeout: None }
    }

    pub fn shell(script: impl Into<String>) -> Self {
        Self::new(Command::Shell(script.into()))
    }

    /// Of all of it, the values of variables too: they are not to be found in it.
    pub(crate) fn digest(&self) -> [u8; 32] {
        // Nothing of it fails to be written as JSON; if it did, it would be a request of its own.
        Sha256::digest(serde_json::to_vec(self).unwrap_or_default()).into()
    }

    /// For the ledger: of variables, the names.
    pub(crate) fn argv(&self) -> Vec<String> {
        let names = self.env.keys().map(|name| format!("{name}=***"));
        match &self.command {
            Command::Argv(argv) => names.chain(argv.iter().cloned()).collect(),
            Command::Shell(script) => names.chain(["sh".into(), "-c".into(), script.clone()]).collect(),
        }
    }

    /// What is more than a server keeps of one command.
    pub fn check(&self) -> Result<()> {
        words::check_command(&self.command)?;
        words::check_command_env(&self.env)
    }

    pub(crate) fn held_bytes(&self) -> usize {
        let command = match &self.command {
            Command::Argv(argv) => argv.iter().map(String::len).sum(),
            Command::Shell(script) => script.len(),
        };
        let env: usize = self.env.iter().map(|(name, value)| name.len() + value.len()).sum();
        let stdin = self.stdin.as_ref().map_or(0, |Text(input)| input.len());
        command + env + stdin + self.cwd.as_ref().map_or(0, String::len)
    }

    /// The input takes the call's charge along: a command in the background outlives its call.
    pub(crate) fn spec(self, id: ExecId, cx: &Cx, timeout: Option<Duration>) -> Result<(ExecSpec, Input)> {
        self.check()?;
        cx.runtime.0.sandboxes.pressure.check(&cx.caller.tenant)?;
        let defaults = cx.sandbox()?.defaults();
        let cwd = match self.cwd {
            Some(cwd) => within(&defaults.workdir, &cwd)?,
            None => defaults.workdir.clone(),
        };
        let stdio = if self.stdin.is_some() { Stdio::InputOutput } else { Stdio::Output };
        let env = cx.wanted()?.env.clone().into_iter().chain(self.env).collect();
        let input = Input {
            bytes: self.stdin.map_or_else(Bytes::new, |Text(input)| input),
            memory: cx.note(|notes| notes.memory.take()),
        };
        Ok((ExecSpec { id, command: self.command, cwd, env, user: self.user, stdio, timeout }, input))
    }
}

/// What a command is to read, charged until it has.
#[derive(Default)]
pub(crate) struct Input {
    bytes: Bytes,
    memory: Option<MemoryCharge>,
}

impl Input {
    /// A part that was written is as much memory as before, so the charge stays until all is.
    async fn write(self, stdin: Option<Stdin>) {
        let Self { bytes, memory: _until_written } = self;
        if let Some(mut stdin) = stdin {
            // A command that is gone has closed its end: that is no failure of ours.
            let _ = stdin.write_all(&bytes).await;
            let _ = stdin.shutdown().await;
        }
    }
}

/// A path of a session: absolute, or below where the session is.
pub(crate) fn within(workdir: &SandboxPath, path: &str) -> Result<SandboxPath> {
    let path = match path.strip_prefix('/') {
        Some(_) => path.to_owned(),
        None => format!("{workdir}/{path}"),
    };
    Ok(path.parse()?)
}

/// How a command ended, and whether somebody had wanted it to.
pub(crate) struct Followed {
    pub(crate) exit: Exit,
    pub(crate) cancelled: bool,
}

impl Followed {
    pub(crate) fn state(&self) -> TaskState {
        match self.exit.status {
            _ if self.cancelled => TaskState::Cancelled,
            Status::Code(0) => TaskState::Succeeded,
            _ => TaskState::Failed,
        }
    }
}

/// Between two tries to keep what could not be kept.
const AGAIN: Duration = Duration::from_millis(200);

/// Reads a command to its end. Who cancels it meanwhile has it told to end, and after the grace ended with all it started. A
/// store that is away is waited for, and `away` hears of it.
pub(crate) async fn follow(
    process: Process,
    input: Input,
    log: &Arc<Log>,
    cancel: &CancellationToken,
    grace: Duration,
    away: impl Fn(&cabana_store::Error) + Send,
) -> Result<Followed> {
    let Process { stdin, mut events, control, .. } = process;
    let typing = input.write(stdin);
    let ending = async {
        cancel.cancelled().await;
        fault::at(Point::CancelAsked);
        let _ = control.signal(Signal::TERM.as_raw(), Target::Tree).await;
        fault::at(Point::CancelTold);
        tokio::time::sleep(grace).await;
        let _ = control.signal(Signal::KILL.as_raw(), Target::Tree).await;
        std::future::pending::<()>().await;
    };
    let reading = async {
        let (mut kept, mut taker) = (Ok(()), Taker::new(log));
        while let Some(event) = events.next().await {
            match event? {
                // The command goes on, whatever becomes of what it says.
                Event::Output(output) if kept.is_ok() => kept = taker.take_until_kept(output, &away).await,
                Event::Output(_) => {}
                Event::Exit(exit) => return kept.map(|()| exit),
            }
        }
        Err(Error::Sandbox(cabana_sandbox::Error::Gone))
    };
    let (mut typing, mut ending, mut reading) = (pin!(typing), pin!(ending), pin!(reading));
    let mut typed = false;
    let exit = loop {
        tokio::select! {
            exit = &mut reading => break exit?,
            () = &mut ending => {}
            () = &mut typing, if !typed => typed = true,
        }
    };
    let cancelled = cancel.is_cancelled();
    if cancelled {
        // Its leader has ended; what it started may have chosen not to.
        let _ = control.signal(Signal::KILL.as_raw(), Target::Tree).await;
    }
    Ok(Followed { exit, cancelled })
}

/// What a command says, into its log: also how much of it was gone before it could be taken.
pub(crate) struct Taker<'a> {
    log: &'a Log,
    at: Position,
}

impl<'a> Taker<'a> {
    pub(crate) fn new(log: &'a Log) -> Self {
        Self { log, at: log.position() }
    }

    pub(crate) async fn take(&mut self, output: Output) -> Result<()> {
        let (stream, bytes) = self.at(output);
        Ok(self.log.push(stream, bytes).await?)
    }

    /// What the command says meanwhile is with the provider, as far as that keeps it.
    async fn take_until_kept(&mut self, output: Output, away: &impl Fn(&cabana_store::Error)) -> Result<()> {
        let (stream, bytes) = self.at(output);
        let mut kept = self.log.push(stream, bytes.clone()).await;
        while let Err(error @ cabana_store::Error::Unavailable(_)) = &kept {
            away(error);
            tokio::time::sleep(AGAIN).await;
            kept = self.log.push_again(stream, bytes.clone()).await;
        }
        Ok(kept?)
    }

    fn at(&mut self, output: Output) -> (Stream, Bytes) {
        let stream = match output.channel {
            Channel::Stdout | Channel::Terminal => Stream::Stdout,
            Channel::Stderr => Stream::Stderr,
        };
        if output.at > self.at {
            self.log.lost(output.at - self.at);
        }
        fault::at(Point::ExecSaid);
        self.at = output.at + output.bytes.len() as u64;
        (stream, output.bytes)
    }
}
