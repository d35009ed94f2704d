//! A key that stands for one user of a tenant uses what is that user's, and what is nobody's in particular. What another user has is
//! as if it were not there.

use std::collections::BTreeMap;

use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::{
    e2b_stage::Asking,
    stage::{Server, client, good, refused, until},
    tenants::{body_for, fill, send},
};

fn chat_of(user: &str) -> Value {
    json!({ "scheme": "chat", "app": "shop", "user": user, "chat": "7" })
}

async fn key(server: &Server, about: Value) -> String {
    good(server.post("/v1/keys", &about).send().await.unwrap()).await["key"].as_str().unwrap().to_owned()
}

async fn key_of(server: &Server, user: &str) -> String {
    key(server, json!({ "role": "use", "subject": user })).await
}

async fn get(server: &Server, key: &str, path: &str) -> Value {
    good(send(server, key, Method::GET, path, None).await).await
}

async fn post(server: &Server, key: &str, path: &str, body: &Value) -> Response {
    send(server, key, Method::POST, path, Some(body)).await
}

/// Of what a list has.
fn ids(list: &Value) -> Vec<&str> {
    let rows = list.as_object().unwrap().values().find_map(Value::as_array).unwrap();
    rows.iter().map(|row| row["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn no_route_leads_a_key_to_what_another_user_has() {
    let server = Server::start();
    let (bob, ann) = (key_of(&server, "bob").await, key_of(&server, "ann").await);
    let exec = json!({ "scope": chat_of("bob"), "command": "echo secret > note; echo secret" });
    let call = good(post(&server, &bob, "/v1/exec", &exec).await).await;
    let start = json!({ "scope": chat_of("bob"), "command": "echo secret; sleep 600", "background": true });
    let task = good(post(&server, &bob, "/v1/exec", &start).await).await;
    let sandbox = task["sandbox"].as_str().unwrap().to_owned();
    let snapshot = good(post(&server, &bob, &format!("/v1/sandboxes/{sandbox}/snapshots"), &json!({})).await).await;
    let text = |told: &Value, name: &str| told[name].as_str().unwrap().to_owned();
    let bobs = BTreeMap::from([
        ("sandbox", sandbox),
        ("snapshot", text(&snapshot, "id")),
        ("call", text(&call, "call_id")),
        ("task", text(&task, "id")),
        ("port", "8000".to_owned()),
    ]);
    let document: Value = server.get("/openapi.json").await;
    let mut crossed = 0;
    for (route, methods) in document["paths"].as_object().unwrap() {
        let is_bobs = ["{sandbox}", "{snapshot}", "{call}", "{task}"].iter().any(|part| route.contains(part));
        for method in methods.as_object().unwrap().keys().filter(|_| is_bobs) {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let (path, body) = (fill(route, &bobs), body_for(route));
            let body = (method != Method::GET).then_some(&body);
            let told = refused(send(&server, &ann, method.clone(), &path, body).await).await;
            assert_eq!(told.0, 404, "{method} {route}: {told:?}");
            crossed += 1;
        }
    }
    assert!(crossed >= 30, "{crossed} routes were tried");
    for list in ["sandboxes", "calls", "tasks", "snapshots"] {
        let path = format!("/v1/{list}");
        let (anns, of_bob) = (get(&server, &ann, &path).await, get(&server, &bob, &path).await);
        let all = get(&server, &server.key, &path).await;
        assert!(!ids(&of_bob).is_empty(), "the control: {list}");
        assert!(ids(&of_bob).iter().all(|id| !ids(&anns).contains(id)), "{list}: {anns}");
        assert!(ids(&of_bob).iter().all(|id| ids(&all).contains(id)), "a key for nobody sees all: {list}");
        if list != "sandboxes" {
            let of_his = format!("{path}?sandbox={}", bobs["sandbox"]);
            assert_eq!(ids(&get(&server, &ann, &of_his).await), [""; 0], "{list}");
        }
    }
    for of_all in ["/v1/ledger", "/v1/ledger/head", "/v1/usage", "/v1/events", "/v1/webhooks", "/metrics"] {
        let told = refused(send(&server, &bob, Method::GET, of_all, None).await).await;
        assert_eq!(told, (403, "forbidden".into()), "{of_all} tells of all users");
    }
    let hook = post(&server, &bob, "/v1/webhooks", &json!({ "url": "https://example.com/" })).await;
    assert_eq!(refused(hook).await, (403, "forbidden".into()));
    let from = json!({ "snapshot": bobs["snapshot"] });
    assert_eq!(refused(post(&server, &ann, "/v1/sandboxes", &from).await).await, (404, "snapshot_not_found".into()));
    // Nothing of it happened.
    let now = get(&server, &bob, &format!("/v1/sandboxes/{}", bobs["sandbox"])).await;
    assert_eq!(now["state"], "running");
    assert_eq!(get(&server, &bob, &format!("/v1/tasks/{}", bobs["task"])).await["state"], "running");
    assert_eq!(ids(&get(&server, &bob, "/v1/snapshots").await), [&bobs["snapshot"]]);
}

#[tokio::test]
async fn a_key_of_one_user_names_no_other() {
    let server = Server::start();
    let ann = key_of(&server, "ann").await;
    let forbidden = (403, "forbidden".to_owned());
    for scope in [chat_of("bob"), json!({ "scheme": "user", "user": "bob" })] {
        let exec = json!({ "scope": scope, "command": "true" });
        assert_eq!(refused(post(&server, &ann, "/v1/exec", &exec).await).await, forbidden, "{scope}");
        let ensure = json!({ "scope": scope });
        assert_eq!(refused(post(&server, &ann, "/v1/sandboxes:ensure", &ensure).await).await, forbidden, "{scope}");
    }
    let list = json!({ "action": "list", "appId": "shop", "chatId": "7" });
    let files = || client().post(format!("{}/api/core/ai/sandbox/file", server.url)).bearer_auth(&ann).json(&list);
    let told = refused(files().header("Cabana-User", "bob").send().await.unwrap()).await;
    assert_eq!(told, forbidden);
    assert_eq!(server.get("/v1/sandboxes").await["sandboxes"], json!([]), "nothing was made");
    // What is its own, and what is nobody's.
    for scope in
        [chat_of("ann"), json!({ "scheme": "user", "user": "ann" }), json!({ "scheme": "fixed", "name": "all" })]
    {
        good(post(&server, &ann, "/v1/exec", &json!({ "scope": scope, "command": "true" })).await).await;
    }
    good(files().send().await.unwrap()).await;
    good(files().header("Cabana-User", "ann").send().await.unwrap()).await;
    assert_eq!(ids(&get(&server, &ann, "/v1/sandboxes").await).len(), 3);
}

#[tokio::test]
async fn a_key_for_any_subject_names_any_user() {
    let server = Server::start();
    let usually = key(&server, json!({ "role": "use", "subject": "ann", "any_subject": true })).await;
    let list = json!({ "action": "list", "appId": "shop", "chatId": "7" });
    let files = client().post(format!("{}/api/core/ai/sandbox/file", server.url)).bearer_auth(&usually).json(&list);
    good(files.send().await.unwrap()).await;
    let made = get(&server, &usually, "/v1/sandboxes").await;
    assert_eq!(made["sandboxes"][0]["scope"]["user"], "ann", "who is meant where nobody is named");
    good(post(&server, &usually, "/v1/exec", &json!({ "scope": chat_of("bob"), "command": "true" })).await).await;
    assert_eq!(ids(&get(&server, &usually, "/v1/sandboxes").await).len(), 2);
    get(&server, &usually, "/v1/ledger").await;
    let alone = json!({ "role": "use", "any_subject": true });
    let told = refused(server.post("/v1/keys", &alone).send().await.unwrap()).await;
    assert_eq!(told, (400, "bad_request".into()), "any other than whom?");
}

#[tokio::test]
async fn what_a_key_of_one_user_makes_for_no_scope_is_that_users() {
    let server = Server::start();
    let (bob, ann) = (key_of(&server, "bob").await, key_of(&server, "ann").await);
    let made = good(post(&server, &bob, "/v1/sandboxes", &json!({})).await).await;
    let at = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
    assert_eq!(refused(send(&server, &ann, Method::GET, &at, None).await).await.0, 404);
    let (bobs, anns) = (Asking::with(&server, bob.clone()), Asking::with(&server, ann.clone()));
    let made = good(bobs.make("base").await).await;
    let at = format!("/sandboxes/{}", made["sandboxID"].as_str().unwrap());
    for (method, path, body) in [
        (Method::GET, at.clone(), Value::Null),
        (Method::POST, format!("{at}/connect"), json!({ "timeout": 60 })),
        (Method::POST, format!("{at}/pause"), json!({})),
        (Method::DELETE, at.clone(), Value::Null),
    ] {
        assert_eq!(anns.send(method.clone(), &path, &body).await.status(), 404, "{method} {path}");
    }
    assert_eq!(good(anns.get("/v2/sandboxes").await).await, json!([]));
    assert_eq!(good(bobs.get("/v2/sandboxes").await).await.as_array().unwrap().len(), 1);
    // All of its user, and nothing of another's.
    let purge = async |key: &str| good(post(&server, key, "/v1/sandboxes:delete", &json!({ "all": true })).await).await;
    assert_eq!(purge(&ann).await["sandboxes"], 0);
    assert_eq!(purge(&bob).await["sandboxes"], 2);
}

/// Its answers are kept for whoever repeats a call, also when the sandbox is gone.
#[tokio::test]
async fn one_idempotency_key_of_two_users_is_two_calls() {
    let server = Server::start();
    let (bob, ann) = (key_of(&server, "bob").await, key_of(&server, "ann").await);
    let make = async |key: &str| {
        let request = client().post(format!("{}/v1/sandboxes", server.url)).bearer_auth(key);
        good(request.header("Idempotency-Key", "same").json(&json!({})).send().await.unwrap()).await["id"].clone()
    };
    let bobs = make(&bob).await;
    assert_eq!(make(&bob).await, bobs, "the control");
    let anns = make(&ann).await;
    assert_ne!(anns, bobs);
    assert_eq!(make(&ann).await, anns);
    let at = format!("/v1/sandboxes/{}", bobs.as_str().unwrap());
    let exec = |key: &str| {
        let request = client().post(format!("{}{at}/exec", server.url)).bearer_auth(key);
        request.header("Idempotency-Key", "once").json(&json!({ "command": "echo secret" })).send()
    };
    assert_eq!(good(exec(&bob).await.unwrap()).await["stdout"], "secret\n");
    good(send(&server, &bob, Method::DELETE, &at, None).await).await;
    assert_eq!(good(exec(&bob).await.unwrap()).await["stdout"], "secret\n", "the same answer as before");
    assert_eq!(refused(exec(&ann).await.unwrap()).await.0, 404);
}

/// Also while it runs, and though the other key means the same user.
#[tokio::test]
async fn one_idempotency_key_leads_to_no_call_of_another_users() {
    let server = Server::start();
    let (bob, ann) = (key_of(&server, "bob").await, key_of(&server, "ann").await);
    let usually = key(&server, json!({ "role": "use", "subject": "ann", "any_subject": true })).await;
    let bobs = good(post(&server, &bob, "/v1/sandboxes", &json!({})).await).await;
    let at = format!("{}/v1/sandboxes/{}/exec", server.url, bobs["id"].as_str().unwrap());
    let exec = |key: &str| {
        let request = client().post(&at).bearer_auth(key).header("Idempotency-Key", "same");
        request.json(&json!({ "command": "echo secret; until [ -e go ]; do sleep 0.05; done" })).send()
    };
    let asked = async {
        let running = async || {
            let calls = get(&server, &bob, "/v1/calls").await;
            calls["calls"].as_array().unwrap().iter().any(|call| call["verb"] == "exec").then_some(())
        };
        until(running).await;
        assert_eq!(refused(exec(&ann).await.unwrap()).await, (404, "sandbox_not_found".into()), "while it runs");
        let go = json!({ "command": "touch go" });
        good(client().post(&at).bearer_auth(&bob).json(&go).send().await.unwrap()).await;
    };
    let (first, ()) = tokio::join!(exec(&usually), asked);
    assert_eq!(good(first.unwrap()).await["stdout"], "secret\n", "the control: this key may name anybody");
    assert_eq!(refused(exec(&ann).await.unwrap()).await, (404, "sandbox_not_found".into()), "and after it");
}

/// Templates are for all users of the tenant: who makes them has what all of them begin with.
#[tokio::test]
async fn a_key_of_one_user_builds_nothing_and_sees_no_build() {
    let server = Server::start();
    let anns = Asking::with(&server, key_of(&server, "ann").await);
    let platform = Asking::with(&server, server.key_for("default", "use").await);
    let template = good(platform.send(Method::POST, "/v3/templates", &json!({ "name": "built" })).await).await;
    let text = |name: &str| template[name].as_str().unwrap().to_owned();
    let (of, build) = (text("templateID"), text("buildID"));
    for (method, path, body) in [
        (Method::POST, "/v3/templates".to_owned(), json!({ "name": "base" })),
        (Method::POST, format!("/v2/templates/{of}/builds/{build}"), json!({ "fromImage": "e2bdev/base" })),
        (Method::GET, format!("/templates/{of}/builds/{build}/status"), Value::Null),
        (Method::GET, format!("/templates/{of}/files/{}", "0".repeat(64)), Value::Null),
        (Method::POST, "/templates/tags".to_owned(), json!({ "target": "built:default", "tags": ["other"] })),
        (Method::DELETE, format!("/templates/{of}"), Value::Null),
    ] {
        let answer = anns.send(method.clone(), &path, &body).await;
        assert_eq!(answer.status(), 403, "{method} {path}: {}", answer.text().await.unwrap());
    }
    good(platform.get(&format!("/templates/{of}/builds/{build}/status")).await).await;
}

/// Whoever makes it.
#[tokio::test]
async fn what_begins_with_what_a_user_had_is_that_users() {
    let server = Server::start();
    let (bob, platform) = (key_of(&server, "bob").await, server.key_for("default", "use").await);
    let usually = key(&server, json!({ "role": "use", "subject": "ann", "any_subject": true })).await;
    let made = good(Asking::with(&server, usually.clone()).make("base").await).await;
    let id = made["sandboxID"].as_str().unwrap().to_owned();
    let bobs = Asking::with(&server, bob.clone());
    assert_eq!(bobs.get(&format!("/sandboxes/{id}")).await.status(), 404, "she is who was meant");
    let asking = Asking::with(&server, platform.clone());
    let forks =
        asking.send(Method::POST, &format!("/sandboxes/{id}/fork"), &json!({ "count": 1, "timeout": 60 })).await;
    let forks = good(forks).await;
    let fork = forks[0]["sandbox"]["sandboxID"].as_str().unwrap_or_else(|| panic!("{forks}")).to_owned();
    assert_eq!(asking.get(&format!("/sandboxes/{fork}")).await.status(), 200, "the control");
    assert_eq!(bobs.get(&format!("/sandboxes/{fork}")).await.status(), 404);
    let snapshot = post(&server, &platform, &format!("/v1/sandboxes/{id}/snapshots"), &json!({})).await;
    let from = json!({ "snapshot": good(snapshot).await["id"] });
    let made = good(post(&server, &platform, "/v1/sandboxes", &from).await).await;
    let at = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
    assert_eq!(refused(send(&server, &bob, Method::GET, &at, None).await).await.0, 404);
    let purge = json!({ "app": "private", "chat": "of-ann" });
    good(post(&server, &platform, "/v1/sandboxes:delete", &purge).await).await;
    let seen = get(&server, &bob, "/v1/calls").await.to_string();
    assert!(!seen.contains("of-ann"), "{seen}");
}

#[tokio::test]
async fn a_subject_is_somebody_and_no_operator() {
    let server = Server::start();
    for about in [json!({ "role": "use", "subject": "" }), json!({ "role": "admin", "subject": "ann" })] {
        let told = refused(server.post("/v1/keys", &about).send().await.unwrap()).await;
        assert_eq!(told, (400, "bad_request".into()), "{about}");
    }
}
