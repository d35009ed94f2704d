//! `/files`: what files hold, down and up. A URL with a signature opens one file to whoever has it.

mod gzip;
mod multipart;
mod upload;

use axum::{
    extract::{Query, Request},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use cabana_e2b_wire::{
    control::ApiError,
    files::{FilesError, FilesQuery},
    header as names,
    signature::{Grant, Operation, authorize},
};
use cabana_runtime::{
    Code, Error,
    acts::files::{At, Part, Read},
};
use cabana_sandbox::User;

pub(crate) use self::gzip::Gzip;
use super::{
    super::{
        guest::{Guest, user},
        refused::Refused,
        wakes::wake,
    },
    admission::Admission,
    place::{Misplaced, at},
};
use crate::{
    App,
    rest::{files_content::sent, files_range},
};

pub(super) async fn serve(app: &App, guest: &Guest, request: Request) -> Response {
    let query = match Query::<FilesQuery>::try_from_uri(request.uri()) {
        Ok(Query(query)) => query,
        Err(error) => return Refused::bad(error.body_text()).into_response(),
    };
    let operation = if request.method() == Method::GET { Operation::Read } else { Operation::Write };
    let by = match admitted(app, guest, request.headers(), &query, operation) {
        Ok(by) => by,
        Err(error) => return of_files(error).into_response(),
    };
    guest.let_in(request.extensions());
    if let Err(error) = wake(app, guest).await {
        return Refused::from(error).into_response();
    }
    let served = match operation {
        Operation::Read => Box::pin(download(app, guest, by, request.headers(), &query)).await,
        Operation::Write => Box::pin(upload::upload(app, guest, by, &query, request)).await,
    };
    served.unwrap_or_else(IntoResponse::into_response)
}

fn admitted(
    app: &App,
    guest: &Guest,
    headers: &HeaderMap,
    query: &FilesQuery,
    operation: Operation,
) -> Result<Admission, FilesError> {
    let grant = Grant {
        path: query.path.as_deref().unwrap_or_default(),
        operation,
        user: query.username.as_deref(),
        expiration: query.signature_expiration,
    };
    let shown = headers.get(names::ACCESS_TOKEN).map(|value| value.to_str().unwrap_or_default());
    let token = guest.kept.secure.then_some(guest.token.as_secret());
    authorize(token, shown, &grant, query.signature.as_deref(), app.runtime.clock().now())?;
    Ok(if token.is_some() && shown.is_none() { Admission::Url } else { Admission::Token })
}

fn of_files(error: FilesError) -> Refused {
    let ApiError { code, message, .. } = error.into();
    Refused::new(
        StatusCode::try_from(u16::try_from(code).unwrap_or_default()).unwrap_or(StatusCode::BAD_REQUEST),
        message,
    )
}

/// Whom the query names, or the header as in all other calls.
///
/// A signature covers the query and no header. Whoever has only the URL would choose with the header in whose home its path begins.
fn user_of(guest: &Guest, query: &FilesQuery, headers: &HeaderMap) -> Result<Option<User>, Refused> {
    match &query.username {
        Some(name) => User::new(name.as_str()).map(Some).map_err(|_| of_files(FilesError::UnknownUser(name.clone()))),
        None if guest.admits(headers) => user(headers).map_err(Refused::bad),
        None => Ok(None),
    }
}

/// Which file is meant, in the words of its own errors.
async fn found(app: &App, guest: &Guest, by: Admission, user: Option<User>, path: &str) -> Result<At, Refused> {
    at(app, guest, by, user, path).await.map_err(|misplaced| match misplaced {
        Misplaced::Nobody(user) => of_files(FilesError::UnknownUser(user.to_string())),
        Misplaced::OfAnother(path) => Refused::bad(format!("cannot expand user-specific home directory in '{path}'")),
        Misplaced::Failed(error) => error.into(),
    })
}

fn of_path(error: Error, at: &At) -> Refused {
    match error.code() {
        Code::NotFound => of_files(FilesError::NotFound(at.path.clone())),
        Code::IsDirectory => of_files(FilesError::IsDirectory(at.path.clone())),
        Code::UnknownUser => {
            let user = at.user.as_ref().map(ToString::to_string).unwrap_or_default();
            of_files(FilesError::UnknownUser(user))
        }
        Code::NoSpace => of_files(FilesError::NoSpace),
        _ => error.into(),
    }
}

/// Packed where the client takes that, but for a part of it.
async fn download(
    app: &App,
    guest: &Guest,
    by: Admission,
    headers: &HeaderMap,
    query: &FilesQuery,
) -> Result<Response, Refused> {
    let path = query.path.as_deref().ok_or_else(|| Refused::bad("the query names no path"))?;
    let at = found(app, guest, by, user_of(guest, query, headers)?, path).await?;
    let part = files_range::asked(headers);
    let packs = match gzip::accepted(headers) {
        gzip::Accepted::Neither => return Err(of_files(FilesError::NotAcceptable)),
        gzip::Accepted::Plain => false,
        gzip::Accepted::Packed => part == Part::Whole,
    };
    let read = Read { at: at.clone(), part };
    let opened = by.read(app, guest, read).await.map_err(|error| of_path(error, &at))?;
    let name = String::from_utf8_lossy(opened.info.path.name()).into_owned();
    let mut response = sent(part, opened).await.map_err(Refused::from)?;
    let headers = response.headers_mut();
    if let Ok(shown) = HeaderValue::try_from(format!("inline; filename={}", quoted(&name))) {
        headers.insert(header::CONTENT_DISPOSITION, shown);
    }
    headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    Ok(if packs && response.status() == StatusCode::OK {
        app.gzip.pack(&guest.caller.tenant, response)
    } else {
        response
    })
}

fn quoted(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_graphic() && !matches!(c, '"' | '\\') || c == ' ' { c } else { '_' };
    format!("\"{}\"", name.chars().map(plain).collect::<String>())
}
