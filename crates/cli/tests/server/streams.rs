//! What a command says, as it says it.

use futures_util::StreamExt;
use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::stage::{Server, good, refused};

/// One event after the other, as the wire has them.
pub(crate) struct Events {
    body: futures_util::stream::BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    text: Vec<u8>,
}

impl Events {
    pub(crate) fn of(response: Response) -> Self {
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { body: response.bytes_stream().boxed(), text: Vec::new() }
    }

    pub(crate) async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some(end) = self.text.windows(2).position(|two| two == b"\n\n") {
                let event = String::from_utf8(self.text.drain(..end + 2).collect()).unwrap();
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
                match (field("event: "), field("data: ")) {
                    (Some(name), Some(data)) => return Some((name, serde_json::from_str(&data).unwrap())),
                    _ => continue, // a sign of life
                }
            }
            self.text.extend(self.body.next().await?.unwrap());
        }
    }

    async fn rest(mut self) -> Vec<(String, Value)> {
        let mut all = Vec::new();
        while let Some(event) = self.next().await {
            all.push(event);
        }
        all
    }
}

fn said(events: &[(String, Value)], name: &str) -> String {
    events.iter().filter(|(event, _)| event == name).map(|(_, data)| data["text"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn output_comes_as_it_is_said_and_the_exit_comes_last() {
    let server = Server::start();
    server.ensure("one").await;
    let body = json!({ "scope": { "scheme": "fixed", "name": "one" }, "command": "echo first; until [ -e go ]; do sleep 0.05; done; echo second; echo err >&2; exit 4" });
    let request = server.post("/v1/exec", &body).header("Accept", "text/event-stream");
    let mut events = Events::of(request.send().await.unwrap());
    assert_eq!(events.next().await.unwrap().0, "start");
    let (name, first) = events.next().await.unwrap();
    assert_eq!((name.as_str(), &first["text"], &first["offset"]), ("stdout", &json!("first\n"), &json!(0)));
    server.stdout("one", "touch go").await;
    let rest = events.rest().await;
    assert_eq!((said(&rest, "stdout"), said(&rest, "stderr")), ("second\n".into(), "err\n".into()));
    let (name, exit) = rest.last().unwrap();
    assert_eq!((name.as_str(), &exit["exit_code"]), ("exit", &json!(4)));
}

#[tokio::test]
async fn a_stream_goes_on_where_it_broke_off_with_nothing_lost_or_doubled() {
    let server = Server::start();
    let task = server.begin("one", "seq 1 20000; until [ -e go ]; do sleep 0.05; done; seq 20001 40000").await;
    let whole: String = (1..=40_000).map(|n| format!("{n}\n")).collect();
    let mut known = String::new();
    let mut rounds = 0;
    loop {
        let path = format!("/v1/tasks/{task}/stream?stdout={}", known.len());
        let mut events = Events::of(server.request(Method::GET, &path).send().await.unwrap());
        assert_eq!(events.next().await.unwrap().0, "start");
        let (name, data) = events.next().await.unwrap();
        if name == "exit" {
            assert_eq!(data["state"], "succeeded");
            break;
        }
        assert_eq!(data["offset"], known.len());
        known.push_str(data["text"].as_str().unwrap());
        rounds += 1;
        if known.len() >= whole.len() / 3 {
            server.stdout("one", "touch go").await;
        }
    }
    assert!(rounds > 1 && known == whole, "{rounds} rounds, {} bytes", known.len());
}

#[tokio::test]
async fn any_number_may_follow_and_each_sees_all() {
    let server = Server::start();
    let task = server.begin("one", "for i in $(seq 1 50); do echo $i; sleep 0.01; done").await;
    let path = format!("/v1/tasks/{task}/stream");
    let followers =
        (0..20).map(|_| async { Events::of(server.request(Method::GET, &path).send().await.unwrap()).rest().await });
    let whole: String = (1..=50).map(|n| format!("{n}\n")).collect();
    for events in futures_util::future::join_all(followers).await {
        assert_eq!(said(&events, "stdout"), whole);
        assert_eq!(events.last().unwrap().0, "exit");
    }
}

#[tokio::test]
async fn a_call_that_has_ended_is_streamed_again_from_its_record() {
    let server = Server::start();
    for command in ["echo small; echo e >&2", "seq 1 100000"] {
        let answer = server.exec("one", command).await;
        let path = format!("/v1/calls/{}/stream", answer["call_id"].as_str().unwrap());
        let events = Events::of(server.request(Method::GET, &path).send().await.unwrap()).rest().await;
        assert_eq!(said(&events, "stdout").len() as u64, answer["stdout_total"].as_u64().unwrap());
        assert_eq!(events.last().unwrap().1["state"], "answered");
    }
}

#[tokio::test]
async fn a_key_that_is_used_again_streams_the_same_again() {
    let server = Server::start();
    let body = json!({ "scope": { "scheme": "fixed", "name": "one" }, "command": "date +%N" });
    let mut all = Vec::new();
    for _ in 0..2 {
        let request =
            server.post("/v1/exec", &body).header("Accept", "text/event-stream").header("Idempotency-Key", "k");
        all.push(Events::of(request.send().await.unwrap()).rest().await);
    }
    assert_eq!(all[0], all[1]);
    assert!(!said(&all[0], "stdout").is_empty());
}

#[tokio::test]
async fn an_output_that_is_not_there_is_not_found() {
    let server = Server::start();
    let nowhere = "call_01a1e36ddd427372ba516dbc9344fafd";
    for path in ["", "/output", "/stream"] {
        let answer = server.request(Method::GET, &format!("/v1/calls/{nowhere}{path}")).send().await.unwrap();
        assert_eq!(refused(answer).await, (404, "call_not_found".into()));
    }
    let odd = server.request(Method::GET, "/v1/calls/x/output").send().await.unwrap();
    assert_eq!(refused(odd).await, (400, "bad_request".into()));
    let good_one = good(server.request(Method::GET, "/v1/calls").send().await.unwrap()).await;
    assert_eq!(good_one["calls"], json!([]));
}
