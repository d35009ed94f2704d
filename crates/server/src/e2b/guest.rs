//! Which sandbox a request is for, and whether it may come in.

use std::net::IpAddr;

use axum::{
    extract::{Query, Request},
    http::{HeaderMap, Method, Uri, header},
};
use cabana_e2b_wire::{
    SandboxHost,
    files::FilesQuery,
    header as names,
    signature::{Grant, Operation, is_same},
};
use cabana_runtime::{Ask, Caller, Opens, Place, Record, SandboxId, SandboxState, Wanted};
use cabana_sandbox::User;

use super::{ENVD_PORT, kept::Kept, refused::Unreached};
use crate::{App, ports::authority};

/// What calls by this front say where they came from.
pub(super) const FRONT: &str = "e2b";

/// What a request names, before anybody has looked whether it is there.
pub(super) struct Named {
    pub(super) sandbox: SandboxId,
    pub(super) port: u16,
}

/// By header where the host is no name of a sandbox's; `None`: by neither.
pub(super) fn named(app: &App, request: &Request) -> Option<Named> {
    if let Some(domain) = app.options.preview_domain.as_deref()
        && let Some(host) = authority(request.uri(), request.headers())
        && let Some(SandboxHost { port, id }) = SandboxHost::parse(host.host(), domain)
    {
        // Other ports by host name are everybody's, and not this front's.
        return (port == ENVD_PORT).then_some(Named { sandbox: SandboxId::new(id.as_str()).ok()?, port });
    }
    let text = |name: &str| request.headers().get(name)?.to_str().ok();
    let sandbox = SandboxId::new(text(names::SANDBOX_ID)?).ok()?;
    let port = text(names::SANDBOX_PORT).map_or(Some(ENVD_PORT), |port| port.parse().ok())?;
    Some(Named { sandbox, port })
}

/// A URL of a file that was signed says nothing of its sandbox: it is the one whose token signed it.
pub(super) async fn signed(app: &App, peer: Option<IpAddr>, method: Method, uri: Uri) -> Option<Named> {
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
    let sandbox = app.signers.find(&app.runtime, peer, &grant, signature).await?;
    Some(Named { sandbox, port: ENVD_PORT })
}

/// A sandbox that a request may use.
pub(super) struct Guest {
    pub(super) record: Record,
    pub(super) wanted: Wanted,
    pub(super) kept: Kept,
    pub(super) caller: Caller,
    /// What its agent asks for.
    pub(super) token: String,
}

impl Guest {
    /// One that is there, and awake or woken by whoever comes. Whether they may come is asked next.
    pub(super) async fn find(app: &App, sandbox: &SandboxId) -> Result<Self, Unreached> {
        let gone = || Unreached::gone(sandbox);
        let (record, caller) = app.runtime.by_number(sandbox).await.map_err(|_| gone())?;
        let wanted = Wanted::of(&record).map_err(|_| gone())?;
        let kept = Kept::of(&wanted).ok_or_else(gone)?;
        let token = app.runtime.token(&record, Opens::Inside).await.map_err(|_| gone())?;
        use SandboxState as S;
        match record.state {
            S::Running | S::Provisioning | S::Waking => {}
            S::Deleting => return Err(gone()),
            _ if kept.auto_resume => {}
            _ => return Err(gone()),
        }
        Ok(Self { record, wanted, kept, caller, token })
    }

    /// Whether the header shows the token, where it asks for one.
    pub(super) fn admits(&self, headers: &HeaderMap) -> bool {
        let shown = headers.get(names::ACCESS_TOKEN).and_then(|value| value.to_str().ok());
        !self.kept.secure || shown.is_some_and(|shown| is_same(&self.token, shown))
    }

    pub(super) fn ask(&self) -> Ask {
        let place = Place::Sandbox(self.record.id.clone());
        Ask { caller: self.caller.clone(), place, key: None, lease: None, front: FRONT }
    }
}

/// Whom a call acts as. `Err`: what cannot be a name of a user.
pub(super) fn user(headers: &HeaderMap) -> Result<Option<User>, String> {
    let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let name = value.and_then(names::user_of_authorization);
    name.map(User::new).transpose().map_err(|error| error.to_string())
}
