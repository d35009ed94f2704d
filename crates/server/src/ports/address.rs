//! Which port of which sandbox an address means.

use std::time::Duration;

use axum::http::{HeaderMap, Uri, header, uri::Authority};
use cabana_runtime::{SandboxId, Signed, Tenant};
use sha2::{Digest, Sha256};

use super::cookie::NAME;
use crate::{App, error::Answer, rest};

pub(crate) struct Door {
    pub(super) sandbox: SandboxId,
    /// Whose it is, as far as its host name says so.
    tenant: Option<TenantTag>,
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
        Self { sandbox, tenant: None, port, way, host: None, opened_by: &[], patience: Duration::ZERO }
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
        let Page { sandbox, tenant, port } = Page::of_host(host.host(), domain?)?;
        Some(Self { tenant, ..Self::new(sandbox, port, Way::Host) })
    }

    /// Whether its host name is that of this tenant's sandbox. The pages of two tenants have no origin in common.
    pub(super) fn is_of(&self, tenant: &Tenant) -> bool {
        self.way != Way::Host || self.tenant == TenantTag::of(&self.sandbox, tenant)
    }

    /// Whether a page of this origin belongs to the same sandbox.
    pub(super) fn is_own(&self, origin: &str, domain: Option<&str>) -> bool {
        self.way == Way::Host && Page::of_address(origin, domain).is_some_and(|page| self.has(&page))
    }

    /// Whether this page is that of another sandbox.
    pub(super) fn is_of_another(&self, page: &str, domain: Option<&str>) -> bool {
        Page::of_address(page, domain).is_some_and(|page| !self.has(&page))
    }

    fn has(&self, page: &Page) -> bool {
        page.sandbox == self.sandbox && (self.way != Way::Host || page.tenant == self.tenant)
    }
}

/// Stands for a tenant in the host names of its sandboxes whose ids are computed: two tenants can have the same.
#[derive(PartialEq, Eq)]
struct TenantTag(String);

impl TenantTag {
    const BYTES: usize = 8;

    /// None where the id is no other tenant's.
    fn of(sandbox: &SandboxId, tenant: &Tenant) -> Option<Self> {
        let digest = Sha256::digest(tenant.as_str());
        let tag = || digest.iter().take(Self::BYTES).map(|byte| format!("{byte:02x}")).collect();
        sandbox.is_computed().then(|| Self(tag()))
    }
}

/// What a host name of ours names: `{port}-{sandbox}` or `{port}-{sandbox}-{tenant}`.
struct Page {
    sandbox: SandboxId,
    tenant: Option<TenantTag>,
    port: u16,
}

impl Page {
    fn of_address(page: &str, domain: Option<&str>) -> Option<Self> {
        let host = page.parse::<Uri>().ok()?.into_parts().authority?;
        Self::of_host(host.host(), domain?)
    }

    fn of_host(host: &str, domain: &str) -> Option<Self> {
        let host = host.to_ascii_lowercase();
        let (port, name) = host.strip_suffix(domain)?.strip_suffix('.')?.split_once('-')?;
        let (sandbox, tenant) = name.split_once('-').map_or((name, None), |(sandbox, tag)| (sandbox, Some(tag)));
        let tenant = tenant.map(|tag| TenantTag(tag.to_owned()));
        Some(Self { sandbox: SandboxId::new(sandbox).ok()?, tenant, port: rest::port(port).ok()? })
    }
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
    let tenant = TenantTag::of(sandbox, &link.grant.tenant).map(|TenantTag(tag)| format!("-{tag}")).unwrap_or_default();
    (format!("{scheme}://{port}-{sandbox}{tenant}.{domain}{at}/?{NAME}={token}"), by_path)
}

/// Names below `localhost` lead to the client's own machine: they are of use only where the server is on it.
fn reaches(host: &str, domain: &str) -> bool {
    let is_local = |name: &str| name == "localhost" || name.ends_with(".localhost");
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let address = bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback());
    !is_local(domain) || is_local(host) || address
}
