//! What happens, as listeners hear of it.

use std::collections::HashSet;

use futures_util::{StreamExt, future::join_all, stream::BoxStream};
use reqwest::Method;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::stage::{PATIENCE, Server, client, good, refused};

pub(crate) struct Listener {
    body: BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    text: Vec<u8>,
}

impl Listener {
    /// Once it hears.
    pub(crate) async fn at(server: &Server, key: &str, query: &str) -> Self {
        let request = client().get(format!("{}/v1/events{query}", server.url)).bearer_auth(key);
        let answer = request.send().await.unwrap();
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        let mut listener = Self { body: answer.bytes_stream().boxed(), text: Vec::new() };
        assert!(listener.block().await.contains("event: ready"));
        listener
    }

    async fn block(&mut self) -> String {
        loop {
            if let Some(end) = self.text.windows(2).position(|two| two == b"\n\n") {
                return String::from_utf8(self.text.drain(..end + 2).collect()).unwrap();
            }
            let more = timeout(PATIENCE, self.body.next()).await.expect("something happens");
            self.text.extend(more.unwrap().unwrap());
        }
    }

    async fn next(&mut self) -> Value {
        loop {
            let block = self.block().await;
            let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
            if let Some(data) = field("data: ") {
                let event: Value = serde_json::from_str(&data).unwrap();
                assert_eq!(event["id"], json!(field("id: ").unwrap()));
                return event;
            }
        }
    }

    /// Up to the first of this type.
    pub(crate) async fn until(&mut self, kind: &str) -> Vec<Value> {
        let mut all = vec![self.next().await];
        while all.last().unwrap()["type"] != kind {
            all.push(self.next().await);
        }
        all
    }
}

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_sandboxs_life_is_heard_in_order() {
    let server = Server::start();
    let mut listener = Listener::at(&server, &server.key, "").await;
    let sandbox = server.ensure("one").await["id"].clone();
    let task = server.begin("one", "true").await;
    let mut all = listener.until("task.ended").await;
    let path = format!("/v1/sandboxes/{}", sandbox.as_str().unwrap());
    good(server.post(&format!("{path}/stop"), &json!({})).send().await.unwrap()).await;
    good(server.request(Method::DELETE, &path).send().await.unwrap()).await;
    all.extend(listener.until("sandbox.deleted").await);
    let told =
        ["sandbox.created", "sandbox.running", "task.started", "task.ended", "sandbox.stopped", "sandbox.deleted"];
    assert_eq!(types(&all), told);
    assert!(all.iter().all(|event| event["sandbox"] == sandbox && event["at"].is_string()));
    assert_eq!((&all[3]["task"], &all[3]["state"]), (&json!(task), &json!("succeeded")));
    assert_eq!(all[4]["reason"], "asked for");
    assert_eq!(all.iter().map(|event| event["id"].as_str().unwrap()).collect::<HashSet<_>>().len(), all.len());
}

#[tokio::test]
async fn a_listener_hears_of_its_own_sandbox_and_its_own_tenant_alone() {
    let server = Server::start();
    let (one, two) = (server.ensure("one").await["id"].clone(), server.ensure("two").await["id"].clone());
    let (other, nowhere) = (server.key_for("other", "read").await, "aaaaaaaaaaaaaaaa");
    let query = format!("?sandbox={}", two.as_str().unwrap());
    let mut of_two = Listener::at(&server, &server.key, &query).await;
    let mut of_other = Listener::at(&server, &other, "").await;
    for sandbox in [&one, &two] {
        let path = format!("/v1/sandboxes/{}/stop", sandbox.as_str().unwrap());
        good(server.post(&path, &json!({})).send().await.unwrap()).await;
    }
    let heard = of_two.next().await;
    assert_eq!((&heard["type"], &heard["sandbox"]), (&json!("sandbox.stopped"), &two));
    let theirs = server.post("/v1/sandboxes", &json!({})).header("Cabana-Tenant", "other").send().await.unwrap();
    let theirs = good(theirs).await["id"].clone();
    assert_eq!(of_other.next().await["sandbox"], theirs, "what happened before was not for it");
    for (key, sandbox) in [(&other, two.as_str().unwrap()), (&other, nowhere), (&server.key, nowhere)] {
        let request = client().get(format!("{}/v1/events?sandbox={sandbox}", server.url)).bearer_auth(key);
        assert_eq!(refused(request.send().await.unwrap()).await, (404, "sandbox_not_found".into()));
    }
    let nobody = client().get(format!("{}/v1/events", server.url)).send().await.unwrap();
    assert_eq!(refused(nobody).await, (401, "unauthorized".into()));
}

#[tokio::test]
async fn a_thousand_listeners_hold_up_nobody_and_all_hear() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let server = Server::start();
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let mut listeners = Vec::new();
    for _ in 0..10 {
        listeners.extend(join_all((0..100).map(|_| Listener::at(&server, &server.key, ""))).await);
    }
    for _ in 0..20 {
        assert_eq!(server.stdout("one", "echo fine").await, "fine\n");
    }
    good(server.post(&format!("/v1/sandboxes/{sandbox}/stop"), &json!({})).send().await.unwrap()).await;
    let heard = join_all(listeners.iter_mut().map(Listener::next)).await;
    assert!(heard.iter().all(|event| event["type"] == "sandbox.stopped" && event["id"] == heard[0]["id"]));
}
