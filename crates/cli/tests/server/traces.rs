//! Traces, as a collector receives them: OTLP over HTTP, in JSON.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};
use tokio_util::task::TaskTracker;

use crate::stage::{Server, good, until};

/// Takes what is sent, and keeps it.
struct Collector {
    at: String,
    bodies: Arc<Mutex<Vec<String>>>,
}

impl Collector {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let collector = Self { at: format!("http://{}", listener.local_addr().unwrap()), bodies: Arc::default() };
        let (bodies, tasks) = (collector.bodies.clone(), TaskTracker::new());
        tasks.clone().spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tasks.spawn(Self::serve(stream, bodies.clone()));
            }
        });
        collector
    }

    async fn serve(stream: TcpStream, bodies: Arc<Mutex<Vec<String>>>) {
        let mut stream = BufReader::new(stream);
        loop {
            let (mut length, mut kind, mut first) = (0, String::new(), String::new());
            loop {
                let mut line = String::new();
                if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                    return;
                }
                let line = line.trim_end().to_ascii_lowercase();
                match line.split_once(": ") {
                    Some(("content-length", value)) => length = value.parse().unwrap(),
                    Some(("content-type", value)) => kind = value.to_owned(),
                    _ if line.is_empty() => break,
                    _ if first.is_empty() => first = line,
                    _ => {}
                }
            }
            assert_eq!((first.as_str(), kind.as_str()), ("post /base/v1/traces http/1.1", "application/json"));
            let mut body = vec![0; length];
            stream.read_exact(&mut body).await.unwrap();
            bodies.lock().unwrap().push(String::from_utf8(body).unwrap());
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").await.unwrap();
        }
    }

    fn text(&self) -> String {
        self.bodies.lock().unwrap().join("\n")
    }

    fn spans(&self) -> Vec<Value> {
        let bodies = self.bodies.lock().unwrap();
        let requests = bodies.iter().map(|body| serde_json::from_str::<Value>(body).unwrap());
        let of = |value: &Value, name: &str| value[name].as_array().unwrap().clone();
        let resources = requests.flat_map(|request| of(&request, "resourceSpans"));
        let scopes = resources.flat_map(|resource| {
            assert_eq!(attributes(&resource["resource"])["service.name"], "cabana");
            of(&resource, "scopeSpans")
        });
        scopes.flat_map(|scope| of(&scope, "spans")).collect()
    }

    /// Of one trace, by name, once they are all there.
    async fn trace(&self, trace: &str, names: &[&str]) -> HashMap<String, Value> {
        let all = || async {
            let of_it = self.spans().into_iter().filter(|span| span["traceId"] == trace);
            let of_it: HashMap<_, _> = of_it.map(|span| (span["name"].as_str().unwrap().to_owned(), span)).collect();
            names.iter().all(|name| of_it.contains_key(*name)).then_some(of_it)
        };
        until(all).await
    }
}

fn attributes(span: &Value) -> HashMap<String, String> {
    let pairs = span["attributes"].as_array().unwrap().iter().map(|pair| {
        let value = pair["value"].as_object().unwrap().values().next().unwrap();
        (pair["key"].as_str().unwrap().to_owned(), value.as_str().map_or(value.to_string(), str::to_owned))
    });
    pairs.collect()
}

async fn traced() -> (Server, Collector) {
    let collector = Collector::start().await;
    (Server::start_with(&["--telemetry-endpoint", &format!("{}/base/", collector.at)]), collector)
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)] // the collector takes spans while the server is waited for
async fn spans_lead_from_the_clients_own_to_the_command() {
    let (mut server, collector) = traced().await;
    let body = json!({
        "scope": { "scheme": "fixed", "name": "one" }, "command": "cat; echo said$END; exit 3", "stdin": "typedsecret",
        "env": { "TOKEN": "topsecretvalue", "END": "secret" },
    });
    let request = server.post("/v1/exec?x=", &body).header("traceparent", format!("00-{TRACE}-{PARENT}-01"));
    let call = good(request.send().await.unwrap()).await;
    let spans = collector.trace(TRACE, &["request", "call", "start", "exec"]).await;
    let (request, of_call) = (&spans["request"], &spans["call"]);
    assert_eq!(request["parentSpanId"], PARENT);
    assert_eq!(request["kind"], 2);
    assert_eq!(of_call["parentSpanId"], request["spanId"]);
    for name in ["start", "exec"] {
        assert_eq!(spans[name]["parentSpanId"], of_call["spanId"], "{name}");
    }
    let said = attributes(request);
    assert_eq!((said["http.request.method"].as_str(), said["http.route"].as_str()), ("POST", "/v1/exec"));
    assert_eq!(said["http.response.status_code"], "200");
    let said = attributes(of_call);
    assert_eq!((said["verb"].as_str(), said["tenant"].as_str()), ("exec", "default"));
    assert_eq!((said["outcome"].as_str(), said["call"].as_str()), ("answered", call["call_id"].as_str().unwrap()));
    assert_eq!(said["sandbox"], server.ensure("one").await["id"].as_str().unwrap());
    assert_eq!(attributes(&spans["exec"])["exit"], "3");
    let time = |span: &Value, name: &str| span[name].as_str().unwrap().parse::<u128>().unwrap();
    for span in spans.values() {
        assert!(time(span, "startTimeUnixNano") <= time(span, "endTimeUnixNano"), "{span}");
        assert!(time(request, "startTimeUnixNano") <= time(span, "startTimeUnixNano"), "{span}");
    }
    // Who says that it is not to be kept is heard; what is no parent begins a trace.
    let unkept = "11111111111111111111111111111111";
    let quiet = server.request(Method::GET, "/v1/sandboxes").header("traceparent", format!("00-{unkept}-{PARENT}-00"));
    good(quiet.send().await.unwrap()).await;
    let wrong = server.request(Method::GET, "/v1/calls").header("traceparent", format!("00-{TRACE}-zz-01"));
    good(wrong.send().await.unwrap()).await;
    let of_route = |route: &str| {
        let is_it = |span: &&Value| attributes(span).get("http.route").is_some_and(|it| it == route);
        collector.spans().iter().find(is_it).cloned()
    };
    let root = until(|| async { of_route("/v1/calls") }).await;
    assert!(root.get("parentSpanId").is_none() && root["traceId"] != TRACE, "{root}");
    // What fails says why.
    let lost = server.request(Method::GET, "/v1/sandboxes/aaaaaaaaaaaaaaaa/files?path=x").send().await.unwrap();
    assert_eq!(lost.status(), StatusCode::NOT_FOUND);
    let body = json!({ "scope": { "scheme": "fixed", "name": "one" }, "argv": ["/no/such"] });
    assert_eq!(server.post("/v1/exec", &body).send().await.unwrap().status(), StatusCode::BAD_REQUEST);
    let failed = || async {
        let is_it = |span: &&Value| attributes(span).get("error.type").is_some_and(|it| it == "program_not_found");
        collector.spans().iter().find(is_it).cloned()
    };
    assert_eq!(until(failed).await["status"]["code"], 2);
    // A task goes on by itself, and says what began it.
    let task = server.begin("one", "true").await;
    server.ended(&task).await;
    server.stop(); // sends what is there still
    let spans = collector.spans();
    let task = spans.iter().find(|span| span["name"] == "task").unwrap();
    let start = spans.iter().find(|span| attributes(span).get("verb").is_some_and(|verb| verb == "start")).unwrap();
    assert_eq!(task["links"][0]["spanId"], start["spanId"]);
    let text = collector.text();
    for secret in ["topsecretvalue", "typedsecret", "saidsecret", &server.key, unkept] {
        assert!(!text.contains(secret), "{secret}");
    }
}

async fn dropped(server: &Server) -> Option<u64> {
    let page = server.request(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
    let count = page.lines().find_map(|line| line.strip_prefix("cabana_spans_dropped_total "));
    count.unwrap().parse().ok().filter(|count| *count > 0)
}

#[tokio::test]
async fn a_collector_that_is_not_there_or_never_answers_harms_nobody() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap(); // nobody accepts, and the kernel does
    let (hung, gone) = (silent.local_addr().unwrap().to_string(), "127.0.0.1:9".to_owned());
    for collector in [hung, gone] {
        let mut server = Server::start_with(&["--telemetry-endpoint", &format!("http://{collector}")]);
        assert_eq!(server.stdout("one", "echo served").await, "served\n");
        // More spans than wait to be sent.
        for _ in 0..100 {
            let asked = (0..60).map(|_| server.request(Method::GET, "/livez").send());
            for answer in futures_util::future::join_all(asked).await {
                assert_eq!(answer.unwrap().status(), StatusCode::OK);
            }
        }
        until(|| dropped(&server)).await;
        assert_eq!(server.stdout("one", "echo still").await, "still\n");
        server.stop();
        let told = server.said().iter().filter(|line| line.contains("takes no traces")).count();
        assert!(told <= 1, "{:?}", server.said());
    }
}

#[tokio::test]
async fn without_a_collector_there_is_nothing_of_it() {
    let server = Server::start();
    let page = server.request(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
    assert!(!page.contains("cabana_spans"));
}
