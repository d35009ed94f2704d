//! Who asks: a key in a header, and what it opens.

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, HeaderName, HeaderValue, header, request::Parts},
};
use cabana_runtime::{Ask, Caller, Credential, Error, IdempotencyKey, Place, Role, Tenant, Token};

use crate::{
    App,
    answers::{self, OfTenant},
    error::Refused,
    failed_auth,
    listen::Peer,
};

/// Anybody with a valid key.
pub(crate) struct Reader(pub(crate) Caller);

/// Who may change sandboxes.
pub(crate) struct User(pub(crate) Caller);

/// Who may change sandboxes, and comes by WebSocket.
pub(crate) struct SocketUser(pub(crate) Caller);

/// The operator.
pub(crate) struct Admin(pub(crate) Caller);

/// What goes with a request that changes something: the key of a repeated one, and the lease that it is done under.
#[derive(Clone, Copy)]
pub(crate) struct Once {
    pub(crate) key: Option<IdempotencyKey>,
    pub(crate) lease: Option<Token>,
}

pub(crate) const FRONT: &str = "rest";

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// What a subprotocol begins with that is a key.
const KEY_PROTOCOL: &str = "cabana.key.";

pub(crate) fn ask(caller: Caller, place: Place, once: Once) -> Ask {
    Ask { caller, place, key: once.key, lease: once.lease, front: FRONT }
}

/// For what changes nothing.
pub(crate) fn look(caller: Caller, place: Place) -> Ask {
    Ask { caller, place, key: None, lease: None, front: FRONT }
}

async fn caller(parts: &Parts, app: &App, needs: Role) -> Result<Caller, Refused> {
    admitted(parts, app, key(&parts.headers), needs).await
}

/// For what reads the body next, and for what answers.
fn known(parts: &mut Parts, app: &App, caller: Caller) -> Result<Caller, Refused> {
    OfTenant::note(app, &mut parts.extensions, &caller.tenant)?;
    answers::check(app, &parts.method, &caller.tenant)?;
    Ok(caller)
}

pub(crate) async fn admitted(parts: &Parts, app: &App, key: Option<&str>, needs: Role) -> Result<Caller, Refused> {
    let key = key.ok_or(Error::Unauthorized)?;
    let caller = failed_auth::admit(parts, app, key).await?;
    if let Some(peer) = parts.extensions.get::<Peer>() {
        peer.note_key(&caller.tenant, caller.role)?;
    }
    caller.require(needs)?;
    match parts.headers.get("cabana-tenant") {
        None => Ok(caller),
        Some(tenant) => {
            let tenant = tenant.to_str().map_err(|_| Refused::invalid("Cabana-Tenant", "is no plain text"))?;
            let tenant = Tenant::new(tenant).map_err(|error| Refused::invalid("Cabana-Tenant", error))?;
            Ok(caller.acting_for(tenant)?)
        }
    }
}

fn key(headers: &HeaderMap) -> Option<&str> {
    if let Some(value) = headers.get(X_API_KEY) {
        return value.to_str().ok();
    }
    bearer(headers)
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    bearer_of(headers.get(header::AUTHORIZATION)?.to_str().ok()?)
}

fn bearer_of(value: &str) -> Option<&str> {
    let (scheme, key) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

fn own_in_header(headers: &HeaderMap) -> Option<&str> {
    headers.get(X_API_KEY)?.to_str().ok().filter(|key| Credential(key).has_form())
}

fn own_in_bearer(headers: &HeaderMap) -> Option<&str> {
    bearer(headers).filter(|key| Credential(key).has_form())
}

/// Whether the operator asks, for what is open to nobody else.
pub(crate) async fn is_operator(parts: &Parts, app: &App) -> bool {
    match key(&parts.headers) {
        Some(key) => failed_auth::admit(parts, app, key).await.is_ok_and(|caller| caller.role == Role::Admin),
        None => false,
    }
}

/// A key of ours, where the same headers may be somebody else's: what is no key of ours is none of our business.
pub(crate) fn own_key(headers: &HeaderMap) -> Option<&str> {
    own_in_header(headers).or_else(|| own_in_bearer(headers))
}

/// Of all values that there are, wherever a client may put a key.
pub(crate) fn without_own_key(headers: &mut HeaderMap) {
    let shows_key = |value: &str| {
        let is_key = |key: &str| Credential(key).has_form();
        value.split(',').any(|part| is_key(part.trim()) || bearer_of(part.trim()).is_some_and(is_key))
    };
    for name in [X_API_KEY, header::AUTHORIZATION] {
        rewrite(headers, &name, |value| (!shows_key(value)).then(|| value.to_owned()));
    }
    rewrite(headers, &header::SEC_WEBSOCKET_PROTOCOL, |value| {
        let others: Vec<&str> = value.split(',').filter(|one| !one.trim().starts_with(KEY_PROTOCOL)).collect();
        (!others.is_empty()).then(|| others.join(","))
    });
}

/// Each of its values anew, or none. One that is no text is left as it is: it is no key.
fn rewrite(headers: &mut HeaderMap, name: &HeaderName, anew: impl Fn(&str) -> Option<String>) {
    let values: Vec<HeaderValue> = headers.get_all(name).iter().cloned().collect();
    headers.remove(name);
    for value in values {
        let rewritten = match value.to_str() {
            Ok(text) => anew(text).and_then(|text| HeaderValue::try_from(text).ok()),
            Err(_) => Some(value),
        };
        if let Some(value) = rewritten {
            headers.append(name, value);
        }
    }
}

/// In a browser a WebSocket has no headers to set: there the key is a subprotocol, beside the one that is meant.
fn key_in_protocols(headers: &HeaderMap) -> Option<&str> {
    let all = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(',')).find_map(|protocol| protocol.trim().strip_prefix(KEY_PROTOCOL))
}

impl FromRequestParts<App> for Reader {
    type Rejection = Refused;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refused> {
        known(parts, app, caller(parts, app, Role::Read).await?).map(Self)
    }
}

impl FromRequestParts<App> for User {
    type Rejection = Refused;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refused> {
        known(parts, app, caller(parts, app, Role::Use).await?).map(Self)
    }
}

impl FromRequestParts<App> for SocketUser {
    type Rejection = Refused;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refused> {
        let key = key(&parts.headers).or_else(|| key_in_protocols(&parts.headers));
        admitted(parts, app, key, Role::Use).await.map(Self)
    }
}

impl FromRequestParts<App> for Admin {
    type Rejection = Refused;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refused> {
        known(parts, app, caller(parts, app, Role::Admin).await?).map(Self)
    }
}

impl FromRequestParts<App> for Once {
    type Rejection = Refused;
    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Refused> {
        let key = match parts.headers.get("idempotency-key").map(|value| value.as_bytes()) {
            Some([]) => return Err(Refused::invalid("Idempotency-Key", "is empty")),
            value => value.map(IdempotencyKey::new),
        };
        let lease =
            parts.headers.get("cabana-lease").map(|value| value.to_str().ok().and_then(|text| text.parse().ok()));
        match lease {
            Some(None) => Err(Refused::invalid("Cabana-Lease", "is no token of a lease")),
            lease => Ok(Self { key, lease: lease.flatten() }),
        }
    }
}
