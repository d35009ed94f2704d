//! What a sandbox of E2B's clients may reach, and how that is changed while it runs.

use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::stage::{Server, good};

async fn make(server: &Server, more: Value) -> Response {
    let mut asked = json!({ "templateID": "base", "timeout": 300, "secure": true });
    asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.post("/sandboxes", &asked).send().await.unwrap()
}

async fn made(server: &Server, more: Value) -> String {
    good(make(server, more).await).await["sandboxID"].as_str().unwrap().to_owned()
}

async fn put(server: &Server, sandbox: &str, network: Value) -> u16 {
    let request = server.request(Method::PUT, &format!("/sandboxes/{sandbox}/network")).json(&network);
    request.send().await.unwrap().status().as_u16()
}

/// What judges a connection from inside, in the words of its refusal; `None` where it was not refused.
async fn refusal(server: &Server, sandbox: &str, to: &str) -> Option<String> {
    // The proxy inside says why: a connection that is only cut says nothing.
    let script = format!("curl -s -m 30 -w '%{{http_code}}' -x http://127.0.0.1:65502 http://{to}/; true");
    let path = format!("/v1/sandboxes/{sandbox}/exec");
    let said = good(server.post(&path, &json!({ "command": script })).send().await.unwrap()).await;
    let said = said["stdout"].as_str().unwrap().to_owned();
    said.ends_with("403").then_some(said)
}

#[tokio::test]
async fn what_is_asked_for_is_kept_and_shown() {
    let server = Server::start();
    let network = json!({ "allowOut": ["1.1.1.1", "*.example.com"], "denyOut": ["0.0.0.0/0"] });
    let sandbox = made(&server, json!({ "network": network })).await;
    let shown = server.get(&format!("/sandboxes/{sandbox}")).await["network"].clone();
    assert_eq!((&shown["allowOut"], &shown["denyOut"]), (&network["allowOut"], &network["denyOut"]));
    let ours = server.get(&format!("/v1/sandboxes/{sandbox}")).await;
    assert_eq!(ours["network"], json!({ "mode": "allowlist", "allow": ["1.1.1.1", "*.example.com"] }), "{ours}");
    let but = json!({ "network": { "allowOut": ["8.8.8.8"], "denyOut": ["8.0.0.0/8"] } });
    let ours = server.get(&format!("/v1/sandboxes/{}", made(&server, but).await)).await;
    assert_eq!(ours["network"], json!({ "mode": "public", "allow": ["8.8.8.8"], "deny": ["8.0.0.0/8"] }));
}

#[tokio::test]
async fn what_cannot_be_done_makes_no_sandbox() {
    let server = Server::start();
    for (network, word) in [
        (json!({ "denyOut": ["example.com"] }), "example.com"),
        (json!({ "allowOut": ["example.com"] }), "ALL_TRAFFIC"),
        (json!({ "egressProxy": { "address": "proxy.example.com:1080" } }), "egressProxy"),
        (json!({ "rules": { "a.com": [{ "transform": { "headers": { "X": "hush" } } }] } }), "rules"),
        (json!({ "maskRequestHost": "a b" }), "a b"),
    ] {
        let refused = make(&server, json!({ "network": network })).await;
        let (status, said) = (refused.status().as_u16(), refused.json::<Value>().await.unwrap());
        assert_eq!((status, &said["code"]), (400, &json!(400)), "{network}");
        let message = said["message"].as_str().unwrap();
        assert!(message.contains(word) && !message.contains("hush"), "{message}");
    }
    let open = json!({ "secure": false, "network": { "allowPublicTraffic": false } });
    assert_eq!(make(&server, open).await.status(), 400);
    assert_eq!(server.get("/v2/sandboxes").await, json!([]));
}

#[tokio::test]
async fn a_running_sandbox_takes_other_rules_and_keeps_them_when_it_rests() {
    let server = Server::start();
    let sandbox = made(&server, json!({})).await;
    let denied = |to: &'static str| {
        let (server, sandbox) = (&server, &sandbox);
        async move { refusal(server, sandbox, to).await.is_some_and(|said| said.contains("denied to this sandbox")) }
    };
    assert_eq!(
        put(&server, &sandbox, json!({ "denyOut": ["203.0.114.0/24"], "allowOut": ["203.0.114.9"] })).await,
        204
    );
    assert!(denied("203.0.114.8").await);
    assert!(!denied("203.0.114.9").await && !denied("203.0.115.8").await);
    let rest = server.post(&format!("/sandboxes/{sandbox}/pause"), &json!({ "memory": false })).send().await.unwrap();
    assert_eq!(rest.status(), 204);
    assert_eq!(put(&server, &sandbox, json!({})).await, 409, "not while it rests");
    let back = server.post(&format!("/sandboxes/{sandbox}/connect"), &json!({ "timeout": 60 })).send().await.unwrap();
    assert_eq!(back.status(), 201);
    assert!(denied("203.0.114.8").await);
    // All at once, and what is left out is cleared.
    assert_eq!(put(&server, &sandbox, json!({ "allow_internet_access": false })).await, 204);
    assert!(refusal(&server, &sandbox, "203.0.115.8").await.unwrap().contains("off"));
    assert_eq!(put(&server, &sandbox, json!({})).await, 204);
    assert!(!denied("203.0.114.8").await);
    let shown = server.get(&format!("/sandboxes/{sandbox}")).await;
    assert_eq!((&shown["network"]["denyOut"], &shown["allowInternetAccess"]), (&Value::Null, &Value::Null));
}

#[tokio::test]
async fn an_update_that_is_wrong_or_foreign_changes_nothing() {
    let server = Server::start();
    let sandbox = made(&server, json!({ "network": { "denyOut": ["203.0.114.8"], "maskRequestHost": "a.com" } })).await;
    for network in [json!({ "denyOut": ["a.com"] }), json!({ "egressProxy": { "address": "a:1" } })] {
        assert_eq!(put(&server, &sandbox, network).await, 400);
    }
    let stranger = server.key_for("other", "use").await;
    let foreign = reqwest::Client::new().put(format!("{}/sandboxes/{sandbox}/network", server.url));
    assert_eq!(foreign.header("X-API-KEY", stranger).json(&json!({})).send().await.unwrap().status(), 404);
    let shown = server.get(&format!("/sandboxes/{sandbox}")).await["network"].clone();
    assert_eq!((&shown["denyOut"], &shown["maskRequestHost"]), (&json!(["203.0.114.8"]), &json!("a.com")));
    assert_eq!(put(&server, &sandbox, json!({ "denyOut": ["203.0.114.7"] })).await, 204);
    let shown = server.get(&format!("/sandboxes/{sandbox}")).await["network"].clone();
    assert_eq!(
        (&shown["denyOut"], &shown["maskRequestHost"]),
        (&json!(["203.0.114.7"]), &json!("a.com")),
        "who comes in stays"
    );
    assert_eq!(put(&server, "nobodyatall", json!({})).await, 404);
}

#[tokio::test]
async fn who_may_not_open_the_inside_cannot_by_this_front_either() {
    let server = Server::start();
    let key = server.key_for("other", "use").await;
    let asked = json!({ "templateID": "base", "network": { "denyOut": ["0.0.0.0/0"], "allowOut": ["127.0.0.1"] } });
    let refused =
        reqwest::Client::new().post(format!("{}/sandboxes", server.url)).header("X-API-KEY", key).json(&asked);
    assert_eq!(refused.send().await.unwrap().status(), 403);
}
