//! One route after the other, on sandboxes that are made for it and removed at the end.

use cabana_e2b_wire::envelope;
use cabana_model::Code;
use reqwest::Method;
use serde::Serialize;
use serde_json::{Value, json};

use super::target::{Answer, Target};
use crate::failure::Failure;

/// What one route said.
#[derive(Serialize)]
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) route: &'static str,
    there: There,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum There {
    Yes,
    No,
    /// The route is known, and did not do what was asked.
    Refuses,
}

impl Step {
    pub(super) fn is_there(&self) -> bool {
        self.there == There::Yes
    }

    pub(super) fn answer(&self) -> &'static str {
        match self.there {
            There::Yes => "yes",
            There::No => "no",
            There::Refuses => "refuses",
        }
    }
}

struct Walk {
    target: Target,
    steps: Vec<Step>,
    /// What has to be removed again.
    made: Vec<String>,
}

pub(super) async fn walk(target: Target, template: &str) -> Result<Vec<Step>, Failure> {
    let listed = target.ask(Method::GET, "/v2/sandboxes", None).await?;
    if matches!(listed.status, 401 | 403) {
        return Err(Failure::new(Code::Unauthorized, format!("the server refuses the key: {}", listed.words())));
    }
    let mut walk = Walk { target, steps: Vec::new(), made: Vec::new() };
    walk.tell("list", "GET /v2/sandboxes", &listed);
    let walked = walk.all(template).await;
    walk.remove().await;
    walked.map(|()| walk.steps)
}

impl Walk {
    fn tell(&mut self, name: &'static str, route: &'static str, answer: &Answer) -> bool {
        let there = match answer.status {
            200..300 => There::Yes,
            404 | 405 | 501 => There::No,
            _ => There::Refuses,
        };
        let note = (there != There::Yes).then(|| answer.words());
        self.steps.push(Step { name, route, there, note });
        there == There::Yes
    }

    async fn all(&mut self, template: &str) -> Result<(), Failure> {
        let new = self.create("create_v2", "POST /v2/sandboxes", "/v2/sandboxes", template).await?;
        let old = self.create("create", "POST /sandboxes", "/sandboxes", template).await?;
        let Some(sandbox) = new.or(old) else { return Ok(()) };
        let id = sandbox["sandboxID"].as_str().unwrap_or_default().to_owned();
        let sandbox = self.show(&id, sandbox).await?;
        self.connect(&id).await?;
        self.agent(&sandbox).await?;
        self.extras(&id).await?;
        self.rest(&id).await
    }

    async fn create(
        &mut self,
        name: &'static str,
        route: &'static str,
        path: &str,
        template: &str,
    ) -> Result<Option<Value>, Failure> {
        let asked = json!({ "templateID": template, "timeout": 120, "metadata": { "made-by": "cabana probe" } });
        let made = self.target.ask(Method::POST, path, Some(asked)).await?;
        self.made.extend(made.body["sandboxID"].as_str().map(str::to_owned));
        Ok(self.tell(name, route, &made).then_some(made.body))
    }

    /// With what a client needs that builds itself from it.
    async fn show(&mut self, id: &str, sandbox: Value) -> Result<Value, Failure> {
        let shown = self.target.ask(Method::GET, &format!("/sandboxes/{id}"), None).await?;
        self.tell("show", "GET /sandboxes/{id}", &shown);
        let lacks = |name: &&&str| shown.body.get(**name).is_none_or(Value::is_null);
        let lacking: Vec<_> = ["state", "envdVersion", "envdAccessToken"].iter().filter(lacks).copied().collect();
        if let Some(step) = self.steps.last_mut().filter(|_| !lacking.is_empty()) {
            step.note = Some(format!("without {}", lacking.join(", ")));
        }
        Ok(if sandbox["envdAccessToken"].is_string() { sandbox } else { shown.body })
    }

    async fn connect(&mut self, id: &str) -> Result<(), Failure> {
        let asked = json!({ "timeout": 120 });
        let v2 = self.target.ask(Method::POST, &format!("/v2/sandboxes/{id}/connect"), Some(json!({}))).await?;
        self.tell("connect_v2", "POST /v2/sandboxes/{id}/connect", &v2);
        let v1 = self.target.ask(Method::POST, &format!("/sandboxes/{id}/connect"), Some(asked.clone())).await?;
        self.tell("connect", "POST /sandboxes/{id}/connect", &v1);
        let timeout = self.target.ask(Method::POST, &format!("/sandboxes/{id}/timeout"), Some(asked)).await?;
        self.tell("timeout", "POST /sandboxes/{id}/timeout", &timeout);
        Ok(())
    }

    async fn agent(&mut self, sandbox: &Value) -> Result<(), Failure> {
        let health = self.target.send(self.target.agent(Method::GET, sandbox, "/health")?).await?;
        self.tell("agent", "envd GET /health", &health);
        let stat =
            self.target.agent(Method::POST, sandbox, "/filesystem.Filesystem/Stat")?.json(&json!({ "path": "/" }));
        let stat = self.target.send(stat).await?;
        self.tell("files", "envd Filesystem/Stat", &stat);
        let frame = envelope::message(&json!({ "process": { "cmd": "/bin/true" }, "stdin": false }));
        let frame = frame.map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
        let start = self.target.agent(Method::POST, sandbox, "/process.Process/Start")?;
        let start = self.target.send(start.header("Content-Type", "application/connect+json").body(frame)).await?;
        // Its status is 200 whatever came of it.
        let ran = Answer { status: if start.text.contains("\"end\"") { start.status } else { 500 }, ..start };
        self.tell("command", "envd Process/Start", &ran);
        Ok(())
    }

    /// What an SDK can live without, and its users may not.
    async fn extras(&mut self, id: &str) -> Result<(), Failure> {
        let of = |rest: &str| format!("/sandboxes/{id}/{rest}");
        let metrics = self.target.ask(Method::GET, &of("metrics"), None).await?;
        self.tell("metrics", "GET /sandboxes/{id}/metrics", &metrics);
        let logs = self.target.ask(Method::GET, &format!("/v2{}", of("logs")), None).await?;
        self.tell("logs", "GET /v2/sandboxes/{id}/logs", &logs);
        let network = self.target.ask(Method::PUT, &of("network"), Some(json!({}))).await?;
        self.tell("network", "PUT /sandboxes/{id}/network", &network);
        let snapshot = self.target.ask(Method::POST, &of("snapshots"), Some(json!({}))).await?;
        if self.tell("snapshot", "POST /sandboxes/{id}/snapshots", &snapshot) {
            let snapshot =
                snapshot.body["snapshotID"].as_str().unwrap_or_default().replace('/', "%2F").replace(':', "%3A");
            let gone = self.target.ask(Method::DELETE, &format!("/templates/{snapshot}"), None).await?;
            self.tell("delete_template", "DELETE /templates/{id}", &gone);
        }
        let forks = self.target.ask(Method::POST, &of("fork"), Some(json!({ "timeout": 120, "count": 1 }))).await?;
        let ids = forks.body.as_array().into_iter().flatten().filter_map(|one| one["sandbox"]["sandboxID"].as_str());
        self.made.extend(ids.map(str::to_owned));
        self.tell("fork", "POST /sandboxes/{id}/fork", &forks);
        Ok(())
    }

    /// To sleep, awake again, and gone.
    async fn rest(&mut self, id: &str) -> Result<(), Failure> {
        let paused = self.target.ask(Method::POST, &format!("/sandboxes/{id}/pause"), Some(json!({}))).await?;
        self.tell("pause", "POST /sandboxes/{id}/pause", &paused);
        let resumed =
            self.target.ask(Method::POST, &format!("/sandboxes/{id}/resume"), Some(json!({ "timeout": 120 }))).await?;
        self.tell("resume", "POST /sandboxes/{id}/resume", &resumed);
        let killed = self.target.ask(Method::DELETE, &format!("/sandboxes/{id}"), None).await?;
        if self.tell("kill", "DELETE /sandboxes/{id}", &killed) {
            self.made.retain(|made| made != id);
        }
        Ok(())
    }

    /// What does not go now goes when its time is over.
    async fn remove(&mut self) {
        for id in std::mem::take(&mut self.made) {
            let _ = self.target.ask(Method::DELETE, &format!("/sandboxes/{id}"), None).await;
        }
    }
}
