//! Sandboxes rest when nothing happens in them, wake when somebody calls, and go when their time has come. No test waits for
//! that: each moves the server's clock.

use futures_util::{StreamExt, stream::FuturesUnordered};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    stage::{PATIENCE, Server, client, good, refused, until},
    terminals::Terminal,
};

fn scope(name: &str) -> Value {
    json!({ "scheme": "fixed", "name": name })
}

/// Of this name, with this to say about its life.
async fn made(server: &Server, name: &str, lifecycle: Value) -> String {
    let body = json!({ "scope": scope(name), "spec": { "lifecycle": lifecycle } });
    let made = good(server.post("/v1/sandboxes:ensure", &body).send().await.unwrap()).await;
    made["id"].as_str().unwrap().to_owned()
}

async fn changed(server: &Server, id: &str, lifecycle: Value) -> Value {
    let body = json!({ "lifecycle": lifecycle });
    let request = server.request(Method::PATCH, &format!("/v1/sandboxes/{id}")).json(&body);
    good(request.send().await.unwrap()).await
}

async fn state(server: &Server, id: &str) -> String {
    server.get(&format!("/v1/sandboxes/{id}")).await["state"].as_str().unwrap().to_owned()
}

/// The server looks after its sandboxes by itself too, so it may be at it just now.
async fn becomes(server: &Server, id: &str, wanted: &str) {
    until(|| async {
        server.reap().await;
        (state(server, id).await == wanted).then_some(())
    })
    .await;
}

async fn goes(server: &Server, id: &str) {
    until(|| async {
        server.reap().await;
        let answer = server.request(Method::GET, &format!("/v1/sandboxes/{id}")).send().await.unwrap();
        (answer.status() == StatusCode::NOT_FOUND).then_some(())
    })
    .await;
}

#[tokio::test]
async fn fp_05_an_idle_sandbox_is_stopped_after_five_minutes_and_the_next_call_wakes_it() {
    let server = Server::start();
    server.exec("one", "echo kept > file; sleep 1000 &").await;
    let record = server.record("one").await;
    assert_eq!(record["lifecycle"]["idle_sec"], 300);
    assert!(record["why_awake"].as_str().unwrap().starts_with("used at "), "{record}");
    assert_eq!(record["why_stopped"], Value::Null);
    server.pass(290);
    server.reap().await;
    assert_eq!(server.record("one").await["state"], "running");
    server.pass(11);
    becomes(&server, record["id"].as_str().unwrap(), "stopped").await;
    let record = server.record("one").await;
    assert_eq!(record["why_stopped"], "idle for 5 min");
    assert_eq!(record["why_awake"], Value::Null);
    assert_eq!(server.inits().len(), 0, "nothing of it runs");
    assert_eq!(server.stdout("one", "cat file").await, "kept\n");
    assert_eq!(server.record("one").await["id"], record["id"]);
}

#[tokio::test]
async fn work_keeps_it_awake_and_the_record_says_which() {
    let server = Server::start();
    let id = made(&server, "one", json!({ "idle_sec": 60 })).await;
    let task = server.begin("one", "sleep 100000").await;
    let rests = async |why: &str| {
        server.pass(61);
        server.reap().await;
        let record = server.get(&format!("/v1/sandboxes/{id}")).await;
        assert_eq!((&record["state"], &record["why_awake"]), (&json!("running"), &json!(why)), "{record}");
    };
    rests("1 task").await;
    let leased = good(
        server
            .post(&format!("/v1/sandboxes/{id}/lease"), &json!({ "holder": "us", "ttl_sec": 3600 }))
            .send()
            .await
            .unwrap(),
    )
    .await;
    rests("1 task, 1 lease").await;
    server.request(Method::POST, &format!("/v1/tasks/{task}/cancel")).send().await.unwrap();
    rests("1 lease").await;
    let token = leased["token"].as_str().unwrap();
    let release = server.request(Method::DELETE, &format!("/v1/sandboxes/{id}/lease")).header("Cabana-Lease", token);
    assert_eq!(release.send().await.unwrap().status(), StatusCode::NO_CONTENT);

    let mut terminal = Terminal::open(&server, &id, "").await;
    rests("1 terminal").await;
    terminal.types("exit\n").await;
    terminal.end().await;
    until(|| async {
        let record = server.get(&format!("/v1/sandboxes/{id}")).await;
        record["why_awake"].as_str().unwrap().starts_with("used at ").then_some(())
    })
    .await;
    server.pass(61);
    becomes(&server, &id, "stopped").await;
}

#[tokio::test]
async fn the_actions_and_limits_are_what_was_asked() {
    let server = Server::start();
    let paused = made(&server, "paused", json!({ "idle_sec": 10, "idle_action": "pause" })).await;
    let deleted = made(&server, "deleted", json!({ "idle_sec": 10, "idle_action": "delete" })).await;
    let hard = made(&server, "hard", json!({ "idle_sec": 0, "hard_sec": 20 })).await;
    let endless = server.begin("hard", "sleep 100000").await;
    let never = made(&server, "never", json!({ "idle_sec": 0 })).await;
    server.exec("paused", "echo $$ > /dev/shm/here").await;
    server.pass(11);
    becomes(&server, &paused, "paused").await;
    goes(&server, &deleted).await;
    assert_eq!(server.record("deleted").await, Value::Null);
    assert_eq!(state(&server, &hard).await, "running");
    server.pass(11);
    becomes(&server, &hard, "stopped").await; // whatever happens in it
    assert_ne!(server.ended(&endless).await["state"], "succeeded");
    server.pass(1_000_000);
    server.reap().await;
    assert_eq!(state(&server, &never).await, "running");
    assert!(!server.stdout("paused", "cat /dev/shm/here").await.is_empty(), "its memory was kept");

    // An absolute end, told later than the sandbox was made, and moved.
    let far = "2999-01-01T00:00:00Z";
    let record = changed(&server, &never, json!({ "expires_at": far, "on_expire": "delete" })).await;
    assert_eq!(record["lifecycle"]["expires_at"], far);
    server.reap().await;
    assert_eq!(state(&server, &never).await, "running");
    let past = json!({ "lifecycle": { "expires_at": "2020-01-01T00:00:00Z" } });
    server.request(Method::PATCH, &format!("/v1/sandboxes/{never}")).json(&past).send().await.unwrap();
    goes(&server, &never).await;
}

#[tokio::test]
async fn one_that_rests_for_long_is_archived_and_the_next_call_brings_it_back() {
    let mut server = Server::start();
    let id = made(&server, "one", json!({ "idle_sec": 10, "archive_after_sec": 100, "delete_after_sec": 1000 })).await;
    server.exec("one", "mkdir -p deep/er; echo kept > deep/er/file; chmod 640 deep/er/file; ln -s deep link").await;
    server.pass(11);
    becomes(&server, &id, "stopped").await;
    server.pass(90);
    becomes(&server, &id, "archived").await;
    assert_eq!(server.record("one").await["why_stopped"], "not used for 100 s");
    assert!(server.homes().is_empty(), "the engine has nothing of it");
    assert_eq!(server.data().join("blobs").read_dir().unwrap().count(), 1);
    server.kill();
    server.run();
    assert_eq!(server.stdout("one", "cat link/er/file; stat -c %a deep/er/file").await, "kept\n640\n");
    assert_eq!(server.record("one").await["id"], json!(id));
    assert_eq!(server.data().join("blobs").read_dir().unwrap().count(), 0);
    // By hand, and then its time has come.
    good(server.request(Method::POST, &format!("/v1/sandboxes/{id}/archive")).send().await.unwrap()).await;
    assert_eq!(state(&server, &id).await, "archived");
    server.pass(1001);
    goes(&server, &id).await;
    assert_eq!(server.data().join("blobs").read_dir().unwrap().count(), 0);
    assert_eq!(server.record("one").await, Value::Null);
}

#[tokio::test]
async fn hooks_run_before_a_stop_and_after_a_start_and_hold_nothing_up() {
    let server = Server::start();
    let hook = |command: &str| json!({ "command": command, "timeout_sec": 5 });
    let lifecycle =
        json!({ "idle_sec": 10, "after_start": hook("echo started >> log"), "before_stop": hook("echo stops >> log") });
    let id = made(&server, "one", lifecycle).await;
    assert_eq!(server.stdout("one", "cat log").await, "started\n", "it came before the first call");
    server.pass(11);
    becomes(&server, &id, "stopped").await;
    assert_eq!(server.stdout("one", "cat log").await, "started\nstops\nstarted\n");
    changed(
        &server,
        &id,
        json!({ "before_stop": hook("exit 7"), "after_start": { "command": "sleep 1000", "timeout_sec": 1 } }),
    )
    .await;
    good(server.request(Method::POST, &format!("/v1/sandboxes/{id}/stop")).send().await.unwrap()).await;
    assert_eq!(server.stdout("one", "cat log").await, "started\nstops\nstarted\n");
    changed(&server, &id, json!({ "before_stop": { "command": "" }, "after_start": { "command": "" } })).await;
    good(server.request(Method::POST, &format!("/v1/sandboxes/{id}/stop")).send().await.unwrap()).await;
    assert_eq!(state(&server, &id).await, "stopped");
}

#[tokio::test]
async fn hooks_of_one_tenant_hold_up_no_end_of_another() {
    let server = Server::start();
    let ensure = async |key: &str, name: &str, lifecycle: Value| {
        let body = json!({ "scope": scope(name), "spec": { "lifecycle": lifecycle } });
        let request = client().post(format!("{}/v1/sandboxes:ensure", server.url)).bearer_auth(key).json(&body);
        good(request.send().await.unwrap()).await["id"].as_str().unwrap().to_owned()
    };
    let state = async |key: &str, id: &str| {
        let request = client().get(format!("{}/v1/sandboxes/{id}", server.url)).bearer_auth(key);
        good(request.send().await.unwrap()).await["state"].as_str().unwrap().to_owned()
    };
    let (slow, quick) = (server.key_for("slow", "use").await, server.key_for("quick", "use").await);
    let mut held = Vec::new();
    for n in 0..6 {
        let hook = json!({ "command": "sleep 300", "timeout_sec": 300 });
        held.push(ensure(&slow, &format!("s{n}"), json!({ "idle_sec": 10, "before_stop": hook })).await);
    }
    server.pass(5);
    let other = ensure(&quick, "one", json!({ "idle_sec": 10 })).await;
    server.pass(11);
    let ends = until(|| async { (state(&quick, &other).await == "stopped").then_some(()) });
    // The server looks after them by itself, and a pass that was asked for does not end: hooks are waited for.
    tokio::select! {
        () = ends => {}
        reaped = server.reap() => panic!("no hook was waited for: {reaped}"),
    }
    let mut states = Vec::new();
    for id in &held {
        states.push(state(&slow, id).await);
    }
    assert!(states.iter().all(|state| state != "stopped"), "the control: {states:?}");
    assert_eq!(states.iter().filter(|state| *state == "stopping").count(), 4, "{states:?}");
}

#[tokio::test]
async fn fp_06_a_chat_and_an_app_are_deleted_at_once_and_for_good() {
    let mut server = Server::start();
    let key = server.key.clone();
    let exec = async |server: &Server, app: &str, chat: &str, command: &str| {
        let scope = json!({ "scheme": "chat", "app": app, "user": "u", "chat": chat });
        let body = json!({ "scope": scope, "command": command });
        good(server.post("/v1/exec", &body).send().await.unwrap()).await["stdout"].as_str().unwrap().to_owned()
    };
    for (app, chat) in [("a", "1"), ("a", "2"), ("b", "1")] {
        exec(&server, app, chat, "echo old > file").await;
    }
    let delete = async |server: &Server, which: Value| {
        let answer = server.post("/v1/sandboxes:delete", &which).bearer_auth(&key).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::ACCEPTED);
        good(answer).await["sandboxes"].as_u64().unwrap()
    };
    assert_eq!(delete(&server, json!({ "app": "a", "chat": "1" })).await, 1);
    assert_eq!(exec(&server, "a", "1", "cat file 2>&1 || true").await.trim(), "cat: file: No such file or directory");
    assert_eq!(exec(&server, "a", "2", "cat file").await, "old\n");
    // What a kill left of it is gone on with.
    server.kill();
    assert!(server.run_until("sandbox.doomed", 1));
    let sent = server.post("/v1/sandboxes:delete", &json!({ "app": "a" })).send().await;
    assert!(sent.is_err(), "it was killed before it could answer");
    server.is_killed();
    server.run();
    until(|| async {
        let left = server.get("/v1/sandboxes").await["sandboxes"].as_array().unwrap().len();
        (left == 1 && server.homes().len() == 1).then_some(())
    })
    .await;
    assert_eq!(exec(&server, "b", "1", "cat file").await, "old\n");
    assert_eq!(delete(&server, json!({ "all": true })).await, 1);
    until(|| async { server.homes().is_empty().then_some(()) }).await;
    for bad in [json!({}), json!({ "chat": "1" }), json!({ "app": "a", "all": true })] {
        let answer = server.post("/v1/sandboxes:delete", &bad).send().await.unwrap();
        assert_eq!(refused(answer).await, (400, "bad_request".into()));
    }
}

#[tokio::test]
async fn fe_28_a_lease_keeps_others_from_changing_it_and_one_that_is_lost_does_nothing_more() {
    let server = Server::start();
    let id = made(&server, "one", json!({ "idle_sec": 0 })).await;
    let path = format!("/v1/sandboxes/{id}/lease");
    let take = async |holder: &str, wait_ms: u64| {
        let body = json!({ "holder": holder, "ttl_sec": 180, "wait_ms": wait_ms });
        server.post(&path, &body).send().await.unwrap()
    };
    let first = good(take("first", 0).await).await;
    let token = first["token"].as_str().unwrap();
    assert_eq!(refused(take("second", 0).await).await, (409, "sandbox_busy".into()));
    for verb in ["stop", "pause", "archive"] {
        let answer = server.request(Method::POST, &format!("/v1/sandboxes/{id}/{verb}")).send().await.unwrap();
        assert_eq!(refused(answer).await, (409, "sandbox_busy".into()), "{verb}");
    }
    let delete = server.request(Method::DELETE, &format!("/v1/sandboxes/{id}")).send().await.unwrap();
    assert_eq!(refused(delete).await, (409, "sandbox_busy".into()));
    // Nor by a limit that comes sooner; one that was there is not held up.
    let at = format!("/v1/sandboxes/{id}");
    let limit = async |lifecycle: Value, token: &str| {
        let request = server.request(Method::PATCH, &at).json(&json!({ "lifecycle": lifecycle }));
        request.header("Cabana-Lease", token).send().await.unwrap()
    };
    for lifecycle in [json!({ "hard_sec": 1 }), json!({ "expires_at": "2000-01-01T00:00:00Z", "on_expire": "delete" })]
    {
        let request = server.request(Method::PATCH, &at).json(&json!({ "lifecycle": lifecycle }));
        assert_eq!(refused(request.send().await.unwrap()).await, (409, "sandbox_busy".into()), "{lifecycle}");
    }
    good(limit(json!({ "hard_sec": 100_000 }), token).await).await;
    let longer = server.request(Method::PATCH, &at).json(&json!({ "lifecycle": { "hard_sec": 200_000 } }));
    good(longer.send().await.unwrap()).await;
    assert_eq!(server.stdout("one", "echo commands go on").await, "commands go on\n");
    let record = server.get(&format!("/v1/sandboxes/{id}")).await;
    assert_eq!(record["lease"]["holder"], "first");
    assert!(!record.to_string().contains(token), "a token is its holder's");
    let under = async |token: &str, command: &str| {
        let body = json!({ "command": command });
        let request = server.post(&format!("/v1/sandboxes/{id}/exec"), &body).header("Cabana-Lease", token);
        request.send().await.unwrap()
    };
    good(under(token, "echo one >> steps").await).await;
    server.pass(170);
    let renew = server.request(Method::PUT, &format!("{path}?ttl_sec=180")).header("Cabana-Lease", token);
    good(renew.send().await.unwrap()).await;
    server.pass(170);
    good(under(token, "echo two >> steps").await).await;
    server.pass(11);
    assert_eq!(refused(under(token, "echo three >> steps").await).await, (409, "lease_lost".into()));
    let second = good(take("second", 0).await).await;
    let renew = server.request(Method::PUT, &path).header("Cabana-Lease", token);
    assert_eq!(refused(renew.send().await.unwrap()).await, (409, "lease_lost".into()));
    assert_eq!(server.stdout("one", "cat steps").await, "one\ntwo\n");
    // Who waits has it when it is given back.
    let waits = take("third", 30_000);
    let gives = async {
        let token = second["token"].as_str().unwrap();
        let release = server.request(Method::DELETE, &path).header("Cabana-Lease", token).send().await.unwrap();
        assert_eq!(release.status(), StatusCode::NO_CONTENT);
    };
    let (third, ()) = tokio::join!(waits, gives);
    let third = good(third).await;
    let stop = server.request(Method::POST, &format!("/v1/sandboxes/{id}/stop"));
    let stop = stop.header("Cabana-Lease", third["token"].as_str().unwrap()).send().await.unwrap();
    assert_eq!(good(stop).await["state"], "stopped", "its holder may");
    for (field, body) in [
        ("holder", json!({ "holder": "" })),
        ("ttl_sec", json!({ "holder": "x", "ttl_sec": 0 })),
        ("ttl_sec", json!({ "holder": "x", "ttl_sec": 3601 })),
        ("wait_ms", json!({ "holder": "x", "wait_ms": 60_001 })),
    ] {
        let answer = server.post(&path, &body).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{body}");
        assert!(answer.text().await.unwrap().contains(field), "{body}");
    }
}

#[tokio::test]
async fn the_token_of_a_lease_is_in_no_list_and_a_repeated_request_gets_the_same() {
    let server = Server::start();
    let id = made(&server, "one", json!({ "idle_sec": 0 })).await;
    let path = format!("/v1/sandboxes/{id}/lease");
    let take = async || {
        let body = json!({ "holder": "first", "ttl_sec": 180 });
        good(server.post(&path, &body).header("Idempotency-Key", "k").send().await.unwrap()).await
    };
    let token = take().await["token"].as_str().unwrap().to_owned();
    assert_eq!(take().await["token"], token.as_str());
    let calls = server.get("/v1/calls").await;
    let listed = [calls.to_string(), server.get("/v1/ledger").await.to_string()].concat();
    assert!(listed.contains("lease.take") && !listed.contains(&token), "{listed}");
    let stop = async |token: &str| {
        let stop = server.request(Method::POST, &format!("/v1/sandboxes/{id}/stop"));
        stop.header("Cabana-Lease", token).send().await.unwrap()
    };
    for call in calls["calls"].as_array().unwrap() {
        let number = call["id"].as_str().unwrap().trim_start_matches("call_");
        assert_eq!(stop(number).await.status(), StatusCode::CONFLICT, "{call}");
    }
    assert_eq!(good(stop(&token).await).await["state"], "stopped");
}

#[tokio::test]
async fn few_wait_for_a_lease_and_the_others_hear_that_it_is_taken() {
    let server = Server::start();
    let id = made(&server, "one", json!({ "idle_sec": 0 })).await;
    let path = format!("/v1/sandboxes/{id}/lease");
    let take = async |wait_ms: u64| {
        let body = json!({ "holder": "somebody", "ttl_sec": 180, "wait_ms": wait_ms });
        server.post(&path, &body).send().await.unwrap()
    };
    let token = good(take(0).await).await["token"].as_str().unwrap().to_owned();
    let mut waiting: FuturesUnordered<_> = (0..40).map(|_| take(60_000)).collect();
    for _ in 0..24 {
        let answer = timeout(PATIENCE, waiting.next()).await.expect("it is not one of those who wait").unwrap();
        assert_eq!(refused(answer).await, (409, "sandbox_busy".into()));
    }
    let release = server.request(Method::DELETE, &path).header("Cabana-Lease", &token).send().await.unwrap();
    assert_eq!(release.status(), StatusCode::NO_CONTENT);
    good(timeout(PATIENCE, waiting.next()).await.expect("it has come to one of them").unwrap()).await;
}

#[tokio::test]
async fn what_contradicts_itself_is_refused_and_nothing_is_made() {
    let server = Server::start();
    for lifecycle in [
        json!({ "archive_after_sec": 10, "delete_after_sec": 10 }),
        json!({ "idle_sec": 99_999_999_999_999u64 }),
        json!({ "idle_action": "explode" }),
        json!({ "expires_at": "tomorrow" }),
        json!({ "after_start": { "command": "true", "timeout_sec": 0 } }),
        json!({ "before_stop": { "command": "true", "timeout_sec": 301 } }),
        json!({ "before_stop": { "command": "a\0b" } }),
    ] {
        let body = json!({ "scope": scope("one"), "spec": { "lifecycle": lifecycle } });
        let answer = server.post("/v1/sandboxes:ensure", &body).send().await.unwrap();
        assert!(matches!(refused(answer).await.0, 400 | 422), "{lifecycle}");
    }
    assert_eq!(server.get("/v1/sandboxes").await["sandboxes"], json!([]));
}

#[tokio::test]
async fn sk_21_a_note_that_leads_to_somebody_elses_process_ends_nobody() {
    let server = Server::start();
    let id = made(&server, "one", json!({})).await;
    good(server.request(Method::POST, &format!("/v1/sandboxes/{id}/stop")).send().await.unwrap()).await;
    let mut stranger = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", stranger.id())).unwrap();
    let started: u64 = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let token = "01a1e36d-dd42-4372-ba51-6dbc00000000";
    let note = json!({ "boot": boot.trim(), "pid": stranger.id(), "started": started, "range": 65000, "token": token });
    let home = server.data().join("sandboxes").join(&id);
    std::fs::write(home.join("live.json"), note.to_string()).unwrap();
    let delete = server.request(Method::DELETE, &format!("/v1/sandboxes/{id}")).send().await.unwrap();
    assert!(delete.status().is_server_error(), "{}", delete.status());
    assert!(stranger.try_wait().unwrap().is_none(), "it was ended");
    std::fs::remove_file(home.join("live.json")).unwrap();
    server.pass(60);
    until(|| async {
        server.reap().await;
        server.pass(60);
        (!home.exists()).then_some(())
    })
    .await;
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}
