//! How much a tenant and a key may have, through the server: under crowds, after kills, and unseen by others.

use futures_util::future::join_all;
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};

use crate::stage::{Server, client, good, refused, until};

async fn send(server: &Server, key: &str, method: Method, path: &str, body: &Value) -> Response {
    let request = client().request(method, format!("{}{path}", server.url)).bearer_auth(key);
    request.json(body).send().await.unwrap()
}

async fn set(server: &Server, whose: &str, quota: Value) -> Value {
    good(server.request(Method::PUT, whose).json(&quota).send().await.unwrap()).await
}

/// Of the tenant `us`.
async fn used(server: &Server) -> Value {
    server.get("/v1/quotas/us").await["use"].clone()
}

fn exec(name: &str, command: &str) -> Value {
    json!({ "scope": { "scheme": "fixed", "name": name }, "command": command })
}

/// The details of a refusal by a quota.
async fn exceeded(response: Response) -> Value {
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(response.headers().contains_key("retry-after"));
    let body: Value = response.json().await.unwrap();
    assert_eq!(
        (&body["error"]["code"], &body["error"]["retryable"]),
        (&json!("quota_exceeded"), &json!(true)),
        "{body}"
    );
    body["error"]["details"].clone()
}

/// How many of so many that come at once are let in; the others hear of this quota.
async fn let_in(server: &Server, key: &str, asks: Vec<Value>, quota: &str) -> usize {
    let answers = join_all(asks.iter().map(|ask| send(server, key, Method::POST, "/v1/exec", ask))).await;
    let mut good = 0;
    for answer in answers {
        match answer.status().is_success() {
            true => good += 1,
            false => assert_eq!(exceeded(answer).await["quota"], quota),
        }
    }
    good
}

#[tokio::test]
async fn lb_13_of_a_crowd_as_many_run_as_may_and_a_kill_changes_nothing() {
    let mut server = Server::start();
    let key = server.key_for("us", "use").await;
    set(&server, "/v1/quotas/us", json!({ "running": 5, "sandboxes": 8 })).await;
    let crowd = || (0..50).map(|n| exec(&format!("s{n}"), "true")).collect::<Vec<_>>();
    assert_eq!(let_in(&server, &key, crowd(), "running").await, 5);
    let list = good(send(&server, &key, Method::GET, "/v1/sandboxes", &json!({})).await).await;
    assert_eq!(list["sandboxes"].as_array().unwrap().len(), 5, "of the others nothing is left");
    let refused = exceeded(send(&server, &key, Method::POST, "/v1/sandboxes", &json!({})).await).await;
    assert_eq!(refused, json!({ "quota": "running", "limit": 5, "used": 5, "wanted": 1 }));
    server.kill();
    server.run();
    assert_eq!(used(&server).await["running"], 5);
    assert_eq!(let_in(&server, &key, crowd(), "running").await, 5, "the same ones");
    let first = list["sandboxes"][0]["id"].as_str().unwrap();
    good(send(&server, &key, Method::POST, &format!("/v1/sandboxes/{first}/stop"), &json!({})).await).await;
    good(send(&server, &key, Method::POST, "/v1/sandboxes", &json!({})).await).await;
    let start = send(&server, &key, Method::POST, &format!("/v1/sandboxes/{first}/start"), &json!({})).await;
    assert_eq!(exceeded(start).await["quota"], "running");
    let deleted = send(&server, &key, Method::DELETE, &format!("/v1/sandboxes/{first}"), &json!({})).await;
    assert_eq!(deleted.status(), StatusCode::NO_CONTENT);
    assert_eq!(used(&server).await["sandboxes"], 5);
}

#[tokio::test]
async fn memory_and_processors_of_those_that_run_are_summed_and_each_needs_a_limit() {
    const MIB: u64 = 1 << 20;
    let server = Server::start();
    let key = server.key_for("us", "use").await;
    set(&server, "/v1/quotas/us", json!({ "memory_bytes": 512 * MIB, "cpu_milli": 1000 })).await;
    let limits = |mib: u64, cpu: u32| json!({ "limits": { "memory_bytes": mib * MIB, "cpu_milli": cpu } });
    let make = async |spec: &Value| send(&server, &key, Method::POST, "/v1/sandboxes", spec).await;
    let boundless = make(&json!({})).await;
    let told: Value = boundless.json().await.unwrap();
    assert_eq!((&told["error"]["code"], &told["error"]["details"]["wanted"]), (&json!("quota_exceeded"), &Value::Null));
    assert!(told["error"]["message"].as_str().unwrap().contains("set limits."), "{told}");
    let first = good(make(&limits(256, 300)).await).await;
    good(make(&limits(128, 300)).await).await;
    assert_eq!(exceeded(make(&limits(256, 100)).await).await["quota"], "memory_bytes");
    assert_eq!(exceeded(make(&limits(64, 500)).await).await["quota"], "cpu_milli");
    let sandbox = format!("/v1/sandboxes/{}", first["id"].as_str().unwrap());
    let change = async |mib| send(&server, &key, Method::PATCH, &sandbox, &limits(mib, 300)).await;
    assert_eq!(refused(change(512).await).await, (429, "quota_exceeded".into()));
    let now = good(send(&server, &key, Method::GET, &sandbox, &json!({})).await).await;
    assert_eq!(now["limits"]["memory_bytes"], 256 * MIB, "nothing is half changed");
    good(change(384).await).await;
    assert_eq!(used(&server).await["memory_bytes"], 512 * MIB);
    good(send(&server, &key, Method::POST, &format!("{sandbox}/stop"), &json!({})).await).await;
    assert_eq!(used(&server).await["memory_bytes"], 128 * MIB);
}

#[tokio::test]
async fn tasks_count_until_they_end_also_by_a_server_that_was_killed() {
    let mut server = Server::start();
    let key = server.key_for("us", "use").await;
    set(&server, "/v1/quotas/us", json!({ "tasks": 3 })).await;
    good(send(&server, &key, Method::POST, "/v1/exec", &exec("one", "true")).await).await;
    let start = || {
        let mut start = exec("one", "sleep 600");
        start["background"] = json!(true);
        start
    };
    assert_eq!(let_in(&server, &key, vec![start(); 20], "tasks").await, 3);
    server.kill();
    server.run();
    assert_eq!(used(&server).await["tasks"], 3);
    assert_eq!(exceeded(send(&server, &key, Method::POST, "/v1/exec", &start()).await).await["used"], 3);
    let tasks = good(send(&server, &key, Method::GET, "/v1/tasks", &json!({})).await).await;
    let first = tasks["tasks"][0]["id"].as_str().unwrap();
    good(send(&server, &key, Method::POST, &format!("/v1/tasks/{first}/cancel"), &json!({})).await).await;
    good(send(&server, &key, Method::POST, "/v1/exec", &start()).await).await;
}

#[tokio::test]
async fn a_flood_is_one_tenants_own_and_fills_no_ledger() {
    let server = Server::start();
    let (flooding, other) = (server.key_for("us", "use").await, server.key_for("them", "use").await);
    for key in [&flooding, &other] {
        good(send(&server, key, Method::POST, "/v1/exec", &exec("one", "true")).await).await;
    }
    set(&server, "/v1/quotas/us", json!({ "calls_per_sec": 1 })).await;
    let ask = exec("one", "true");
    let flood = join_all((0..60).map(|_| send(&server, &flooding, Method::POST, "/v1/exec", &ask)));
    let others = join_all((0..20).map(|_| send(&server, &other, Method::POST, "/v1/exec", &ask)));
    let (flood, others) = tokio::join!(flood, others);
    assert!(others.iter().all(|answer| answer.status().is_success()));
    let mut good_ones = 0;
    for answer in flood {
        if answer.status().is_success() {
            good_ones += 1;
        } else {
            assert_eq!(answer.headers()["retry-after"], "1");
            assert_eq!(refused(answer).await, (429, "rate_limited".into()));
        }
    }
    assert!(good_ones >= 1, "what is left of the second is not taken away");
    let empty = server.request(Method::PUT, "/v1/quotas/us").send().await.unwrap();
    assert_eq!(refused(empty).await, (400, "bad_request".into()), "nothing is no quota");
    good(server.request(Method::DELETE, "/v1/quotas/us").send().await.unwrap()).await;
    let metrics = client().get(format!("{}/metrics", server.url)).bearer_auth(&flooding).send().await.unwrap();
    let (metrics, count) = (metrics.text().await.unwrap(), 60 - good_ones);
    let line = format!("cabana_calls_refused_total{{tenant=\"us\",quota=\"calls_per_sec\"}} {count}");
    assert!(metrics.contains(&line), "{metrics}");
    let ledger = good(send(&server, &flooding, Method::GET, "/v1/ledger?limit=1000", &json!({})).await).await;
    assert_eq!(ledger["rows"].as_array().unwrap().len(), 1 + good_ones);
}

#[tokio::test]
async fn one_sees_and_sets_nothing_of_others() {
    let server = Server::start();
    let (ours, theirs) = (server.key_for("us", "use").await, server.key_for("them", "read").await);
    set(&server, "/v1/quotas/us", json!({ "running": 7 })).await;
    good(send(&server, &ours, Method::POST, "/v1/exec", &exec("one", "true")).await).await;
    for (key, tenant, running, calls) in [(&ours, "us", json!(7), 1), (&theirs, "them", Value::Null, 0)] {
        let list = good(send(&server, key, Method::GET, "/v1/quotas", &json!({})).await).await;
        let quotas = list["quotas"].as_array().unwrap();
        assert!(quotas.len() == 2 && quotas.iter().all(|quota| quota["tenant"] == tenant), "{list}");
        assert!(quotas[0].get("key").is_none() && quotas[1]["key"].is_string());
        assert_eq!(quotas[0]["limits"]["running"], running);
        let usage = good(send(&server, key, Method::GET, "/v1/usage", &json!({})).await).await;
        assert_eq!(usage["tenant"], tenant);
        let told: u64 = usage["usage"].as_array().unwrap().iter().map(|row| row["calls"].as_u64().unwrap()).sum();
        assert_eq!(told, calls);
        for path in ["/v1/quotas/us", "/v1/quotas/them"] {
            for method in [Method::GET, Method::PUT, Method::DELETE] {
                let answer = send(&server, key, method, path, &json!({})).await;
                assert_eq!(refused(answer).await, (403, "forbidden".into()));
            }
        }
        let other =
            client().get(format!("{}/v1/usage", server.url)).bearer_auth(key).header("Cabana-Tenant", "default");
        assert_eq!(refused(other.send().await.unwrap()).await.0, 403);
    }
    let operator = server.request(Method::GET, "/v1/usage").header("Cabana-Tenant", "us").send().await.unwrap();
    assert_eq!(good(operator).await["usage"][0]["calls"], 1);
}

#[tokio::test]
async fn a_quota_below_use_is_refused_and_one_by_force_holds_after_a_restart() {
    let mut server = Server::start();
    let key = server.key_for("us", "use").await;
    for name in ["one", "two"] {
        good(send(&server, &key, Method::POST, "/v1/exec", &exec(name, "true")).await).await;
    }
    let put =
        |force: &str| server.request(Method::PUT, &format!("/v1/quotas/us{force}")).json(&json!({ "running": 1 }));
    let answer = put("").send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::CONFLICT);
    let told: Value = answer.json().await.unwrap();
    assert_eq!(told["error"]["code"], "quota_below_use");
    assert_eq!(told["error"]["details"], json!({ "quota": "running", "limit": 1, "used": 2, "wanted": 0 }));
    assert_eq!(server.get("/v1/quotas/us").await["limits"]["running"], Value::Null);
    good(put("?force=true").send().await.unwrap()).await;
    server.kill();
    server.run();
    let standing = server.get("/v1/quotas/us").await;
    assert_eq!((&standing["limits"]["running"], &standing["use"]["running"]), (&json!(1), &json!(2)));
    good(send(&server, &key, Method::POST, "/v1/exec", &exec("one", "true")).await).await;
    assert_eq!(exceeded(send(&server, &key, Method::POST, "/v1/exec", &exec("three", "true")).await).await["used"], 2);
}

#[tokio::test]
async fn usage_says_what_the_ledger_says_also_after_a_kill() {
    let mut server = Server::start();
    for command in ["true", "true", "exit 3"] {
        server.exec("one", command).await;
    }
    let unknown = json!({ "scope": { "scheme": "fixed", "name": "one" }, "argv": ["/no/such"] });
    assert_eq!(refused(server.post("/v1/exec", &unknown).send().await.unwrap()).await.1, "program_not_found");
    let counted = async |server: &Server| {
        let usage = server.get("/v1/usage").await;
        let rows = usage["usage"].as_array().unwrap().clone();
        rows.iter().fold((0, 0, 0), |sum, row| {
            let of = |name: &str| row[name].as_u64().unwrap();
            (sum.0 + of("calls"), sum.1 + of("failed"), sum.2 + of("duration_ms"))
        })
    };
    let told = async |server: &Server| {
        let ledger = server.get("/v1/ledger?limit=1000").await;
        ledger["rows"].as_array().unwrap().iter().fold((0, 0, 0), |sum, row| {
            let failed = u64::from(row["outcome"] != "answered" && row["outcome"] != "succeeded");
            (sum.0 + 1, sum.1 + failed, sum.2 + row["duration_ms"].as_u64().unwrap())
        })
    };
    let first = counted(&server).await;
    assert_eq!((first, first.1), (told(&server).await, 1));
    server.kill();
    server.run();
    let task = server.begin("one", "true").await;
    server.ended(&task).await;
    until(|| async {
        (counted(&server).await == told(&server).await && counted(&server).await.0 > first.0).then_some(())
    })
    .await;
    for bad in ["from=yesterday", "from=2026-13-01", "from=2026-02-01&to=2026-01-01", "to=2026-01-01T00:00:00Z"] {
        let answer = server.request(Method::GET, &format!("/v1/usage?{bad}")).send().await.unwrap();
        assert_eq!(refused(answer).await, (400, "bad_request".into()), "{bad}");
    }
}

#[tokio::test]
async fn a_command_that_writes_on_beyond_what_its_tenant_may_store_is_ended() {
    const WRITES: &str = "cd /workspace; while :; do head -c 262144 /dev/zero >> large; sleep 0.01; done";
    let server = Server::start();
    let key = server.key_for("us", "use").await;
    set(&server, "/v1/quotas/us", json!({ "stored_bytes": 20 << 20 })).await;
    let mut quiet = exec("quiet", "sleep 600");
    quiet["background"] = json!(true);
    let quiet =
        good(send(&server, &key, Method::POST, "/v1/exec", &quiet).await).await["id"].as_str().unwrap().to_owned();
    good(send(&server, &key, Method::POST, "/v1/volumes", &json!({ "name": "v" })).await).await;
    for (name, spec) in [("volume", json!({ "mount": { "volume": "v" } })), ("own", json!({}))] {
        let body = |command: &str| {
            let mut body = exec(name, command);
            body["spec"] = spec.clone();
            body
        };
        let ended = good(send(&server, &key, Method::POST, "/v1/exec", &body(WRITES)).await).await;
        assert_eq!(ended["status"], "disk_full", "{ended}");
        let again = send(&server, &key, Method::POST, "/v1/exec", &body("true")).await;
        assert_eq!(exceeded(again).await["quota"], "stored_bytes");
        let list = good(send(&server, &key, Method::GET, "/v1/sandboxes", &json!({})).await).await;
        let of_name = |sandbox: &&Value| sandbox["scope"]["value"] == name;
        let id = list["sandboxes"].as_array().unwrap().iter().find(of_name).unwrap()["id"].as_str().unwrap().to_owned();
        let large = format!("/v1/sandboxes/{id}/files?path=/workspace/large");
        let removed = send(&server, &key, Method::DELETE, &large, &json!({})).await;
        assert!(removed.status().is_success(), "{removed:?}");
        until(|| async {
            let again = send(&server, &key, Method::POST, "/v1/exec", &body("true")).await;
            again.status().is_success().then_some(())
        })
        .await;
    }
    let task = good(send(&server, &key, Method::GET, &format!("/v1/tasks/{quiet}"), &json!({})).await).await;
    assert_eq!(task["state"], "running", "who writes nothing goes on");
}

#[tokio::test]
async fn a_sandbox_with_as_many_processes_as_it_may_have_says_so_and_the_log_does_not() {
    let server = Server::start();
    let made = good(server.post("/v1/sandboxes", &json!({ "limits": { "pids": 32 } })).send().await.unwrap()).await;
    let sandbox = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
    let fill = json!({ "command": "for n in $(seq 60); do sleep 600 & done 2>/dev/null; wait", "background": true });
    good(server.post(&format!("{sandbox}/exec"), &fill).send().await.unwrap()).await;
    for background in [false, true] {
        let one = json!({ "argv": ["/bin/true"], "background": background });
        let refused = until(|| async {
            let answer = server.post(&format!("{sandbox}/exec"), &one).send().await.unwrap();
            (!answer.status().is_success()).then_some(answer)
        });
        let (status, told) = {
            let refused = refused.await;
            (refused.status().as_u16(), refused.json::<Value>().await.unwrap()["error"].clone())
        };
        assert_eq!(
            (status, &told["code"], &told["retryable"]),
            (429, &json!("quota_exceeded"), &json!(true)),
            "{told}"
        );
        assert!(told["message"].as_str().unwrap().contains("limits.pids"), "{told}");
    }
    let put = server.request(Method::PUT, &format!("{sandbox}/files?path=note")).body("text");
    assert!(put.send().await.unwrap().status().is_success(), "files need no process");
    assert!(!server.said().iter().any(|line| line.contains("ERROR")), "{:?}", server.said());
}
