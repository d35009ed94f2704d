//! The fronts: what speaks HTTP. They take a credential, translate, and do nothing else.
#![allow(unused_qualifications)] // by what the macro of the routes writes

mod auth;
mod error;
mod extract;
mod health;
mod listen;
mod openapi;
mod rest;
mod stream;

use std::{sync::Arc, time::Duration};

use axum::Router;
use cabana_runtime::Runtime;

pub use self::listen::{ListenError, Listener, Tls};

/// What bounds a client.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Of a request that is read as a whole.
    pub body: usize,
    pub connections: usize,
    /// Until the head of a request is whole.
    pub head: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { body: 4 << 20, connections: 4096, head: Duration::from_secs(15) }
    }
}

/// What every handler has.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) runtime: Runtime,
    pub(crate) bounds: Arc<Bounds>,
}

/// All routes, with the document that describes them.
pub fn router(runtime: Runtime, bounds: Bounds) -> Router {
    let app = App { runtime, bounds: Arc::new(bounds) };
    let (router, api) = openapi::routes().split_for_parts();
    router
        .merge(openapi::served(api))
        .fallback(error::no_route)
        .method_not_allowed_fallback(error::no_method)
        .with_state(app)
}

/// The document alone, as it is checked in.
pub fn openapi() -> String {
    openapi::text(openapi::routes().get_openapi())
}
