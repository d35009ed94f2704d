//! The verbs that speak to a server, over the same interface as everybody else.

mod backup;
mod cp;
mod exec;
mod gc;
mod key;
mod ledger;
mod logs;
mod ls;
mod open;
mod output;
mod place;
mod progress;
mod ps;
mod quota;
mod reap;
mod reload;
mod rm;
mod server;
mod shell;
mod snapshot;
mod sse;
mod stop;
pub(crate) mod table;
mod template;
mod upload;
mod usage;
mod volume;
mod webhook;

use std::{path::PathBuf, process::ExitCode};

use cabana_model::Code;

use self::server::Server;
use crate::failure::{Failure, OURS};

/// One file a verb.
#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    Ls(ls::Args),
    Exec(Box<exec::Args>),
    Shell(shell::Args),
    Cp(cp::Args),
    Logs(logs::Args),
    Ps(ps::Args),
    Stop(stop::Args),
    Rm(rm::Args),
    Reap(reap::Args),
    Snapshot(snapshot::Args),
    Volume(volume::Args),
    Open(open::Args),
    Key(key::Args),
    Quota(quota::Args),
    Usage(usage::Args),
    Webhook(webhook::Args),
    Ledger(ledger::Args),
    Gc(gc::Args),
    Backup(backup::Args),
}

impl Verb {
    /// Of a failure of ours. Where the exit code is a command's, it must not look like one.
    fn failed(&self) -> u8 {
        if matches!(self, Self::Exec(_) | Self::Shell(_)) { OURS } else { 1 }
    }
}

pub(crate) fn main(verb: Verb, data: Option<PathBuf>) -> ExitCode {
    let failed = verb.failed();
    match start(data, async |server| work(verb, server).await) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(failed),
    }
}

/// Templates are those of this machine, unless a server is named.
pub(crate) fn has_templates() -> bool {
    Server::is_named()
}

pub(crate) fn templates(args: crate::template::Args) -> ExitCode {
    match start(None, async |server| template::work(args, server).await) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(1),
    }
}

pub(crate) fn reload(json: bool, data: Option<PathBuf>) -> ExitCode {
    match start(data, async |server| reload::work(json, server).await) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(1),
    }
}

fn start<T>(data: Option<PathBuf>, work: impl AsyncFnOnce(&Server) -> Result<T, Failure>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Code::Internal, format!("starting threads: {error}")))?;
    let server = Server::find(data)?;
    let done = runtime.block_on(work(&server));
    // A thread may wait for input that never comes: nobody waits for it.
    runtime.shutdown_background();
    done
}

async fn work(verb: Verb, server: &Server) -> Result<u8, Failure> {
    match verb {
        Verb::Ls(args) => ls::work(&args, server).await,
        Verb::Exec(args) => return Box::pin(exec::work(*args, server)).await,
        Verb::Shell(args) => return Box::pin(shell::work(args, server)).await,
        Verb::Cp(args) => Box::pin(cp::work(&args, server)).await,
        Verb::Logs(args) => logs::work(&args, server).await,
        Verb::Ps(args) => ps::work(&args, server).await,
        Verb::Stop(args) => stop::work(&args, server).await,
        Verb::Rm(args) => rm::work(&args, server).await,
        Verb::Reap(args) => reap::work(&args, server).await,
        Verb::Snapshot(args) => snapshot::work(args, server).await,
        Verb::Volume(args) => volume::work(args, server).await,
        Verb::Open(args) => open::work(&args, server).await,
        Verb::Key(args) => key::work(args, server).await,
        Verb::Quota(args) => quota::work(args, server).await,
        Verb::Usage(args) => usage::work(&args, server).await,
        Verb::Webhook(args) => return webhook::work(args, server).await,
        Verb::Ledger(args) => ledger::work(args, server).await,
        Verb::Gc(args) => gc::work(&args, server).await,
        Verb::Backup(args) => Box::pin(backup::work(&args, server)).await,
    }
    .map(|()| 0)
}
