//! What goes on with a key ends with it.

use futures_util::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::{
    inside::{Socket, listening, open_socket},
    sdk::{Frames, Sdk},
    stage::{Server, client, good, refused, until},
    streams::Events,
    terminals::Terminal,
};

/// What has no end of its own, all of it opened with one key.
struct Open {
    terminal: Terminal,
    port: Socket,
    events: Events,
    task: Events,
    exec: Events,
    watch: Events,
    agent: Frames,
    /// It is typed to, and its answer comes when that ends.
    typing: JoinSet<Frames>,
}

impl Open {
    async fn with(server: Server, key: &str) -> (Self, Sdk) {
        let sandbox = listening(&server, "one").await;
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", bearer.as_str())];
        let mut terminal = Terminal::open_as(&server, key, &sandbox, "command=cat").await;
        terminal.types("echoed\n").await;
        terminal.says("echoed").await;
        let (port, _) = open_socket(&server, &format!("/p/{sandbox}/8000/socket"), &headers).await.unwrap();
        let task = server.begin("one", "echo begun; exec sleep 600").await;
        let follow = async |path: &str| {
            let request = client().get(format!("{}{path}", server.url)).bearer_auth(key);
            let mut events = Events::of(request.send().await.unwrap());
            events.next().await.unwrap(); // it is told that it listens
            events
        };
        let events = follow("/v1/events").await;
        let mut of_task = follow(&format!("/v1/tasks/{task}/stream")).await;
        assert_eq!(of_task.next().await.unwrap().1["text"], "begun\n");
        let exec = client().post(format!("{}/v1/sandboxes/{sandbox}/exec", server.url)).bearer_auth(key);
        let exec = exec.header("Accept", "text/event-stream").json(&json!({ "command": "exec sleep 600" }));
        let exec = Events::of(exec.send().await.unwrap());
        let watch = follow(&format!("/v1/sandboxes/{sandbox}/files/watch?path=/tmp")).await;
        let sdk = agent_of(server, key).await;
        let mut agent = sdk.begin("echo begun; read line", json!({ "stdin": true })).await;
        let pid = agent.pid().await;
        agent.until("begun").await;
        let mut types = JoinSet::new();
        types.spawn(typing(&sdk, pid));
        (Self { terminal, port, events, task: of_task, exec, watch, agent, typing: types }, sdk)
    }

    async fn all_end(mut self, server: &Server) {
        let call = self.terminal.call.clone();
        let (last, code) = self.terminal.end().await;
        assert_eq!((&last["error"]["code"], code), (&json!("unauthorized"), CloseCode::Policy), "{last}");
        // The command behind it is hung up.
        until(|| async { (server.get(&format!("/v1/calls/{call}")).await["state"] != "running").then_some(()) }).await;
        let mut port = self.port;
        while let Some(Ok(_)) = port.next().await {}
        for mut events in [self.events, self.task, self.exec, self.watch] {
            let mut last = (String::new(), Value::Null);
            while let Some(event) = events.next().await {
                last = event;
            }
            assert_eq!((last.0.as_str(), &last.1["error"]["code"]), ("error", &json!("unauthorized")), "{last:?}");
        }
        let typing = self.typing.join_next().await.unwrap().unwrap();
        for mut frames in [self.agent, typing] {
            let (flags, end) = frames.next().await.unwrap();
            assert_eq!((flags, &end["error"]["code"]), (2, &json!("unauthenticated")), "{end}");
        }
    }
}

/// A sandbox of the same key, by E2B's protocol.
async fn agent_of(server: Server, key: &str) -> Sdk {
    let asked = json!({ "templateID": "base", "timeout": 3600, "secure": true });
    let made = client().post(format!("{}/sandboxes", server.url)).header("x-api-key", key).json(&asked);
    let made = good(made.send().await.unwrap()).await;
    let text = |name: &str| made[name].as_str().unwrap().to_owned();
    Sdk { sandbox: text("sandboxID"), token: text("envdAccessToken"), server }
}

/// A stream of input that does not end.
fn typing(sdk: &Sdk, pid: u64) -> impl Future<Output = Frames> + use<> {
    let start = json!({ "start": { "process": { "pid": pid } } });
    let first = crate::sdk::frame(0, start.to_string().as_bytes());
    let endless = futures_util::stream::iter([Ok::<_, std::io::Error>(first)]).chain(futures_util::stream::pending());
    let request = sdk.streaming("/process.Process/StreamInput").body(reqwest::Body::wrap_stream(endless));
    async { Frames::of(request.send().await.unwrap()) }
}

async fn key(server: &Server, more: Value) -> (String, String) {
    let mut asked = json!({ "role": "use" });
    asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let made = good(server.post("/v1/keys", &asked).send().await.unwrap()).await;
    let text = |name: &str| made[name].as_str().unwrap().to_owned();
    (text("id"), text("key"))
}

async fn ends_with(open: Open, sdk: &Sdk, key: &str, end: impl AsyncFnOnce()) {
    // Of another key of the same tenant.
    let task = sdk.server.begin("one", "until [ -e /tmp/go ]; do sleep 0.05; done; exit 3").await;
    let other = sdk.server.request(Method::GET, &format!("/v1/tasks/{task}/stream"));
    let mut other = Events::of(other.send().await.unwrap());
    end().await;
    open.all_end(&sdk.server).await;
    let again = client().get(format!("{}/v1/events", sdk.server.url)).bearer_auth(key);
    assert_eq!(refused(again.send().await.unwrap()).await, (401, "unauthorized".into()));
    sdk.server.stdout("one", "touch /tmp/go").await;
    while let Some((name, data)) = other.next().await {
        if name == "exit" {
            assert_eq!(data["exit"]["exit_code"], 3, "the control goes on to its end");
            return;
        }
    }
    panic!("the stream of another key has ended without an exit");
}

#[tokio::test]
async fn streams_and_terminals_end_when_their_key_is_revoked() {
    let server = Server::start();
    let (id, key) = key(&server, json!({})).await;
    let (open, sdk) = Open::with(server, &key).await;
    let revoke = async || {
        good(sdk.server.request(Method::DELETE, &format!("/v1/keys/{id}")).send().await.unwrap()).await;
    };
    ends_with(open, &sdk, &key, revoke).await;
}

#[tokio::test]
async fn streams_and_terminals_end_when_their_key_expires() {
    const LASTS: i64 = 120;
    let server = Server::start();
    let expires = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(LASTS);
    let (_, key) = key(&server, json!({ "expires_at": expires.to_string() })).await;
    let (open, sdk) = Open::with(server, &key).await;
    ends_with(open, &sdk, &key, async || sdk.server.pass(LASTS)).await;
}
