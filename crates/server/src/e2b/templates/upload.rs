//! The files of a step: whether they are there, where they may be put, and how they come.

use axum::{
    Json,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, Uri},
};
use cabana_e2b_wire::control::FileUpload;
use cabana_runtime::{Ask, Hash, MOST_UPLOADED, Place, acts::build::Upload};

use super::{
    super::{guest::FRONT, refused::Refused},
    owned,
};
use crate::{
    App,
    auth::User,
    extract::Path,
    linger::lingering,
    listen::Peer,
    ports::{authority, is_secure},
    rest::files_content::{length_of, received},
};

/// The address is of the host that the client knows the server by.
pub(super) async fn link(
    State(app): State<App>,
    User(caller): User,
    Path((template, hash)): Path<(String, String)>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<(StatusCode, Json<FileUpload>), Refused> {
    caller.require_all_users()?;
    owned(&app, &caller.tenant, &template).await?;
    let hash: Hash = hash.parse()?;
    let host = authority(&uri, &headers).ok_or_else(|| Refused::bad("the request names no host"))?;
    let scheme = if is_secure(&app, &headers) { "https" } else { "http" };
    let token = app.runtime.upload_token(&caller, &hash).await?;
    let present = app.runtime.has_upload(&caller.tenant, &hash).await?;
    let url = Some(format!("{scheme}://{host}/e2b/uploads/{token}"));
    Ok((StatusCode::CREATED, Json(FileUpload { present, url })))
}

/// Whoever has the token may, and only what it is for.
pub(super) async fn put(
    State(app): State<App>,
    Path(token): Path<String>,
    request: Request,
) -> Result<StatusCode, Refused> {
    let (caller, hash) = app.runtime.open_upload(&token).await?;
    Peer::let_in(request.extensions());
    let length = length_of(request.headers());
    let body = lingering(request.into_body());
    if length.is_some_and(|length| length > MOST_UPLOADED) {
        drop(body); // it goes on to be read for a while, so that the answer is heard
        return Err(Refused::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the files of a step have at most {MOST_UPLOADED} bytes"),
        ));
    }
    let body = received(app.runtime.seat_incoming(&caller.tenant, length)?, body);
    let ask = Ask { caller, place: Place::Nowhere, key: None, lease: None, front: FRONT };
    app.runtime.upload_for_build(ask, Upload { hash, body }).await?;
    Ok(StatusCode::OK)
}
