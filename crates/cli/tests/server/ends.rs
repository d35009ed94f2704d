//! A server that is told to end: who only waits goes at once, who is served has a while, and nothing is lost.

use std::{fs, pin::pin, task::Poll};

use futures_util::{FutureExt, StreamExt};
use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_tungstenite::tungstenite::Message;

use crate::{
    stage::{PATIENCE, Server, good, refused, until},
    terminals::Terminal,
};

async fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.url.strip_prefix("http://").unwrap()).await.unwrap()
}

/// The server closes it, whatever it says before.
async fn is_closed(mut stream: TcpStream) {
    let _ = timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await.expect("the server lets go of it");
}

/// A stream of events, of which the first has come.
async fn streams(server: &Server, path: &str) -> reqwest::Response {
    let mut answer = server.request(Method::GET, path).send().await.unwrap();
    assert!(answer.status().is_success(), "{path}");
    answer.chunk().await.unwrap().expect("it says something first");
    answer
}

#[tokio::test]
async fn who_only_waits_goes_at_once_and_who_is_served_is_served_to_the_end() {
    let mut server = Server::start();
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let task = server.begin("two", "echo begun; sleep 600").await;
    let two = server.ensure("two").await["id"].as_str().unwrap().to_owned();

    let silent = connect(&server).await;
    let mut idle = connect(&server).await;
    idle.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    assert!(idle.read(&mut [0; 4096]).await.unwrap() > 0);
    let mut followers = Vec::new();
    for path in [
        "/v1/events".to_owned(),
        format!("/v1/tasks/{task}/stream"),
        format!("/v1/sandboxes/{two}/files/watch?path=/tmp"),
    ] {
        followers.push(streams(&server, &path).await);
    }
    let mut terminal = Terminal::open(&server, &two, "command=cat").await;

    let body = json!({ "scope": { "scheme": "fixed", "name": "one" }, "argv": ["sleep", "601"] });
    let mut served = pin!(server.post("/v1/exec", &body).send());
    let runs = until(|| async {
        let calls = server.get(&format!("/v1/calls?sandbox={sandbox}")).await;
        let runs = calls["calls"].as_array().unwrap().iter().any(|call| call["verb"] == "exec");
        runs.then_some(())
    });
    tokio::select! {
        answer = &mut served => panic!("{answer:?}"),
        () = runs => {}
    }
    let sleeping = until(|| async {
        server.commands().into_iter().find(|pid| {
            let command = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
            command == b"sleep\x00601\x00"
        })
    });
    let sleeping = sleeping.await;

    kill_process(Pid::from_raw(server.pid().cast_signed()).unwrap(), Signal::TERM).unwrap();
    is_closed(silent).await;
    is_closed(idle).await;
    for mut follower in followers {
        while let Ok(Some(_)) = timeout(PATIENCE, follower.chunk()).await.expect("the stream ends") {}
    }
    let mut said = Vec::new();
    while let Some(Ok(message)) = timeout(PATIENCE, terminal.socket.next()).await.expect("the terminal ends") {
        said.push(message);
    }
    let told = |message: &Message| matches!(message, Message::Text(text) if text.contains("exit"));
    assert!(said.iter().any(told) && matches!(said.last(), Some(Message::Close(_))), "{said:?}");
    // All that while, the command is waited for.
    assert!(matches!(futures_util::poll!(&mut served), Poll::Pending), "it has its time");
    kill_process(sleeping, Signal::TERM).unwrap();
    let answer: Value = good(served.await.unwrap()).await;
    assert_eq!(answer["signal"], 15, "{answer}");
    server.has_ended();
    server.run();
    assert_eq!(server.get(&format!("/v1/tasks/{task}")).await["state"], "running");
}

#[tokio::test]
async fn a_command_that_takes_longer_is_left_to_the_next_server() {
    let mut server = Server::start();
    server.ensure("one").await;
    let command = "echo run >> log; touch up; until [ -e go ]; do sleep 0.05; done; echo done";
    let body = json!({ "scope": { "scheme": "fixed", "name": "one" }, "command": command });
    let ask = |server: &Server| server.post("/v1/exec", &body).header("Idempotency-Key", "k").send();
    let mut waits = ask(&server).boxed();
    tokio::select! {
        answer = &mut waits => panic!("{answer:?}"),
        () = until(|| async { (server.exec("one", "test -e up").await["exit_code"] == 0).then_some(()) }) => {}
    }
    kill_process(Pid::from_raw(server.pid().cast_signed()).unwrap(), Signal::TERM).unwrap();
    assert_eq!(refused(waits.await.unwrap()).await, (503, "provider_offline".into()), "it is told to ask again");
    server.has_ended();
    server.run();
    let (answer, _) = tokio::join!(ask(&server), server.stdout("one", "touch go"));
    assert_eq!(good(answer.unwrap()).await["stdout"], "done\n");
    assert_eq!(server.stdout("one", "cat log").await, "run\n", "it ran once");
}
