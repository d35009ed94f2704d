//! Finding files and lines, and hearing of changes.

use std::time::Duration;

use axum::{extract::State, response::Response};
use cabana_runtime::{
    Error, Place,
    acts::files::{Search, SearchFor, Watch},
};
use cabana_sandbox::{Change, Depth, Error as SandboxError, Hit, WatchEvent};
use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    files::{EntryBody, at},
    types::id,
};
use crate::{
    App,
    auth::{Reader, look},
    error::{Answer, ErrorBody, Refused},
    extract::{Body, Path, Query},
    listen::Leaving,
    long_answer::{self, written_len},
    stream::{named, respond},
};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(search)).routes(routes!(watch))
}

const USUAL_HITS: u32 = 1000;
const MOST_HITS: u32 = 10_000;
const MOST_GLOBS: usize = 100;
const USUAL_TIME: u64 = 10_000;
const MOST_TIME: u64 = 60_000;
/// Of one line, and of all together as JSON: an answer is written and read as a whole.
const MOST_LINE: usize = 1024;
const MOST_BYTES: usize = 4 << 20;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SearchBody {
    /// Where to begin.
    #[serde(default)]
    path: String,
    user: Option<String>,
    /// Relative to the path. None at all means every file. A `!` before a glob leaves out what it matches.
    #[serde(default)]
    #[schema(example = json!(["**/*.py", "!tests/**"]))]
    globs: Vec<String>,
    /// A regular expression over lines. Without it, files are found.
    grep: Option<String>,
    /// Whether .gitignore and its like are honoured.
    #[serde(default = "yes")]
    ignore_files: bool,
    #[schema(minimum = 1, maximum = 10_000)]
    limit: Option<u32>,
    #[schema(minimum = 1, maximum = 60_000)]
    timeout_ms: Option<u64>,
}

fn yes() -> bool {
    true
}

#[derive(Serialize, ToSchema)]
struct HitsBody {
    hits: Vec<HitBody>,
    /// Why there may be more than this: `limit`, `time` or `size`. Absent when this is all.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut_off: Option<&'static str>,
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum HitBody {
    Line {
        path: String,
        line: u64,
        text: String,
        /// Whether the line is longer.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        longer: bool,
    },
    Entry(EntryBody),
}

impl HitBody {
    /// With about how many bytes it takes as JSON.
    fn of(hit: Hit) -> (Self, usize) {
        let len = |bytes: &[u8]| written_len(&String::from_utf8_lossy(bytes));
        match hit {
            Hit::Entry(info) => {
                let tags: usize =
                    info.tags.iter().map(|(name, value)| written_len(name) + written_len(value) + 64).sum();
                let link = info.link.as_ref().map_or(0, |link| len(&link.text));
                let size = 2 * len(info.path.as_bytes()) + link + tags + 200;
                (Self::Entry(info.into()), size)
            }
            Hit::Line { path, line, text } => {
                let shown = String::from_utf8_lossy(&text[..text.len().min(MOST_LINE)]).into_owned();
                let size = len(path.as_bytes()) + written_len(&shown) + 50;
                (Self::Line { path: path.to_string(), line, text: shown, longer: text.len() > MOST_LINE }, size)
            }
        }
    }
}

/// Files by name, or lines by what they say. What was left out for want of time or room is said.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/files/search", tag = "files", request_body = Option<SearchBody>, params(("sandbox" = String, Path, pattern = "^[a-z][a-z0-9]{15,20}$")), responses(
    (status = 200, body = HitsBody),
    (status = "default", body = ErrorBody),
))]
async fn search(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(sandbox): Path<String>,
    Body(body): Body<SearchBody>,
) -> Answer<Response> {
    let limit = within("limit", body.limit.unwrap_or(USUAL_HITS).into(), MOST_HITS.into())? as usize;
    let time = within("timeout_ms", body.timeout_ms.unwrap_or(USUAL_TIME), MOST_TIME)?;
    if body.globs.len() > MOST_GLOBS {
        return Err(Refused::invalid("globs", format!("must be at most {MOST_GLOBS}")));
    }
    let what = SearchFor {
        globs: body.globs,
        grep: body.grep,
        ignore_files: body.ignore_files,
        max_hits: limit as u32 + 1, // the one beyond tells that there is more
        budget: Duration::from_millis(time),
    };
    let search = Search { at: at(body.path, body.user)?, what };
    let mut memory = app.runtime.list_memory(&caller.tenant);
    let (_, mut found) = app.runtime.look(look(caller, Place::Sandbox(id(&sandbox)?)), search).await?;
    let (mut hits, mut bytes) = (Vec::new(), 0);
    let cut_off = 'all: loop {
        let batch = match found.next().await {
            None => break None,
            Some(Ok(batch)) => batch,
            Some(Err(SandboxError::TimedOut(_))) => break Some("time"),
            Some(Err(error)) => return Err(Error::from(error).into()),
        };
        for hit in batch {
            let (hit, size) = HitBody::of(hit);
            bytes += size;
            if hits.len() == limit || bytes > MOST_BYTES {
                break 'all Some(if hits.len() == limit { "limit" } else { "size" });
            }
            if !memory.grow(size) {
                return Err(Error::ListsTooLarge.into());
            }
            hits.push(hit);
        }
    };
    Ok(long_answer::json(memory, move || HitsBody { hits, cut_off }).await?)
}

fn within(field: &str, asked: u64, most: u64) -> Answer<u64> {
    match asked {
        0 => Err(Refused::invalid(field, format!("must be from 1 to {most}"))),
        asked if asked > most => Err(Refused::invalid(field, format!("must be from 1 to {most}"))),
        asked => Ok(asked),
    }
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct WatchQuery {
    /// A directory, relative to the sandbox's working directory, unless it is absolute; without it, that directory.
    #[serde(default)]
    path: String,
    /// Who inside looks at it.
    user: Option<String>,
    /// Whether all that is below it is watched too.
    #[serde(default)]
    below: bool,
}

#[derive(Serialize)]
struct Changed {
    /// `create`, `write`, `remove` or `chmod`.
    change: &'static str,
    path: String,
}

#[derive(Serialize)]
struct Renamed {
    from: String,
    to: String,
}

#[derive(Serialize)]
struct Nothing {}

/// Changes in a directory as server-sent events, from `start` on: `change`, `rename`, `overflow` (something was missed: look
/// again), and `error` at its end.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/files/watch", tag = "files", params(("sandbox" = String, Path, pattern = "^[a-z][a-z0-9]{15,20}$"), WatchQuery), responses(
    (status = 200, content_type = "text/event-stream"),
    (status = "default", body = ErrorBody),
))]
async fn watch(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(sandbox): Path<String>,
    Query(query): Query<WatchQuery>,
    Leaving(leaving): Leaving,
) -> Answer<Response> {
    let depth = if query.below { Depth::Below } else { Depth::Here };
    let watch = Watch { at: at(query.path, query.user)?, depth, describes: false };
    let seat = app.open_stream(&caller).await?;
    let (_, told) = app.runtime.look(look(caller, Place::Sandbox(id(&sandbox)?)), watch).await?;
    let told = told.map(|event| match event.map(|(event, _)| event) {
        Ok(WatchEvent::Changed(change, path)) => {
            let change = match change {
                Change::Create => "create",
                Change::Write => "write",
                Change::Remove => "remove",
                Change::Chmod => "chmod",
            };
            named("change", &Changed { change, path: path.to_string() })
        }
        Ok(WatchEvent::Renamed(from, to)) => named("rename", &Renamed { from: from.to_string(), to: to.to_string() }),
        Ok(WatchEvent::Overflow) => named("overflow", &Nothing {}),
        Err(error) => named("error", &Refused::from(error).body()),
    });
    Ok(respond(seat, stream::iter([named("start", &Nothing {})]).chain(told), leaving))
}
