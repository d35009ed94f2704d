//! Terminals, as somebody sits at them.

use futures_util::{SinkExt, StreamExt};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::{Error, Message, protocol::frame::coding::CloseCode};

use crate::{
    inside::{Socket, open_socket},
    stage::{PATIENCE, Server, client, refused, until},
};

/// One that is connected, and the call that it is.
pub(crate) struct Terminal {
    pub(crate) socket: Socket,
    pub(crate) call: String,
    said: String,
}

impl Terminal {
    pub(crate) async fn open(server: &Server, sandbox: &str, query: &str) -> Self {
        Self::open_as(server, &server.key, sandbox, query).await
    }

    pub(crate) async fn open_as(server: &Server, key: &str, sandbox: &str, query: &str) -> Self {
        let bearer = format!("Bearer {key}");
        let path = format!("/v1/sandboxes/{sandbox}/terminal?{query}");
        let (socket, _) = open_socket(server, &path, &[("authorization", &bearer)]).await.unwrap();
        Self::of(socket).await
    }

    async fn of(mut socket: Socket) -> Self {
        let Message::Text(text) = socket.next().await.unwrap().unwrap() else { panic!("the start comes first") };
        let start: Value = serde_json::from_str(&text).unwrap();
        Self { socket, call: start["start"]["call_id"].as_str().unwrap().to_owned(), said: String::new() }
    }

    pub(crate) async fn types(&mut self, text: &str) {
        self.socket.send(Message::binary(text.as_bytes().to_vec())).await.unwrap();
    }

    pub(crate) async fn tells(&mut self, control: &Value) {
        self.socket.send(Message::text(control.to_string())).await.unwrap();
    }

    async fn next(&mut self) -> Message {
        timeout(PATIENCE, self.socket.next())
            .await
            .unwrap_or_else(|_| panic!("after {:?}", self.said))
            .unwrap()
            .unwrap()
    }

    /// Reads until it has said that.
    pub(crate) async fn says(&mut self, wanted: &str) {
        while !self.said.contains(wanted) {
            match self.next().await {
                Message::Binary(bytes) => self.said.push_str(&String::from_utf8_lossy(&bytes)),
                Message::Ping(_) => {}
                other => panic!("{other:?} after {:?}", self.said),
            }
        }
        let end = self.said.find(wanted).unwrap() + wanted.len();
        self.said.drain(..end);
    }

    /// The last thing that it tells, and how it closes.
    pub(crate) async fn end(mut self) -> (Value, CloseCode) {
        let mut last = Value::Null;
        loop {
            match self.next().await {
                Message::Text(text) => last = serde_json::from_str(&text).unwrap(),
                Message::Close(frame) => return (last, frame.unwrap().code),
                _ => {}
            }
        }
    }
}

#[tokio::test]
async fn somebody_types_and_hears_resizes_and_leaves_a_record() {
    let server = Server::start();
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let mut terminal = Terminal::open(&server, &sandbox, "cols=100&rows=30").await;
    terminal.types("stty size; echo $((6*7)) $TERM; shopt login_shell 2>/dev/null\n").await;
    terminal.says("30 100\r\n42 xterm-256color\r\n").await;
    terminal.tells(&json!({ "resize": { "cols": 132, "rows": 50 } })).await;
    // The size is set beside what is typed: it is asked for until it is there.
    terminal.types("until [ \"$(stty size)\" = '50 132' ]; do sleep 0.05; done; echo re''sized\n").await;
    terminal.says("resized\r\n").await;
    terminal.types("exit 3\n").await;
    let call = terminal.call.clone();
    let (told, code) = terminal.end().await;
    assert_eq!((&told["exit"]["status"], &told["exit"]["exit_code"]), (&json!("exited"), &json!(3)));
    assert_eq!(code, CloseCode::Normal);
    let row = server.get(&format!("/v1/calls/{call}")).await;
    assert_eq!((&row["verb"], &row["state"]), (&json!("terminal"), &json!("answered")));
    let output = server.request(Method::GET, &format!("/v1/calls/{call}/output")).send().await.unwrap();
    assert!(output.text().await.unwrap().contains("42 xterm-256color"));
    let ledger = server.get("/v1/ledger").await;
    let row = ledger["rows"].as_array().unwrap().iter().find(|row| row["call"] == json!(call)).unwrap();
    assert_eq!((&row["verb"], &row["exit"], &row["outcome"]), (&json!("terminal"), &json!(3), &json!("answered")));
}

#[tokio::test]
async fn a_command_of_ones_own_runs_where_and_as_whom_it_is_told() {
    let server = Server::start();
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let mut terminal = Terminal::open(&server, &sandbox, "cwd=/tmp&user=nobody&command=pwd%3Bid+-un%3Btty").await;
    terminal.says("/tmp\r\nnobody\r\n/dev/pts/").await;
    assert_eq!(terminal.end().await.0["exit"]["exit_code"], 0);
    let terminal = Terminal::open(&server, &sandbox, "cwd=/nowhere").await;
    let (told, _) = terminal.end().await;
    assert_eq!(told["error"]["code"], "workdir_not_found", "{told}");
}

#[tokio::test]
async fn signals_reach_a_command_that_does_not_read() {
    let server = Server::start();
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let command = "command=stty+raw%3Btrap+'echo+caught%3Bexit+5'+INT%3Becho+ready%3Bwhile+:%3Bdo+sleep+0.05%3Bdone";
    let mut terminal = Terminal::open(&server, &sandbox, command).await;
    terminal.says("ready").await;
    terminal.tells(&json!({ "signal": 2 })).await;
    terminal.says("caught").await;
    assert_eq!(terminal.end().await.0["exit"]["exit_code"], 5);
}

#[tokio::test]
async fn a_key_comes_as_a_subprotocol_where_no_header_can() {
    let server = Server::start();
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/sandboxes/{sandbox}/terminal");
    let offered = format!("cabana, cabana.key.{}", server.key);
    let (socket, answer) = open_socket(&server, &path, &[("sec-websocket-protocol", &offered)]).await.unwrap();
    assert_eq!(answer.headers()["sec-websocket-protocol"], "cabana");
    let mut terminal = Terminal::of(socket).await;
    terminal.types("exit\n").await;
    terminal.end().await;
    let (thief, reader) = (server.key_for("thief", "use").await, server.key_for("default", "read").await);
    let made_up = format!("e2b_{}", "0".repeat(40));
    for (key, status) in [(&thief, 404), (&reader, 403), (&made_up, 401)] {
        let offered = format!("cabana, cabana.key.{key}");
        match open_socket(&server, &path, &[("sec-websocket-protocol", &offered)]).await {
            Err(Error::Http(answer)) => assert_eq!(answer.status().as_u16(), status),
            other => panic!("{other:?}"),
        }
    }
    // Never in the address, where logs would keep it.
    let in_address = client().get(format!("{}{path}?access={}", server.url, server.key)).send().await.unwrap();
    assert_eq!(in_address.status(), StatusCode::UNAUTHORIZED);
    let plain = server.request(Method::GET, &path).send().await.unwrap();
    assert_eq!(refused(plain).await, (400, "bad_request".into()));
    for query in ["cols=0", "rows=5000", "colour=1"] {
        let answer = server.request(Method::GET, &format!("{path}?{query}")).send().await.unwrap();
        assert_eq!(refused(answer).await, (400, "bad_request".into()), "{query}");
    }
}

#[tokio::test]
async fn a_terminal_that_is_left_is_hung_up() {
    let server = Server::start();
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    // One that listens to it has time to put things in order; one that does not is ended all the same.
    let polite = "command=trap+'echo+bye+%3E+mark%3Bexit'+HUP%3Becho+ready%3Bwhile+:%3Bdo+sleep+0.05%3Bdone";
    let deaf = "command=trap+''+HUP+TERM+INT%3Becho+$$+%3E+pid%3Becho+ready%3Bsleep+1000%26+wait%3Bsleep+1000";
    for command in [polite, deaf] {
        let mut terminal = Terminal::open(&server, &sandbox, command).await;
        terminal.says("ready").await;
        let path = format!("/v1/calls/{}", terminal.call);
        assert_eq!(server.get(&path).await["state"], "running");
        drop(terminal);
        until(|| async { (server.get(&path).await["state"] == "answered").then_some(()) }).await;
    }
    assert_eq!(server.stdout("one", "cat mark").await, "bye\n");
    assert_eq!(server.exec("one", "kill -0 $(cat pid)").await["exit_code"], 1);
    assert_eq!(server.exec("one", "pgrep -x sleep").await["exit_code"], 1);
}

#[tokio::test]
async fn a_terminal_that_is_cancelled_says_so() {
    let server = Server::start();
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let mut terminal = Terminal::open(&server, &sandbox, "command=echo+ready%3Bsleep+1000").await;
    terminal.says("ready").await;
    let path = format!("/v1/calls/{}", terminal.call);
    let cancelled = server.post(&format!("{path}/cancel"), &json!({})).send().await.unwrap();
    assert_eq!(cancelled.json::<Value>().await.unwrap()["state"], "cancelled");
    assert_eq!(terminal.end().await.0["error"]["code"], "cancelled");
}

#[tokio::test]
async fn no_terminal_outlives_its_server() {
    let mut server = Server::start();
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    for kill in [true, false] {
        let mut terminal =
            Terminal::open(&server, &sandbox, "command=echo+$$+%3E+pid%3Becho+ready%3Bsleep+1000%3B:").await;
        terminal.says("ready").await;
        let path = format!("/v1/calls/{}", terminal.call);
        if kill {
            server.kill();
        } else {
            server.stop();
        }
        server.run();
        let ended = until(|| async { Some(server.get(&path).await).filter(|call| call["state"] != "running") }).await;
        assert_eq!(ended["state"], if kill { "cancelled" } else { "answered" }, "{ended}");
        assert_eq!(server.exec("one", "kill -0 $(cat pid)").await["exit_code"], 1);
    }
}
