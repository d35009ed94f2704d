//! Servers that are killed at random moments under mixed load: what was acknowledged is there.
//!
//! `CABANA_SEED` replays a run; `CABANA_SOAK_ROUNDS` says how many kills there are.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use reqwest::Method;
use serde_json::{Value, json};

use crate::stage::{Server, good};

const USUAL_ROUNDS: u64 = 4;
const WORKERS: u64 = 4;

pub(crate) fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// What a client has heard, and so what must be true for ever.
#[derive(Default)]
struct Heard {
    /// By their Idempotency-Key: the answers of calls.
    answers: Mutex<BTreeMap<String, Value>>,
    tasks: Mutex<Vec<(String, u64)>>,
    next: AtomicU64,
}

/// A little of everything, until the server is gone.
async fn work(server: &Server, heard: &Heard, worker: u64) {
    loop {
        let n = heard.next.fetch_add(1, Ordering::Relaxed);
        let scope = json!({ "scheme": "fixed", "name": format!("scope{}", (worker + n) % 3) });
        if n.is_multiple_of(3) {
            let lines = n % 2000;
            let body = json!({ "scope": scope, "command": format!("seq 1 {lines}"), "background": true });
            let Ok(answer) = server.post("/v1/exec", &body).send().await else { return };
            let Ok(task) = answer.json::<Value>().await else { return };
            if let Some(id) = task["id"].as_str() {
                heard.tasks.lock().unwrap().push((id.to_owned(), lines));
            }
        } else {
            let key = format!("key{n}");
            let body = json!({ "scope": scope, "command": format!("echo {n} >> log; echo {n}; date +%N") });
            let Ok(answer) = server.post("/v1/exec", &body).header("Idempotency-Key", &key).send().await else {
                return;
            };
            let status = answer.status();
            let Ok(answer) = answer.json::<Value>().await else { return };
            if status.is_success() {
                heard.answers.lock().unwrap().insert(key, json!({ "scope": scope, "n": n, "answer": answer }));
            }
        }
    }
}

#[tokio::test]
async fn soak_kills_at_random_moments_lose_nothing_that_was_acknowledged() {
    let (rounds, seed) = (setting("CABANA_SOAK_ROUNDS").unwrap_or(USUAL_ROUNDS), setting("CABANA_SEED").unwrap_or(7));
    eprintln!("CABANA_SEED={seed} CABANA_SOAK_ROUNDS={rounds}");
    let mut chance = seed;
    let mut server = Server::start();
    let heard = Heard::default();
    for scope in 0..3 {
        server.ensure(&format!("scope{scope}")).await;
    }
    for _ in 0..rounds {
        // A generator of Knuth's is chance enough.
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let after = Duration::from_millis(50 + (chance >> 33) % 700);
        let load = futures_util::future::join_all((0..WORKERS).map(|worker| work(&server, &heard, worker)));
        let _ = tokio::time::timeout(after, load).await;
        server.kill();
        server.run();
    }
    check(&server, &heard).await;
}

async fn check(server: &Server, heard: &Heard) {
    let answers = heard.answers.lock().unwrap().clone();
    assert!(answers.len() > 3, "{} calls were heard of: the load was no load", answers.len());
    for (key, known) in &answers {
        let n = &known["n"];
        let body = json!({ "scope": known["scope"], "command": format!("echo {n} >> log; echo {n}; date +%N") });
        let again = server.post("/v1/exec", &body).header("Idempotency-Key", key).send().await.unwrap();
        assert_eq!(good(again).await, known["answer"], "the same key, the same answer");
    }
    for scope in 0..3 {
        let log = server.exec(&format!("scope{scope}"), "sort -n log | uniq -d").await;
        assert_eq!(log["stdout"], "", "nothing ran twice");
    }
    let tasks = heard.tasks.lock().unwrap().clone();
    for (task, lines) in tasks {
        let ended = server.ended(&task).await;
        assert_eq!(ended["state"], "succeeded", "{ended}");
        let output = server.request(Method::GET, &format!("/v1/tasks/{task}/output")).send().await.unwrap();
        let whole: String = (1..=lines).map(|n| format!("{n}\n")).collect();
        assert_eq!(output.text().await.unwrap(), whole);
    }
    // Every call has ended, one way or another, and each sandbox has its record.
    let calls = server.get("/v1/calls?limit=1000").await;
    assert!(calls["calls"].as_array().unwrap().iter().all(|call| call["state"] != "running"), "{calls}");
    let sandboxes = server.get("/v1/sandboxes").await["sandboxes"].as_array().unwrap().len();
    assert_eq!((sandboxes, server.inits().len()), (3, 3));
    chain_holds(server).await;
}

/// The ledger is whole, from its first row to its head.
async fn chain_holds(server: &Server) {
    let mut rows = Vec::new();
    loop {
        let page = server.get(&format!("/v1/ledger?limit=1000&after={}", rows.len())).await;
        let page = page["rows"].as_array().unwrap().clone();
        if page.is_empty() {
            break;
        }
        rows.extend(page);
    }
    let mut prev = Value::from("0".repeat(64));
    for (n, row) in rows.iter().enumerate() {
        assert_eq!((&row["seq"], &row["prev"]), (&json!(n + 1), &prev));
        prev = row["hash"].clone();
    }
    assert_eq!(server.get("/v1/ledger/head").await["head"]["hash"], prev);
}
