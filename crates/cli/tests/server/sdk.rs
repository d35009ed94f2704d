//! What E2B's SDKs send, as they send it, and how they read what comes back.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures_util::{StreamExt, stream::BoxStream};
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};

use crate::stage::{PATIENCE, Server, good};

/// A sandbox, and what its SDK knows of it.
pub(crate) struct Sdk {
    pub(crate) server: Server,
    pub(crate) sandbox: String,
    pub(crate) token: String,
}

pub(crate) fn frame(flags: u8, payload: &[u8]) -> Vec<u8> {
    [&[flags][..], &(payload.len() as u32).to_be_bytes(), payload].concat()
}

/// Frames of an answer, one after the other.
pub(crate) struct Frames {
    body: BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    held: Vec<u8>,
}

impl Frames {
    pub(crate) fn of(response: Response) -> Self {
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "application/connect+json");
        Self { body: response.bytes_stream().boxed(), held: Vec::new() }
    }

    /// Its flags, and what it says. `Err`: the connection went.
    pub(crate) async fn next(&mut self) -> Result<(u8, Value), String> {
        let reading = async {
            loop {
                if let [flags, a, b, c, d, ..] = self.held[..] {
                    let end = 5 + u32::from_be_bytes([a, b, c, d]) as usize;
                    if self.held.len() >= end {
                        let frame: Vec<u8> = self.held.drain(..end).collect();
                        return Ok((flags, serde_json::from_slice(&frame[5..]).unwrap()));
                    }
                }
                let piece = self.body.next().await.ok_or("it ended without its last frame")?;
                self.held.extend(piece.map_err(|error| format!("{error:?}"))?);
            }
        };
        tokio::time::timeout(PATIENCE, reading).await.expect("it comes in time")
    }

    pub(crate) async fn event(&mut self) -> Value {
        let (flags, message) = self.next().await.unwrap();
        assert_eq!(flags, 0, "{message}");
        message["event"].clone()
    }

    pub(crate) async fn pid(&mut self) -> u64 {
        self.event().await["start"]["pid"].as_u64().unwrap()
    }

    /// All that comes, and then the end.
    pub(crate) async fn rest(&mut self) -> (String, Value) {
        let mut said = Vec::new();
        loop {
            match self.next().await.unwrap() {
                (0, message) => match &message["event"] {
                    event if !event["end"].is_null() => {
                        let end = event["end"].clone();
                        assert_eq!(self.next().await.unwrap(), (2, json!({})), "nothing comes after the end");
                        return (String::from_utf8(said).unwrap(), end);
                    }
                    event => said.extend(bytes_of(&event["data"])),
                },
                (_, last) => return (String::from_utf8(said).unwrap(), last),
            }
        }
    }

    /// Until it has said this.
    pub(crate) async fn until(&mut self, wanted: &str) {
        let mut said = Vec::new();
        while !String::from_utf8_lossy(&said).contains(wanted) {
            said.extend(bytes_of(&self.event().await["data"]));
        }
    }
}

pub(crate) fn bytes_of(data: &Value) -> Vec<u8> {
    let of = |name| data[name].as_str().map(|text| STANDARD.decode(text).unwrap());
    of("stdout").or_else(|| of("stderr")).or_else(|| of("pty")).unwrap_or_default()
}

impl Sdk {
    pub(crate) async fn start() -> Self {
        Self::of(Server::start()).await
    }

    pub(crate) async fn of(server: Server) -> Self {
        let made = server.request(Method::POST, "/sandboxes").header("x-api-key", &server.key);
        let asked = json!({ "templateID": "base", "timeout": 300, "secure": true, "envVars": { "GIVEN": "sandbox" } });
        let made = good(made.json(&asked).send().await.unwrap()).await;
        let text = |name: &str| made[name].as_str().unwrap().to_owned();
        Self { sandbox: text("sandboxID"), token: text("envdAccessToken"), server }
    }

    /// Of the control plane.
    pub(crate) fn control(&self, method: Method, path: &str) -> RequestBuilder {
        let request = reqwest::Client::new().request(method, format!("{}{path}", self.server.url));
        request.header("x-api-key", &self.server.key)
    }

    pub(crate) fn inside(&self, method: Method, path: &str) -> RequestBuilder {
        let request = reqwest::Client::new().request(method, format!("{}{path}", self.server.url));
        request.header("E2b-Sandbox-Id", &self.sandbox).header("E2b-Sandbox-Port", "49983")
    }

    pub(crate) fn ask(&self, method: Method, path: &str) -> RequestBuilder {
        self.inside(method, path).header("X-Access-Token", &self.token)
    }

    pub(crate) async fn unary(&self, path: &str, message: Value) -> Response {
        self.ask(Method::POST, path).json(&message).send().await.unwrap()
    }

    pub(crate) async fn call(&self, path: &str, message: Value) -> Value {
        good(self.unary(path, message).await).await
    }

    /// The code of one that is refused.
    pub(crate) async fn refused(&self, path: &str, message: Value) -> (u16, String) {
        let response = self.unary(path, message).await;
        let status = response.status().as_u16();
        (status, response.json::<Value>().await.unwrap()["code"].as_str().unwrap().to_owned())
    }

    pub(crate) fn streaming(&self, path: &str) -> RequestBuilder {
        self.ask(Method::POST, path).header("content-type", "application/connect+json")
    }

    pub(crate) async fn stream(&self, path: &str, message: Value) -> Frames {
        let body = frame(0, message.to_string().as_bytes());
        Frames::of(self.streaming(path).body(body).send().await.unwrap())
    }

    pub(crate) async fn begin(&self, script: &str, more: Value) -> Frames {
        let mut asked = json!({ "process": { "cmd": "/bin/bash", "args": ["-l", "-c", script] }, "stdin": false });
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.stream("/process.Process/Start", asked).await
    }

    pub(crate) async fn run(&self, script: &str) -> (String, Value) {
        let mut frames = self.begin(script, json!({})).await;
        frames.pid().await;
        frames.rest().await
    }

    pub(crate) async fn write(&self, path: &str, text: &str) -> Response {
        let request = self.ask(Method::POST, &format!("/files?path={path}"));
        request.header("content-type", "application/octet-stream").body(text.to_owned()).send().await.unwrap()
    }

    pub(crate) async fn read(&self, path: &str) -> Response {
        self.ask(Method::GET, &format!("/files?path={path}")).send().await.unwrap()
    }
}

pub(crate) fn typed(pid: u64, text: &str) -> Value {
    json!({ "process": { "pid": pid }, "input": { "stdin": STANDARD.encode(text) } })
}
