//! The files of a sandbox: what is there, and changes of names and modes. A path is relative to the sandbox's working directory,
//! unless it is absolute; none at all is that directory itself.

use std::collections::BTreeMap;

use axum::{Json, extract::State, http::StatusCode, response::Response};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use cabana_runtime::{
    Caller, Place, Time,
    acts::files::{Alter, At, Entry, List, Listed, Stat, Step},
};
use cabana_sandbox::{FileInfo, Kind, User as Inside};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    files_content, files_search,
    types::{id, page},
};
use crate::{
    App,
    auth::{Once, Reader, User, ask, look},
    error::{Answer, ErrorBody, Refused},
    extract::{Body, Path, Query},
    long_answer,
};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .merge(files_content::routes())
        .routes(routes!(list))
        .routes(routes!(stat))
        .routes(routes!(make_dir))
        .routes(routes!(rename))
        .routes(routes!(set_mode))
        .merge(files_search::routes())
}

/// Which file.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct AtQuery {
    /// Relative to the sandbox's working directory, unless it is absolute; without it, that directory.
    #[serde(default)]
    path: String,
    /// Who inside looks for it.
    user: Option<String>,
}

impl AtQuery {
    pub(super) fn at(self) -> Answer<At> {
        at(self.path, self.user)
    }
}

pub(super) fn at(path: String, user: Option<String>) -> Answer<At> {
    let user = user.map(Inside::new).transpose().map_err(|error| Refused::invalid("user", error))?;
    Ok(At { user, ..At::new(path) })
}

/// Permission bits as people write them.
pub(super) fn octal(field: &str, text: &str) -> Answer<u32> {
    match u32::from_str_radix(text, 8) {
        Ok(mode @ 0..=0o7777) if text.bytes().all(|digit| digit.is_ascii_digit()) => Ok(mode),
        _ => Err(Refused::invalid(field, "must be octal digits up to 7777, as in 0644")),
    }
}

/// A file, a directory, or what else there is.
#[derive(Serialize, ToSchema)]
pub(super) struct EntryBody {
    name: String,
    path: String,
    /// `file`, `directory`, `symlink` or `other`.
    #[schema(example = "file")]
    r#type: &'static str,
    size: u64,
    /// Permission bits, in octal digits.
    #[schema(example = "0644")]
    mode: String,
    owner: String,
    group: String,
    #[schema(value_type = String, format = DateTime)]
    modified_at: Time,
    /// Of a link: where it points.
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    tags: BTreeMap<String, String>,
}

impl From<Entry> for EntryBody {
    fn from(entry: Entry) -> Self {
        let Entry { name, path, kind, size, mode, owner, group, modified, link, tags } = entry;
        let mode = format!("{mode:04o}");
        Self { name, path, r#type: name_of(kind), size, mode, owner, group, modified_at: modified, link, tags }
    }
}

impl From<FileInfo> for EntryBody {
    fn from(info: FileInfo) -> Self {
        Entry::from(info).into()
    }
}

fn name_of(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Directory => "directory",
        Kind::Symlink => "symlink",
        Kind::Other => "other",
    }
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    /// Relative to the sandbox's working directory, unless it is absolute; without it, that directory.
    #[serde(default)]
    path: String,
    /// Who inside looks for it.
    user: Option<String>,
    /// At most so many.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Where the last page ended: its `next_cursor`.
    cursor: Option<String>,
}

#[derive(Serialize, ToSchema)]
struct ListBody {
    entries: Vec<EntryBody>,
    next_cursor: Option<String>,
}

/// What is in a directory, by name.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/files/list", tag = "files", params(("sandbox" = String, Path, pattern = "^[a-z][a-z0-9]{15,20}$"), ListQuery), responses(
    (status = 200, body = ListBody),
    (status = "default", body = ErrorBody),
))]
async fn list(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(sandbox): Path<String>,
    Query(query): Query<ListQuery>,
) -> Answer<Response> {
    let (at, page) = (at(query.path, query.user)?, page(query.limit, query.cursor)?);
    let after = page.after.map(|cursor| URL_SAFE_NO_PAD.decode(cursor)).transpose();
    let after = after.map_err(|_| Refused::invalid("cursor", "is none that this list gave out"))?;
    let list = List { at, after, most: page.limit as usize };
    let place = Place::Sandbox(id(&sandbox)?);
    let (_, Listed { entries, more, memory }) = app.runtime.look(look(caller, place), list).await?;
    let last = entries.last().map(|entry| URL_SAFE_NO_PAD.encode(entry.path.name()));
    let next_cursor = last.filter(|_| more);
    let page = move || ListBody { entries: entries.into_iter().map(Into::into).collect(), next_cursor };
    Ok(long_answer::json(memory, page).await?)
}

/// One entry. A link is a link, and says where it points.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/files/stat", tag = "files", params(("sandbox" = String, Path, pattern = "^[a-z][a-z0-9]{15,20}$"), AtQuery), responses(
    (status = 200, body = EntryBody),
    (status = "default", body = ErrorBody),
))]
async fn stat(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(sandbox): Path<String>,
    Query(query): Query<AtQuery>,
) -> Answer<Json<EntryBody>> {
    let place = Place::Sandbox(id(&sandbox)?);
    let (_, entry) = app.runtime.look(look(caller, place), Stat(query.at()?)).await?;
    Ok(Json(entry.into()))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct MakeDirBody {
    #[serde(default)]
    path: String,
    user: Option<String>,
    /// Permission bits, in octal digits; 0755 if absent.
    #[schema(example = "0755")]
    mode: Option<String>,
    /// Whether those above it are made too, where they are missing. Then one that is there already is no error.
    #[serde(default)]
    parents: bool,
}

/// Makes a directory.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/files/mkdir", tag = "files", request_body = MakeDirBody, params(("sandbox" = String, Path, pattern = "^[a-z][a-z0-9]{15,20}$")), responses(
    (status = 204),
    (status = "default", body = ErrorBody),
))]
async fn make_dir(
    State(app): State<App>,
    User(caller): User,
    Path(sandbox): Path<String>,
    once: Once,
    Body(body): Body<MakeDirBody>,
) -> Answer<StatusCode> {
    let perm = body.mode.as_deref().map_or(Ok(0o755), |mode| octal("mode", mode))?;
    let step = Step::MakeDir { perm, parents: body.parents };
    alter(&app, caller, &sandbox, once, Alter { at: at(body.path, body.user)?, step }).await
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct MoveBody {
    #[serde(default)]
    path: String,
    /// Its new name. A file that is there is replaced.
    to: String,
    user: Option<String>,
}

/// Gives a file or a directory another name.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/files/move", tag = "files", request_body = MoveBody, params(("sandbox" = String, Path, pattern = "^[a-z][a-z0-9]{15,20}$")), responses(
    (status = 204),
    (status = "default", body = ErrorBody),
))]
async fn rename(
    State(app): State<App>,
    User(caller): User,
    Path(sandbox): Path<String>,
    once: Once,
    Body(body): Body<MoveBody>,
) -> Answer<StatusCode> {
    let alteration = Alter { at: at(body.path, body.user)?, step: Step::Move { to: body.to } };
    alter(&app, caller, &sandbox, once, alteration).await
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ModeBody {
    #[serde(default)]
    path: String,
    /// Permission bits, in octal digits.
    #[schema(example = "0755")]
    mode: String,
    user: Option<String>,
}

/// Sets permission bits.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/files/mode", tag = "files", request_body = ModeBody, params(("sandbox" = String, Path, pattern = "^[a-z][a-z0-9]{15,20}$")), responses(
    (status = 204),
    (status = "default", body = ErrorBody),
))]
async fn set_mode(
    State(app): State<App>,
    User(caller): User,
    Path(sandbox): Path<String>,
    once: Once,
    Body(body): Body<ModeBody>,
) -> Answer<StatusCode> {
    let step = Step::SetMode { mode: octal("mode", &body.mode)? };
    alter(&app, caller, &sandbox, once, Alter { at: at(body.path, body.user)?, step }).await
}

pub(super) async fn alter(
    app: &App,
    caller: Caller,
    sandbox: &str,
    once: Once,
    alteration: Alter,
) -> Answer<StatusCode> {
    let call = app.runtime.call(ask(caller, Place::Sandbox(id(sandbox)?), once), alteration).await?;
    let id = call.id();
    call.answer().await.map_err(|error| Refused::from(error).of_call(id))?;
    Ok(StatusCode::NO_CONTENT)
}
