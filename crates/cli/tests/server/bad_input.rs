//! What makes no sense is refused on every route: with a status, a code that has a page, and a word on what to do.
//!
//! The cases come from the document. A route with a part that nobody here knows fails: it has to be added.

use std::path::Path;

use reqwest::{Method, RequestBuilder, StatusCode, header::CONTENT_TYPE};
use serde_json::{Map, Value, json};

use crate::stage::{Server, client, good};

/// Longer than anything that has a name, and than what the kernel takes as one argument.
const LONG: usize = 200 << 10;

/// Where any text is a good one: what is read or written, and what is looked for in it.
const ANY_TEXT: [&str; 4] = ["/stdin", "/content", "/grep", "pattern"];
/// Where a long one is, too.
const ANY_LENGTH: [&str; 4] = ["/stdin", "/content", "/grep", "/stdin_b64"];

struct Stage {
    server: Server,
    sandbox: String,
    call: String,
    task: String,
    key: String,
}

impl Stage {
    async fn set() -> Self {
        let server = Server::start_with(&["--webhooks-allow", "127.0.0.1"]);
        let call = server.exec("one", "echo text > file").await["call_id"].as_str().unwrap().to_owned();
        let task = server.begin("one", "sleep 600").await;
        let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
        let key = good(server.post("/v1/keys", &json!({ "role": "read" })).send().await.unwrap()).await;
        let key = key["id"].as_str().unwrap().to_owned();
        Self { server, sandbox, call, task, key }
    }

    /// What is there, in the place of what the route leaves open.
    fn fill(&self, route: &str) -> String {
        let filled = route.replace("{sandbox}", &self.sandbox).replace("{call}", &self.call);
        let filled = filled.replace("{task}", &self.task).replace("{port}", "8000");
        let filled = filled.replace("{key}", &self.key).replace("{template}", "nowhere");
        let filled = filled.replace("{tenant}", "nobody");
        let filled = filled.replace("{webhook}", "webhook_01a1e36ddd427372ba516dbc9344fafd");
        let filled = filled.replace("{snapshot}", "snap_01a1e36ddd427372ba516dbc9344fafd");
        let filled = filled.replace("{volume}", "nowhere");
        assert!(!filled.contains('{'), "{route} has a part that no test knows: add it here");
        filled
    }

    fn ask(&self, method: &Method, path: &str) -> RequestBuilder {
        self.server.request(method.clone(), path).header("Cabana-User", "somebody")
    }
}

/// A body that is right: each case spoils one thing of it.
fn right(route: &str) -> Value {
    let scope = json!({ "scheme": "fixed", "name": "one" });
    let hook = json!({ "command": "true" });
    let lifecycle = json!({ "after_start": hook, "before_stop": hook });
    let spec = json!({ "limits": {}, "network": { "mode": "public" }, "lifecycle": lifecycle });
    match route {
        "/v1/exec" => json!({ "scope": scope, "spec": spec, "command": "true", "keep": {} }),
        "/v1/sandboxes/{sandbox}/exec" => json!({ "command": "true", "keep": {} }),
        "/v1/sandboxes:ensure" => json!({ "scope": scope, "spec": spec }),
        "/v1/sandboxes" => spec,
        "/v1/sandboxes/{sandbox}" => json!({ "limits": {}, "network": { "mode": "public" }, "lifecycle": {} }),
        "/v1/sandboxes/{sandbox}/files/mkdir" => json!({ "path": "made" }),
        "/v1/sandboxes/{sandbox}/files/mode" => json!({ "path": "file", "mode": "0644" }),
        "/v1/sandboxes/{sandbox}/files/move" => json!({ "path": "file", "to": "file" }),
        "/v1/sandboxes/{sandbox}/files/search" | "/v1/sandboxes/{sandbox}/ports/{port}/link" => json!({}),
        "/v1/volumes" => json!({ "name": "right" }),
        "/v1/sandboxes/{sandbox}/lease" => json!({ "holder": "somebody", "ttl_sec": 1 }),
        "/v1/sandboxes:delete" => json!({ "app": "nobodys" }),
        "/v1/keys" => json!({ "role": "read" }),
        "/v1/gc" => json!({ "dry_run": true }),
        "/v1/quotas/{tenant}" | "/v1/keys/{key}/quota" => json!({ "running": 1000 }),
        "/v1/webhooks" => json!({ "url": "http://127.0.0.1:9999/" }),
        "/api/core/ai/sandbox/file" => {
            json!({ "action": "write", "appId": "a", "chatId": "c", "path": "f", "content": "" })
        }
        "/api/core/ai/sandbox/download" => json!({ "appId": "a", "chatId": "c", "path": ".profile" }),
        _ => panic!("{route} takes a body, and no test knows a right one: add it here"),
    }
}

/// One part of a body: where it is, and what the document says of it.
struct Part<'a> {
    at: String,
    says: &'a Value,
}

/// All parts that the right body has a place for.
fn parts<'a>(document: &'a Value, says: &'a Value, at: &str, body: &Value, found: &mut Vec<Part<'a>>) {
    if let Some(name) = says["$ref"].as_str() {
        let says = document.pointer(name.trim_start_matches('#')).unwrap();
        return parts(document, says, at, body, found);
    }
    for several in ["allOf", "oneOf", "anyOf"] {
        for says in says[several].as_array().into_iter().flatten() {
            parts(document, says, at, body, found);
        }
    }
    for (name, says) in says["properties"].as_object().into_iter().flatten() {
        let here = format!("{at}/{name}");
        parts(document, says, &here, body, found);
        if found.iter().all(|part| part.at != here) && (at.is_empty() || body.pointer(at).is_some()) {
            found.push(Part { at: here, says });
        }
    }
}

fn with(body: &Value, at: &str, value: Value) -> Value {
    let (above, name) = at.rsplit_once('/').unwrap();
    let mut body = body.clone();
    body.pointer_mut(above).unwrap()[name] = value;
    body
}

/// What the part is not.
fn wrong(part: &Part<'_>) -> Vec<Value> {
    let kinds: Vec<&str> = match &part.says["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().map(|kind| kind.as_str().unwrap()).collect(),
        _ => vec!["object"], // it is said elsewhere, and is one of ours
    };
    let named = json!({ "": "x" });
    let of_kind = |kind: &&str| match *kind {
        "string" => vec![json!(1), json!(true), json!([]), json!({})],
        "integer" => vec![json!("x"), json!(-1), json!(1.5), json!(1e30), json!([]), json!({})],
        "boolean" => vec![json!("yes"), json!(1), json!([])],
        "array" => vec![json!("x"), json!({}), json!([1]), json!([{}])],
        "object" if part.says["additionalProperties"].is_object() => {
            vec![json!("x"), json!([]), json!({ "A": 1 }), json!({ "A": null }), named.clone()]
        }
        "object" => vec![json!("x"), json!(1), json!([]), json!([null]), json!({ "no_such_field": 1 })],
        _ => Vec::new(),
    };
    kinds.iter().flat_map(of_kind).collect()
}

fn is_text(part: &Part<'_>) -> bool {
    part.says["type"] == "string" || part.says["type"].as_array().is_some_and(|kinds| kinds.contains(&json!("string")))
}

/// Bodies that are no JSON, or none that any route takes.
fn no_body() -> Vec<Vec<u8>> {
    let texts = ["{", "nonsense", "{\"a\":}", "[]", "\"text\"", "1", "true", "{\"no_such_field\": 1}", "{}{}", "[{}]"];
    let mut bodies: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    bodies.push(b"{\"command\": \"\xff\xfe\"}".to_vec());
    bodies.push(b"\0\0\0\0".to_vec());
    bodies.push("[".repeat(100_000).into_bytes());
    bodies.push("{\"a\":".repeat(100_000).into_bytes());
    bodies
}

/// How it was refused. What is wrong with that is said at the end, for all at once.
async fn judged(what: &str, request: RequestBuilder, wrong: &mut Vec<String>) -> Option<u16> {
    let answer = match request.send().await {
        Ok(answer) => answer,
        Err(error) => {
            wrong.push(format!("no answer for {what}: {error:?}"));
            return None;
        }
    };
    let (status, kind) = (answer.status(), answer.headers().get(CONTENT_TYPE).cloned());
    let body = match status.is_success() {
        true => String::new(), // it may have no end
        false => answer.text().await.unwrap(),
    };
    let told: Value = serde_json::from_str(&body).unwrap_or_default();
    let error = if told["error"]["error"].is_object() { &told["error"]["error"] } else { &told["error"] };
    let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(text("docs"));
    let is_told = kind.is_some_and(|kind| kind == "application/json")
        && ["code", "message", "hint", "docs"].iter().all(|name| !text(name).is_empty())
        && text("docs") == format!("docs/errors/{}.md", text("code"))
        && page.is_file()
        && text("message").len() < 2000;
    // A conflict is with what is there: what was sent was understood.
    if status.is_client_error() && status != StatusCode::CONFLICT && is_told {
        return Some(status.as_u16());
    }
    wrong.push(format!("{status} for {what}: {}", body.chars().take(300).collect::<String>()));
    None
}

fn short(body: &Value) -> String {
    body.to_string().chars().take(200).collect()
}

#[tokio::test]
async fn every_route_refuses_what_makes_no_sense_and_says_why() {
    let stage = Stage::set().await;
    let document: Value = stage.server.get("/openapi.json").await;
    let (mut wrong_ones, mut routes) = (Vec::new(), 0);
    for (route, methods) in document["paths"].as_object().unwrap() {
        let methods: &Map<String, Value> = methods.as_object().unwrap();
        for (method, about) in methods {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let mut cases = bad_paths(&stage, route, &method);
            cases.extend(bad_queries(&stage, route, &method, about));
            if about["requestBody"]["content"]["application/json"].is_object() {
                let done = stage.ask(&method, &stage.fill(route)).json(&right(route)).send().await.unwrap();
                assert!(done.status().is_success(), "{method} {route} takes what is right: {:?}", done.text().await);
                cases.extend(bad_bodies(&stage, &document, route, &method, about));
            }
            if about["security"] != json!([{}]) {
                cases.extend(bad_headers(&stage, route, &method));
            }
            for (what, request) in cases {
                judged(&format!("{method} {route}: {what}"), request, &mut wrong_ones).await;
            }
            routes += 1;
        }
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"] {
            let is_there = methods.contains_key(&method.to_lowercase());
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            if !is_there {
                let request = stage.ask(&method, &stage.fill(route));
                let status = judged(&format!("{method} {route}"), request, &mut wrong_ones).await;
                assert!(matches!(status, None | Some(405)), "{method} {route}: {status:?}");
            }
        }
    }
    assert!(wrong_ones.is_empty(), "{} of them:\n{}", wrong_ones.len(), wrong_ones.join("\n"));
    assert!(routes > 40, "{routes} routes");
    // Nothing of it happened.
    assert_eq!(stage.server.get(&format!("/v1/tasks/{}", stage.task)).await["state"], "running");
    assert_eq!(stage.server.stdout("one", "ls; cat file").await, "file\nmade\ntext\n");
}

type Cases = Vec<(String, RequestBuilder)>;

fn bad_paths(stage: &Stage, route: &str, method: &Method) -> Cases {
    let bad = ["x", "%00", "AAAAAAAAAAAAAAAA", "..", "%2e%2e%2f%2e%2e%2fetc", "%ff", "\u{2028}", "-1", "null", "%"];
    let long = "a".repeat(5000);
    let named =
        ["{sandbox}", "{call}", "{task}", "{key}", "{port}", "{template}", "{snapshot}", "{webhook}", "{volume}"];
    let named = named.into_iter().filter(|name| route.contains(name));
    let tried = named.flat_map(|name| bad.iter().copied().chain([long.as_str()]).map(move |bad| (name, bad)));
    // Most words are names of tenants.
    let of_tenants = ["%00", "AAAAAAAAAAAAAAAA", "%2e%2e%2f%2e%2e%2fetc", "%ff", "\u{2028}", "-1", "%", long.as_str()];
    let of_tenants = of_tenants.into_iter().filter(|_| route.contains("{tenant}")).map(|bad| ("{tenant}", bad));
    let tried = tried.chain(of_tenants);
    let cases = tried.map(|(name, bad)| {
        // Not by the parser of the client, which would mend it.
        let path = stage.fill(&route.replace(name, bad));
        (format!("{name} is {}", bad.chars().take(30).collect::<String>()), stage.ask(method, &path))
    });
    // `..` is a way up: the client takes it, and asks for another route.
    cases.filter(|(what, _)| !what.ends_with("is ..")).collect()
}

fn bad_queries(stage: &Stage, route: &str, method: &Method, about: &Value) -> Cases {
    let of_query = about["parameters"].as_array().into_iter().flatten().filter(|part| part["in"] == "query");
    let of_query: Vec<&Value> = of_query.collect();
    let mut queries = Vec::new();
    for part in &of_query {
        let name = part["name"].as_str().unwrap();
        let bad: &[&str] = match part["schema"]["type"].as_str().or(part["schema"]["type"][0].as_str()).unwrap() {
            "integer" => &["x", "-1", "1.5", "", "99999999999999999999999"],
            "boolean" => &["maybe", "", "1"],
            _ if ANY_TEXT.contains(&name) => &[],
            _ => &["%00"],
        };
        queries.extend(bad.iter().map(|bad| format!("{name}={bad}")));
        queries.push(format!("{name}=1&{name}=1")); // what does it mean?
    }
    if !of_query.is_empty() {
        queries.push("no_such_parameter=1".to_owned());
        queries.push(format!("{}=1", "a".repeat(20_000)));
    }
    let cases = queries.into_iter().map(|query| {
        let needed = of_query.iter().filter(|part| part["required"] == true).map(|part| part["name"].as_str().unwrap());
        let needed = needed.filter(|name| !query.starts_with(&format!("{name}=")));
        let all = needed.map(|name| format!("{name}=file")).chain([query.clone()]).collect::<Vec<_>>().join("&");
        let request = stage.ask(method, &format!("{}?{all}", stage.fill(route)));
        (query.chars().take(60).collect(), request)
    });
    cases.collect()
}

fn bad_bodies(stage: &Stage, document: &Value, route: &str, method: &Method, about: &Value) -> Cases {
    let ask = || stage.ask(method, &stage.fill(route));
    let mut cases: Cases = Vec::new();
    for body in no_body() {
        let what = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
        cases.push((what, ask().header(CONTENT_TYPE, "application/json").body(body)));
    }
    cases.push(("XML".into(), ask().header(CONTENT_TYPE, "application/xml").body("<a/>")));
    cases.push(("a form".into(), ask().header(CONTENT_TYPE, "application/x-www-form-urlencoded").body("a=1")));
    cases.push(("too much".into(), ask().body(vec![b' '; 5 << 20])));
    let (right, mut all) = (right(route), Vec::new());
    parts(document, &about["requestBody"]["content"]["application/json"]["schema"], "", &right, &mut all);
    assert!(!all.is_empty(), "{route} has a body without parts");
    for part in &all {
        let at = &part.at;
        let mut values = wrong(part);
        if is_text(part) && !ANY_TEXT.iter().any(|any| at.ends_with(any)) {
            values.push(json!("a\0b"));
        }
        if is_text(part) && !ANY_LENGTH.iter().any(|any| at.ends_with(any)) {
            values.push(json!("a".repeat(LONG)));
        }
        for value in values {
            let body = with(&right, at, value);
            cases.push((format!("{at} in {}", short(&body)), ask().json(&body)));
        }
    }
    // What another platform says in its own words may grow: there, what is not known is left aside.
    if !route.starts_with("/api/") {
        cases.push(("an unknown field".into(), ask().json(&with(&right, "/no_such_field", json!(1)))));
    }
    cases
}

fn bad_headers(stage: &Stage, route: &str, method: &Method) -> Cases {
    let url = format!("{}{}", stage.server.url, stage.fill(route));
    let bare = || client().request(method.clone(), &url);
    let made_up = format!("e2b_{}", "0".repeat(40));
    vec![
        ("no key".into(), bare()),
        ("an empty key".into(), bare().header("X-API-KEY", "")),
        ("a key that nobody has".into(), bare().bearer_auth(&made_up)),
        ("a long key".into(), bare().bearer_auth("a".repeat(10_000))),
        ("another way to show a key".into(), bare().basic_auth("user", Some(&stage.server.key))),
        ("a tenant that cannot be".into(), bare().bearer_auth(&stage.server.key).header("Cabana-Tenant", "../x")),
    ]
}

#[tokio::test]
async fn what_is_nowhere_is_said_to_be_nowhere() {
    let server = Server::start();
    let mut wrong = Vec::new();
    for path in ["/", "/v1", "/v9/sandboxes", "/v1/nothing", "/v1/sandboxes/", "/%00", "/v1//exec"] {
        let status = judged(path, server.request(Method::GET, path), &mut wrong).await;
        assert_eq!(status, Some(StatusCode::NOT_FOUND.as_u16()), "{path}: {wrong:?}");
    }
}
