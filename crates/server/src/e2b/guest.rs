//! Which sandbox a request is for, and whether it may come in.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::{Query, Request},
    http::{Extensions, HeaderMap, Method, Uri, header},
};
use cabana_e2b_wire::{
    SandboxHost,
    files::FilesQuery,
    header as names,
    signature::{Grant, Operation, is_same},
};
use cabana_runtime::{Ask, Caller, ExpectedToken, Opens, Place, Record, SandboxId, SandboxState};
use cabana_sandbox::User;

use super::{
    ENVD_PORT,
    kept::Kept,
    refused::{Refused, Unreached},
};
use crate::{
    App,
    listen::Peer,
    ports::{Way, authority},
    specs::Spec,
};

/// What calls by this front say where they came from.
pub(super) const FRONT: &str = "e2b";

/// What a request names, before anybody has looked whether it is there.
pub(super) struct Named {
    pub(super) sandbox: SandboxId,
    pub(super) port: u16,
    pub(super) way: Way,
}

/// By host name, or by headers where the host can have named none. `None`: by neither.
///
/// A host below the domain belongs to one sandbox alone, but for those that are everybody's: there headers name nothing, so that
/// no page of a sandbox leads to another one.
pub(super) fn named(app: &App, request: &Request) -> Result<Option<Named>, Refused> {
    let host = authority(request.uri(), request.headers());
    let (host, domain) = (host.as_ref().map_or("", |host| host.host()), app.options.preview_domain.as_deref());
    if let Some(SandboxHost { port, id }) = domain.and_then(|domain| SandboxHost::parse(host, domain)) {
        let sandbox = SandboxId::new(id.as_str()).ok();
        return Ok(sandbox.map(|sandbox| Named { sandbox, port, way: Way::Host }));
    }
    if domain.is_some_and(|domain| is_of_one(host, domain)) {
        return Ok(None);
    }
    let Some(sandbox) = only(request.headers(), names::SANDBOX_ID)? else { return Ok(None) };
    let sandbox = SandboxId::new(sandbox).map_err(|_| Refused::bad("Invalid sandbox ID"))?;
    let port = match only(request.headers(), names::SANDBOX_PORT)? {
        None => ENVD_PORT,
        Some(port) => {
            let port = port.parse().ok().filter(|port| *port != 0);
            port.ok_or_else(|| Refused::bad("Invalid sandbox port"))?
        }
    };
    Ok(Some(Named { sandbox, port, way: Way::Header }))
}

/// Whether the host is below the domain, and none of those that all sandboxes share.
fn is_of_one(host: &str, domain: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let label = host.strip_suffix(&domain.to_ascii_lowercase()).and_then(|below| below.strip_suffix('.'));
    label.is_some_and(|label| !matches!(label, "sandbox" | "api"))
}

/// Who says it twice may mean two: one for whoever is in front of us, and one for us.
fn only<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Refused> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => {
            value.to_str().map(Some).map_err(|_| Refused::bad(format!("the header {name} is no plain text")))
        }
        (Some(_), Some(_)) => Err(Refused::bad(format!("the header {name} is there more than once"))),
    }
}

/// A URL of a file that was signed says nothing of its sandbox: it is the one whose token signed it. `None`: it is no such URL;
/// `Err`: nobody signed it.
pub(super) async fn signed(
    app: &App,
    peer: Option<IpAddr>,
    method: Method,
    uri: Uri,
) -> Option<Result<Named, Refused>> {
    let operation = match method {
        Method::GET => Operation::Read,
        Method::POST => Operation::Write,
        _ => return None,
    };
    if uri.path() != "/files" {
        return None;
    }
    let Query(query) = Query::<FilesQuery>::try_from_uri(&uri).ok()?;
    let signature = query.signature.as_deref()?;
    let grant = Grant {
        path: query.path.as_deref().unwrap_or_default(),
        operation,
        user: query.username.as_deref(),
        expiration: query.signature_expiration,
    };
    let found = Box::pin(app.signers.find(&app.runtime, peer, &grant, signature)).await;
    Some(found.map(|sandbox| Named { sandbox, port: ENVD_PORT, way: Way::Header }))
}

/// A sandbox that a request may use.
pub(super) struct Guest {
    pub(super) record: Record,
    pub(super) spec: Arc<Spec>,
    pub(super) kept: Arc<Kept>,
    pub(super) caller: Caller,
    /// What its agent asks for.
    pub(super) token: ExpectedToken,
}

impl Guest {
    /// One that is there, and awake or woken by whoever comes. Whether they may come is asked next.
    pub(super) async fn find(app: &App, sandbox: &SandboxId) -> Result<Self, Unreached> {
        let guest = Self::known(app, sandbox).await.ok_or_else(|| Unreached::gone(sandbox))?;
        if guest.is_reachable() { Ok(guest) } else { Err(Unreached::gone(sandbox)) }
    }

    /// One that this front made, whatever it is now.
    pub(super) async fn known(app: &App, sandbox: &SandboxId) -> Option<Self> {
        let (record, caller, spec) = app.sandbox_by_number(sandbox).await.ok()?;
        let kept = spec.kept.clone()?;
        let token = app.runtime.expected_token(&record, Opens::Inside).await.ok()?;
        Some(Self { record, spec, kept, caller, token })
    }

    pub(super) fn is_reachable(&self) -> bool {
        match self.record.state {
            SandboxState::Deleting => false,
            state => is_awake(state) || self.kept.auto_resume,
        }
    }

    /// Whether the header shows the token, where it asks for one.
    pub(super) fn admits(&self, headers: &HeaderMap) -> bool {
        let shown = headers.get(names::ACCESS_TOKEN).and_then(|value| value.to_str().ok());
        !self.kept.secure || shown.is_some_and(|shown| is_same(self.token.as_secret(), shown))
    }

    /// One who may come in. Where no token is asked for that is everybody.
    pub(super) fn let_in(&self, extensions: &Extensions) {
        match self.kept.secure {
            true => Peer::let_in(extensions),
            false => Peer::visit(extensions),
        }
    }

    pub(super) fn ask(&self) -> Ask {
        let place = Place::Sandbox(self.record.id.clone());
        Ask { caller: self.caller.clone(), place, key: None, lease: None, front: FRONT }
    }
}

pub(super) fn is_awake(state: SandboxState) -> bool {
    use SandboxState as S;
    matches!(state, S::Running | S::Provisioning | S::Waking | S::Restoring)
}

/// Whom a call acts as. `Err`: what cannot be a name of a user.
pub(super) fn user(headers: &HeaderMap) -> Result<Option<User>, String> {
    let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let name = value.and_then(names::user_of_authorization);
    name.map(User::new).transpose().map_err(|error| error.to_string())
}
