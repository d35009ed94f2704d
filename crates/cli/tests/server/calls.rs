//! Calls: once, whatever happens; recorded, whatever comes of them.

use std::time::Duration;

use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::stage::{Server, good, refused, until};

async fn keyed(server: &Server, key: &str, command: &str) -> Response {
    let body = json!({ "scope": { "scheme": "fixed", "name": "one" }, "command": command });
    server.post("/v1/exec", &body).header("Idempotency-Key", key).send().await.unwrap()
}

#[tokio::test]
async fn fp_14_a_command_says_what_it_said_and_how_it_ended() {
    let server = Server::start();
    let answer = server.exec("one", "echo out; echo err >&2; exit 3").await;
    assert_eq!((&answer["stdout"], &answer["stderr"]), (&json!("out\n"), &json!("err\n")));
    assert_eq!((&answer["exit_code"], &answer["status"]), (&json!(3), &json!("exited")));
    let body = json!({ "scope": { "scheme": "fixed", "name": "one" }, "argv": ["printf", "%s", "$HOME"] });
    assert_eq!(good(server.post("/v1/exec", &body).send().await.unwrap()).await["stdout"], "$HOME");
}

#[tokio::test]
async fn fp_07_a_command_wakes_its_sandbox_and_its_use_is_noted() {
    let server = Server::start();
    let path = format!("/v1/sandboxes/{}", server.ensure("one").await["id"].as_str().unwrap());
    good(server.post(&format!("{path}/stop"), &json!({})).send().await.unwrap()).await;
    let stopped = server.get(&path).await;
    assert_eq!(stopped["state"], "stopped");
    server.exec("one", "true").await;
    let used = server.get(&path).await;
    assert_eq!(used["state"], "running");
    assert_ne!(used["changed_at"], stopped["changed_at"]);
    let time = |text: &Value| text.as_str().unwrap().parse::<cabana_model::Time>().unwrap();
    assert!(time(&used["active_at"]) >= time(&stopped["active_at"]), "{used}");
}

#[tokio::test]
async fn fp_16_and_17_a_command_that_fails_or_takes_too_long_is_an_answer() {
    let server = Server::start();
    let failed = server.exec("one", "echo why >&2; exit 7").await;
    assert_eq!((&failed["exit_code"], &failed["stderr"]), (&json!(7), &json!("why\n")));
    let body = json!({
        "scope": { "scheme": "fixed", "name": "one" }, "command": "echo begun; echo so far >&2; sleep 600", "timeout_ms": 300,
    });
    let late = good(server.post("/v1/exec", &body).send().await.unwrap()).await;
    assert_eq!(
        (&late["status"], &late["stdout"], &late["stderr"]),
        (&json!("timed_out"), &json!("begun\n"), &json!("so far\n"))
    );
    assert_eq!(server.stdout("one", "echo still").await, "still\n", "the sandbox goes on");
}

#[tokio::test]
async fn xb_01_input_variables_directory_user_and_time_are_as_asked() {
    let server = Server::start();
    let run = async |extra: Value| {
        let mut body = json!({ "scope": { "scheme": "fixed", "name": "one" } });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        good(server.post("/v1/exec", &body).send().await.unwrap()).await
    };
    assert_eq!(run(json!({ "command": "cat", "stdin": "typed" })).await["stdout"], "typed");
    assert_eq!(run(json!({ "command": "wc -c", "stdin_b64": "AAEC/w==" })).await["stdout"], "4\n");
    let env = json!({ "command": "echo \"$A\"", "env": { "A": "$(touch /tmp/evil) \"'" } });
    assert_eq!(run(env).await["stdout"], "$(touch /tmp/evil) \"'\n");
    assert_eq!(run(json!({ "command": "pwd", "cwd": "/usr/bin" })).await["stdout"], "/usr/bin\n");
    assert_eq!(run(json!({ "command": "id -u", "user": "root" })).await["stdout"], "0\n");
    let late = run(json!({ "command": "echo begun; sleep 600", "timeout_ms": 300 })).await;
    assert_eq!(
        (&late["status"], &late["exit_code"], &late["stdout"]),
        (&json!("timed_out"), &Value::Null, &json!("begun\n"))
    );
    assert_eq!(run(json!({ "command": "printf '\\377'" })).await["stdout_b64"], "/w==");
}

#[tokio::test]
async fn what_cannot_be_run_is_refused_with_the_reason() {
    let server = Server::start();
    let scope = json!({ "scheme": "fixed", "name": "one" });
    for (body, code) in [
        (json!({ "scope": scope }), "bad_request"),
        (json!({ "scope": scope, "command": "a", "argv": ["b"] }), "bad_request"),
        (json!({ "scope": scope, "argv": [] }), "bad_request"),
        (json!({ "scope": scope, "argv": ["/nowhere"] }), "program_not_found"),
        (json!({ "scope": scope, "argv": [format!("/bin/{}", "x".repeat(300))] }), "program_not_found"),
        (json!({ "scope": scope, "argv": ["/etc"] }), "program_not_found"),
        (json!({ "scope": scope, "command": "a\u{0}b" }), "bad_request"),
        (json!({ "scope": scope, "command": "true", "cwd": "/nowhere" }), "workdir_not_found"),
        (json!({ "scope": scope, "command": "true", "cwd": "../.." }), "invalid_path"),
        (json!({ "scope": scope, "command": "true", "user": "nobody-here" }), "unknown_user"),
        (json!({ "scope": scope, "command": "true", "timeout_ms": 0 }), "bad_request"),
        (json!({ "scope": scope, "command": "true", "timeout_ms": 100_000_000_000_u64 }), "bad_request"),
        (json!({ "scope": scope, "command": "true", "keep": { "head_bytes": 1_000_000 } }), "bad_request"),
        (json!({ "scope": scope, "command": "true", "stdin": "a", "stdin_b64": "YQ==" }), "bad_request"),
        (json!({ "scope": scope, "command": "true", "stdin_b64": "?" }), "bad_request"),
        (json!({ "command": "true", "background": true }), "bad_request"),
    ] {
        let told = refused(server.post("/v1/exec", &body).send().await.unwrap()).await;
        assert_eq!(told.1, code, "{body}");
    }
    let no_json = server.request(Method::POST, "/v1/exec").body("{").send().await.unwrap();
    assert_eq!(refused(no_json).await, (400, "bad_request".into()));
    let long = server.request(Method::POST, "/v1/exec").body(vec![b' '; 5 << 20]).send().await.unwrap();
    assert_eq!(refused(long).await, (413, "too_large".into()));
}

#[tokio::test]
async fn the_same_key_gives_the_same_answer_and_runs_once() {
    let server = Server::start();
    let first = good(keyed(&server, "k1", "echo run >> log; date +%N").await).await;
    let again = good(keyed(&server, "k1", "echo run >> log; date +%N").await).await;
    assert_eq!(again, first);
    assert_eq!(server.stdout("one", "cat log").await, "run\n");
    let other = refused(keyed(&server, "k1", "echo other").await).await;
    assert_eq!(other, (409, "idempotency_mismatch".into()));
    let long = "k".repeat(7000);
    assert_eq!(good(keyed(&server, &long, "true").await).await["exit_code"], 0);
}

#[tokio::test]
async fn a_second_one_follows_the_first_while_it_runs() {
    let server = Server::start();
    server.ensure("one").await;
    let wait = "echo run >> log; until [ -e go ]; do sleep 0.05; done; date +%N";
    let followers = (0..10).map(|_| keyed(&server, "k", wait));
    let release = async {
        until(|| async { (server.stdout("one", "cat log 2>/dev/null | wc -l").await == "1\n").then_some(()) }).await;
        server.stdout("one", "touch go").await;
    };
    let (answers, ()) = tokio::join!(futures_util::future::join_all(followers), release);
    let mut all = Vec::new();
    for answer in answers {
        all.push(good(answer).await);
    }
    assert!(all.iter().all(|answer| *answer == all[0]), "{all:?}");
    assert_eq!(server.stdout("one", "cat log").await, "run\n");
}

#[tokio::test]
async fn a_failure_is_kept_as_an_answer_is() {
    let server = Server::start();
    let first = keyed(&server, "k", "true; exec /nowhere/at/all").await;
    assert_eq!(good(first).await["exit_code"], 127);
    let bad = async || {
        let body = json!({ "scope": { "scheme": "fixed", "name": "one" }, "command": "true", "cwd": "late" });
        server.post("/v1/exec", &body).header("Idempotency-Key", "late").send().await.unwrap()
    };
    assert_eq!(refused(bad().await).await.1, "workdir_not_found");
    server.stdout("one", "mkdir late").await;
    assert_eq!(refused(bad().await).await.1, "workdir_not_found", "the same key, the same answer");
}

#[tokio::test]
async fn a_client_that_goes_away_changes_nothing() {
    let server = Server::start();
    server.ensure("one").await;
    let body = json!({ "scope": { "scheme": "fixed", "name": "one" }, "command": "until [ -e go ]; do sleep 0.05; done; echo done > file" });
    let gone = server.post("/v1/exec", &body).timeout(Duration::from_millis(300)).send().await;
    assert!(gone.unwrap_err().is_timeout());
    server.stdout("one", "touch go").await;
    until(|| async { (server.exec("one", "cat file").await["stdout"] == "done\n").then_some(()) }).await;
}

#[tokio::test]
async fn a_long_output_is_kept_whole_and_told_in_part() {
    let server = Server::start();
    let answer = server.exec("one", "seq 1 200000; echo end >&2").await;
    let whole: String = (1..=200_000).map(|n| format!("{n}\n")).collect();
    assert_eq!(answer["stdout_total"], whole.len());
    let (head, tail) = (answer["stdout"].as_str().unwrap(), answer["stdout_tail"].as_str().unwrap());
    assert!(whole.starts_with(head) && whole.ends_with(tail));
    assert_eq!(answer["stdout_left_out"], whole.len() - head.len() - tail.len());
    let path = format!("/v1/calls/{}/output", answer["call_id"].as_str().unwrap());
    let read = async |query: &str| server.request(Method::GET, &format!("{path}{query}")).send().await.unwrap();
    assert_eq!(read("").await.text().await.unwrap(), whole);
    assert_eq!(read("?stream=stderr").await.text().await.unwrap(), "end\n");
    assert_eq!(read("?from=1000&to=1010").await.text().await.unwrap(), whole[1000..1010]);
    assert_eq!(read("?from=99999999").await.text().await.unwrap(), "");
    assert_eq!(refused(read("?stream=both").await).await.1, "bad_request");
    let path = path.replace("/output", "/search");
    let found = server.get(&format!("{path}?pattern=^1000.*0$&limit=2")).await;
    let first = whole.find("10000\n").unwrap();
    assert_eq!(found["lines"][0], json!({ "line": 10_000, "offset": first, "text": "10000" }));
    assert_eq!((found["lines"].as_array().unwrap().len(), &found["more"]), (2, &json!(true)));
    let none = server.get(&format!("{path}?pattern=nowhere&stream=stderr")).await;
    assert_eq!(none, json!({ "lines": [], "more": false }));
    let bad = server.request(Method::GET, &format!("{path}?pattern=(")).send().await.unwrap();
    assert_eq!(refused(bad).await.1, "bad_request");
}

#[tokio::test]
async fn a_call_that_is_cancelled_ends_with_all_that_it_started_and_stays_cancelled() {
    let server = Server::start();
    server.ensure("one").await;
    let command = "(trap '' TERM; sleep 600) & trap '' TERM; echo up > up; sleep 600; sleep 600";
    let cancel = async {
        until(|| async { (server.exec("one", "cat up").await["exit_code"] == 0).then_some(()) }).await;
        let calls = server.get("/v1/calls").await;
        let mut running = calls["calls"].as_array().unwrap().iter().filter(|call| call["state"] == "running");
        let id = running.next().unwrap()["id"].as_str().unwrap().to_owned();
        assert!(running.next().is_none());
        good(server.post(&format!("/v1/calls/{id}/cancel"), &json!({})).send().await.unwrap()).await
    };
    let (answer, cancelled) = tokio::join!(keyed(&server, "k", command), cancel);
    assert_eq!(refused(answer).await, (409, "cancelled".into()));
    assert_eq!(cancelled["state"], "cancelled");
    assert_eq!(refused(keyed(&server, "k", command).await).await, (409, "cancelled".into()));
    until(|| async { (server.stdout("one", "pgrep -c sleep || true").await == "0\n").then_some(()) }).await;
}

#[tokio::test]
async fn every_call_has_its_row_and_no_value_of_a_variable_is_in_it() {
    let server = Server::start();
    let spec = json!({ "env": { "SESSION_SECRET": "hush-of-the-session" } });
    let body = json!({ "scope": { "scheme": "fixed", "name": "one" }, "spec": spec, "command": "echo $SESSION_SECRET $CALL_SECRET", "env": { "CALL_SECRET": "hush-of-the-call" } });
    let answer = good(server.post("/v1/exec", &body).send().await.unwrap()).await;
    assert_eq!(answer["stdout"], "hush-of-the-session hush-of-the-call\n");
    let rows = server.get("/v1/ledger").await;
    let row = &rows["rows"][0];
    assert_eq!((&row["verb"], &row["call"], &row["exit"]), (&json!("exec"), &answer["call_id"], &json!(0)));
    let sandboxes = server.get("/v1/sandboxes").await;
    for told in [&rows, &sandboxes] {
        assert!(told.to_string().contains("_SECRET"), "{told}");
        assert!(!told.to_string().contains("hush"), "{told}");
    }
}

#[tokio::test]
async fn calls_do_not_wait_for_each_other() {
    let server = Server::start();
    server.ensure("one").await;
    // Each ends only when all have begun: one after the other, none ever would.
    let all = |n| format!("touch begun{n}; until [ $(ls begun* | wc -l) = 20 ]; do sleep 0.05; done");
    let answers = futures_util::future::join_all((0..20).map(|n| {
        let command = all(n);
        let server = &server;
        async move { server.exec("one", &command).await }
    }));
    assert!(answers.await.iter().all(|answer| answer["exit_code"] == 0));
}
