//! Commands in the background.

use reqwest::Method;
use serde_json::{Value, json};

use crate::stage::{Server, good, refused, until};

#[tokio::test]
async fn a_task_is_followed_to_its_end() {
    let server = Server::start();
    let task = server.begin("one", "echo out; echo err >&2; exit 5").await;
    let ended = server.ended(&task).await;
    assert_eq!((&ended["state"], &ended["exit"]["exit_code"]), (&json!("failed"), &json!(5)));
    let path = format!("/v1/tasks/{task}/output");
    let read = async |query: &str| {
        server.request(Method::GET, &format!("{path}{query}")).send().await.unwrap().text().await.unwrap()
    };
    assert_eq!((read("").await, read("?stream=stderr").await), ("out\n".into(), "err\n".into()));
    let fine = server.begin("one", "true").await;
    assert_eq!(server.ended(&fine).await["state"], "succeeded");
    let listed = server.get("/v1/tasks").await;
    let ids: Vec<_> = listed["tasks"].as_array().unwrap().iter().map(|task| task["id"].clone()).collect();
    assert_eq!(ids, [json!(fine), json!(task)], "the newest first");
}

#[tokio::test]
async fn a_cancelled_task_ends_with_its_tree_and_stays_cancelled() {
    let server = Server::start();
    let task =
        server.begin("one", "setsid sleep 600 & (trap '' TERM; sleep 600; sleep 600) & echo up; sleep 600").await;
    until(|| async { (server.stdout("one", "pgrep -c sleep || true").await == "3\n").then_some(()) }).await;
    let cancel =
        async || good(server.post(&format!("/v1/tasks/{task}/cancel"), &json!({})).send().await.unwrap()).await;
    assert_eq!(cancel().await["state"], "cancelled");
    assert_eq!(cancel().await["state"], "cancelled");
    until(|| async { (server.stdout("one", "pgrep -c sleep || true").await == "0\n").then_some(()) }).await;
    let done = server.begin("one", "true").await;
    server.ended(&done).await;
    let late = good(server.post(&format!("/v1/tasks/{done}/cancel"), &json!({})).send().await.unwrap()).await;
    assert_eq!(late["state"], "succeeded", "what has ended stays what it is");
}

#[tokio::test]
async fn a_task_that_cannot_begin_is_refused() {
    let server = Server::start();
    let body = json!({ "scope": { "scheme": "fixed", "name": "one" }, "argv": ["/nowhere"], "background": true });
    assert_eq!(refused(server.post("/v1/exec", &body).send().await.unwrap()).await.1, "program_not_found");
    let tasks = server.get("/v1/tasks").await;
    assert_eq!(tasks["tasks"][0]["state"], "failed");
}

#[tokio::test]
async fn the_same_key_gives_the_same_task() {
    let server = Server::start();
    let body =
        json!({ "scope": { "scheme": "fixed", "name": "one" }, "command": "echo run >> log", "background": true });
    let mut ids = Vec::new();
    for _ in 0..3 {
        let answer = server.post("/v1/exec", &body).header("Idempotency-Key", "k").send().await.unwrap();
        ids.push(answer.json::<Value>().await.unwrap()["id"].as_str().unwrap().to_owned());
    }
    assert!(ids.iter().all(|id| *id == ids[0]));
    server.ended(&ids[0]).await;
    assert_eq!(server.stdout("one", "cat log").await, "run\n");
}

#[tokio::test]
async fn a_stop_of_its_sandbox_ends_a_task() {
    let server = Server::start();
    let task = server.begin("one", "sleep 600").await;
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    good(server.post(&format!("/v1/sandboxes/{sandbox}/stop"), &json!({})).send().await.unwrap()).await;
    assert_eq!(server.ended(&task).await["state"], "failed");
}
