//! Which port of which sandbox an address means.

use std::time::Duration;

use axum::http::{HeaderMap, Uri, header, uri::Authority};
use cabana_runtime::{SandboxId, Signed};

use super::cookie::NAME;
use crate::{App, error::Answer, rest};

pub(crate) struct Door {
    pub(super) sandbox: SandboxId,
    pub(super) port: u16,
    pub(super) way: Way,
    /// What the inside sees as the host; where nothing is said, itself.
    pub(super) host: Option<String>,
    /// Headers that open it and nothing else: they stay outside.
    pub(super) opened_by: &'static [&'static str],
    /// So long it may take until something listens there.
    pub(super) patience: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Path,
    Host,
    /// Another front's: nothing of the address says it.
    Header,
}

impl Door {
    pub(crate) fn new(sandbox: SandboxId, port: u16, way: Way) -> Self {
        Self { sandbox, port, way, host: None, opened_by: &[], patience: Duration::ZERO }
    }

    pub(crate) fn seen_as(self, host: Option<String>) -> Self {
        Self { host, ..self }
    }

    pub(crate) fn opened_by(self, headers: &'static [&'static str]) -> Self {
        Self { opened_by: headers, ..self }
    }

    pub(crate) fn waited_for(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    pub(super) fn of_path(path: &str) -> Answer<Self> {
        let mut parts = path.split('/').skip(2);
        let (sandbox, port) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        Ok(Self::new(rest::id(sandbox)?, rest::port(port)?, Way::Path))
    }

    pub(super) fn of_host(uri: &Uri, headers: &HeaderMap, domain: Option<&str>) -> Option<Self> {
        let host = authority(uri, headers)?;
        let (sandbox, port) = named(host.host(), domain?)?;
        Some(Self::new(sandbox, port, Way::Host))
    }

    /// Whether a page of this origin belongs to the same sandbox.
    pub(super) fn is_own(&self, origin: &str, domain: Option<&str>) -> bool {
        self.way == Way::Host && sandbox_of(origin, domain).is_some_and(|sandbox| sandbox == self.sandbox)
    }

    /// Whether this page is that of another sandbox.
    pub(super) fn is_of_another(&self, page: &str, domain: Option<&str>) -> bool {
        sandbox_of(page, domain).is_some_and(|sandbox| sandbox != self.sandbox)
    }
}

/// Whose page it is.
fn sandbox_of(page: &str, domain: Option<&str>) -> Option<SandboxId> {
    let host = page.parse::<Uri>().ok()?.into_parts().authority?;
    named(host.host(), domain?).map(|(sandbox, _)| sandbox)
}

fn named(host: &str, domain: &str) -> Option<(SandboxId, u16)> {
    let host = host.to_ascii_lowercase();
    let (port, sandbox) = host.strip_suffix(domain)?.strip_suffix('.')?.split_once('-')?;
    Some((SandboxId::new(sandbox).ok()?, rest::port(port).ok()?))
}

/// The name by which the client knows the server.
pub(crate) fn authority(uri: &Uri, headers: &HeaderMap) -> Option<Authority> {
    let of_header = || headers.get(header::HOST)?.to_str().ok()?.parse().ok();
    uri.authority().cloned().or_else(of_header)
}

/// Whether the client came by TLS: ours, or that of what stands in front.
pub(crate) fn is_secure(app: &App, headers: &HeaderMap) -> bool {
    app.options.secure || headers.get("x-forwarded-proto").is_some_and(|scheme| scheme == "https")
}

/// By host name where the client can have one, and by path.
pub(crate) fn link_urls(app: &App, host: &Authority, secure: bool, link: &Signed) -> (String, String) {
    let (scheme, token) = (if secure { "https" } else { "http" }, &link.token);
    let (sandbox, port) = (&link.grant.sandbox, link.grant.port);
    let by_path = format!("{scheme}://{host}/p/{sandbox}/{port}/?{NAME}={token}");
    let Some(domain) = app.options.preview_domain.as_deref().filter(|domain| reaches(host.host(), domain)) else {
        return (by_path.clone(), by_path);
    };
    let at = host.port().map(|port| format!(":{port}")).unwrap_or_default();
    (format!("{scheme}://{port}-{sandbox}.{domain}{at}/?{NAME}={token}"), by_path)
}

/// Names below `localhost` lead to the client's own machine: they are of use only where the server is on it.
fn reaches(host: &str, domain: &str) -> bool {
    let is_local = |name: &str| name == "localhost" || name.ends_with(".localhost");
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let address = bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback());
    !is_local(domain) || is_local(host) || address
}
