//! `POST /files`: one file as the body, or several as the parts of a form.

use std::collections::BTreeMap;

use axum::{
    extract::Request,
    http::{HeaderMap, header},
    response::Response,
};
use bytes::Bytes;
use cabana_e2b_wire::{
    files::{FilesQuery, WrittenFile, WrittenType},
    metadata,
};
use cabana_runtime::{
    Code, Error, MemoryCharge,
    acts::files::{At, Write},
};
use cabana_sandbox::{Result as Piece, Stream, User, WriteMode};
use futures_util::{StreamExt, stream};
use tokio::sync::mpsc;

use super::{
    super::{
        super::{guest::Guest, refused::Refused},
        admission::Admission,
    },
    found,
    multipart::Form,
    of_path, user_of,
};
use crate::{
    App,
    error::Refused as Ours,
    linger::lingering,
    long_answer,
    rest::files_content::{length_of, received},
};

/// Pieces on their way from a form to a file.
const AHEAD: usize = 4;
/// Of one form. Each is a call, and an entry of the answer that is many times as long as what it was sent with.
const MAX_FILES: usize = 2048;

pub(super) async fn upload(
    app: &App,
    guest: &Guest,
    by: Admission,
    query: &FilesQuery,
    request: Request,
) -> Result<Response, Refused> {
    let headers = request.headers().clone();
    let writing = Writing { app, guest, by, user: user_of(guest, query, &headers)?, tags: tags(&headers)? };
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (tenant, body) = (&guest.caller.tenant, lingering(request.into_body()));
    let body = match text(header::CONTENT_ENCODING).to_ascii_lowercase().as_str() {
        "" | "identity" => received(by.seat(app, guest, length_of(&headers))?, body),
        "gzip" => app.gzip.unpack(tenant, received(by.seat(app, guest, None)?, body)),
        other => return Err(Refused::bad(format!("the encoding {other} is not known here"))),
    };
    let mut written = WrittenFiles { files: Vec::new(), memory: by.memory(app, guest), by };
    let kind = text(header::CONTENT_TYPE);
    if kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/octet-stream") {
        let path = query.path.as_deref().ok_or_else(|| Refused::bad("the query names no path"))?;
        let at = writing.at(path).await?;
        written.expect(&at, &writing.tags)?;
        written.files.push(writing.write(&at, body).await?);
        return written.answer().await;
    }
    let form = Form::new(kind, body).ok_or_else(|| Refused::bad(format!("{kind:?} is neither a form nor a file")))?;
    writing.write_all(query.path.as_deref(), form, &mut written).await?;
    written.answer().await
}

/// What is told of those that were written.
struct WrittenFiles {
    files: Vec<WrittenFile>,
    memory: MemoryCharge,
    by: Admission,
}

impl WrittenFiles {
    /// Before it is written.
    fn expect(&mut self, at: &At, tags: &BTreeMap<String, String>) -> Result<(), Refused> {
        let tags = tags.iter().map(|(name, value)| name.len() + value.len() + 64);
        let size = size_of::<WrittenFile>() + 2 * at.path.len() + tags.sum::<usize>();
        if self.memory.grow(size) { Ok(()) } else { Err(self.by.too_large().into()) }
    }

    async fn answer(self) -> Result<Response, Refused> {
        Ok(long_answer::json(self.memory.owed(), move || self.files).await?)
    }
}

/// What each header of its kind says of the file.
fn tags(headers: &HeaderMap) -> Result<BTreeMap<String, String>, Refused> {
    let mut tags = BTreeMap::new();
    for (name, value) in headers {
        let Some(key) = metadata::key_of_header(name.as_str()) else { continue };
        let value = value.to_str().map_err(|_| Refused::bad(format!("the metadata {key} is no plain text")))?;
        tags.insert(key, value.to_owned());
    }
    Ok(tags)
}

struct Writing<'a> {
    app: &'a App,
    guest: &'a Guest,
    by: Admission,
    user: Option<User>,
    tags: BTreeMap<String, String>,
}

impl Writing<'_> {
    async fn at(&self, path: &str) -> Result<At, Refused> {
        found(self.app, self.guest, self.by, self.user.clone(), path).await
    }

    /// The query names the only one; else each part names its own.
    async fn write_all(&self, path: Option<&str>, mut form: Form, written: &mut WrittenFiles) -> Result<(), Refused> {
        let broken = |error| Refused::from(Error::from(error));
        while let Some(head) = form.next_file().await.map_err(broken)? {
            if path.is_some() && !written.files.is_empty() {
                return Err(Refused::bad("the query names one path, and there are several files"));
            }
            if written.files.len() == MAX_FILES {
                let why = format!("a form has at most {MAX_FILES} files: send the others in another one");
                return Err(Ours::new(Code::TooLarge, why).into());
            }
            let named = path.map(str::to_owned).or(head.filename);
            let named = named.ok_or_else(|| Refused::bad("a part names no file"))?;
            let at = self.at(&named).await?;
            written.expect(&at, &self.tags)?;
            let (pass, mut passed) = mpsc::channel::<Piece<Bytes>>(AHEAD);
            let body = stream::poll_fn(move |cx| passed.poll_recv(cx)).boxed();
            let (_, file) = tokio::join!(part(&mut form, pass), self.write(&at, body));
            written.files.push(file?);
        }
        Ok(())
    }

    /// In place: that is what watchers of these clients know, and count.
    async fn write(&self, at: &At, body: Stream<Bytes>) -> Result<WrittenFile, Refused> {
        let write = Write {
            at: at.clone(),
            mode: WriteMode::InPlace,
            perm: None,
            len: None,
            parents: true,
            tags: Some(self.tags.clone()),
            body,
            held: 0,
        };
        let written = self.by.write(self.app, self.guest, write);
        let entry = written.await.map_err(|error| of_path(error, at))?.entry;
        Ok(WrittenFile { path: entry.path, name: entry.name, r#type: WrittenType::File, metadata: entry.tags })
    }
}

/// Whoever writes it may stop taking: the next part is found behind it anyway.
async fn part(form: &mut Form, pass: mpsc::Sender<Piece<Bytes>>) {
    loop {
        let piece = match form.piece().await {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => return,
            Err(error) => Err(error),
        };
        let is_last = piece.is_err();
        if pass.send(piece).await.is_err() || is_last {
            return;
        }
    }
}
