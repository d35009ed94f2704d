//! What is typed to a command: at once, or as a stream of a client's.

use std::time::Duration;

use axum::{extract::Request, response::Response};
use bytes::Bytes;
use cabana_e2b_wire::{
    connect::{Code, Error},
    envelope::{Frame, Reader},
    process::{
        CloseStdinRequest, Empty, ProcessInput, SendInputRequest, StreamInputData, StreamInputEvent,
        StreamInputRequest, StreamInputStart,
    },
};
use cabana_runtime::{
    MemoryCharge, Seen, Tenant, Typed,
    acts::task::{Feed, What},
};
use cabana_sandbox::Stream;
use futures_util::{StreamExt, stream};
use tokio::sync::mpsc;

use super::{
    super::{super::guest::Guest, rpc},
    find_running, of_one, tell,
};
use crate::{
    App,
    linger::lingering,
    parse::Received,
    stream::{PIECE, pieces},
};

/// A client's stream says at least that it is alive.
const QUIET: Duration = Duration::from_secs(600);
/// Pieces on their way to a command that reads slowly.
const AHEAD: usize = 4;

pub(super) async fn send(app: &App, guest: &Guest, asked: SendInputRequest) -> Result<Empty, Error> {
    let seen = find_running(app, guest, asked.process.as_ref()).await?;
    let bytes = typed(&seen, asked.input)?;
    let held = bytes.len();
    feed(app, guest, &seen, Feed { task: seen.task, body: stream::iter([Ok(bytes)]).boxed(), held }).await
}

async fn feed(app: &App, guest: &Guest, seen: &Seen, feed: Feed) -> Result<Empty, Error> {
    let fed = async { app.runtime.call(guest.ask(), feed).await?.answer().await };
    fed.await.map_err(|error| of_one(&error, seen))?;
    Ok(Empty {})
}

/// A terminal is typed to as a terminal, and all else as all else.
fn typed(seen: &Seen, input: Option<ProcessInput>) -> Result<Bytes, Error> {
    match (seen.typed, input) {
        (Typed::Terminal(_), Some(ProcessInput::Pty(bytes))) => Ok(bytes),
        (Typed::Open, Some(ProcessInput::Stdin(bytes))) => Ok(bytes),
        (Typed::Terminal(_), Some(ProcessInput::Stdin(_))) => {
            Err(Error::new(Code::FailedPrecondition, "the process has a terminal: send the input to that"))
        }
        (_, Some(ProcessInput::Pty(_))) => Err(Error::new(Code::FailedPrecondition, "the process has no terminal")),
        (Typed::Whole, Some(ProcessInput::Stdin(_))) => {
            Err(Error::new(Code::FailedPrecondition, "stdin not enabled or closed"))
        }
        (_, None) => Err(Error::new(Code::InvalidArgument, "there is no input")),
    }
}

pub(super) async fn close(app: &App, guest: &Guest, asked: CloseStdinRequest) -> Result<Empty, Error> {
    let seen = find_running(app, guest, asked.process.as_ref()).await?;
    match seen.typed {
        Typed::Terminal(_) => {
            Err(Error::new(Code::FailedPrecondition, "cannot close stdin of a terminal: type Ctrl+D instead"))
        }
        _ => tell(app, guest, &seen, What::Close).await,
    }
}

/// The first message says to which; each that follows is typed as it comes.
pub(super) async fn stream(app: &App, guest: &Guest, request: Request) -> Response {
    let body = lingering(request.into_body()).into_data_stream();
    let tenant = &guest.caller.tenant;
    let seat = match rpc::seat(app, guest).await {
        Ok(seat) => seat,
        Err(error) => return rpc::ended(&error),
    };
    let memory = app.bodies.open(tenant);
    let mut events = Events { app, tenant, body, reader: rpc::frames_of(app), piece: Bytes::new(), memory };
    let fed = tokio::select! {
        fed = streamed(app, guest, &mut events) => fed,
        () = seat.key_ended() => Err(rpc::key_ended()),
    };
    match fed {
        Ok(empty) => rpc::answered(&empty),
        Err(error) => rpc::ended(&error),
    }
}

async fn streamed(app: &App, guest: &Guest, events: &mut Events<'_>) -> Result<Empty, Error> {
    let selector = loop {
        match events.next().await? {
            Some(StreamInputEvent::Start(StreamInputStart { process })) => break process,
            Some(StreamInputEvent::Keepalive(_)) => {}
            _ => return Err(Error::new(Code::InvalidArgument, "the first message has to say which process is meant")),
        }
    };
    let seen = find_running(app, guest, selector.as_ref()).await?;
    let (pass, mut passed) = mpsc::channel::<Bytes>(AHEAD);
    let body: Stream<Bytes> = stream::poll_fn(move |cx| passed.poll_recv(cx).map(|bytes| bytes.map(Ok))).boxed();
    let held = (AHEAD + 1) * PIECE; // the last one is with the command
    let reading = async {
        let pass = pass; // its end is the end of the body
        while let Some(event) = events.next().await? {
            let StreamInputEvent::Data(StreamInputData { input }) = event else { continue };
            for piece in pieces(&typed(&seen, input)?) {
                if pass.send(piece).await.is_err() {
                    return Ok(()); // whoever typed says why
                }
            }
        }
        Ok(())
    };
    let (read, fed) = tokio::join!(reading, feed(app, guest, &seen, Feed { task: seen.task, body, held }));
    read.and(fed)
}

/// A client's messages.
struct Events<'a> {
    app: &'a App,
    tenant: &'a Tenant,
    body: axum::body::BodyDataStream,
    reader: Reader,
    piece: Bytes,
    /// Of the message that comes.
    memory: MemoryCharge,
}

impl Events<'_> {
    async fn next(&mut self) -> Result<Option<StreamInputEvent>, Error> {
        self.memory.clear(); // the last one is on its way
        loop {
            match self.reader.read(&mut self.piece)? {
                Some(Frame::Message(message)) => {
                    // What it takes is charged already.
                    let body = Received { bytes: message, tenant: Some(self.tenant.clone()), memory: None };
                    let StreamInputRequest { event } = rpc::message(self.app, body).await?;
                    match event {
                        Some(event) => return Ok(Some(event)),
                        None => continue, // of a newer client
                    }
                }
                Some(Frame::End(_)) => return Ok(None),
                None => {}
            }
            let next = tokio::time::timeout(QUIET, self.body.next()).await;
            self.piece = match next.map_err(|_| Error::new(Code::DeadlineExceeded, "nothing came for too long"))? {
                Some(Ok(piece)) if self.memory.grow(piece.len()) => piece,
                Some(Ok(_)) => return Err(Error::new(Code::Unavailable, "too much is typed at once")),
                Some(Err(error)) => return Err(Error::new(Code::Canceled, error.to_string())),
                None => {
                    std::mem::replace(&mut self.reader, Reader::new(0)).finish()?;
                    return Ok(None);
                }
            };
        }
    }
}
