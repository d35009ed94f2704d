//! What tenants build for themselves: steps that run in a sandbox, and a snapshot of what they leave.
//!
//! A build goes on without whoever asked for it. What a step left is kept under a digest of all up to it, so that the same steps
//! are not done twice.

mod copy;
mod image;
mod inside;
mod job;
mod log;
mod perform;
mod routes;
mod seats;
mod steps;
mod tags;
mod told;
mod upload;
mod words;

use cabana_e2b_wire::TemplateRef;
use cabana_runtime::{Build, BuildState, Caller, OwnTemplate, TemplateId, Tenant};
use serde::{Deserialize, Serialize};

pub use self::image::read_image;
pub(super) use self::routes::routes;
pub(crate) use self::seats::Builds;
use super::{
    brought::Brought,
    control::base::{Files, Found, missing},
    refused::Refused,
};
use crate::App;

/// What sandboxes of a build begin with.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Made {
    files: Files,
    brought: Brought,
}

/// By its id or its name. `None`: the tenant has none such.
pub(super) async fn own(app: &App, tenant: &Tenant, named: &TemplateRef) -> Result<Option<OwnTemplate>, Refused> {
    match named.name.parse::<TemplateId>() {
        Ok(id) => Ok(app.runtime.own_template(tenant, id).await.ok()),
        Err(_) => Ok(app.runtime.own_template_named(tenant, &named.name).await?),
    }
}

/// One that has to be there.
async fn owned(app: &App, tenant: &Tenant, template: &str) -> Result<(OwnTemplate, TemplateRef), Refused> {
    let named: TemplateRef = template.parse().map_err(|_| missing(template))?;
    let own = own(app, tenant, &named).await?.ok_or_else(|| missing(template))?;
    Ok((own, named))
}

async fn tagged(app: &App, tenant: &Tenant, own: &OwnTemplate, named: &TemplateRef) -> Result<Build, Refused> {
    let build = app.runtime.tagged(tenant, own.id, named.tag()).await?;
    let build = build.filter(|build| build.state == BuildState::Ready);
    build.ok_or_else(|| {
        Refused::not_found(format!("template '{}' has no build with the tag '{}'", own.name, named.tag()))
    })
}

/// `None`: the tenant has no template of this name.
pub(super) async fn find(app: &App, caller: &Caller, named: &TemplateRef) -> Result<Option<Found>, Refused> {
    let Some(own) = own(app, &caller.tenant, named).await? else { return Ok(None) };
    let build = tagged(app, &caller.tenant, &own, named).await?;
    let gone = || Refused::not_found(format!("the files of template '{named}' are gone: build it once more"));
    let made: Made = build.made.as_deref().and_then(|made| serde_json::from_str(made).ok()).ok_or_else(gone)?;
    if let Files::Snapshot(snapshot) = made.files {
        app.runtime.snapshot(caller, snapshot).await.map_err(|_| gone())?;
    }
    Ok(Some(Found { files: made.files, brought: made.brought }))
}
