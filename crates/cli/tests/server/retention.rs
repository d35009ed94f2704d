//! What goes after a while, at a real server: also one that is killed in the middle of it.

use std::{
    path::Path,
    process::{Command, Output},
    time::Duration,
};

use cabana_model::{CallId, KeyId, Tenant, Time};
use cabana_store::{Durability, Entry, Store};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    stage::{Server, client, good, refused, until},
    verdict::output as output_of,
};

/// Of outputs, everything that has ended goes at once.
fn forgetful() -> Server {
    Server::start_with(&["--retention-outputs", "1ms"])
}

async fn gc(server: &Server, dry_run: bool) -> Value {
    good(server.post("/v1/gc", &json!({ "dry_run": dry_run })).send().await.unwrap()).await
}

fn of<'a>(collected: &'a Value, kind: &str) -> &'a Value {
    collected["kinds"].as_array().unwrap().iter().find(|counted| counted["kind"] == kind).unwrap()
}

fn files(server: &Server) -> usize {
    let folders = std::fs::read_dir(server.data().join("outputs")).unwrap();
    folders.map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap().count()).sum()
}

pub(crate) fn cabana(server: &Server, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cabana"));
    for name in ["CABANA_URL", "CABANA_API_KEY", "CABANA_TENANT"] {
        command.env_remove(name);
    }
    command.args(words).env("CABANA_DATA", server.data()).output().unwrap()
}

#[track_caller]
pub(crate) fn ledger_is_whole(server: &Server) {
    let checked = cabana(server, &["ledger", "verify"]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

#[tokio::test]
async fn a_dry_run_says_what_goes_and_then_it_goes() {
    let server = forgetful();
    let small = server.exec("one", "echo small").await["call_id"].as_str().unwrap().to_owned();
    let large = server.exec("one", "seq 1 20000").await["call_id"].as_str().unwrap().to_owned();
    let task = server.begin("one", "seq 1 20000").await;
    server.ended(&task).await;
    let running = server.begin("one", "seq 1 20000; sleep 600").await;
    let said = async || output_of(&server, &format!("/v1/tasks/{running}/output")).await;
    until(|| async { said().await.ends_with("\n20000\n").then_some(()) }).await;
    let output = async |path: &str| server.request(Method::GET, path).send().await.unwrap();
    let dry = gc(&server, true).await;
    assert_eq!(of(&dry, "outputs")["count"], 3, "{dry}");
    assert_eq!((files(&server), output(&format!("/v1/calls/{small}/output")).await.status()), (9, StatusCode::OK));
    let done = gc(&server, false).await;
    assert_eq!(of(&done, "outputs"), of(&dry, "outputs"));
    assert!(of(&done, "outputs")["bytes"].as_u64().unwrap() > 200_000, "{done}");
    for path in
        [format!("/v1/calls/{small}/output"), format!("/v1/calls/{large}/output"), format!("/v1/tasks/{task}/output")]
    {
        assert_eq!(refused(output(&path).await).await, (410, "output_gone".into()), "{path}");
    }
    assert_eq!(files(&server), 3, "what goes on is kept");
    assert_eq!(output(&format!("/v1/tasks/{running}/output")).await.status(), StatusCode::OK);
    assert_eq!(server.get(&format!("/v1/calls/{large}")).await["state"], "answered");
    assert_eq!(of(&gc(&server, true).await, "outputs")["count"], 0);

    let told = cabana(&server, &["gc", "--dry-run"]);
    let table = String::from_utf8(told.stdout).unwrap();
    assert!(told.status.success() && table.starts_with("KIND") && table.contains("WOULD GO"), "{table}");
    let told: Value = serde_json::from_slice(&cabana(&server, &["gc", "--json"]).stdout).unwrap();
    assert_eq!(told["dry_run"], false);
    ledger_is_whole(&server);
}

#[tokio::test]
async fn only_the_operator_removes_and_takes_along() {
    let server = Server::start();
    let ours = server.key_for("us", "use").await;
    let asked = client().post(format!("{}/v1/gc", server.url)).bearer_auth(&ours).json(&json!({ "dry_run": true }));
    assert_eq!(refused(asked.send().await.unwrap()).await, (403, "forbidden".into()));
    let asked = client().get(format!("{}/v1/backup", server.url)).bearer_auth(&ours);
    assert_eq!(refused(asked.send().await.unwrap()).await, (403, "forbidden".into()));
}

#[tokio::test]
async fn a_kill_in_the_middle_of_it_loses_nothing_else_and_the_next_pass_ends_it() {
    let mut server = forgetful();
    for round in 0..4_u64 {
        let kept = server.begin("one", "seq 1 9000; sleep 600").await;
        until(|| async { (files(&server) == 3).then_some(()) }).await;
        for _ in 0..12 {
            server.exec("one", "seq 1 9000").await;
        }
        let sent = server.post("/v1/gc", &json!({ "dry_run": false })).send();
        // At whatever it is then: each round a little later.
        let _ = tokio::time::timeout(Duration::from_millis(2 + 3 * round), sent).await;
        server.kill();
        server.run();
        let left = of(&gc(&server, false).await, "outputs")["count"].as_u64().unwrap();
        eprintln!("round {round}: {left} were left");
        assert_eq!(files(&server), 3, "those of what goes on");
        let output = server.request(Method::GET, &format!("/v1/tasks/{kept}/output")).send().await.unwrap();
        assert!(output.text().await.unwrap().starts_with("1\n2\n3\n"));
        server.request(Method::POST, &format!("/v1/tasks/{kept}/cancel")).send().await.unwrap();
        server.ended(&kept).await;
        gc(&server, false).await;
        assert_eq!(files(&server), 0);
        ledger_is_whole(&server);
    }
}

#[tokio::test]
async fn snapshots_that_nobody_uses_go_with_their_layers() {
    let server = Server::start_with(&["--retention-snapshots", "1ms"]);
    server.stdout("one", "seq 1 300000 > large").await;
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let take = server.request(Method::POST, &format!("/v1/sandboxes/{sandbox}/snapshots"));
    let snapshot = good(take.send().await.unwrap()).await["id"].as_str().unwrap().to_owned();
    let fork = json!({ "scope": { "scheme": "fixed", "name": "two" }, "spec": { "snapshot": snapshot }, "command": "wc -l < large" });
    assert_eq!(good(server.post("/v1/exec", &fork).send().await.unwrap()).await["stdout"], "300000\n");
    let none = gc(&server, false).await;
    assert_eq!((&of(&none, "snapshots")["count"], &of(&none, "snapshots")["kept"]), (&json!(0), &json!(1)), "{none}");
    for scope in ["one", "two"] {
        let id = server.ensure(scope).await["id"].as_str().unwrap().to_owned();
        let gone = server.request(Method::DELETE, &format!("/v1/sandboxes/{id}")).send().await.unwrap();
        assert!(gone.status().is_success());
    }
    let dry = gc(&server, true).await;
    assert_eq!((&of(&dry, "snapshots")["count"], &of(&dry, "layers")["count"]), (&json!(1), &json!(1)), "{dry}");
    assert!(of(&dry, "layers")["bytes"].as_u64().unwrap() > 1_000_000, "{dry}");
    let done = gc(&server, false).await;
    assert_eq!(done["kinds"], dry["kinds"]);
    assert_eq!(server.get("/v1/snapshots").await["snapshots"], json!([]));
    let layers = std::fs::read_dir(server.data().join("layers")).unwrap();
    let kept = layers.filter(|entry| entry.as_ref().unwrap().file_name().to_str().unwrap().starts_with("kept-"));
    assert_eq!(kept.count(), 0);
    let rows = server.get("/v1/ledger?limit=1000").await;
    let row = rows["rows"].as_array().unwrap().iter().find(|row| row["verb"] == "snapshot.delete").unwrap().clone();
    assert_eq!(row["argv"], json!([snapshot, "retention"]));
    ledger_is_whole(&server);
}

/// As if a server had served two days ago.
fn served_long_ago(data: &Path) {
    let data = data.to_owned();
    let write = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let store = Store::open(&data, Durability::Kill).unwrap();
            for _ in 0..5 {
                let entry = Entry {
                    tenant: Tenant::default(),
                    key: KeyId::now(),
                    sandbox: None,
                    call: CallId::now(),
                    verb: "exec".into(),
                    argv: vec!["true".into()],
                    input_digest: None,
                    output_digest: None,
                    outcome: "answered".into(),
                    exit: Some(0),
                    duration_ms: 1,
                    policy: None,
                    at: Time::now() - jiff::SignedDuration::from_hours(49),
                };
                store.note(entry).await.unwrap();
            }
            store.close().await;
        });
    };
    std::thread::spawn(write).join().unwrap();
}

fn tamper(server: &Server, sql: &str) {
    let script = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute(sys.argv[2]); db.commit()";
    let done = Command::new("python3").args(["-c", script]).arg(server.data().join("db/cabana.db")).arg(sql).status();
    assert!(done.unwrap().success());
}

#[tokio::test]
async fn a_ledger_without_its_oldest_days_is_verified_and_what_was_cut_is_found() {
    let mut server = Server::prepared(&["--retention-ledger", "24h"], served_long_ago);
    server.stdout("one", "true").await;
    ledger_is_whole(&server);
    let dry = gc(&server, true).await;
    assert_eq!(of(&dry, "ledger")["count"], 5, "{dry}");
    assert_eq!(of(&gc(&server, false).await, "ledger")["count"], 5);
    let told = server.get("/v1/ledger").await;
    assert_eq!(
        (&told["dropped"]["seq"], &told["dropped"]["rows"], &told["rows"][0]["seq"]),
        (&json!(5), &json!(5), &json!(6))
    );
    let said = told["rows"].as_array().unwrap().iter().find(|row| row["verb"] == "ledger.drop").unwrap();
    assert_eq!(said["argv"][2], told["dropped"]["hash"]);
    let verify = |server: &Server| {
        let checked = cabana(server, &["ledger", "verify"]);
        (checked.status.success(), String::from_utf8_lossy(&checked.stderr).into_owned())
    };
    let (whole, words) = verify(&server);
    assert!(whole && words.contains("Those up to 5 were dropped"), "{words}");
    for (sql, finds) in [
        ("DELETE FROM ledger WHERE seq = 6", "what comes after row 5 is missing"),
        // As if more had been dropped, with a hash that fits.
        (
            "UPDATE ledger_dropped SET seq = 7, hash = (SELECT hash FROM ledger WHERE seq = 7 AND tenant = 'default')",
            "none of its rows says that those before it were dropped",
        ),
        ("DELETE FROM ledger_dropped", "what comes after row 0 is missing"),
    ] {
        server.stop();
        tamper(&server, sql);
        server.run();
        let (whole, words) = verify(&server);
        assert!(!whole && words.contains(finds), "{sql}: {words}");
    }
}
