//! Answers of searches that their clients do not read.

use reqwest::{Method, RequestBuilder};
use serde_json::json;

use crate::stage::{Server, good, refused, until};

/// Of what one search finds, as JSON.
const MOST: u64 = 4 << 20;
/// A thousand lines of what becomes six times as long as JSON.
const LINES: &str = "yes \"$(head -c 1000 /dev/zero | tr '\\0' '\\1')\" | head -n 1000 | tee lines";

/// Until there is no room for more, and again once they are gone.
async fn fill(search: impl Fn() -> RequestBuilder) {
    let mut unread = Vec::new();
    let late = loop {
        assert!(unread.len() < 40, "so many are let be unread");
        let answer = search().send().await.unwrap();
        if answer.status() != 200 {
            break answer;
        }
        let length = answer.content_length().unwrap();
        assert!(length > MOST / 2 && length < MOST + MOST / 8, "{length} bytes");
        unread.push(answer);
    };
    assert_eq!(refused(late).await, (503, "server_busy".into()));
    assert!(unread.len() > 8, "{}", unread.len());
    drop(unread);
    until(async || (search().send().await.unwrap().status() == 200).then_some(())).await;
}

#[tokio::test]
async fn what_searches_find_is_charged_until_it_is_read() {
    let server = Server::start();
    let said = server.exec("one", LINES).await;
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let found = format!("/v1/calls/{}/search?pattern=.&limit=1000", said["call_id"].as_str().unwrap());
    fill(|| server.request(Method::GET, &found)).await;
    let files = format!("/v1/sandboxes/{sandbox}/files/search");
    fill(|| server.post(&files, &json!({ "grep": "." }))).await;
    let few = json!({ "grep": ".", "limit": 1 });
    assert_eq!(good(server.post(&files, &few).send().await.unwrap()).await["cut_off"], "limit");
}
