//! What listens inside, as a web server of its own: by path, `/p/{sandbox}/{port}/…`, or by host name,
//! `{port}-{sandbox}.{domain}`, with the tenant behind the sandbox where its id is computed.
//!
//! Only what was parsed is sent on, written anew as HTTP/1.1, without anything that opens our own doors. A page by path has our
//! origin, so browsers are told to give it none at all; one by host name has an origin of its own.

mod address;
mod admit;
mod cookie;
mod headers;
mod pieces;
mod relay;

use std::ops::ControlFlow;

use axum::{
    Router,
    extract::{Request, State},
    http::{Method, StatusCode, header},
    response::{IntoResponse, Response},
    routing::any,
};
use cabana_runtime::Visitor;

use self::admit::Admitted;
pub(crate) use self::{
    address::{Door, Way, authority, is_secure, link_urls},
    admit::shows_own,
};
use crate::{
    App,
    error::{Answer, Refused, no_method},
    listen::Peer,
};

pub(crate) fn routes() -> Router<App> {
    let by_path = || any(by_path);
    Router::new()
        .route("/p/{sandbox}/{port}", by_path())
        .route("/p/{sandbox}/{port}/", by_path())
        .route("/p/{sandbox}/{port}/{*rest}", by_path())
}

/// A host name that names a port has nothing of ours on it.
pub(crate) async fn by_host(app: &App, request: Request) -> ControlFlow<Response, Request> {
    match Door::of_host(request.uri(), request.headers(), app.options.preview_domain.as_deref()) {
        Some(door) => ControlFlow::Break(Box::pin(through(app, &door, request)).await.into_response()),
        None => ControlFlow::Continue(request),
    }
}

async fn by_path(State(app): State<App>, request: Request) -> Answer<Response> {
    let door = Door::of_path(request.uri().path())?;
    if request.uri().path() == door.prefix().trim_end_matches('/') {
        // Without the slash, the links of a page would lead elsewhere.
        let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
        let location = location(format!("{}{query}", door.prefix()))?;
        return Ok((StatusCode::PERMANENT_REDIRECT, [(header::LOCATION, location)]).into_response());
    }
    through(&app, &door, request).await
}

/// Of an address that a client is sent on to. It repeats what strangers say, and they need not take what they are told.
const LONGEST_LOCATION: usize = 2 << 10;

fn location(address: String) -> Answer<String> {
    let too_long = "too long to be sent on to where it leads: ask for that, which is without a link's token and ends the port with a slash";
    if address.len() <= LONGEST_LOCATION { Ok(address) } else { Err(Refused::invalid("address", too_long)) }
}

async fn through(app: &App, door: &Door, request: Request) -> Answer<Response> {
    let (parts, body) = request.into_parts();
    match admit::admit(app, door, &parts).await? {
        Admitted::Here(visitor) => {
            Peer::let_in(&parts.extensions);
            pass(app, visitor, door, Request::from_parts(parts, body)).await
        }
        Admitted::First(response) => Ok(response),
    }
}

/// For one who may come in.
pub(crate) async fn pass(app: &App, visitor: Visitor, door: &Door, request: Request) -> Answer<Response> {
    if matches!(*request.method(), Method::CONNECT | Method::TRACE) {
        return Err(no_method().await);
    }
    relay::relay(app, visitor, door, request).await
}

impl Door {
    /// Where its addresses begin.
    fn prefix(&self) -> String {
        match self.way {
            Way::Path => format!("/p/{}/{}/", self.sandbox, self.port),
            Way::Host | Way::Header => "/".to_owned(),
        }
    }
}

fn failed(port: u16, why: impl std::fmt::Display) -> Refused {
    Refused::new(cabana_runtime::Code::PortFailed, format!("what listens on port {port} gave no whole answer: {why}"))
}
