//! What E2B's front does with those who may not come in, and with what no SDK sends.

use std::io::Write;

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use flate2::{Compression, write::GzEncoder};
use futures_util::{StreamExt, stream};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{
    sdk::{Frames, Sdk, frame},
    stage::{Server, client, good, until},
};

/// All routes of the control plane, from the very lines that make them: one that is new is asked as well.
pub(crate) fn routes() -> Vec<(Method, String)> {
    let sources = [
        include_str!("../../../server/src/e2b/control.rs"),
        include_str!("../../../server/src/e2b/templates/routes.rs"),
    ];
    let mut routes = Vec::new();
    for route in sources.iter().flat_map(|source| source.split(".route(").skip(1)) {
        let (path, handlers) = route.split_once(',').unwrap();
        let path = path.trim().trim_matches('"').to_owned();
        for (name, method) in [
            ("get(", Method::GET),
            ("post(", Method::POST),
            ("put(", Method::PUT),
            ("patch(", Method::PATCH),
            ("delete(", Method::DELETE),
        ] {
            let is_called = |(at, _): (usize, &str)| handlers[..at].ends_with([' ', '.', '(', '\n']);
            if handlers.match_indices(name).any(is_called) {
                routes.push((method, path.clone()));
            }
        }
    }
    assert!(routes.len() > 20, "{routes:?}");
    routes.retain(|(_, path)| path != "/health"); // it says nothing of anybody
    routes
}

/// All calls of the agent, from the protocol.
pub(crate) fn calls() -> Vec<String> {
    let sources =
        [include_str!("../../../e2b-wire/src/process.rs"), include_str!("../../../e2b-wire/src/filesystem.rs")];
    let paths = sources.iter().flat_map(|source| source.split('"'));
    let mut calls: Vec<_> =
        paths.filter(|text| text.starts_with("/process.") || text.starts_with("/filesystem.")).collect();
    calls.sort_unstable();
    calls.dedup();
    assert_eq!(calls.len(), 17, "{calls:?}");
    calls.into_iter().map(str::to_owned).collect()
}

fn ask(server: &Server, method: Method, path: &str, key: &str) -> RequestBuilder {
    let body = json!({ "templateID": "base", "timeout": 60, "name": "x", "target": "x:y", "tags": ["y"] });
    let request = client().request(method, format!("{}{path}", server.url)).json(&body);
    if key.is_empty() { request } else { request.header("x-api-key", key) }
}

#[tokio::test]
async fn no_route_of_theirs_opens_without_a_key_that_stands() {
    let sdk = Sdk::start().await;
    let made_up = format!("e2b_{}", "0".repeat(40));
    // An upload has a URL that proves itself.
    for (method, path) in routes().into_iter().filter(|(_, path)| !path.starts_with("/e2b/uploads/")) {
        let path = path.replace("{sandbox}", &sdk.sandbox).replace(['{', '}'], "");
        for key in ["", "x", &made_up, &sdk.server.key.to_uppercase(), &sdk.token] {
            let answer = ask(&sdk.server, method.clone(), &path, key).send().await.unwrap();
            assert_eq!(answer.status(), 401, "{method} {path} {key}");
            assert_eq!(answer.json::<Value>().await.unwrap()["code"], 401, "{method} {path}");
        }
    }
    assert_eq!(sdk.run("true").await.1["exited"], true, "it is as it was");
}

#[tokio::test]
async fn no_route_of_theirs_finds_what_is_anothers() {
    let sdk = Sdk::start().await;
    let stranger = sdk.server.key_for("other", "use").await;
    for (method, path) in routes().into_iter().filter(|(_, path)| path.contains("{sandbox}")) {
        let of = |sandbox: &str| path.replace("{sandbox}", sandbox);
        let words = async |sandbox: &str| {
            let answer = ask(&sdk.server, method.clone(), &of(sandbox), &stranger).send().await.unwrap();
            (answer.status().as_u16(), answer.text().await.unwrap().replace(sandbox, "…"))
        };
        let (nobodys, anothers) = (words("i0123456789abcdefghij").await, words(&sdk.sandbox).await);
        assert_eq!(nobodys.0, 404, "{method} {path}: {}", nobodys.1);
        assert_eq!(anothers, nobodys, "{method} {path}");
    }
    assert_eq!(sdk.run("true").await.1["exited"], true, "it is as it was");
}

#[tokio::test]
async fn no_call_of_an_agent_is_answered_without_its_own_token() {
    let sdk = Sdk::start().await;
    let made = sdk.control(Method::POST, "/v2/sandboxes").json(&json!({ "templateID": "base" }));
    let foreign = good(made.send().await.unwrap()).await["envdAccessToken"].as_str().unwrap().to_owned();
    let mut all: Vec<_> = calls().into_iter().map(|path| (Method::POST, path)).collect();
    all.extend([
        (Method::GET, "/envs".to_owned()),
        (Method::GET, "/metrics".to_owned()),
        (Method::GET, "/files?path=a".to_owned()),
        (Method::POST, "/files?path=a".to_owned()),
        (Method::POST, "/init".to_owned()),
        (Method::POST, "/files/compose".to_owned()),
        (Method::GET, "/nothing".to_owned()),
    ]);
    for (method, path) in all {
        for token in [None, Some(""), Some("wrong"), Some(foreign.as_str()), Some(sdk.server.key.as_str())] {
            let request = sdk.inside(method.clone(), &path).json(&json!({ "path": "/tmp" }));
            let request = match token {
                Some(token) => request.header("X-Access-Token", token),
                None => request,
            };
            let answer = request.send().await.unwrap();
            assert_eq!(answer.status(), 401, "{method} {path} {token:?}");
            assert_eq!(answer.json::<Value>().await.unwrap()["code"], 401, "{method} {path}");
        }
    }
    let nobody =
        client().get(format!("{}/files?path=a", sdk.server.url)).header("E2b-Sandbox-Id", "i0123456789abcdefghij");
    assert_eq!(nobody.send().await.unwrap().status(), 502);
}

fn signed(said: &str, query: &str) -> String {
    let signature = STANDARD_NO_PAD.encode(Sha256::digest(said)).replace('+', "%2B").replace('/', "%2F");
    format!("/files?{query}&signature=v1_{signature}")
}

#[tokio::test]
async fn a_signature_opens_what_it_says_and_nothing_else() {
    let sdk = Sdk::start().await;
    good(sdk.write("a.txt", "hello").await).await;
    let (token, later) = (&sdk.token, 4_000_000_000_u64);
    let named = async |path: &str| sdk.inside(Method::GET, path).send().await.unwrap().status().as_u16();
    let bare =
        async |path: &str| client().get(format!("{}{path}", sdk.server.url)).send().await.unwrap().status().as_u16();
    let good = signed(&format!("a.txt:read::{token}:{later}"), &format!("path=a.txt&signature_expiration={later}"));
    assert_eq!((named(&good).await, bare(&good).await), (200, 200));
    for (of, query) in [
        (format!("a.txt:read::{token}:1000"), "path=a.txt&signature_expiration=1000".to_owned()),
        (format!("a.txt:read::{token}:{later}"), "path=a.txt&signature_expiration=4000000001".to_owned()),
        (format!("a.txt:read::{token}:{later}"), "path=a.txt".to_owned()),
        (format!("a.txt:read::{token}"), "path=b.txt".to_owned()),
        (format!("a.txt:read::{token}"), "path=./a.txt".to_owned()),
        (format!("a.txt:read::{token}"), "path=a.txt&username=root".to_owned()),
        (format!("a.txt:write::{token}"), "path=a.txt".to_owned()),
        ("a.txt:read::wrong".to_owned(), "path=a.txt".to_owned()),
        ("a.txt:read::".to_owned(), "path=a.txt".to_owned()),
    ] {
        let path = signed(&of, &query);
        assert_eq!((named(&path).await, bare(&path).await), (401, 401), "{query} signed as {of:?}");
    }
    let write = signed(&format!("a.txt:read::{token}"), "path=a.txt");
    let write = sdk.inside(Method::POST, &write).header("content-type", "application/octet-stream").body("overwritten");
    assert_eq!(write.send().await.unwrap().status(), 401);
    assert_eq!(sdk.read("a.txt").await.text().await.unwrap(), "hello");
}

#[tokio::test]
async fn a_signature_of_what_no_file_can_be_called_is_not_looked_for() {
    let sdk = Sdk::start().await;
    let bare = async |path: &str| client().get(format!("{}{path}", sdk.server.url)).send().await.unwrap().status();
    let of = |path: &str, user: &str| {
        signed(&format!("{path}:read:{user}:{}", sdk.token), &format!("path={path}&username={user}"))
    };
    let (longest, long) = (format!("/{}", "a/".repeat(2047)), format!("/{}", "a".repeat(4095)));
    assert_eq!((longest.len(), long.len()), (4095, 4096));
    assert_eq!(bare(&of(&longest, "user")).await, 404, "it is looked for, and there is no such file");
    assert_eq!(bare(&of(&long, "user")).await, 401);
    assert_eq!(bare(&of("/a", &"u".repeat(65))).await, 401);
}

#[tokio::test]
async fn beside_a_signature_the_header_chooses_no_user() {
    let sdk = Sdk::start().await;
    let of_root = |request: RequestBuilder| request.basic_auth("root", Some(""));
    good(sdk.write("note.txt", "of the user").await).await;
    let write = of_root(sdk.ask(Method::POST, "/files?path=note.txt"));
    let write = write.header("content-type", "application/octet-stream").body("of root");
    good(write.send().await.unwrap()).await;
    let control = of_root(sdk.ask(Method::GET, "/files?path=note.txt")).send().await.unwrap();
    assert_eq!(control.text().await.unwrap(), "of root", "with the token the header chooses");
    let [read, write] = ["read", "write"].map(|operation| format!("note.txt:{operation}::{}", sdk.token));
    let (read, write) = (signed(&read, "path=note.txt"), signed(&write, "path=note.txt"));
    let bare = |method, path: &str| client().request(method, format!("{}{path}", sdk.server.url));
    for request in [sdk.inside(Method::GET, &read), bare(Method::GET, &read)] {
        let answer = of_root(request).send().await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.text().await.unwrap().as_str()), (200, "of the user"));
    }
    for request in [sdk.inside(Method::POST, &write), bare(Method::POST, &write)] {
        let written = of_root(request).header("content-type", "application/octet-stream").body("by the URL");
        let written = good(written.send().await.unwrap()).await;
        assert_eq!(written[0]["path"], "/home/user/note.txt");
    }
    assert_eq!(sdk.read("/root/note.txt").await.text().await.unwrap(), "of root");
    assert_eq!(sdk.run("cat note.txt; stat -c ' %U' note.txt").await.0, "by the URL user\n");
}

#[tokio::test]
async fn who_has_a_signed_url_uses_up_no_quota_and_leaves_few_rows() {
    let sdk = Sdk::start().await;
    good(sdk.write("a.txt", "hello").await).await;
    let quota = sdk.server.request(Method::PUT, "/v1/quotas/default").json(&json!({ "calls_per_sec": 5 }));
    good(quota.send().await.unwrap()).await;
    let url = format!("{}{}", sdk.server.url, signed(&format!("a.txt:read::{}", sdk.token), "path=a.txt"));
    let get = async || client().get(&url).send().await.unwrap();
    for number in 0..40 {
        assert_eq!(get().await.status(), 200, "number {number}");
    }
    assert_eq!(sdk.read("a.txt").await.status(), 200, "the tenant's own calls are counted by themselves");
    let write = signed(&format!("b.txt:write::{}", sdk.token), "path=b.txt");
    for _ in 0..8 {
        let request = client().post(format!("{}{write}", sdk.server.url)).body("b");
        let written = request.header("content-type", "application/octet-stream").send().await.unwrap();
        assert_eq!(written.status(), 200);
    }
    let answers = stream::iter(0..2000).map(|_| async { get().await.status().as_u16() }).buffer_unordered(64);
    let refused = answers.filter(|status| std::future::ready(*status != 200)).next().await;
    assert_eq!(refused, Some(429), "the URL has a rate of its own");
    let ledger = until(|| async {
        let answer = sdk.server.request(Method::GET, "/v1/ledger?limit=1000").send().await.unwrap();
        answer.status().is_success().then_some(answer)
    });
    let rows = good(ledger.await).await["rows"].as_array().unwrap().clone();
    let of = |verb: &str| rows.iter().filter(|row| row["verb"] == verb).count();
    assert!((1..=21).contains(&of("file.read")), "{} rows of reads", of("file.read"));
    assert_eq!(of("file.write"), 9, "what changes something has its row");
}

#[tokio::test]
async fn who_tries_signatures_is_made_to_wait() {
    let sdk = Sdk::start().await;
    good(sdk.write("a.txt", "hello").await).await;
    // Each waits for the next tokens, so they are many at once.
    let clients: Vec<_> = (0..8).map(|_| reqwest::Client::builder().http2_prior_knowledge().build().unwrap()).collect();
    let guesses = stream::iter(0..20_000).map(|number| {
        let path = signed(&format!("guess {number}"), "path=a.txt");
        let request = clients[number % clients.len()].get(format!("{}{path}", sdk.server.url));
        async move { request.send().await.unwrap().status().as_u16() }
    });
    let refused =
        guesses.buffer_unordered(1600).filter(|status| std::future::ready(*status != 401)).boxed().next().await;
    assert_eq!(refused, Some(429));
    assert_eq!(sdk.read("a.txt").await.status(), 200, "who names the sandbox is served");
}

#[tokio::test]
async fn guesses_that_come_at_once_close_signed_urls_to_nobody_else() {
    let sdk = Sdk::start().await;
    good(sdk.write("a.txt", "hello").await).await;
    let from = |address: [u8; 4]| {
        let _ = client(); // for its TLS
        reqwest::Client::builder().local_address(std::net::IpAddr::from(address)).build().unwrap()
    };
    let (guessing, other) = (from([127, 0, 0, 1]), from([127, 0, 0, 2]));
    let began = std::time::Instant::now();
    let guesses = stream::iter(0..3000).map(|number| {
        let path = signed(&format!("guess {number}"), "path=a.txt");
        let request = guessing.get(format!("{}{path}", sdk.server.url));
        async move { request.send().await.unwrap().status().as_u16() }
    });
    let answers: Vec<_> = guesses.buffer_unordered(500).collect().await;
    let tried = answers.iter().filter(|status| **status == 401).count() as u64;
    assert!(answers.iter().all(|status| [401, 429].contains(status)), "{answers:?}");
    // A thousand at once, and two hundred a second.
    assert!(tried <= 1000 + 200 * (began.elapsed().as_secs() + 1), "{tried} were tried in {:?}", began.elapsed());
    let right = signed(&format!("a.txt:read::{}", sdk.token), "path=a.txt");
    let read = other.get(format!("{}{right}", sdk.server.url)).send().await.unwrap();
    assert_eq!((read.status().as_u16(), read.text().await.unwrap().as_str()), (200, "hello"));
}

#[tokio::test]
async fn messages_that_no_sdk_sends_are_refused_and_fields_that_we_do_not_know_are_not() {
    let sdk = Sdk::start().await;
    let newer = json!({ "path": "/tmp", "newer": { "a": [1, 2] } });
    sdk.call("/filesystem.Filesystem/Stat", newer).await;
    for (body, kind) in [("{", "application/json"), ("[1]", "application/json"), ("\u{1}", "application/proto")] {
        let request = sdk.ask(Method::POST, "/filesystem.Filesystem/Stat").header("content-type", kind).body(body);
        let status = request.send().await.unwrap().status().as_u16();
        assert!([400, 415, 501].contains(&status), "{body} {kind}: {status}");
    }
    let huge = sdk.ask(Method::POST, "/filesystem.Filesystem/Stat").header("content-type", "application/json");
    let huge = huge.body(vec![b' '; 5 << 20]).send().await.unwrap();
    assert_eq!(huge.status(), 429, "more than is taken");
    for (body, code) in [
        (frame(0x80, b"{}"), "invalid_argument"),
        ([frame(0, b"{}"), vec![0, 0]].concat(), "invalid_argument"),
        (frame(0, &vec![b' '; 5 << 20]), "resource_exhausted"),
        (frame(2, b"{}"), "invalid_argument"),
    ] {
        let response = sdk.streaming("/process.Process/StreamInput").body(body).send().await.unwrap();
        let (flags, last) = Frames::of(response).next().await.unwrap();
        assert_eq!((flags, last["error"]["code"].as_str()), (2, Some(code)), "{last}");
    }
    assert_eq!(sdk.run("true").await.1["exited"], true);
}

#[tokio::test]
async fn a_packed_form_with_more_than_files_in_it_is_refused() {
    let sdk = Sdk::start().await;
    let form = |passed: usize| {
        let part = |name: &str, text: &[u8]| {
            let head = format!("--xx\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"a.txt\"\r\n\r\n");
            [head.as_bytes(), text, b"\r\n"].concat()
        };
        let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
        packer
            .write_all(&[part("x", &vec![0; passed]), part("file", b"hello"), b"--xx--\r\n".to_vec()].concat())
            .unwrap();
        packer.finish().unwrap()
    };
    let send = async |passed| {
        let request = sdk.ask(Method::POST, "/files").header("content-type", "multipart/form-data; boundary=xx");
        request.header("content-encoding", "gzip").body(form(passed)).send().await.unwrap()
    };
    let answer = send(16 << 20).await;
    assert_eq!(answer.status(), 400, "{}", answer.text().await.unwrap());
    assert_eq!(sdk.read("a.txt").await.status(), 404, "it was refused before the file");
    good(send(1 << 10).await).await;
    assert_eq!(sdk.read("a.txt").await.text().await.unwrap(), "hello");
}

#[tokio::test]
async fn streams_whose_client_vanished_make_room_for_others() {
    let sdk = Sdk::of(Server::start_with(&["--max-streams", "4"])).await;
    let watch = json!({ "path": "/tmp", "recursive": false });
    for _ in 0..3 {
        let mut open = Vec::new();
        for _ in 0..2 {
            open.push(until_seated(&sdk, "/process.Process/Start", &sleep()).await);
            open.push(until_seated(&sdk, "/filesystem.Filesystem/WatchDir", &watch).await);
        }
        let mut late = sdk.stream("/process.Process/Start", sleep()).await;
        assert_eq!(late.next().await.unwrap().1["error"]["code"], "resource_exhausted");
        drop(open);
    }
    // A client that stops in the middle of what it sends holds nothing that others need.
    // The server does not answer what is not there yet; but a stream that finds no seat is told so.
    until(|| async {
        let half = stream::iter([Ok::<_, std::io::Error>(vec![0_u8, 0, 0])]).chain(stream::pending());
        let half = sdk.streaming("/process.Process/StreamInput").body(reqwest::Body::wrap_stream(half));
        let stopped = tokio::time::timeout(std::time::Duration::from_millis(200), half.send()).await;
        stopped.is_err().then_some(())
    })
    .await;
    until_seated(&sdk, "/process.Process/Start", &sleep()).await;
}

fn sleep() -> Value {
    json!({ "process": { "cmd": "/bin/sleep", "args": ["600"] } })
}

/// Asks again as long as all seats are taken.
async fn until_seated(sdk: &Sdk, path: &str, message: &Value) -> Frames {
    until(|| async {
        let mut frames = sdk.stream(path, message.clone()).await;
        let (flags, first) = frames.next().await.unwrap();
        if flags == 0 {
            return Some(frames);
        }
        assert_eq!(first["error"]["code"], "resource_exhausted", "{first}");
        None
    })
    .await
}

#[tokio::test]
async fn limits_and_records_hold_for_this_front_too() {
    let sdk = Sdk::start().await;
    sdk.run("true").await;
    good(sdk.write("a.txt", "x").await).await;
    let logs = sdk.control(Method::GET, &format!("/v2/sandboxes/{}/logs", sdk.sandbox)).send().await.unwrap();
    let logs = good(logs).await["logs"].as_array().unwrap().clone();
    for verb in ["ensure", "start", "file.write"] {
        let of_it = |entry: &Value| entry["fields"]["event_type"] == verb && entry["fields"]["front"] == "e2b";
        assert!(logs.iter().any(of_it), "{verb}: {logs:?}");
    }
    let ledger = sdk.server.get("/v1/ledger?limit=1000").await;
    let of_it = |row: &&Value| row["sandbox"] == sdk.sandbox.as_str();
    assert!(ledger["rows"].as_array().unwrap().iter().filter(of_it).count() >= 3);
    let quota = sdk.server.request(Method::PUT, "/v1/quotas/default").json(&json!({ "sandboxes": 1 }));
    good(quota.send().await.unwrap()).await;
    for path in ["/sandboxes", "/v2/sandboxes"] {
        let more = sdk.control(Method::POST, path).json(&json!({ "templateID": "base" })).send().await.unwrap();
        assert!(more.headers().contains_key("retry-after"));
        assert_eq!(more.status(), 429);
        assert_eq!(more.json::<Value>().await.unwrap()["code"], 429);
    }
    let over = json!({ "timeout": 0 });
    let over = sdk.control(Method::POST, &format!("/sandboxes/{}/timeout", sdk.sandbox)).json(&over);
    assert_eq!(over.send().await.unwrap().status(), 204);
    sdk.server.reap().await;
    let gone = sdk.control(Method::GET, &format!("/sandboxes/{}", sdk.sandbox)).send().await.unwrap();
    assert_eq!(gone.status(), 404, "its time is over");
}
