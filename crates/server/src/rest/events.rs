//! What happens to sandboxes and tasks, as server-sent events.

use axum::{
    extract::State,
    response::{Response, sse::Event},
};
use cabana_runtime::{Announcement, Heard};
use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::types::id;
use crate::{
    App,
    auth::Reader,
    error::{Answer, ErrorBody},
    extract::Query,
    listen::Leaving,
    stream::{named, respond},
};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(events))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Which {
    /// Only what happens to this sandbox.
    sandbox: Option<String>,
}

#[derive(Serialize)]
struct Missed {
    count: u64,
}

/// What happens to the tenant's sandboxes and tasks from now on, as server-sent events.
///
/// Each is a message with `id`, `type`, `sandbox`, `at` and what belongs to its type. The event `ready` comes first: from then on
/// nothing passes unheard. A listener that is too slow hears `missed` with a `count`: then the lists say how things are.
#[utoipa::path(get, path = "/v1/events", tag = "events", params(Which), responses(
    (status = 200, content_type = "text/event-stream"),
    (status = "default", body = ErrorBody),
))]
async fn events(
    State(app): State<App>,
    Reader(caller): Reader,
    Query(which): Query<Which>,
    Leaving(leaving): Leaving,
) -> Answer<Response> {
    let sandbox = which.sandbox.as_deref().map(id).transpose()?;
    let listener = app.runtime.events(&caller, sandbox.as_ref()).await?;
    let seat = app.open_stream(&caller).await?;
    let heard = stream::unfold(listener, |mut listener| async move {
        let event = match listener.next().await? {
            Heard::Event(announcement) => told(&announcement),
            Heard::Missed(count) => named("missed", &Missed { count }),
        };
        Some((event, listener))
    });
    let ready = stream::once(std::future::ready(named("ready", &())));
    Ok(respond(seat, ready.chain(heard), leaving))
}

fn told(announcement: &Announcement) -> Event {
    Event::default().data(announcement.json()).id(announcement.body().id)
}
