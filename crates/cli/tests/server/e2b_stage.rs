//! Whoever speaks E2B's protocol, with one key.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::stage::{Server, client, good};

pub(crate) struct Asking<'a> {
    pub(crate) server: &'a Server,
    key: String,
    client: reqwest::Client,
}

impl<'a> Asking<'a> {
    pub(crate) fn of(server: &'a Server) -> Self {
        Self::with(server, server.key.clone())
    }

    pub(crate) fn with(server: &'a Server, key: String) -> Self {
        Self { server, key, client: client() }
    }

    /// Null is no body.
    pub(crate) async fn send(&self, method: Method, path: &str, body: &Value) -> Response {
        let request = self.client.request(method, format!("{}{path}", self.server.url)).header("x-api-key", &self.key);
        let request = if body.is_null() { request } else { request.json(body) };
        request.send().await.unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        self.send(Method::GET, path, &Value::Null).await
    }

    pub(crate) async fn make(&self, template: &str) -> Response {
        self.send(Method::POST, "/sandboxes", &json!({ "templateID": template, "timeout": 300, "secure": true })).await
    }
}

pub(crate) struct Sandbox<'a> {
    asking: &'a Asking<'a>,
    pub(crate) id: String,
    token: String,
}

impl<'a> Sandbox<'a> {
    pub(crate) async fn make(asking: &'a Asking<'a>, template: &str) -> Self {
        let made = good(asking.make(template).await).await;
        let text = |name: &str| made[name].as_str().unwrap().to_owned();
        Self { asking, id: text("sandboxID"), token: text("envdAccessToken") }
    }

    fn inside(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.asking.client.request(method, format!("{}{path}", self.asking.server.url));
        request
            .header("E2b-Sandbox-Id", &self.id)
            .header("E2b-Sandbox-Port", "49983")
            .header("X-Access-Token", &self.token)
    }

    pub(crate) async fn write(&self, path: &str, text: &str) {
        let request = self.inside(Method::POST, &format!("/files?path={path}"));
        let request = request.header("content-type", "application/octet-stream").body(text.to_owned());
        good(request.send().await.unwrap()).await;
    }

    pub(crate) async fn read(&self, path: &str) -> String {
        let response = self.inside(Method::GET, &format!("/files?path={path}")).send().await.unwrap();
        assert_eq!(response.status(), 200);
        response.text().await.unwrap()
    }

    /// All that it says, as the SDKs run it. It has to succeed.
    pub(crate) async fn run(&self, script: &str) -> String {
        let asked = json!({ "process": { "cmd": "/bin/bash", "args": ["-l", "-c", script] }, "stdin": false });
        let asked = asked.to_string();
        let body = [&[0][..], &(asked.len() as u32).to_be_bytes(), asked.as_bytes()].concat();
        let request = self.inside(Method::POST, "/process.Process/Start");
        let request = request.header("content-type", "application/connect+json").body(body);
        let answer = request.send().await.unwrap().bytes().await.unwrap();
        let (mut rest, mut said, mut exit) = (&answer[..], Vec::new(), None);
        while let [_, a, b, c, d, body @ ..] = rest {
            let (frame, left) = body.split_at(u32::from_be_bytes([*a, *b, *c, *d]) as usize);
            let event = serde_json::from_slice::<Value>(frame).unwrap()["event"].take();
            for stream in ["stdout", "stderr"] {
                said.extend(
                    event["data"][stream].as_str().map(|text| STANDARD.decode(text).unwrap()).unwrap_or_default(),
                );
            }
            if !event["end"].is_null() {
                exit = Some(event["end"]["exitCode"].as_i64().unwrap_or(0));
            }
            rest = left;
        }
        let said = String::from_utf8(said).unwrap();
        assert_eq!(exit, Some(0), "{script}: {said}");
        said
    }
}
