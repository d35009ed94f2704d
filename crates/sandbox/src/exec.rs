//! Commands: what is asked for, and the parts of a running one.

use std::{collections::BTreeMap, pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWrite;

use crate::{Error, ExecId, Result, SandboxPath, Stream, User};

/// Shutdown is the end of the file; writes keep their order.
pub type Stdin = Pin<Box<dyn AsyncWrite + Send>>;

/// Counts the bytes of all channels of one command, as delivered.
pub type Position = u64;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExecSpec {
    pub id: ExecId,
    pub command: Command,
    /// The session resolved it.
    pub cwd: SandboxPath,
    /// Data, never evaluated. Added to what the sandbox gives every command.
    pub env: BTreeMap<String, String>,
    /// `None` is the sandbox's default user.
    pub user: Option<User>,
    pub stdio: Stdio,
    /// Enforced beside the process, on its whole tree.
    pub timeout: Option<Duration>,
}

impl ExecSpec {
    pub fn new(command: Command, cwd: SandboxPath) -> Self {
        Self { id: ExecId::now(), command, cwd, env: BTreeMap::new(), user: None, stdio: Stdio::Output, timeout: None }
    }

    pub fn shell(script: impl Into<String>, cwd: SandboxPath) -> Self {
        Self::new(Command::Shell(script.into()), cwd)
    }

    pub fn argv<S: Into<String>>(argv: impl IntoIterator<Item = S>, cwd: SandboxPath) -> Self {
        Self::new(Command::Argv(argv.into_iter().map(Into::into).collect()), cwd)
    }

    /// What no provider could run. Each `exec` begins with it.
    pub fn check(&self) -> Result<()> {
        match &self.command {
            Command::Argv(argv) => {
                if argv.first().is_none_or(String::is_empty) {
                    return Err(Error::invalid("command", "is empty: name a program"));
                }
                argv.iter().try_for_each(|arg| no_nul("command", arg))?;
            }
            Command::Shell(script) => no_nul("command", script)?,
        }
        check_env(&self.env)?;
        if self.timeout.is_some_and(|t| t.is_zero()) {
            return Err(Error::invalid("timeout", "must be longer than zero"));
        }
        Ok(())
    }
}

fn no_nul(field: &'static str, text: &str) -> Result<()> {
    match text.contains('\0') {
        true => Err(Error::invalid(field, "holds a NUL byte, which no program can be given")),
        false => Ok(()),
    }
}

/// What no program can be given.
pub fn check_env(env: &BTreeMap<String, String>) -> Result<()> {
    for (name, value) in env {
        if name.is_empty() || name.contains('=') {
            return Err(Error::invalid("env", format!("{name:?} is no name of a variable")));
        }
        no_nul("env", name)?;
        no_nul("env", value)?;
    }
    Ok(())
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Command {
    Argv(Vec<String>),
    /// Given to `sh -c` of the sandbox, or bash where it has one.
    Shell(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stdio {
    Output,
    InputOutput,
    Terminal(TermSize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TermSize {
    pub cols: u16,
    pub rows: u16,
}

/// Parts, so that who drains, who types and who kills share no lock. Dropping it kills nothing.
pub struct Process {
    /// As seen inside.
    pub pid: Option<u32>,
    /// There for `InputOutput` and `Terminal`. Of several readers of one command, only the first has it.
    pub stdin: Option<Stdin>,
    /// Output in order, then exactly one exit, then the end.
    pub events: Stream<Event>,
    pub control: Arc<dyn Control>,
}

#[async_trait]
pub trait Control: Send + Sync {
    /// To a command that has ended: nothing happens, and that is no error.
    async fn signal(&self, signal: i32, to: Target) -> Result<()>;
    async fn resize(&self, size: TermSize) -> Result<()>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    Leader,
    /// setsid and double forks too, and what a command left behind that has ended itself.
    Tree,
}

/// Output in order, then exactly one exit, also when a daemon left behind holds the pipe open.
#[derive(Clone, Debug)]
pub enum Event {
    Output(Output),
    Exit(Exit),
}

/// An `at` beyond the end of the last chunk is a gap: told, never glossed over.
#[derive(Clone, Debug)]
pub struct Output {
    pub at: Position,
    pub channel: Channel,
    pub bytes: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Channel {
    Stdout,
    Stderr,
    Terminal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub status: Status,
    pub wall: Duration,
    pub cpu: Duration,
    pub peak_rss: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    Code(i32),
    Signal(i32),
    TimedOut,
    OutOfMemory,
    /// Ended because the sandbox's own layer was over its limit, or there was no room for what it wrote.
    DiskFull,
}

/// What became of a command. `Missing` becomes the call's honest `unknown`.
pub enum Reattached {
    Running(Process),
    Exited(Exit, Stream<Output>),
    Missing,
}
