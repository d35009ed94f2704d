//! Volumes: directories of a tenant that outlive its sandboxes.

use axum::{Json, extract::State, http::StatusCode};
use cabana_runtime::{
    Place, Time, Volume, VolumeName,
    acts::volume::{Create, Remove},
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::types::page;
use crate::{
    App,
    auth::{Once, Reader, User, ask},
    error::{Answer, ErrorBody, Refused},
    extract::{Body, Path, Query},
};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(get, remove))
}

/// A directory that any number of sandboxes may have mounted.
#[derive(Serialize, ToSchema)]
struct VolumeBody {
    #[schema(value_type = String, pattern = "^[a-z0-9][a-z0-9_.-]{0,62}$")]
    name: VolumeName,
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    /// What is in it takes so much of the disk, with 4 KiB for each name. Only where one is asked for alone: it is measured then.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

impl VolumeBody {
    fn of(volume: Volume) -> Self {
        Self { name: volume.name, created_at: volume.created, bytes: None }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewVolume {
    #[schema(pattern = "^[a-z0-9][a-z0-9_.-]{0,62}$")]
    name: String,
}

/// Makes an empty one. Sandboxes have it mounted by its name: `{"volume": "name"}`.
#[utoipa::path(post, path = "/v1/volumes", tag = "volumes", request_body = NewVolume, responses(
    (status = 201, body = VolumeBody),
    (status = "default", body = ErrorBody),
))]
async fn create(
    State(app): State<App>,
    User(caller): User,
    once: Once,
    Body(new): Body<NewVolume>,
) -> Answer<(StatusCode, Json<VolumeBody>)> {
    let (name, tenant) = (name(&new.name)?, caller.tenant.clone());
    let call = app.runtime.call(ask(caller, Place::Nowhere, once), Create(name.clone())).await?;
    let id = call.id();
    call.answer().await.map_err(|error| Refused::from(error).of_call(id))?;
    Ok((StatusCode::CREATED, Json(VolumeBody::of(app.runtime.volume(&tenant, &name).await?))))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Part {
    /// At most so many.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Where the last page ended: its `next_cursor`.
    cursor: Option<String>,
}

#[derive(Serialize, ToSchema)]
struct VolumesBody {
    volumes: Vec<VolumeBody>,
    next_cursor: Option<String>,
}

/// The tenant's volumes, by name.
#[utoipa::path(get, path = "/v1/volumes", tag = "volumes", params(Part), responses(
    (status = 200, body = VolumesBody),
    (status = "default", body = ErrorBody),
))]
async fn list(State(app): State<App>, Reader(caller): Reader, Query(part): Query<Part>) -> Answer<Json<VolumesBody>> {
    let page = page(part.limit, part.cursor)?;
    let limit = page.limit as usize;
    let volumes = app.runtime.volume_list(&caller.tenant, page).await?;
    let next_cursor = (volumes.len() == limit).then(|| volumes.last().map(Volume::cursor)).flatten();
    Ok(Json(VolumesBody { volumes: volumes.into_iter().map(VolumeBody::of).collect(), next_cursor }))
}

/// One volume, with what it takes of the disk.
#[utoipa::path(get, path = "/v1/volumes/{volume}", tag = "volumes", params(("volume" = String, Path)), responses(
    (status = 200, body = VolumeBody),
    (status = "default", body = ErrorBody),
))]
async fn get(State(app): State<App>, Reader(caller): Reader, Path(volume): Path<String>) -> Answer<Json<VolumeBody>> {
    let volume = app.runtime.volume(&caller.tenant, &name(&volume)?).await?;
    let bytes = app.runtime.volume_usage(&volume).await?;
    Ok(Json(VolumeBody { bytes: Some(bytes), ..VolumeBody::of(volume) }))
}

/// Ends it, with all that is in it. One that a sandbox has among its mounts stays.
#[utoipa::path(delete, path = "/v1/volumes/{volume}", tag = "volumes", params(("volume" = String, Path)), responses(
    (status = 204),
    (status = "default", body = ErrorBody),
))]
async fn remove(
    State(app): State<App>,
    User(caller): User,
    Path(volume): Path<String>,
    once: Once,
) -> Answer<StatusCode> {
    let call = app.runtime.call(ask(caller, Place::Nowhere, once), Remove(name(&volume)?)).await?;
    let id = call.id();
    call.answer().await.map_err(|error| Refused::from(error).of_call(id))?;
    Ok(StatusCode::NO_CONTENT)
}

fn name(text: &str) -> Answer<VolumeName> {
    VolumeName::new(text).map_err(|error| Refused::invalid("volume", error))
}
