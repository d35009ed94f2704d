//! What a sandbox is made from, by the name that a client gives.

use cabana_e2b_wire::TemplateRef;
use cabana_runtime::{Caller, Snapshot, SnapshotId, Wish};
use cabana_sandbox::Base;
use serde::{Deserialize, Serialize};

use super::super::{brought::Brought, refused::Refused, templates};
use crate::App;

/// Of a template that everybody expects: where nobody made it, it is the machine's own programs.
const USUAL: &str = "base";

/// Files, and what comes with them.
#[derive(Clone, Debug)]
pub(in super::super) struct Found {
    pub(in super::super) files: Files,
    pub(in super::super) brought: Brought,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum Files {
    /// The operator's, or the machine's own.
    Base(Base),
    Snapshot(SnapshotId),
}

impl Files {
    /// For a sandbox that begins with them.
    pub(in super::super) fn wish(&self) -> Wish {
        match self {
            Self::Base(base) => Wish { base: Some(base.clone()), ..Wish::default() },
            Self::Snapshot(snapshot) => Wish { snapshot: Some(*snapshot), ..Wish::default() },
        }
    }
}

impl Found {
    fn of_snapshot(snapshot: &Snapshot) -> Self {
        let brought = Brought::of_note(snapshot.about.note.as_deref());
        Self { files: Files::Snapshot(snapshot.id), brought }
    }
}

pub(in super::super) fn missing(template: &str) -> Refused {
    Refused::not_found(format!("template '{template}' not found"))
}

/// The tenant's own name comes before the operator's.
pub(in super::super) async fn find(app: &App, caller: &Caller, template: &str) -> Result<Found, Refused> {
    let named: TemplateRef = template.parse().map_err(|_| missing(template))?;
    if let Ok(id) = named.name.parse::<SnapshotId>() {
        let snapshot = app.runtime.snapshot(caller, id).await.map_err(|_| missing(template))?;
        return Ok(Found::of_snapshot(&snapshot));
    }
    if let Some(found) = templates::find(app, caller, &named).await? {
        return Ok(found);
    }
    if let Some(snapshot) = app.runtime.snapshot_named(caller, &named.name).await? {
        return Ok(Found::of_snapshot(&snapshot));
    }
    of_operator(app, &named.name).await?.ok_or_else(|| missing(template))
}

/// `None`: there is none.
pub(in super::super) async fn of_operator(app: &App, name: &str) -> Result<Option<Found>, Refused> {
    let (base, service) = match app.runtime.template(name).await {
        Ok(template) => (Base::Named(name.to_owned()), template.service),
        Err(_) if name == USUAL => (Base::Host, None),
        Err(_) => return Ok(None),
    };
    Ok(Some(Found { files: Files::Base(base), brought: Brought::of_service(service) }))
}
