//! Tags: names that lead from a template to one of its builds.

use axum::{Json, extract::State, http::StatusCode};
use cabana_e2b_wire::{
    control::{AssignTags, AssignedTags, RemoveTags, TemplateTag},
    is_plain,
};
use cabana_runtime::{
    Ask, Caller, Place,
    acts::build::{Tag, Untag},
};

use super::{
    super::{guest::FRONT, refused::Refused},
    owned, tagged,
};
use crate::{
    App,
    auth::{Reader, User},
    extract::{Body, Path},
};

/// At once.
const MOST: usize = 50;

pub(super) fn check(tags: &[String]) -> Result<(), Refused> {
    if tags.len() > MOST {
        return Err(Refused::bad(format!("at most {MOST} tags at once")));
    }
    match tags.iter().find(|tag| !is_plain(tag)) {
        Some(bad) => Err(Refused::bad(format!(
            "{bad:?} is no tag: 1 to 128 letters, digits, dots, dashes and underscores, a letter or a digit first"
        ))),
        None => Ok(()),
    }
}

pub(super) fn nowhere(caller: Caller) -> Ask {
    Ask { caller, place: Place::Nowhere, key: None, lease: None, front: FRONT }
}

pub(super) async fn assign(
    State(app): State<App>,
    User(caller): User,
    Body(asked): Body<AssignTags>,
) -> Result<(StatusCode, Json<AssignedTags>), Refused> {
    caller.require_all_users()?;
    check(&asked.tags)?;
    let (own, named) = owned(&app, &caller.tenant, &asked.target).await?;
    let build = tagged(&app, &caller.tenant, &own, &named).await?;
    let tag = Tag { build: build.id, tags: asked.tags.clone() };
    app.runtime.call(nowhere(caller), tag).await?.answer().await?;
    Ok((StatusCode::CREATED, Json(AssignedTags { tags: asked.tags, build_id: build.id.uuid().to_string() })))
}

pub(super) async fn remove(
    State(app): State<App>,
    User(caller): User,
    Body(asked): Body<RemoveTags>,
) -> Result<StatusCode, Refused> {
    caller.require_all_users()?;
    check(&asked.tags)?;
    let (own, _) = owned(&app, &caller.tenant, &asked.name).await?;
    let gone = app.runtime.call(nowhere(caller), Untag { template: own.id, tags: asked.tags.clone() }).await?;
    match gone.answer().await? {
        0 if !asked.tags.is_empty() => {
            Err(Refused::not_found(format!("template '{}' has none of the tags {}", own.name, asked.tags.join(", "))))
        }
        _ => Ok(StatusCode::NO_CONTENT),
    }
}

pub(super) async fn list(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(template): Path<String>,
) -> Result<Json<Vec<TemplateTag>>, Refused> {
    let (own, _) = owned(&app, &caller.tenant, &template).await?;
    let tags = app.runtime.build_tags(&caller.tenant, own.id).await?;
    let told = tags.into_iter().map(|tag| TemplateTag {
        tag: tag.tag,
        build_id: tag.build.uuid().to_string(),
        created_at: tag.created,
    });
    Ok(Json(told.collect()))
}
