//! `cabana serve`: sandboxes for whoever has a key, over HTTP.

mod key;
pub(crate) mod lock;
mod log;
mod traces;

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use cabana_engine::Engine;
use cabana_model::Code;
use cabana_runtime::{Clock, Runtime};
use cabana_server::{ListenError, Listener, Options, Tls};
use cabana_store::{Durability, Store};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use self::{lock::ServerLock, traces::Traces};
use crate::{
    config::{self, Given, Serving},
    failure::{Failure, OURS, tell},
};

/// How long a command that is waited for may go on when the server is told to end. It is not ended then: the next server
/// finds it.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Serve sandboxes over HTTP
///
/// What it makes outlives it: sandboxes and their tasks go on when the server ends, by whatever end, and the next one finds
/// them. The first key is in the file admin.key of the data directory. Each flag is also a setting of the file
/// /etc/cabana/cabana.toml: docs/guides/configuration.md.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    given: Given,
    /// Print the first key too: for a first try, and not where what is printed is kept
    #[arg(long)]
    show_key: bool,
}

pub(crate) fn main(args: Args, data: Option<PathBuf>) -> ExitCode {
    match start(args, data) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(OURS),
    }
}

fn start(args: Args, data: Option<PathBuf>) -> Result<(), Failure> {
    // Whoever is root is asked before a user namespace makes everybody root.
    let serving = config::serving(args.given, data)?;
    cabana_engine::enter_user_namespace()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Code::Internal, format!("starting threads: {error}")))?;
    runtime.block_on(serve(serving, args.show_key))
}

async fn serve(serving: Serving, show_key: bool) -> Result<(), Failure> {
    let Serving { listen, tls, insecure, preview_domain, bounds, engine, durability, settings, log, collector } =
        serving;
    let traces = collector.map(Traces::to).transpose()?;
    log::begin(&log, traces.as_ref().map(Traces::layer));
    raise_open_files();
    let end = ended_by_signal()?;
    let data = engine.data.clone();
    let engine = Engine::open(engine).await?;
    let mut lock = ServerLock::take(&data)?;
    let tls = tls.map(|(chain, key)| Tls::read(&chain, &key)).transpose()?;
    let listener = Listener::bind(listen, tls, insecure).await?;
    let store = open_store(&data, durability).await?;
    let runtime = Runtime::new(engine.clone(), store.clone(), settings, Clock::machine());
    let key = key::first(&data, runtime.access()).await?;
    runtime.recover().await?;
    runtime.listen();
    runtime.forget_keys();
    runtime.look_after();
    runtime.find_strangers();
    runtime.tidy();
    runtime.retain();
    let url = url(&listener)?;
    lock.announce(&url)?;
    if log.json {
        // What reads the lines of the log is a program.
        tracing::info!(key = %key.path.display(), "the key is in this file");
    } else {
        greet(&url, &key, show_key);
    }
    tracing::info!(%url, data = %data.display(), "serving");
    let traced = traces.as_ref().map(Traces::counts);
    let options = Options { preview_domain, secure: listener.scheme() == "https", traced };
    let serving = listener.serve(cabana_server::router(runtime.clone(), bounds.clone(), options), &bounds, end.clone());
    tokio::select! {
        () = serving => {}
        () = leave_after(&end, &runtime) => {}
    }
    runtime.close(LAST_WORDS).await;
    drop(runtime);
    store.close().await;
    engine.leave().await;
    if let Some(traces) = traces {
        traces.close().await;
    }
    Ok(())
}

/// Whoever waits for a command has a while, and then hears that it goes on.
async fn leave_after(end: &CancellationToken, runtime: &Runtime) {
    end.cancelled().await;
    tokio::time::sleep(LAST_WORDS).await;
    runtime.leave();
    std::future::pending::<()>().await;
}

async fn open_store(data: &Path, durability: Durability) -> Result<Store, Failure> {
    let data = data.to_owned();
    let opened = tokio::task::spawn_blocking(move || Store::open(&data, durability));
    let opened = opened.await.map_err(|error| Failure::new(Code::Internal, format!("opening the store: {error}")))?;
    opened.map_err(|error| Failure::from(cabana_runtime::Error::from(error)))
}

/// From this machine.
fn url(listener: &Listener) -> Result<String, Failure> {
    let mut address = listener.address().map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
    if address.ip().is_unspecified() {
        let loopback = if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
        address.set_ip(loopback);
    }
    Ok(format!("{}://{address}", listener.scheme()))
}

/// What to do next.
fn greet(url: &str, key: &key::First, show_key: bool) {
    tell(&format!("Cabana serves at {url}"));
    tell(&format!("The key is in {}", key.path.display()));
    if show_key {
        tell(&format!("The key is {}", key.text));
    }
    tell("Try:");
    tell(&format!("  curl -s {url}/v1/exec -H \"Authorization: Bearer $(cat {})\" \\", key.path.display()));
    tell(
        "    -d '{\"scope\": {\"scheme\": \"fixed\", \"name\": \"first\"}, \"command\": \"echo hello from $(hostname)\"}'",
    );
}

/// A connection is a descriptor, and so is each end of a command: as many as this process may have.
fn raise_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit });
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

fn ended_by_signal() -> Result<CancellationToken, Failure> {
    let failed = |error| Failure::new(Code::Internal, format!("waiting for signals: {error}"));
    let (mut term, mut interrupt) =
        (signal(SignalKind::terminate()).map_err(failed)?, signal(SignalKind::interrupt()).map_err(failed)?);
    let end = CancellationToken::new();
    let ended = end.clone();
    tokio_util::task::TaskTracker::new().spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
        }
        ended.cancel();
    });
    Ok(end)
}

impl From<ListenError> for Failure {
    fn from(error: ListenError) -> Self {
        Self::new(Code::BadRequest, error.to_string())
    }
}

impl From<cabana_runtime::Error> for Failure {
    fn from(error: cabana_runtime::Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}
