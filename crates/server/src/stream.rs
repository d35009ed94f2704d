//! What a command says, as server-sent events.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use cabana_runtime::{Channel, Chunk, Log};
use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::seats::{StreamSeat, key_ended};

/// A chunk of one stream; `offset` is where it begins in it.
#[derive(Serialize)]
struct Said {
    offset: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    b64: Option<String>,
}

/// Of what is typed, on its way to a command.
pub(crate) const PIECE: usize = 16 << 10;

/// What is typed, for a channel to a command that may read slowly: no piece of it keeps the whole message in memory.
pub(crate) fn pieces(typed: &Bytes) -> impl Iterator<Item = Bytes> {
    typed.chunks(PIECE).map(Bytes::copy_from_slice)
}

/// `start`, then all that is said from there on, then what `last` says. One who only listens is sent away when the server
/// leaves, and goes on at the next one; one who waits for its own command has the command's time.
pub(crate) fn events<S: Serialize>(
    seat: StreamSeat,
    start: &S,
    log: &Arc<Log>,
    from: (u64, u64),
    last: impl Future<Output = Event> + Send + 'static,
    leaving: CancellationToken,
) -> Response {
    let said = seat.paced(log.follow(from.0, from.1), size_of_event).map(|chunk| match chunk {
        Ok(chunk) => said(&chunk),
        Err(error) => named("error", &cabana_runtime::Error::from(error).to_string()),
    });
    let all = stream::once(std::future::ready(named("start", start))).chain(said).chain(stream::once(last));
    respond(seat, all, leaving)
}

pub(crate) fn respond(
    seat: StreamSeat,
    events: impl Stream<Item = Event> + Send + 'static,
    leaving: CancellationToken,
) -> Response {
    let keep_alive = KeepAlive::new().interval(Duration::from_secs(15));
    let (untaken, left, key) = (seat.untaken(), leaving.clone(), seat.key());
    let events = events.take_until(leaving.cancelled_owned());
    let events = seat.hold(events, || named("error", &key_ended().body()));
    let response = Sse::new(events.map(Ok::<_, Infallible>)).keep_alive(keep_alive).into_response();
    response.map(|body| {
        let kept = body.into_data_stream().then(move |event| {
            let (untaken, left, key) = (untaken.clone(), left.clone(), key.clone());
            async move {
                let end = async {
                    tokio::select! {
                        () = left.cancelled_owned() => {}
                        () = key.ended() => {}
                    }
                };
                Ok::<_, axum::Error>(untaken.keep(event?, end).await)
            }
        });
        Body::from_stream(kept)
    })
}

/// At most: each byte of a text may become six as JSON, in a buffer that doubles as it grows.
fn size_of_event(chunk: &Chunk) -> usize {
    8 * chunk.bytes.len()
}

fn said(chunk: &Chunk) -> Event {
    let name = match chunk.stream {
        Channel::Stdout => "stdout",
        Channel::Stderr => "stderr",
    };
    // A character that a chunk cuts is told as bytes: nothing is lost or replaced.
    let (text, b64) = match std::str::from_utf8(&chunk.bytes) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(STANDARD.encode(&chunk.bytes))),
    };
    named(name, &Said { offset: chunk.offset, text, b64 })
}

pub(crate) fn named(name: &str, data: &impl Serialize) -> Event {
    // Only what cannot be written as JSON fails, and of that there is nothing here.
    Event::default().event(name).json_data(data).unwrap_or_else(|_| Event::default().event(name))
}
