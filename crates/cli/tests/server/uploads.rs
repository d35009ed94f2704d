//! Uploads that are sent again: the same key and the same body give the same answer, and another body is another request.

use bytes::Bytes;
use reqwest::{Body, Method, Response};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{
    load::in_pieces,
    stage::{Server, good, refused, until},
};

async fn put(server: &Server, sandbox: &str, key: &str, body: impl Into<Body>) -> Response {
    let path = format!("/v1/sandboxes/{sandbox}/files?path=file&mode=append");
    server.request(Method::PUT, &path).header("Idempotency-Key", key).body(body).send().await.unwrap()
}

async fn size(server: &Server) -> String {
    server.stdout("one", "wc -c < file").await.trim().to_owned()
}

#[tokio::test]
async fn an_upload_that_is_repeated_is_written_once() {
    let mut server = Server::start();
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let content: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
    let first = good(put(&server, &sandbox, "k", in_pieces(&content, 7000)).await).await;
    assert_eq!(first["size"], 300_000);
    for again in [in_pieces(&content, 100_000), Body::from(content.clone())] {
        assert_eq!(good(put(&server, &sandbox, "k", again).await).await, first, "however it is sent");
    }
    let mut other = content.clone();
    other[299_999] ^= 1;
    let mismatch = (409, "idempotency_mismatch".to_owned());
    for body in [other, content[..299_999].to_vec(), Vec::new(), [&content[..], b"x"].concat()] {
        assert_eq!(refused(put(&server, &sandbox, "k", in_pieces(&body, 7000)).await).await, mismatch);
        assert_eq!(refused(put(&server, &sandbox, "k", body).await).await, mismatch);
    }
    server.kill();
    server.run();
    assert_eq!(refused(put(&server, &sandbox, "k", "other").await).await, mismatch, "after a kill too");
    assert_eq!(good(put(&server, &sandbox, "k", content).await).await, first);
    assert_eq!(size(&server).await, "300000", "it was appended once");
}

#[tokio::test]
async fn an_upload_that_is_repeated_while_the_first_goes_on_waits_for_it() {
    let server = Server::start();
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let (sends, pieces) = mpsc::channel::<Result<Bytes, std::io::Error>>(1);
    let slow = futures_util::stream::unfold(pieces, |mut pieces| async { Some((pieces.recv().await?, pieces)) });
    let first = put(&server, &sandbox, "k", Body::wrap_stream(slow));
    let rest = async {
        sends.send(Ok("one ".into())).await.unwrap();
        // It is under way as soon as it is in the list.
        until(|| async {
            let calls = server.get("/v1/calls").await;
            calls["calls"].as_array().unwrap().iter().any(|call| call["verb"] == "file.write").then_some(())
        })
        .await;
        let (same, other) = (put(&server, &sandbox, "k", "one two"), put(&server, &sandbox, "k", "one too"));
        let end = async {
            sends.send(Ok("two".into())).await.unwrap();
            drop(sends);
        };
        let (same, other, ()) = tokio::join!(same, other, end);
        assert_eq!(refused(other).await, (409, "idempotency_mismatch".into()));
        good(same).await
    };
    let (first, same) = tokio::join!(first, rest);
    assert_eq!(good(first).await, same);
    assert_eq!(size(&server).await, "7");
}

/// As much memory as a process has ever had, in KiB.
fn peak(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test]
async fn an_upload_that_is_compared_is_not_held_in_memory() {
    let server = Server::start();
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let piece = Bytes::from(vec![7; 64 << 10]);
    let large = || {
        let pieces = vec![piece.clone(); 1600]; // 100 MiB
        Body::wrap_stream(futures_util::stream::iter(pieces.into_iter().map(Ok::<_, std::io::Error>)))
    };
    let first = good(put(&server, &sandbox, "k", large()).await).await;
    let before = peak(&server);
    assert_eq!(good(put(&server, &sandbox, "k", large()).await).await, first);
    assert!(peak(&server) < before + (32 << 10), "{before} KiB before, {} KiB after", peak(&server));
}

#[tokio::test]
async fn what_a_chat_writes_is_compared_too() {
    let server = Server::start();
    let write = async |content: &str| {
        let body: Value =
            json!({ "action": "write", "appId": "app", "chatId": "chat", "path": "note", "content": content });
        let request = server.post("/api/core/ai/sandbox/file", &body).header("Cabana-User", "user");
        request.header("Idempotency-Key", "k").send().await.unwrap()
    };
    let first = good(write("one").await).await;
    assert_eq!(good(write("one").await).await, first);
    assert_eq!(refused(write("two").await).await, (409, "idempotency_mismatch".into()));
}

#[tokio::test]
async fn what_is_gone_by_a_call_is_still_that_calls_answer() {
    let server = Server::start();
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let delete = async |key: &str| {
        let request = server.request(Method::DELETE, &format!("/v1/sandboxes/{sandbox}"));
        request.header("Idempotency-Key", key).send().await.unwrap()
    };
    for _ in 0..2 {
        assert_eq!(delete("k").await.status(), 204, "the same key, the same answer");
    }
    assert_eq!(refused(delete("another").await).await, (404, "sandbox_not_found".into()));
    // The scope has another sandbox by now, and the key is still that of the first call.
    let run = async |key: &str| {
        let body = json!({ "scope": { "scheme": "fixed", "name": "one" }, "command": "date +%N" });
        good(server.post("/v1/exec", &body).header("Idempotency-Key", key).send().await.unwrap()).await
    };
    let first = run("exec").await;
    let second = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    good(server.request(Method::DELETE, &format!("/v1/sandboxes/{second}")).send().await.unwrap()).await;
    assert_eq!(run("exec").await, first);
}

#[tokio::test]
async fn an_upload_that_is_refused_before_its_end_is_answered() {
    let server = Server::start();
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let large = vec![7; 16 << 20];
    for _ in 0..20 {
        for (query, code) in [("path=/tmp", "is_directory"), ("path=file&mode=none", "bad_request")] {
            let request = server.request(Method::PUT, &format!("/v1/sandboxes/{sandbox}/files?{query}"));
            let (_, told) = refused(request.body(in_pieces(&large, 100_000)).send().await.unwrap()).await;
            assert_eq!(told, code);
        }
        // The connection is as good as before.
        server.get("/v1/sandboxes").await;
    }
}
