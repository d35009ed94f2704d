//! The server that is looked at: where it is, and what opens it.

use std::{env, time::Duration};

use cabana_model::Code;
use reqwest::{Client, Method, RequestBuilder, Url};
use serde_json::Value;

use crate::failure::Failure;

/// Whoever says nothing for so long has nothing to say.
const PATIENCE: Duration = Duration::from_secs(60);
/// What is kept of an answer.
const MOST: usize = 1 << 20;

pub(super) struct Target {
    http: Client,
    api: Url,
    agents: Option<Url>,
    key: String,
}

/// What came back, as far as it can be read.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Value,
    pub(super) text: String,
}

impl Answer {
    /// The server's own words, cut short.
    pub(super) fn words(&self) -> String {
        let message = self.body["message"].as_str().unwrap_or_else(|| self.text.trim());
        let short: String = message.chars().take(80).collect();
        format!("{} {short}", self.status)
    }
}

impl Target {
    pub(super) fn new(api: &str, agents: Option<&str>) -> Result<Self, Failure> {
        // Another part of the process may have been first, with the same one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let key = env::var("E2B_API_KEY").ok().filter(|key| !key.is_empty());
        let key = key.ok_or_else(|| {
            Failure::new(Code::Unauthorized, "there is no key: the variable E2B_API_KEY is not set")
                .with_hint("set E2B_API_KEY to a key of that server")
        })?;
        let api = parse(api)?;
        let near = api.host_str().is_some_and(|host| host == "localhost" || host.starts_with("127."));
        let http = Client::builder().timeout(PATIENCE).redirect(reqwest::redirect::Policy::none());
        let http = if near { http.no_proxy() } else { http };
        let http = if near && api.scheme() == "http" { http.tls_certs_only([]) } else { http };
        let http = http.build().map_err(|error| Failure::new(Code::Internal, format!("HTTP: {error}")))?;
        Ok(Self { http, api, agents: agents.map(parse).transpose()?, key })
    }

    pub(super) async fn ask(&self, method: Method, path: &str, body: Option<Value>) -> Result<Answer, Failure> {
        let request = self.http.request(method, at(&self.api, path)?).header("X-API-KEY", &self.key);
        self.send(match body {
            Some(body) => request.json(&body),
            None => request,
        })
        .await
    }

    /// Of a sandbox's agent, which is found by name or by header.
    pub(super) fn agent(&self, method: Method, sandbox: &Value, path: &str) -> Result<RequestBuilder, Failure> {
        let id = sandbox["sandboxID"].as_str().unwrap_or_default();
        let below = || parse(&format!("https://49983-{id}.{}", sandbox["domain"].as_str()?)).ok();
        let base = self.agents.clone().or_else(below).unwrap_or_else(|| self.api.clone());
        let request = self.http.request(method, at(&base, path)?);
        let request = request.header("E2b-Sandbox-Id", id).header("E2b-Sandbox-Port", "49983");
        Ok(match sandbox["envdAccessToken"].as_str() {
            Some(token) => request.header("X-Access-Token", token),
            None => request,
        })
    }

    pub(super) async fn send(&self, request: RequestBuilder) -> Result<Answer, Failure> {
        let unreached = |error: reqwest::Error| {
            Failure::new(Code::ProviderOffline, format!("{}: {error}", self.api))
                .with_hint("look whether it serves at this address, and whether --sandbox-url is needed")
        };
        let mut response = request.send().await.map_err(unreached)?;
        let status = response.status().as_u16();
        let mut bytes = Vec::new();
        while bytes.len() < MOST
            && let Some(piece) = response.chunk().await.map_err(unreached)?
        {
            bytes.extend_from_slice(&piece);
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(Answer { status, body: serde_json::from_slice(&bytes).unwrap_or(Value::Null), text })
    }
}

fn parse(text: &str) -> Result<Url, Failure> {
    let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    url.ok_or_else(|| Failure::bad(format!("{text:?} is no address: write it as http://127.0.0.1:7070")))
}

/// A path of the API below whatever path the address itself has.
fn at(base: &Url, path: &str) -> Result<Url, Failure> {
    parse(&format!("{}{path}", base.as_str().trim_end_matches('/')))
}
