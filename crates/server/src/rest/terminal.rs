//! A terminal, by WebSocket: bytes as binary frames, and what is no byte as text frames.

use std::time::Duration;

use axum::{
    Extension,
    extract::{
        State,
        ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code, rejection::WebSocketUpgradeRejection},
    },
    response::Response,
};
use bytes::Bytes;
use cabana_runtime::{
    Ask, Call, CallId, MemoryCharge, Place,
    acts::{
        Asked,
        exec::ExitTold,
        terminal::{Terminal, Wish},
    },
};
use cabana_sandbox::{TermSize, User as Inside};
use futures_util::{
    SinkExt, StreamExt,
    stream::{SplitSink, SplitStream},
};
use serde::{Deserialize, Serialize};
use tokio::{sync::mpsc, time::timeout};
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{exec::ExitBody, types::id};
use crate::{
    App,
    auth::{FRONT, SocketUser},
    error::{Answer, ErrorBody, Refused},
    extract::{Path, Query},
    listen::{Leaving, Peer},
    seats::{KEY_ENDED, StreamSeat, key_ended},
    stream::pieces,
};

/// Of a message. What is pasted is longer, and comes in several: one is gathered as a whole before anybody looks at it.
const LARGEST: usize = 64 << 10;
/// Chunks on their way, in either direction.
const AHEAD: usize = 4;
const PING: Duration = Duration::from_secs(20);
/// Who says nothing for so long, not even to a ping, is gone.
const QUIET: Duration = Duration::from_secs(60);
/// For what a client says before it hears that it is over.
const LINGER: Duration = Duration::from_secs(5);
const WIDEST: u16 = 4096;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(terminal))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Wanted {
    #[param(minimum = 1, maximum = 4096)]
    cols: Option<u16>,
    #[param(minimum = 1, maximum = 4096)]
    rows: Option<u16>,
    /// Relative to the sandbox's working directory, unless it is absolute.
    cwd: Option<String>,
    user: Option<String>,
    /// For the shell. Without one, it is the user's login shell.
    command: Option<String>,
}

fn size(cols: u16, rows: u16) -> Result<TermSize, String> {
    match (1..=WIDEST).contains(&cols) && (1..=WIDEST).contains(&rows) {
        true => Ok(TermSize { cols, rows }),
        false => Err(format!("cols and rows must be from 1 to {WIDEST}")),
    }
}

/// What a client says beside what is typed.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Said {
    Resize { cols: u16, rows: u16 },
    Signal(i32),
}

impl Said {
    fn wish(text: &str) -> Result<Wish, String> {
        match serde_json::from_str(text).map_err(|error| error.to_string())? {
            Self::Resize { cols, rows } => Ok(Wish::Resize(size(cols, rows)?)),
            Self::Signal(signal @ 1..=64) => Ok(Wish::Signal(signal)),
            Self::Signal(_) => Err("a signal must be from 1 to 64".to_owned()),
        }
    }
}

/// What it hears beside what the command says.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Told {
    Start {
        call_id: CallId,
    },
    Exit(ExitBody),
    #[serde(untagged)]
    Error(ErrorBody),
}

/// A command with a terminal, by WebSocket.
///
/// Binary frames are bytes, both ways. Text frames are JSON: `{"resize": {"cols": 80, "rows": 24}}` and `{"signal": 2}` from the
/// client; `{"start": {"call_id": …}}` first, and `{"exit": …}` or `{"error": …}` last, from the server. Where a client cannot set
/// headers, the key is the subprotocol `cabana.key.KEY`, beside `cabana`. When the client goes, the command is hung up.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/terminal", tag = "terminal", params(("sandbox" = String, Path, pattern = "^[a-z][a-z0-9]{15,20}$"), Wanted), responses(
    (status = 101, description = "The WebSocket"),
    (status = "default", body = ErrorBody),
))]
async fn terminal(
    State(app): State<App>,
    SocketUser(caller): SocketUser,
    Path(sandbox): Path<String>,
    Query(wanted): Query<Wanted>,
    Leaving(leaving): Leaving,
    peer: Option<Extension<Peer>>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Answer<Response> {
    let sandbox = id(&sandbox)?;
    app.runtime.sandbox(&caller, &sandbox).await?; // first of all: what is wrong with the rest is for its owner
    let upgrade = upgrade.map_err(|rejection| Refused::invalid("WebSocket", rejection.body_text()))?;
    let size =
        size(wanted.cols.unwrap_or(80), wanted.rows.unwrap_or(24)).map_err(|why| Refused::invalid("size", why))?;
    let user = wanted.user.map(Inside::new).transpose().map_err(|error| Refused::invalid("user", error))?;
    let command = wanted.command.unwrap_or_else(|| Terminal::LOGIN.to_owned());
    let asked = Asked { cwd: wanted.cwd, user, ..Asked::shell(command) };
    let (open, memory) = (app.open_stream(&caller).await?, app.bodies.open(&caller.tenant));
    let ((typed, typed_in), (wishes, wishes_in)) = (mpsc::channel(AHEAD), mpsc::channel(AHEAD));
    let (said, hears) = mpsc::channel(AHEAD);
    let act = Terminal { asked, size, typed: typed_in, wishes: wishes_in, said };
    let ask = Ask { caller, place: Place::Sandbox(sandbox), key: None, lease: None, front: FRONT };
    let call = app.runtime.call(ask, act).await?;
    // Whoever does not come after all has gone: what is dropped then hangs the command up.
    let seat = Seat { call, typed, wishes, memory, hears, leaving, _peer: peer, open };
    let upgrade = upgrade.protocols(["cabana"]).max_message_size(LARGEST).max_frame_size(LARGEST);
    Ok(upgrade.read_buffer_size(8 << 10).write_buffer_size(0).on_upgrade(|socket| seat.sit(socket)))
}

struct Seat {
    call: Call<ExitTold>,
    typed: mpsc::Sender<Bytes>,
    wishes: mpsc::Sender<Wish>,
    /// Of what is typed.
    memory: MemoryCharge,
    hears: mpsc::Receiver<Bytes>,
    leaving: CancellationToken,
    _peer: Option<Extension<Peer>>,
    open: StreamSeat,
}

impl Seat {
    async fn sit(self, socket: WebSocket) {
        let Self { call, typed, wishes, memory, mut hears, leaving, _peer, open } = self;
        let (mut to, mut from) = socket.split();
        if tell(&mut to, &Told::Start { call_id: call.id() }).await.is_err() {
            return;
        }
        let heard = async {
            match leaving.run_until_cancelled(hear(&mut from, typed, wishes, memory)).await {
                Some(why) => why,
                None => std::future::pending().await, // what is dropped hangs the command up, and it says itself how it ended
            }
        };
        let why = tokio::select! {
            why = heard => why,
            () = open.key_ended() => shut_out(&mut to).await,
            spoken = speak(&mut to, &mut hears) => match spoken {
                Ok(()) => last_words(&mut to, call).await,
                Err(_) => return,
            },
        };
        let _ = timeout(PING, to.send(Message::Close(Some(why)))).await;
        // A client that still says something does not hear how it ended, but that the connection is gone.
        let rest = async { while let Some(Ok(_)) = from.next().await {} };
        let _ = timeout(LINGER, rest).await;
    }
}

/// What is typed from now on is heard by no command, and that one is hung up.
async fn shut_out(to: &mut SplitSink<WebSocket, Message>) -> CloseFrame {
    let _ = timeout(PING, tell(to, &Told::Error(key_ended().body()))).await;
    CloseFrame { code: close_code::POLICY, reason: KEY_ENDED.into() }
}

async fn last_words(to: &mut SplitSink<WebSocket, Message>, call: Call<ExitTold>) -> CloseFrame {
    let id = call.id();
    let told = match call.answer().await {
        Ok(exit) => Told::Exit((&exit).into()),
        Err(error) => Told::Error(Refused::from(error).of_call(id).body()),
    };
    let _ = timeout(PING, tell(to, &told)).await;
    CloseFrame { code: close_code::NORMAL, reason: "".into() }
}

async fn tell(to: &mut SplitSink<WebSocket, Message>, told: &Told) -> Result<(), axum::Error> {
    to.send(Message::Text(serde_json::to_string(told).unwrap_or_default().into())).await
}

/// Until the command has nothing more to say.
async fn speak(to: &mut SplitSink<WebSocket, Message>, hears: &mut mpsc::Receiver<Bytes>) -> Result<(), axum::Error> {
    let mut ping = tokio::time::interval(PING);
    loop {
        tokio::select! {
            said = hears.recv() => match said {
                Some(bytes) => to.send(Message::Binary(bytes)).await?,
                None => return Ok(()),
            },
            _ = ping.tick() => to.send(Message::Ping(Bytes::new())).await?,
        }
    }
}

/// Until the client goes, and why the connection ends then.
async fn hear(
    from: &mut SplitStream<WebSocket>,
    typed: mpsc::Sender<Bytes>,
    wishes: mpsc::Sender<Wish>,
    mut memory: MemoryCharge,
) -> CloseFrame {
    let close = |code, reason: String| CloseFrame { code, reason: reason.into() };
    loop {
        let message = match timeout(QUIET, from.next()).await {
            Err(_) => return close(close_code::AWAY, "there was no answer to a ping".into()),
            Ok(None) => return close(close_code::NORMAL, String::new()),
            // Frames that are none, or too large: the connection ends, and nothing else.
            Ok(Some(Err(error))) => return close(close_code::PROTOCOL, short(&error.to_string())),
            Ok(Some(Ok(message))) => message,
        };
        let taken = match message {
            Message::Binary(bytes) => {
                if !memory.grow(bytes.len()) {
                    return close(close_code::AGAIN, "too much is typed at once".into());
                }
                let sent = timeout(QUIET, type_in(&typed, &bytes)).await;
                memory.clear();
                sent
            }
            Message::Text(text) => match Said::wish(&text) {
                Ok(wish) => timeout(QUIET, wishes.send(wish)).await.map(|sent| sent.is_ok()),
                Err(why) => return close(close_code::POLICY, short(&why)),
            },
            Message::Ping(_) | Message::Pong(_) => Ok(true),
            Message::Close(_) => return close(close_code::NORMAL, String::new()),
        };
        match taken {
            Ok(true) => {}
            Ok(false) => std::future::pending().await, // the command has ended, and says so itself
            Err(_) => return close(close_code::POLICY, "the command does not read what is typed".into()),
        }
    }
}

/// Whether somebody takes it.
async fn type_in(typed: &mpsc::Sender<Bytes>, bytes: &Bytes) -> bool {
    for piece in pieces(bytes) {
        if typed.send(piece).await.is_err() {
            return false;
        }
    }
    true
}

/// A close frame holds 123 bytes of reason.
fn short(reason: &str) -> String {
    reason.chars().take(100).filter(char::is_ascii).collect()
}
