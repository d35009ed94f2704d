//! Answers that their clients do not read.

use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::stage::{Server, client, good, refused, until};

/// Of what one search finds, as JSON.
const MOST: u64 = 4 << 20;
/// A thousand lines of what becomes six times as long as JSON.
const LINES: &str = "yes \"$(head -c 1000 /dev/zero | tr '\\0' '\\1')\" | head -n 1000 | tee lines";

/// Until there is no room for more, and again once they are gone.
async fn fill(search: impl Fn() -> RequestBuilder) {
    let mut unread = Vec::new();
    let late = loop {
        assert!(unread.len() < 40, "so many are let be unread");
        let answer = search().send().await.unwrap();
        if answer.status() != 200 {
            break answer;
        }
        let length = answer.content_length().unwrap();
        assert!(length > MOST / 2 && length < MOST + MOST / 8, "{length} bytes");
        unread.push(answer);
    };
    assert_eq!(refused(late).await, (503, "server_busy".into()));
    assert!(unread.len() > 8, "{}", unread.len());
    drop(unread);
    until(async || (search().send().await.unwrap().status() == 200).then_some(())).await;
}

#[tokio::test]
async fn what_searches_find_is_charged_until_it_is_read() {
    let server = Server::start();
    let said = server.exec("one", LINES).await;
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let found = format!("/v1/calls/{}/search?pattern=.&limit=1000", said["call_id"].as_str().unwrap());
    fill(|| server.request(Method::GET, &found)).await;
    let files = format!("/v1/sandboxes/{sandbox}/files/search");
    fill(|| server.post(&files, &json!({ "grep": "." }))).await;
    let few = json!({ "grep": ".", "limit": 1 });
    assert_eq!(good(server.post(&files, &few).send().await.unwrap()).await["cut_off"], "limit");
}

/// One that takes next to nothing of its answers.
fn slow_client() -> Client {
    client(); // what all clients need is there then
    Client::builder().http2_prior_knowledge().http2_initial_stream_window_size(1).build().unwrap()
}

#[tokio::test]
async fn short_answers_are_charged_together_until_they_are_taken_and_what_is_done_is_told() {
    let server = Server::start();
    let names: Vec<_> = (0..2000).map(|n| format!("host{n:06}.example.com")).collect();
    let spec = json!({ "network": { "mode": "allowlist", "allow": names } });
    let made = good(server.post("/v1/sandboxes", &spec).send().await.unwrap()).await;
    let url = format!("{}/v1/sandboxes/{}", server.url, made["id"].as_str().unwrap());
    let ask = async |client: &Client| client.get(&url).bearer_auth(&server.key).send().await.unwrap();
    let length = ask(&client()).await.content_length().unwrap();
    assert!((40_000..60_000).contains(&length), "{length}");
    let most = usize::try_from((64 << 20) / (length - (4 << 10)) + 1).unwrap();
    let mut unread: Vec<Response> = Vec::new();
    let (mut slow, mut late) = (slow_client(), None);
    while late.is_none() {
        assert!(unread.len() <= most, "so many are let be unread");
        if unread.len() % 200 == 199 {
            slow = slow_client(); // a connection has so many requests at once
        }
        let answer = ask(&slow).await;
        match answer.status().as_u16() {
            200 => unread.push(answer),
            _ => late = Some(answer),
        }
    }
    assert_eq!(refused(late.unwrap()).await, (503, "server_busy".into()));
    assert!(unread.len() > most / 2, "{}", unread.len());
    assert_eq!(server.request(Method::GET, "/livez").send().await.unwrap().status(), 200);
    // What is done is told, and then nothing more is done until it is taken.
    good(server.post("/v1/sandboxes", &spec).send().await.unwrap()).await;
    let ran = async || {
        let answer = server.exec_in("one", "seq 3000").await;
        (answer.status() == 200).then_some(answer) // once the last answer is known as taken
    };
    assert_eq!(good(until(ran).await).await["exit_code"], 0);
    let create = |client: &Client| {
        client.post(format!("{}/v1/sandboxes", server.url)).bearer_auth(&server.key).json(&spec).send()
    };
    let last = slow_client();
    let untaken = async || Some(create(&last).await.unwrap()).filter(|answer| answer.status() == 201);
    let untaken = until(untaken).await;
    assert_eq!(refused(create(&client()).await.unwrap()).await, (503, "server_busy".into()));
    let listed = good(server.request(Method::GET, "/v1/sandboxes").send().await.unwrap()).await;
    assert_eq!(listed["sandboxes"].as_array().unwrap().len(), 4, "what is refused is not done");
    drop((untaken, last));
    drop((unread, slow));
    until(async || (ask(&client()).await.status() == 200).then_some(())).await;
}

/// Of very many requests, over several connections: what each is told, as it is told.
fn keyed(server: &Server, body: &Value, connections: usize) -> JoinSet<Response> {
    const EACH: usize = 100;
    let mut asking = JoinSet::new();
    for _ in 0..connections {
        let slow = slow_client();
        for _ in 0..EACH {
            let request = slow.post(format!("{}/v1/exec", server.url)).bearer_auth(&server.key).json(body);
            let request = request.header("Idempotency-Key", "one").send();
            asking.spawn(async { request.await.unwrap() });
        }
    }
    asking
}

/// What both its streams say becomes six times as long as JSON.
const SIX_FOLD: &str = "head -c 24576 /dev/zero | tr '\\0' '\\1'; head -c 24576 /dev/zero | tr '\\0' '\\1' >&2";

#[tokio::test]
async fn who_repeats_one_call_very_often_and_takes_nothing_is_refused_and_another_tenant_is_not() {
    let server = Server::start();
    let other = server.key_for("other", "use").await;
    server.ensure("one").await;
    let keep = json!({ "head_bytes": 24576, "tail_bytes": 0 });
    let scope = json!({ "scheme": "fixed", "name": "one" });
    let command = format!("until [ -e go ]; do sleep 0.05; done; {SIX_FOLD}");
    let body = json!({ "scope": scope, "command": command, "keep": keep });
    let mut asking = keyed(&server, &body, 4);
    let count = asking.len();
    server.exec("one", "touch go").await;
    let (mut untaken, mut busy, mut length) = (Vec::new(), 0, 0);
    for _ in 1..count {
        let answer = asking.join_next().await.unwrap().unwrap();
        if answer.status() == 200 {
            length = answer.content_length().unwrap();
            untaken.push(answer);
        } else {
            assert_eq!(answer.status(), 503);
            busy += 1;
        }
    }
    assert!(length > 6 * 2 * 24_000, "{length} bytes");
    let most = usize::try_from((64 << 20) / (length - (8 << 10))).unwrap();
    assert!(most + 8 < count, "more are asked for than there is room for");
    assert!((most / 2..most + 8).contains(&untaken.len()), "{} told, {busy} refused", untaken.len());
    // Another tenant is told as ever, at length, too.
    let scope = json!({ "scheme": "fixed", "name": "theirs" });
    let long = json!({ "scope": scope, "command": SIX_FOLD, "keep": keep });
    let theirs = client().post(format!("{}/v1/exec", server.url)).bearer_auth(&other).json(&long).send().await.unwrap();
    assert_eq!(good(theirs).await["stdout_total"], 24_576);
    drop((untaken, asking)); // the one that ran the command may wait until then
    let again = async || {
        let answer = server.post("/v1/exec", &body).header("Idempotency-Key", "one").send().await.unwrap();
        (answer.status() == 200).then_some(answer)
    };
    assert_eq!(good(until(again).await).await["stdout_total"], 24_576, "it may be asked again");
}

#[tokio::test]
async fn a_tenant_with_very_many_requests_that_wait_is_refused_more_and_another_is_not() {
    const MOST: usize = 4096;
    let server = Server::start();
    let other = server.key_for("other", "use").await;
    server.ensure("one").await;
    let body = json!({ "scope": { "scheme": "fixed", "name": "one" }, "command": "sleep 600", "timeout_ms": 600_000 });
    let mut asking = keyed(&server, &body, MOST / 100 + 2);
    for _ in 0..asking.len() - MOST {
        let late = asking.join_next().await.unwrap().unwrap();
        assert_eq!(refused(late).await, (503, "server_busy".into()));
    }
    let list = |key: &str| client().get(format!("{}/v1/sandboxes", server.url)).bearer_auth(key).send();
    assert_eq!(
        refused(list(&server.key).await.unwrap()).await,
        (503, "server_busy".into()),
        "all its places are taken"
    );
    assert_eq!(list(&other).await.unwrap().status(), 200);
    drop(asking);
    until(async || (list(&server.key).await.unwrap().status() == 200).then_some(())).await;
}
