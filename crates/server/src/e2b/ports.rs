//! What listens inside, on any port but the agent's.
//!
//! By host name it is the same place that our own links lead to, so whatever opens it there does so here too; beside that, a
//! sandbox of this front is open to whoever knows its id, or to those who show its token for traffic, as it was made.

use std::{ops::ControlFlow, time::Duration};

use axum::{
    extract::Request,
    http::HeaderMap,
    response::{IntoResponse, Response},
};
use cabana_e2b_wire::{header as names, signature::is_same};
use cabana_runtime::{Code, Opens, Visitor};

use super::{
    guest::{Guest, Named},
    refused::{Refused, Unreached},
    wakes::{Woken, wake},
};
use crate::{
    App,
    listen::Peer,
    ports::{Door, Way, authority, pass, shows_own},
};

/// What opens a sandbox of this front, and leads to it: none of it is for what is inside.
const OPENED_BY: [&str; 4] = [names::SANDBOX_ID, names::SANDBOX_PORT, names::TRAFFIC_ACCESS_TOKEN, names::ACCESS_TOKEN];

/// What was about to listen when its sandbox was put to rest goes on with that when the sandbox is woken, and has so long for it.
const PATIENCE: Duration = Duration::from_secs(5);

/// The request comes back where it is for a sandbox of ours by host name.
pub(super) async fn serve(app: &App, named: &Named, request: Request) -> ControlFlow<Response, Request> {
    let guest = Guest::known(app, &named.sandbox).await;
    let refused = match &guest {
        Some(guest) => match admit(app, guest, request.headers()).await {
            Ok(visitor) => {
                match visitor {
                    Visitor::InPublic(_) => Peer::visit(request.extensions()),
                    _ => Peer::let_in(request.extensions()),
                }
                return ControlFlow::Break(enter(app, guest, visitor, named, request).await);
            }
            Err(unreached) => unreached,
        },
        None => Unreached::gone(&named.sandbox),
    };
    let is_of_others = guest.is_none() && !is_by_sdk(named, request.headers());
    if named.way == Way::Host && (is_of_others || shows_own(request.uri(), request.headers())) {
        return ControlFlow::Continue(request);
    }
    ControlFlow::Break(refused.into_response())
}

/// Whoever says the same twice knows this protocol, and hears its words. What is not this front's and what is not there at all
/// are the same to them.
fn is_by_sdk(named: &Named, headers: &HeaderMap) -> bool {
    headers.get(names::SANDBOX_ID).is_some_and(|id| id == named.sandbox.as_str())
}

async fn admit(app: &App, guest: &Guest, headers: &HeaderMap) -> Result<Visitor, Unreached> {
    let (id, caller) = (&guest.record.id, guest.caller.clone());
    if !guest.is_reachable() {
        return Err(Unreached::gone(id));
    }
    if guest.kept.is_public() {
        return Ok(Visitor::InPublic(caller));
    }
    let token = app.runtime.expected_token(&guest.record, Opens::Ports).await.map_err(|_| Unreached::gone(id))?;
    match headers.get(names::TRAFFIC_ACCESS_TOKEN).map(|shown| shown.to_str().unwrap_or_default()) {
        Some(shown) if is_same(token.as_secret(), shown) => Ok(Visitor::ByToken(caller)),
        shown => Err(Unreached::closed_to_public(id, shown.is_some())),
    }
}

async fn enter(app: &App, guest: &Guest, visitor: Visitor, named: &Named, request: Request) -> Response {
    let (id, port) = (&guest.record.id, named.port);
    let patience = match wake(app, guest).await {
        Ok(Woken::Before) => Duration::ZERO,
        Ok(Woken::Now) => PATIENCE,
        Err(error) => return Refused::from(error).into_response(),
    };
    let masked = guest.kept.network.as_ref().and_then(|network| network.mask_request_host.as_ref());
    let host = match (masked, named.way) {
        (Some(masked), _) => Some(masked.replace("${PORT}", &port.to_string())),
        (None, Way::Host) => authority(request.uri(), request.headers()).map(|host| host.to_string()),
        (None, _) => None,
    };
    let door = Door::new(id.clone(), port, named.way).seen_as(host).opened_by(&OPENED_BY).waited_for(patience);
    let answer = pass(app, visitor, &door, request).await;
    answer.unwrap_or_else(|refused| match refused.told() {
        (_, Code::PortClosed, _) => Unreached::closed(id, port).into_response(),
        (_, Code::SandboxNotFound, _) => Unreached::gone(id).into_response(),
        told => Refused::from(told).into_response(),
    })
}
