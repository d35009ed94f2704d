//! What a template has running in its sandboxes from their start on.

use std::fs;

use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::{
    root,
    stage::{Server, good},
};

const NAME: &str = "service";

/// A server with a template of a shell and little else, and this service.
async fn server(start: &str, ready: &str) -> Server {
    let server = Server::start();
    let (dir, tar) = (server.data().join("root"), server.data().join("root.tar"));
    root::make(&dir);
    ["sleep", "mkdir"].iter().for_each(|name| root::add(&dir, &format!("/bin/{name}"), name));
    root::tar(&dir, &tar);
    let query = [("name", NAME), ("user", "maker"), ("start", start), ("ready", ready)];
    let url = reqwest::Url::parse_with_params("http://any/v1/templates", &query).unwrap();
    let path = format!("{}?{}", url.path(), url.query().unwrap());
    let add = server.request(Method::POST, &path).body(fs::read(tar).unwrap());
    let made = good(add.send().await.unwrap()).await;
    assert_eq!((&made["start"], &made["ready"]), (&json!(start), &json!(ready)));
    server
}

async fn asked(server: &Server, path: &str, body: &Value) -> Response {
    let request = server.request(Method::POST, path).header("X-API-KEY", &server.key);
    request.json(body).send().await.unwrap()
}

async fn made(server: &Server) -> String {
    let sandbox = asked(server, "/sandboxes", &json!({"templateID": NAME, "timeout": 600})).await;
    assert_eq!(sandbox.status(), 201);
    good(sandbox).await["sandboxID"].as_str().unwrap().to_owned()
}

async fn said(server: &Server, sandbox: &str, command: &str) -> String {
    let body = json!({ "command": command });
    let answer = good(server.post(&format!("/v1/sandboxes/{sandbox}/exec"), &body).send().await.unwrap()).await;
    assert_eq!(answer["exit_code"], 0, "{answer}");
    answer["stdout"].as_str().unwrap().to_owned()
}

async fn tasks(server: &Server, sandbox: &str) -> Vec<Value> {
    let tasks = server.get(&format!("/v1/tasks?sandbox={sandbox}")).await;
    tasks["tasks"].as_array().unwrap().clone()
}

/// Says how often it was started, and is ready a moment after that.
const START: &str = "echo started >> /home/maker/log; sleep 0.3; mkdir -p /home/maker/up; sleep 1000";
const READY: &str = "test -d /home/maker/up";

#[tokio::test]
async fn it_is_there_when_the_sandbox_is_told_of() {
    let server = server(START, READY).await;
    let sandbox = made(&server).await;
    assert_eq!(said(&server, &sandbox, "test -d /home/maker/up && cat /home/maker/log").await, "started\n");
    assert_eq!(tasks(&server, &sandbox).await.len(), 1);
}

#[tokio::test]
async fn it_is_started_anew_after_a_stop_and_not_after_a_pause() {
    let server = server(START, READY).await;
    let sandbox = made(&server).await;
    for (memory, starts) in [(true, 1), (false, 2)] {
        let paused = asked(&server, &format!("/sandboxes/{sandbox}/pause"), &json!({"memory": memory})).await;
        assert_eq!(paused.status(), 204);
        let resumed = asked(&server, &format!("/sandboxes/{sandbox}/connect"), &json!({"timeout": 600})).await;
        assert_eq!(resumed.status(), 201);
        assert_eq!(
            said(&server, &sandbox, "cat /home/maker/log").await,
            "started\n".repeat(starts),
            "memory: {memory}"
        );
    }
}

#[tokio::test]
async fn one_that_ends_at_once_is_told_with_its_last_words_and_leaves_no_sandbox() {
    let server = server("echo no such port >&2; exit 3", "false").await;
    let refused = asked(&server, "/sandboxes", &json!({"templateID": NAME, "timeout": 600})).await;
    assert!(refused.status().is_client_error() || refused.status().is_server_error(), "{refused:?}");
    let told: Value = refused.json().await.unwrap();
    let message = told["message"].as_str().unwrap();
    assert!(
        message.contains(NAME) && message.contains("start command ended") && message.contains("no such port"),
        "{told}"
    );
    assert_eq!(server.get("/v1/sandboxes").await["sandboxes"], json!([]));
}

#[tokio::test]
async fn a_start_command_that_ends_well_has_left_its_service_behind() {
    let server = server("(sleep 0.3; mkdir -p /home/maker/up; sleep 1000) & exit 0", READY).await;
    made(&server).await;
}
