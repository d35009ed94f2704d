//! What listens inside, as E2B's clients reach it: by headers and by host name.

use futures_util::{SinkExt, StreamExt, future::join_all};
use reqwest::{Method, RequestBuilder, Response, header::HOST};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_tungstenite::tungstenite::Message;

use crate::{
    inside::{all, client, open_socket, seen},
    records::{fill_ledger, own_and_summed},
    stage::{Server, good, until},
};

/// A sandbox of this front, in which [`crate::inside`]'s server listens on the port 8000.
struct Guest {
    id: String,
    /// What opens its agent, and what opens its ports.
    tokens: [Option<String>; 2],
}

async fn made(server: &Server, more: Value) -> Guest {
    let mut asked = json!({ "templateID": "base", "timeout": 300, "secure": true });
    asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let made = good(server.post("/sandboxes", &asked).send().await.unwrap()).await;
    let text = |name: &str| made[name].as_str().map(str::to_owned);
    Guest { id: text("sandboxID").unwrap(), tokens: [text("envdAccessToken"), text("trafficAccessToken")] }
}

async fn listening(server: &Server, more: Value) -> Guest {
    let guest = made(server, more).await;
    guest.begin_to_listen(server).await;
    let path = format!("/p/{}/8000/echo", guest.id);
    until(|| async { server.request(Method::GET, &path).send().await.unwrap().status().is_success().then_some(()) })
        .await;
    guest
}

impl Guest {
    fn host(&self, server: &Server, port: u16) -> String {
        format!("{port}-{}.localhost:{}", self.id, server.url.rsplit(':').next().unwrap())
    }

    fn by_header(&self, server: &Server, port: u16, path: &str) -> RequestBuilder {
        let request = client().get(format!("{}/{path}", server.url));
        request.header("E2b-Sandbox-Id", &self.id).header("E2b-Sandbox-Port", port.to_string())
    }

    fn by_host(&self, server: &Server, port: u16, path: &str) -> RequestBuilder {
        client().get(format!("{}/{path}", server.url)).header(HOST, self.host(server, port))
    }

    /// Both ways to the same place.
    fn both(&self, server: &Server, port: u16, path: &str) -> [RequestBuilder; 2] {
        [self.by_header(server, port, path), self.by_host(server, port, path)]
    }

    async fn exec(&self, server: &Server, command: &str) -> Value {
        let path = format!("/v1/sandboxes/{}/exec", self.id);
        good(server.post(&path, &json!({ "command": command })).send().await.unwrap()).await
    }

    async fn begin_to_listen(&self, server: &Server) {
        let argv = json!({ "argv": ["python3", "-c", include_str!("inside.py"), "8000"], "background": true });
        good(server.post(&format!("/v1/sandboxes/{}/exec", self.id), &argv).send().await.unwrap()).await;
    }

    async fn state(&self, server: &Server) -> String {
        let shown = server.get(&format!("/sandboxes/{}", self.id)).await;
        shown["state"].as_str().unwrap().to_owned()
    }

    async fn pause(&self, server: &Server) {
        let paused = server.post(&format!("/sandboxes/{}/pause", self.id), &json!({})).send().await.unwrap();
        assert_eq!(paused.status(), 204);
    }
}

/// Its status, and what it says.
async fn told(response: Response) -> (u16, Value) {
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test]
async fn a_port_is_reached_by_headers_and_by_host_name_and_nothing_that_opens_it_comes_in() {
    let server = Server::start();
    let guest = listening(&server, json!({})).await;
    for request in guest.both(&server, 8000, "sandboxes?a=1&b=%2F") {
        let secrets = request.header("X-Access-Token", guest.tokens[0].as_ref().unwrap());
        let secrets = secrets.header("E2b-Traffic-Access-Token", "some").header("X-API-KEY", &server.key);
        let inside = good(secrets.header("X-Own", "kept").body("four").send().await.unwrap()).await;
        assert_eq!((&inside["target"], &inside["bytes"]), (&json!("/sandboxes?a=1&b=%2F"), &json!(4)));
        for name in ["x-access-token", "e2b-traffic-access-token", "e2b-sandbox-id", "e2b-sandbox-port", "x-api-key"] {
            assert_eq!(seen(&inside, name), [""; 0], "{name}");
        }
        assert_eq!(seen(&inside, "x-own"), ["kept"]);
        for secret in guest.tokens.iter().flatten().chain([&server.key]) {
            assert!(!inside.to_string().contains(secret.as_str()));
        }
    }
    let inside = |request: RequestBuilder| async { good(request.send().await.unwrap()).await };
    let [by_header, by_host] = guest.both(&server, 8000, "echo");
    assert_eq!(seen(&inside(by_header).await, "host"), ["localhost:8000"]);
    assert_eq!(seen(&inside(by_host).await, "host"), [guest.host(&server, 8000)]);
}

#[tokio::test]
async fn nothing_of_an_answer_by_headers_reaches_beyond_it() {
    let server = Server::start();
    let guest = listening(&server, json!({})).await;
    let reach = guest.by_header(&server, 8000, "reach").send().await.unwrap();
    let headers = reach.headers();
    for name in ["clear-site-data", "service-worker-allowed", "strict-transport-security", "alt-svc", "x-between"] {
        assert!(!headers.contains_key(name), "{name}");
    }
    assert_eq!(all(headers, "set-cookie"), ["plain=1", "wide=2; Path=/; HttpOnly"]);
    assert!(all(headers, "content-security-policy")[0].starts_with("sandbox "));
    assert!(all(headers, "vary")[0].contains("e2b-sandbox-id"));
}

#[tokio::test]
async fn a_closed_port_and_a_sandbox_that_is_not_there_are_told_as_clients_know_them() {
    let server = Server::start();
    let guest = made(&server, json!({})).await;
    for request in guest.both(&server, 8001, "") {
        let closed = json!({ "sandboxId": guest.id, "port": 8001, "code": 502,
            "message": "The sandbox is running but port is not open" });
        assert_eq!(told(request.send().await.unwrap()).await, (502, closed));
    }
    guest.pause(&server).await;
    let gone = json!({ "sandboxId": guest.id, "code": 502, "message": "The sandbox was not found" });
    for request in guest.both(&server, 8001, "") {
        assert_eq!(told(request.send().await.unwrap()).await, (502, gone.clone()), "paused");
    }
    assert_eq!(guest.state(&server).await, "paused", "nobody wakes what was not made for it");
    assert_eq!(server.request(Method::DELETE, &format!("/sandboxes/{}", guest.id)).send().await.unwrap().status(), 204);
    assert_eq!(told(guest.by_header(&server, 8001, "").send().await.unwrap()).await, (502, gone.clone()));
    let by_sdk = guest.by_host(&server, 8001, "").header("E2b-Sandbox-Id", &guest.id);
    assert_eq!(told(by_sdk.send().await.unwrap()).await, (502, gone));
}

#[tokio::test]
async fn what_other_fronts_made_is_open_to_nobody_by_its_id() {
    let server = Server::start();
    let id = crate::inside::listening(&server, "ours").await;
    let ours = Guest { id, tokens: [None, None] };
    let gone = json!({ "sandboxId": ours.id, "code": 502, "message": "The sandbox was not found" });
    assert_eq!(told(ours.by_header(&server, 8000, "echo").send().await.unwrap()).await, (502, gone.clone()));
    // By host name as ever: by a link or a key. Without them it is as if it were not there.
    let nobody = Guest { id: "nobodyatall".into(), tokens: [None, None] };
    let bare = ours.by_host(&server, 8000, "echo").send().await.unwrap();
    let missing = nobody.by_host(&server, 8000, "echo").send().await.unwrap();
    assert_eq!((bare.status().as_u16(), missing.status().as_u16()), (401, 401));
    let by_sdk = ours.by_host(&server, 8000, "echo").header("E2b-Sandbox-Id", &ours.id);
    assert_eq!(told(by_sdk.send().await.unwrap()).await, (502, gone));
    good(ours.by_host(&server, 8000, "echo").bearer_auth(&server.key).send().await.unwrap()).await;
}

#[tokio::test]
async fn what_is_not_public_asks_for_its_own_token() {
    let server = Server::start();
    let closed = json!({ "network": { "allowPublicTraffic": false } });
    let (guest, other) = (listening(&server, closed.clone()).await, made(&server, closed).await);
    let foreign = [
        None,
        Some(String::new()),
        Some("x".repeat(64)),
        other.tokens[1].clone(),
        guest.tokens[0].clone(),
        guest.tokens[1].as_ref().map(|token| token[1..].to_owned()),
    ];
    for token in foreign {
        for request in guest.both(&server, 8000, "echo") {
            let request = match &token {
                Some(token) => request.header("E2b-Traffic-Access-Token", token),
                None => request,
            };
            let (status, said) = told(request.send().await.unwrap()).await;
            assert_eq!((status, &said["code"], &said["sandboxId"]), (403, &json!(403), &json!(guest.id)), "{token:?}");
            assert!(said["message"].as_str().unwrap().contains("e2b-traffic-access-token"));
        }
    }
    assert_eq!(guest.exec(&server, "grep -c /echo seen").await["stdout"], "1\n", "the first of all was the test's own");
    for request in guest.both(&server, 8000, "echo") {
        let request = request.header("e2b-traffic-access-token", guest.tokens[1].as_ref().unwrap());
        let inside = good(request.send().await.unwrap()).await;
        assert_eq!(seen(&inside, "e2b-traffic-access-token"), [""; 0]);
    }
    // A key of its tenant opens it by host name as it opens all others; one of another tenant does not.
    good(guest.by_host(&server, 8000, "echo").bearer_auth(&server.key).send().await.unwrap()).await;
    let stranger = server.key_for("other", "use").await;
    assert_eq!(guest.by_host(&server, 8000, "echo").bearer_auth(stranger).send().await.unwrap().status(), 404);
}

#[tokio::test]
async fn a_host_name_of_one_sandbox_never_leads_to_another() {
    let server = Server::start();
    let (one, two) = (listening(&server, json!({})).await, listening(&server, json!({})).await);
    let port = server.url.rsplit(':').next().unwrap();
    let beside = one.by_host(&server, 8000, "beside").header("E2b-Sandbox-Id", &two.id);
    good(beside.header("E2b-Sandbox-Port", "8000").send().await.unwrap()).await;
    assert_eq!(two.exec(&server, "grep -c beside seen").await["stdout"], "0\n");
    assert_eq!(one.exec(&server, "grep -c beside seen").await["stdout"], "1\n");
    // Below the domain only the hosts of all sandboxes take headers.
    for (host, status) in [("sandbox", 200), ("api", 200), ("other", 404), ("x.sandbox", 404)] {
        let request = two.by_header(&server, 8000, "mine").header(HOST, format!("{host}.localhost:{port}"));
        assert_eq!(request.send().await.unwrap().status(), status, "{host}");
    }
}

#[tokio::test]
async fn headers_that_are_no_name_or_come_twice_lead_nowhere() {
    let server = Server::start();
    let guest = listening(&server, json!({})).await;
    let address = server.url.trim_start_matches("http://").to_owned();
    let raw = |lines: String| {
        let address = address.clone();
        async move {
            let mut line = TcpStream::connect(&address).await.unwrap();
            let request = format!("GET /smuggled HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{lines}\r\n");
            line.write_all(request.as_bytes()).await.unwrap();
            let mut said = Vec::new();
            line.read_to_end(&mut said).await.unwrap();
            String::from_utf8(said).unwrap().split(' ').nth(1).unwrap().to_owned()
        }
    };
    let id = &guest.id;
    for lines in [
        format!("E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 8000\r\n"),
        format!("E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 49983\r\nE2b-Sandbox-Port: 8000\r\n"),
        format!("E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 0\r\n"),
        format!("E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 65536\r\n"),
        format!("E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 8000, 49983\r\n"),
        format!("E2b-Sandbox-Id: {id}/../x\r\nE2b-Sandbox-Port: 8000\r\n"),
        "E2b-Sandbox-Id: \r\nE2b-Sandbox-Port: 8000\r\n".to_owned(),
        format!("E2b-Sandbox-Id: {id}\r\n E2b-Sandbox-Port: 8000\r\n"),
        format!(
            "E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 8000\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n"
        ),
    ] {
        assert_eq!(raw(lines.clone()).await, "400", "{lines:?}");
    }
    assert_eq!(raw(format!("E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 8000\r\n")).await, "200");
    assert_eq!(guest.exec(&server, "grep -c smuggled seen").await["stdout"], "1\n");
}

#[tokio::test]
async fn the_host_that_the_inside_sees_is_the_one_that_was_asked_for() {
    let server = Server::start();
    let masked = json!({ "network": { "maskRequestHost": "custom.example.com:${PORT}" } });
    let guest = listening(&server, masked).await;
    for request in guest.both(&server, 8000, "echo") {
        let inside = good(request.send().await.unwrap()).await;
        assert_eq!(seen(&inside, "host"), ["custom.example.com:8000"]);
    }
}

#[tokio::test]
async fn streams_go_both_ways_and_an_end_is_felt_inside() {
    let server = Server::start();
    let guest = listening(&server, json!({})).await;
    let chunks = futures_util::stream::iter((0..64).map(|_| Ok::<_, std::io::Error>(vec![7_u8; 64 << 10])));
    let sent = client().post(format!("{}/echo", server.url)).header("E2b-Sandbox-Id", &guest.id);
    let sent = sent.header("E2b-Sandbox-Port", "8000").body(reqwest::Body::wrap_stream(chunks));
    assert_eq!(good(sent.send().await.unwrap()).await["bytes"], 4 << 20);
    let has_left = || async { (guest.exec(&server, "rm left").await["exit_code"] == 0).then_some(()) };
    let mut endless = guest.by_header(&server, 8000, "endless").send().await.unwrap().bytes_stream();
    endless.next().await.unwrap().unwrap();
    drop(endless);
    until(has_left).await;
    // Whoever waits for an answer and goes is felt too: this is how a client cancels.
    let silent = tokio_util::task::TaskTracker::new().spawn(guest.by_header(&server, 8000, "silent").send());
    until(|| async { (guest.exec(&server, "rm asked").await["exit_code"] == 0).then_some(()) }).await;
    silent.abort();
    until(has_left).await;
    let named = [("e2b-sandbox-id", guest.id.as_str()), ("e2b-sandbox-port", "8000")];
    let (mut socket, _) = open_socket(&server, "/socket", &named).await.unwrap();
    socket.send(Message::text("over there")).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("over there"));
}

/// Paused, and made to be woken.
async fn asleep(server: &Server, more: Value) -> Guest {
    let mut asked = json!({ "autoPause": true, "autoResume": { "enabled": true } });
    asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let guest = listening(server, asked).await;
    guest.pause(server).await;
    assert_eq!(guest.state(server).await, "paused");
    guest
}

#[tokio::test]
async fn who_comes_between_its_end_and_its_rest_gives_it_time() {
    let server = Server::start();
    let wakes_up = json!({ "timeout": 20, "autoPause": true, "autoResume": { "enabled": true } });
    let (woken, left) = (listening(&server, wakes_up.clone()).await, made(&server, wakes_up).await);
    let deleted = made(&server, json!({ "timeout": 20, "autoResume": { "enabled": true } })).await;
    server.pass(30);
    assert_eq!(woken.by_host(&server, 8000, "echo").send().await.unwrap().status(), 200);
    // Refused as long as it is there, and unknown as soon as the reaper, which sees the same clock, has been there first.
    let refused = deleted.by_host(&server, 8000, "echo").send().await.unwrap().status().as_u16();
    assert!([502, 401].contains(&refused), "{refused}");
    server.reap().await;
    assert_eq!(woken.state(&server).await, "running");
    assert_eq!(left.state(&server).await, "paused");
    let gone = server.request(Method::GET, &format!("/sandboxes/{}", deleted.id)).send().await.unwrap();
    assert_eq!(gone.status(), 404, "what ends with its time is given none by whoever comes");
}

#[tokio::test]
async fn what_was_about_to_listen_is_waited_for_once_it_is_woken() {
    let server = Server::start();
    let guest = made(&server, json!({ "autoPause": true, "autoResume": { "enabled": true } })).await;
    guest.begin_to_listen(&server).await;
    guest.pause(&server).await;
    assert_eq!(guest.by_host(&server, 8000, "echo").send().await.unwrap().status(), 200);
    // And not without an end.
    guest.pause(&server).await;
    assert_eq!(guest.by_host(&server, 8001, "echo").send().await.unwrap().status(), 502);
}

async fn wakes(server: &Server) -> usize {
    let ledger = server.get("/v1/ledger?limit=1000").await;
    ledger["rows"].as_array().unwrap().iter().filter(|row| row["verb"] == "wake").count()
}

#[tokio::test]
async fn a_hundred_that_come_at_once_wake_it_once() {
    let server = Server::start();
    let guest = asleep(&server, json!({ "timeout": 20 })).await;
    let all = (0..50).flat_map(|_| guest.both(&server, 8000, "echo"));
    for answer in join_all(all.map(|request| request.send())).await {
        assert_eq!(answer.unwrap().status(), 200);
    }
    assert_eq!(guest.state(&server).await, "running");
    assert_eq!(wakes(&server).await, 1);
    // For five minutes at least, though it was made for less.
    server.pass(250);
    server.reap().await;
    assert_eq!(guest.state(&server).await, "running");
    server.pass(100);
    server.reap().await;
    assert_eq!(guest.state(&server).await, "paused");
}

#[tokio::test]
async fn only_who_may_come_in_wakes_it() {
    let server = Server::start();
    let guest = asleep(&server, json!({ "network": { "allowPublicTraffic": false } })).await;
    for request in guest.both(&server, 8000, "echo") {
        assert_eq!(request.send().await.unwrap().status(), 403);
    }
    let health = || guest.by_header(&server, 49983, "health");
    assert_eq!(health().send().await.unwrap().status(), 502);
    assert_eq!(health().header("X-Access-Token", "no").send().await.unwrap().status(), 502);
    let list = || guest.by_header(&server, 49983, "metrics");
    assert_eq!(list().send().await.unwrap().status(), 401);
    assert_eq!(guest.state(&server).await, "paused");
    let token = guest.tokens[0].as_ref().unwrap();
    assert_eq!(health().header("X-Access-Token", token).send().await.unwrap().status(), 204);
    assert_eq!((guest.state(&server).await.as_str(), wakes(&server).await), ("running", 1));
    guest.pause(&server).await;
    let traffic = guest.tokens[1].as_ref().unwrap();
    let visit = guest.by_host(&server, 8000, "echo").header("E2b-Traffic-Access-Token", traffic);
    assert_eq!(visit.send().await.unwrap().status(), 200);
    assert_eq!((guest.state(&server).await.as_str(), wakes(&server).await), ("running", 2));
}

#[tokio::test]
async fn one_that_there_is_no_room_for_is_not_woken_and_keeps_its_end() {
    let server = Server::start();
    let guest = made(&server, json!({ "autoResume": { "enabled": true } })).await;
    // Without its memory it takes no room, and needs some to go on.
    let rest = server.post(&format!("/sandboxes/{}/pause", guest.id), &json!({ "memory": false }));
    assert_eq!(rest.send().await.unwrap().status(), 204);
    let set = server.request(Method::PUT, "/v1/quotas/default").json(&json!({ "running": 0 })).send().await.unwrap();
    assert!(set.status().is_success(), "{}", set.text().await.unwrap());
    assert_eq!(told(guest.by_header(&server, 8000, "echo").send().await.unwrap()).await.0, 429);
    server.pass(100_000);
    server.reap().await;
    assert_eq!(guest.state(&server).await, "paused", "its time is not the one that nobody could give it");
}

#[tokio::test]
async fn strangers_who_try_ports_leave_no_rows_and_use_up_no_quota() {
    let server = Server::start();
    let (server, guest) = (&server, &listening(&server, json!({})).await);
    let visits = async || {
        let rows = server.get("/v1/ledger?limit=1000").await["rows"].as_array().unwrap().clone();
        let is_strangers = |row: &&Value| row["verb"] == "visit" && row["argv"][1] == "in public";
        rows.iter().filter(is_strangers).count()
    };
    let quota = json!({ "calls_per_sec": 2 });
    good(server.request(Method::PUT, "/v1/quotas/default").json(&quota).send().await.unwrap()).await;
    join_all((1000..1100).map(|port| async move {
        let answer = guest.by_header(server, port, "").send().await.unwrap();
        assert_eq!(answer.status(), 502);
    }))
    .await;
    guest.exec(server, "true").await;
    assert_eq!(visits().await, 0);
    for _ in 0..5 {
        good(guest.by_header(server, 8000, "echo").send().await.unwrap()).await;
    }
    assert!((1..=5).contains(&visits().await));
}

/// The control is the test before: while there is room, each has a row.
#[tokio::test]
async fn strangers_at_ports_leave_no_rows_of_their_own_where_half_of_the_ledger_is_there() {
    let mut server = Server::start();
    let guest = listening(&server, json!({})).await;
    let visits = async |server: &Server| own_and_summed(server, "visit", "visit.more").await;
    let before = visits(&server).await.0;
    fill_ledger(&server).await;
    for _ in 0..5 {
        good(guest.by_header(&server, 8000, "echo").send().await.unwrap()).await;
    }
    // What is summed up by then is recorded at the end of the server.
    server.stop();
    server.run();
    let (own, summed, names_sandbox) = visits(&server).await;
    assert!(own == before && (1..=5).contains(&summed) && names_sandbox, "{before} {own} {summed}");
}
