//! Clients that neither send on nor take what they asked for, and commands that do not read.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures_util::{
    StreamExt,
    stream::{self, FuturesUnordered},
};
use reqwest::{Body, Client, Method, Response, StatusCode};
use serde_json::json;

use crate::{
    sdk::Sdk,
    stage::{Server, client, refused, until},
};

/// Of files that one tenant reads at a time, where there are descriptors for so many.
const READERS: usize = 1024;
/// Of a tenant's answers, and of its bodies.
const MEMORY: usize = 64 << 20;
/// Of each answer and each body this is free.
const FREE: usize = 4 << 10;
/// What is read of an output or a file at once.
const CHUNK: usize = 256 << 10;

/// One that takes next to nothing of its answers, and has many at once.
fn slow_client() -> Client {
    client(); // what all clients need is there then
    Client::builder().http2_prior_knowledge().http2_initial_stream_window_size(1).build().unwrap()
}

/// As many answers as there may be that are not taken, and the one that is refused then.
async fn unread_until_refused(server: &Server, path: &str) -> (Vec<Response>, Response) {
    let (mut unread, mut slow) = (Vec::new(), slow_client());
    loop {
        assert!(unread.len() <= READERS, "so many are let be unread");
        if unread.len() % 200 == 199 {
            slow = slow_client(); // a connection has so many requests at once
        }
        let answer = slow.get(format!("{}{path}", server.url)).bearer_auth(&server.key).send().await.unwrap();
        match answer.status() {
            StatusCode::OK => unread.push(answer),
            _ => return (unread, answer),
        }
    }
}

#[tokio::test]
async fn outputs_and_files_are_charged_until_they_are_taken() {
    const OUTPUTS: usize = MEMORY / (CHUNK - FREE);
    let server = Server::start();
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let task = server.begin("one", "head -c 300000 /dev/zero | tee file; sleep 600").await;
    let output = format!("/v1/tasks/{task}/output");
    let whole = async |path: &str| {
        let answer = server.request(Method::GET, path).send().await.unwrap();
        (answer.status() == StatusCode::OK && answer.bytes().await.unwrap().len() == 300_000).then_some(())
    };
    until(async || whole(&output).await).await;
    let file = format!("/v1/sandboxes/{sandbox}/files?path=file");
    let of_outputs = (OUTPUTS..=OUTPUTS, (503, "server_busy"));
    let of_files = (OUTPUTS + 1..=READERS, (429, "too_many_streams"));
    for (path, (many, (status, code))) in [(output, of_outputs), (file, of_files)] {
        let (unread, late) = unread_until_refused(&server, &path).await;
        assert_eq!(refused(late).await, (status, code.into()), "{path}");
        assert!(many.contains(&unread.len()), "{path}: {}", unread.len());
        assert_eq!(server.exec("one", "seq 3000").await["exit_code"], 0, "{path}");
        drop(unread);
        until(async || whole(&path).await).await;
    }
}

#[tokio::test]
async fn bodies_that_come_slowly_are_charged_however_short_they_are() {
    const LENGTH: usize = 60_000;
    const MANY: usize = MEMORY / (LENGTH - FREE).next_multiple_of(FREE);
    let server = Server::start();
    let body = || {
        let piece = stream::iter([Ok::<_, std::io::Error>(vec![b' '; LENGTH])]);
        Body::wrap_stream(piece.chain(stream::pending()))
    };
    let send = |client: &Client| {
        let url = format!("{}/v1/exec", server.url);
        let request = client.post(url).bearer_auth(&server.key).body(body());
        async move { request.send().await.unwrap() }
    };
    let clients: Vec<_> = (0..=MANY / 200 + 1).map(|_| slow_client()).collect();
    let mut sent: FuturesUnordered<_> = clients.iter().cycle().take(clients.len() * 200).map(send).collect();
    assert!(sent.len() > MANY);
    let late = sent.next().await.unwrap();
    assert_eq!(refused(late).await, (503, "server_busy".into()));
    drop((sent, clients));
    until(async || {
        let answer = server.post("/v1/exec", &json!({ "command": "true" })).send().await.unwrap();
        (answer.status() == StatusCode::OK).then_some(())
    })
    .await;
}

#[tokio::test]
async fn one_call_waits_to_end_the_input_of_a_command_that_does_not_read() {
    let sdk = Sdk::start().await;
    let command = "head -c 1 > /tmp/read; exec sleep 600";
    let process = json!({ "pid": sdk.begin(command, json!({ "stdin": true })).await.pid().await });
    // Longer than a pipe: once it has begun to come, it waits, and so does what comes behind it.
    let input = json!({ "process": process, "input": { "stdin": STANDARD.encode(vec![b'x'; 1_000_000]) } });
    let typed = sdk.unary("/process.Process/SendInput", input);
    let close = || sdk.unary("/process.Process/CloseStdin", json!({ "process": process }));
    let closed = async {
        until(async || (sdk.read("/tmp/read").await.text().await.unwrap() == "x").then_some(())).await;
        let mut closed: FuturesUnordered<_> = (0..20).map(|_| close()).collect();
        for _ in 1..20 {
            assert_eq!(closed.next().await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS, "one waits");
        }
        let kill = json!({ "process": process, "signal": "SIGNAL_SIGKILL" });
        sdk.call("/process.Process/SendSignal", kill).await;
        closed.next().await.unwrap();
    };
    let (typed, ()) = tokio::join!(typed, closed);
    assert!(!typed.status().is_success(), "both end with the command");
}
