//! Profiles and dialects, through the server.

use reqwest::Method;
use serde_json::{Value, json};

use crate::stage::{Server, good, refused};

const MIB: u64 = 1 << 20;

async fn make(server: &Server, spec: Value) -> Value {
    good(server.post("/v1/sandboxes", &spec).send().await.unwrap()).await
}

async fn run(server: &Server, sandbox: &Value, body: Value) -> Value {
    let path = format!("/v1/sandboxes/{}/exec", sandbox["id"].as_str().unwrap());
    good(server.post(&path, &body).send().await.unwrap()).await
}

/// Whether its root takes a file.
async fn takes(server: &Server, sandbox: &Value) -> bool {
    let done = run(server, sandbox, json!({ "command": "touch /new", "user": "root" })).await;
    assert_eq!(run(server, sandbox, json!({ "command": "touch new && touch /tmp/new" })).await["exit_code"], 0);
    done["exit_code"] == 0
}

#[tokio::test]
async fn langbots_four_profiles_are_what_they_say() {
    let server = Server::start();
    for (profile, network, cpu, mib, pids, open, seconds) in [
        ("default", "off", 1000, 512, 128, false, 120),
        ("offline_readonly", "off", 500, 256, 64, false, 60),
        ("network_basic", "public", 1000, 512, 128, false, 120),
        ("network_extended", "public", 2000, 1024, 256, true, 300),
    ] {
        let made = make(&server, json!({ "dialect": "langbot", "profile": profile })).await;
        assert_eq!((&made["dialect"], &made["profile"]), (&json!("langbot"), &json!(profile)));
        assert_eq!(made["network"]["mode"], network, "{profile}");
        let limits = &made["limits"];
        let numbers = (&limits["cpu_milli"], &limits["memory_bytes"], &limits["pids"]);
        assert_eq!(numbers, (&json!(cpu), &json!(mib * MIB), &json!(pids)), "{profile}");
        assert_eq!(made["read_only_root"], !open);
        assert_eq!(takes(&server, &made).await, open, "{profile}");
        assert_eq!(made.get("clamped"), None, "nothing was asked");
        let answer = run(&server, &made, json!({ "command": "true", "timeout_ms": 3_000_000 })).await;
        let told = json!([{ "field": "timeout_sec", "asked": "3000", "given": seconds.to_string() }]);
        assert_eq!((&answer["exit_code"], &answer["clamped"]), (&json!(0), &told), "{profile}");
        assert_eq!(run(&server, &made, json!({ "command": "true", "timeout_ms": 1500 })).await.get("clamped"), None);
    }
}

#[tokio::test]
async fn what_is_locked_stays_and_what_was_not_given_is_reported() {
    let server = Server::start();
    let asked = json!({
        "dialect": "langbot", "profile": "offline_readonly", "read_only_root": false,
        "network": { "mode": "public" }, "limits": { "memory_bytes": 300 * MIB },
    });
    let made = make(&server, asked.clone()).await;
    let told = json!([
        { "field": "network", "asked": "public", "given": "off" },
        { "field": "read_only_root", "asked": "false", "given": "true" },
    ]);
    assert_eq!(made["clamped"], told);
    assert_eq!(made["limits"]["memory_bytes"], 300 * MIB, "what is not locked is as it was asked");
    assert_eq!(made["limits"]["cpu_milli"], 500, "and what was not asked, as the profile has it");
    assert!(!takes(&server, &made).await);
    // Nor later.
    let path = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
    let change = server.request(Method::PATCH, &path).json(&json!({ "network": { "mode": "public" } }));
    let changed = good(change.send().await.unwrap()).await;
    assert_eq!((&changed["network"]["mode"], &changed["clamped"]), (&json!("off"), &json!([told[0]])));
    // An answer says it where it made the sandbox, and not where that was there.
    let exec = json!({ "scope": { "scheme": "fixed", "name": "one" }, "spec": asked, "command": "true" });
    let first = good(server.post("/v1/exec", &exec).send().await.unwrap()).await;
    assert_eq!(first["clamped"], told);
    let again = good(server.post("/v1/exec", &exec).send().await.unwrap()).await;
    assert_eq!(again.get("clamped"), None);
}

#[tokio::test]
async fn profiles_of_the_settings_and_a_dialect_for_the_whole_server() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cabana.toml");
    let text = "[server]\ndialect = \"langbot\"\n[profiles.tiny]\nlocked = [\"pids\"]\nmost = { memory_bytes = 67_108_864 }\n\
                defaults = { pids = 32 }\n";
    std::fs::write(&file, text).unwrap();
    let server = Server::start_with(&["--config", file.to_str().unwrap()]);
    let usual = make(&server, json!({})).await;
    assert_eq!(
        (&usual["limits"]["pids"], &usual["network"]["mode"]),
        (&json!(128), &json!("off")),
        "its usual profile"
    );
    let asked = json!({ "profile": "tiny", "limits": { "memory_bytes": 128 * MIB, "pids": 64 } });
    let tiny = make(&server, asked).await;
    assert_eq!((&tiny["limits"]["memory_bytes"], &tiny["limits"]["pids"]), (&json!(64 * MIB), &json!(32)));
    assert_eq!(tiny["clamped"].as_array().unwrap().len(), 2);
    let without = make(&server, json!({ "profile": "tiny" })).await;
    assert_eq!(without["limits"]["memory_bytes"], 64 * MIB, "none is more than the most");
    for bad in [json!({ "profile": "no_such" }), json!({ "dialect": "no_such" }), json!({ "profile": "" })] {
        let answer = server.post("/v1/sandboxes", &bad).send().await.unwrap();
        assert_eq!(refused(answer).await, (400, "bad_request".into()), "{bad}");
    }
}

#[tokio::test]
async fn a_sandbox_of_a_dialect_rests_and_goes_as_that_says() {
    let server = Server::start();
    let ground = make(&server, json!({ "dialect": "commonground" })).await;
    let lifecycle = &ground["lifecycle"];
    assert_eq!((&lifecycle["idle_sec"], &lifecycle["idle_action"]), (&json!(1800), &json!("delete")));
    assert_eq!((&lifecycle["hard_sec"], &lifecycle["hard_action"]), (&json!(21_600), &json!("delete")));
    let bot = make(&server, json!({ "dialect": "langbot" })).await;
    assert_eq!((&bot["lifecycle"]["idle_sec"], &bot["lifecycle"]["idle_action"]), (&json!(300), &json!("delete")));
    let gpt = make(&server, json!({ "dialect": "fastgpt", "lifecycle": { "idle_sec": 60 } })).await;
    assert_eq!((&gpt["lifecycle"]["idle_sec"], &gpt["lifecycle"]["idle_action"]), (&json!(60), &json!("stop")));
    assert_eq!(make(&server, json!({ "dialect": "xbot" })).await["lifecycle"]["idle_sec"], 0, "never");
}

#[tokio::test]
async fn fe_28_whoever_finds_it_busy_hears_that_in_the_words_of_the_dialect() {
    let server = Server::start();
    for (dialect, text) in
        [("fastgpt", "虚拟机正在初始化,请稍后重试"), ("commonground", "sandbox is busy; try again later")]
    {
        let made = make(&server, json!({ "dialect": dialect })).await;
        let path = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
        let take = |holder: &str| server.post(&format!("{path}/lease"), &json!({ "holder": holder })).send();
        good(take("first").await.unwrap()).await;
        for refused in
            [take("second").await.unwrap(), server.post(&format!("{path}/stop"), &json!({})).send().await.unwrap()]
        {
            assert_eq!(refused.status(), 409);
            let told: Value = refused.json().await.unwrap();
            assert_eq!((&told["error"]["code"], &told["error"]["message"]), (&json!("sandbox_busy"), &json!(text)));
        }
    }
}
