//! `cabana serve`: sandboxes for whoever has a key, over HTTP.

mod key;
mod lock;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use cabana_engine::{Config, Engine, NetworkSettings};
use cabana_model::Code;
use cabana_runtime::{Clock, Runtime, Settings};
use cabana_server::{Bounds, ListenError, Listener, Options, Tls};
use cabana_store::{Durability, Store};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use self::lock::ServerLock;
use crate::failure::{Failure, OURS, tell};

/// How long a command that is waited for may go on when the server is told to end. It is not ended then: the next server
/// finds it.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Serve sandboxes over HTTP
///
/// What it makes outlives it: sandboxes and their tasks go on when the server ends, by whatever end, and the next one finds
/// them. The first key is in the file admin.key of the data directory.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS", env = "CABANA_LISTEN", default_value = "127.0.0.1:7070")]
    listen: SocketAddr,
    /// The certificate and those above it, in PEM
    #[arg(long, value_name = "FILE", env = "CABANA_TLS_CERT", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's key, in PEM
    #[arg(long, value_name = "FILE", env = "CABANA_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Listen where others can reach it without TLS: because something in front of it does that
    #[arg(long)]
    insecure_http: bool,
    /// Ports of sandboxes are at {port}-{sandbox}.DOMAIN too: every name below it must lead here. Empty for none
    #[arg(long, value_name = "DOMAIN", env = "CABANA_PREVIEW_DOMAIN", default_value = "localhost")]
    preview_domain: String,
    /// Survive the loss of power too, and not only the end of our own processes: slower
    #[arg(long)]
    durable: bool,
    /// A proxy that everything from inside goes through: http://, https:// or socks5://
    #[arg(long, value_name = "URL", env = "CABANA_UPSTREAM_PROXY", hide_env_values = true)]
    upstream_proxy: Option<String>,
    /// Certificates to trust inside, beside the usual ones: a file in PEM
    #[arg(long, value_name = "FILE", env = "CABANA_CA")]
    ca: Option<PathBuf>,
}

pub(crate) fn main(args: Args, data: PathBuf) -> ExitCode {
    match start(args, data) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(OURS),
    }
}

fn start(args: Args, data: PathBuf) -> Result<(), Failure> {
    cabana_engine::enter_user_namespace()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Code::Internal, format!("starting threads: {error}")))?;
    runtime.block_on(serve(args, data))
}

async fn serve(args: Args, data: PathBuf) -> Result<(), Failure> {
    log_to_stderr();
    let end = ended_by_signal()?;
    let network = NetworkSettings { upstream: args.upstream_proxy, ca: args.ca };
    let engine = Engine::open(Config { network, ..Config::new(&data) }).await?;
    let _lock = ServerLock::take(&data)?;
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(chain), Some(key)) => Some(Tls::read(chain, key)?),
        _ => None,
    };
    let listener = Listener::bind(args.listen, tls, args.insecure_http).await?;
    let durability = if args.durable { Durability::Full } else { Durability::Kill };
    let store = open_store(&data, durability).await?;
    let runtime = Runtime::new(engine.clone(), store.clone(), Settings::default(), Clock::machine());
    let key = key::first(&data, runtime.access()).await?;
    runtime.recover().await?;
    runtime.listen();
    greet(&listener, &key, &data)?;
    let bounds = Bounds::default();
    let preview_domain = Some(args.preview_domain.to_ascii_lowercase()).filter(|domain| !domain.is_empty());
    let options = Options { preview_domain, secure: listener.scheme() == "https" };
    listener.serve(cabana_server::router(runtime.clone(), bounds.clone(), options), &bounds, end).await;
    runtime.close(LAST_WORDS).await;
    drop(runtime);
    store.close().await;
    engine.leave().await;
    Ok(())
}

async fn open_store(data: &Path, durability: Durability) -> Result<Store, Failure> {
    let (db, outputs) = (data.join("db"), data.join("outputs"));
    let opened = tokio::task::spawn_blocking(move || Store::open(&db, &outputs, durability));
    let opened = opened.await.map_err(|error| Failure::new(Code::Internal, format!("opening the store: {error}")))?;
    opened.map_err(|error| Failure::from(cabana_runtime::Error::from(error)))
}

/// What to do next. The key itself is shown only to a person.
fn greet(listener: &Listener, key: &key::First, data: &Path) -> Result<(), Failure> {
    let address = listener.address().map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
    let url = format!("{}://{address}", listener.scheme());
    tell(&format!("Cabana serves at {url}"));
    tell(&format!("The key is in {}", key.path.display()));
    tell("Try:");
    tell(&format!("  curl -s {url}/v1/exec -H \"Authorization: Bearer $(cat {})\" \\", key.path.display()));
    tell(
        "    -d '{\"scope\": {\"scheme\": \"fixed\", \"name\": \"first\"}, \"command\": \"echo hello from $(hostname)\"}'",
    );
    tracing::info!(%url, data = %data.display(), "serving");
    Ok(())
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

fn log_to_stderr() {
    use tracing_subscriber::{EnvFilter, fmt, prelude::*};
    let filter = EnvFilter::try_from_env("CABANA_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let layer = fmt::layer().with_writer(std::io::stderr);
    let _ = tracing_subscriber::registry().with(filter).with(layer).try_init();
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
