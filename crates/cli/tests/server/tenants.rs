//! One tenant neither sees nor reaches what is another's. Every route that the document names is tried.

use std::collections::BTreeMap;

use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};

use crate::stage::{Server, client, good, refused};

pub(crate) async fn send(server: &Server, key: &str, method: Method, path: &str, body: Option<&Value>) -> Response {
    let mut request = client().request(method, format!("{}{path}", server.url)).header("X-API-KEY", key);
    if path.ends_with("/lease") {
        request = request.header("Cabana-Lease", "01a1e36d-dd42-7372-ba51-6dbc00000000");
    }
    match body {
        Some(body) => request.json(body).send().await.unwrap(),
        None => request.send().await.unwrap(),
    }
}

/// What stands in a path of the document for something of the victim's, and what else a route wants to be told.
pub(crate) fn fill(path: &str, victim: &BTreeMap<&str, String>) -> String {
    let mut filled = path.to_owned();
    for (name, value) in victim {
        filled = filled.replace(&format!("{{{name}}}"), value);
    }
    assert!(!filled.contains('{'), "{path} has a part that no test knows how to cross: add it here");
    let query = match path {
        _ if path.ends_with("/search") => "?pattern=x",
        _ => "",
    };
    filled + query
}

/// A body that would do, if it were one's own.
pub(crate) fn body_for(route: &str) -> Value {
    match route {
        "/v1/sandboxes/{sandbox}/exec" => json!({ "command": "true" }),
        "/v1/sandboxes/{sandbox}/files/move" => json!({ "path": "a", "to": "b" }),
        "/v1/sandboxes/{sandbox}/lease" => json!({ "holder": "thief" }),
        "/v1/sandboxes/{sandbox}/files/mode" => json!({ "path": "a", "mode": "0777" }),
        _ => json!({}),
    }
}

#[tokio::test]
async fn no_route_leads_to_another_tenants_things() {
    let server = Server::start_with(&["--webhooks-allow", "127.0.0.1"]);
    let (theirs, ours) = (server.key_for("victim", "use").await, server.key_for("thief", "use").await);
    let scope = json!({ "scheme": "fixed", "name": "one" });
    let exec = json!({ "scope": scope, "command": "echo secret" });
    let call = good(send(&server, &theirs, Method::POST, "/v1/exec", Some(&exec)).await).await;
    let start = json!({ "scope": scope, "command": "echo secret; sleep 600", "background": true });
    let task = good(send(&server, &theirs, Method::POST, "/v1/exec", Some(&start)).await).await;
    let sandbox = task["sandbox"].as_str().unwrap().to_owned();
    let taking = send(&server, &theirs, Method::POST, &format!("/v1/sandboxes/{sandbox}/snapshots"), None).await;
    let snapshot = good(taking).await;
    let hook = json!({ "url": "http://127.0.0.1:9999/" });
    let webhook = good(send(&server, &theirs, Method::POST, "/v1/webhooks", Some(&hook)).await).await;
    let victim = BTreeMap::from([
        ("webhook", webhook["id"].as_str().unwrap().to_owned()),
        ("sandbox", sandbox),
        ("snapshot", snapshot["id"].as_str().unwrap().to_owned()),
        ("call", call["call_id"].as_str().unwrap().to_owned()),
        ("task", task["id"].as_str().unwrap().to_owned()),
        ("port", "8000".to_owned()),
        ("key", "key_01a1e36ddd427372ba516dbc9344fafd".to_owned()),
        ("tenant", "victim".to_owned()),
        ("volume", "theirs".to_owned()),
        ("template", "nobodys".to_owned()), // they are the operator's, and everybody sees those that there are
    ]);
    let volume = json!({ "name": "theirs" });
    good(send(&server, &theirs, Method::POST, "/v1/volumes", Some(&volume)).await).await;
    let document: Value = server.get("/openapi.json").await;
    let mut crossed = 0;
    for (route, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            if !route.contains('{') {
                continue; // there is nothing of anybody's in it
            }
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let (path, body) = (fill(route, &victim), body_for(route));
            let body = (method != Method::GET).then_some(&body);
            let told = refused(send(&server, &ours, method.clone(), &path, body).await).await;
            let operators = route.contains("{key}")
                || route.contains("{tenant}")
                || route.contains("{template}") && method != Method::GET;
            assert_eq!(told.0, if operators { 403 } else { 404 }, "{method} {route}: {told:?}");
            // And it is the same as for something that is not there at all.
            let nowhere = path
                .replace(&victim["sandbox"], "aaaaaaaaaaaaaaaa")
                .replace(&victim["call"], "call_01a1e36ddd427372ba516dbc00000000");
            let nowhere = nowhere
                .replace(&victim["task"], "task_01a1e36ddd427372ba516dbc00000000")
                .replace(&victim["snapshot"], "snap_01a1e36ddd427372ba516dbc00000000")
                .replace(&victim["webhook"], "webhook_01a1e36ddd427372ba516dbc00000000")
                .replace(&victim["volume"], "nowhere");
            assert_eq!(
                refused(send(&server, &ours, method.clone(), &nowhere, body).await).await,
                told,
                "{method} {route}"
            );
            crossed += 1;
        }
    }
    assert!(crossed >= 14, "{crossed} routes were tried");
    // Nothing of it happened.
    let sandbox =
        good(send(&server, &theirs, Method::GET, &format!("/v1/sandboxes/{}", victim["sandbox"]), None).await).await;
    assert_eq!(sandbox["state"], "running");
    let task = good(send(&server, &theirs, Method::GET, &format!("/v1/tasks/{}", victim["task"]), None).await).await;
    assert_eq!(task["state"], "running");
    let snapshots = good(send(&server, &theirs, Method::GET, "/v1/snapshots", None).await).await;
    assert_eq!(snapshots["snapshots"], json!([snapshot]));
    let webhooks = good(send(&server, &theirs, Method::GET, "/v1/webhooks", None).await).await;
    assert_eq!(webhooks["webhooks"][0]["id"], webhook["id"]);
    assert_eq!(good(send(&server, &ours, Method::GET, "/v1/webhooks", None).await).await["webhooks"], json!([]));
    good(send(&server, &theirs, Method::GET, "/v1/volumes/theirs", None).await).await;
}

#[tokio::test]
async fn lists_and_scopes_are_each_tenants_own() {
    let server = Server::start();
    let (theirs, ours) = (server.key_for("victim", "use").await, server.key_for("thief", "use").await);
    for (key, word) in [(&theirs, "theirs"), (&ours, "ours")] {
        let body = json!({ "scope": { "scheme": "chat", "app": "a", "user": "u", "chat": "c" }, "command": format!("cat file; echo {word} > file") });
        let answer = good(send(&server, key, Method::POST, "/v1/exec", Some(&body)).await).await;
        assert_eq!(answer["stdout"], "", "nothing was there before");
    }
    for (key, word) in [(&theirs, "theirs\n"), (&ours, "ours\n")] {
        let body =
            json!({ "scope": { "scheme": "chat", "app": "a", "user": "u", "chat": "c" }, "command": "cat file" });
        assert_eq!(good(send(&server, key, Method::POST, "/v1/exec", Some(&body)).await).await["stdout"], word);
        for list in ["/v1/sandboxes", "/v1/calls", "/v1/ledger"] {
            let told = good(send(&server, key, Method::GET, list, None).await).await;
            let rows = told.as_object().unwrap().values().find_map(Value::as_array).unwrap();
            assert_eq!(rows.len(), if list == "/v1/sandboxes" { 1 } else { 2 }, "{list}");
        }
    }
    // A key of one is not a key of the other.
    let once = |key: &str| {
        let request = client().post(format!("{}/v1/exec", server.url)).bearer_auth(key);
        request
            .header("Idempotency-Key", "same")
            .json(&json!({ "scope": { "scheme": "fixed", "name": "x" }, "command": "date +%N" }))
    };
    let first = good(once(&theirs).send().await.unwrap()).await;
    let second = good(once(&ours).send().await.unwrap()).await;
    assert_ne!(first["stdout"], second["stdout"]);
}

#[tokio::test]
async fn a_role_does_what_it_may_and_no_more() {
    let server = Server::start();
    let (reader, user) = (server.key_for("default", "read").await, server.key_for("default", "use").await);
    let exec = json!({ "scope": { "scheme": "fixed", "name": "one" }, "command": "true" });
    let forbidden = (403, "forbidden".to_owned());
    assert_eq!(refused(send(&server, &reader, Method::POST, "/v1/exec", Some(&exec)).await).await, forbidden);
    good(send(&server, &user, Method::POST, "/v1/exec", Some(&exec)).await).await;
    assert_eq!(
        good(send(&server, &reader, Method::GET, "/v1/sandboxes", None).await).await["sandboxes"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    for key in [&reader, &user] {
        assert_eq!(refused(send(&server, key, Method::GET, "/v1/keys", None).await).await, forbidden);
        let more = json!({ "role": "admin" });
        assert_eq!(refused(send(&server, key, Method::POST, "/v1/keys", Some(&more)).await).await, forbidden);
        let other = client().get(format!("{}/v1/sandboxes", server.url)).bearer_auth(key);
        assert_eq!(refused(other.header("Cabana-Tenant", "victim").send().await.unwrap()).await, forbidden);
    }
    let operator = server.request(Method::GET, "/v1/sandboxes").header("Cabana-Tenant", "victim").send().await.unwrap();
    assert_eq!(good(operator).await["sandboxes"], json!([]));
}

#[tokio::test]
async fn a_key_that_only_reads_starts_nothing() {
    let server = Server::start();
    let reader = server.key_for("default", "read").await;
    server.stdout("one", "echo here > file").await;
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let reads = ["files?path=file", "files/list", "files/stat?path=file", "files/zip"];
    let read =
        async |path: &str| send(&server, &reader, Method::GET, &format!("/v1/sandboxes/{sandbox}/{path}"), None).await;
    for path in reads {
        assert_eq!(read(path).await.status(), StatusCode::OK, "{path}");
    }
    for (change, state) in [("pause", "paused"), ("stop", "stopped")] {
        good(server.post(&format!("/v1/sandboxes/{sandbox}/{change}"), &json!({})).send().await.unwrap()).await;
        for path in reads.iter().chain(&["files/watch"]) {
            assert_eq!(refused(read(path).await).await, (403, "forbidden".into()), "{path}");
        }
        let by_port = client().get(format!("{}/p/{sandbox}/8000/", server.url)).bearer_auth(&reader);
        assert_eq!(refused(by_port.send().await.unwrap()).await, (403, "forbidden".into()));
        assert_eq!(server.get(&format!("/v1/sandboxes/{sandbox}")).await["state"], state);
    }
}

#[tokio::test]
async fn a_key_that_is_revoked_expired_or_made_up_opens_nothing() {
    let mut server = Server::start();
    let key = server.key_for("default", "use").await;
    let list = "/v1/sandboxes";
    good(send(&server, &key, Method::GET, list, None).await).await;
    let keys = server.get("/v1/keys").await;
    let id = keys["keys"].as_array().unwrap().iter().find(|key| key["role"] == "use").unwrap()["id"]
        .as_str()
        .unwrap()
        .to_owned();
    good(server.request(Method::DELETE, &format!("/v1/keys/{id}")).send().await.unwrap()).await;
    let unauthorized = (401, "unauthorized".to_owned());
    assert_eq!(refused(send(&server, &key, Method::GET, list, None).await).await, unauthorized);
    let made_up = format!("e2b_{}", "0".repeat(40));
    for bad in ["", "x", &made_up, &server.key.to_uppercase(), &format!("{}0", server.key)] {
        assert_eq!(refused(send(&server, bad, Method::GET, list, None).await).await, unauthorized, "{bad}");
    }
    let past = json!({ "role": "use", "expires_at": "2020-01-01T00:00:00Z" });
    assert_eq!(refused(server.post("/v1/keys", &past).send().await.unwrap()).await, (400, "bad_request".into()));
    // Only digests are kept.
    server.stop();
    let mut texts = Vec::new();
    let entries = std::fs::read_dir(server.data().join("db")).unwrap().map(Result::unwrap);
    for file in entries.filter(|entry| entry.file_type().unwrap().is_file()) {
        texts.extend(std::fs::read(file.path()).unwrap());
    }
    assert!(!texts.windows(44).any(|window| window == key.as_bytes() || window == server.key.as_bytes()));
    server.run();
    assert_eq!(refused(send(&server, &key, Method::GET, list, None).await).await, unauthorized);
    assert_eq!(send(&server, "x", Method::GET, "/livez", None).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn an_address_that_the_operator_calls_the_machines_own_is_as_its_others() {
    let spec = json!({ "network": { "mode": "allowlist", "allow": ["93.184.216.34"] } });
    for (flags, status) in [(&[][..], 201), (&["--own-addresses", "198.51.100.9,93.184.216.34"][..], 403)] {
        let server = Server::start_with(flags);
        let ours = server.key_for("us", "use").await;
        let made = send(&server, &ours, Method::POST, "/v1/sandboxes", Some(&spec)).await;
        assert_eq!(made.status().as_u16(), status, "{flags:?}");
    }
}

#[tokio::test]
async fn the_machines_own_network_is_the_operators_to_give() {
    let server = Server::start();
    let ours = server.key_for("us", "use").await;
    let host = json!({ "network": { "mode": "host" } });
    let list = |rule: &str| json!({ "network": { "mode": "allowlist", "allow": ["example.com", rule] } });
    let scope = json!({ "scheme": "fixed", "name": "one" });
    let ensure = |spec: &Value| json!({ "scope": scope, "spec": spec });
    for (path, body) in [
        ("/v1/sandboxes:ensure", ensure(&host)),
        ("/v1/sandboxes:ensure", ensure(&list("127.0.0.1:5432"))),
        ("/v1/sandboxes:ensure", ensure(&list("10.0.0.0/8"))),
        ("/v1/sandboxes:ensure", ensure(&list("169.254.169.254"))),
        ("/v1/sandboxes", host.clone()),
        ("/v1/exec", json!({ "spec": host, "command": "true" })),
    ] {
        let answer = refused(send(&server, &ours, Method::POST, path, Some(&body)).await).await;
        assert_eq!(answer, (403, "forbidden".to_owned()), "{path}");
    }
    let public = ensure(&list("9.9.9.9:443"));
    let made = good(send(&server, &ours, Method::POST, "/v1/sandboxes:ensure", Some(&public)).await).await;
    let sandbox = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
    let answer = refused(send(&server, &ours, Method::PATCH, &sandbox, Some(&host)).await).await;
    assert_eq!(answer, (403, "forbidden".to_owned()), "nor later");
    assert_eq!(network_of(&server, &ours, &sandbox).await, "allowlist");

    let admin = server.key_for("us", "admin").await;
    good(send(&server, &admin, Method::PATCH, &sandbox, Some(&host)).await).await;
    assert_eq!(network_of(&server, &ours, &sandbox).await, "host");
    // Where the operator gives it to all, whoever names it asks for nothing more.
    let open = Server::start_with(&["--net", "host"]);
    let key = open.key_for("us", "use").await;
    good(send(&open, &key, Method::POST, "/v1/sandboxes:ensure", Some(&ensure(&host))).await).await;
}

async fn network_of(server: &Server, key: &str, sandbox: &str) -> String {
    let sandbox = good(send(server, key, Method::GET, sandbox, None).await).await;
    sandbox["network"]["mode"].as_str().unwrap().to_owned()
}

/// Who works here goes on: a key that was good a moment ago is looked up no more.
#[tokio::test]
async fn very_many_keys_that_open_nothing_are_not_looked_up_and_harm_nobody_who_has_one() {
    let server = Server::start();
    let ours = server.key_for("ours", "use").await;
    good(send(&server, &ours, Method::GET, "/v1/sandboxes", None).await).await;
    let (client, mut told) = (client(), BTreeMap::<(u16, String), usize>::new());
    for number in 0..1000 {
        let made_up = format!("e2b_{number:040}");
        let request = client.get(format!("{}/v1/sandboxes", server.url)).header("X-API-KEY", made_up);
        *told.entry(refused(request.send().await.unwrap()).await).or_default() += 1;
        if number % 100 == 0 {
            good(send(&server, &ours, Method::GET, "/v1/sandboxes", None).await).await;
        }
    }
    assert!(told[&(401, "unauthorized".into())] >= 100, "{told:?}");
    assert!(told[&(429, "rate_limited".into())] > 0, "{told:?}");
    assert_eq!(told.len(), 2, "{told:?}");
    let fresh = server.key_for("ours", "read").await;
    good(send(&server, &fresh, Method::GET, "/v1/sandboxes", None).await).await; // though nobody has used it before
    let lines = server.said().into_iter().filter(|line| line.contains("keys that open nothing")).collect::<Vec<_>>();
    assert!(!lines.is_empty() && lines.len() < 10, "{lines:?}");
    assert!(lines.iter().all(|line| !line.contains("e2b_")), "{lines:?}");
    let metrics = server.request(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
    assert!(metrics.lines().any(|line| line == "cabana_failed_auth_total 1000"), "{metrics}");
}
