//! E2B's protocol, for the SDKs that people already have.
//!
//! Two planes on one port. The control plane has paths of its own ([`control`]). What is meant for a sandbox's agent is known by a
//! header or by the host name ([`guest`]), whatever its path, and is answered here ([`envd`]): there is no agent inside. A request
//! for another port goes to what listens there.

mod brought;
mod control;
mod envd;
mod guest;
mod kept;
mod ports;
mod refused;
mod signers;
mod templates;
mod wakes;
mod words;

use std::ops::ControlFlow::{self, Break, Continue};

use axum::{
    Router,
    extract::Request,
    response::{IntoResponse, Response},
};

pub use self::templates::read_image;
pub(crate) use self::{
    envd::{Gzip, Watchers},
    kept::Kept,
    signers::Signers,
    templates::Builds,
    wakes::Wakes,
    words::{in_their_words, is_for_theirs, said_anew, worded},
};
use crate::{App, listen::Peer};

/// What SDKs decide by what they may ask for.
const ENVD_VERSION: &str = "0.6.13";
/// Where the agent of a sandbox is said to listen.
const ENVD_PORT: u16 = 49983;

pub(crate) fn routes() -> Router<App> {
    control::routes().merge(templates::routes())
}

/// A request that names a sandbox is for what is inside of it.
pub(crate) async fn by_name(app: &App, request: Request) -> ControlFlow<Response, Request> {
    let named = match guest::named(app, &request) {
        Err(refused) => return Break(refused.into_response()),
        // Each in a place of its own: as much as the largest way takes, every request would have until it is answered.
        Ok(Some(named)) if named.port != ENVD_PORT => return Box::pin(ports::serve(app, &named, request)).await,
        Ok(Some(named)) => named,
        Ok(None) => {
            let peer = request.extensions().get::<Peer>().map(|peer| peer.address.ip());
            match guest::signed(app, peer, request.method().clone(), request.uri().clone()).await {
                Some(Ok(named)) => named,
                Some(Err(refused)) => return Break(refused.into_response()),
                None => return Continue(request),
            }
        }
    };
    Break(Box::pin(envd::serve(app, named, request)).await)
}
