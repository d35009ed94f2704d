//! The files of a chat, for a platform that names app and chat and no user (FP-18, FP-19).

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use cabana_runtime::{
    Caller, Code, Error, MemoryCharge, Place,
    acts::files::{At, List, Listed, Opened, Part, Read, Write},
};
use cabana_sandbox::{FileInfo, Kind, WriteMode};
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::files_content::{sent, write_file, zipped};
use crate::{
    App,
    auth::{Once, User, look},
    error::{Answer, ErrorBody, Refused},
    extract::Body,
    long_answer,
};

/// What people are told when there is no sandbox to be had (FP-15).
const AWAY: &str = "沙盒服务暂时不可用,请稍后重试";
/// Of one directory: the answer has no pages.
const MOST_ENTRIES: usize = 10_000;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(file)).routes(routes!(download))
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct WhereBody {
    app_id: String,
    chat_id: String,
    /// Relative to the sandbox's working directory, unless it is absolute.
    #[serde(default)]
    #[schema(example = "/workspace")]
    path: String,
}

impl WhereBody {
    /// The user is asked for only where there is no sandbox yet, or where several have one.
    fn place(self, headers: &HeaderMap) -> Answer<(Place, At)> {
        let user = headers.get("cabana-user").map(|user| user.to_str().map(str::to_owned)).transpose();
        let user = user.map_err(|_| Refused::invalid("Cabana-User", "is no plain text"))?;
        Ok((Place::Chat { app: self.app_id, chat: self.chat_id, user }, At::new(self.path)))
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(tag = "action", rename_all = "lowercase")]
enum FileBody {
    List(WhereBody),
    Read(WhereBody),
    Write {
        #[serde(flatten)]
        place: WhereBody,
        content: String,
    },
}

#[derive(Serialize, ToSchema)]
#[serde(tag = "action", rename_all = "lowercase")]
enum FileTold {
    List { files: Vec<FileItem> },
    Read { content: String },
    Write { success: bool },
}

#[derive(Serialize, ToSchema)]
struct FileItem {
    name: String,
    path: String,
    /// `file` or `directory`. A link is what it leads to.
    r#type: &'static str,
    size: u64,
}

impl From<FileInfo> for FileItem {
    fn from(info: FileInfo) -> Self {
        let kind = info.link.and_then(|link| link.target).map_or(info.kind, |(_, kind, _)| kind);
        Self {
            name: String::from_utf8_lossy(info.path.name()).into_owned(),
            path: info.path.to_string(),
            r#type: if kind == Kind::Directory { "directory" } else { "file" },
            size: info.size,
        }
    }
}

/// What a client hears while there is no service: the error, with the exit code of a command that never ran.
#[derive(Serialize, ToSchema)]
struct AwayBody {
    #[serde(flatten)]
    error: ErrorBody,
    message: &'static str,
    #[serde(rename = "exitCode")]
    exit_code: i32,
}

fn told(answer: Answer<Response>) -> Response {
    let refused = match answer {
        Ok(response) => return response,
        Err(refused) => refused,
    };
    if refused.status() != StatusCode::SERVICE_UNAVAILABLE {
        return refused.into_response();
    }
    refused.saying(AWAY).respond(|error| AwayBody { error, message: AWAY, exit_code: -1 })
}

/// Lists a directory, reads a file or writes one, in the sandbox of a chat.
///
/// If the chat has none yet, it is made for the user of the header `Cabana-User` or the key's subject.
#[utoipa::path(post, path = "/api/core/ai/sandbox/file", tag = "files", request_body = FileBody, responses(
    (status = 200, body = FileTold),
    (status = 503, body = AwayBody),
    (status = "default", body = ErrorBody),
))]
async fn file(
    State(app): State<App>,
    User(caller): User,
    once: Once,
    headers: HeaderMap,
    Body(body): Body<FileBody>,
) -> Response {
    told(act(&app, caller, once, &headers, body).await)
}

async fn act(app: &App, caller: Caller, once: Once, headers: &HeaderMap, body: FileBody) -> Answer<Response> {
    match body {
        FileBody::List(place) => {
            let (place, at) = place.place(headers)?;
            let list = List { at, after: None, most: MOST_ENTRIES };
            let (_, Listed { entries, more, memory }) = app.runtime.look(look(caller, place), list).await?;
            if more {
                let message =
                    format!("the directory has more than {MOST_ENTRIES} entries, or they have too much to tell");
                return Err(Refused::new(Code::TooLarge, message));
            }
            let list = move || FileTold::List { files: entries.into_iter().map(Into::into).collect() };
            Ok(long_answer::json(memory, list).await?)
        }
        FileBody::Read(place) => {
            let (place, at) = place.place(headers)?;
            let (mut memory, most) = (app.runtime.list_memory(&caller.tenant), app.bounds.body);
            let (_, opened) = app.runtime.look(look(caller, place), Read { at, part: Part::Whole }).await?;
            let content = whole(opened, most, &mut memory).await?;
            long_answer::try_json(memory, move || Ok(FileTold::Read { content: text(content, most)? })).await
        }
        FileBody::Write { place, content } => {
            let (place, at) = place.place(headers)?;
            let content = Bytes::from(content);
            let (mode, held) = (WriteMode::Replace, content.len());
            let body = stream::iter([Ok(content)]).boxed();
            let write = Write { at, mode, perm: None, len: Some(held as u64), parents: true, tags: None, body, held };
            write_file(app, caller, place, once, write).await?;
            Ok(Json(FileTold::Write { success: true }).into_response())
        }
    }
}

async fn whole(mut opened: Opened, most: usize, memory: &mut MemoryCharge) -> Answer<Vec<u8>> {
    let mut whole = Vec::new();
    while let Some(bytes) = opened.body.try_next().await.map_err(Error::from)? {
        if whole.len() + bytes.len() > most {
            return Err(too_large(most));
        }
        if !memory.grow(bytes.len()) {
            return Err(Error::ListsTooLarge.into());
        }
        whole.extend_from_slice(&bytes);
    }
    Ok(whole)
}

/// What is no text is not told as one: a client that wrote it back would destroy it. Nor is what becomes far longer as JSON.
fn text(whole: Vec<u8>, most: usize) -> Answer<String> {
    let text = String::from_utf8(whole);
    let text = text.map_err(|_| Refused::invalid("path", "the file is no UTF-8 text: download it"))?;
    if long_answer::written_len(&text) > most.saturating_mul(2) { Err(too_large(most)) } else { Ok(text) }
}

fn too_large(most: usize) -> Refused {
    let message = format!("the file is larger than the {most} bytes of an answer: download it");
    Refused::new(Code::TooLarge, message)
}

/// A file of a chat's sandbox, or a directory as a ZIP.
#[utoipa::path(post, path = "/api/core/ai/sandbox/download", tag = "files", request_body = WhereBody, responses(
    (status = 200, content_type = "application/octet-stream"),
    (status = 503, body = AwayBody),
    (status = "default", body = ErrorBody),
))]
async fn download(
    State(app): State<App>,
    User(caller): User,
    headers: HeaderMap,
    Body(body): Body<WhereBody>,
) -> Response {
    told(fetch(&app, caller, &headers, body).await)
}

async fn fetch(app: &App, caller: Caller, headers: &HeaderMap, body: WhereBody) -> Answer<Response> {
    let (place, at) = body.place(headers)?;
    let read = Read { at: at.clone(), part: Part::Whole };
    match app.runtime.look(look(caller.clone(), place.clone()), read).await {
        Ok((_, opened)) => sent(Part::Whole, opened).await,
        Err(error) if error.code() == Code::IsDirectory => zipped(&app.runtime, look(caller, place), at).await,
        Err(error) => Err(error.into()),
    }
}
