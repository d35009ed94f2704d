//! What searches take of the server.

use futures_util::future::join_all;
use reqwest::Response;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    files::Files,
    stage::{client, good, refused, until},
};

async fn post_as(key: &str, files: &Files, route: &str, body: &Value) -> Response {
    let request = client().post(format!("{}{route}", files.server.url)).bearer_auth(key);
    request.json(body).send().await.unwrap()
}

/// Memory of the server, in MiB.
fn memory(files: &Files) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", files.server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() / 1024
}

#[tokio::test]
async fn searches_with_a_bomb_of_ignore_patterns_do_not_fill_the_server_s_memory() {
    let files = Files::start().await;
    files
        .shell("mkdir -p g/d; for n in $(seq 12000); do echo \"**/a$n*[!b-z]?{x,y,$n}**/q$n*\"; done > g/.gitignore")
        .await;
    files.shell("cp g/.gitignore g/d; echo hello > g/d/file").await;
    let key = files.server.key_for("default", "read").await;
    let (before, route) = (memory(&files), files.route("/search"));
    let what = json!({ "path": "g", "globs": [], "ignore_files": true, "timeout_ms": 30_000 });
    let all = join_all((0..6).map(|_| post_as(&key, &files, &route, &what))).await;
    for answer in all {
        let found = good(answer).await;
        assert!(found["hits"].as_array().unwrap().iter().any(|hit| hit["name"] == "file"), "{found}");
    }
    let more = memory(&files) - before;
    assert!(more < 400, "{more} MiB for six searches");
}

#[tokio::test]
async fn a_tenant_has_some_searches_at_once_and_takes_no_other_s() {
    let files = Files::start().await;
    // To look through so much takes longer than a search may.
    files.shell("mkdir d s; echo x > d/f; yes abbaabab | head -c 64000000 > s/0").await;
    files.shell("for n in $(seq 200); do ln s/0 s/$n; done").await;
    let slow = json!({ "path": "s", "grep": "b[ab]{7}c", "timeout_ms": 60_000 });
    let quick = json!({ "path": "d", "timeout_ms": 500 });
    let server = &files.server;
    let route = files.route("/search");
    let mut under_way = JoinSet::new();
    (0..4).for_each(|_| drop(under_way.spawn(server.post(&route, &slow).send())));
    // Refused only once the four have begun.
    let refusal = until(|| async {
        let answer = server.post(&route, &quick).send().await.unwrap();
        if answer.status().is_success() { None } else { Some(refused(answer).await) }
    })
    .await;
    assert_eq!(refusal, (429, "too_many_searches".into()));
    // Another tenant finds what it has.
    let other = server.key_for("other", "use").await;
    let made = good(post_as(&other, &files, "/v1/sandboxes", &json!({})).await).await;
    let search = format!("/v1/sandboxes/{}/files/search", made["id"].as_str().unwrap());
    good(post_as(&other, &files, &search, &json!({ "timeout_ms": 20_000 })).await).await;
    // Whose clients have gone make room.
    under_way.abort_all();
    until(|| async {
        let answer = server.post(&route, &quick).send().await.unwrap();
        answer.status().is_success().then_some(())
    })
    .await;
}
