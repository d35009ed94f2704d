//! Snapshots by E2B's protocol: taken, named, listed, used and removed.

use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::{
    e2b_stage::{Asking, Sandbox},
    stage::{Server, good},
};

async fn take(asking: &Asking<'_>, sandbox: &str, body: Value) -> Value {
    let path = format!("/sandboxes/{sandbox}/snapshots");
    let response = asking.send(Method::POST, &path, &body).await;
    assert_eq!(response.status(), 201);
    good(response).await
}

fn id(snapshot: &Value) -> String {
    snapshot["snapshotID"].as_str().unwrap().to_owned()
}

async fn listed(asking: &Asking<'_>, query: &str) -> Vec<String> {
    let all = good(asking.get(&format!("/snapshots{query}")).await).await;
    all.as_array().unwrap().iter().map(id).collect()
}

#[tokio::test]
async fn sandboxes_begin_with_a_snapshot_by_its_id_and_by_its_name() {
    let server = Server::start();
    let asking = Asking::of(&server);
    let first = Sandbox::make(&asking, "base").await;
    first.write("/home/user/kept.txt", "before").await;
    let snapshot = take(&asking, &first.id, json!({ "name": "mine" })).await;
    assert_eq!(snapshot["names"], json!(["mine:default"]));
    first.write("/home/user/kept.txt", "after").await;
    for name in [id(&snapshot), format!("{}:default", id(&snapshot)), "mine".into(), "mine:default".into()] {
        let made = Sandbox::make(&asking, &name).await;
        assert_eq!(made.read("/home/user/kept.txt").await, "before", "{name}");
        assert_eq!(made.run("whoami; pwd").await, "user\n/home/user\n");
    }
    // The newest is what a name means, and the older one stays what it is.
    let newer = take(&asking, &first.id, json!({ "name": "mine:default", "memory": false })).await;
    assert_eq!(Sandbox::make(&asking, "mine").await.read("/home/user/kept.txt").await, "after");
    assert_eq!(Sandbox::make(&asking, &id(&snapshot)).await.read("/home/user/kept.txt").await, "before");
    assert_eq!(listed(&asking, "?name=mine").await, [id(&newer), id(&snapshot)]);
}

#[tokio::test]
async fn lists_have_filters_and_pages() {
    let server = Server::start();
    let asking = Asking::of(&server);
    let (one, other) = (Sandbox::make(&asking, "base").await, Sandbox::make(&asking, "base").await);
    let mut all = Vec::new();
    for sandbox in [&one, &other, &one] {
        all.insert(0, id(&take(&asking, &sandbox.id, json!({})).await));
    }
    assert_eq!(listed(&asking, "").await, all);
    assert_eq!(listed(&asking, &format!("?sandboxID={}", other.id)).await, [all[1].clone()]);
    assert!(listed(&asking, "?name=none").await.is_empty() && listed(&asking, "?sandboxID=No!").await.is_empty());
    let first = asking.get("/snapshots?limit=2").await;
    let token = first.headers()["x-next-token"].to_str().unwrap().to_owned();
    assert_eq!(good(first).await.as_array().unwrap().len(), 2);
    let rest = asking.get(&format!("/snapshots?limit=2&nextToken={token}")).await;
    assert!(!rest.headers().contains_key("x-next-token"));
    assert_eq!(id(&good(rest).await[0]), all[2]);
    for bad in ["?limit=0", "?limit=101", "?limit=x", "?nextToken=x"] {
        assert_eq!(asking.get(&format!("/snapshots{bad}")).await.status(), 400, "{bad}");
    }
}

#[tokio::test]
async fn a_snapshot_goes_once_and_what_was_made_from_it_stays() {
    let server = Server::start();
    let asking = Asking::of(&server);
    let first = Sandbox::make(&asking, "base").await;
    first.write("/home/user/kept.txt", "here").await;
    let (plain, named) =
        (take(&asking, &first.id, json!({})).await, take(&asking, &first.id, json!({ "name": "x" })).await);
    let made = Sandbox::make(&asking, &id(&plain)).await;
    for name in [format!("{}%3Adefault", id(&plain)), "x".to_owned()] {
        let path = format!("/templates/{name}");
        assert_eq!(asking.send(Method::DELETE, &path, &Value::Null).await.status(), 204, "{name}");
        let again = asking.send(Method::DELETE, &path, &Value::Null).await;
        assert_eq!(again.status(), 404);
        assert!(again.json::<Value>().await.unwrap()["message"].as_str().unwrap().contains("not found"));
    }
    assert_eq!(made.read("/home/user/kept.txt").await, "here");
    for gone in [id(&plain), id(&named), "x".to_owned()] {
        assert_eq!(asking.make(&gone).await.status(), 404, "{gone}");
    }
}

#[tokio::test]
async fn what_is_anothers_is_not_found_in_the_same_words() {
    let server = Server::start();
    let (asking, key) = (Asking::of(&server), server.key_for("others", "use").await);
    let others = Asking::with(&server, key);
    let mine = Sandbox::make(&asking, "base").await;
    let snapshot = id(&take(&asking, &mine.id, json!({ "name": "mine" })).await);
    let nobodys = "snap_0198c5f2a3b47c8d9e0f1a2b3c4d5e6f";
    let words = async |response: Response, name: &str| {
        assert_eq!(response.status(), 404);
        response.json::<Value>().await.unwrap()["message"].as_str().unwrap().replace(name, "NAME")
    };
    for (taken, free) in [(snapshot.as_str(), nobodys), ("mine", "free")] {
        let made = (words(others.make(taken).await, taken).await, words(others.make(free).await, free).await);
        assert_eq!(made.0, made.1);
        let remove = async |name: &str| {
            let response = others.send(Method::DELETE, &format!("/templates/{name}"), &Value::Null).await;
            words(response, name).await
        };
        assert_eq!(remove(taken).await, remove(free).await);
    }
    let path = |sandbox: &str| format!("/sandboxes/{sandbox}/snapshots");
    let theirs = others.send(Method::POST, &path(&mine.id), &json!({})).await;
    let nobodys = others.send(Method::POST, &path("inobodyhasthisone0"), &json!({})).await;
    assert_eq!(words(theirs, &mine.id).await, words(nobodys, "inobodyhasthisone0").await);
    assert!(listed(&others, "").await.is_empty());
    assert!(listed(&others, &format!("?sandboxID={}", mine.id)).await.is_empty());
    assert_eq!(listed(&asking, "").await, [snapshot]);
}

#[tokio::test]
async fn what_is_no_name_is_refused() {
    let server = Server::start();
    let asking = Asking::of(&server);
    let sandbox = Sandbox::make(&asking, "base").await;
    for name in ["", ":x", "a b", "../etc", "x:y:z"] {
        let path = format!("/sandboxes/{}/snapshots", sandbox.id);
        assert_eq!(asking.send(Method::POST, &path, &json!({ "name": name })).await.status(), 400, "{name}");
    }
}
