//! Input that no command reads, of clients that do not wait, and uploads that stand still.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures_util::{
    StreamExt,
    stream::{self, FuturesUnordered},
};
use reqwest::{Body, Method, Response, StatusCode};
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

use crate::{
    e2b::signed,
    sdk::Sdk,
    stage::{Server, client, good, refused, until},
};

/// Of one input, and how many of a tenant's the server may have in memory.
const LARGE: usize = 3_000_000;
const MANY: usize = (64 << 20) / LARGE;

async fn under_way(server: &Server) -> usize {
    let metrics = server.request(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
    let line = metrics.lines().find_map(|line| line.strip_prefix("cabana_calls_under_way ")).unwrap();
    line.parse().unwrap()
}

/// One after the other, until one is refused: that one, and how many wait by then.
async fn send_until_refused(server: &Server, send: impl AsyncFn() -> Response) -> (Response, usize) {
    let mut waiting = FuturesUnordered::new();
    loop {
        let before = under_way(server).await;
        waiting.push(send());
        let accepted = until(async || (under_way(server).await > before).then_some(()));
        tokio::select! {
            refused = waiting.next() => return (refused.unwrap(), waiting.len()),
            () = accepted => {}
        }
        assert!(waiting.len() < 300, "all of them are held");
    }
}

#[tokio::test]
async fn input_of_commands_in_the_background_is_charged_until_they_end() {
    let server = Server::start();
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let exec = async |command: &str, length: usize, background: bool| {
        let body = json!({ "command": command, "stdin": "x".repeat(length), "background": background });
        server.post(&format!("/v1/sandboxes/{sandbox}/exec"), &body).send().await.unwrap()
    };
    let mut tasks = Vec::new();
    let late = loop {
        assert!(tasks.len() <= MANY, "all of them are held");
        let answer = exec("exec sleep 600", LARGE, true).await;
        if answer.status() != 202 {
            break answer;
        }
        tasks.push(answer.json::<Value>().await.unwrap()["id"].as_str().unwrap().to_owned());
    };
    assert_eq!(refused(late).await, (503, "server_busy".into()));
    assert_eq!(tasks.len(), MANY);
    assert_eq!(refused(exec("cat", LARGE, false).await).await.1, "server_busy", "it would be held as well");
    assert_eq!(good(exec("wc -c", 1000, false).await).await["stdout"], "1000\n", "little is let through");
    let other = server.key_for("other", "use").await;
    let body = json!({ "command": "wc -c", "stdin": "x".repeat(LARGE) });
    let theirs = client().post(format!("{}/v1/exec", server.url)).bearer_auth(other).json(&body);
    assert_eq!(good(theirs.send().await.unwrap()).await["stdout"], format!("{LARGE}\n"));
    for task in tasks {
        good(server.post(&format!("/v1/tasks/{task}/cancel"), &json!({})).send().await.unwrap()).await;
    }
    assert_eq!(good(exec("wc -c", LARGE, false).await).await["stdout"], format!("{LARGE}\n"));
}

#[tokio::test]
async fn input_of_calls_that_wait_for_their_sandbox_is_charged() {
    let server = Server::start();
    let hook = json!({ "command": "sleep 600", "timeout_sec": 300 });
    let scope = json!({ "scheme": "fixed", "name": "one" });
    let stdin = STANDARD.encode(vec![b'x'; LARGE]);
    let exec = async || {
        let spec = json!({ "lifecycle": { "after_start": hook } });
        let body = json!({ "scope": scope, "spec": spec, "command": "wc -c", "stdin_b64": stdin });
        server.post("/v1/exec", &body).send().await.unwrap()
    };
    let (late, waiting) = send_until_refused(&server, exec).await;
    assert_eq!(refused(late).await, (503, "server_busy".into()));
    assert_eq!(waiting, MANY);
}

#[tokio::test]
async fn input_that_is_typed_to_a_command_that_does_not_read_is_bounded() {
    let sdk = Sdk::start().await;
    let begin = async || sdk.begin("exec sleep 600", json!({ "stdin": true })).await.pid().await;
    let send = async |pid: u64, length: usize| {
        let input = json!({ "stdin": STANDARD.encode(vec![b'x'; length]) });
        sdk.unary("/process.Process/SendInput", json!({ "process": { "pid": pid }, "input": input })).await
    };
    let pid = begin().await;
    let (late, waiting) = send_until_refused(&sdk.server, async || send(pid, LARGE).await).await;
    assert_eq!(late.status(), 429);
    assert_eq!(waiting, MANY);
    let signal = json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL" });
    sdk.call("/process.Process/SendSignal", signal).await;
    until(async || (under_way(&sdk.server).await == 0).then_some(())).await;
    // However short they are: each is a call that goes on. What is longer than a pipe waits, in whatever order they come.
    let pid = begin().await;
    let (late, waiting) = send_until_refused(&sdk.server, async || send(pid, 70_000).await).await;
    assert_eq!(late.status(), 429);
    assert!(waiting < 70, "{waiting} calls wait for one command");
}

/// So many bytes, and no end.
fn standing_still(length: usize) -> Body {
    let piece = stream::iter([Ok::<_, std::io::Error>(vec![b'x'; length])]);
    Body::wrap_stream(piece.chain(stream::pending()))
}

#[tokio::test]
async fn uploads_that_stand_still_are_charged_and_take_no_other_tenants_room() {
    let sdk = Sdk::start().await;
    let sandbox = sdk.server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/sandboxes/{sandbox}/files?path=file");
    let put = || sdk.server.request(Method::PUT, &path);
    let post = || sdk.ask(Method::POST, "/files?path=file");
    let raw = || post().header("content-type", "application/octet-stream");
    let form = || post().header("content-type", "multipart/form-data; boundary=xx");
    let (late, waiting) =
        send_until_refused(&sdk.server, async || put().body(standing_still(1_000_000)).send().await.unwrap()).await;
    assert_eq!(refused(late).await, (429, "too_many_streams".into()));
    assert!(waiting <= 256, "{waiting}");
    until(async || (under_way(&sdk.server).await == 0).then_some(())).await;

    let held: FuturesUnordered<_> = (0..waiting).map(|_| put().body(standing_still(1_000_000)).send()).collect();
    let held = TaskTracker::new().spawn(held.collect::<Vec<_>>());
    until(async || (under_way(&sdk.server).await == waiting).then_some(())).await;
    for late in [raw(), form()] {
        assert_eq!(late.body(standing_still(1_000_000)).send().await.unwrap().status(), 429);
    }
    let input = json!({ "command": "wc -c", "stdin": "x".repeat(LARGE) });
    let exec = sdk.server.post(&format!("/v1/sandboxes/{sandbox}/exec"), &input);
    assert_eq!(good(exec.send().await.unwrap()).await["stdout"], format!("{LARGE}\n"), "input has memory of its own");
    let other = sdk.server.key_for("other", "use").await;
    let theirs = json!({ "scope": { "scheme": "fixed", "name": "theirs" } });
    let theirs = client().post(format!("{}/v1/sandboxes:ensure", sdk.server.url)).bearer_auth(&other).json(&theirs);
    let theirs = good(theirs.send().await.unwrap()).await["id"].as_str().unwrap().to_owned();
    let url = format!("{}/v1/sandboxes/{theirs}/files?path=file", sdk.server.url);
    good(client().put(url).bearer_auth(&other).body(vec![b'x'; LARGE]).send().await.unwrap()).await;
    held.abort();
    until(async || {
        let answer = put().body(vec![b'x'; LARGE]).send().await.unwrap();
        (answer.status() == StatusCode::OK).then_some(())
    })
    .await;
}

#[tokio::test]
async fn uploads_by_url_that_stand_still_have_memory_of_their_own() {
    const MANY: usize = 16;
    let sdk = Sdk::start().await;
    let url = signed(&sdk.token, "file", "write", None);
    let send = async || {
        let request = sdk.inside(Method::POST, &url).header("content-type", "application/octet-stream");
        request.body(standing_still(1_000_000)).send().await.unwrap()
    };
    let (late, waiting) = send_until_refused(&sdk.server, send).await;
    assert_eq!((late.status().as_u16(), waiting), (503, MANY));
}

/// None of them is a call: no file has come.
#[tokio::test]
async fn forms_by_url_that_stand_still_leave_places_to_the_tenants_own_uploads() {
    let sdk = Sdk::start().await;
    let sandbox = sdk.server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let url = signed(&sdk.token, "file", "write", None);
    let send = || {
        let request = sdk.inside(Method::POST, &url).header("content-type", "multipart/form-data; boundary=xx");
        request.header("content-length", "2").body(standing_still(1)).send()
    };
    let mut waiting: FuturesUnordered<_> = (0..300).map(|_| send()).collect();
    let first = waiting.next().await.unwrap().unwrap();
    assert_eq!(first.status().as_u16(), 429, "there are so many of them");
    let put = sdk.server.request(Method::PUT, &format!("/v1/sandboxes/{sandbox}/files?path=own"));
    good(put.body("own").send().await.unwrap()).await;
    drop(waiting);
}

#[tokio::test]
async fn uploads_of_one_tenant_that_stand_still_have_a_number() {
    let server = Server::start();
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/sandboxes/{sandbox}/files?path=file");
    let send = async || {
        let request = server.request(Method::PUT, &path).header("content-length", "2");
        request.body(standing_still(1)).send().await.unwrap()
    };
    let (late, waiting) = send_until_refused(&server, send).await;
    assert_eq!(refused(late).await, (429, "too_many_streams".into()));
    assert!(waiting <= 256, "{waiting}");
}
