//! The fronts: what speaks HTTP. They take a credential, translate, and do nothing else.
#![allow(unused_qualifications)] // by what the macro of the routes writes

mod answers;
mod auth;
mod dispatch;
mod e2b;
mod error;
mod extract;
mod failed_auth;
mod health;
mod hosts;
mod linger;
mod listen;
mod long_answer;
mod metrics;
mod openapi;
mod pace;
mod parse;
mod ports;
mod rest;
mod seats;
mod specs;
mod stream;
mod traced;
mod untaken;

use std::{
    ops::Deref,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use axum::Router;
use cabana_runtime::{Live, MemoryLedger, Runtime};
use tokio_util::task::TaskTracker;

pub use self::e2b::read_image;
pub use self::listen::{ListenError, Listener, Tls};
use self::seats::Streams;

/// What bounds a client.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Of a request that is read as a whole.
    pub body: usize,
    pub connections: usize,
    /// Of one tenant: what has no end of its own.
    pub streams: usize,
    /// Until the head of a request is whole.
    pub head: Duration,
    /// As long as a client may ask for nothing and take nothing.
    pub quiet: Duration,
    /// As long as nothing moves between a client and a port of a sandbox.
    pub idle: Duration,
    /// As long as a client may stay that nothing has let in: no key, no token, no link, no port that is public.
    pub stranger: Duration,
    /// As long as a connection is used. What goes on in it by then goes on.
    pub age: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            body: 4 << 20,
            connections: 4096,
            streams: 2048,
            head: Duration::from_secs(15),
            quiet: Duration::from_secs(60),
            idle: Duration::from_secs(600),
            stranger: Duration::from_secs(30),
            age: Duration::from_secs(3600),
        }
    }
}

/// How the server is reached.
#[derive(Clone, Debug)]
pub struct Options {
    /// The ports of sandboxes are at `{port}-{sandbox}.` and this.
    pub preview_domain: Option<String>,
    /// The same as clients by TLS name it, with the port if there is one: where they are told it.
    pub domain: Option<String>,
    /// By TLS.
    pub secure: bool,
    /// There where requests are traced.
    pub traced: Option<Arc<SpanCounts>>,
    pub reload: Reload,
}

/// How the settings are read again while the server serves. Err: why nothing has changed.
#[derive(Clone)]
pub struct Reload(pub Arc<dyn Fn() -> Result<Reloaded, String> + Send + Sync>);

/// By the names of settings.
#[derive(Debug, PartialEq, Eq)]
pub struct Reloaded {
    pub changed: Vec<String>,
    /// They stay as they were until then.
    pub needs_restart: Vec<String>,
}

impl std::fmt::Debug for Reload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reload")
    }
}

impl Default for Reload {
    fn default() -> Self {
        Self(Arc::new(|| Err("this server was given no settings that could be read again".to_owned())))
    }
}

/// What became of the spans of traces.
#[derive(Debug, Default)]
pub struct SpanCounts {
    pub sent: AtomicU64,
    pub dropped: AtomicU64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            preview_domain: Some("localhost".to_owned()),
            domain: None,
            secure: false,
            traced: None,
            reload: Reload::default(),
        }
    }
}

/// What every handler has.
#[derive(Clone)]
pub(crate) struct App(Arc<Parts>);

impl Deref for App {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

pub(crate) struct Parts {
    pub(crate) runtime: Runtime,
    pub(crate) bounds: Arc<Live<Bounds>>,
    pub(crate) options: Arc<Options>,
    pub(crate) streams: Arc<Streams>,
    /// What goes on between a client and a port.
    pub(crate) tasks: TaskTracker,
    pub(crate) watchers: Arc<e2b::Watchers>,
    pub(crate) signers: Arc<e2b::Signers>,
    pub(crate) wakes: Arc<e2b::Wakes>,
    pub(crate) specs: Arc<specs::Specs>,
    /// Of what clients send and is read as a whole.
    pub(crate) bodies: MemoryLedger,
    pub(crate) parsers: Arc<parse::Parsers>,
    pub(crate) failed_auth: failed_auth::FailedAuth,
    pub(crate) gzip: Arc<e2b::Gzip>,
    /// Of what comes out of ports in small chunks.
    pub(crate) port_pace: Arc<pace::TenantPace>,
    /// Of templates.
    pub(crate) builds: Arc<e2b::Builds>,
}

/// All routes, with the document that describes them.
pub fn router(runtime: Runtime, bounds: Arc<Live<Bounds>>, options: Options) -> Router {
    let streams = Arc::new(Streams::new(bounds.clone()));
    let options = Arc::new(options);
    let app = App(Arc::new(Parts {
        runtime,
        bounds,
        options,
        streams,
        tasks: TaskTracker::new(),
        watchers: Arc::default(),
        signers: Arc::default(),
        wakes: Arc::default(),
        specs: Arc::default(),
        bodies: extract::memory_of_bodies(),
        parsers: Arc::default(),
        failed_auth: failed_auth::FailedAuth::default(),
        gzip: Arc::default(),
        port_pace: Arc::default(),
        builds: Arc::default(),
    }));
    let (router, api) = openapi::routes().split_for_parts();
    let is_traced = app.options.traced.is_some();
    let router = router
        .merge(openapi::served(&api))
        .merge(ports::routes())
        .merge(e2b::routes())
        .fallback(error::no_route)
        .method_not_allowed_fallback(error::no_method)
        .layer(axum::middleware::from_fn_with_state(app.clone(), dispatch::dispatch))
        .with_state(app);
    if is_traced { router.layer(axum::middleware::from_fn(traced::traced)) } else { router }
}

/// The document alone, as it is checked in.
pub fn openapi() -> String {
    openapi::text(openapi::routes().get_openapi())
}
