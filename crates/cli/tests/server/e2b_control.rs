//! The control plane of E2B beyond sandboxes as such: how it refuses, what it measures and tells, and requests that come twice.

use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};

use crate::{
    sdk::Sdk,
    stage::{Server, client, good, until},
};

fn with(server: &Server, key: &str, method: Method, path: &str) -> RequestBuilder {
    client().request(method, format!("{}{path}", server.url)).header("x-api-key", key)
}

/// Its status, once its body was seen to be in their words.
async fn refused(answer: Response, of: &str) -> u16 {
    let status = answer.status().as_u16();
    let may_come_again = answer.headers().contains_key("retry-after");
    let body: Value = answer.json().await.unwrap_or_else(|error| panic!("{of}: {error}"));
    assert_eq!(body["code"], status, "{of}: {body}");
    assert!(body["message"].as_str().is_some_and(|message| !message.is_empty()), "{of}: {body}");
    assert!(body.get("error").is_none(), "{of}: {body}");
    assert_eq!(may_come_again, matches!(status, 429 | 503), "{of}: {body}");
    status
}

#[tokio::test]
async fn who_may_only_read_is_not_told_the_token_that_opens_a_shell() {
    let server = Server::start();
    let (reader, own) = (server.key_for("default", "read").await, server.key.clone());
    let wish = json!({ "templateID": "base", "timeout": 60, "secure": true });
    let made = good(with(&server, &own, Method::POST, "/sandboxes").json(&wish).send().await.unwrap()).await;
    let one = format!("/sandboxes/{}", made["sandboxID"].as_str().unwrap());
    let token = async |key: &str| {
        let told = good(with(&server, key, Method::GET, &one).send().await.unwrap()).await;
        told["envdAccessToken"].as_str().map(str::to_owned)
    };
    assert_eq!(token(&own).await.as_deref(), made["envdAccessToken"].as_str());
    assert!(made["envdAccessToken"].is_string());
    assert_eq!(token(&reader).await, None);
}

#[tokio::test]
async fn whoever_is_refused_hears_it_in_their_words() {
    let server = Server::start();
    let reader = server.key_for("default", "read").await;
    let own = server.key.clone();
    let made = with(&server, &own, Method::POST, "/sandboxes").json(&json!({ "templateID": "base", "timeout": 60 }));
    let id = good(made.send().await.unwrap()).await["sandboxID"].as_str().unwrap().to_owned();
    let one = format!("/sandboxes/{id}");
    for (method, path, status) in [
        (Method::GET, "/sandboxes/x/nothing".to_owned(), 404),
        (Method::GET, "/v2/nothing".to_owned(), 404),
        (Method::POST, "/v3/anything".to_owned(), 404),
        (Method::GET, "/snapshots/none/at/all".to_owned(), 404),
        (Method::GET, "/volumes/none/at/all/here".to_owned(), 404),
        (Method::PATCH, "/sandboxes".to_owned(), 405),
        (Method::PUT, one.clone(), 405),
        (Method::GET, format!("{one}/pause"), 405),
        (Method::GET, "/sandboxes/unknown".to_owned(), 404),
        (Method::GET, "/sandboxes/%ff".to_owned(), 400),
        (Method::DELETE, "/sandboxes/..%2f..".to_owned(), 404),
        (Method::GET, "/v2/sandboxes?limit=0".to_owned(), 400),
        (Method::GET, "/v2/sandboxes?limit=x".to_owned(), 400),
        (Method::GET, "/v2/sandboxes?state=gone".to_owned(), 400),
    ] {
        let answer = with(&server, &own, method.clone(), &path).send().await.unwrap();
        assert_eq!(refused(answer, &path).await, status, "{method} {path}");
    }
    for path in ["/sandboxes", "/v2/sandboxes"] {
        let post = |body: &str| with(&server, &own, Method::POST, path).body(body.to_owned());
        for body in ["{", "[]", "{}", r#"{"templateID":7}"#, r#"{"templateID":"base","timeout":-1}"#, "\u{0}"] {
            assert_eq!(refused(post(body).send().await.unwrap(), body).await, 400, "{path} {body}");
        }
        let unknown = post(r#"{"templateID":"nobody-has-it"}"#).send().await.unwrap();
        assert_eq!(refused(unknown, "unknown template").await, 404);
        let huge = post(&"x".repeat(5 << 20)).send().await.unwrap();
        assert_eq!(refused(huge, "huge").await, 413);
        let anonymous = client().post(format!("{}{path}", server.url)).body("{}").send().await.unwrap();
        assert_eq!(refused(anonymous, "no key").await, 401);
        let read = with(&server, &reader, Method::POST, path).json(&json!({ "templateID": "base" }));
        assert_eq!(refused(read.send().await.unwrap(), "a reader").await, 403);
    }
    let body = good(with(&server, &reader, Method::GET, &one).send().await.unwrap()).await;
    assert_eq!(body["sandboxID"], id, "a reader may look");
    let ours = server.request(Method::GET, "/v1/nothing").send().await.unwrap();
    assert_eq!(crate::stage::refused(ours).await.0, 404, "our own routes keep our own words");
}

#[tokio::test]
async fn a_key_that_does_not_stand_opens_nothing_of_theirs() {
    let server = Server::start();
    let issued = good(server.post("/v1/keys", &json!({ "tenant": "us", "role": "use" })).send().await.unwrap()).await;
    let (key, id) = (issued["key"].as_str().unwrap(), issued["id"].as_str().unwrap());
    let made = with(&server, key, Method::POST, "/sandboxes").json(&json!({ "templateID": "base", "secure": true }));
    let made = good(made.send().await.unwrap()).await;
    let sandbox = made["sandboxID"].as_str().unwrap();
    let one = format!("/sandboxes/{sandbox}");
    // Another tenant's is not there, in the same words as nobody's.
    let words = async |path: &str| {
        let answer = with(&server, &server.key, Method::GET, path).send().await.unwrap();
        assert_eq!(answer.status(), 404);
        answer.text().await.unwrap()
    };
    let nobodys = words("/sandboxes/i0123456789abcdefghij").await;
    assert_eq!(words(&one).await, nobodys.replace("i0123456789abcdefghij", sandbox));
    good(server.request(Method::DELETE, &format!("/v1/keys/{id}")).send().await.unwrap()).await;
    for wrong in [key, "e2b_00", "", "e2b_ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff", "ü"] {
        let answer = with(&server, wrong, Method::GET, &one).send().await.unwrap();
        assert_eq!(refused(answer, wrong).await, 401, "{wrong}");
    }
}

/// What is asked again and again is kept parsed: a change has to be seen all the same, by each way in.
#[tokio::test]
async fn a_changed_record_is_seen_by_the_very_next_request() {
    let mut server = Server::start();
    let issued =
        good(server.post("/v1/keys", &json!({ "tenant": "default", "role": "use" })).send().await.unwrap()).await;
    let (key, key_id) = (issued["key"].as_str().unwrap(), issued["id"].as_str().unwrap());
    let made = with(&server, key, Method::POST, "/sandboxes");
    let asked = json!({ "templateID": "base", "timeout": 600, "secure": true, "envVars": { "FIRST": "1" } });
    let made = good(made.json(&asked).send().await.unwrap()).await;
    let (sandbox, token) = (made["sandboxID"].as_str().unwrap(), made["envdAccessToken"].as_str().unwrap());
    let inside = async |server: &Server, path: &str| {
        let request = client().get(format!("{}{path}", server.url)).header("E2b-Sandbox-Id", sandbox);
        request.header("X-Access-Token", token).send().await.unwrap()
    };
    let envs = async |server: &Server| good(inside(server, "/envs").await).await;
    let ours = async |server: &Server| server.get(&format!("/v1/sandboxes/{sandbox}")).await;
    let verb = async |server: &Server, method: Method, path: &str, body: Value| {
        let path = format!("/sandboxes/{sandbox}{path}");
        with(server, key, method, &path).json(&body).send().await.unwrap().status().as_u16()
    };
    for round in 0..3 {
        assert_eq!(envs(&server).await, json!({ "FIRST": "1" }), "round {round}");
        assert_eq!(ours(&server).await["env"], json!(["FIRST"]));
    }
    let change = server.request(Method::PATCH, &format!("/v1/sandboxes/{sandbox}"));
    good(change.json(&json!({ "env": { "SECOND": "2" } })).send().await.unwrap()).await;
    assert_eq!(envs(&server).await, json!({ "SECOND": "2" }));
    assert_eq!(ours(&server).await["env"], json!(["SECOND"]));
    assert_eq!(verb(&server, Method::PUT, "/network", json!({ "denyOut": ["0.0.0.0/0"] })).await, 204);
    let detail = good(with(&server, key, Method::GET, &format!("/sandboxes/{sandbox}")).send().await.unwrap()).await;
    assert_eq!(detail["network"]["denyOut"], json!(["0.0.0.0/0"]), "{detail}");
    assert_eq!(verb(&server, Method::POST, "/pause", json!({})).await, 204);
    assert_eq!(inside(&server, "/health").await.status(), 502, "it sleeps");
    assert_eq!(ours(&server).await["state"], "paused");
    assert_eq!(verb(&server, Method::POST, "/connect", json!({ "timeout": 600 })).await, 201);
    assert_eq!(inside(&server, "/health").await.status(), 204);
    server.kill();
    server.run();
    assert_eq!(envs(&server).await, json!({ "SECOND": "2" }), "after a kill as well");
    good(server.request(Method::DELETE, &format!("/v1/keys/{key_id}")).send().await.unwrap()).await;
    assert_eq!(inside(&server, "/envs").await.status(), 502, "the key that made it is revoked");
    let delete = server.request(Method::DELETE, &format!("/v1/sandboxes/{sandbox}")).send().await.unwrap();
    assert_eq!(delete.status(), 204);
    let gone = server.request(Method::GET, &format!("/v1/sandboxes/{sandbox}")).send().await.unwrap();
    assert_eq!(gone.status(), 404);
}

#[tokio::test]
async fn a_server_that_ends_says_so_in_their_words() {
    let mut server = Server::start();
    let made = with(&server, &server.key, Method::POST, "/sandboxes").json(&json!({ "templateID": "base" }));
    let made = good(made.send().await.unwrap()).await;
    // As long as somebody is served, it is there to say that it takes nothing new.
    let body = json!({ "scope": { "scheme": "fixed", "name": "one" }, "argv": ["sleep", "600"] });
    let served = tokio_util::task::TaskTracker::new().spawn(server.post("/v1/exec", &body).send());
    let sleeping = until(|| async { server.commands().first().copied() }).await;
    let pid = rustix::process::Pid::from_raw(server.pid().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let answer = until(|| async {
        let answer = with(&server, &server.key, Method::GET, "/sandboxes").send().await.ok()?;
        (answer.status() == 503).then_some(answer)
    });
    assert_eq!(refused(answer.await, "draining").await, 503);
    let id = made["sandboxID"].as_str().unwrap();
    for (header, value) in [("E2b-Sandbox-Id", id.to_owned()), ("Host", format!("49983-{id}.localhost"))] {
        let inside = client().get(format!("{}/files?path=x", server.url)).header(header, value);
        assert_eq!(refused(inside.send().await.unwrap(), header).await, 503);
    }
    rustix::process::kill_process(sleeping, rustix::process::Signal::TERM).unwrap();
    good(served.await.unwrap().unwrap()).await;
    server.has_ended();
}

#[tokio::test]
async fn what_a_sandbox_uses_is_measured_for_whoever_looks() {
    let sdk = Sdk::start().await;
    let begun = jiff::Timestamp::now().as_second();
    let own = async |path: String| good(sdk.control(Method::GET, &path).send().await.unwrap()).await;
    let path = format!("/sandboxes/{}/metrics", sdk.sandbox);
    let mut busy =
        sdk.begin("echo up; dd if=/dev/zero of=big bs=1M count=8 2>&1; while :; do :; done", json!({})).await;
    busy.pid().await;
    busy.until("up\n").await;
    let metrics = own(path.clone()).await;
    let first = &metrics[0];
    assert!(first["cpuCount"].as_u64().unwrap() >= 1, "{first}");
    assert!(
        first["memUsed"].as_u64().unwrap() > 0 && first["memTotal"].as_u64() >= first["memUsed"].as_u64(),
        "{first}"
    );
    assert!(first["timestampUnix"].as_i64().unwrap() >= begun, "{first}");
    let of_time = async |start: i64, end: i64| own(format!("{path}?start={start}&end={end}")).await;
    assert_eq!(of_time(begun - 3600, begun - 1800).await, json!([]), "from before it was there");
    let later = until(|| async {
        let later = of_time(begun, begun + 3600).await;
        let is_busy = |one: &Value| one["cpuUsedPct"].as_f64() > Some(0.0) && one["diskUsed"].as_u64() >= Some(8 << 20);
        let all = later.as_array().unwrap();
        (all.len() > 1 && all.last().is_some_and(is_busy)).then_some(later)
    });
    later.await; // it is a series
    let several = own(format!("/sandboxes/metrics?sandbox_ids={},i0123456789abcdefghij", sdk.sandbox)).await;
    assert_eq!(several["sandboxes"].as_object().unwrap().keys().collect::<Vec<_>>(), [&sdk.sandbox]);
    let asleep = format!("/sandboxes/{}/pause", sdk.sandbox);
    assert_eq!(sdk.control(Method::POST, &asleep).send().await.unwrap().status(), 204);
    assert!(own(path.clone()).await.as_array().unwrap().len() > 1, "what was seen is kept");
    let state = own(format!("/sandboxes/{}", sdk.sandbox)).await["state"].clone();
    assert_eq!(state, "paused", "nobody is woken by a look");
    for bad in ["?start=x", "?start=9&end=1"] {
        let answer = sdk.control(Method::GET, &format!("{path}{bad}")).send().await.unwrap();
        assert_eq!(refused(answer, bad).await, 400);
    }
}

#[tokio::test]
async fn what_was_done_and_said_is_in_the_logs() {
    let sdk = Sdk::start().await;
    sdk.run("echo first line; echo second line; echo wrong >&2").await;
    let path = format!("/v2/sandboxes/{}/logs", sdk.sandbox);
    let logs = async |query: &str| {
        let answer = sdk.control(Method::GET, &format!("{path}{query}")).send().await.unwrap();
        let logs = good(answer).await["logs"].as_array().unwrap().clone();
        logs.iter().map(|entry| entry["message"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let said = until(|| async { Some(logs("?search=line").await).filter(|said| said.len() >= 3) }).await;
    assert!(said[0].starts_with("start "), "the command itself comes before what it said: {said:?}");
    assert_eq!(said[1..], ["first line", "second line"]);
    assert_eq!(logs("?level=warn").await, ["wrong"]);
    assert_eq!(logs("?search=line&direction=backward&limit=1").await, ["second line"]);
    assert_eq!(logs("?cursor=9999999999999").await.len(), 0);
    let old = sdk.control(Method::GET, &format!("/sandboxes/{}/logs", sdk.sandbox)).send().await.unwrap();
    let old = good(old).await;
    assert_eq!(old["logs"].as_array().unwrap().len(), old["logEntries"].as_array().unwrap().len());
    assert_eq!(
        refused(sdk.control(Method::GET, &format!("{path}?limit=1001")).send().await.unwrap(), "limit").await,
        400
    );
}

#[tokio::test]
async fn a_create_that_comes_twice_makes_one_sandbox() {
    let server = Server::start();
    let create = async |key: &str, body: &Value| {
        let request = with(&server, &server.key, Method::POST, "/v2/sandboxes").header("idempotency-key", key);
        request.json(body).send().await.unwrap()
    };
    let body = json!({ "templateID": "base", "timeout": 60, "metadata": { "a": "1" } });
    let first = good(create("once-1", &body).await).await;
    server.pass(5); // its end is another one by now
    assert_eq!(good(create("once-1", &body).await).await, first);
    let both = tokio::join!(create("once-2", &body), create("once-2", &body));
    assert_eq!(good(both.0).await, good(both.1).await);
    let other = json!({ "templateID": "base", "timeout": 61, "metadata": { "a": "1" } });
    assert_eq!(refused(create("once-1", &other).await, "another body").await, 422);
    let list = good(with(&server, &server.key, Method::GET, "/v2/sandboxes").send().await.unwrap()).await;
    assert_eq!(list.as_array().unwrap().len(), 2);
}
