//! Every route of every front, with each role and with the keys of another tenant: who may not is refused, nothing has happened then, and
//! no answer says what opens more than its asker has.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::StreamExt;
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};

use crate::{
    e2b_bad_input::{calls, routes},
    e2b_stage::Asking,
    stage::{Server, client, good, until},
    templates::{add, archive},
    tenants::fill,
};

/// What a route needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Least {
    Nobody,
    Read,
    Use,
    Admin,
}

use Least::{Admin, Nobody, Read, Use};

/// The native interface, and what it needs. One that is not here is in no test of roles.
const NATIVE: &[(&str, &str, Least)] = &[
    ("GET", "/livez", Nobody),
    ("GET", "/readyz", Nobody),
    ("GET", "/metrics", Read),
    ("POST", "/api/core/ai/sandbox/file", Use),
    ("POST", "/api/core/ai/sandbox/download", Use),
    ("GET", "/v1/backup", Admin),
    ("GET", "/v1/calls", Read),
    ("GET", "/v1/calls/{call}", Read),
    ("POST", "/v1/calls/{call}/cancel", Use),
    ("GET", "/v1/calls/{call}/output", Read),
    ("GET", "/v1/calls/{call}/search", Read),
    ("GET", "/v1/calls/{call}/stream", Read),
    ("POST", "/v1/config:reload", Admin),
    ("GET", "/v1/events", Read),
    ("POST", "/v1/exec", Use),
    ("POST", "/v1/gc", Admin),
    ("GET", "/v1/keys", Admin),
    ("POST", "/v1/keys", Admin),
    ("DELETE", "/v1/keys/{key}", Admin),
    ("GET", "/v1/keys/{key}/quota", Admin),
    ("PUT", "/v1/keys/{key}/quota", Admin),
    ("DELETE", "/v1/keys/{key}/quota", Admin),
    ("GET", "/v1/ledger", Read),
    ("GET", "/v1/ledger/head", Read),
    ("GET", "/v1/quotas", Read),
    ("GET", "/v1/quotas/{tenant}", Admin),
    ("PUT", "/v1/quotas/{tenant}", Admin),
    ("DELETE", "/v1/quotas/{tenant}", Admin),
    ("POST", "/v1/reap", Admin),
    ("GET", "/v1/sandboxes", Read),
    ("POST", "/v1/sandboxes", Use),
    ("GET", "/v1/sandboxes/{sandbox}", Read),
    ("DELETE", "/v1/sandboxes/{sandbox}", Use),
    ("PATCH", "/v1/sandboxes/{sandbox}", Use),
    ("POST", "/v1/sandboxes/{sandbox}/archive", Use),
    ("POST", "/v1/sandboxes/{sandbox}/exec", Use),
    ("GET", "/v1/sandboxes/{sandbox}/files", Read),
    ("PUT", "/v1/sandboxes/{sandbox}/files", Use),
    ("DELETE", "/v1/sandboxes/{sandbox}/files", Use),
    ("GET", "/v1/sandboxes/{sandbox}/files/list", Read),
    ("POST", "/v1/sandboxes/{sandbox}/files/mkdir", Use),
    ("POST", "/v1/sandboxes/{sandbox}/files/mode", Use),
    ("POST", "/v1/sandboxes/{sandbox}/files/move", Use),
    ("POST", "/v1/sandboxes/{sandbox}/files/search", Read),
    ("GET", "/v1/sandboxes/{sandbox}/files/stat", Read),
    ("GET", "/v1/sandboxes/{sandbox}/files/watch", Read),
    ("GET", "/v1/sandboxes/{sandbox}/files/zip", Read),
    ("PUT", "/v1/sandboxes/{sandbox}/lease", Use),
    ("POST", "/v1/sandboxes/{sandbox}/lease", Use),
    ("DELETE", "/v1/sandboxes/{sandbox}/lease", Use),
    ("DELETE", "/v1/sandboxes/{sandbox}/links", Use),
    ("POST", "/v1/sandboxes/{sandbox}/pause", Use),
    ("POST", "/v1/sandboxes/{sandbox}/ports/{port}/link", Use),
    ("GET", "/v1/sandboxes/{sandbox}/snapshots", Read),
    ("POST", "/v1/sandboxes/{sandbox}/snapshots", Use),
    ("POST", "/v1/sandboxes/{sandbox}/start", Use),
    ("POST", "/v1/sandboxes/{sandbox}/stop", Use),
    ("GET", "/v1/sandboxes/{sandbox}/terminal", Use),
    ("POST", "/v1/sandboxes:delete", Use),
    ("POST", "/v1/sandboxes:ensure", Use),
    ("GET", "/v1/snapshots", Read),
    ("GET", "/v1/snapshots/{snapshot}", Read),
    ("DELETE", "/v1/snapshots/{snapshot}", Use),
    ("GET", "/v1/tasks", Read),
    ("GET", "/v1/tasks/{task}", Read),
    ("POST", "/v1/tasks/{task}/cancel", Use),
    ("GET", "/v1/tasks/{task}/output", Read),
    ("GET", "/v1/tasks/{task}/search", Read),
    ("GET", "/v1/tasks/{task}/stream", Read),
    ("GET", "/v1/templates", Read),
    ("POST", "/v1/templates", Admin),
    ("GET", "/v1/templates/{template}", Read),
    ("DELETE", "/v1/templates/{template}", Admin),
    ("GET", "/v1/usage", Read),
    ("GET", "/v1/volumes", Read),
    ("POST", "/v1/volumes", Use),
    ("GET", "/v1/volumes/{volume}", Read),
    ("DELETE", "/v1/volumes/{volume}", Use),
    ("GET", "/v1/webhooks", Read),
    ("POST", "/v1/webhooks", Use),
    ("GET", "/v1/webhooks/{webhook}", Read),
    ("DELETE", "/v1/webhooks/{webhook}", Use),
    ("POST", "/v1/webhooks/{webhook}/enable", Use),
    ("POST", "/v1/webhooks/{webhook}/test", Use),
];

/// E2B's control plane.
const E2B: &[(&str, &str, Least)] = &[
    ("GET", "/sandboxes", Read),
    ("POST", "/sandboxes", Use),
    ("GET", "/v2/sandboxes", Read),
    ("POST", "/v2/sandboxes", Use),
    ("GET", "/sandboxes/{sandbox}", Read),
    ("DELETE", "/sandboxes/{sandbox}", Use),
    ("POST", "/sandboxes/{sandbox}/connect", Use),
    ("POST", "/v2/sandboxes/{sandbox}/connect", Use),
    ("POST", "/sandboxes/{sandbox}/pause", Use),
    ("POST", "/sandboxes/{sandbox}/resume", Use),
    ("POST", "/sandboxes/{sandbox}/timeout", Use),
    ("POST", "/sandboxes/{sandbox}/refreshes", Use),
    ("POST", "/sandboxes/{sandbox}/fork", Use),
    ("GET", "/sandboxes/{sandbox}/metrics", Read),
    ("GET", "/sandboxes/metrics", Read),
    ("GET", "/sandboxes/{sandbox}/logs", Read),
    ("GET", "/v2/sandboxes/{sandbox}/logs", Read),
    ("POST", "/sandboxes/{sandbox}/snapshots", Use),
    ("GET", "/snapshots", Read),
    ("PUT", "/sandboxes/{sandbox}/network", Use),
    ("POST", "/v3/templates", Use),
    ("POST", "/v2/templates", Use),
    ("GET", "/templates", Read),
    ("GET", "/templates/{template}", Read),
    ("DELETE", "/templates/{template}", Use),
    ("GET", "/templates/aliases/{alias}", Read),
    ("GET", "/templates/{template}/files/{hash}", Use),
    ("POST", "/v2/templates/{template}/builds/{build}", Use),
    ("GET", "/templates/{template}/builds/{build}/status", Read),
    ("POST", "/templates/tags", Use),
    ("DELETE", "/templates/tags", Use),
    ("GET", "/templates/{template}/tags", Read),
];

/// What a port by its path needs, whichever method comes.
const PORTS: &[(&str, &str, Least)] = &[("GET", "/p/{sandbox}/{port}/", Use), ("POST", "/p/{sandbox}/{port}/", Use)];

/// Nothing opens these but what was made for them: a URL, or the token of the sandbox.
const BY_OTHER_PROOF: &[(&str, &str)] = &[("PUT", "/e2b/uploads/{token}")];

fn named(rows: &[(&str, &str, Least)]) -> BTreeSet<(String, String)> {
    rows.iter().map(|(method, path, _)| ((*method).to_owned(), (*path).to_owned())).collect()
}

#[tokio::test]
async fn every_route_says_what_it_needs() {
    let server = Server::start();
    let document: Value = server.get("/openapi.json").await;
    let mut native = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        native.extend(methods.as_object().unwrap().keys().map(|method| (method.to_uppercase(), path.clone())));
    }
    assert_eq!(native, named(NATIVE));
    let e2b: BTreeSet<_> = routes().into_iter().map(|(method, path)| (method.to_string(), path)).collect();
    let mut known = named(E2B);
    known.extend(BY_OTHER_PROOF.iter().map(|(method, path)| ((*method).to_owned(), (*path).to_owned())));
    assert_eq!(e2b, known);
}

/// A tenant with one of everything.
struct World {
    server: Server,
    /// Of each role.
    keys: BTreeMap<Least, String>,
    named: BTreeMap<&'static str, String>,
    e2b: BTreeMap<&'static str, String>,
    /// What opens something.
    secrets: BTreeMap<&'static str, String>,
}

fn forget_use(told: &mut Value) {
    match told {
        Value::Object(fields) => {
            fields.remove("use");
            fields.values_mut().for_each(forget_use);
        }
        Value::Array(all) => all.iter_mut().for_each(forget_use),
        _ => {}
    }
}

fn text(told: &Value, name: &str) -> String {
    told[name].as_str().unwrap_or_else(|| panic!("{name} of {told}")).to_owned()
}

impl World {
    async fn new() -> Self {
        let server = Server::start_with(&["--webhooks-allow", "127.0.0.1"]);
        let mut keys = BTreeMap::new();
        for (least, role) in [(Read, "read"), (Use, "use"), (Admin, "admin")] {
            keys.insert(least, server.key_for("ours", role).await);
        }
        let key = &keys[&Use];
        let post =
            async |path: &str, body: Value| good(ask(&server, Some(key), Method::POST, path, Some(&body)).await).await;
        let env = json!({ "TEMPLATE": "secret-of-a-template" }).to_string();
        good(add(&server, "name=shared", archive(&server)).header("Cabana-Env", env).send().await.unwrap()).await;
        let scope = json!({ "scheme": "fixed", "name": "one" });
        let spec = json!({ "env": { "NATIVE": "secret-of-a-sandbox" } });
        let run = json!({ "scope": scope, "spec": spec, "command": "echo words > file; echo words" });
        let call = post("/v1/exec", run).await;
        let start = json!({ "scope": scope, "command": "echo words", "background": true, "env": { "CALL": "secret-of-a-call" } });
        let task = post("/v1/exec", start).await;
        let sandbox = text(&task, "sandbox");
        until(|| async {
            let path = format!("/v1/tasks/{}", text(&task, "id"));
            let told = good(ask(&server, Some(key), Method::GET, &path, None).await).await;
            (told["state"] != "running").then_some(())
        })
        .await;
        let snapshot = post(&format!("/v1/sandboxes/{sandbox}/snapshots"), json!({})).await;
        let hook = post("/v1/webhooks", json!({ "url": "http://127.0.0.1:9999/" })).await;
        post("/v1/volumes", json!({ "name": "ours" })).await;
        let link = post(&format!("/v1/sandboxes/{sandbox}/ports/8000/link"), json!({})).await;
        let asking = Asking::with(&server, key.clone());
        let made = json!({
            "templateID": "base", "timeout": 3600, "secure": true, "envVars": { "E2B": "secret-of-e2b" },
            "network": { "allowPublicTraffic": false },
        });
        let e2b = good(asking.send(Method::POST, "/sandboxes", &made).await).await;
        let template = good(asking.send(Method::POST, "/v3/templates", &json!({ "name": "built" })).await).await;
        let hash = "0".repeat(64);
        let upload =
            good(asking.get(&format!("/templates/{}/files/{hash}", text(&template, "templateID"))).await).await;
        let ids: Value = good(ask(&server, Some(&server.key), Method::GET, "/v1/keys", None).await).await;
        let of_use = ids["keys"].as_array().unwrap().iter().find(|key| key["role"] == "use").unwrap();
        let last = |url: String| url.rsplit(['/', '=']).next().unwrap().to_owned();
        Self {
            named: BTreeMap::from([
                ("sandbox", sandbox),
                ("snapshot", text(&snapshot, "id")),
                ("webhook", text(&hook, "id")),
                ("call", text(&call, "call_id")),
                ("task", text(&task, "id")),
                ("port", "8000".to_owned()),
                ("key", text(of_use, "id")),
                ("tenant", "ours".to_owned()),
                ("volume", "ours".to_owned()),
                ("template", "shared".to_owned()),
            ]),
            e2b: BTreeMap::from([
                ("sandbox", text(&e2b, "sandboxID")),
                ("template", text(&template, "templateID")),
                ("build", text(&template, "buildID")),
                ("alias", "built".to_owned()),
                ("hash", hash),
            ]),
            secrets: BTreeMap::from([
                ("the key with the role read", keys[&Read].clone()),
                ("the key with the role use", keys[&Use].clone()),
                ("the key with the role admin", keys[&Admin].clone()),
                ("the token of the agent", text(&e2b, "envdAccessToken")),
                ("the token of ports", text(&e2b, "trafficAccessToken")),
                ("the link to a port", last(text(&link, "url"))),
                ("the link of an upload", last(text(&upload, "url"))),
                ("the secret of a webhook", text(&hook, "secret")),
                ("a variable of a template", "secret-of-a-template".to_owned()),
                ("a variable of a sandbox", "secret-of-a-sandbox".to_owned()),
                ("a variable of a call", "secret-of-a-call".to_owned()),
                ("a variable of E2B", "secret-of-e2b".to_owned()),
            ]),
            keys,
            server,
        }
    }

    /// All rows, with where each leads and what is sent there.
    fn rows(&self) -> Vec<(Method, String, Least, Value)> {
        let with = |rows: &[(&str, &str, Least)], named: &BTreeMap<&'static str, String>| {
            let filled = |(method, path, least): &(&str, &str, Least)| {
                let at = match *path {
                    "/sandboxes/metrics" => format!("{path}?sandbox_ids={}", named["sandbox"]),
                    path if path.ends_with("/files") || path.ends_with("/files/stat") => {
                        fill(path, named) + "?path=file"
                    }
                    path if path.ends_with("/zip") || path.ends_with("/files/list") || path.ends_with("/watch") => {
                        fill(path, named) + "?path=/tmp"
                    }
                    path => fill(path, named),
                };
                (Method::from_bytes(method.as_bytes()).unwrap(), at, *least, body(method, path, named))
            };
            rows.iter().map(filled).collect::<Vec<_>>()
        };
        [with(NATIVE, &self.named), with(E2B, &self.e2b), with(PORTS, &self.named)].concat()
    }

    /// What there is, as the operator sees it.
    async fn all(&self) -> BTreeMap<String, Value> {
        let mut all = BTreeMap::new();
        let seen = ["sandboxes", "calls", "tasks", "snapshots", "volumes", "webhooks", "quotas", "templates"];
        for list in seen {
            let path = format!("/v1/{list}");
            all.insert(
                path.clone(),
                good(ask(&self.server, Some(&self.keys[&Admin]), Method::GET, &path, None).await).await,
            );
        }
        for path in ["/v2/sandboxes", "/templates", "/snapshots", "/v1/keys", "/v1/quotas/ours"] {
            all.insert(
                path.to_owned(),
                good(ask(&self.server, Some(&self.keys[&Admin]), Method::GET, path, None).await).await,
            );
        }
        // A look leaves a row in the ledger, and that has a size.
        for quotas in ["/v1/quotas", "/v1/quotas/ours"] {
            forget_use(all.get_mut(quotas).unwrap());
        }
        all
    }

    /// All that is answered says nothing that opens more.
    async fn check(&self, who: &str, own: Option<&str>, method: &Method, path: &str, answer: Response) {
        let head = format!("{:?}", answer.headers());
        let mut body = Vec::new();
        let is_endless = path.contains("/watch") || path.contains("/events");
        let mut stream = answer.bytes_stream();
        while let Some(Ok(part)) = stream.next().await {
            body.extend_from_slice(&part);
            if is_endless {
                break;
            }
        }
        let said = head + &String::from_utf8_lossy(&body);
        for (what, secret) in self.secrets.iter().filter(|(_, secret)| own != Some(secret.as_str())) {
            assert!(!said.contains(secret.as_str()), "{who}: {method} {path} tells {what}");
        }
    }
}

fn body(method: &str, path: &str, named: &BTreeMap<&'static str, String>) -> Value {
    match (method, path) {
        ("GET" | "DELETE", path) if path != "/templates/tags" => Value::Null,
        (_, "/v1/exec") => json!({ "scope": { "scheme": "fixed", "name": "one" }, "command": "true" }),
        (_, "/v1/sandboxes:ensure") => json!({ "scope": { "scheme": "fixed", "name": "one" } }),
        (_, "/v1/sandboxes:delete") => json!({ "all": true }),
        (_, "/v1/sandboxes/{sandbox}/exec") => json!({ "command": "true" }),
        (_, "/v1/sandboxes/{sandbox}/files/mkdir") => json!({ "path": "made" }),
        (_, "/v1/sandboxes/{sandbox}/files/mode") => json!({ "path": "file", "mode": "0777" }),
        (_, "/v1/sandboxes/{sandbox}/files/move") => json!({ "path": "file", "to": "gone" }),
        ("POST", "/v1/sandboxes/{sandbox}/lease") => json!({ "holder": "somebody" }),
        (_, "/v1/volumes") => json!({ "name": "new" }),
        (_, "/v1/webhooks") => json!({ "url": "http://127.0.0.1:9998/" }),
        (_, "/v1/keys") => json!({ "role": "admin" }),
        (_, "/v1/quotas/{tenant}" | "/v1/keys/{key}/quota") => json!({ "running": 1 }),
        (_, "/v1/gc") => json!({ "dry_run": false }),
        (_, path) if path.starts_with("/api/") => {
            json!({ "action": "list", "appId": "a", "chatId": "c", "path": "" })
        }
        (_, path) if path.starts_with("/v1/") || path.starts_with("/p/") => json!({}),
        _ => json!({
            "templateID": "base", "timeout": 60, "name": "x", "target": format!("{}:y", named["alias"]), "tags": ["y"],
            "count": 1,
        }),
    }
}

async fn ask(server: &Server, key: Option<&str>, method: Method, path: &str, body: Option<&Value>) -> Response {
    let mut request = client().request(method, format!("{}{path}", server.url));
    if let Some(key) = key {
        request = request.header("X-API-KEY", key);
    }
    if path.ends_with("/lease") {
        request = request.header("Cabana-Lease", "01a1e36d-dd42-7372-ba51-6dbc00000000");
    }
    if path.ends_with("/terminal") {
        let socket = [("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13")];
        request = socket.into_iter().fold(request, |request, (name, value)| request.header(name, value));
        request = request.header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    }
    match body {
        Some(body) if !body.is_null() => request.json(body).send().await.unwrap(),
        _ => request.send().await.unwrap(),
    }
}

#[tokio::test]
async fn without_a_key_that_stands_nothing_is_told_and_nothing_happens() {
    let world = World::new().await;
    let revoked = json!({ "role": "admin", "tenant": "ours" });
    let revoked = good(world.server.post("/v1/keys", &revoked).send().await.unwrap()).await;
    let at = format!("/v1/keys/{}", text(&revoked, "id"));
    good(world.server.request(Method::DELETE, &at).send().await.unwrap()).await;
    let (before, made_up) = (world.all().await, format!("e2b_{}", "a".repeat(40)));
    let revoked = text(&revoked, "key");
    for (who, key) in [("nobody", None), ("one who guesses", Some(made_up.as_str())), ("a revoked key", Some(&revoked))]
    {
        for (method, path, least, body) in world.rows() {
            let answer = ask(&world.server, key, method.clone(), &path, Some(&body)).await;
            let wanted = if least == Nobody { StatusCode::OK } else { StatusCode::UNAUTHORIZED };
            assert_eq!(answer.status(), wanted, "{who}: {method} {path}");
            world.check(who, None, &method, &path, answer).await;
        }
    }
    for (who, key) in [("nobody", None), ("the key with the role admin", Some(world.keys[&Admin].as_str()))] {
        for call in calls() {
            let request =
                client().post(format!("{}{call}", world.server.url)).header("E2b-Sandbox-Id", &world.e2b["sandbox"]);
            let request = request.header("E2b-Sandbox-Port", "49983").json(&json!({}));
            let request = if let Some(key) = key { request.header("X-API-KEY", key) } else { request };
            let answer = request.send().await.unwrap();
            assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{who}: {call} is the token's");
        }
        for (method, path) in BY_OTHER_PROOF {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let path = path.replace("{token}", "made.up");
            let answer = ask(&world.server, key, method, &path, Some(&json!({}))).await;
            assert!(answer.status().is_client_error(), "{who}: {path}: {}", answer.status());
        }
    }
    for (path, told) in world.all().await {
        assert_eq!(told, before[&path], "{path}");
    }
}

#[tokio::test]
async fn a_role_is_told_and_does_no_more_than_its_rows_say() {
    let world = World::new().await;
    let before = world.all().await;
    for (has, key) in [(Read, &world.keys[&Read]), (Use, &world.keys[&Use])] {
        for (method, path, least, body) in world.rows() {
            if has == Use && least <= Use {
                continue; // it may do all of that
            }
            let answer = ask(&world.server, Some(key), method.clone(), &path, Some(&body)).await;
            let status = answer.status();
            match least <= has {
                true => assert!(status.is_success(), "{has:?}: {method} {path}: {status}"),
                false => assert_eq!(status, StatusCode::FORBIDDEN, "{has:?}: {method} {path}"),
            }
            world.check(&format!("{has:?}"), Some(key), &method, &path, answer).await;
        }
    }
    for (path, told) in world.all().await {
        assert_eq!(told, before[&path], "{path}");
    }
}

#[tokio::test]
async fn another_tenant_is_told_and_does_nothing_here_with_any_role() {
    let world = World::new().await;
    let mut keys = Vec::new();
    for role in ["read", "use"] {
        keys.push((role, world.server.key_for("theirs", role).await));
    }
    let before = world.all().await;
    for (role, key) in keys {
        for (method, path, least, body) in world.rows() {
            let answer = ask(&world.server, Some(&key), method.clone(), &path, Some(&body)).await;
            let names_ours = [&world.named, &world.e2b].into_iter().any(|named| {
                let ours = named.iter().filter(|(what, _)| !matches!(**what, "port" | "hash" | "template" | "alias"));
                ours.into_iter().any(|(_, value)| path.contains(value.as_str()))
            });
            if names_ours && !path.starts_with("/sandboxes/metrics") {
                let status = answer.status().as_u16();
                let wanted: &[u16] = if least == Admin { &[403] } else { &[403, 404] };
                assert!(wanted.contains(&status), "{role} of another tenant: {method} {path}: {status}");
            }
            world.check(&format!("{role} of another tenant"), Some(&key), &method, &path, answer).await;
        }
    }
    for (path, told) in world.all().await {
        assert_eq!(told, before[&path], "{path}");
    }
}
