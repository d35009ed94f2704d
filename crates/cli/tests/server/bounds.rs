//! What callers make long: words of commands, variables, expressions. None of it may fill the server's memory or its disk, or keep it
//! from others.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::{
    files::Files,
    sdk::Sdk,
    stage::{Server, client, good, refused},
};

/// Lines of 60 KiB, and an expression that the fast ways of matching give up on them: a step for each byte and each of its states.
const LINES: &str = "import random
random.seed(7)
for _ in range(COUNT): print(''.join(random.choices('01', k=60 << 10)), end='END')";
const HARD: &str = "1[01]{1500}x";

fn lines(count: usize, end: &str) -> String {
    format!("python3 -c \"{}\"", LINES.replace("COUNT", &count.to_string()).replace("END", end))
}

#[tokio::test]
async fn a_hard_expression_over_an_output_is_given_up_and_holds_nobody_up() {
    let server = Server::start();
    let key = server.key_for("default", "read").await;
    let said = server.exec("one", &lines(30, "\\n")).await;
    let path = format!("/v1/calls/{}/search", said["call_id"].as_str().unwrap());
    let search = |pattern: &str| {
        let url = format!("{}{path}", server.url);
        let url = reqwest::Url::parse_with_params(&url, [("pattern", pattern), ("limit", "5")]).unwrap();
        let request = client().get(url).bearer_auth(&key);
        async move { good(request.send().await.unwrap()).await }
    };
    let found = search("^[01]+$").await;
    assert_eq!((found["lines"].as_array().unwrap().len(), &found["more"]), (5, &json!(true)), "the control");
    let searches = async { tokio::join!(search(HARD), search(HARD), search(HARD), search(HARD)) };
    let mut answers = 0;
    let asking = async {
        loop {
            assert_eq!(server.request(Method::GET, "/livez").send().await.unwrap().status(), 200);
            answers += 1;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        found = searches => for found in [found.0, found.1, found.2, found.3] {
            assert_eq!(found, json!({ "lines": [], "more": true }), "it was looked through to its end");
        },
        () = asking => {}
    }
    assert!(answers > 20, "{answers} answers meanwhile");
    let path = format!("{path}?pattern={}", HARD.replace("1500", "20000"));
    assert_eq!(refused(server.request(Method::GET, &path).send().await.unwrap()).await, (400, "bad_request".into()));
}

#[tokio::test]
async fn a_hard_expression_over_files_ends_when_its_time_is_over() {
    let files = Files::start().await;
    files.shell(&format!("{} > one-line", lines(60, ""))).await;
    let search = async |grep: &str| files.post("/search", json!({ "grep": grep, "timeout_ms": 500 })).await;
    let easy = good(search("1[01]{9}").await).await;
    assert_eq!(easy["hits"].as_array().unwrap().len(), 1, "the control: {easy}");
    let begun = Instant::now();
    good(search(HARD).await).await;
    // All of the line would take minutes.
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert_eq!(refused(search(&HARD.replace("1500", "20000")).await).await, (400, "bad_request".into()));
}

async fn exec(server: &Server, command: Value) -> Response {
    let mut body = json!({ "scope": { "scheme": "fixed", "name": "one" } });
    body.as_object_mut().unwrap().extend(command.as_object().unwrap().clone());
    server.post("/v1/exec", &body).send().await.unwrap()
}

#[tokio::test]
async fn commands_and_variables_that_are_too_long_are_refused() {
    let server = Server::start();
    let env = |length: usize| json!({ "A": "x".repeat(length / 2), "B": "x".repeat(length / 2) });
    let words = |count: usize, length: usize| [vec!["true".to_owned()], vec!["x".repeat(length); count]].concat();
    for good_one in [
        json!({ "argv": words(4000, 1) }),
        json!({ "argv": words(2, 100_000) }),
        json!({ "argv": ["true"], "env": env(200_000) }),
        json!({ "argv": ["true"], "spec": { "env": env(60_000) } }),
    ] {
        assert_eq!(good(exec(&server, good_one).await).await["exit_code"], 0);
    }
    for bad in [
        json!({ "argv": words(5000, 1) }),
        json!({ "argv": words(3, 100_000) }),
        json!({ "command": "x".repeat(300_000) }),
        json!({ "argv": ["true"], "env": env(300_000) }),
    ] {
        assert_eq!(refused(exec(&server, bad).await).await, (400, "bad_request".into()));
    }
    let made = server.post("/v1/sandboxes", &json!({ "env": env(70_000) })).send().await.unwrap();
    assert_eq!(refused(made).await, (400, "bad_request".into()));
    let made = good(server.post("/v1/sandboxes", &json!({ "env": env(60_000) })).send().await.unwrap()).await;
    let path = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
    let change = async |length| server.request(Method::PATCH, &path).json(&json!({ "env": env(length) })).send().await;
    assert_eq!(refused(change(70_000).await.unwrap()).await, (400, "bad_request".into()));
    good(change(50_000).await.unwrap()).await;
}

#[tokio::test]
async fn what_is_recorded_of_a_long_command_is_its_beginning_and_a_digest() {
    let server = Server::start();
    let long = json!({ "argv": ["printf", "%.3s", "é".repeat(50_000)] });
    assert_eq!(good(exec(&server, long).await).await["exit_code"], 0);
    assert_eq!(server.exec("one", "echo short").await["exit_code"], 0);
    let made = json!({ "path": format!("/{}", "d".repeat(200_000)) });
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let refusal = server.post(&format!("/v1/sandboxes/{sandbox}/files/mkdir"), &made).send().await.unwrap();
    assert_eq!(refused(refusal).await.0, 400);
    let rows = server.get("/v1/ledger?limit=1000").await["rows"].as_array().unwrap().clone();
    let argv = |word: &str| {
        let row = rows.iter().find(|row| row["argv"].to_string().contains(word));
        row.unwrap_or_else(|| panic!("no row with {word}"))["argv"].clone()
    };
    assert_eq!(argv("short"), json!(["sh", "-c", "echo short"]), "the control");
    let (long, refusal) = (argv("%.3s"), argv("dddd"));
    assert_eq!(long[0], "printf");
    assert!(long.to_string().len() < 9000 && long[3].as_str().unwrap().contains("100010 bytes, sha256"), "{long}");
    assert!(refusal.to_string().len() < 1000 && refusal.to_string().contains(" bytes, sha256"), "{refusal}");
    for page in ["/v1/ledger?limit=1000", "/v1/calls?limit=1000"] {
        let length = server.request(Method::GET, page).send().await.unwrap().text().await.unwrap().len();
        assert!(length < 40_000, "{length} bytes of {page}");
    }
}

#[tokio::test]
async fn e2b_processes_with_many_arguments_are_refused_and_long_ones_are_listed_in_part() {
    let sdk = Sdk::start().await;
    let start = async |args: Vec<String>, tag: &str| {
        let args = [vec!["-c".to_owned(), "sleep 600".to_owned()], args].concat();
        let process = json!({ "cmd": "/bin/sh", "args": args });
        sdk.stream("/process.Process/Start", json!({ "process": process, "tag": tag })).await
    };
    let (flags, end) = start(vec!["a".into(); 180_000], "many").await.next().await.unwrap();
    assert_eq!((flags, &end["error"]["code"]), (2, &json!("invalid_argument")), "{end}");
    let (flags, end) = start(Vec::new(), &"t".repeat(5000)).await.next().await.unwrap();
    assert_eq!((flags, &end["error"]["code"]), (2, &json!("invalid_argument")), "{end}");
    let (mut short, mut long) = (start(vec!["x".into()], "s").await, start(vec!["y".repeat(100_000)], "l").await);
    let pids = [short.pid().await, long.pid().await];
    let listed = sdk.call("/process.Process/List", json!({})).await;
    let args = |pid: u64| {
        let process = listed["processes"].as_array().unwrap().iter().find(|process| process["pid"] == pid).unwrap();
        process["config"]["args"].as_array().unwrap().clone()
    };
    assert_eq!(args(pids[0]), ["-c", "sleep 600", "x"]);
    let shown = args(pids[1]);
    assert!(shown.len() == 3 && shown[2].as_str().unwrap().ends_with("y…") && shown[2].to_string().len() < 17_000);
    // By its tag it is found as before.
    let kill = json!({ "process": { "tag": "l" }, "signal": "SIGNAL_SIGKILL" });
    sdk.call("/process.Process/SendSignal", kill.clone()).await;
    assert_eq!(sdk.refused("/process.Process/SendSignal", kill).await.1, "not_found");
}

#[tokio::test]
async fn a_body_of_very_many_values_is_refused_before_they_are_read() {
    let sdk = Sdk::start().await;
    let many = vec![""; 1_300_000];
    let answer = sdk.server.post("/v1/exec", &json!({ "command": many })).send().await.unwrap();
    let (code, message) = refused_for(answer).await;
    assert!(code == "bad_request" && message == "body: has more than 65536 values", "{message}");
    let start = json!({ "process": { "cmd": "/bin/true", "args": many } });
    let (flags, end) = sdk.stream("/process.Process/Start", start).await.next().await.unwrap();
    assert_eq!((flags, &end["error"]["code"]), (2, &json!("invalid_argument")), "{end}");
    assert!(end["error"]["message"].as_str().unwrap().ends_with("has more than 65536 values"), "{end}");
}

/// What a refusal is about, and its code.
async fn refused_for(answer: Response) -> (String, String) {
    assert_eq!(answer.status(), 400);
    let body: Value = answer.json().await.unwrap();
    let error = |name: &str| body["error"][name].as_str().unwrap().to_owned();
    (error("code"), error("message"))
}

#[tokio::test]
async fn records_that_are_too_long_are_refused() {
    let server = Server::start();
    let create = async |spec: &Value| server.post("/v1/sandboxes", spec).send().await.unwrap();
    // As JSON each of these characters has six bytes.
    let labels = |count: usize, length: usize| -> BTreeMap<String, String> {
        (0..count).map(|n| (format!("label{n}"), "\u{1}".repeat(length))).collect()
    };
    let env = json!({ "A": "\u{1}".repeat(60_000) });
    let made = good(create(&json!({ "labels": labels(4, 1300), "env": env })).await).await;
    assert_eq!(made["labels"].as_object().unwrap().len(), 4);
    for too_many in [labels(5, 1300), labels(64, 8000)] {
        let (code, message) = refused_for(create(&json!({ "labels": too_many })).await).await;
        assert!(code == "bad_request" && message.starts_with("labels"), "{message}");
    }
    // What else a record keeps has a bound with them, also where it comes later.
    let rules = |count: usize| (0..count).map(|n| format!("host{n:06}.example.com")).collect::<Vec<_>>();
    let network = |count| json!({ "network": { "mode": "allowlist", "allow": rules(count) } });
    let (code, message) = refused_for(create(&network(30_000)).await).await;
    assert!(code == "bad_request" && message.starts_with("spec"), "{message}");
    let path = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
    let change = async |change: Value| server.request(Method::PATCH, &path).json(&change).send().await.unwrap();
    let few = good(change(network(50)).await).await;
    let (code, message) = refused_for(change(network(30_000)).await).await;
    assert!(code == "bad_request" && message.starts_with("spec"), "{message}");
    assert_eq!(server.get(&path).await["network"], few["network"], "it is as it was");
}

#[tokio::test]
async fn a_page_of_sandboxes_with_long_records_ends_sooner_and_none_is_left_out() {
    let server = Server::start();
    let spec = json!({ "env": { "A": "\u{1}".repeat(60_000) } });
    let mut made = Vec::new();
    for _ in 0..14 {
        made.push(good(server.post("/v1/sandboxes", &spec).send().await.unwrap()).await["id"].clone());
    }
    let (mut seen, mut pages, mut cursor) = (Vec::new(), Vec::new(), String::new());
    loop {
        let page = server.get(&format!("/v1/sandboxes?limit=1000{cursor}")).await;
        let ids: Vec<_> = page["sandboxes"].as_array().unwrap().iter().map(|one| one["id"].clone()).collect();
        pages.push(ids.len());
        seen.extend(ids);
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    made.reverse();
    assert_eq!(seen, made);
    assert_eq!(pages, [12, 2], "of 360 kB each");
}
