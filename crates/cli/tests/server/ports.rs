//! What listens inside, as whoever has a key reaches it.

use futures_util::{SinkExt, StreamExt};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::{
    inside::{all, at_path, by_host, by_path, host_of, listening, open_socket, seen},
    stage::{Server, good, refused, until},
};

#[tokio::test]
async fn a_port_is_reached_by_path_and_by_host_name() {
    let server = Server::start();
    let sandbox = listening(&server, "one").await;
    let by_path = good(at_path(&server, &sandbox, "deep/er?a=1&b=%2F").send().await.unwrap()).await;
    assert_eq!(by_path["target"], "/deep/er?a=1&b=%2F");
    assert_eq!(seen(&by_path, "x-forwarded-prefix"), [format!("/p/{sandbox}/8000")]);
    let request = by_host(&server, Method::PUT, &sandbox, "v1/sandboxes?a=1").bearer_auth(&server.key).body("four");
    let told = good(request.send().await.unwrap()).await;
    assert_eq!(
        (&told["method"], &told["target"], &told["bytes"]),
        (&json!("PUT"), &json!("/v1/sandboxes?a=1"), &json!(4))
    );
    assert_eq!(seen(&told, "x-forwarded-host"), [host_of(&server, &sandbox)]);
    for told in [&by_path, &told] {
        assert_eq!(seen(told, "host"), ["localhost:8000"]);
        assert_eq!(seen(told, "x-forwarded-for"), ["127.0.0.1"]);
        assert_eq!(seen(told, "x-forwarded-proto"), ["http"]);
    }
    let bare = at_path(&server, &sandbox, "").build().unwrap().url().as_str().trim_end_matches('/').to_owned();
    let moved = crate::inside::client().get(format!("{bare}?x=1")).send().await.unwrap();
    assert_eq!(moved.status(), StatusCode::PERMANENT_REDIRECT);
    assert_eq!(moved.headers()["location"], format!("/p/{sandbox}/8000/?x=1").as_str());
    let long = crate::inside::client().get(format!("{bare}?{}", "x".repeat(4000))).send().await.unwrap();
    assert_eq!(long.status(), StatusCode::BAD_REQUEST, "a stranger may say this, and need not take what it is told");
}

#[tokio::test]
async fn what_opens_our_doors_does_not_come_in() {
    let server = Server::start();
    let sandbox = listening(&server, "one").await;
    let request = by_path(&server, &sandbox, "echo")
        .header("X-API-KEY", &server.key)
        .header("Authorization", format!("bearer {}", server.key))
        .header("Cabana-Tenant", "default")
        .header(
            "Cookie",
            "cabana_page_a=1; cabana_link=x; session=of-another-program; cabana_page_b=2; cabana_page_cabana_link=y",
        )
        .header("Forwarded", "for=9.9.9.9")
        .header("X-Forwarded-For", "9.9.9.9")
        .header("X-Own", "kept");
    let told = good(request.send().await.unwrap()).await;
    for name in ["x-api-key", "authorization", "cabana-tenant", "forwarded"] {
        assert_eq!(seen(&told, name), [""; 0], "{name}");
    }
    assert_eq!(seen(&told, "cookie"), ["a=1; b=2"]);
    assert_eq!(seen(&told, "x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(seen(&told, "x-own"), ["kept"]);
    assert!(!told.to_string().contains(&server.key[4..]));
    // What is somebody else's goes through.
    let request = by_path(&server, &sandbox, "echo").bearer_auth(&server.key).header("X-API-KEY", "the app's own");
    assert_eq!(seen(&good(request.send().await.unwrap()).await, "x-api-key"), ["the app's own"]);
}

#[tokio::test]
async fn bodies_stream_both_ways_and_an_end_is_felt_inside() {
    let server = Server::start();
    let sandbox = listening(&server, "one").await;
    let chunks = futures_util::stream::iter((0..64).map(|_| Ok::<_, std::io::Error>(vec![7_u8; 64 << 10])));
    let request = at_path(&server, &sandbox, "echo").build().unwrap().url().clone();
    let request = crate::inside::client().post(request).bearer_auth(&server.key);
    let told = good(request.body(reqwest::Body::wrap_stream(chunks)).send().await.unwrap()).await;
    assert_eq!(told["bytes"], 4 << 20);
    let endless = at_path(&server, &sandbox, "endless").send().await.unwrap();
    let mut body = endless.bytes_stream();
    let mut got = 0;
    while got < 4 << 20 {
        got += body.next().await.unwrap().unwrap().len();
    }
    drop(body);
    until(|| async { (server.exec("one", "rm left").await["exit_code"] == 0).then_some(()) }).await;
    // Whoever waits for an answer that never comes may go too.
    tokio::select! {
        _ = at_path(&server, &sandbox, "silent").send() => panic!("there is no answer"),
        () = until(|| async { (server.exec("one", "rm asked").await["exit_code"] == 0).then_some(()) }) => {}
    }
    until(|| async { (server.exec("one", "rm left").await["exit_code"] == 0).then_some(()) }).await;
}

#[tokio::test]
async fn web_sockets_go_through() {
    let server = Server::start();
    let sandbox = listening(&server, "one").await;
    let (bearer, host) = (format!("Bearer {}", server.key), host_of(&server, &sandbox));
    let ways = [
        (format!("/p/{sandbox}/8000/socket"), vec![("authorization", bearer.as_str())]),
        ("/socket".to_owned(), vec![("authorization", bearer.as_str()), ("host", host.as_str())]),
    ];
    for (path, headers) in ways {
        let (mut socket, _) = open_socket(&server, &path, &headers).await.unwrap();
        for text in ["hello", &"long ".repeat(1000)] {
            socket.send(Message::text(text)).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap(), Message::text(text));
        }
        socket.close(None).await.unwrap();
    }
}

#[tokio::test]
async fn a_closed_port_says_so_and_a_sandbox_that_sleeps_is_woken() {
    let server = Server::start();
    let sandbox = listening(&server, "one").await;
    let closed = server.request(Method::GET, &format!("/p/{sandbox}/8001/")).send().await.unwrap();
    assert_eq!(refused(closed).await, (502, "port_closed".into()));
    let state = || async { server.get(&format!("/v1/sandboxes/{sandbox}")).await["state"].clone() };
    good(server.post(&format!("/v1/sandboxes/{sandbox}/pause"), &json!({})).send().await.unwrap()).await;
    assert_eq!(state().await, "paused");
    good(at_path(&server, &sandbox, "echo").send().await.unwrap()).await;
    assert_eq!(state().await, "running");
    good(server.post(&format!("/v1/sandboxes/{sandbox}/stop"), &json!({})).send().await.unwrap()).await;
    assert_eq!(refused(at_path(&server, &sandbox, "echo").send().await.unwrap()).await, (502, "port_closed".into()));
    assert_eq!(state().await, "running");
}

#[tokio::test]
async fn what_a_page_says_reaches_no_further_than_its_port() {
    let server = Server::start();
    let sandbox = listening(&server, "one").await;
    let answer = at_path(&server, &sandbox, "reach").send().await.unwrap();
    let headers = answer.headers();
    let here = format!("Path=/p/{sandbox}/8000/");
    let set = [format!("cabana_page_plain=1; {here}"), format!("cabana_page_wide=2; HttpOnly; {here}")];
    assert_eq!(all(headers, "set-cookie"), set);
    let beyond =
        ["clear-site-data", "service-worker-allowed", "strict-transport-security", "alt-svc", "nel", "x-between"];
    for name in beyond {
        assert!(!headers.contains_key(name), "{name}");
    }
    assert_eq!(headers["x-own"], "kept");
    assert!(headers["content-security-policy"].to_str().unwrap().starts_with("sandbox "));
    let by_name = by_host(&server, Method::GET, &sandbox, "reach").bearer_auth(&server.key).send().await.unwrap();
    assert_eq!(all(by_name.headers(), "set-cookie"), ["plain=1", "wide=2; Path=/; HttpOnly"]);
    assert!(!by_name.headers().contains_key("content-security-policy"));
    for name in ["clear-site-data", "strict-transport-security", "alt-svc"] {
        assert!(!by_name.headers().contains_key(name), "{name}");
    }
    assert!(by_name.headers().contains_key("nel"), "the control: what a page says of its own host");
    let led = [
        ("near", format!("/p/{sandbox}/8000/next?x=1")),
        ("self", format!("/p/{sandbox}/8000/next")),
        ("far", "https://example.com/".to_owned()),
        ("slashes", "//example.com/".to_owned()),
    ];
    for (which, to) in led {
        let moved = at_path(&server, &sandbox, &format!("redirect/{which}")).send().await.unwrap();
        assert_eq!(moved.headers()["location"], to.as_str());
    }
}

#[tokio::test]
async fn a_role_that_only_reads_and_another_tenant_reach_no_port() {
    let server = Server::start();
    let sandbox = listening(&server, "one").await;
    let (reader, thief) = (server.key_for("default", "read").await, server.key_for("thief", "use").await);
    for (key, told) in [(&reader, (403, "forbidden")), (&thief, (404, "sandbox_not_found"))] {
        let told = (told.0, told.1.to_owned());
        assert_eq!(refused(by_path(&server, &sandbox, "echo").bearer_auth(key).send().await.unwrap()).await, told);
        let by_name = by_host(&server, Method::GET, &sandbox, "echo").bearer_auth(key);
        assert_eq!(refused(by_name.send().await.unwrap()).await, told);
    }
    let nobody = (401, "unauthorized".to_owned());
    assert_eq!(refused(by_path(&server, &sandbox, "echo").send().await.unwrap()).await, nobody);
    assert_eq!(refused(by_host(&server, Method::GET, &sandbox, "livez").send().await.unwrap()).await, nobody);
    let log: Value = json!(server.stdout("one", "cat seen").await);
    assert!(!log.as_str().unwrap().contains("livez"));
}
