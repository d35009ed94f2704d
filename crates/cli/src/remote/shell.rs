//! `cabana shell`: a terminal in a sandbox of the server.

use std::pin::pin;

use bytes::Bytes;
use cabana_model::Code;
use cabana_sandbox::TermSize;
use futures_util::{SinkExt, StreamExt, stream::SplitSink};
use reqwest::{Method, StatusCode, Upgraded};
use serde_json::{Value, json};
use tokio::{fs::File, io::AsyncReadExt};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        handshake::{client::generate_key, derive_accept_key},
        protocol::Role,
    },
};

use super::{
    exec::Exit,
    output::{Output, Stuck},
    place::Place,
    server::{At, Server},
    table,
};
use crate::{
    failure::Failure,
    run::{
        self, Ends, Signals, by_signal,
        terminal::{self, RawMode},
    },
};

/// Open a terminal in a sandbox, which is made or started if it has to be
///
/// Without a command: the user's login shell. The exit code is that of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The scope whose sandbox is meant: fixed:NAME, user:NAME, project_agent:PROJECT/AGENT or chat:APP/USER/CHAT
    #[arg(long, value_name = "SCHEME:VALUE")]
    scope: Option<String>,
    /// Who sits at it inside, by name or number
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Where it starts, inside
    #[arg(long, value_name = "DIR")]
    workdir: Option<String>,
    /// The sandbox: its id, SCHEME:VALUE, or a plain name, which is the scope fixed:NAME. Not with --scope
    sandbox: Option<String>,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    command: Vec<String>,
}

type Socket = WebSocketStream<Upgraded>;

pub(super) async fn work(args: Args, server: &Server) -> Result<u8, Failure> {
    let size = terminal::size().ok_or_else(|| {
        let why = "there is no terminal: standard input and output must both be one";
        Failure::bad(why).with_hint("For a script, `cabana exec` is the verb.")
    })?;
    let place = Place::given(args.sandbox.as_deref(), args.scope.as_deref())?;
    let mut argv = args.command;
    if args.scope.is_some() {
        // Then the first word was the command's.
        argv.splice(0..0, args.sandbox);
    }
    let id = place.ensure(server).await?;
    let (cols, rows, line) = (size.cols.to_string(), size.rows.to_string(), table::line(&argv));
    let mut query = vec![("cols", cols.as_str()), ("rows", rows.as_str())];
    query.extend(args.user.as_deref().map(|user| ("user", user)));
    query.extend(args.workdir.as_deref().map(|dir| ("cwd", dir)));
    if !argv.is_empty() {
        query.push(("command", &line));
    }
    let socket = connect(server, At(&["v1", "sandboxes", id.as_str(), "terminal"], &query)).await?;
    let failed = |what: &str, error: &dyn std::fmt::Display| Failure::new(Code::Internal, format!("{what}: {error}"));
    let signals = Signals::listen().map_err(|error| failed("listening for signals", &error))?;
    let raw = RawMode::enter().map_err(|error| failed("setting up the terminal", &error))?;
    let ended = sit(socket, signals).await;
    drop(raw); // before a word of ours
    match ended {
        Ok(End::Exited(exit)) => Ok(exit.code(None)),
        Ok(End::Signalled(signal)) => Ok(by_signal(signal)),
        Err(Stuck::NobodyReads) => Ok(by_signal(run::PIPE)),
        Err(Stuck::Failed(failure)) => Err(failure),
    }
}

async fn connect(server: &Server, at: At<'_>) -> Result<Socket, Failure> {
    let key = generate_key();
    let request = server.request(Method::GET, at).header("Connection", "Upgrade").header("Upgrade", "websocket");
    let request = request.header("Sec-WebSocket-Version", "13").header("Sec-WebSocket-Key", &key);
    let response = server.send(request).await?;
    let accepted = response.headers().get("Sec-WebSocket-Accept").map(|value| value.as_bytes());
    if response.status() != StatusCode::SWITCHING_PROTOCOLS
        || accepted != Some(derive_accept_key(key.as_bytes()).as_bytes())
    {
        let why = "the server, or a proxy before it, does not speak WebSocket";
        return Err(Failure::new(Code::ProviderOffline, why).with_hint("Let the proxy pass upgrades on."));
    }
    let stream = response.upgrade().await.map_err(|error| lost(&error))?;
    Ok(WebSocketStream::from_raw_socket(stream, Role::Client, None).await)
}

fn lost(error: &dyn std::fmt::Display) -> Failure {
    let failure = Failure::new(Code::ProviderOffline, format!("the connection to the server broke: {error}"));
    failure.with_hint("What ran in the terminal was hung up; open another.")
}

enum End {
    Exited(Exit),
    Signalled(i32),
}

async fn sit(socket: Socket, mut signals: Signals) -> Result<End, Stuck> {
    let (mut to, mut from) = socket.split();
    let opened = Ends::ours(true).map_err(|error| lost(&error))?;
    let mut output = Output::ours()?;
    let hearing = async {
        while let Some(message) = from.next().await {
            match message.map_err(|error| lost(&error))? {
                Message::Binary(bytes) => output.write(false, &bytes).await?,
                Message::Text(text) => {
                    let told: Value = serde_json::from_str(&text).map_err(|error| lost(&error))?;
                    if let Ok(exit) = Exit::read(&told["exit"]) {
                        return Ok(End::Exited(exit));
                    }
                    if !told["error"].is_null() {
                        return Err(Failure::of_told(&told).into());
                    }
                }
                Message::Close(Some(why)) if !why.reason.is_empty() => return Err(lost(&why.reason).into()),
                _ => {}
            }
        }
        Err(lost(&"it ended").into())
    };
    let mut hearing = pin!(hearing);
    let mut stdin = opened.stdin;
    let mut typed = vec![0; 16 << 10];
    loop {
        let said = tokio::select! {
            ended = &mut hearing => return ended,
            read = read(&mut stdin, &mut typed) => match read {
                0 => {
                    // Our terminal is gone: so is this one.
                    stdin = None;
                    Message::Close(None)
                }
                read => Message::Binary(Bytes::copy_from_slice(&typed[..read])),
            },
            signal = signals.next() => match (signal == run::WINCH).then(terminal::size).flatten() {
                Some(TermSize { cols, rows }) => Message::Text(json!({"resize": {"cols": cols, "rows": rows}}).to_string().into()),
                None if signal == run::WINCH => continue,
                None => {
                    let _ = to.send(Message::Close(None)).await;
                    return Ok(End::Signalled(signal));
                }
            },
        };
        say(&mut to, said).await?;
    }
}

async fn say(to: &mut SplitSink<Socket, Message>, message: Message) -> Result<(), Failure> {
    match to.send(message).await {
        // What it has said by then is heard first.
        Ok(()) | Err(tokio_tungstenite::tungstenite::Error::ConnectionClosed) => Ok(()),
        Err(error) => Err(lost(&error)),
    }
}

/// Nothing where there is nothing more to come.
async fn read(stdin: &mut Option<File>, typed: &mut [u8]) -> usize {
    match stdin {
        Some(stdin) => stdin.read(typed).await.unwrap_or(0),
        None => std::future::pending().await,
    }
}
