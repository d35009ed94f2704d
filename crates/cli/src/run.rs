//! `cabana run`: one sandbox, one command, and nothing left afterwards.

mod ask;
mod mounts;
mod relay;
mod signals;
pub(crate) mod terminal;

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use cabana_engine::{Config, Engine, NetworkSettings};
use cabana_sandbox::{Command, Error, ExecSpec, NotRun, Process, Provider, Sandbox, SandboxId, Status, Stdio};

use self::{
    ask::Ask,
    relay::{Outcome, relay},
    terminal::RawMode,
};
pub(crate) use self::{
    ask::{amount, path_of, user_of, variables},
    relay::Ends,
    signals::{KILL, PIPE, Signals, WINCH},
};
use crate::failure::{Failure, NOT_EXECUTABLE, NOT_FOUND, OURS, tell};

pub(crate) const TIMED_OUT: u8 = 124;
const BY_SIGNAL: i32 = 128;

/// Run one command in a sandbox of its own, which ends with it
///
/// The command's exit code is passed through; death by signal N is 128+N, a timeout 124, a failure of cabana itself 125,
/// a program that cannot be executed 126, one that is not there 127. Without a command: a shell. If standard input and
/// output are a terminal, the command gets a terminal of its own.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cabana run -- uname -a\n  cabana run --mount .:/workspace --workdir /workspace -- make\n  \
                        echo 'print(6 * 7)' | cabana run --timeout 10s -- python3 -"
)]
pub(crate) struct Args {
    /// The template to start from; without it, the machine's own programs
    #[arg(long, value_name = "NAME")]
    pub(crate) template: Option<String>,
    /// End the command and all that it started after this time: 500ms, 10s, 2m, 1h
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<String>,
    /// Who runs it inside, by name or number
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Let set-user-id programs, sudo above all, gain rights inside
    #[arg(long)]
    pub(crate) sudo: bool,
    /// A variable for the command; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    /// Show a directory or file of this machine inside; may be repeated
    #[arg(long, value_name = "HOST:INSIDE[:ro]")]
    pub(crate) mount: Vec<std::ffi::OsString>,
    /// Which network it has: the public one, without this machine and its inner networks; none; or all that this machine
    /// itself can reach, for code that you trust
    #[arg(long, value_enum, value_name = "MODE", default_value = "public")]
    pub(crate) net: Net,
    /// Only this: a name, *.name, an address or a network, with or without :port; may be repeated
    #[arg(long, value_name = "RULE", conflicts_with = "net")]
    pub(crate) allow: Vec<String>,
    /// A proxy that all of it goes through: http://, https:// or socks5://, with user:password@ if it wants one. Better set
    /// as a variable: others see arguments
    #[arg(long, value_name = "URL", env = "CABANA_NETWORK_UPSTREAM_PROXY", hide_env_values = true)]
    pub(crate) upstream_proxy: Option<String>,
    /// Certificates to trust inside, beside the usual ones: a file in PEM
    #[arg(long, value_name = "FILE", env = "CABANA_NETWORK_CA")]
    pub(crate) ca: Option<PathBuf>,
    /// How much memory it may use, with all that it starts: 512M, 2G
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<String>,
    /// How many processors it may use: 0.5, 2
    #[arg(long, value_name = "NUMBER")]
    pub(crate) cpus: Option<String>,
    /// How many processes and threads there may be at once
    #[arg(long, value_name = "NUMBER")]
    pub(crate) pids: Option<u32>,
    /// How much its own files may take on the disk: 500M, 10G
    #[arg(long, value_name = "SIZE")]
    pub(crate) disk: Option<String>,
    /// How many files and directories of its own there may be
    #[arg(long, value_name = "NUMBER")]
    pub(crate) inodes: Option<u64>,
    /// How much it may read from the disk in a second, and as much write: 20M
    #[arg(long, value_name = "SIZE")]
    pub(crate) io: Option<String>,
    /// How many files one process may have open
    #[arg(long, value_name = "NUMBER")]
    pub(crate) open_files: Option<u32>,
    /// Where the command starts, inside
    #[arg(long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Net {
    Off,
    Public,
    Host,
}

pub(crate) fn main(args: Args, data: PathBuf) -> ExitCode {
    match start(args, data) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(OURS),
    }
}

fn start(args: Args, data: PathBuf) -> Result<u8, Failure> {
    let network =
        NetworkSettings { upstream: args.upstream_proxy.clone(), ca: args.ca.clone(), ..NetworkSettings::default() };
    let ask = Ask::new(args, &data)?;
    cabana_engine::enter_user_namespace()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| Error::failed("starting the runtime", e))?;
    let code = runtime.block_on(async {
        let signals = Signals::listen().map_err(|e| Error::failed("listening for signals", e))?;
        let engine = Engine::open(Config { spares: 0, network, ..Config::new(data) }).await?;
        let code = run(&*engine, ask, signals).await;
        engine.close().await;
        code
    });
    // A thread may wait for input that never comes: nobody waits for it.
    runtime.shutdown_background();
    code
}

/// The sandbox is deleted on every way out.
async fn run(provider: &dyn Provider, ask: Ask, mut signals: Signals) -> Result<u8, Failure> {
    let id = SandboxId::random();
    let created = tokio::select! {
        created = provider.create(&id, &ask.sandbox) => Ok(created),
        signal = signals.deadly() => Err(signal),
    };
    let code = match created {
        Ok(Ok(sandbox)) => in_sandbox(sandbox, ask, signals).await,
        Ok(Err(error)) => Err(error.into()),
        Err(signal) => Ok(by_signal(signal)),
    };
    if let Err(error) = provider.destroy(&id).await {
        tell(&format!("warning: sandbox {id} could not be deleted: {error}"));
    }
    code
}

async fn in_sandbox(sandbox: Arc<dyn Sandbox>, ask: Ask, mut signals: Signals) -> Result<u8, Failure> {
    let process = match start_command(&*sandbox, &ask).await {
        Ok(process) => process,
        Err(Error::NoProgram { program, why }) => {
            tell(&format!("cabana: cannot run {program}: {why}"));
            return Ok(if why == NotRun::Missing { NOT_FOUND } else { NOT_EXECUTABLE });
        }
        Err(error) => return Err(error.into()),
    };
    let raw = match ask.stdio {
        Stdio::Terminal(_) => Some(RawMode::enter().map_err(|e| Error::failed("setting up the terminal", e))?),
        _ => None,
    };
    let ends =
        Ends::ours(ask.stdio != Stdio::Output).map_err(|e| Error::failed("opening standard input and output", e))?;
    let outcome = relay(process, ends, &mut signals).await;
    drop(raw); // before a word of ours
    Ok(match outcome? {
        Outcome::NobodyReads => by_signal(PIPE),
        Outcome::Exited(Status::Code(code)) => u8::try_from(code & 0xff).unwrap_or(OURS),
        Outcome::Exited(Status::Signal(signal)) => by_signal(signal),
        Outcome::Exited(Status::TimedOut) => {
            tell(&format!("cabana: timed out after {}", ask.timeout_text));
            TIMED_OUT
        }
        Outcome::Exited(Status::DiskFull) => {
            tell("cabana: the disk limit is reached: the command was killed");
            by_signal(KILL)
        }
        Outcome::Exited(Status::OutOfMemory) => {
            tell("cabana: out of memory: the command was killed");
            by_signal(KILL)
        }
    })
}

/// Without a command, the better of the shells that are there.
async fn start_command(sandbox: &dyn Sandbox, ask: &Ask) -> cabana_sandbox::Result<Process> {
    let workdir = ask.workdir.as_ref().unwrap_or(&sandbox.defaults().workdir);
    let spec = |command: &[String]| {
        let mut spec = ExecSpec::new(Command::Argv(command.to_vec()), workdir.clone());
        spec.env.clone_from(&ask.env);
        spec.user.clone_from(&ask.user);
        spec.stdio = ask.stdio;
        spec.timeout = ask.timeout;
        spec
    };
    if !ask.command.is_empty() {
        return sandbox.exec(spec(&ask.command)).await;
    }
    match sandbox.exec(spec(&["bash".to_owned()])).await {
        Err(Error::NoProgram { .. }) => sandbox.exec(spec(&["sh".to_owned()])).await,
        other => other,
    }
}

pub(crate) fn by_signal(signal: i32) -> u8 {
    u8::try_from(BY_SIGNAL + signal).unwrap_or(u8::MAX)
}
