//! What all tenants share on a server with few descriptors: one that takes all it can get leaves some to the others.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use rustix::process::{Resource, Rlimit, setrlimit};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    inside::client,
    stage::{Server, good, refused, until},
};

/// Of this process, and so of a server that it starts.
fn have_few_descriptors(count: u64) {
    setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum: Some(count) }).unwrap();
}

struct Tenant {
    url: String,
    key: String,
    client: Client,
}

impl Tenant {
    async fn new(server: &Server, name: &str) -> Self {
        Self { url: server.url.clone(), key: server.key_for(name, "use").await, client: client() }
    }

    async fn post(&self, path: &str, body: &Value) -> Response {
        let request = self.client.post(format!("{}{path}", self.url)).bearer_auth(&self.key);
        request.json(body).send().await.unwrap()
    }

    async fn begin(&self, scope: &str) -> Response {
        let scope = json!({ "scheme": "fixed", "name": scope });
        self.post("/v1/exec", &json!({ "scope": scope, "command": "sleep 600", "background": true })).await
    }

    /// As many commands in the sandbox as it gets.
    async fn fill(&self, scope: &str) -> usize {
        let mut count = 0;
        loop {
            let answer = self.begin(scope).await;
            if answer.status() != StatusCode::ACCEPTED {
                assert_eq!(refused(answer).await, (503, "host_exhausted".into()));
                return count;
            }
            count += 1;
        }
    }

    /// A sandbox in which a web server listens, made by this front.
    async fn listening(&self, path: &str, body: &Value) -> String {
        let made = good(self.post(path, body).await).await;
        let id = ["id", "sandboxID"].iter().find_map(|name| made[name].as_str()).unwrap().to_owned();
        let argv = json!({ "argv": ["python3", "-c", include_str!("inside.py"), "8000"], "background": true });
        good(self.post(&format!("/v1/sandboxes/{id}/exec"), &argv).await).await;
        until(|| async { self.at(&id, "echo").send().await.unwrap().status().is_success().then_some(()) }).await;
        id
    }

    fn at(&self, sandbox: &str, path: &str) -> RequestBuilder {
        self.client.get(format!("{}/p/{sandbox}/8000/{path}", self.url)).bearer_auth(&self.key)
    }

    /// So many requests that nothing answers, as far as they are let in. They last as long as what this gives.
    async fn visit(&self, sandbox: &str, count: usize, request: impl Fn() -> RequestBuilder) -> JoinSet<()> {
        let (mut visits, ended) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
        for _ in 0..count {
            let (request, ended) = (request(), ended.clone());
            visits.spawn(async move {
                let answer = request.send().await.unwrap().text().await.unwrap();
                assert!(answer.contains("too_many_connections"), "{answer}");
                ended.fetch_add(1, Ordering::SeqCst);
            });
        }
        let inside = || async {
            let seen = json!({ "command": "grep -c silent seen || true" });
            let seen = good(self.post(&format!("/v1/sandboxes/{sandbox}/exec"), &seen).await).await;
            seen["stdout"].as_str().unwrap().trim().parse::<usize>().unwrap()
        };
        until(|| async { (inside().await + ended.load(Ordering::SeqCst) == count).then_some(()) }).await;
        visits
    }
}

#[tokio::test]
async fn sandboxes_of_one_tenant_leave_some_to_another_also_after_a_restart() {
    have_few_descriptors(600); // 37 sandboxes
    let mut server = Server::start();
    let (mut greedy, mut modest) = (Tenant::new(&server, "greedy").await, Tenant::new(&server, "modest").await);
    good(modest.post("/v1/sandboxes", &json!({})).await).await;
    let mut count = 0;
    loop {
        let answer = greedy.post("/v1/sandboxes", &json!({})).await;
        if !answer.status().is_success() {
            assert_eq!(refused(answer).await, (503, "host_exhausted".into()));
            break;
        }
        count += 1;
    }
    assert_eq!(count, 18, "half of them");
    good(modest.post("/v1/sandboxes", &json!({})).await).await;
    server.kill();
    server.run();
    (greedy.url, modest.url) = (server.url.clone(), server.url.clone());
    let metrics = || async { server.request(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap() };
    until(|| async { metrics().await.contains("\ncabana_recovering 0\n").then_some(()) }).await;
    let answer = greedy.post("/v1/sandboxes", &json!({})).await;
    assert_eq!(refused(answer).await, (503, "host_exhausted".into()), "what runs still counts");
    good(modest.post("/v1/sandboxes", &json!({})).await).await;
}

#[tokio::test]
async fn commands_of_one_tenant_leave_some_to_another_also_after_a_restart() {
    have_few_descriptors(600); // 50 commands
    let mut server = Server::start();
    let (mut greedy, mut modest) = (Tenant::new(&server, "greedy").await, Tenant::new(&server, "modest").await);
    for scope in ["one", "two", "three", "four"] {
        greedy.fill(scope).await;
    }
    for _ in 0..4 {
        assert_eq!(modest.begin("one").await.status(), StatusCode::ACCEPTED);
    }
    server.kill();
    server.run();
    (greedy.url, modest.url) = (server.url.clone(), server.url.clone());
    let metrics = || async { server.request(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap() };
    until(|| async { metrics().await.contains("\ncabana_recovering 0\n").then_some(()) }).await;
    assert_eq!(greedy.fill("one").await, 0, "what runs still counts");
    assert_eq!(modest.begin("one").await.status(), StatusCode::ACCEPTED);
}

#[tokio::test]
async fn visits_to_many_sandboxes_of_one_tenant_leave_some_to_another() {
    have_few_descriptors(800); // 100 connections to ports
    let server = Server::start();
    let (greedy, modest) = (Tenant::new(&server, "greedy").await, Tenant::new(&server, "modest").await);
    let new = json!({});
    let page = modest.listening("/v1/sandboxes", &new).await;
    let (mut sandboxes, mut visits) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        sandboxes.push(greedy.listening("/v1/sandboxes", &new).await);
    }
    for (sandbox, count) in sandboxes.iter().zip([90, 12, 12, 12, 12]) {
        visits.push(greedy.visit(sandbox, count, || greedy.at(sandbox, "silent")).await);
    }
    for _ in 0..4 {
        good(modest.at(&page, "echo").send().await.unwrap()).await;
    }
}

#[tokio::test]
async fn visits_without_a_key_leave_some_to_those_with_one() {
    have_few_descriptors(800); // 100 connections to ports
    let server = Server::start();
    let tenant = Tenant::new(&server, "one").await;
    let new = json!({ "templateID": "base", "timeout": 600 });
    let (mut sandboxes, mut visits) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        sandboxes.push(tenant.listening("/sandboxes", &new).await);
    }
    let in_public = |sandbox: &str| {
        let request = tenant.client.get(format!("{}/silent", server.url)).header("E2b-Sandbox-Id", sandbox);
        request.header("E2b-Sandbox-Port", "8000")
    };
    for (sandbox, count) in sandboxes.iter().zip([90, 12, 12, 12, 12]) {
        visits.push(tenant.visit(sandbox, count, || in_public(sandbox)).await);
    }
    for sandbox in &sandboxes {
        good(tenant.at(sandbox, "echo").send().await.unwrap()).await;
    }
}
