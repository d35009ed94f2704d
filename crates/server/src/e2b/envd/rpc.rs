//! Calls of the Connect protocol: one message each way, or a stream of frames to whoever asked.
//!
//! An error of a stream travels in its last frame, with the status of success: by then the answer has begun, or might have.

use std::{io, time::Duration};

use axum::{
    Json,
    body::Body,
    extract::Request,
    http::{HeaderMap, StatusCode, Version, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use cabana_e2b_wire::{
    connect::{Code, Error},
    envelope::{self, Frame, Reader},
    header as names,
};
use futures_util::{Stream, StreamExt, stream};
use serde::{Serialize, de::DeserializeOwned};

use super::super::guest::Guest;
use crate::{
    App,
    error::Refused,
    extract,
    listen::Peer,
    parse::Received,
    seats::{KEY_ENDED, StreamSeat},
};

/// Between two signs of life, where a client names none.
const KEEPALIVE: Duration = Duration::from_secs(90);

/// One message each way.
pub(super) async fn unary<T: DeserializeOwned + Send + 'static, R: Serialize>(
    app: &App,
    request: Request,
    work: impl AsyncFnOnce(T) -> Result<R, Error>,
) -> Response {
    respond(app, request, async |asked| Ok(Json(work(asked).await?).into_response())).await
}

/// The same for whoever makes the answer's body itself.
pub(super) async fn respond<T: DeserializeOwned + Send + 'static>(
    app: &App,
    request: Request,
    work: impl AsyncFnOnce(T) -> Result<Response, Error>,
) -> Response {
    let answered = async {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !kind.starts_with("application/json") {
            return Err(Error::new(Code::Unimplemented, format!("{kind:?} is not spoken here: send application/json")));
        }
        let body = whole(app, request).await?;
        work(message(app, body).await?).await
    };
    answered.await.unwrap_or_else(|error| refused(&error))
}

pub(super) fn refused(error: &Error) -> Response {
    let status = StatusCode::from_u16(error.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, Json(error)).into_response()
}

async fn whole(app: &App, request: Request) -> Result<Received, Error> {
    extract::all_of(request, app).await.map_err(unread)
}

fn unread(refused: Refused) -> Error {
    let (status, _, message) = refused.told();
    let code = match status {
        StatusCode::PAYLOAD_TOO_LARGE => Code::ResourceExhausted,
        StatusCode::SERVICE_UNAVAILABLE => Code::Unavailable,
        _ => Code::InvalidArgument,
    };
    Error::new(code, message)
}

/// No byte at all is an empty message.
pub(super) async fn message<T: DeserializeOwned + Send + 'static>(app: &App, body: Received) -> Result<T, Error> {
    let parse = |bytes: &[u8]| serde_json::from_slice(if bytes.is_empty() { b"{}" } else { bytes });
    let parsed = app.parsers.read(body, parse).await.map_err(unread)?;
    parsed.map_err(|error| Error::new(Code::InvalidArgument, format!("the message: {error}")))
}

/// The one message that a stream is asked for with.
pub(super) async fn asked<T: DeserializeOwned + Send + 'static>(app: &App, request: Request) -> Result<T, Error> {
    let (mut body, mut reader) = (whole(app, request).await?, frames_of(app));
    match reader.read(&mut body.bytes)? {
        Some(Frame::Message(bytes)) => message(app, Received { bytes, ..body }).await,
        Some(Frame::End(_)) => Err(Error::new(Code::InvalidArgument, "there is no message before the end")),
        None => {
            reader.finish()?;
            Err(Error::new(Code::InvalidArgument, "there is no message"))
        }
    }
}

/// For a stream of a sandbox's, which ends with the key that made it.
pub(super) async fn seat(app: &App, guest: &Guest) -> Result<StreamSeat, Error> {
    app.open_stream(&guest.caller).await.map_err(|refused| match refused.told() {
        (StatusCode::UNAUTHORIZED, ..) => key_ended(),
        (_, _, message) => Error::new(Code::ResourceExhausted, message),
    })
}

pub(super) fn key_ended() -> Error {
    Error::new(Code::Unauthenticated, KEY_ENDED)
}

pub(super) fn frames_of(app: &App) -> Reader {
    Reader::new(u32::try_from(app.bounds.body).unwrap_or(u32::MAX))
}

/// What comes next of an answer, or why nothing more does.
pub(super) enum Ending {
    Error(Error),
    /// The sandbox went. Whoever listens must not take it for an end, so the connection is reset.
    Gone,
}

impl From<Error> for Ending {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// How an answer is sent.
pub(super) struct Sending {
    keepalive: Duration,
    peer: Option<Peer>,
    version: Version,
}

impl Sending {
    pub(super) fn of(request: &Request) -> Self {
        Self {
            keepalive: keepalive(request.headers()),
            peer: request.extensions().get().cloned(),
            version: request.version(),
        }
    }

    /// Events, a sign of life where there is none for a while, and the end.
    pub(super) fn send<E: Serialize + Clone + Send + Sync + 'static>(
        self,
        seat: StreamSeat,
        alive: E,
        events: impl Stream<Item = Result<E, Ending>> + Send + 'static,
    ) -> Response {
        let leaving = self.peer.as_ref().map(|peer| peer.leaving.clone());
        // Where a connection has many streams, one that breaks off is reset by itself.
        let gone = self.peer.filter(|_| self.version < Version::HTTP_2);
        let (events, key, untaken) = (events.boxed(), Box::pin(seat.key_ended()), seat.untaken());
        let frames = stream::unfold((Some(events), key, seat, gone), move |(events, mut key, seat, gone)| {
            let (alive, leaving) = (alive.clone(), leaving.clone().unwrap_or_default());
            let (keepalive, untaken) = (self.keepalive, untaken.clone());
            async move {
                let mut events = events?;
                let next = tokio::select! {
                    next = tokio::time::timeout(keepalive, events.next()) => next,
                    // The next server has it, and clients ask again.
                    () = leaving.cancelled() => Ok(Some(Err(Ending::Gone))),
                    () = &mut key => Ok(Some(Err(Ending::Error(key_ended())))),
                };
                let (frame, events) = match next {
                    Err(_) => (framed(&alive), Some(events)),
                    Ok(Some(Ok(event))) => (framed(&event), Some(events)),
                    Ok(Some(Err(Ending::Error(error)))) => (Ok(envelope::end(Some(&error))), None),
                    Ok(Some(Err(Ending::Gone))) => (reset(gone.as_ref()), None),
                    Ok(None) => (Ok(envelope::end(None)), None),
                };
                let frame = match frame {
                    Ok(frame) => {
                        let has_ended = events.is_none();
                        let end = async {
                            tokio::select! {
                                () = std::future::ready(()), if has_ended => {} // what has ended is not asked again
                                () = leaving.cancelled() => {}
                                () = &mut key, if !has_ended => {}
                            }
                        };
                        Ok(untaken.keep(frame, end).await)
                    }
                    Err(error) => Err(error),
                };
                Some((frame, (events, key, seat, gone)))
            }
        });
        streamed(Body::from_stream(frames))
    }
}

fn framed(event: &impl Serialize) -> io::Result<Bytes> {
    envelope::message(event).map_err(io::Error::other)
}

/// A body that breaks off takes the connection along; that it is reset and not closed, the line is told before.
fn reset(peer: Option<&Peer>) -> io::Result<Bytes> {
    if let Some(peer) = peer {
        peer.reset();
    }
    Err(io::ErrorKind::ConnectionReset.into())
}

fn keepalive(headers: &HeaderMap) -> Duration {
    let asked = headers.get(names::KEEPALIVE_PING_INTERVAL).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    asked.filter(|seconds| *seconds > 0).map_or(KEEPALIVE, Duration::from_secs)
}

/// A stream that ends before it began.
pub(super) fn ended(error: &Error) -> Response {
    streamed(Body::from(envelope::end(Some(error))))
}

/// The answer to a stream of a client's: one message, and the end.
pub(super) fn answered(answer: &impl Serialize) -> Response {
    match envelope::message(answer) {
        Ok(message) => streamed(Body::from([message, envelope::end(None)].concat())),
        Err(error) => ended(&Error::new(Code::Internal, error.to_string())),
    }
}

fn streamed(body: Body) -> Response {
    ([(header::CONTENT_TYPE, names::CONNECT_JSON)], body).into_response()
}
