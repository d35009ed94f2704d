//! Webhooks, as those who are told see them.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use cabana_testkit::{Answer, Got, Receiver};
use futures_util::future::join_all;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::stage::{Server, client, good, refused, until};

const WELL: Answer = Answer::Status(204, "");

fn start() -> Server {
    Server::start_with(&["--webhooks-allow", "127.0.0.1"])
}

async fn add(server: &Server, body: &Value) -> Value {
    let answer = server.post("/v1/webhooks", body).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::CREATED);
    answer.json().await.unwrap()
}

async fn wait_for(receiver: &Receiver, count: usize) -> Vec<Got> {
    let receiver = receiver.clone();
    tokio::task::spawn_blocking(move || receiver.wait_for(count)).await.unwrap()
}

fn kinds(got: &[Got]) -> Vec<String> {
    got.iter().map(|got| got.header("cabana-event-type").unwrap()).collect()
}

/// As a receiver checks it, with what everybody has.
fn signature(secret: &str, time: &str, body: &str) -> String {
    let script = "printf '%s.%s' \"$1\" \"$2\" | openssl dgst -sha256 -hmac \"$3\" -r";
    let done = Command::new("sh").args(["-c", script, "sh", time, body, secret]).output().unwrap();
    String::from_utf8(done.stdout).unwrap().split(' ').next().unwrap().to_owned()
}

async fn delete(server: &Server, path: &str) {
    assert!(server.request(Method::DELETE, path).send().await.unwrap().status().is_success());
}

#[tokio::test]
async fn a_sandboxs_life_is_told_signed_in_order_and_as_the_events_tell_it() {
    let server = start();
    let receiver = Receiver::start(WELL).unwrap();
    let url = format!("{}?from=test", receiver.url());
    let hook = add(&server, &json!({ "url": url })).await;
    let secret = hook["secret"].as_str().unwrap();
    assert_eq!(hook["events"], json!(["sandbox.*", "task.*"]));
    let mut events = server.request(Method::GET, "/v1/events").send().await.unwrap();
    let mut heard = String::from_utf8(events.chunk().await.unwrap().unwrap().to_vec()).unwrap();
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let task = server.begin("one", "exit 3").await;
    server.ended(&task).await;
    good(server.post(&format!("/v1/sandboxes/{sandbox}/stop"), &json!({})).send().await.unwrap()).await;
    delete(&server, &format!("/v1/sandboxes/{sandbox}")).await;
    let got = wait_for(&receiver, 6).await;
    let mut told = kinds(&got);
    // When a task started is in no transaction, so it may come a little later than it happened.
    let started = told.iter().position(|kind| kind == "task.started").unwrap();
    told.remove(started);
    assert_eq!(told, ["sandbox.created", "sandbox.running", "task.ended", "sandbox.stopped", "sandbox.deleted"]);
    while !heard.contains("sandbox.deleted") {
        heard += std::str::from_utf8(&events.chunk().await.unwrap().unwrap()).unwrap();
    }
    for got in &got {
        assert!(got.head.starts_with("POST /hook?from=test HTTP/1.1\r\n"), "{}", got.head);
        assert_eq!(got.header("host").unwrap(), receiver.address().to_string());
        let signed = got.header("cabana-signature").unwrap();
        let (time, digest) = signed.strip_prefix("t=").unwrap().split_once(",v1=").unwrap();
        assert_eq!(signature(secret, time, &got.body), digest);
        let body: Value = serde_json::from_str(&got.body).unwrap();
        assert_eq!((&body["id"], &body["sandbox"]), (&json!(got.header("cabana-event-id").unwrap()), &json!(sandbox)));
        assert!(heard.contains(&format!("data: {}", got.body)), "{} is not in {heard}", got.body);
    }
    assert!(got.iter().any(|got| got.body.contains("\"state\":\"failed\"") && got.body.contains(&task)));
    // Shown with what it was told; the secret is not shown again.
    let path = format!("/v1/webhooks/{}", hook["id"].as_str().unwrap());
    let shown = until(|| async { Some(server.get(&path).await).filter(|shown| shown["delivered"] == 6) }).await;
    assert_eq!(shown["deliveries"].as_array().unwrap().len(), 6);
    let last = &shown["deliveries"][0];
    assert_eq!(
        (&last["type"], &last["attempts"], &last["due_at"]),
        (&json!("sandbox.deleted"), &json!(1), &json!(null))
    );
    assert!(last["said"].as_str().unwrap().starts_with("204") && !shown.to_string().contains("whsec_"), "{shown}");
}

#[tokio::test]
async fn what_is_done_to_webhooks_is_in_the_ledger_and_they_are_the_tenants() {
    let server = start();
    let receiver = Receiver::start(WELL).unwrap();
    let made = good(server.post("/v1/keys", &json!({ "role": "use" })).send().await.unwrap()).await;
    let (id, key) = (made["id"].as_str().unwrap(), made["key"].as_str().unwrap());
    let body = json!({ "url": format!("{}/with-a-token", receiver.url()) });
    let added = client().post(format!("{}/v1/webhooks", server.url)).bearer_auth(key).json(&body);
    let hook = good(added.send().await.unwrap()).await;
    let path = format!("/v1/webhooks/{}", hook["id"].as_str().unwrap());
    good(server.request(Method::DELETE, &format!("/v1/keys/{id}")).send().await.unwrap()).await;
    // It goes on, and says whose it was: the tenant decides.
    server.ensure("one").await;
    wait_for(&receiver, 2).await;
    assert_eq!(server.get(&path).await["key"], id);
    for verb in ["test", "enable"] {
        good(server.post(&format!("{path}/{verb}"), &json!({})).send().await.unwrap()).await;
    }
    delete(&server, &path).await;
    let rows = server.get("/v1/ledger?limit=1000").await["rows"].as_array().unwrap().clone();
    let of_hooks: Vec<_> = rows.iter().filter(|row| row["verb"].as_str().unwrap().starts_with("webhook.")).collect();
    let verbs: Vec<_> = of_hooks.iter().map(|row| row["verb"].as_str().unwrap()).collect();
    assert_eq!(verbs, ["webhook.add", "webhook.test", "webhook.enable", "webhook.remove"]);
    assert_eq!((&of_hooks[0]["key"], &of_hooks[0]["argv"][0]), (&json!(id), &hook["id"]));
    let calls = server.get("/v1/calls?limit=1000").await.to_string() + &json!(rows).to_string();
    assert!(!calls.contains("with-a-token") && !calls.contains("whsec_"), "no secret is recorded");
}

#[tokio::test]
async fn a_kill_at_any_moment_loses_no_change_that_was_told_of() {
    let mut server = start();
    let receiver = Receiver::start(Answer::Nothing).unwrap();
    add(&server, &json!({ "url": receiver.url(), "events": ["sandbox.*"] })).await;
    // The first is being told when the server is killed, and the others wait.
    let mut made = Vec::new();
    for round in 0..5 {
        made.push(server.ensure(&format!("box {round}")).await["id"].as_str().unwrap().to_owned());
    }
    wait_for(&receiver, 1).await;
    server.kill();
    receiver.from_now_on(WELL);
    server.run();
    let got = wait_for(&receiver, 1 + 10).await;
    let ids: Vec<_> = got.iter().map(|got| got.header("cabana-event-id").unwrap()).collect();
    assert_eq!(ids[0], ids[1], "it is told again, since nobody knows whether it was heard");
    for sandbox in &made {
        let of_it: Vec<_> = got[1..].iter().filter(|got| got.body.contains(sandbox)).cloned().collect();
        assert_eq!(kinds(&of_it), ["sandbox.created", "sandbox.running"]);
    }
}

#[tokio::test]
async fn a_refusal_tells_nothing_of_inner_names() {
    let server = Server::start();
    let refusal = async |url: &str| {
        let response = server.post("/v1/webhooks", &json!({ "url": url })).send().await.unwrap();
        assert_eq!(response.status(), 400);
        response.json::<Value>().await.unwrap()["error"]["message"].as_str().unwrap().to_owned()
    };
    let (inner, missing) =
        (refusal("http://localhost:8080/").await, refusal("http://no-such-name.invalid:8080/").await);
    assert_eq!(inner, missing);
    assert!(refusal("http://127.0.0.1:8080/").await.contains("127.0.0.1"), "the control: whose address it is knows it");
}

#[tokio::test]
async fn what_is_no_good_address_is_refused_with_why() {
    let server = Server::start();
    for (url, says) in [
        ("http://127.0.0.1:8080/", "not public"),
        ("http://localhost:8080/", "not public"),
        ("http://[::1]:8080/", "not public"),
        ("http://[::ffff:127.0.0.1]:8080/", "not public"),
        ("http://2130706433:8080/", "not public"),
        ("http://0177.1:8080/", "not public"),
        ("http://10.1.2.3/", "not public"),
        ("http://172.16.0.1/", "not public"),
        ("http://192.168.0.1/", "not public"),
        ("http://100.64.0.1/", "not public"),
        ("http://169.254.169.254/latest/meta-data/", "not public"),
        ("http://[fd00:ec2::254]/", "not public"),
        ("http://[fe80::1]/", "not public"),
        ("http://0.0.0.0:8080/", "not public"),
        ("http://224.0.0.1/", "not public"),
        ("https://user:password@9.9.9.9/", "password"),
        ("https://9.9.9.9:22/", "port 22"),
        ("https://9.9.9.9:0/", "port"),
        ("ftp://9.9.9.9/", "https://"),
        ("https://no-such-name.invalid/", "host name"),
        ("", "https://"),
    ] {
        let answer = server.post("/v1/webhooks", &json!({ "url": url })).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{url}");
        let told: Value = answer.json().await.unwrap();
        let message = told["error"]["message"].as_str().unwrap();
        assert!(message.starts_with("url: ") && message.contains(says), "{url}: {message}");
    }
    for events in [json!([]), json!(["sandbox.exploded"]), json!(["*"]), json!([""])] {
        let body = json!({ "url": "https://9.9.9.9/", "events": events });
        let told = server.post("/v1/webhooks", &body).send().await.unwrap();
        assert_eq!(refused(told).await, (400, "bad_request".into()), "{events}");
    }
    assert_eq!(server.get("/v1/webhooks").await["webhooks"], json!([]));
}

#[tokio::test]
async fn a_hostile_receiver_gains_nothing() {
    let server = start();
    let receiver = Receiver::start(WELL).unwrap();
    let hook = add(&server, &json!({ "url": receiver.url() })).await;
    let path = format!("/v1/webhooks/{}/test", hook["id"].as_str().unwrap());
    let endless = [b"HTTP/1.1 200 OK\r\n".as_slice(), &b"x: y\r\n".repeat(100_000)].concat();
    // A way to the server's own network, a head without an end, and what is no HTTP.
    receiver.then([
        Answer::Status(307, "location: http://169.254.169.254/latest/meta-data/"),
        Answer::Bytes(endless),
        Answer::Bytes(b"SSH-2.0-OpenSSH\r\n".to_vec()),
        Answer::Close,
        Answer::Bytes(b"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1000)),
    ]);
    for says in ["307", "no whole answer", "no whole answer", "no whole answer", "16 informational"] {
        let tried = good(server.post(&path, &json!({})).send().await.unwrap()).await;
        assert_eq!(tried["delivered"], false, "{tried}");
        assert!(tried["said"].as_str().unwrap().contains(says), "{tried}");
    }
    let tried = good(server.post(&path, &json!({})).send().await.unwrap()).await;
    let counted = server.request(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
    assert!(counted.contains("\ncabana_webhook_deliveries_total 1\n"), "{counted}");
    assert!(counted.contains("\ncabana_webhook_failures_total 5\n"), "{counted}");
    assert_eq!((&tried["delivered"], kinds(&receiver.got()).last().unwrap().as_str()), (&json!(true), "webhook.test"));
}

/// Each try is a connection of the server's, to whom the tenant likes, for as long as that says nothing.
#[tokio::test]
async fn tries_that_are_asked_for_are_bounded() {
    let server = start();
    let receiver = Receiver::start(Answer::Status(410, "")).unwrap();
    let hook = add(&server, &json!({ "url": receiver.url() })).await;
    let path = format!("/v1/webhooks/{}", hook["id"].as_str().unwrap());
    server.ensure("one").await;
    // One that is disabled has nothing of its own that could be waited for.
    until(|| async { Some(server.get(&path).await).filter(|shown| !shown["disabled_at"].is_null()) }).await;
    receiver.from_now_on(Answer::Nothing);
    let before = receiver.got().len();
    let (test, key) = (format!("{}{path}/test", server.url), server.key.clone());
    let one = |_| client().post(&test).bearer_auth(&key).json(&json!({})).send();
    let answers = join_all((0..12).map(one)).await;
    let mut codes: Vec<_> = answers.into_iter().map(|answer| answer.unwrap().status().as_u16()).collect();
    codes.sort_unstable();
    assert_eq!(codes, [[200; 4].as_slice(), &[503; 8]].concat());
    assert_eq!(receiver.got().len() - before, 4);
}

#[tokio::test]
async fn readers_see_webhooks_and_change_none_and_one_that_is_removed_hears_nothing() {
    let server = start();
    let receiver = Receiver::start(WELL).unwrap();
    let id = add(&server, &json!({ "url": receiver.url() })).await["id"].as_str().unwrap().to_owned();
    let reader = server.key_for("default", "read").await;
    let as_reader =
        |method: Method, path: &str| client().request(method, format!("{}{path}", server.url)).bearer_auth(&reader);
    let path = format!("/v1/webhooks/{id}");
    assert!(as_reader(Method::GET, &path).send().await.unwrap().status().is_success());
    for (method, path) in [(Method::DELETE, path.clone()), (Method::POST, format!("{path}/test"))] {
        assert_eq!(refused(as_reader(method, &path).send().await.unwrap()).await, (403, "forbidden".into()));
    }
    delete(&server, &path).await;
    server.ensure("one").await;
    assert_eq!(
        refused(server.request(Method::GET, &path).send().await.unwrap()).await,
        (404, "webhook_not_found".into())
    );
    for _ in 0..16 {
        add(&server, &json!({ "url": receiver.url(), "events": ["webhook.*"] })).await;
    }
    let more = server.post("/v1/webhooks", &json!({ "url": receiver.url() })).send().await.unwrap();
    assert_eq!(refused(more).await, (429, "too_many_webhooks".into()));
    assert!(receiver.got().is_empty(), "{:?}", receiver.got());
}

#[test]
fn the_command_line_makes_tries_shows_and_removes_them() {
    let server = start();
    let receiver = Receiver::start(WELL).unwrap();
    let cabana = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cabana"));
        command.args(["webhook"]).args(words).env("CABANA_URL", &server.url).env("CABANA_API_KEY", &server.key);
        let done = command.output().unwrap();
        (done.status.code(), String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap())
    };
    let (code, secret, told) = cabana(&["add", &receiver.url(), "--event", "task.*", "--event", "sandbox.stopped"]);
    assert!(code == Some(0) && secret.starts_with("whsec_"), "{told}");
    let id = told.split(';').next().unwrap().to_owned();
    let (_, listed, _) = cabana(&["ls"]);
    assert!(listed.contains(&id) && listed.contains(&receiver.url()) && !listed.contains("whsec_"), "{listed}");
    let (code, said, _) = cabana(&["test", &id]);
    assert!(code == Some(0) && said.starts_with("204"), "{said}");
    receiver.from_now_on(Answer::Status(500, ""));
    let (code, said, _) = cabana(&["test", &id]);
    assert!(code == Some(1) && said.starts_with("500"), "{said}");
    let (code, shown, _) = cabana(&["ls", &id, "--json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((code, &shown["events"]), (Some(0), &json!(["task.*", "sandbox.stopped"])));
    assert_eq!(cabana(&["rm", &id]).1.trim(), id);
    assert!(cabana(&["ls", &id]).2.contains("webhook_not_found"));
    assert!(cabana(&["add", "http://10.0.0.1/"]).2.contains("not public"));
}

/// Somebody with a certificate.
struct Secure {
    home: tempfile::TempDir,
    python: Child,
    url: String,
}

impl Secure {
    fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test -addext \
                     subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE -keyout key -out cert";
        let made = Command::new("openssl").current_dir(home.path()).args(words.split_whitespace()).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let script = "import http.server, ssl\n\
                      class Hook(http.server.BaseHTTPRequestHandler):\n\
                      \x20   def do_POST(self):\n\
                      \x20       self.rfile.read(int(self.headers['content-length']))\n\
                      \x20       self.send_response(202)\n\
                      \x20       self.end_headers()\n\
                      \x20   def log_message(self, *_): pass\n\
                      server = http.server.HTTPServer(('127.0.0.1', 0), Hook)\n\
                      context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\n\
                      context.load_cert_chain('cert', 'key')\n\
                      server.socket = context.wrap_socket(server.socket, server_side=True)\n\
                      print(server.server_port, flush=True)\n\
                      server.serve_forever()\n";
        let mut python = Command::new("python3");
        python.args(["-c", script]).current_dir(home.path()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut python = python.spawn().unwrap();
        let mut port = String::new();
        BufReader::new(python.stdout.take().unwrap()).read_line(&mut port).unwrap();
        Self { home, python, url: format!("https://127.0.0.1:{}/hook", port.trim()) }
    }
}

impl Drop for Secure {
    fn drop(&mut self) {
        let _ = self.python.kill();
        let _ = self.python.wait();
    }
}

#[tokio::test]
async fn a_certificate_is_checked_and_one_that_the_operator_trusts_is_good() {
    let secure = Secure::start();
    let cert = secure.home.path().join("cert");
    let allow = ["--webhooks-allow", "127.0.0.1"];
    for (trusts, flags) in [(false, vec![]), (true, vec!["--ca", cert.to_str().unwrap()])] {
        let server = Server::start_with(&[allow.as_slice(), flags.as_slice()].concat());
        let hook = add(&server, &json!({ "url": secure.url })).await;
        let path = format!("/v1/webhooks/{}/test", hook["id"].as_str().unwrap());
        let tried = good(server.post(&path, &json!({})).send().await.unwrap()).await;
        assert_eq!(tried["delivered"], trusts, "{tried}");
        let says = if trusts { "202" } else { "TLS" };
        assert!(tried["said"].as_str().unwrap().contains(says), "{tried}");
    }
}
