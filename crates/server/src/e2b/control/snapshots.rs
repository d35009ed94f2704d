//! Snapshots, which are templates to whoever makes something from them.

use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
    http::{HeaderMap, HeaderValue, StatusCode},
};
use cabana_e2b_wire::{
    DEFAULT_TAG, TemplateRef,
    control::{ListSnapshots, NewSnapshot, SnapshotInfo},
    header,
};
use cabana_runtime::{
    AboutSnapshot, Ask, Caller, Page, Place, SandboxId, Snapshot, SnapshotId,
    acts::snapshot::{Delete, Take},
};

use super::{
    super::{guest::FRONT, refused::Refused},
    one::One,
};
use crate::{
    App,
    auth::{Reader, User},
    extract::{Body, Path},
};

const MOST: u32 = 100;

fn info(snapshot: &Snapshot) -> SnapshotInfo {
    let names = snapshot.about.name.iter().map(|name| format!("{name}:{DEFAULT_TAG}")).collect();
    SnapshotInfo { snapshot_id: snapshot.id.to_string(), names }
}

/// Its files; the memory of what runs is in none of ours.
pub(super) async fn take(
    State(app): State<App>,
    User(caller): User,
    Path(sandbox): Path<String>,
    Body(asked): Body<NewSnapshot>,
) -> Result<(StatusCode, Json<SnapshotInfo>), Refused> {
    let named = asked.name.as_deref().map(str::parse::<TemplateRef>).transpose();
    let named = named.map_err(|error| Refused::bad(format!("name: {error}")))?;
    let one = One::find(&app, caller.clone(), &sandbox).await?;
    let about = AboutSnapshot { name: named.map(|named| named.name), note: one.kept.brought.note(), built: false };
    let taken = one.call(Take { about }).await?;
    let snapshot = app.runtime.snapshot(&caller, taken.snapshot).await?;
    Ok((StatusCode::CREATED, Json(info(&snapshot))))
}

/// The newest first.
pub(super) async fn list(
    State(app): State<App>,
    Reader(caller): Reader,
    query: Result<Query<ListSnapshots>, QueryRejection>,
) -> Result<(HeaderMap, Json<Vec<SnapshotInfo>>), Refused> {
    let Query(asked) = query.map_err(|error| Refused::bad(error.body_text()))?;
    let limit = asked.limit.unwrap_or(MOST);
    if !(1..=MOST).contains(&limit) {
        return Err(Refused::bad(format!("limit must be from 1 to {MOST}")));
    }
    let not_ours = || Refused::bad("nextToken is none of ours");
    let after: Option<SnapshotId> = asked.next_token.as_deref().map(str::parse).transpose().map_err(|_| not_ours())?;
    let sandbox = match asked.sandbox_id.as_deref().map(SandboxId::new) {
        Some(Err(_)) => return Ok(Default::default()), // nothing is of what can be no sandbox
        Some(Ok(sandbox)) => Some(sandbox),
        None => None,
    };
    let mut found = match asked.name.as_deref().map(str::parse::<TemplateRef>) {
        Some(Err(_)) => return Ok(Default::default()),
        Some(Ok(named)) => {
            let mut found = app.runtime.snapshots_named(&caller, &named.name).await?;
            found.retain(|snapshot| {
                after.is_none_or(|after| snapshot.id < after)
                    && sandbox.as_ref().is_none_or(|sandbox| snapshot.sandbox == *sandbox)
            });
            found
        }
        None => {
            let page = Page { limit: limit + 1, after: after.map(|after| after.to_string()) };
            app.runtime.snapshot_list(&caller, sandbox.as_ref(), page).await?
        }
    };
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let mut headers = HeaderMap::new();
    if let Some(last) = found.last().filter(|_| more)
        && let Ok(token) = HeaderValue::from_str(&last.id.to_string())
    {
        headers.insert(header::NEXT_TOKEN, token);
    }
    Ok((headers, Json(found.iter().map(info).collect())))
}

/// By its id it is one, by its name all of them. False: there is none.
pub(in super::super) async fn remove(app: &App, caller: &Caller, named: &TemplateRef) -> Result<bool, Refused> {
    let found = match named.name.parse::<SnapshotId>() {
        Ok(id) => app.runtime.snapshot(caller, id).await.ok().into_iter().collect(),
        Err(_) => app.runtime.snapshots_named(caller, &named.name).await?,
    };
    for snapshot in &found {
        delete(app, caller, snapshot.id).await?;
    }
    Ok(!found.is_empty())
}

async fn delete(app: &App, caller: &Caller, snapshot: SnapshotId) -> Result<(), Refused> {
    let ask = Ask { caller: caller.clone(), place: Place::Nowhere, key: None, lease: None, front: FRONT };
    Ok(app.runtime.call(ask, Delete(snapshot)).await?.answer().await?)
}
