//! What files hold: up, down, and a folder as one archive.

use std::time::Duration;

use axum::{
    Json,
    body::Body as HttpBody,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    middleware::from_fn,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use cabana_runtime::{
    Ask, Caller, IncomingSeat, Place, Runtime,
    acts::files::{Alter, At, Opened, Part, Read, Step, Write, Zip},
};
use cabana_sandbox::{Error as SandboxError, SandboxPath, Stream, WriteMode};
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    files::{AtQuery, EntryBody, alter, at, octal},
    files_range::{self, Sent, etag},
    types::id,
};
use crate::{
    App,
    auth::{Once, Reader, User, ask, look},
    error::{Answer, ErrorBody, Refused},
    extract::{Path, Query},
    linger::linger,
};

/// Between two pieces of a body. Who sends nothing for so long has gone away.
const STALLED: Duration = Duration::from_secs(60);

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(get, put, remove)).layer(from_fn(linger)).routes(routes!(archive))
}

/// What a file holds. Takes `Range` (one range), `If-Range` and `If-None-Match`.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/files", tag = "files", params(("sandbox" = String, Path, pattern = "^[a-z][a-z0-9]{15,20}$"), AtQuery), responses(
    (status = 200, content_type = "application/octet-stream"),
    (status = 206, content_type = "application/octet-stream"),
    (status = 304),
    (status = "default", body = ErrorBody),
))]
async fn get(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(sandbox): Path<String>,
    Query(query): Query<AtQuery>,
    headers: HeaderMap,
) -> Answer<Response> {
    let (at, place) = (query.at()?, Place::Sandbox(id(&sandbox)?));
    let read = |part| app.runtime.look(look(caller.clone(), place.clone()), Read { at: at.clone(), part });
    let mut part = files_range::asked(&headers);
    let mut opened = read(part).await?.1;
    if part != Part::Whole && files_range::is_of_another(&headers, &opened.info) {
        part = Part::Whole;
        opened = read(part).await?.1;
    }
    if files_range::is_known(&headers, &opened.info) {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, etag(&opened.info))]).into_response());
    }
    sent(part, opened).await
}

/// A file from here on, or a part of it.
pub(crate) async fn sent(part: Part, opened: Opened) -> Answer<Response> {
    let Opened { info, from, mut body } = opened;
    let (status, length, range) = match files_range::sent(part, from, info.size) {
        Sent::Whole if info.size == 0 => {
            // Files of the kernel's own have no size: how long one is, its end tells.
            let first = body.next().await;
            let empty = first.is_none();
            body = stream::iter(first).chain(body).boxed();
            (StatusCode::OK, empty.then_some(0), None)
        }
        Sent::Whole => (StatusCode::OK, Some(info.size), None),
        Sent::Part { length, range } => (StatusCode::PARTIAL_CONTENT, Some(length), Some(range)),
        Sent::Nothing { range } => {
            let refused = Refused::invalid("Range", format!("the file has {} bytes", info.size));
            let mut response = refused.into_response();
            *response.status_mut() = StatusCode::RANGE_NOT_SATISFIABLE;
            response.headers_mut().insert(header::CONTENT_RANGE, range);
            return Ok(response);
        }
    };
    let body = match length {
        Some(length) => exactly(body, length, info.path.clone()),
        None => body,
    };
    let about = [(header::ETAG, etag(&info)), (header::CACHE_CONTROL, "private, no-cache".to_owned())];
    let mut response = (status, about, download(&info.path, "", body)).into_response();
    response.headers_mut().insert(header::ACCEPT_RANGES, header::HeaderValue::from_static("bytes"));
    if let Some(length) = length {
        response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    }
    if let Some(range) = range {
        response.headers_mut().insert(header::CONTENT_RANGE, range);
    }
    Ok(response)
}

/// No more than was promised; and less is an error, which breaks the answer off where it would look whole.
fn exactly(body: Stream<Bytes>, length: u64, path: SandboxPath) -> Stream<Bytes> {
    let counted = stream::try_unfold((body, length, path), |(mut body, left, path)| async move {
        if left == 0 {
            return Ok(None);
        }
        let Some(mut bytes) = body.next().await.transpose()? else {
            return Err(SandboxError::failed("reading", format!("{path} became shorter while it was sent")));
        };
        bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        let left = left - bytes.len() as u64;
        Ok(Some((bytes, (body, left, path))))
    });
    counted.boxed()
}

/// Never as a page: what is in a sandbox is nobody's to run in a browser.
fn download(path: &SandboxPath, ending: &str, body: Stream<Bytes>) -> Response {
    let name = if path.is_root() { "root".to_owned() } else { String::from_utf8_lossy(path.name()).into_owned() };
    let headers = [
        (
            header::CONTENT_TYPE,
            if ending == ".zip" { "application/zip" } else { "application/octet-stream" }.to_owned(),
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (header::CONTENT_DISPOSITION, disposition(&(name + ending))),
    ];
    (headers, HttpBody::from_stream(body)).into_response()
}

/// The name twice: in letters that every client knows, and as it is (RFC 6266).
fn disposition(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '%') || c == ' ' { c } else { '_' };
    let simple: String = name.chars().map(plain).collect();
    let mut exact = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => exact.push(char::from(byte)),
            byte => exact.push_str(&format!("%{byte:02X}")),
        }
    }
    format!("attachment; filename=\"{simple}\"; filename*=UTF-8''{exact}")
}

/// A folder as a ZIP.
pub(super) async fn zipped(runtime: &Runtime, asked: Ask, at: At) -> Answer<Response> {
    let (_, (dir, mut archive)) = runtime.look(asked, Zip(at)).await?;
    // What cannot even be begun is refused, and is no answer that breaks off.
    let first = archive.try_next().await.map_err(cabana_runtime::Error::from)?;
    Ok(download(&dir, ".zip", stream::iter(first.map(Ok)).chain(archive).boxed()))
}

/// A folder with all that is below it, as a ZIP. One that ends without its table of contents broke off. Links that lead out of the folder are left out, and in
/// names `\\`, control characters and the colon of a drive are written as in a URL (`%5C`): where it is unpacked, they could lead elsewhere.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/files/zip", tag = "files", params(("sandbox" = String, Path, pattern = "^[a-z][a-z0-9]{15,20}$"), AtQuery), responses(
    (status = 200, content_type = "application/zip"),
    (status = "default", body = ErrorBody),
))]
async fn archive(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(sandbox): Path<String>,
    Query(query): Query<AtQuery>,
) -> Answer<Response> {
    zipped(&app.runtime, look(caller, Place::Sandbox(id(&sandbox)?)), query.at()?).await
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct PutQuery {
    /// Relative to the sandbox's working directory, unless it is absolute.
    #[serde(default)]
    path: String,
    /// Who inside writes it.
    user: Option<String>,
    /// `replace` (all or nothing, the usual), `in_place`, `append` or `create_new`.
    mode: Option<String>,
    /// Permission bits in octal digits. Without it a new file has 0644, and one that is there keeps its own.
    perm: Option<String>,
    /// Whether directories above it are made where they are missing.
    #[serde(default)]
    parents: bool,
}

/// Writes a file: the body is what it holds. One that breaks off leaves what was there, unless the mode says otherwise.
#[utoipa::path(put, path = "/v1/sandboxes/{sandbox}/files", tag = "files", params(("sandbox" = String, Path, pattern = "^[a-z][a-z0-9]{15,20}$"), PutQuery), request_body(content = String, content_type = "application/octet-stream"), responses(
    (status = 200, body = EntryBody),
    (status = "default", body = ErrorBody),
))]
async fn put(
    State(app): State<App>,
    User(caller): User,
    Path(sandbox): Path<String>,
    Query(query): Query<PutQuery>,
    once: Once,
    headers: HeaderMap,
    body: HttpBody,
) -> Answer<Json<EntryBody>> {
    let mode = match query.mode.as_deref() {
        None | Some("replace") => WriteMode::Replace,
        Some("in_place") => WriteMode::InPlace,
        Some("append") => WriteMode::Append,
        Some("create_new") => WriteMode::CreateNew,
        Some(_) => return Err(Refused::invalid("mode", "is `replace`, `in_place`, `append` or `create_new`")),
    };
    let len = length_of(&headers);
    let write = Write {
        at: at(query.path, query.user)?,
        mode,
        perm: query.perm.as_deref().map(|perm| octal("perm", perm)).transpose()?,
        len,
        parents: query.parents,
        tags: None,
        body: received(app.runtime.seat_incoming(&caller.tenant, len)?, body),
        held: 0,
    };
    write_file(&app, caller, Place::Sandbox(id(&sandbox)?), once, write).await.map(Json)
}

pub(super) async fn write_file(app: &App, caller: Caller, place: Place, once: Once, write: Write) -> Answer<EntryBody> {
    let call = app.runtime.call(ask(caller, place, once), write).await?;
    let id = call.id();
    Ok(call.answer().await.map_err(|error| Refused::from(error).of_call(id))?.entry.into())
}

/// A body as it comes, which has a seat as long as this is there.
pub(crate) fn received(seat: IncomingSeat, body: HttpBody) -> Stream<Bytes> {
    let pieces = stream::try_unfold((body.into_data_stream(), seat), |(mut body, seat)| async move {
        match tokio::time::timeout(STALLED, body.next()).await {
            Ok(None) => Ok(None),
            Ok(Some(Ok(bytes))) => Ok(Some((bytes, (body, seat)))),
            Ok(Some(Err(error))) => Err(SandboxError::invalid("body", format!("it broke off: {error}"))),
            Err(_) => {
                Err(SandboxError::invalid("body", format!("it stopped: nothing came for {} s", STALLED.as_secs())))
            }
        }
    });
    pieces.boxed()
}

/// As its client says it.
pub(crate) fn length_of(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct RemoveQuery {
    /// Relative to the sandbox's working directory, unless it is absolute.
    #[serde(default)]
    path: String,
    /// Who inside removes it.
    user: Option<String>,
    /// Whether a directory goes with all that is below it. Otherwise it must be empty.
    #[serde(default)]
    tree: bool,
}

/// Removes a file, a link or a directory.
#[utoipa::path(delete, path = "/v1/sandboxes/{sandbox}/files", tag = "files", params(("sandbox" = String, Path, pattern = "^[a-z][a-z0-9]{15,20}$"), RemoveQuery), responses(
    (status = 204),
    (status = "default", body = ErrorBody),
))]
async fn remove(
    State(app): State<App>,
    User(caller): User,
    Path(sandbox): Path<String>,
    Query(query): Query<RemoveQuery>,
    once: Once,
) -> Answer<StatusCode> {
    let alteration = Alter { at: at(query.path, query.user)?, step: Step::Remove { tree: query.tree } };
    alter(&app, caller, &sandbox, once, alteration).await
}
