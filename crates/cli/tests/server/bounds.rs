//! What callers make long: words of commands, variables, expressions. None of it may fill the server's memory or its disk, or keep it
//! from others.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;

use crate::{
    files::Files,
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
