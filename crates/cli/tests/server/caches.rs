//! What caches may keep, and which host a request is for.

use reqwest::{Method, Response};
use serde_json::json;

use crate::{
    inside::{at_path, listening},
    port_attacks::raw,
    sdk::Sdk,
    stage::{Server, good},
};

fn cache_control(answer: &Response) -> Option<&str> {
    answer.headers().get("cache-control").map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn no_cache_keeps_an_answer_to_one_who_showed_a_key_or_a_token() {
    let sdk = Sdk::start().await;
    let server = &sdk.server;
    let one = listening(server, "one").await;
    let by_key = |method, path: &str| server.request(method, path);
    for request in [
        server.post("/v1/keys", &json!({ "role": "read" })),
        server.post(&format!("/v1/sandboxes/{one}/ports/8000/link"), &json!({})),
        server.post("/v1/webhooks", &json!({ "url": "https://example.com/" })),
        by_key(Method::GET, &format!("/v1/sandboxes/{one}")),
        by_key(Method::GET, "/v1/sandboxes/nothing"),
        by_key(Method::GET, "/v1/ledger"),
        by_key(Method::GET, "/v1/events"),
        server.post("/v1/exec", &json!({ "command": "env" })),
        sdk.control(Method::GET, &format!("/sandboxes/{}", sdk.sandbox)),
        sdk.control(Method::POST, &format!("/sandboxes/{}/connect", sdk.sandbox)).json(&json!({ "timeout": 300 })),
        sdk.ask(Method::GET, "/envs"),
        sdk.ask(Method::POST, "/process.Process/List").json(&json!({})),
    ] {
        let request = request.build().unwrap();
        let (method, url) = (request.method().clone(), request.url().clone());
        let answer = crate::stage::client().execute(request).await.unwrap();
        assert_eq!(cache_control(&answer), Some("no-store"), "{method} {url}: {}", answer.status());
    }
    good(sdk.write("file", "text").await).await;
    assert_eq!(cache_control(&sdk.read("file").await), Some("private, no-cache"), "it is asked about by its tag");
    let page = at_path(server, &one, "echo").send().await.unwrap();
    assert_eq!(cache_control(&page), None, "what a port answers is its own");
}

#[tokio::test]
async fn a_request_that_names_two_hosts_is_refused_everywhere() {
    let server = Server::start();
    let sandbox = listening(&server, "one").await;
    let key = format!("X-API-KEY: {}\r\nConnection: close", server.key);
    for path in ["/livez", "/v1/sandboxes", "/sandboxes", &format!("/p/{sandbox}/8000/echo")] {
        for (target, hosts, status) in [
            (path.to_owned(), "Host: one", 200),
            (format!("http://one{path}"), "Host: one", 200),
            (format!("http://one:80{path}"), "Host: one", 200),
            (path.to_owned(), "Host: one\r\nHost: two", 400),
            (path.to_owned(), "Host: one\r\nHost: one", 400),
            (format!("http://one{path}"), "Host: two", 400),
        ] {
            let answer = raw(&server, &format!("GET {target} HTTP/1.1\r\n{hosts}\r\n{key}\r\n\r\n")).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{target} {hosts:?}: {answer}");
        }
    }
    assert_eq!(server.stdout("one", "grep -c echo seen").await, "4\n", "one of `listening`, and those that name one");
}
