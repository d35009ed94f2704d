//! `cabana serve`: sandboxes for whoever has a key, over HTTP.

mod dev_tls;
mod heap;
mod key;
pub(crate) mod lock;
mod log;
mod notify;
mod reload;
mod signals;
mod traces;

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use cabana_engine::{Engine, NetworkSettings};
use cabana_model::Code;
use cabana_runtime::{Clock, Live, Runtime};
use cabana_server::{ListenError, Listener, Options, Tls};
use cabana_store::{Durability, Reserve, Store};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use self::{dev_tls::DevTls, lock::ServerLock, signals::Signals, traces::Traces};
use crate::{
    config::{Given, Serving, reload::Source},
    failure::{Failure, OURS, tell},
};

/// How long a command that is waited for may go on when the server is told to end. It is not ended then: the next server
/// finds it.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// How long the end of the server waits for threads that are held up in the kernel, or walk a large directory. By then all is recorded,
/// and none of them has anything to finish.
const HELD_UP: Duration = Duration::from_secs(5);

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
    /// Stop every sandbox when the server is told to end. Files are kept; without this, sandboxes go on
    #[arg(long)]
    stop_all: bool,
}

/// Threads that may be held up in the kernel, made when they are needed: a guest can hold a few for each sandbox, and a
/// runtime that has none left stands still.
const MAX_HELD_UP: usize = 16_384;

pub(crate) fn main(args: Args, data: Option<PathBuf>) -> ExitCode {
    match start(args, data) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(OURS),
    }
}

fn start(args: Args, data: Option<PathBuf>) -> Result<(), Failure> {
    // Whoever is root is asked before a user namespace makes everybody root.
    let (source, serving) = Source::new(args.given, data)?;
    cabana_engine::enter_user_namespace()?;
    heap::limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(MAX_HELD_UP)
        .build()
        .map_err(|error| Failure::new(Code::Internal, format!("starting threads: {error}")))?;
    let served = runtime.block_on(serve(source, serving, args.show_key, args.stop_all));
    runtime.shutdown_timeout(HELD_UP);
    served
}

async fn serve(source: Source, serving: Serving, show_key: bool, stop_all: bool) -> Result<(), Failure> {
    let Serving {
        listen,
        tls,
        dev_tls,
        insecure,
        preview_domain,
        bounds,
        engine,
        durability,
        settings,
        log,
        collector,
    } = serving;
    let traces = collector.map(Traces::to).transpose()?;
    let level = log::begin(&log, traces.as_ref().map(Traces::layer));
    raise_open_files();
    let Signals { end, hurry, hangups } = Signals::listen()?;
    let (data, network) = (engine.data.clone(), engine.network.clone());
    Reserve::of(&data).ease_start();
    let engine = Engine::open(engine).await?;
    let mut lock = ServerLock::take(&data, &end)?;
    let dev_tls = preview_domain.clone().filter(|_| dev_tls).map(|domain| DevTls::new(&data, domain));
    if let Some(dev_tls) = &dev_tls {
        dev_tls.provide(Timestamp::now())?;
    }
    let tls = tls.or_else(|| dev_tls.as_ref().map(|dev_tls| (dev_tls.chain(), dev_tls.key())));
    let tls = tls.map(|(chain, key)| Tls::read(&chain, &key)).transpose()?;
    let listener = Listener::bind(listen, tls.clone(), insecure).await?;
    let store = open_store(&data, durability).await?;
    let runtime = Runtime::new(engine.clone(), store.clone(), settings, Clock::machine());
    let key = key::first(&data, runtime.access()).await?;
    runtime.listen();
    runtime.recover().await?;
    runtime.forget_keys();
    runtime.sum_up_reads();
    runtime.look_after();
    runtime.find_strangers();
    runtime.tidy();
    runtime.retain();
    runtime.measure();
    runtime.watch_room();
    runtime.send_webhooks(network.upstream.as_deref(), authorities(&network)?.as_deref()).await?;
    let bounds = Arc::new(Live::new(bounds));
    let reload = reload::through(source, runtime.clone(), bounds.clone(), tls.clone(), level);
    reload::at_each(hangups, reload.clone());
    let (url, domain) = (url(&listener)?, domain(&listener, preview_domain.as_deref()));
    lock.announce(&url)?;
    if log.json {
        // What reads the lines of the log is a program.
        tracing::info!(key = %key.path.display(), "the key is in this file");
    } else {
        let authority = dev_tls.as_ref().map(DevTls::authority);
        greet(&url, &key, show_key, authority.as_deref());
        if let (Some(authority), Some(domain)) = (authority, &domain) {
            greet_sdks(domain, &authority, &key);
        }
    }
    if let (Some(dev_tls), Some(tls)) = (dev_tls, tls.clone()) {
        dev_tls.renew(tls);
    }
    tracing::info!(%url, data = %data.display(), "serving");
    let traced = traces.as_ref().map(Traces::counts);
    let options = Options { preview_domain, domain, secure: listener.scheme() == "https", traced, reload };
    let router = cabana_server::router(runtime.clone(), bounds.clone(), options);
    notify::say("READY=1");
    tokio::select! {
        () = listener.serve(router, &bounds, end.clone(), hurry.clone()) => {}
        () = leave_after(&end, &runtime, stop_all) => {}
        never = heap::keep_small() => match never {},
    }
    let stopped = match stop_all {
        true => hurry.run_until_cancelled(stop(&runtime)).await.unwrap_or_else(|| {
            Err(Failure::new(Code::Draining, "told to end at once before all sandboxes were stopped: some may run"))
        }),
        false => Ok(()),
    };
    runtime.leave();
    hurry.run_until_cancelled(runtime.close(LAST_WORDS)).await;
    drop(runtime);
    store.close().await;
    engine.leave().await;
    if let Some(traces) = traces {
        traces.close().await;
    }
    stopped
}

/// Whoever waits for a command has a while, and then hears that it goes on, or how it was ended.
async fn leave_after(end: &CancellationToken, runtime: &Runtime, stop_all: bool) {
    end.cancelled().await;
    tokio::time::sleep(LAST_WORDS).await;
    match stop_all {
        true => drop(stop(runtime).await), // it is looked at once more, when no client is there
        false => runtime.leave(),
    }
    std::future::pending::<()>().await;
}

async fn stop(runtime: &Runtime) -> Result<(), Failure> {
    Ok(runtime.stop_all("the server ends, and was to stop all").await?)
}

/// Those that the operator trusts beside the usual ones. The engine has looked at the file.
fn authorities(network: &NetworkSettings) -> Result<Option<Vec<u8>>, Failure> {
    let read = network.ca.as_ref().map(std::fs::read).transpose();
    read.map_err(|error| Failure::bad(format!("network.ca: {error}")))
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

/// As clients by TLS have to name it: with the port, where it is not the usual one.
fn domain(listener: &Listener, preview_domain: Option<&str>) -> Option<String> {
    let (port, domain) = (listener.address().ok()?.port(), preview_domain?);
    match (listener.scheme(), port) {
        ("https", 443) => Some(domain.to_owned()),
        ("https", port) => Some(format!("{domain}:{port}")),
        _ => None,
    }
}

/// What E2B's SDKs have to know.
fn greet_sdks(domain: &str, authority: &Path, key: &key::First) {
    let authority = authority.display();
    tell("For E2B's SDKs, where every name below the domain leads here:");
    tell(&format!("  export E2B_DOMAIN={domain} E2B_API_KEY=$(cat {})", key.path.display()));
    tell(&format!("  export SSL_CERT_FILE={authority} NODE_EXTRA_CA_CERTS={authority}"));
}

/// What to do next.
fn greet(url: &str, key: &key::First, show_key: bool, authority: Option<&Path>) {
    tell(&format!("Cabana serves at {url}"));
    tell(&format!("The key is in {}", key.path.display()));
    if show_key {
        tell(&format!("The key is {}", key.text));
    }
    tell("Try:");
    let trusting = authority.map(|authority| format!(" --cacert {}", authority.display())).unwrap_or_default();
    tell(&format!("  curl -s{trusting} {url}/v1/exec -H \"Authorization: Bearer $(cat {})\" \\", key.path.display()));
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
