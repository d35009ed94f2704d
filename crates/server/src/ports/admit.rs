//! Who may come to a port: a key of the tenant, a link, or the cookie that a link became.

use axum::http::StatusCode;
use axum::{
    http::{HeaderMap, HeaderValue, Method, Uri, header, request::Parts},
    response::{IntoResponse, Response},
};
use cabana_runtime::{Error, Grant, Role, Tenant, Visitor};

use super::{
    address::{Door, Way, is_secure},
    cookie, headers, location,
};
use crate::{App, auth, error::Answer};

pub(super) enum Admitted {
    Here(Visitor),
    /// This answer comes before anything else.
    First(Response),
}

pub(super) async fn admit(app: &App, door: &Door, parts: &Parts) -> Answer<Admitted> {
    if let Some(token) = token(&parts.uri) {
        let (grant, visitor) = open_link(app, door, token).await?;
        let visits = matches!(parts.method, Method::GET | Method::HEAD) && !headers::is_websocket(parts);
        return Ok(if visits {
            Admitted::First(welcome(app, door, parts, token, &grant)?)
        } else {
            Admitted::Here(visitor)
        });
    }
    let key = auth::own_key(&parts.headers);
    if key.is_some() {
        let caller = auth::admitted(parts, app, key, Role::Use).await?;
        check_tenant(door, &caller.tenant)?;
        return Ok(Admitted::Here(Visitor::ByKey(caller)));
    }
    by_cookie(app, door, parts).await.map(Admitted::Here)
}

async fn open_link(app: &App, door: &Door, token: &str) -> Result<(Grant, Visitor), Error> {
    let (grant, visitor) = app.runtime.open_link(token, &door.sandbox, door.port).await?;
    check_tenant(door, &grant.tenant)?;
    Ok((grant, visitor))
}

fn check_tenant(door: &Door, tenant: &Tenant) -> Result<(), Error> {
    if door.is_of(tenant) { Ok(()) } else { Err(Error::NoSandbox(door.sandbox.clone())) }
}

/// Whether there is something that could open a port of ours.
pub(crate) fn shows_own(uri: &Uri, headers: &HeaderMap) -> bool {
    token(uri).is_some() || auth::own_key(headers).is_some() || cookie::tokens(headers).next().is_some()
}

fn token(uri: &Uri) -> Option<&str> {
    uri.query()?.split('&').find_map(|pair| pair.strip_prefix(cookie::NAME)?.strip_prefix('='))
}

/// The address without what a link adds to it.
pub(super) fn without_token(query: &str) -> String {
    let is_ours = |pair: &&str| pair.split('=').next() == Some(cookie::NAME);
    query.split('&').filter(|pair| !is_ours(pair)).collect::<Vec<_>>().join("&")
}

/// From now on the cookie opens the door, and the address can be shown to anybody.
fn welcome(app: &App, door: &Door, parts: &Parts, token: &str, grant: &Grant) -> Answer<Response> {
    let secure = is_secure(app, &parts.headers);
    let cookie = cookie::of_link(door, token, grant, app.runtime.clock().now(), secure);
    let query = parts.uri.query().map(without_token).filter(|query| !query.is_empty());
    // Two slashes of either kind at the beginning would name another host.
    let path = format!("/{}", parts.uri.path().trim_start_matches(['/', '\\']));
    let location = location(query.map_or(path.clone(), |query| format!("{path}?{query}")))?;
    let told = [(header::SET_COOKIE, cookie), (header::LOCATION, location)];
    let quiet = [(header::CACHE_CONTROL, "no-store"), (header::REFERRER_POLICY, "no-referrer")];
    Ok((StatusCode::FOUND, told, quiet).into_response())
}

async fn by_cookie(app: &App, door: &Door, parts: &Parts) -> Answer<Visitor> {
    let mut refused = Error::Unauthorized;
    if is_of_others(app, door, &parts.headers) {
        return Err(refused.into());
    }
    for token in cookie::tokens(&parts.headers) {
        match open_link(app, door, token).await {
            Ok((_, visitor)) => return Ok(visitor),
            Err(error) => refused = error,
        }
    }
    Err(refused.into())
}

/// A browser sends cookies along for the pages of others too: what those ask for is not what the cookie's owner asks for.
fn is_of_others(app: &App, door: &Door, headers: &HeaderMap) -> bool {
    let says = |name: &str| headers.get(name).map(HeaderValue::as_bytes);
    let domain = app.options.preview_domain.as_deref();
    if let Some(origin) = headers.get(header::ORIGIN) {
        let origin = origin.to_str().unwrap_or_default();
        return !(door.is_own(origin, domain) || door.way == Way::Path && is_here(origin, headers));
    }
    let from = headers.get(header::REFERER).map(|page| page.to_str().unwrap_or_default());
    let from_sandbox = from.is_some_and(|page| door.is_of_another(page, domain));
    match says("sec-fetch-site") {
        Some(b"same-site" | b"cross-site") => match (says("sec-fetch-mode"), says("sec-fetch-dest")) {
            (Some(b"navigate"), None | Some(b"document")) => false,
            // In a frame of another page, which can have it clicked. A platform shows what it made so; a sandbox can hide its own name, and have
            // no other one.
            (Some(b"navigate"), Some(_)) => from.is_none() || from_sandbox,
            _ => true,
        },
        Some(_) => false,
        // A browser says it by TLS and on one's own machine alone.
        None => from_sandbox,
    }
}

fn is_here(origin: &str, headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    origin.split_once("://").map(|(_, origin)| origin) == host
}
